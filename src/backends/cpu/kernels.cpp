#include "backends/cpu/kernels.h"

namespace dgpu::cpu {

const KernelEntry* kernel_entry(uint32_t index) {
  static constexpr const KernelEntry* kEntries[] = {
#define DGPU_CPU_KERNEL(name) &name##_kernel,
#include "backends/cpu/kernels.def"
#undef DGPU_CPU_KERNEL
      nullptr};
  constexpr size_t kSize = sizeof kEntries / sizeof kEntries[0];
  return index + 1 < kSize ? kEntries[index] : nullptr;
}

}  // namespace dgpu::cpu
