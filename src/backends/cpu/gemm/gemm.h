// Matrix products: a plan (blocking, phases, chunk grid) from sizes and types, and the run of one chunk.
#pragma once
#include <optional>

#include "backends/cpu/gemm/kernels.h"
#include "backends/cpu/gemm/tile.h"
#include "backends/cpu/gemm/types.h"

namespace dgpu::cpu::gemm {

// What tests and tuning may force; unset members are chosen. A choice that the operands do not allow is ignored.
struct Options {
  const Kernels* kernels = nullptr;
  std::optional<Unit> unit;
  std::optional<Path> path;
};

// A value: cheap to compute (no allocation), so that it can follow sizes that are known at execution only.
struct Plan {
  Problem problem;  // batch dimensions folded into m where the strides allow it
  const Kernels* kernels = nullptr;
  Unit unit = Unit::fma;
  Path path = Path::packed;
  int64_t batches = 0;
  int64_t k_block = 0, k_blocks = 0;
  int64_t panel_rows = 0, panels = 0;  // of A, path packed
  int64_t rows_per_chunk = 0, columns_per_chunk = 0;
  int64_t row_chunks = 0, column_chunks = 0;  // per batch entry and round
  int64_t rows_per_round = 0, rounds = 0;     // A is prepared in the workspace one round of rows at a time
  bool prepared_a = false;
  int64_t splits = 1, split_k = 0;  // path stream: parts of k, summed in a second phase

  uint32_t phases() const { return static_cast<uint32_t>(prepared_a ? 2 * rounds : splits > 1 ? 2 : 1); }
  uint32_t chunks(uint32_t phase) const;
  size_t workspace_bytes() const;
  const char* algorithm() const;
};

Plan plan(const Problem& problem, const Options& options = {});
// Upper bounds for the plans of all problems that differ from `problem` in smaller sizes only.
struct Limits {
  size_t workspace_bytes = 0;
  uint32_t phases = 1;
};
Limits limits(const Problem& problem, const Options& options = {});

// Runs one chunk. Chunks of a phase in any order on any threads, phases in order. The workspace is 64-byte aligned.
void run(const Plan& plan, uint32_t phase, uint32_t chunk, const Pointers& pointers, void* workspace);

// The unit for bf16 products: as DGPU_CPU_BF16 says, else the faster one, measured at first use.
Unit bf16_unit();
void force_bf16_unit(std::optional<Unit> unit);  // what DGPU_CPU_BF16 sets; unset: auto

}  // namespace dgpu::cpu::gemm
