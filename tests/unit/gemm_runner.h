// Runs the chunks of a matrix product on a few threads, in any order, for tests and benchmarks.
#pragma once
#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "backends/cpu/gemm/gemm.h"

namespace dgpu::cpu::gemm {

// Threads that spin for a moment between products, then sleep: a stand-in for the executor.
class Runner {
 public:
  explicit Runner(int threads, bool pin = false) {
    for (int t = 1; t < threads; ++t) pool_.emplace_back([this] { serve(); });
    if (!pin) return;
    for (int t = 0; t < threads; ++t) {
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET(t, &set);
      pthread_setaffinity_np(t == 0 ? pthread_self() : pool_[static_cast<size_t>(t) - 1].native_handle(), sizeof(set),
                             &set);
    }
  }
  ~Runner() {
    stop_ = true;
    next_round();
    for (auto& t : pool_) t.join();
  }

  void run(const Plan& plan, const Pointers& pointers, bool backwards = false) {
    if (workspace_bytes_ < plan.workspace_bytes()) {
      workspace_bytes_ = (plan.workspace_bytes() + 4095) / 4096 * 4096;
      workspace_.reset(std::aligned_alloc(4096, workspace_bytes_));
    }
    plan_ = &plan;
    pointers_ = pointers;
    backwards_ = backwards;
    for (uint32_t phase = 0; phase < plan.phases(); ++phase) {
      phase_ = phase;
      chunks_ = plan.chunks(phase);
      next_ = 0;
      busy_ = static_cast<int>(pool_.size());
      next_round();
      work();
      for (int spins = 0; busy_.load() > 0;) {
        if (++spins > kSpins) std::this_thread::yield();
      }
    }
  }

 private:
  static constexpr int kSpins = 20000;
  void next_round() {
    round_.fetch_add(1);
    round_.notify_all();
  }
  void work() {
    for (uint32_t c; (c = next_.fetch_add(1)) < chunks_;) {
      gemm::run(*plan_, phase_, backwards_ ? chunks_ - 1 - c : c, pointers_, workspace_.get());
    }
  }
  void serve() {
    for (int seen = 0;;) {
      for (int spins = 0; round_.load() == seen;) {
        if (++spins > kSpins) round_.wait(seen);
      }
      ++seen;
      if (stop_) return;
      work();
      busy_.fetch_sub(1);
    }
  }

  std::vector<std::thread> pool_;
  std::atomic<int> round_{0}, busy_{0};
  std::atomic<uint32_t> next_{0};
  std::atomic<bool> stop_{false};
  const Plan* plan_ = nullptr;
  Pointers pointers_;
  uint32_t phase_ = 0, chunks_ = 0;
  bool backwards_ = false;
  std::unique_ptr<void, decltype(&std::free)> workspace_{nullptr, &std::free};
  size_t workspace_bytes_ = 0;
};

}  // namespace dgpu::cpu::gemm
