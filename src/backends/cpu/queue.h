// A queue: commands in order, at most one running, as phases of chunks that any thread may claim.
//
// A queue is always in exactly one of these hands:
//   idle      nothing to do; incoming is kIdle
//   ready     in one of the executor's ready sets, waiting for a thread
//   owned     one thread works on it: it starts and reports commands
//   running   chunks of its current phase are out; whoever finishes the last one becomes the owner
//   deferred  its command runs on a user thread, which becomes the owner
//   paced     its command has run, and the pacer puts it into a ready set when its time has come
// The fields below "owner" belong to that hand. Queue memory is never freed while the executor lives, so a thread may
// look at the claim word of a queue that was destroyed meanwhile: it finds nothing to claim.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>

#include "backends/cpu/task.h"

namespace dgpu::cpu {

class Scenario;

struct DeviceLoad {
  std::atomic<uint64_t> busy_ns{0};  // sum over the device's queues, periods that ended
};

// The phase that is out. One atomic word, so that a claim is valid for whatever phase is current when it succeeds.
class Claims {
 public:
  struct Chunk {
    bool valid = false;
    bool last = false;  // nothing is left to claim
    uint32_t index = 0;
    uint32_t left = 0;  // unclaimed after this one
  };
  void open(uint32_t next, uint32_t total, bool user) {
    word_.store((user ? kUser : 0) | uint64_t{total} << 32 | next);
  }
  Chunk claim(bool user_allowed) {
    uint64_t word = word_.load(std::memory_order_acquire);
    for (;;) {
      const uint32_t next = static_cast<uint32_t>(word), total = static_cast<uint32_t>((word & ~kUser) >> 32);
      if (next >= total || ((word & kUser) && !user_allowed)) return {};
      if (word_.compare_exchange_weak(word, word + 1, std::memory_order_acq_rel, std::memory_order_acquire))
        return {true, next + 1 == total, next, total - next - 1};
    }
  }
  // Takes all that is left; the number of chunks.
  uint32_t claim_rest() {
    uint64_t word = word_.load(std::memory_order_acquire);
    for (;;) {
      const uint32_t next = static_cast<uint32_t>(word), total = static_cast<uint32_t>((word & ~kUser) >> 32);
      if (next >= total) return 0;
      if (word_.compare_exchange_weak(word, word + (total - next), std::memory_order_acq_rel,
                                      std::memory_order_acquire))
        return total - next;
    }
  }
  bool any(bool user_allowed) const {
    const uint64_t word = word_.load();
    if ((word & kUser) && !user_allowed) return false;
    return static_cast<uint32_t>(word) < static_cast<uint32_t>((word & ~kUser) >> 32);
  }

 private:
  static constexpr uint64_t kUser = uint64_t{1} << 63;
  std::atomic<uint64_t> word_{0};  // user bit, total, next
};

struct Queue {
  // Incoming commands, newest first, each with its kLinks predecessors in backend[]; or one of the marks.
  static constexpr uint32_t kLinks = 3;
  static constexpr uintptr_t kIdle = 0, kOwned = 1, kDead = 2;
  alignas(128) std::atomic<uintptr_t> incoming{kIdle};

  // Written by threads that wait.
  alignas(128) std::atomic<uint64_t> awaited{0};  // newest value that somebody waits for, or waited

  // submitter: what it pushed last, latest first
  alignas(128) dgpuBackendCommand* listed[kLinks] = {};

  // Constant from create to destroy; submitters read it.
  alignas(128) uint32_t index = 0;  // in the executor's table
  uint32_t priority_class = 1;
  dgpuCoreQueue* core_queue = nullptr;
  DeviceLoad* load = nullptr;
  Scenario* scenario = nullptr;              // null: commands run as they come
  uint32_t device_index = 0;                 // for the scenario
  std::atomic<const void*> device{nullptr};  // null: the slot is free

  // owner
  // Commands taken from incoming: newest first as many as fit; longer lists are turned round in place.
  static constexpr uint32_t kTaken = 512;
  alignas(128) dgpuBackendCommand* taken[kTaken];
  uint32_t taken_count = 0;               // not started yet
  dgpuBackendCommand* pending = nullptr;  // otherwise, oldest first
  dgpuBackendCommand* current = nullptr;
  uint64_t unreported = 0;  // newest value that retired with success and was not reported yet; 0: none
  uint32_t unreported_count = 0;
  bool failed = false;
  uint32_t phase = 0;
  uint64_t due_ns = 0;  // of the running command: not reported as a success before; 0: at once
  TaskSlot slot;
  Queue* next_user = nullptr;  // in the list of the user threads

  std::atomic<uint64_t> reported{0};    // newest value that was reported
  std::atomic<uint64_t> busy_since{0};  // ns; 0: not busy

  alignas(64) Claims claims;
  std::atomic<uint32_t> remaining{0};  // chunks of the phase that have not finished

  // Failure of the running command: of the lowest chunk that failed, which does not depend on the threads.
  std::mutex error_mutex;
  std::atomic<dgpuStatus_t> error_status{DGPU_STATUS_SUCCESS};
  uint32_t error_chunk = 0;
  char error_text[512] = {};

  // Destroyed together with its lost device: what it held is reported no more.
  bool muted() const { return scenario && incoming.load(std::memory_order_acquire) == kDead; }
  bool push(dgpuBackendCommand* const* commands, uint32_t count);  // true: it was idle and wants scheduling
  dgpuBackendCommand* front();                                     // oldest command, null if there is none
  void pop();
  void take(dgpuBackendCommand* newest);
  void record_error(uint32_t chunk, dgpuStatus_t status, const char* text);
};

}  // namespace dgpu::cpu
