// The pump of a stream: hands commands on, retires them. One thread at a time, without any lock.
#include <algorithm>
#include <utility>

#include "backend/registry.h"
#include "base/log.h"
#include "base/struct.h"
#include "base/thread.h"
#include "runtime/runtime.h"
#include "runtime/stream.h"

namespace dgpu {

namespace {
constexpr uint64_t kReportShift = 32;
constexpr uint64_t kRequest = 1;
constexpr uint64_t kReclaimEvery = 64;  // commands; how often a submitter looks for slots to take back

// Settling a value can wake another stream, whose pump then runs after this one on the same thread, not inside it: long
// chains of streams must not grow the stack.
thread_local bool pumping = false;
thread_local Stream* still_to_pump = nullptr;

inline uint64_t load(const std::atomic<uint64_t>& value) { return value.load(std::memory_order_relaxed); }

void drop(Runtime& runtime, Object* object) {
  if (!object->unref_unless_last()) runtime.unref_later(object);
}
}  // namespace

// While it lives, streams that get news on this thread are pumped when it ends.
class Stream::PumpTurn {
 public:
  PumpTurn() : outermost_(!std::exchange(pumping, true)) {}
  ~PumpTurn() {
    if (!outermost_) return;
    while (Stream* stream = still_to_pump) {
      still_to_pump = stream->pump_next;
      Runtime& runtime = stream->context_->runtime();
      stream->run_pump();
      drop(runtime, stream);
    }
    pumping = false;
  }
  PumpTurn(const PumpTurn&) = delete;
  PumpTurn& operator=(const PumpTurn&) = delete;
  bool outermost() const { return outermost_; }

