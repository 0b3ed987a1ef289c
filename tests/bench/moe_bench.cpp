// moe_experts: decode as a share of the machine's read bandwidth, prefill as a share of its f32 FMA peak; both measured
// in the same run. Medians.
// Usage: moe_bench [threads] [part of a case's name]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "backends/cpu/gemm/gemm.h"
#include "backends/cpu/moe/experts.h"
#include "backends/cpu/probe.h"
#include "kernel_runner.h"

namespace {

using namespace dgpu;
using namespace dgpu::cpu;
using namespace dgpu::cpu::bench;

struct Case {
  const char* name;
  int64_t tokens, experts, picks, hidden, inner;
  dgpuDtype_t x, w;
  bool interleaved = false, transposed = false;
};

void measure(const Case& c, ChunkRunner& runner, int threads) {
  Description op("moe_experts");
  op.text("activation", "silu");
  op.random("x", c.x, {c.tokens, c.hidden});
  std::vector<int32_t> indices;
  std::set<int32_t> used;
  uint32_t state = 3;
  for (int64_t t = 0; t < c.tokens; ++t) {
    std::set<int32_t> row;
    while (static_cast<int64_t>(row.size()) < c.picks) {
      state = state * 1664525u + 1013904223u;
      row.insert(static_cast<int32_t>((state >> 8) % static_cast<uint32_t>(c.experts)));
    }
    indices.insert(indices.end(), row.begin(), row.end());
    used.insert(row.begin(), row.end());
  }
  // Few tokens: each run takes other experts, so that their weights come from memory.
  auto& routed = op.integers_port("indices", {c.tokens, c.picks}, indices);
  op.random("weights", DGPU_DTYPE_F32, {c.tokens, c.picks});
  const auto weight = [&](const char* name, int64_t rows, int64_t columns) {
    op.random(name, c.w, {c.experts, c.transposed ? columns : rows, c.transposed ? rows : columns}, c.transposed);
  };
  if (c.interleaved) {
    op.text("layout", "interleaved");
    weight("gate_up", 2 * c.inner, c.hidden);
  } else {
    weight("gate", c.inner, c.hidden);
    weight("up", c.inner, c.hidden);
  }
  weight("down", c.hidden, c.inner);
  op.random("out", c.x, {c.tokens, c.hidden});
  const auto kernel = op.plan([](const kit::OpView& view, std::string* reason) { return moe::make(view, reason); });
  const double flops_peak = probe_f32_flops(threads), bytes_peak = probe_read_bytes(threads);
  auto* values = static_cast<int32_t*>(routed.data.get());
  const double seconds = median_seconds([&] {
    for (int64_t i = 0; i < c.tokens * c.picks; ++i) {
      values[i] = static_cast<int32_t>((values[i] + c.picks) % c.experts);
    }
    run_on(runner, *kernel, op.addresses());
  });
  const double flops = 6.0 * static_cast<double>(c.tokens * c.picks * c.hidden * c.inner);
  const double bytes = 3.0 * static_cast<double>(static_cast<int64_t>(used.size()) * c.hidden * c.inner) *
                       (c.w == DGPU_DTYPE_F32 ? 4 : 2);
  std::printf("%-34s %9.3f ms %7.1f Gflop/s %5.2f of f32 peak  %6.1f GB/s %5.2f of reads\n", c.name, seconds * 1e3,
              flops / seconds * 1e-9, flops / seconds / std::max(flops_peak, probe_f32_flops(threads)),
              bytes / seconds * 1e-9, bytes / seconds / std::max(bytes_peak, probe_read_bytes(threads)));
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const std::string part = argc > 2 ? argv[2] : "";
  ChunkRunner runner(threads);
  const Case cases[] = {
      {"decode T1 bf16 x f32 64e k8", 1, 64, 8, 2048, 768, DGPU_DTYPE_F32, DGPU_DTYPE_BF16},
      {"decode T1 bf16 64e k8", 1, 64, 8, 2048, 768, DGPU_DTYPE_BF16, DGPU_DTYPE_BF16},
      {"decode T4 bf16 64e k8", 4, 64, 8, 2048, 768, DGPU_DTYPE_BF16, DGPU_DTYPE_BF16},
      {"decode T1 bf16 [E,H,2I] 16e k4", 1, 16, 4, 2880, 2880, DGPU_DTYPE_BF16, DGPU_DTYPE_BF16, true, true},
      {"prefill T512 bf16 x f32 64e k8", 512, 64, 8, 2048, 768, DGPU_DTYPE_F32, DGPU_DTYPE_BF16},
      {"prefill T512 bf16 64e k8", 512, 64, 8, 2048, 768, DGPU_DTYPE_BF16, DGPU_DTYPE_BF16},
      {"prefill T512 f32 16e k4", 512, 16, 4, 2048, 768, DGPU_DTYPE_F32, DGPU_DTYPE_F32},
      {"prefill T512 bf16 [E,H,2I] 16e k4", 512, 16, 4, 2048, 1024, DGPU_DTYPE_BF16, DGPU_DTYPE_BF16, true, true},
  };
  for (const auto& c : cases) {
    if (std::string(c.name).find(part) != std::string::npos) measure(c, runner, threads);
  }
}
