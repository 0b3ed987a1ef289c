// The threads of the cpu backend: one set for all virtual devices.
//
// Work is run to completion in chunks. Which chunks there are is decided by the task, never by the number of threads.
// Phases are continuations: whoever finishes the last chunk of a phase opens the next one; whoever finishes the last
// phase reports the command and goes on with the queue. Nobody waits for anybody.
//
// Sleeping: a thread without work spins for a while, then sleeps. Work is made visible before the thread counts are
// read, and threads change their counts before they look for work a last time, so one of the two sides always sees
// the other. A thread that finds work while more is visible wakes another.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "backends/cpu/index_set.h"
#include "backends/cpu/pacer.h"
#include "backends/cpu/queue.h"
#include "backends/cpu/services.h"
#include "backends/cpu/user_threads.h"

namespace dgpu::cpu {

uint64_t now_ns();  // CLOCK_MONOTONIC
inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class Executor {
 public:
  // threads: workers; cores: how many threads may be busy at once, helpers included.
  Executor(const Services& services, uint32_t threads, uint32_t cores);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Starts the workers, once, and the pacer if it is wanted. False with `error` set if not even one worker, or no
  // pacer, could be started.
  bool start(bool pacer, std::string* error);
  // Runs what the queues hold, then joins all threads.
  void stop();
  uint32_t threads() const { return thread_count_; }

  struct QueueOf {  // the device that a queue belongs to
    const void* device;
    uint32_t index;
    DeviceLoad* load;
    Scenario* scenario;
  };
  // Null if kMaxQueues live.
  Queue* create(const QueueOf& owner, dgpuCoreQueue* core_queue, int32_t priority);
  void destroy(Queue& queue);
  void submit(Queue& queue, dgpuBackendCommand* const* commands, uint32_t count);
  void reset(Queue& queue);
  bool help(Queue& queue, uint64_t value);
  // Time that the device's queues had work, running periods included.
  uint64_t busy_ns(const void* device, const DeviceLoad& load);

  static constexpr uint32_t kMaxQueues = IndexSet::kCapacity;

 private:
  enum class Mode { kWorker, kHelper, kUserThread };
  struct Turn {  // one thread's stay with one queue
    Mode mode;
    uint64_t begin_ns;
    uint64_t helped_value = UINT64_MAX;  // a helper leaves when it was reported
    bool refused = false;                // a helper met what it must not run
    bool stay = false;                   // a worker waits a while for more on this queue
  };

  // executor.cpp: threads
  struct Self {           // a worker's memory between turns
    uint32_t cursor = 0;  // queue served last: the next one has its turn
    uint32_t picks = 0;
    bool fresh = false;  // came from spinning or sleeping: others may have relied on it to see their work
    bool tired = false;  // has spun long enough
  };
  enum class Spin { kQueue, kWork, kEnough };
  void worker();
  bool run_ready(Self& self);
  bool run_open(Self& self);
  void stay(Queue& queue, Turn& turn, Self& self);
  bool any_work() const;
  bool others_wait(const Queue& queue) const;
  bool expired(const Turn& turn, const Queue& queue) const;
  Spin spin(Queue* queue);
  Spin spin_loop(Queue* queue);
  void sleep();
  void took_work(Self& self, uint32_t more);
  void wake(uint32_t wanted);
  void schedule(Queue& queue);
  bool take_ready(Queue& queue);
  Queue& at(uint32_t index) const;
  void release(Queue& queue);
  bool let_go(Queue& queue);
  void user_thread(Queue& queue);

  // drive.cpp: commands
  void drive(Queue& queue, Turn& turn);
  bool allowed(Queue& queue, const dgpuBackendCommand& command, Turn& turn) const;
  bool linger(const Queue& queue) const;
  bool begin(Queue& queue, Turn& turn);
  bool interfere(Queue& queue);
  bool run_phases(Queue& queue, Turn& turn, uint32_t phase);
  uint32_t run_alone(Queue& queue, const Turn& turn, const Task& task, uint32_t phase, uint32_t chunks);
  bool run_claimed(Queue& queue, Turn& turn, Claims::Chunk chunk);
  void run_chunk(Queue& queue, const Task& task, uint32_t phase, uint32_t chunk);
  bool complete(Queue& queue);
  void finish(Queue& queue, dgpuStatus_t status);
  void report(Queue& queue);
  void give_back(Queue& queue);
  Claims::Chunk claim(Queue& queue, bool user_allowed);
  uint32_t chunks_of(Queue& queue, const Task& task, uint32_t phase);

  // Thread counts in one word.
  struct Counts {
    uint32_t spinning, sleeping, helping;
  };
  static constexpr uint64_t kSpinning = 1, kSleeping = 1ull << 16, kHelping = 1ull << 32;
  static Counts split(uint64_t word) {
    return {static_cast<uint32_t>(word & 0xffff), static_cast<uint32_t>(word >> 16 & 0xffff),
            static_cast<uint32_t>(word >> 32 & 0xffff)};
  }
  uint32_t busy(const Counts& c) const { return thread_count_ - c.spinning - c.sleeping + c.helping; }

  const Services& services_;
  std::atomic<uint32_t> thread_count_;
  const uint32_t cores_;
  IndexSet ready_[3];  // high, normal, low priority
  IndexSet open_;      // queues with unclaimed chunks
  alignas(64) std::atomic<uint64_t> counts_{0};
  alignas(64) std::atomic<uint32_t> permits_{0};  // futex: one per thread that was woken and has not noticed yet
  std::atomic<bool> stopping_{false};
  UserThreads user_threads_;
  Pacer pacer_;

  std::mutex mutex_;  // threads and the table; never held while a command runs
  std::vector<std::thread> workers_;
  std::vector<uint32_t> free_;
  uint32_t used_ = 0;  // slots ever handed out
  static constexpr uint32_t kBlock = 64;
  std::unique_ptr<Queue[]> blocks_[kMaxQueues / kBlock];
};

}  // namespace dgpu::cpu
