// Merging of splits, sinks, and what goes to memory.
#include <algorithm>
#include <cstring>
#include <limits>

#include "backends/cpu/attention/block.h"

namespace dgpu::cpu::attention {

const float* load_sinks(const Problem& p, const Kernels& t, const Args& args, int64_t head, float* dst, int64_t count) {
  if (!p.sinks) return nullptr;
  load_row(*t.gemm, p.sinks.type, p.sinks.at(args, head * p.sinks.stride(0)), p.sinks.stride(0), count, dst);
  t.multiply(dst, count, kLog2e, dst);
  return dst;
}

void store_output(const Problem& p, const Kernels& t, const Args& args, int64_t token, int64_t head, const float* row,
                  float lse) {
  void* out = gemm::at(p.out.data<void>(args), p.out.type, token * p.out.stride(0) + head * p.out.stride(1));
  store_row(*t.gemm, p.out.type, row, p.dv, out, p.out.stride(2));
  if (p.lse) p.lse.data<float>(args)[token * p.lse.stride(0) + head * p.lse.stride(1)] = lse;
}

void run_combine(const Problem& p, const Kernels& t, const Args& args, int64_t first_token, int64_t row0, int64_t row1,
                 int64_t splits, int64_t split_floats, const float* partials) {
  Scratch scratch;
  const int64_t count = row1 - row0;
  float* o = scratch.take<float>(count * p.dv);
  float* sinks = p.sinks ? scratch.take<float>(p.heads + kMaxColumns) : nullptr;
  load_sinks(p, t, args, 0, sinks, p.heads);
  alignas(64) float m[kMaxColumns] = {}, l[kMaxColumns] = {}, sink[kMaxColumns] = {}, factor[kMaxColumns],
                    lse[kMaxColumns];
  for (int64_t c = 0; c < count; ++c) {
    const int64_t row = row0 + c;
    float* sum = o + c * p.dv;
    const float* part = partials + row * (p.dv + 2);
    std::memcpy(sum, part, static_cast<size_t>(p.dv) * sizeof(float));
    m[c] = part[p.dv];
    l[c] = part[p.dv + 1];
    for (int64_t s = 1; s < splits; ++s) {
      part += split_floats;
      t.merge_row(p.dv, sum, m + c, l + c, part, part[p.dv], part[p.dv + 1]);
    }
    if (sinks != nullptr) sink[c] = sinks[row % p.heads];
  }
  t.finish(count, m, l, sinks != nullptr ? sink : nullptr, factor, lse);
  for (int64_t c = 0; c < count; ++c) {
    t.multiply(o + c * p.dv, p.dv, factor[c], o + c * p.dv);
    store_output(p, t, args, first_token + (row0 + c) / p.heads, (row0 + c) % p.heads, o + c * p.dv, lse[c]);
  }
}

}  // namespace dgpu::cpu::attention
