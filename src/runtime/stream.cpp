#include "runtime/stream.h"

#include <algorithm>
#include <bit>
#include <thread>

#include "backend/registry.h"
#include "base/log.h"
#include "base/struct.h"
#include "runtime/counters.h"
#include "runtime/deadline.h"
#include "runtime/float_state.h"
#include "runtime/runtime.h"

namespace dgpu {

namespace {
// Argument bytes per slot. A command may use more: the ring is shared.
constexpr size_t kArenaPerSlot = 1024;
constexpr size_t kArenaLeast = size_t{64} << 10;
// Before a waiting thread goes to sleep it looks at the timeline for some twenty microseconds, less than a sleep and a
// wake-up cost: first it only spins, then it also offers its core, on which the worker may be waiting for its turn.
constexpr unsigned kSpins = 40;
constexpr unsigned kYields = 20;
constexpr unsigned kProbe = 16;  // every so many waits a thread looks again whether spinning is enough

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

uint32_t round_capacity(uint32_t wanted) {
  if (wanted == 0) wanted = Stream::kDefaultCapacity;
  return std::bit_ceil(std::max(wanted, 4u));
}
}  // namespace

Stream::Stream(Ref<Context> context, uint32_t device, const Options& options)
    : Object(kKind),
      context_(std::move(context)),
      device_index_(device),
      device_(context_->device(device)),
      timeline_(make_ref<Timeline>(context_, Timeline::Owner::stream, 0)),
      blocking_submit_(options.blocking_submit),
      mask_(round_capacity(options.capacity) - 1),
      slots_(static_cast<Slot*>(map_pages((mask_ + 1) * sizeof(Slot)))),
      arena_(std::max(kArenaLeast, (mask_ + 1) * kArenaPerSlot)) {
  waiter_.fire = on_timeline;
  waiter_.stream = this;
  timeline_->set_stream(this);
}

Status Stream::create(Ref<Context> context, uint32_t device, const Options& options, Ref<Stream>& out) {
  if (options.capacity > kMaxCapacity) {
    return fail(DGPU_STATUS_INVALID_ARGUMENT, "capacity", "capacity is {}, at most {} commands are possible",
                options.capacity, kMaxCapacity);
  }
  DGPU_TRY(context->device(device).check_usable());
  auto stream = Ref<Stream>::adopt(new Stream(std::move(context), device, options));
  DGPU_TRY(stream->open_queue(options.priority));
  stream->context_->add_stream(stream.get());
  // A loss looks at the list after it marked the device: either it saw this stream, or this sees the loss.
  DGPU_TRY(stream->device_.check_usable());
  out = std::move(stream);
  return DGPU_STATUS_SUCCESS;
}

Status Stream::open_queue(int32_t priority) {
  dgpuBackendDevice* device = nullptr;
  DGPU_TRY(device_.open(&device));
  Status status = device_.queue().create(device, backend::token(this), priority, &queue_);
  if (status == DGPU_STATUS_SUCCESS && !queue_) {
    status = dgpu::fail(DGPU_STATUS_INTERNAL, "queue.create", "backend {} created a queue without handing it out",
                        device_.backend().name());
  }
  if (status != DGPU_STATUS_SUCCESS) queue_ = nullptr;
  return device_.backend().checked(status, "queue.create");
}

Stream::~Stream() {
  context_->remove_stream(this);
  timeline_->set_stream(nullptr);
  device_.state<DeviceCounters>().commands.fetch_add(timeline_->retired(), std::memory_order_relaxed);
  if (context_->memory()) context_->memory()->stream_gone();
  if (queue_) device_.queue().destroy(queue_);
  if (abandoned_.load()) {
    arena_.abandon();  // the lost device may still read both
  } else {
    unmap_pages(slots_, (mask_ + 1) * sizeof(Slot));
  }
}

ErrorRecord Stream::failure() const {
  std::lock_guard lock(failure_mutex_);
  return failure_;
}

ErrorRecord Stream::abort_record() const {
  std::lock_guard lock(failure_mutex_);
  return abort_record_;
}

uint64_t Stream::submitted_locked() {
  std::lock_guard lock(submit_);
  return submitted();
}

Status Stream::refusal() {
  const Status state = state_.load(std::memory_order_acquire);
  if (state == DGPU_STATUS_STREAM_FAILED) {
    const ErrorRecord first = failure();
    if (!first) return dgpu::fail(state, "stream", "the stream failed; dgpuStreamReset makes it usable again");
    return dgpu::fail(state, "stream",
                      "the stream failed at value {} with {}: {}; dgpuStreamReset makes it usable again", first->value,
                      first->status, static_cast<const char*>(first->message));
  }
  if (const ErrorRecord record = abort_record()) return raise(record);
  return dgpu::fail(state, "stream", "the stream takes no more work");
}

// ---- waiting -------------------------------------------------------------------------------------------------------

namespace {
// How this thread's waits went lately: whether offering the core at once is what ends them.
thread_local bool yield_first = false;
thread_local unsigned waits = 0;

class Helper {
 public:
  Helper(const Timeline& timeline, uint64_t value, dgpuBackendQueue* queue,
         uint32_t (*help)(dgpuBackendQueue*, uint64_t))
      : timeline_(timeline), value_(value), queue_(queue), help_(help) {}

