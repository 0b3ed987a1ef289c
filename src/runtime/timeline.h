// Timelines: a 64-bit value that only grows. For each value two facts are kept: retired (the memory of its work is no
// longer touched) and outcome (success, or an error record). Everything that waits, waits for {timeline, value}.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/error.h"
#include "base/object.h"

namespace dgpu {

class Context;
class Stream;

// The record of an asynchronous failure, shared by all who wait for it.
using ErrorRecord = std::shared_ptr<const dgpuErrorInfo>;

// Copies the record into the calling thread's error and returns its status.
Status raise(const ErrorRecord& record);

// Someone to call when a value is settled. Owned by the one who registers it; fires at most once per registration, on
// the thread that settles the value and without any lock.
struct TimelineWaiter {
  void (*fire)(TimelineWaiter*) = nullptr;
  uint64_t value = 0;
  TimelineWaiter* next = nullptr;
  bool linked = false;  // under the timeline's mutex
};

class Timeline final : public Object {
 public:
  static constexpr Kind kKind = Kind::timeline;
  enum class Owner { user, stream };

  Timeline(Ref<Context> context, Owner owner, uint64_t initial);
  ~Timeline() override;

  Context* context() const { return context_.get(); }
  bool user_owned() const { return owner_ == Owner::user; }

  // Newest value whose outcome is known. Not smaller than retired().
  uint64_t settled() const { return settled_.load(std::memory_order_acquire); }
  // Newest value whose work touches no memory any more. Differs from settled() after a device was lost.
  uint64_t retired() const { return retired_.load(std::memory_order_acquire); }
  // Newest value that was submitted; for a user-owned timeline any value may still come.
  uint64_t submitted() const { return submitted_.load(std::memory_order_acquire); }

  // SUCCESS, NOT_READY, or the failure that the value carries, with its record in the thread's error.
  Status query(uint64_t value) const;
  // As query, without touching the thread's error.
  Status outcome(uint64_t value, ErrorRecord* record = nullptr) const;
  // Blocks until the value is settled; SUCCESS, the failure, TIMEOUT, or the status of an interrupt. INVALID_ARGUMENT
  // if nobody submitted the value to a stream's timeline.
  Status wait(uint64_t value, uint64_t timeout_ns);
  Status check_waitable(uint64_t value) const;

  // Registers the waiter unless the value is settled; false then, and fire is not called.
  bool add_waiter(TimelineWaiter* waiter, uint64_t value);
  // True if it was registered and will not fire any more.
  bool remove_waiter(TimelineWaiter* waiter);

  // ---- user-owned ----
  Status signal(uint64_t value);
  Status fail(uint64_t value, ErrorRecord record);
  // Who can still move it: its handle, and each queued command that will. When the last one goes, all values that were
  // not reached fail, or whoever waits for them would wait for ever. False if that has happened already.
  bool add_mover();
  void drop_mover();
  void invalidated() override;

  // ---- the owning stream; only retire and settle may overlap with other calls ----
  void set_stream(Stream* stream);  // null when it goes
  void publish_submitted(uint64_t value) { submitted_.store(value, std::memory_order_release); }
  // Values from `first` on carry the failure, until close_failure says which one was the last.
  void open_failure(uint64_t first, ErrorRecord record);
  void close_failure(uint64_t last);
  // As open_failure, from the first value on that is not settled yet and up to the failure that is open already, if
  // one is. Values may be retiring meanwhile.
  void open_failure_behind_settled(const ErrorRecord& record);
  // Moves both facts. A smaller value than before changes nothing: several threads may tell what they know.
  void retire(uint64_t value) {
    lift(retired_, value);
    settle(value);
  }
  // Moves the outcome alone: the device is lost and memory may still be touched.
  void settle(uint64_t value);

  // Wakes all who block, now and later, with `status` (SHUTDOWN, CANCELLED). Outcomes do not change.
  void interrupt(Status status);

  // The stream while it lives; null for user-owned timelines.
  Ref<Stream> stream() const;

  // Links of the context's list.
  Timeline* list_next = nullptr;
  Timeline* list_prev = nullptr;

 private:
  struct Interval {
    uint64_t first;
    uint64_t last;
    Status status;
    ErrorRecord record;  // null: dropped because too many came later
  };
  struct Sleeper {  // a thread in wait; on its stack
    uint64_t value;
    Sleeper* next;
  };
  static void lift(std::atomic<uint64_t>& fact, uint64_t value) {
    uint64_t now = fact.load(std::memory_order_relaxed);
    while (now < value && !fact.compare_exchange_weak(now, value, std::memory_order_seq_cst)) {
    }
  }
  void watch(uint64_t value);
  void wake(uint64_t value);
  void add_interval(uint64_t first, uint64_t last, ErrorRecord record);
  void orphan() noexcept;

  // Apart by two lines, as processors fetch the neighbour of a line, too.
  alignas(128) std::atomic<uint64_t> settled_;
  std::atomic<uint64_t> retired_;
  // Nobody wants to be woken for a smaller value. May be too small, never too large; grows under the mutex only.
  alignas(128) std::atomic<uint64_t> watched_{UINT64_MAX};
  std::atomic<uint32_t> failures_{0};
  std::atomic<int32_t> interrupted_{0};
  std::atomic<uint32_t> movers_{1};
  const Owner owner_;
  const Ref<Context> context_;
  mutable std::mutex mutex_;
  std::condition_variable woken_;
  TimelineWaiter* waiters_ = nullptr;
  Sleeper* sleepers_ = nullptr;
  Stream* stream_ = nullptr;
  std::vector<Interval> failed_;                  // ascending
  uint64_t forgotten_ = 0;                        // outcomes up to here are no longer kept
  alignas(128) std::atomic<uint64_t> submitted_;  // submitters write it, the others are written by whoever retires
};

}  // namespace dgpu
