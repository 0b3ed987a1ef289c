// Runs a planned matrix product, for tests and benchmarks.
#pragma once
#include "backends/cpu/gemm/gemm.h"
#include "chunk_runner.h"

namespace dgpu::cpu::gemm {

inline void run_on(ChunkRunner& runner, const Plan& plan, const Pointers& pointers, bool backwards = false) {
  void* workspace = runner.workspace(plan.workspace_bytes());
  for (uint32_t phase = 0; phase < plan.phases(); ++phase) {
    const uint32_t count = plan.chunks(phase);
    runner.run(count, [&](uint32_t c) { run(plan, phase, backwards ? count - 1 - c : c, pointers, workspace); });
  }
}

}  // namespace dgpu::cpu::gemm
