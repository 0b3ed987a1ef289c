// Streams: in-order queues that own a timeline.
//
// A stream is a ring of slots with three positions. Callers fill slots behind `submitted` under the submit lock. The
// pump hands them to the backend or runs them (`next`), and takes them back in order (`reclaimed`). The pump runs on
// whichever thread has news: a submitter, a backend's thread that reports, a thread that settles a timeline which the
// stream waits for. One thread pumps at a time; others leave a note in one atomic word and go, so that nobody ever
// waits for the pump, and it runs without any lock.
//
// Most reports need no pump: a thread that reports success moves the timeline itself and adds to `progress_`, a word of
// its own, as its last access. The slots are taken back later, many at once, by a submitter or a thread that waited.
// Where the order of core and backend matters (signals, callbacks, time stamps, failures, ends) the pump attends: a bit
// in that word sends the reports to it. So does a stream without an owner, which goes when the last report is in.
#pragma once
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "backend/sinks.h"
#include "runtime/context.h"
#include "runtime/slot.h"

namespace dgpu {

class Submission;

class Stream final : public Object, public backend::QueueSink {
 public:
  static constexpr Kind kKind = Kind::stream;
  static constexpr uint32_t kDefaultCapacity = 1024;
  static constexpr uint32_t kMaxCapacity = 65536;
  // Neighbours in the queue are not neighbours in memory, or the hardware that fetches ahead for the thread that runs a
  // command takes the next slots away from the thread that is filling them. Odd: every slot gets its turn.
  static constexpr uint64_t kStride = 37;
  struct Options {
    uint32_t capacity = 0;
    int32_t priority = 0;
    bool blocking_submit = false;
  };
  static Status create(Ref<Context> context, uint32_t device, const Options& options, Ref<Stream>& out);
  ~Stream() override;

  Context* context() const { return context_.get(); }
  uint32_t device_index() const { return device_index_; }
  backend::Device& device() const { return device_; }
  Timeline* timeline() const { return timeline_.get(); }
  uint64_t submitted() const { return timeline_->submitted(); }

  // Blocks until the value is settled, helping the device while it can. As Timeline::wait.
  Status wait(uint64_t value, uint64_t timeout_ns);
  Status synchronize(uint64_t timeout_ns) {
    const uint64_t last = submitted();
    return last <= forgiven_.load(std::memory_order_acquire) ? DGPU_STATUS_SUCCESS : wait(last, timeout_ns);
  }
  Status query() const;
  Status reset(uint64_t timeout_ns);
  // The failure since the last reset, null while healthy.
  ErrorRecord failure() const;
  // Everything that was handed to the backend has been reported, and everything else has run or was skipped.
  bool drained() const { return timeline_->retired() == submitted(); }

  // Cancels what is not handed to the backend yet, and refuses new work, both with `status`.
  void abort(Status status, const char* message) noexcept;
  void device_lost(std::string_view message) noexcept;
  // The context's count of lost devices when this one's was, and it refused all work from then on.
  uint32_t lost_at() const { return lost_at_.load(std::memory_order_acquire); }
  // Last resort at shutdown: the device is lost and will not report any more.
  void abandon() noexcept;

  // Its owner cannot be expected to call again: slots are taken back as they retire. Streams are born so.
  void set_owned(bool owned) noexcept;
  void invalidated() override { set_owned(false); }

  // backend::QueueSink
  void advance(uint64_t value, dgpuStatus_t outcome, const char* message, int32_t native_code) noexcept override;

  // Submitted value under the submit lock: every submit that is under way is counted.
  uint64_t submitted_locked();

  // Links of the context's list.
  Stream* list_next = nullptr;
  Stream* list_prev = nullptr;

 private:
  friend class Submission;
  class PumpTurn;
  struct Waiter : TimelineWaiter {
    Stream* stream = nullptr;
  };
  struct Report {  // a failure that the backend reported
    uint64_t value;
    ErrorRecord record;
  };

  Stream(Ref<Context> context, uint32_t device, const Options& options);
  Status open_queue(int32_t priority);
  Slot& slot(uint64_t value) { return slots_[(value * kStride) & mask_]; }
  ErrorRecord abort_record() const;
  Status refusal();  // why a submit is refused; the text is in the thread's error

