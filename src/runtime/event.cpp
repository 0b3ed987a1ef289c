#include "runtime/event.h"

#include "runtime/submission.h"

namespace dgpu {

Status Event::record(Stream& stream, const char* function) {
  Mark mark;
  mark.timeline = Ref<Timeline>::retain(stream.timeline());
  mark.device = stream.device_index();
  if (timing_) {
    {
      // The stamp of the record before serves again unless a command still has to write it.
      std::lock_guard lock(mutex_);
      if (mark_.stamp && mark_.stamp->unique()) mark.stamp = std::move(mark_.stamp);
    }
    if (!mark.stamp) mark.stamp = make_ref<Stamp>();
    mark.stamp->begin_ns = mark.stamp->end_ns = 0;
    Submission submission(stream, function);
    const Status status = submission.begin(1, 0, true);
    if (status == DGPU_STATUS_QUEUE_FULL) return status;
    if (status == DGPU_STATUS_SUCCESS) {
      submission.add_marker(mark.stamp.get());
      mark.value = submission.commit();
    } else if (!stream.failure()) {
      return status;
    }
  }
  // Without a time stamp, or on a stream that takes nothing more, it stands for what was submitted so far.
  if (!mark.value) mark.value = stream.submitted();
  std::lock_guard lock(mutex_);
  mark_ = std::move(mark);
  return DGPU_STATUS_SUCCESS;
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
