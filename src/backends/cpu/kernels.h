// The list of operator kernels. A kernel's file includes this and defines its entry:
//
//   const char* const kAttributes[] = {"eps", "cast=before_weight|after_weight", nullptr};
//   const char* const kPorts[] = {"x=f32|bf16", "out=f32|bf16", nullptr};
//   const dgpuBackendClaim kClaim = {sizeof(dgpuBackendClaim), "rms_norm", 1, 0, kAttributes, kPorts};
//   const KernelEntry rms_norm_kernel = {"rms_norm", make_rms_norm, &kClaim};
//
// and adds one row to kernels.def.
#pragma once
#include "backends/cpu/kernel.h"

namespace dgpu::cpu {

#define DGPU_CPU_KERNEL(name) extern const KernelEntry name##_kernel;
#include "backends/cpu/kernels.def"
#undef DGPU_CPU_KERNEL

// Entry `index`, null past the last.
const KernelEntry* kernel_entry(uint32_t index);

}  // namespace dgpu::cpu
