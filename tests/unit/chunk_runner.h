// Runs chunks of work on a few threads, for tests and benchmarks: a stand-in for the executor.
#pragma once
#include <pthread.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace dgpu::cpu {

// The calling thread works, too. Threads spin for a moment between phases, then sleep.
class ChunkRunner {
 public:
  explicit ChunkRunner(int threads) {
    for (int t = 1; t < threads; ++t) pool_.emplace_back([this] { serve(); });
  }
  ~ChunkRunner() {
    stop_ = true;
    next_round();
    for (auto& t : pool_) t.join();
  }

  // Thread i to core i, this thread to core 0, for measurements: on a busy machine threads may otherwise share a core
  // for long. They then spin for longer than a chunk takes, too.
  void pin() {
    spins_ = 2'000'000;
    for (size_t i = 0; i <= pool_.size(); ++i) {
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(i, &one);
      pthread_setaffinity_np(i == 0 ? pthread_self() : pool_[i - 1].native_handle(), sizeof(one), &one);
    }
  }

  // One phase: body(0) to body(count - 1), in any order.
  void run(uint32_t count, const std::function<void(uint32_t)>& body) {
    body_ = &body;
    count_ = count;
    next_ = 0;
    if (count <= 1) return work();
    busy_ = static_cast<int>(pool_.size());
    next_round();
    work();
    for (int spins = 0; busy_.load() > 0;) {
      if (++spins > spins_) std::this_thread::yield();
    }
  }

  // At least this many bytes, kept for the next call; contents undefined. Large pages, as device memory has.
  void* workspace(size_t bytes) {
    if (workspace_bytes_ < bytes) {
      constexpr size_t kPage = size_t{2} << 20;
      workspace_bytes_ = (bytes + kPage - 1) / kPage * kPage;
      workspace_.reset(std::aligned_alloc(kPage, workspace_bytes_));
      madvise(workspace_.get(), workspace_bytes_, MADV_HUGEPAGE);
    }
    return workspace_.get();
  }

 private:
  void next_round() {
    round_.fetch_add(1);
    round_.notify_all();
  }
  void work() {
    for (uint32_t c; (c = next_.fetch_add(1)) < count_;) (*body_)(c);
  }
  void serve() {
    for (int seen = 0;;) {
      for (int spins = 0; round_.load() == seen;) {
        if (++spins > spins_) round_.wait(seen);
      }
      ++seen;
      if (stop_) return;
      work();
      busy_.fetch_sub(1);
    }
  }

  std::atomic<int> spins_{20'000};
  std::vector<std::thread> pool_;
  std::atomic<int> round_{0}, busy_{0};
  std::atomic<uint32_t> next_{0};
  std::atomic<bool> stop_{false};
  const std::function<void(uint32_t)>* body_ = nullptr;
  uint32_t count_ = 0;
  std::unique_ptr<void, decltype(&std::free)> workspace_{nullptr, &std::free};
  size_t workspace_bytes_ = 0;
};

}  // namespace dgpu::cpu
