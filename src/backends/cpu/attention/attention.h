// The attention operator as a kernel of the cpu backend.
#pragma once
#include "backends/cpu/attention/kernels.h"
#include "backends/cpu/kernel.h"

namespace dgpu::cpu::attention {

// Null with `reason` set where the description cannot run. `kernels` null: the best ones of this machine.
std::unique_ptr<Kernel> make(const kit::OpView& op, std::string* reason, const Kernels* kernels = nullptr);

}  // namespace dgpu::cpu::attention
