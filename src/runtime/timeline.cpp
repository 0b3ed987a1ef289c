#include "runtime/timeline.h"

#include <algorithm>
#include <optional>

#include "base/library.h"
#include "base/struct.h"
#include "runtime/context.h"
#include "runtime/deadline.h"
#include "runtime/stream.h"

namespace dgpu {

namespace {
// Failed intervals that keep their text, and that are kept at all: a program that fails and resets for years must not
// grow without bound.
constexpr size_t kKeptRecords = 256;
constexpr size_t kKeptIntervals = 16384;
constexpr uint64_t kOpen = UINT64_MAX;
}  // namespace

Status raise(const ErrorRecord& record) {
  last_error() = *record;
  return record->status;
}

Timeline::Timeline(Ref<Context> context, Owner owner, uint64_t initial)
    : Object(Kind::timeline),
      settled_(initial),
      retired_(initial),
      owner_(owner),
      context_(std::move(context)),
      submitted_(owner == Owner::user ? UINT64_MAX : initial) {
  if (context_) context_->add_timeline(this);
}

Timeline::~Timeline() {
  if (context_) context_->remove_timeline(this);
}

Status Timeline::outcome(uint64_t value, ErrorRecord* record) const {
  if (value > settled_.load(std::memory_order_seq_cst)) return DGPU_STATUS_NOT_READY;
  if (failures_.load(std::memory_order_seq_cst) == 0) return DGPU_STATUS_SUCCESS;
  std::lock_guard lock(mutex_);
  const auto after = std::upper_bound(failed_.begin(), failed_.end(), value,
                                      [](uint64_t v, const Interval& interval) { return v < interval.first; });
  if (after != failed_.begin()) {
    const Interval& interval = *(after - 1);
    if (value > interval.last) return DGPU_STATUS_SUCCESS;
    if (record) *record = interval.record;
    return interval.status;
  }
  return value <= forgotten_ ? DGPU_STATUS_COMMAND_FAILED : DGPU_STATUS_SUCCESS;
}

Status Timeline::query(uint64_t value) const {
  ErrorRecord record;
  const Status status = outcome(value, &record);
  if (status >= 0) return status;
  if (record) return raise(record);
  return dgpu::fail(status, "value", "value {} belongs to failed work whose record is no longer kept", value);
}

Status Timeline::check_waitable(uint64_t value) const {
  const uint64_t last = submitted();
  if (value <= last) return DGPU_STATUS_SUCCESS;
  return dgpu::fail(DGPU_STATUS_INVALID_ARGUMENT, "value",
                    "value {} was not submitted to the stream that owns the timeline (the last one is {}); only "
                    "user-owned timelines may be waited for ahead of time",
                    value, last);
}

Status Timeline::wait(uint64_t value, uint64_t timeout_ns) {
  DGPU_TRY(check_waitable(value));
  if (value <= settled()) return query(value);
  if (timeout_ns == 0) return DGPU_STATUS_TIMEOUT;
  const Deadline deadline(timeout_ns);
  std::unique_lock lock(mutex_);
  Sleeper self{value, sleepers_};
  sleepers_ = &self;
  watch(value);
  Status status = DGPU_STATUS_SUCCESS;
  while (settled_.load(std::memory_order_seq_cst) < value) {
    status = interrupted_.load(std::memory_order_relaxed);
    if (status < 0) break;
    if (deadline.infinite()) {
      woken_.wait(lock);
    } else if (woken_.wait_until(lock, deadline.at()) == std::cv_status::timeout &&
               settled_.load(std::memory_order_seq_cst) < value) {
      status = DGPU_STATUS_TIMEOUT;
      break;
    }
  }
  Sleeper** at = &sleepers_;
  while (*at != &self) at = &(*at)->next;
  *at = self.next;
  lock.unlock();
  if (status == DGPU_STATUS_TIMEOUT) return status;
  if (status < 0) {
    return dgpu::fail(
        status, "", "the wait for value {} was ended: {}", value,
        status == DGPU_STATUS_SHUTDOWN ? "the library is being shut down" : "the backend is being unloaded");
  }
  return query(value);
}

bool Timeline::add_waiter(TimelineWaiter* waiter, uint64_t value) {
  std::lock_guard lock(mutex_);
  watch(value);
  if (settled_.load(std::memory_order_seq_cst) >= value) return false;
  waiter->value = value;
  waiter->next = waiters_;
  waiter->linked = true;
  waiters_ = waiter;
  return true;
}

bool Timeline::remove_waiter(TimelineWaiter* waiter) {
  std::lock_guard lock(mutex_);
  if (!waiter->linked) return false;
  TimelineWaiter** at = &waiters_;
  while (*at != waiter) at = &(*at)->next;
  *at = waiter->next;
  waiter->linked = false;
  return true;
}

// Under the mutex, before the caller looks at settled_ a last time: pairs with settle.
void Timeline::watch(uint64_t value) {
  if (value < watched_.load(std::memory_order_relaxed)) watched_.store(value, std::memory_order_seq_cst);
}

void Timeline::settle(uint64_t value) {
  lift(settled_, value);
  if (watched_.load(std::memory_order_seq_cst) <= value) wake(value);
}

void Timeline::wake(uint64_t value) {
  TimelineWaiter* due = nullptr;
  {
    std::lock_guard lock(mutex_);
    uint64_t later = UINT64_MAX;  // smallest value that somebody still waits for
    bool sleeper_due = false;
    for (const Sleeper* sleeper = sleepers_; sleeper; sleeper = sleeper->next) {
      if (sleeper->value <= value)
        sleeper_due = true;
      else
        later = std::min(later, sleeper->value);
    }
    TimelineWaiter** at = &waiters_;
    while (*at) {
      TimelineWaiter* waiter = *at;
      if (waiter->value > value) {
        later = std::min(later, waiter->value);
        at = &waiter->next;
        continue;
      }
      *at = waiter->next;
      waiter->linked = false;
      waiter->next = due;
      due = waiter;
    }
    // Whoever settles more meanwhile has seen the old, smaller value and comes here, too.
    watched_.store(later, std::memory_order_seq_cst);
    if (sleeper_due) woken_.notify_all();
  }
  while (due) {
    TimelineWaiter* waiter = due;
    due = waiter->next;  // fire may free or register it again
    waiter->fire(waiter);
  }
}

Status Timeline::signal(uint64_t value) { return fail(value, nullptr); }

Status Timeline::fail(uint64_t value, ErrorRecord record) {
  {
    std::lock_guard lock(mutex_);
    const uint64_t now = settled_.load(std::memory_order_relaxed);
    if (value <= now) {
      if (!movers_.load(std::memory_order_relaxed)) {
        return dgpu::fail(DGPU_STATUS_INVALID_HANDLE, "timeline", "timeline was destroyed during the call");
      }
      return dgpu::fail(DGPU_STATUS_INVALID_ARGUMENT, "value", "the timeline is at {} already; {} is not larger", now,
                        value);
    }
    if (record) add_interval(now + 1, value, std::move(record));
    retired_.store(value, std::memory_order_release);
    settled_.store(value, std::memory_order_seq_cst);
  }
  if (watched_.load(std::memory_order_seq_cst) <= value) wake(value);
  return DGPU_STATUS_SUCCESS;
}

bool Timeline::add_mover() {
  uint32_t movers = movers_.load(std::memory_order_relaxed);
  while (movers != 0) {
    if (movers_.compare_exchange_weak(movers, movers + 1, std::memory_order_relaxed)) return true;
  }
  return false;
}

void Timeline::drop_mover() {
  if (movers_.fetch_sub(1, std::memory_order_acq_rel) == 1) orphan();
}

void Timeline::invalidated() {
  if (user_owned()) drop_mover();
}

void Timeline::orphan() noexcept {
  // Shutting down ends all waits in its own way.
  if (library_closing() || settled() == UINT64_MAX) return;
  try {
    auto record = std::make_shared<dgpuErrorInfo>();
    record->struct_size = sizeof(dgpuErrorInfo);
    record->status = DGPU_STATUS_CANCELLED;
    record->value = settled() + 1;
    copy_text(record->message,
              fmt::format("the timeline was destroyed at value {}; nothing can move it on", settled()));
    copy_text(record->object, "timeline");
    copy_text(record->function, "dgpuTimelineDestroy");
    (void)fail(UINT64_MAX, std::move(record));
  } catch (const std::bad_alloc&) {
    interrupt(DGPU_STATUS_CANCELLED);
  }
}

void Timeline::add_interval(uint64_t first, uint64_t last, ErrorRecord record) {
  if (failed_.size() >= kKeptIntervals) {
    forgotten_ = failed_[kKeptIntervals / 2].last;
    failed_.erase(failed_.begin(), failed_.begin() + kKeptIntervals / 2 + 1);
  }
  if (failed_.size() >= kKeptRecords) failed_[failed_.size() - kKeptRecords].record = nullptr;
  const Status status = record->status;
  failed_.push_back({first, last, status, std::move(record)});
  failures_.fetch_add(1, std::memory_order_seq_cst);
}

void Timeline::open_failure(uint64_t first, ErrorRecord record) {
  std::lock_guard lock(mutex_);
  add_interval(first, kOpen, std::move(record));
}

// A value that settles before the interval counts as open keeps its success; one that settles later finds it.
void Timeline::open_failure_behind_settled(const ErrorRecord& record) {
  std::lock_guard lock(mutex_);
  std::optional<Interval> open;  // an earlier failure keeps what is its own
  if (!failed_.empty() && failed_.back().last == kOpen) {
    open = std::move(failed_.back());
    failed_.pop_back();
  }
  const uint64_t last = open ? open->first - 1 : kOpen;
  add_interval(settled_.load(std::memory_order_seq_cst) + 1, last, record);
  failed_.back().first = settled_.load(std::memory_order_seq_cst) + 1;
  if (failed_.back().first > last) failed_.pop_back();
  if (open) failed_.push_back(std::move(*open));
}

void Timeline::close_failure(uint64_t last) {
  std::lock_guard lock(mutex_);
  if (!failed_.empty() && failed_.back().last == kOpen) failed_.back().last = last;
}

void Timeline::set_stream(Stream* stream) {
  std::lock_guard lock(mutex_);
  stream_ = stream;
}

Ref<Stream> Timeline::stream() const {
  std::lock_guard lock(mutex_);
  return stream_ && stream_->try_ref() ? Ref<Stream>::adopt(stream_) : nullptr;
}

void Timeline::interrupt(Status status) {
  std::lock_guard lock(mutex_);
  interrupted_.store(status, std::memory_order_relaxed);
  woken_.notify_all();
}

}  // namespace dgpu
