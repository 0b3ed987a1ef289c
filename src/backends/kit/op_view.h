// Reading a dgpuBackendOp: attributes and ports by name. For backends; sees the installed headers only.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "dgpu/backend.h"

namespace dgpu::kit {

class OpView {
 public:
  explicit OpView(const dgpuBackendOp* op) : op_(op) {}
  std::string_view name() const { return op_->name; }
  uint32_t port_count() const { return op_->port_count; }
  uint32_t symbol_count() const { return op_->symbol_count; }
  // Index of a port in Args::ports, -1 if it is not bound.
  int port(std::string_view name) const;
  // Description of a bound port, null if it is not bound.
  const dgpuTensorDesc* desc(std::string_view name) const;
  const dgpuTensorDesc& desc(uint32_t index) const { return *op_->ports[index]->desc; }
  // Attributes; the fallback is returned where the attribute is absent.
  bool has(std::string_view name) const { return find(name) != nullptr; }
  int64_t i(std::string_view name, int64_t fallback = 0) const;
  double f(std::string_view name, double fallback = 0) const;
  bool b(std::string_view name, bool fallback = false) const { return i(name, fallback) != 0; }
  std::string_view s(std::string_view name, std::string_view fallback = {}) const;
  std::vector<int64_t> ints(std::string_view name) const;

 private:
  const dgpuBackendAttr* find(std::string_view name) const;
  const dgpuBackendOp* op_;
};

// Extent of dimension `i` for these symbol values: the symbol's value, or the fixed shape.
inline int64_t extent(const dgpuTensorDesc& d, uint32_t i, const int64_t* symbols) {
  return d.symbols[i] ? symbols[d.symbols[i] - 1] : d.shape[i];
}

// Records an error text for the running command on this thread and returns `status`.
dgpuStatus_t fail(dgpuStatus_t status, std::string message);
// The text recorded last on this thread.
const std::string& failure();

}  // namespace dgpu::kit
