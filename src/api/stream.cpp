// Timelines, streams, events, host callbacks.
#include "runtime/stream.h"

#include "api/entry.h"
#include "backend/registry.h"
#include "runtime/event.h"
#include "runtime/submission.h"

using namespace dgpu;

namespace {

Status publish_timeline(Timeline* timeline, dgpuTimeline_t* out) {
  return handle_publish(Ref<Timeline>::retain(timeline), out, timeline->context()->scope());
}

Status user_owned(const Timeline& timeline) {
  if (timeline.user_owned()) return DGPU_STATUS_SUCCESS;
  return fail(DGPU_STATUS_NOT_PERMITTED, "timeline", "the timeline belongs to a stream, which alone moves it");
}

Status create_stream(dgpuContext_t context, dgpuDevice_t device, const dgpuStreamOptions* options,
                     dgpuStream_t* out_stream) {
  if (out_stream) *out_stream = nullptr;
  DGPU_PIN(Context, owner, context);
  DGPU_PIN(backend::Device, target, device);
  DGPU_TRY(need(out_stream, "out_stream"));
  dgpuStreamOptions known = DGPU_STREAM_OPTIONS_INIT;
  DGPU_TRY(read_optional(options, "dgpuStreamOptions", known));
  if (known.flags & ~uint32_t{DGPU_STREAM_BLOCKING_SUBMIT}) {
    return fail(DGPU_STATUS_INVALID_ARGUMENT, "flags", "flags {:#x} has bits besides DGPU_STREAM_*", known.flags);
  }
  if (known.reserved) return fail(DGPU_STATUS_INVALID_ARGUMENT, "reserved", "reserved must be 0");
  uint32_t index = 0;
  DGPU_TRY(owner->device_index(*target, index));
  Stream::Options wanted;
  wanted.capacity = known.capacity;
  wanted.priority = known.priority;
  wanted.blocking_submit = known.flags & DGPU_STREAM_BLOCKING_SUBMIT;
  Ref<Stream> stream;
  DGPU_TRY(Stream::create(owner.ref(), index, wanted, stream));
  stream->set_owned(true);
  return handle_publish(std::move(stream), out_stream, owner->scope());
}

}  // namespace

