// What an attention operator is, read once from its description: types, strides, extents, visibility rules.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "backends/cpu/attention/kernels.h"
#include "backends/cpu/ports.h"

namespace dgpu::cpu::attention {

constexpr int kMaxSources = 16;

struct SourceSpec {
  Port k, v, table, lengths, k_positions, pick;
  int64_t window = 0, chunk = 0, every = 0;  // 0: no such rule
  bool ring = false;                         // key j is at place j mod (places of the sequence)
};

struct Problem {
  Port q, offsets, positions, sinks, bias, out, lse;
  int source_count = 1;
  std::array<SourceSpec, kMaxSources> sources;
  bool causal = true, picks = false;
  float scale = 1, softcap = 0;
  int64_t heads = 0, kv_heads = 0, d = 0, dv = 0;
  int64_t max_group = 0;  // most query heads per key head

  // Query heads of a key head are consecutive: those h with h * kv_heads / heads == kv.
  int64_t first_head(int64_t kv) const { return (kv * heads + kv_heads - 1) / kv_heads; }
};

// Reads and checks the description; false with `reason` set where this kernel cannot run it.
bool parse(const kit::OpView& op, Problem* problem, std::string* reason);

// Which keys of one source a query sees: those j in [j_lo, j_hi) whose position is in [p_lo, p_last] (the latter only
// where the source has positions of its own; otherwise position = j and the rules are folded into the range of j).
struct Bounds {
  int32_t j_lo = 0, j_hi = 0;
  int32_t p_lo = 0, p_last = 0;
};
Bounds bounds(const Problem& problem, const SourceSpec& source, int64_t position, int64_t length);

}  // namespace dgpu::cpu::attention
