#include "runtime/event.h"

#include "runtime/submission.h"

namespace dgpu {

Status Event::record(Stream& stream, const char* function) {
  Mark mark;
  mark.timeline = Ref<Timeline>::retain(stream.timeline());
  mark.device = stream.device_index();
  if (timing_) {
    mark.stamp = take_spare();
    Submission submission(stream, function);
    const Status status = submission.begin(1, 0, true);
    if (status == DGPU_STATUS_SUCCESS) {
      submission.add_marker(mark.stamp.get());
      mark.value = submission.commit();
    } else if (status == DGPU_STATUS_QUEUE_FULL || !stream.failure()) {
      std::lock_guard lock(mutex_);
      spare_ = std::move(mark.stamp);
      return status;
    }
  }
  // Without a time stamp, or on a stream that takes nothing more, it stands for what was submitted so far.
  if (!mark.value) mark.value = stream.submitted();
  std::lock_guard lock(mutex_);
  if (mark_.stamp) spare_ = std::move(mark_.stamp);
  mark_ = std::move(mark);
  return DGPU_STATUS_SUCCESS;
}

// The stamp of the record before the last one, unless a command or a reader still has it: the last one's stays readable
// until the new record is submitted.
Ref<Stamp> Event::take_spare() {
  Ref<Stamp> stamp;
  {
    std::lock_guard lock(mutex_);
    if (spare_ && spare_->unique()) stamp = std::move(spare_);
  }
  if (!stamp) stamp = make_ref<Stamp>();
  stamp->begin_ns = stamp->end_ns = 0;
  return stamp;
}

Status Event::point(Ref<Timeline>& timeline, uint64_t& value) const {
  std::lock_guard lock(mutex_);
  if (!mark_.timeline) return fail(DGPU_STATUS_INVALID_STATE, "event", "the event was never recorded");
  timeline = mark_.timeline;
  value = mark_.value;
  return DGPU_STATUS_SUCCESS;
}

Status Event::timed_mark(Mark& out, const char* argument) const {
  if (!timing_) {
    return fail(DGPU_STATUS_INVALID_ARGUMENT, argument, "{} was created without DGPU_EVENT_TIMING", argument);
  }
  {
    std::lock_guard lock(mutex_);
    out = mark_;
  }
  if (!out.timeline) return fail(DGPU_STATUS_INVALID_STATE, argument, "{} was never recorded", argument);
  return out.timeline->query(out.value);
}

Status Event::elapsed(const Event& start, const Event& end, int64_t& out_ns) {
  Mark a, b;
  Status status = start.timed_mark(a, "start");
  if (status != DGPU_STATUS_SUCCESS) return status;
  status = end.timed_mark(b, "end");
  if (status != DGPU_STATUS_SUCCESS) return status;
  if (a.device != b.device) {
    return fail(DGPU_STATUS_INVALID_ARGUMENT, "end",
                "start and end were recorded on different devices, whose clocks "
                "do not compare");
  }
  out_ns = static_cast<int64_t>(b.stamp->end_ns - a.stamp->end_ns);
  return DGPU_STATUS_SUCCESS;
}

}  // namespace dgpu