extern "C" {

// ---- Timelines ----

dgpuStatus_t dgpuTimelineCreate(dgpuContext_t context, uint64_t initial_value, dgpuTimeline_t* out_timeline) {
  return entry("dgpuTimelineCreate", [&]() -> Status {
    if (out_timeline) *out_timeline = nullptr;
    DGPU_PIN(Context, owner, context);
    DGPU_TRY(need(out_timeline, "out_timeline"));
    auto timeline = make_ref<Timeline>(owner.ref(), Timeline::Owner::user, initial_value);
    return handle_publish(std::move(timeline), out_timeline, owner->scope());
  });
}

dgpuStatus_t dgpuTimelineDestroy(dgpuTimeline_t timeline) {
  return entry("dgpuTimelineDestroy", [&] { return retire<Timeline>(timeline, "timeline"); });
}

dgpuStatus_t dgpuTimelineSignal(dgpuTimeline_t timeline, uint64_t value) {
  return entry("dgpuTimelineSignal", [&]() -> Status {
    DGPU_PIN(Timeline, pinned, timeline);
    DGPU_TRY(user_owned(*pinned));
    return pinned->signal(value);
  });
}

dgpuStatus_t dgpuTimelineFail(dgpuTimeline_t timeline, uint64_t value, dgpuStatus_t status, const char* message) {
  return entry("dgpuTimelineFail", [&]() -> Status {
    DGPU_PIN(Timeline, pinned, timeline);
    DGPU_TRY(user_owned(*pinned));
    if (status >= 0) {
      return fail(DGPU_STATUS_INVALID_ARGUMENT, "status", "status is {}; a failure needs a negative one", status);
    }
    auto record = std::make_shared<dgpuErrorInfo>();
    record->struct_size = sizeof(dgpuErrorInfo);
    record->status = status;
    record->value = value;
    copy_text(record->message, message && *message ? message : dgpuStatusText(status));
    copy_text(record->function, "dgpuTimelineFail");
    return pinned->fail(value, std::move(record));
  });
}

dgpuStatus_t dgpuTimelineWait(dgpuTimeline_t timeline, uint64_t value, uint64_t timeout_ns) {
  return entry("dgpuTimelineWait", [&]() -> Status {
    DGPU_PIN(Timeline, pinned, timeline);
    DGPU_TRY(may_block("dgpuTimelineWait"));
    return wait_for(*pinned, value, timeout_ns);
  });
}

dgpuStatus_t dgpuTimelineGetValue(dgpuTimeline_t timeline, uint64_t* out_value) {
  return entry("dgpuTimelineGetValue", [&]() -> Status {
    if (out_value) *out_value = 0;
    DGPU_PIN(Timeline, pinned, timeline);
    DGPU_TRY(need(out_value, "out_value"));
    *out_value = pinned->settled();
    return DGPU_STATUS_SUCCESS;
  });
}

dgpuStatus_t dgpuTimelineQuery(dgpuTimeline_t timeline, uint64_t value) {
  return entry("dgpuTimelineQuery", [&]() -> Status {
    DGPU_PIN(Timeline, pinned, timeline);
    DGPU_TRY(pinned->check_waitable(value));
    return pinned->query(value);
  });
}

// ---- Streams ----

dgpuStatus_t dgpuStreamCreate(dgpuContext_t context, dgpuDevice_t device, const dgpuStreamOptions* options,
                              dgpuStream_t* out_stream) {
  return entry("dgpuStreamCreate", [&] { return create_stream(context, device, options, out_stream); });
}

dgpuStatus_t dgpuStreamDestroy(dgpuStream_t stream) {
  return entry("dgpuStreamDestroy", [&] { return retire<Stream>(stream, "stream"); });
}

dgpuStatus_t dgpuStreamSynchronize(dgpuStream_t stream, uint64_t timeout_ns) {
  return entry("dgpuStreamSynchronize", [&]() -> Status {
    DGPU_PIN(Stream, pinned, stream);
    DGPU_TRY(may_block("dgpuStreamSynchronize"));
    return pinned->synchronize(timeout_ns);
  });
}

dgpuStatus_t dgpuStreamQuery(dgpuStream_t stream) {
  return entry("dgpuStreamQuery", [&]() -> Status {
    DGPU_PIN(Stream, pinned, stream);
    return pinned->query();
  });
}

dgpuStatus_t dgpuStreamGetTimeline(dgpuStream_t stream, dgpuTimeline_t* out_timeline) {
  return entry("dgpuStreamGetTimeline", [&]() -> Status {
    if (out_timeline) *out_timeline = nullptr;
    DGPU_PIN(Stream, pinned, stream);
    DGPU_TRY(need(out_timeline, "out_timeline"));
    return publish_timeline(pinned->timeline(), out_timeline);
  });
}

dgpuStatus_t dgpuStreamGetValue(dgpuStream_t stream, uint64_t* out_value) {
  return entry("dgpuStreamGetValue", [&]() -> Status {
    if (out_value) *out_value = 0;
    DGPU_PIN(Stream, pinned, stream);
    DGPU_TRY(need(out_value, "out_value"));
    *out_value = pinned->submitted();
    return DGPU_STATUS_SUCCESS;
  });
}

dgpuStatus_t dgpuStreamWaitTimeline(dgpuStream_t stream, dgpuTimeline_t timeline, uint64_t value) {
  return entry("dgpuStreamWaitTimeline", [&]() -> Status {
    DGPU_PIN(Stream, pinned, stream);
    DGPU_PIN(Timeline, awaited, timeline);
    DGPU_TRY(same_context(pinned->context(), awaited->context(), "timeline"));
    return submit_wait(*pinned, "dgpuStreamWaitTimeline", awaited.get(), value);
  });
}

dgpuStatus_t dgpuStreamSignalTimeline(dgpuStream_t stream, dgpuTimeline_t timeline, uint64_t value) {
  return entry("dgpuStreamSignalTimeline", [&]() -> Status {
    DGPU_PIN(Stream, pinned, stream);
    DGPU_PIN(Timeline, moved, timeline);
    DGPU_TRY(same_context(pinned->context(), moved->context(), "timeline"));
    DGPU_TRY(user_owned(*moved));
    return submit_signal(*pinned, "dgpuStreamSignalTimeline", moved.get(), value);
  });
}

dgpuStatus_t dgpuStreamReset(dgpuStream_t stream, uint64_t timeout_ns) {
  return entry("dgpuStreamReset", [&]() -> Status {
    DGPU_PIN(Stream, pinned, stream);
    DGPU_TRY(may_block("dgpuStreamReset"));
    return pinned->reset(timeout_ns);
  });
}

dgpuStatus_t dgpuStreamGetError(dgpuStream_t stream, dgpuErrorInfo* out_info) {
  return entry("dgpuStreamGetError", [&]() -> Status {
    zero_struct(out_info);
    DGPU_PIN(Stream, pinned, stream);
    DGPU_TRY(need(out_info, "out_info"));
    const dgpuErrorInfo healthy = DGPU_ERROR_INFO_INIT;
    const ErrorRecord record = pinned->failure();
    return write_struct(out_info, "dgpuErrorInfo", record ? *record : healthy);
  });
}

dgpuStatus_t dgpuStreamHostCallback(dgpuStream_t stream, dgpuHostCallback callback, void* user) {
  return entry("dgpuStreamHostCallback", [&]() -> Status {
    DGPU_PIN(Stream, pinned, stream);
    DGPU_TRY(need(reinterpret_cast<const void*>(callback), "callback"));
    return submit_callback(*pinned, "dgpuStreamHostCallback", callback, user);
  });
}

// ---- Events ----

dgpuStatus_t dgpuEventCreate(dgpuContext_t context, uint32_t flags, dgpuEvent_t* out_event) {
  return entry("dgpuEventCreate", [&]() -> Status {
    if (out_event) *out_event = nullptr;
    DGPU_PIN(Context, owner, context);
    DGPU_TRY(need(out_event, "out_event"));
    if (flags & ~uint32_t{DGPU_EVENT_TIMING}) {
      return fail(DGPU_STATUS_INVALID_ARGUMENT, "flags", "flags {:#x} has bits besides DGPU_EVENT_*", flags);
    }
    auto event = make_ref<Event>(owner.ref(), (flags & DGPU_EVENT_TIMING) != 0);
    return handle_publish(std::move(event), out_event, owner->scope());
  });
}

dgpuStatus_t dgpuEventDestroy(dgpuEvent_t event) {
  return entry("dgpuEventDestroy", [&] { return retire<Event>(event, "event"); });
}

dgpuStatus_t dgpuEventRecord(dgpuEvent_t event, dgpuStream_t stream) {
  return entry("dgpuEventRecord", [&]() -> Status {
    DGPU_PIN(Event, pinned, event);
    DGPU_PIN(Stream, source, stream);
    DGPU_TRY(same_context(pinned->context(), source->context(), "stream"));
    return pinned->record(*source, "dgpuEventRecord");
  });
}

dgpuStatus_t dgpuEventQuery(dgpuEvent_t event) {
  return entry("dgpuEventQuery", [&]() -> Status {
    DGPU_PIN(Event, pinned, event);
    Ref<Timeline> timeline;
    uint64_t value = 0;
    DGPU_TRY(pinned->point(timeline, value));
    return timeline->query(value);
  });
}

dgpuStatus_t dgpuEventSynchronize(dgpuEvent_t event, uint64_t timeout_ns) {
  return entry("dgpuEventSynchronize", [&]() -> Status {
    DGPU_PIN(Event, pinned, event);
    DGPU_TRY(may_block("dgpuEventSynchronize"));
    Ref<Timeline> timeline;
    uint64_t value = 0;
    DGPU_TRY(pinned->point(timeline, value));
    return wait_for(*timeline, value, timeout_ns);
  });
}

dgpuStatus_t dgpuStreamWaitEvent(dgpuStream_t stream, dgpuEvent_t event) {
  return entry("dgpuStreamWaitEvent", [&]() -> Status {
    DGPU_PIN(Stream, pinned, stream);
    DGPU_PIN(Event, awaited, event);
    DGPU_TRY(same_context(pinned->context(), awaited->context(), "event"));
    Ref<Timeline> timeline;
    uint64_t value = 0;
    DGPU_TRY(awaited->point(timeline, value));
    return submit_wait(*pinned, "dgpuStreamWaitEvent", timeline.get(), value);
  });
}

dgpuStatus_t dgpuEventGetPoint(dgpuEvent_t event, dgpuTimeline_t* out_timeline, uint64_t* out_value) {
  return entry("dgpuEventGetPoint", [&]() -> Status {
    if (out_timeline) *out_timeline = nullptr;
    if (out_value) *out_value = 0;
    DGPU_PIN(Event, pinned, event);
    DGPU_TRY(need(out_timeline, "out_timeline"));
    DGPU_TRY(need(out_value, "out_value"));
    Ref<Timeline> timeline;
    uint64_t value = 0;
    DGPU_TRY(pinned->point(timeline, value));
    DGPU_TRY(publish_timeline(timeline.get(), out_timeline));
    *out_value = value;
    return DGPU_STATUS_SUCCESS;
  });
}

dgpuStatus_t dgpuEventElapsed(dgpuEvent_t start, dgpuEvent_t end, int64_t* out_ns) {
  return entry("dgpuEventElapsed", [&]() -> Status {
    if (out_ns) *out_ns = 0;
    DGPU_PIN(Event, first, start);
    DGPU_PIN(Event, second, end);
    DGPU_TRY(need(out_ns, "out_ns"));
    DGPU_TRY(same_context(first->context(), second->context(), "end"));
    return Event::elapsed(*first, *second, *out_ns);
  });
}

}  // extern "C"
