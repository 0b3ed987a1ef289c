// An operator as a backend sees it.
#pragma once
#include <string>
#include <vector>

#include "ops/op.h"

namespace dgpu::ops {

// Keeps what a dgpuBackendOp points to. The spec must outlive it.
class BackendOp {
 public:
  // `spec` is validated. `symbols`: highest symbol id of the whole plan.
  BackendOp(const OpSpec& spec, const std::vector<std::string>& order, uint32_t symbols);
  BackendOp(const BackendOp&) = delete;
  BackendOp& operator=(const BackendOp&) = delete;
  const dgpuBackendOp* get() const { return &op_; }

 private:
  void add_attr(const std::string& name, const AttrValue& value);

  std::vector<dgpuBackendAttr> attrs_;
  std::vector<const dgpuBackendAttr*> attr_pointers_;
  std::vector<int64_t> ints_;  // scalars
  std::vector<double> floats_;
  std::vector<dgpuBackendPort> ports_;
  std::vector<const dgpuBackendPort*> port_pointers_;
  dgpuBackendOp op_{};
};

}  // namespace dgpu::ops