  // Pump; see stream_pump.cpp.
  void request(uint64_t news);
  void tidy();  // asks the pump to take back what has retired
  void run_pump();
  uint32_t pass(bool reports);
  void take_progress(uint64_t word);
  void attend();
  bool must_attend() const;
  bool needs_reports(uint64_t submitted);
  void take_ends();
  bool retire_ready(uint64_t submitted);
  bool dispatch_ready(uint64_t submitted);
  bool dispatch_one(Slot& slot);
  bool begin_wait(Slot& slot);
  void run_signal(Slot& slot);
  void start_work(Slot& slot);
  void flush_batch();
  void finish(Slot& slot, bool reported);
  void fail_from(uint64_t value, const ErrorRecord& record);
  void lose(const ErrorRecord& record);
  void set_failed(const ErrorRecord& record);
  ErrorRecord make_record(const Slot* slot, uint64_t value, Status status, const char* message, int32_t native) const;
  static void run_callback(Work* work);
  static void run_task(Work* work);
  static void on_timeline(TimelineWaiter* waiter);
  void core_done(Slot& slot, Status result, ErrorRecord record);

  const Ref<Context> context_;
  const uint32_t device_index_;
  backend::Device& device_;
  const Ref<Timeline> timeline_;
  const bool blocking_submit_;
  const uint64_t mask_;
  Slot* slots_;
  ArgumentArena arena_;
  dgpuBackendQueue* queue_ = nullptr;

  // A pair of lines of their own each, as processors fetch the neighbour of a line, too: the submitters', the word
  // between both sides, the reporting side's, the pump's.
  alignas(128) std::mutex submit_;     // order of slots; never held while anything runs
  uint64_t reserved_ = 0;              // under submit_: last slot that was filled, published or not
  std::atomic<int32_t> state_{0};      // 0 healthy, else why submits are refused
  std::atomic<uint64_t> forgiven_{0};  // last value before the last reset: the stream itself tells its failure no more
  mutable std::mutex failure_mutex_;
  ErrorRecord failure_;       // first failure since the last reset
  ErrorRecord abort_record_;  // what aborting_ fails with; set once

  // Lower half: requests to pump; upper half: values reported through the pump and not taken over yet.
  alignas(128) std::atomic<uint64_t> news_{0};
  std::atomic<bool> tidy_{false};
  std::atomic<bool> owned_{false};
  std::atomic<bool> aborting_{false};  // by abort or device loss
  std::atomic<bool> lost_{false};
  std::atomic<uint32_t> lost_at_{UINT32_MAX};
  std::atomic<bool> abandoned_{false};
  // The reporting side's; the pump reads it after the report, and writes only while the backend holds nothing.
  // progress_: values reported past the pump, and kAttend.
  static constexpr uint64_t kAttend = uint64_t{1} << 63;
  alignas(128) std::atomic<uint64_t> progress_{0};
  uint64_t last_reported_ = 0;
  Report report_{};  // first failure since the last reset
  std::atomic<bool> report_made_{false};
  std::atomic<uint32_t> ignored_reports_{0};

  // The pump's own.
  static constexpr unsigned kBatch = 32;
  alignas(128) uint64_t next_ = 1;      // first slot not dispatched
  std::atomic<uint64_t> reclaimed_{0};  // last slot taken back; submitters read it
  uint64_t arrived_ = 0;                // everything up to here has retired, as far as the pump has looked
  uint64_t reported_ = 0;               // the backend has done with the stream up to here, likewise
  uint64_t progress_seen_ = 0;          // part of progress_ that is in reported_
  uint64_t look_at_ = 0;                // submitted value at which the pump looks at the timeline again
  uint64_t handed_ = 0;                 // last value handed to the backend
  uint64_t barrier_ = 0;                // dispatch nothing before this value has retired
  uint64_t stamped_ = 0;                // last slot with a time stamp
  bool attending_ = false;              // kAttend is set
  bool failed_ = false;
  bool gone_ = false;               // the device is lost, and what has not settled carries that failure
  bool held_ = false;               // the pump's reference to the stream, while something is in flight
  std::atomic<bool> armed_{false};  // waiter_ is registered or about to fire
  Waiter waiter_;
  Timeline* waited_ = nullptr;  // while armed_; the slot holds the reference
  unsigned batched_ = 0;
  dgpuBackendCommand* batch_[kBatch];

 public:
  Stream* pump_next = nullptr;  // list of streams that this thread still has to pump
};

// Waits for any timeline; where a stream moves it, the thread helps the stream's device.
Status wait_for(Timeline& timeline, uint64_t value, uint64_t timeout_ns);

}  // namespace dgpu