  // Runs pieces of the queue's work until the value settles, the time is over, or nothing is left to do for a while.
  void run(const Deadline& deadline) {
    while (!settled()) {
      if (help_ && help_(queue_, value_)) {
        if (deadline.passed() || library_closing()) return;
      } else if (!idle()) {
        return;
      }
    }
  }

 private:
  bool settled() const { return timeline_.settled() >= value_; }

  // Nothing to do: waits a little. False when it is time to sleep.
  bool idle() {
    if (!yield_first || ++waits % kProbe == 0) {
      for (unsigned i = 0; i < kSpins; ++i) {
        relax();
        if (settled()) return yield_first = false, true;
      }
    }
    for (unsigned i = 0; i < kYields; ++i) {
      std::this_thread::yield();
      if (settled()) return yield_first = i < 2, true;
      relax();
      if (help_ && help_(queue_, value_)) return true;
    }
    return false;
  }

  const Timeline& timeline_;
  const uint64_t value_;
  dgpuBackendQueue* const queue_;
  uint32_t (*const help_)(dgpuBackendQueue*, uint64_t);
};
}  // namespace

Status Stream::wait(uint64_t value, uint64_t timeout_ns) {
  if (timeline_->settled() < value && timeout_ns > 0 && value <= submitted()) {
    const Deadline deadline(timeout_ns);
    {
      const FloatStateScope float_state;
      Helper(*timeline_, value, queue_, context_->helping() ? device_.queue().help : nullptr).run(deadline);
    }
    timeout_ns = deadline.remaining_ns();
  }
  const Status status = timeline_->wait(value, timeout_ns);
  // What the stream kept for the commands goes now, on a thread that has nothing better to do.
  if (reclaimed_.load(std::memory_order_relaxed) < value && timeline_->retired() >= value) tidy();
  return status;
}

Status wait_for(Timeline& timeline, uint64_t value, uint64_t timeout_ns) {
  if (const Ref<Stream> stream = timeline.stream()) return stream->wait(value, timeout_ns);
  return timeline.wait(value, timeout_ns);
}

Status Stream::query() const {
  const uint64_t last = submitted();
  if (const ErrorRecord first = failure()) return raise(first);
  return last <= forgiven_.load(std::memory_order_acquire) ? DGPU_STATUS_SUCCESS : timeline_->query(last);
}

Status Stream::reset(uint64_t timeout_ns) {
  const Deadline deadline(timeout_ns);
  for (;;) {
    const uint64_t last = submitted();
    if (!lost_.load(std::memory_order_acquire)) {
      const Status waited = wait(last, deadline.remaining_ns());
      if (timeline_->settled() < last) return waited;  // TIMEOUT, or interrupted
    }
    std::lock_guard lock(submit_);
    const Status state = state_.load(std::memory_order_acquire);
    if (state != 0 && state != DGPU_STATUS_STREAM_FAILED) return refusal();
    if (submitted() != last) continue;
    // Everything has retired and nothing can be submitted: whoever pumps now is about to leave.
    uint64_t idle = 0;
    while (!news_.compare_exchange_weak(idle, 1, std::memory_order_acquire, std::memory_order_relaxed)) {
      idle = 0;
      std::this_thread::yield();
    }
    if (failed_) {
      timeline_->close_failure(last);
      forgiven_.store(last, std::memory_order_release);
      if (report_made_.load(std::memory_order_acquire)) device_.queue().reset(queue_);
      report_made_.store(false, std::memory_order_relaxed);
      report_.record = nullptr;
      failed_ = false;
      {
        std::lock_guard failure_lock(failure_mutex_);
        failure_ = nullptr;
      }
      int32_t failed = DGPU_STATUS_STREAM_FAILED;
      state_.compare_exchange_strong(failed, 0);
    }
    news_.fetch_sub(1, std::memory_order_acq_rel) == 1 ? void() : run_pump();
    return DGPU_STATUS_SUCCESS;
  }
}

// ---- ends that do not come from a command ---------------------------------------------------------------------------

void Stream::abort(Status status, const char* message) noexcept {
  {
    ErrorRecord record = make_record(nullptr, 0, status, message, 0);
    std::lock_guard lock(failure_mutex_);
    if (!abort_record_) abort_record_ = std::move(record);
  }
  state_.store(status, std::memory_order_release);
  aborting_.store(true, std::memory_order_release);
  request(1);
}

void Stream::device_lost(std::string_view message) noexcept {
  lost_.store(true, std::memory_order_release);
  abort(DGPU_STATUS_DEVICE_LOST, std::string(message).c_str());
  lost_at_.store(context_->losses(), std::memory_order_release);
}

void Stream::abandon() noexcept {
  abandoned_.store(true, std::memory_order_release);
  request(1);
}

}  // namespace dgpu
