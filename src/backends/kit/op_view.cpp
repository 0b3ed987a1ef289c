#include "backends/kit/op_view.h"

namespace dgpu::kit {

int OpView::port(std::string_view name) const {
  for (uint32_t i = 0; i < op_->port_count; ++i)
    if (name == op_->ports[i]->name) return static_cast<int>(i);
  return -1;
}

const dgpuTensorDesc* OpView::desc(std::string_view name) const {
  const int i = port(name);
  return i < 0 ? nullptr : op_->ports[i]->desc;
}

const dgpuBackendAttr* OpView::find(std::string_view name) const {
  for (uint32_t i = 0; i < op_->attr_count; ++i)
    if (name == op_->attrs[i]->name) return op_->attrs[i];
  return nullptr;
}

int64_t OpView::i(std::string_view name, int64_t fallback) const {
  const auto* a = find(name);
  return a && a->count && a->ints ? a->ints[0] : fallback;
}

double OpView::f(std::string_view name, double fallback) const {
  const auto* a = find(name);
  return a && a->count && a->floats ? a->floats[0] : fallback;
}

std::string_view OpView::s(std::string_view name, std::string_view fallback) const {
  const auto* a = find(name);
  return a && a->string ? std::string_view(a->string) : fallback;
}

std::vector<int64_t> OpView::ints(std::string_view name) const {
  const auto* a = find(name);
  if (!a || !a->ints) return {};
  return {a->ints, a->ints + a->count};
}

namespace {
thread_local std::string g_failure;
}

dgpuStatus_t fail(dgpuStatus_t status, std::string message) {
  g_failure = std::move(message);
  return status;
}

const std::string& failure() { return g_failure; }

}  // namespace dgpu::kit
