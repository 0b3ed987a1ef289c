// The moe_experts operator as a kernel of the cpu backend.
#pragma once
#include "backends/cpu/gemm/kernels.h"
#include "backends/cpu/kernel.h"

namespace dgpu::cpu::moe {

// What tests may force.
struct Options {
  const gemm::Kernels* kernels = nullptr;  // null: the best ones of this machine
  size_t round_bytes = size_t{96} << 20;   // workspace that a round of tokens may take
};

// Null with `reason` set where the description cannot run.
std::unique_ptr<Kernel> make(const kit::OpView& op, std::string* reason, const Options& options = {});

}  // namespace dgpu::cpu::moe