 private:
  const bool outermost_;
};

void Stream::request(uint64_t news) {
  if (news_.fetch_add(news, std::memory_order_acq_rel) != 0) return;  // whoever pumps sees it
  const PumpTurn turn;
  if (turn.outermost()) return run_pump();
  ref();
  pump_next = still_to_pump;
  still_to_pump = this;
}

void Stream::tidy() {
  tidy_.store(true, std::memory_order_release);
  request(kRequest);
}

void Stream::set_owned(bool owned) noexcept {
  owned_.store(owned, std::memory_order_release);
  if (!owned) tidy();
}

// The caller has made news_ non-zero from zero.
void Stream::run_pump() {
  Runtime& runtime = context_->runtime();
  uint64_t seen = news_.load(std::memory_order_acquire);
  uint32_t drops = 0;
  for (;;) {
    reported_ += seen >> kReportShift;
    drops += pass(seen >> kReportShift);
    // When this reaches zero another thread may pump, and drop the last reference if this one holds none.
    const uint64_t left = news_.fetch_sub(seen, std::memory_order_acq_rel) - seen;
    if (!left) break;
    seen = left;
  }
  for (; drops > 0; --drops) drop(runtime, this);
}

// Returns the number of references that the caller has to drop afterwards: the stream holds one on itself while
// anything is in flight.
uint32_t Stream::pass(bool reports) {
  const uint64_t submitted = timeline_->submitted();
  if (!held_ && submitted != load(reclaimed_)) {
    ref();
    held_ = true;
  }
  if (must_attend()) attend();
  const bool asked = tidy_.load(std::memory_order_relaxed) && tidy_.exchange(false, std::memory_order_acq_rel);
  if (asked || submitted >= look_at_) {
    arrived_ = timeline_->retired();
    look_at_ = submitted + kReclaimEvery;
  }
  if (reports) {
    take_progress(progress_.load(std::memory_order_acquire));
    if (report_made_.load(std::memory_order_acquire)) fail_from(report_.value, report_.record);
  }
  take_ends();
  for (bool more = true; more;) {
    const uint64_t known = reported_;
    more = retire_ready(submitted);
    more |= dispatch_ready(submitted);
    more |= reported_ != known;
    if (more || attending_ || !needs_reports(submitted)) continue;
    attend();
    more = true;
  }
  if (gone_ && timeline_->settled() < submitted) timeline_->settle(submitted);
  if (attending_ && !must_attend() && !needs_reports(submitted)) {
    attending_ = false;
    progress_.fetch_and(~kAttend, std::memory_order_relaxed);
  }
  // The thread that reported last may not have left yet where only the timeline tells that all has retired.
  if (!held_ || load(reclaimed_) != submitted || reported_ < handed_) return 0;
  held_ = false;
  return 1;
}

// Reasons to attend that do not lie in the slots.
bool Stream::must_attend() const {
  return failed_ || !owned_.load(std::memory_order_acquire) || aborting_.load(std::memory_order_acquire);
}

// Reasons that do: a time stamp to copy before its value settles, a command that starts when all before it have
// retired, or one of the core that has run and retires behind the last one that the backend holds.
bool Stream::needs_reports(uint64_t submitted) {
  const uint64_t reclaimed = load(reclaimed_);
  if (stamped_ > reclaimed) return true;
  if (handed_ <= reclaimed) return false;  // the backend holds nothing
  if (next_ - 1 > handed_) return true;
  if (next_ > submitted) return false;
  const SlotKind kind = slot(next_).kind;
  return kind != SlotKind::backend && kind != SlotKind::wait;
}

void Stream::take_progress(uint64_t word) {
  const uint64_t progress = word & ~kAttend;
  reported_ += progress - progress_seen_;
  progress_seen_ = progress;
}

// From here on every report comes to the pump; what came past it is taken over.
void Stream::attend() {
  if (attending_) return;
  attending_ = true;
  take_progress(progress_.fetch_or(kAttend, std::memory_order_acq_rel));
  arrived_ = timeline_->retired();
}

// Every flag is set before the pump is asked, so a later pass sees what this one misses. Until then a lost device
// counts as working: nothing may settle that no failure covers.
void Stream::take_ends() {
  if (!aborting_.load(std::memory_order_acquire)) return;
  const bool abandoned = abandoned_.load(std::memory_order_acquire);
  const ErrorRecord record = abort_record();
  if (abandoned || lost_.load(std::memory_order_acquire)) {
    lose(record);
  } else if (next_ <= timeline_->submitted()) {
    fail_from(next_, record);
  }
  if (armed_.load(std::memory_order_acquire) && waited_->remove_waiter(&waiter_)) {
    armed_.store(false, std::memory_order_relaxed);
    drop(context_->runtime(), this);
  }
  if (abandoned && handed_ > reported_) reported_ = handed_;
}

// From now on device loss decides the outcome of all that has not settled, also of commands before an earlier failure.
void Stream::lose(const ErrorRecord& record) {
  if (!gone_) {
    gone_ = true;
    attend();
    timeline_->open_failure_behind_settled(record);
  }
  if (!failed_ && timeline_->settled() < timeline_->submitted()) set_failed(record);
}

void Stream::fail_from(uint64_t value, const ErrorRecord& record) {
  if (failed_) return;
  attend();
  timeline_->open_failure(value, record);
  set_failed(record);
}

void Stream::set_failed(const ErrorRecord& record) {
  failed_ = true;
  {
    std::lock_guard lock(failure_mutex_);
    failure_ = record;
  }
  int32_t healthy = 0;
  state_.compare_exchange_strong(healthy, DGPU_STATUS_STREAM_FAILED, std::memory_order_acq_rel);
}

// ---- retiring ------------------------------------------------------------------------------------------------------

bool Stream::retire_ready(uint64_t submitted) {
  const uint64_t before = load(reclaimed_);
  const uint64_t arrived = std::max(arrived_, reported_);
  uint64_t value = before;
  while (value + 1 < next_ && value < submitted) {
    Slot& s = slot(value + 1);
    const bool reported = s.kind == SlotKind::backend && !s.skipped;
    if (reported) {
      if (value + 1 > arrived) break;
    } else {
      if (!s.is_done()) break;
      if (s.result < 0) fail_from(value + 1, s.error ? *s.error : make_record(&s, value + 1, s.result, nullptr, 0));
    }
    finish(s, reported);
    ++value;
  }
  if (value == before) return false;
  device_.count_commands(value - before);
  reclaimed_.store(value, std::memory_order_release);
  timeline_->retire(value);
  return true;
}

void Stream::finish(Slot& s, bool reported) {
  if (s.stamp) {
    if (reported) {
      s.stamp->begin_ns = s.command.begin_ns;
      s.stamp->end_ns = s.command.end_ns;
    }
    s.stamp->unref();
  }
  if (Object* const keep = s.take_keep()) drop(context_->runtime(), keep);
  delete s.error;
  if (s.arena_end) arena_.release(s.arena_end);
}

// ---- dispatching ---------------------------------------------------------------------------------------------------

bool Stream::dispatch_ready(uint64_t submitted) {
  const uint64_t handed = handed_;
  bool progress = false;
  while (next_ <= submitted) {
    if (barrier_ > load(reclaimed_) && !gone_) break;
    if (!dispatch_one(slot(next_))) break;
    ++next_;
    progress = true;
  }
  flush_batch();
  if (handed_ != handed && device_.queue().flush) device_.queue().flush(queue_);
  return progress;
}

// False if the slot has to wait.
bool Stream::dispatch_one(Slot& s) {
  // Device loss decides outcomes at once; nobody waits for what the device still holds.
  if (s.stamp) [[unlikely]] {
    attend();
    stamped_ = next_;
  }
  const bool earlier_retired = load(reclaimed_) + 1 == next_ || gone_;
  switch (s.kind) {
    case SlotKind::backend:
      if (failed_) break;
      batch_[batched_++] = &s.command;
      if (batched_ == kBatch) flush_batch();
      return true;
    case SlotKind::wait:
      if (failed_) break;
      return begin_wait(s);
    case SlotKind::signal:
      if (!earlier_retired) return false;
      run_signal(s);
      return true;
    case SlotKind::callback:
    case SlotKind::task:
      if (!earlier_retired) return false;
      barrier_ = next_;
      start_work(s);
      return true;
  }
  s.skipped = true;
  s.set_done();
  return true;
}

void Stream::flush_batch() {
  if (batched_ == 0) return;
  const unsigned count = batched_;
  batched_ = 0;
  const uint64_t before = handed_;
  if (reported_ >= handed_ && reported_ != batch_[0]->value - 1) {
    // The backend holds nothing: reports may start behind values that it never sees.
    reported_ = last_reported_ = batch_[0]->value - 1;
  }
  handed_ = batch_[count - 1]->value;
  Status status = device_.queue().submit(queue_, batch_, count);
  if (status == DGPU_STATUS_SUCCESS) return;
  if (status > 0) {
    // Neither taken nor refused: who waited for a report would wait for ever.
    status = fail(DGPU_STATUS_INTERNAL, "queue.submit", "backend {} answered a submit with {}; it takes all or fails",
                  device_.backend().name(), dgpuStatusName(status));
  }
  // Refused as a whole.
  const Slot& first = slot(batch_[0]->value);
  const dgpuErrorInfo& told = last_error();
  ErrorRecord record =
      make_record(&first, first.command.value, status,
                  told.status == status ? told.message : "the backend refused the command", told.native_code);
  handed_ = before;
  for (unsigned i = 0; i < count; ++i) {
    Slot& refused = slot(batch_[i]->value);
    refused.skipped = true;
    refused.set_done();
  }
  fail_from(first.command.value, record);
}

bool Stream::begin_wait(Slot& s) {
  if (armed_.load(std::memory_order_acquire)) return false;
  Timeline* const timeline = s.wait.timeline;
  ErrorRecord record;
  Status status = timeline->outcome(s.wait.value, &record);
  if (status == DGPU_STATUS_NOT_READY) {
    ref();
    waited_ = timeline;
    armed_.store(true, std::memory_order_relaxed);
    if (timeline->add_waiter(&waiter_, s.wait.value)) return false;
    armed_.store(false, std::memory_order_relaxed);
    drop(context_->runtime(), this);
    status = timeline->outcome(s.wait.value, &record);
  }
  if (status < 0) {
    if (!record) record = make_record(&s, s.wait.value, status, "the stream waits for work that failed", 0);
    fail_from(next_, record);
    s.skipped = true;
  }
  s.set_done();
  return true;
}

void Stream::on_timeline(TimelineWaiter* waiter) {
  Stream* const stream = static_cast<Waiter*>(waiter)->stream;
  Runtime& runtime = stream->context_->runtime();
  stream->armed_.store(false, std::memory_order_release);
  stream->request(kRequest);
  drop(runtime, stream);
}

void Stream::run_signal(Slot& s) {
  const Status status = s.wait.timeline->fail(s.wait.value, failed_ ? failure() : nullptr);
  if (status < 0 && !failed_) {
    fail_from(next_, make_record(&s, s.command.value, status, last_error().message, 0));
  }
  s.wait.timeline->drop_mover();
  s.set_done();
}

// ---- work of the core: callbacks, tasks ----

void Stream::start_work(Slot& s) {
  ref();
  s.stream = this;
  const bool callback = s.kind == SlotKind::callback;
  s.work.run = callback ? run_callback : run_task;
  WorkerThreads& threads = callback ? context_->runtime().callbacks() : context_->runtime().tasks();
  if (!threads.push(&s.work)) s.work.run(&s.work);
}

namespace {
Slot& slot_of(Work* work) {
  return *reinterpret_cast<Slot*>(reinterpret_cast<std::byte*>(work) - offsetof(Slot, work));
}
}  // namespace

void Stream::run_callback(Work* work) {
  Slot& s = slot_of(work);
  auto* stream = static_cast<Stream*>(s.stream);
  const ErrorRecord before = stream->failure();
  const Status told = before ? raise(before) : DGPU_STATUS_SUCCESS;
  Status result = DGPU_STATUS_SUCCESS;
  try {
    const UserCodeScope scope;
    result = s.callback.function(told, s.callback.user);
  } catch (...) {
    result = DGPU_STATUS_CALLBACK_FAILED;
  }
  ErrorRecord record;
  if (result < 0) {
    record = stream->make_record(&s, s.command.value, DGPU_STATUS_CALLBACK_FAILED,
                                 fmt::format("the host callback returned {}", result).c_str(), result);
    result = DGPU_STATUS_CALLBACK_FAILED;
  }
  stream->core_done(s, result, std::move(record));
}

void Stream::run_task(Work* work) {
  Slot& s = slot_of(work);
  auto* stream = static_cast<Stream*>(s.stream);
  Status result = DGPU_STATUS_SUCCESS;
  ErrorRecord record;
  if (!stream->failure()) {
    try {
      result = s.task.run(s.task.data);
      if (result < 0) {
        const dgpuErrorInfo& told = last_error();
        record = stream->make_record(&s, s.command.value, result, told.status == result ? told.message : "", 0);
      }
    } catch (const std::exception& error) {
      result = DGPU_STATUS_COMMAND_FAILED;
      record = stream->make_record(&s, s.command.value, result, error.what(), 0);
    }
  }
  if (s.task.drop) s.task.drop(s.task.data);
  stream->core_done(s, result < 0 ? result : DGPU_STATUS_SUCCESS, std::move(record));
}

// Takes over the reference of start_work.
void Stream::core_done(Slot& s, Status result, ErrorRecord record) {
  s.result = result;
  s.error = record ? new (std::nothrow) ErrorRecord(std::move(record)) : nullptr;
  s.set_done();
  Runtime& runtime = context_->runtime();
  request(kRequest);
  drop(runtime, this);
}

// ---- reports of the backend ----

void Stream::advance(uint64_t value, dgpuStatus_t outcome, const char* message, int32_t native_code) noexcept {
  if (value <= last_reported_ || slot(value).command.value != value) {
    // One that does it does it always: the first, and then ever fewer, are enough.
    const uint32_t before = ignored_reports_.fetch_add(1, std::memory_order_relaxed);
    if ((before & (before + 1)) != 0) return;
    log(DGPU_LOG_ERROR, "runtime",
        "{} reported value {} of a queue out of order: {} were reported and {} submitted; the report is ignored "
        "({} so far)",
        device_.label(), value, last_reported_, submitted(), before + 1);
    return;
  }
  if (outcome < 0 && !report_made_.load(std::memory_order_relaxed)) {
    report_.value = value;
    report_.record = make_record(&slot(value), value, outcome, message, native_code);
    report_made_.store(true, std::memory_order_release);
  }
  const uint64_t newly = value - last_reported_;
  last_reported_ = value;
  uint64_t progress = progress_.load(std::memory_order_relaxed);
  if (!(progress & kAttend) && !report_made_.load(std::memory_order_relaxed)) {
    const PumpTurn turn;
    timeline_->retire(value);
    // The last access: once this is told the stream may be gone.
    if (progress_.compare_exchange_strong(progress, progress + newly, std::memory_order_release,
                                          std::memory_order_relaxed))
      return;
  }
  // One step tells the report and asks for the pump: after it the stream may be gone.
  request(newly << kReportShift | kRequest);
}

ErrorRecord Stream::make_record(const Slot* s, uint64_t value, Status status, const char* message,
                                int32_t native) const {
  try {
    auto record = std::make_shared<dgpuErrorInfo>();
    record->struct_size = sizeof(dgpuErrorInfo);
    record->status = status;
    record->native_code = native;
    record->value = value;
    copy_text(record->message, message && *message ? message : "the command failed");
    copy_text(record->backend, device_.backend().name());
    if (s) {
      copy_text(record->function, s->function);
      copy_text(record->op, s->op);
      copy_text(record->object, device_.label());
    }
    return record;
  } catch (const std::bad_alloc&) {
    static const ErrorRecord scarce = [] {
      auto record = std::make_shared<dgpuErrorInfo>();
      record->struct_size = sizeof(dgpuErrorInfo);
      record->status = DGPU_STATUS_OUT_OF_HOST_MEMORY;
      copy_text(record->message, "a command failed, and there was no memory for its record");
      return record;
    }();
    return scarce;
  }
}

}  // namespace dgpu
