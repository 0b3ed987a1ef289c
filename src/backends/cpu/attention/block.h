// A block: some query rows of one sequence against its keys, all of them or one split.
//
// Keys are summed split by split (fixed ranges of key indices), each from a fresh state, and the splits are merged in
// order. Whether the splits of a block run in one chunk or in several therefore does not change a bit of the result.
#pragma once
#include <algorithm>

#include "backends/cpu/attention/keys.h"

namespace dgpu::cpu::attention {

constexpr int64_t kWideRows = 128;    // query rows (query, head) of a wide block
constexpr int64_t kNarrowLimit = 16;  // query rows of a key head, up to which keys are used in place

struct BlockJob {
  int64_t sequence = 0;
  int64_t t0 = 0, t1 = 0;          // tokens of the sequence, or of the one query of a picking block
  int64_t kv = 0;                  // wide: the key head
  int64_t row0 = 0, row1 = 0;      // wide: rows [row0, row1) of (t - t0) * group + head
  const int64_t* split = nullptr;  // keys per split, per source
  int source = -1;                 // >= 0: only split `index` of this source, and the state goes to `partial`
  int64_t index = 0;
  float* partial = nullptr;  // row ((t - first token) * heads + head) of this split, dv + 2 floats each
  int64_t first_token = 0;   // of the sequence

  // Calls f(first key, end) for each split of visible keys [lo, hi) of source `src` that belongs to the job, in order.
  template <class F>
  dgpuStatus_t for_each_split(int src, int64_t lo, int64_t hi, F f) const {
    const int64_t size = split[src];
    int64_t split0 = lo / size, split1 = (hi + size - 1) / size;
    if (source >= 0) {
      split0 = std::max(split0, index);
      split1 = std::min(split1, index + 1);
    }
    for (int64_t i = split0; i < split1; ++i) {
      const int64_t i0 = std::max(lo, i * size), i1 = std::min(hi, (i + 1) * size);
      if (i0 >= i1) continue;
      const dgpuStatus_t status = f(i0, i1);
      if (status < 0) return status;
    }
    return DGPU_STATUS_SUCCESS;
  }
};

dgpuStatus_t run_wide(const Problem& problem, const Kernels& kernels, const Args& args, const BlockJob& job);
dgpuStatus_t run_narrow(const Problem& problem, const Kernels& kernels, const Args& args, const BlockJob& job);

// Merges the splits of rows [row0, row1) of a sequence (at most kMaxColumns) and writes the output.
void run_combine(const Problem& problem, const Kernels& kernels, const Args& args, int64_t first_token, int64_t row0,
                 int64_t row1, int64_t splits, int64_t split_floats, const float* partials);

// Sinks of `count` heads from `head` on, times log2 e; null where there are none. Padded to whole vectors.
const float* load_sinks(const Problem& problem, const Kernels& kernels, const Args& args, int64_t head, float* dst,
                        int64_t count);
// Writes one row of the output from f32, and its lse.
void store_output(const Problem& problem, const Kernels& kernels, const Args& args, int64_t t, int64_t head,
                  const float* row, float lse);

}  // namespace dgpu::cpu::attention
