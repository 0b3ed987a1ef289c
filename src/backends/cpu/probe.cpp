#include "backends/cpu/probe.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "backends/cpu/gemm/kernels.h"

namespace dgpu::cpu {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Highest rate of `runs` runs, in each of which all threads start together; body(thread) returns its amount of work.
template <class Body>
double best_rate(int threads, int runs, Body body) {
  double best = 0;
  for (int r = 0; r < runs; ++r) {
    std::atomic<int> ready{0};
    std::atomic<double> work{0};
    std::vector<std::thread> pool;
    auto one = [&](int t) {
      ready.fetch_add(1);
      while (ready.load() < threads) {
      }
      work.fetch_add(body(t));
    };
    for (int t = 1; t < threads; ++t) pool.emplace_back(one, t);
    while (ready.load() < threads - 1) {
    }
    const auto start = Clock::now();
    one(0);
    for (auto& t : pool) t.join();
    best = std::max(best, work.load() / seconds_since(start));
  }
  return best;
}

}  // namespace

double probe_f32_flops(int threads) {
  const auto& k = gemm::best_kernels();
  return best_rate(threads, 5, [&](int) { return k.fma_loop(3'000'000); });
}

double probe_bf16_dot_flops(int threads) {
  const auto* unit = gemm::bf16_dot_unit();
  return unit == nullptr ? 0 : best_rate(threads, 5, [&](int) { return unit->peak_loop(3'000'000); });
}

double probe_read_bytes(int threads) {
  // In huge pages, as device memory is.
  constexpr size_t kBytes = size_t{256} << 20, kHuge = size_t{2} << 20;
  void* map = mmap(nullptr, kBytes + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) return 0;
  auto* const data = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(map) + kHuge - 1) / kHuge * kHuge);
  madvise(data, kBytes, MADV_HUGEPAGE);
  for (size_t i = 0; i < kBytes / sizeof(float); i += 1024) data[i] = 1.0f;
  // Chunks of 1 MiB from a common counter, as a work queue would hand them out.
  constexpr int64_t kChunk = (1 << 20) / static_cast<int64_t>(sizeof(float));
  constexpr int64_t kChunks = static_cast<int64_t>(kBytes >> 20);
  const auto& k = gemm::best_kernels();
  double best = 0;
  for (int r = 0; r < 6; ++r) {
    std::atomic<int64_t> next{0};
    best = std::max(best, best_rate(threads, 1, [&](int) {
                      double bytes = 0;
                      volatile float sink = 0;
                      for (int64_t c; (c = next.fetch_add(1)) < kChunks;) {
                        sink = sink + k.read_loop(data + c * kChunk, kChunk);
                        bytes += static_cast<double>(kChunk) * sizeof(float);
                      }
                      return bytes;
                    }));
  }
  munmap(map, kBytes + kHuge);
  return best;
}

bool bf16_dot_is_faster() {
  static const bool faster = [] {
    const auto* unit = gemm::bf16_dot_unit();
    if (unit == nullptr) return false;
    const auto* fma = gemm::kernels(gemm::Isa::avx512);
    const int rows = fma->rows;
    constexpr int kUnits = 256;
    std::vector<float> a(static_cast<size_t>(kUnits * fma->a_width)), b(static_cast<size_t>(kUnits * fma->b_width));
    std::vector<float> c(static_cast<size_t>(rows * fma->b_width));
    auto best_seconds = [&](gemm::MicroKernel micro, int64_t units) {
      double best = 1e9;
      for (int r = 0; r < 5; ++r) {
        const auto start = Clock::now();
        for (int i = 0; i < 4; ++i) micro(a.data(), b.data(), units, c.data(), fma->b_width, false);
        best = std::min(best, seconds_since(start));
      }
      return best;
    };
    best_seconds(fma->micro[rows], kUnits);  // lets the clock and the vector units settle
    const double widened = best_seconds(fma->micro[rows], kUnits);
    return best_seconds(unit->micro[rows], kUnits / 2) < widened;
  }();
  return faster;
}

}  // namespace dgpu::cpu
