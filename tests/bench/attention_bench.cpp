// Attention: prefill as a share of the machine's f32 FMA peak (visible flops only), decode as a share of its read
// bandwidth; both measured in the same run. Medians.
// Usage: attention_bench [prefill|decode|all] [threads] [part of a case's name]
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "backends/cpu/attention/attention.h"
#include "backends/cpu/gemm/gemm.h"
#include "backends/cpu/probe.h"
#include "kernel_runner.h"

namespace {

using namespace dgpu;
using namespace dgpu::cpu;
using namespace dgpu::cpu::bench;

struct Case {
  const char* name;
  int64_t sequences, queries, length;  // each sequence: its last `queries` tokens are the queries
  int64_t heads, kv_heads, d, dv;
  dgpuDtype_t type;
  int64_t page = 64, window = 0;
};

std::string& filter() {
  static std::string text;
  return text;
}

struct Measured {
  double seconds = 0, flops = 0, bytes = 0;
};

Measured measure(const Case& c, ChunkRunner& runner) {
  Description op("attention");
  op.number("scale", 0.09);
  op.integer("causal", 1, DGPU_ATTR_BOOL);
  if (c.window > 0) op.integers("window", {c.window});
  const int64_t tokens = c.sequences * c.queries, per_sequence = (c.length + c.page - 1) / c.page;
  const int64_t pages = c.sequences * per_sequence;
  op.random("q", c.type, {tokens, c.heads, c.d});
  op.random("k0", c.type, {pages, c.page, c.kv_heads, c.d});
  op.random("v0", c.type, {pages, c.page, c.kv_heads, c.dv});
  std::vector<int32_t> table, offsets, positions;
  for (int64_t i = 0; i < pages; ++i) table.push_back(static_cast<int32_t>(i));
  std::vector<int32_t> order(table);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[(i * 2654435761u) % i]);
  for (int64_t b = 0; b <= c.sequences; ++b) offsets.push_back(static_cast<int32_t>(b * c.queries));
  for (int64_t t = 0; t < tokens; ++t) {
    positions.push_back(static_cast<int32_t>(c.length - c.queries + t % c.queries));
  }
  op.integers_port("table0", {c.sequences, per_sequence}, order);
  op.integers_port("lengths0", {c.sequences},
                   std::vector<int32_t>(static_cast<size_t>(c.sequences), static_cast<int32_t>(c.length)));
  op.integers_port("offsets", {c.sequences + 1}, offsets);
  op.integers_port("positions", {tokens}, positions);
  op.random("out", c.type, {tokens, c.heads, c.dv});
  const auto kernel =
      op.plan([](const kit::OpView& view, std::string* reason) { return attention::make(view, reason); });
  Measured m;
  m.seconds = median_seconds([&] { run_on(runner, *kernel, op.addresses()); });
  double visible = 0;
  for (int64_t i = 0; i < c.queries; ++i) {
    const int64_t keys = c.length - c.queries + i + 1;
    visible += static_cast<double>(c.window > 0 ? std::min(keys, c.window) : keys);
  }
  m.flops = 2.0 * visible * static_cast<double>(c.sequences * c.heads * (c.d + c.dv));
  const double element = c.type == DGPU_DTYPE_F32 ? 4 : 2;
  const int64_t read = c.window > 0 ? std::min(c.length, c.window) : c.length;
  m.bytes = element * static_cast<double>(c.sequences * read * c.kv_heads * (c.d + c.dv));
  return m;
}

void prefill(ChunkRunner& runner, int threads) {
  const Case cases[] = {
      {"f32  16/8  d128 1024", 1, 1024, 1024, 16, 8, 128, 128, DGPU_DTYPE_F32},
      {"bf16 16/8  d128 1024", 1, 1024, 1024, 16, 8, 128, 128, DGPU_DTYPE_BF16},
      {"bf16 32/8  d128 4096", 1, 2048, 4096, 32, 8, 128, 128, DGPU_DTYPE_BF16},
      {"bf16 16/16 d64  1024", 1, 1024, 1024, 16, 16, 64, 64, DGPU_DTYPE_BF16},
      {"bf16 16/8  d128 8x128", 8, 128, 128, 16, 8, 128, 128, DGPU_DTYPE_BF16},
      {"bf16 mla 16/1 576/512", 1, 512, 512, 16, 1, 576, 512, DGPU_DTYPE_BF16},
      {"bf16 16/8  window 256", 1, 1024, 1024, 16, 8, 128, 128, DGPU_DTYPE_BF16, 64, 256},
  };
  for (const auto& c : cases) {
    if (std::string(c.name).find(filter()) == std::string::npos) continue;
    const double before = probe_f32_flops(threads);
    const auto m = measure(c, runner);
    const double peak = std::max(before, probe_f32_flops(threads));
    std::printf("prefill %-24s %8.3f ms %7.1f Gflop/s  %5.2f of f32 peak %.0f\n", c.name, m.seconds * 1e3,
                m.flops / m.seconds * 1e-9, m.flops / m.seconds / peak, peak * 1e-9);
  }
}

void decode(ChunkRunner& runner, int threads) {
  const Case cases[] = {
      {"bf16 b1  32/8 d128 32k", 1, 1, 32768, 32, 8, 128, 128, DGPU_DTYPE_BF16},
      {"bf16 b1  16/8 d128 32k", 1, 1, 32768, 16, 8, 128, 128, DGPU_DTYPE_BF16},
      {"f32  b1  16/8 d128 32k", 1, 1, 32768, 16, 8, 128, 128, DGPU_DTYPE_F32},
      {"bf16 b16 16/8 d128 4k", 16, 1, 4096, 16, 8, 128, 128, DGPU_DTYPE_BF16},
      {"bf16 b1  16/8 d128 1k", 1, 1, 1024, 16, 8, 128, 128, DGPU_DTYPE_BF16},
      {"bf16 b1  64/8 d128 1k", 1, 1, 1024, 64, 8, 128, 128, DGPU_DTYPE_BF16},
      {"bf16 b1  64/8 d128 16k", 1, 1, 16384, 64, 8, 128, 128, DGPU_DTYPE_BF16},
      {"bf16 b1 mla 16/1 4k", 1, 1, 4096, 16, 1, 576, 512, DGPU_DTYPE_BF16},
      {"bf16 b1 mla 128/1 4k", 1, 1, 4096, 128, 1, 576, 512, DGPU_DTYPE_BF16},
  };
  for (const auto& c : cases) {
    if (std::string(c.name).find(filter()) == std::string::npos) continue;
    const double before = probe_read_bytes(threads);
    const auto m = measure(c, runner);
    const double peak = std::max(before, probe_read_bytes(threads));
    std::printf("decode  %-24s %8.3f ms %7.1f GB/s     %5.2f of reads %.1f  (%.1f Gflop/s)\n", c.name, m.seconds * 1e3,
                m.bytes / m.seconds * 1e-9, m.bytes / m.seconds / peak, peak * 1e-9, m.flops / m.seconds * 1e-9);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "all";
  if (argc > 3) filter() = argv[3];
  const int threads = argc > 2 ? std::atoi(argv[2]) : 2;
  ChunkRunner runner(threads);
  std::printf("threads %d, bf16 unit %s\n", threads, gemm::bf16_unit() == gemm::Unit::bf16_dot ? "dot" : "fma");
  if (what != "decode") prefill(runner, threads);
  if (what != "prefill") decode(runner, threads);
}
