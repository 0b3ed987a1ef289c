// A C function as a kernel: called through libffi once per grid point.
#pragma once
#include <ffi.h>

#include <memory>
#include <string>
#include <vector>

#include "backends/cpu/services.h"
#include "dgpu/backend.h"

namespace dgpu::cpu {

class HostKernel {
 public:
  // Prepares the call. Null with `error` set if the description is not usable.
  static std::unique_ptr<HostKernel> create(const Services& services, const dgpuBackendKernelDesc& desc,
                                            std::string* error);

  // Calls the function for points [first, last) of the launch's grid, x fastest. Allocates nothing. Stops at the
  // first point that reports failure; the text is in kit::failure().
  dgpuStatus_t run(const dgpuCommandKernel& launch, uint64_t first, uint64_t last) const;

  const std::string& name() const { return name_; }
  bool may_block() const { return flags_ & DGPU_KERNEL_MAY_BLOCK; }

  static constexpr uint32_t kMaxParams = 32;

 private:
  explicit HostKernel(const Services& services) : services_(services) {}
  dgpuStatus_t failed(const dgpuCommandKernel& launch, uint64_t point, int32_t code) const;

  const Services& services_;
  std::string name_;
  dgpuKernelFunction function_ = nullptr;
  uint32_t flags_ = 0;
  void* user_ = nullptr;
  std::vector<uint32_t> params_;
  std::vector<ffi_type*> types_;  // libffi keeps a pointer to it
  ffi_cif cif_{};
};

}  // namespace dgpu::cpu
