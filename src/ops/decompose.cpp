#include "ops/decompose.h"

#include <algorithm>

#include "ops/schema.h"

namespace dgpu::ops {

StepBuilder& StepBuilder::attr(std::string name, AttrValue value) {
  step_.spec.attrs.insert_or_assign(std::move(name), std::move(value));
  return *this;
}

StepBuilder& StepBuilder::copy_attr(std::string_view name) {
  if (const auto it = outer_.attrs.find(name); it != outer_.attrs.end()) attr(it->first, it->second);
  return *this;
}

StepBuilder& StepBuilder::bind(std::string port, std::string_view tensor) {
  const bool inner = tensor[0] == '%';
  return bind_view(std::move(port), tensor,
                   inner ? out_.temporaries[std::stoul(std::string(tensor.substr(1)))] : desc(outer_, tensor), 0);
}

StepBuilder& StepBuilder::bind_view(std::string port, std::string_view tensor, const dgpuTensorDesc& view,
                                    int64_t offset) {
  step_.spec.ports[port] = view;
  step_.values.insert_or_assign(std::move(port), StepValue{std::string(tensor), offset});
  return *this;
}

std::string add_temp(Decomposition& out, dgpuDtype_t dtype, const dgpuTensorDesc& like) {
  Dims dims(like.rank);
  for (uint32_t i = 0; i < like.rank; ++i) dims[i] = {like.shape[i], like.symbols[i]};
  out.temporaries.push_back(packed(dtype, dims));
  return "%" + std::to_string(out.temporaries.size() - 1);
}

bool decompose(const OpSpec& spec, Decomposition& out) {
  out = {};
  const Schema* schema = find(spec.name);
  if (!schema || !schema->decompose || !schema->decompose(spec, out) || out.steps.empty()) return false;
  return std::all_of(out.steps.begin(), out.steps.end(), [](Step& step) { return validate(step.spec) == 0; });
}

}  // namespace dgpu::ops
