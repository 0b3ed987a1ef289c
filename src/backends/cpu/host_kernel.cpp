#include "backends/cpu/host_kernel.h"

#include <fmt/core.h>

#include "backends/kit/op_view.h"
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace dgpu::cpu {
namespace {

ffi_type* type_of(uint32_t param) {
  switch (param) {
    case DGPU_ARG_I32:
      return &ffi_type_sint32;
    case DGPU_ARG_U32:
      return &ffi_type_uint32;
    case DGPU_ARG_I64:
      return &ffi_type_sint64;
    case DGPU_ARG_U64:
      return &ffi_type_uint64;
    case DGPU_ARG_F32:
      return &ffi_type_float;
    case DGPU_ARG_F64:
      return &ffi_type_double;
    case DGPU_ARG_PTR:
    case DGPU_PARAM_USER:
      return &ffi_type_pointer;
    case DGPU_PARAM_GX:
    case DGPU_PARAM_GY:
    case DGPU_PARAM_GZ:
      return &ffi_type_uint64;
    default:
      return nullptr;
  }
}

// User code may leave another rounding mode or denormal setting behind, which would change later results.
void restore_float_state() {
#if defined(__SSE2__)
  constexpr unsigned kDefault = 0x1f80, kFlags = 0x3f;
  if ((_mm_getcsr() & ~kFlags) != kDefault) _mm_setcsr(kDefault);
#endif
}

}  // namespace

std::unique_ptr<HostKernel> HostKernel::create(const Services& services, const dgpuBackendKernelDesc& desc,
                                               std::string* error) {
  std::unique_ptr<HostKernel> kernel(new HostKernel(services));
  kernel->name_ = desc.name ? desc.name : "";
  kernel->function_ = desc.function;
  kernel->flags_ = desc.flags;
  kernel->user_ = desc.user;
  if (!desc.function) {
    *error = "the function is null";
    return nullptr;
  }
  if (desc.param_count > kMaxParams) {
    *error = fmt::format("{} parameters; at most {} are possible", desc.param_count, kMaxParams);
    return nullptr;
  }
  for (uint32_t i = 0; i < desc.param_count; ++i) {
    ffi_type* type = type_of(desc.params[i]);
    if (!type) {
      *error = fmt::format("parameter {} has the unknown type {}", i, desc.params[i]);
      return nullptr;
    }
    kernel->params_.push_back(desc.params[i]);
    kernel->types_.push_back(type);
  }
  ffi_type* result = desc.flags & DGPU_KERNEL_STATUS ? &ffi_type_sint32 : &ffi_type_void;
  if (ffi_prep_cif(&kernel->cif_, FFI_DEFAULT_ABI, desc.param_count, result, kernel->types_.data()) != FFI_OK) {
    *error = "libffi cannot call a function of this signature";
    return nullptr;
  }
  return kernel;
}

dgpuStatus_t HostKernel::run(const dgpuCommandKernel& launch, uint64_t first, uint64_t last) const {
  uint64_t grid[3] = {0, 0, 0};
  if (first != 0) {
    grid[0] = first % launch.grid[0];
    grid[1] = first / launch.grid[0] % launch.grid[1];
    grid[2] = first / launch.grid[0] / launch.grid[1];
  }
  void* user = user_;
  void* arguments[kMaxParams];
  uint32_t given = 0;
  for (size_t i = 0; i < params_.size(); ++i) {
    const uint32_t param = params_[i];
    if (param == DGPU_PARAM_USER)
      arguments[i] = &user;
    else if (param >= DGPU_PARAM_GX)
      arguments[i] = &grid[param - DGPU_PARAM_GX];
    else if (given == launch.count)
      return kit::fail(DGPU_STATUS_INVALID_ARGUMENT,
                       fmt::format("kernel {}: {} arguments given, more are needed", name_, given));
    else  // little-endian: the low bytes of the value are the narrower type
      arguments[i] = const_cast<uint64_t*>(&launch.values[given++]);
  }
  struct UserCode {  // ends also when the function ends the thread
    const Services& services;
    explicit UserCode(const Services& s) : services(s) { services.user_code(true); }
    ~UserCode() { services.user_code(false); }
  } const user_code(services_);
  for (uint64_t point = first; point < last; ++point) {
    ffi_arg result = 0;
    ffi_call(const_cast<ffi_cif*>(&cif_), function_, &result, arguments);
    if ((flags_ & DGPU_KERNEL_STATUS) && static_cast<int32_t>(result) < 0) {
      restore_float_state();
      return failed(launch, point, static_cast<int32_t>(result));
    }
    if (++grid[0] < launch.grid[0]) continue;
    grid[0] = 0;
    if (++grid[1] < launch.grid[1]) continue;
    grid[1] = 0;
    ++grid[2];
  }
  restore_float_state();
  return DGPU_STATUS_SUCCESS;
}

dgpuStatus_t HostKernel::failed(const dgpuCommandKernel& launch, uint64_t point, int32_t code) const {
  return kit::fail(DGPU_STATUS_CALLBACK_FAILED,
                   fmt::format("kernel {} returned {} at grid point ({}, {}, {})", name_, code, point % launch.grid[0],
                               point / launch.grid[0] % launch.grid[1], point / launch.grid[0] / launch.grid[1]));
}

}  // namespace dgpu::cpu
