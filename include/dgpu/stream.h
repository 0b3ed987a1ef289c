/* Timelines, streams, events, host callbacks. SPDX-License-Identifier: Apache-2.0 */
#ifndef DGPU_STREAM_H
#define DGPU_STREAM_H

#include "dgpu/base.h"

DGPU_EXTERN_C_BEGIN

/* ---- Timelines --------------------------------------------------------------------------------------------------
 * The one synchronisation primitive: a 64-bit value that only grows. Each value has two facts: retired (the memory of
 * its work is no longer touched) and outcome (ok, or an error record). A dependency is a plain {timeline, value}.
 * Values never rewind: a waiter on a value inside a failed interval sees the failure, also after the stream was reset
 * and ran on. A timeline is either owned by a stream or created here and moved by the user. */

DGPU_API dgpuStatus_t dgpuTimelineCreate(dgpuContext_t context, uint64_t initial_value, dgpuTimeline_t *out_timeline);
/* A user-owned timeline is still moved by commands that are queued already. Values that none of them reaches fail with
 * CANCELLED, so that nobody waits for them for ever; the same holds where destroying the context takes the handle. */
DGPU_API dgpuStatus_t dgpuTimelineDestroy(dgpuTimeline_t timeline);
/* Moves a user-owned timeline to `value`, which must be larger than the current one (INVALID_ARGUMENT). Signalling a
 * stream's timeline is NOT_PERMITTED. Host writes made before are visible to whoever waits. */
DGPU_API dgpuStatus_t dgpuTimelineSignal(dgpuTimeline_t timeline, uint64_t value);
/* As Signal, but the values after the current one up to `value` carry a failure: `status` (negative) and `message` (null:
 * the text of the status). */
DGPU_API dgpuStatus_t dgpuTimelineFail(dgpuTimeline_t timeline, uint64_t value, dgpuStatus_t status,
                                       const char *message);
/* Blocks until `value` is retired: SUCCESS, the failure it carries, or TIMEOUT. Waiting for a value that is not yet
 * submitted is allowed on user-owned timelines only; on a stream's timeline it is INVALID_ARGUMENT. */
DGPU_API dgpuStatus_t dgpuTimelineWait(dgpuTimeline_t timeline, uint64_t value, uint64_t timeout_ns);
/* The newest value whose outcome is known, be it success or failure. */
DGPU_API dgpuStatus_t dgpuTimelineGetValue(dgpuTimeline_t timeline, uint64_t *out_value);
/* Outcome of one value: SUCCESS, NOT_READY, or the failure (with its record in dgpuGetLastError). */
DGPU_API dgpuStatus_t dgpuTimelineQuery(dgpuTimeline_t timeline, uint64_t value);

/* ---- Streams ----------------------------------------------------------------------------------------------------
 * An in-order queue of commands on one device. A failed command puts the stream into FAILED: later commands retire
 * without running and carry the first error; submitting answers STREAM_FAILED; free, record, destroy and reset are
 * still accepted. Submitting allocates nothing and takes no lock that a running command can hold. */

enum {
  DGPU_STREAM_BLOCKING_SUBMIT = 1 /* a submit to a full queue waits for room instead of answering QUEUE_FULL */
};
typedef struct dgpuStreamOptions {
  size_t struct_size;
  uint32_t flags;    /* DGPU_STREAM_* */
  uint32_t capacity; /* commands in flight, at most 65536; rounded up to a power of two, at least 4; 0: 1024 */
  int32_t priority;  /* higher runs first where the device can choose; 0 normal */
  uint32_t reserved;
} dgpuStreamOptions;
#define DGPU_STREAM_OPTIONS_INIT {sizeof(dgpuStreamOptions), 0, 0, 0, 0}

/* options may be null. The device must belong to the context. */
DGPU_API dgpuStatus_t dgpuStreamCreate(dgpuContext_t context, dgpuDevice_t device, const dgpuStreamOptions *options,
                                       dgpuStream_t *out_stream);
/* Queued work still runs. */
DGPU_API dgpuStatus_t dgpuStreamDestroy(dgpuStream_t stream);
/* Blocks until all commands submitted before the call have retired. Returns the stream's failure if one of them, or
 * an earlier one since the last reset, failed. The calling thread may run chunks of the work (see
 * DGPU_CONTEXT_NO_HELPING). NOT_PERMITTED inside a host callback or a kernel. */
DGPU_API dgpuStatus_t dgpuStreamSynchronize(dgpuStream_t stream, uint64_t timeout_ns);
/* SUCCESS when idle, NOT_READY, or the stream's failure. */
DGPU_API dgpuStatus_t dgpuStreamQuery(dgpuStream_t stream);
/* The stream's own timeline, a new handle that the caller destroys; valid also after the stream is destroyed. */
DGPU_API dgpuStatus_t dgpuStreamGetTimeline(dgpuStream_t stream, dgpuTimeline_t *out_timeline);
/* Value of the last submitted command; that value retires when everything submitted so far has. */
DGPU_API dgpuStatus_t dgpuStreamGetValue(dgpuStream_t stream, uint64_t *out_value);
/* Commands submitted later start only when `value` of `timeline` has retired; if it carries a failure the stream fails
 * with that record. The timeline may belong to another device, backend, or to the user; INVALID_ARGUMENT if another
 * stream owns it and has not submitted `value` yet. */
DGPU_API dgpuStatus_t dgpuStreamWaitTimeline(dgpuStream_t stream, dgpuTimeline_t timeline, uint64_t value);
/* Moves a user-owned timeline to `value` (or fails it, if the stream failed) when all earlier commands have retired.
 * A timeline that is at `value` or beyond by then fails the stream with INVALID_ARGUMENT. */
DGPU_API dgpuStatus_t dgpuStreamSignalTimeline(dgpuStream_t stream, dgpuTimeline_t timeline, uint64_t value);
/* Makes a failed stream usable again once everything submitted has retired (it waits up to timeout_ns for that). The
 * failed values keep their record for timelines and events; the stream itself is healthy from then on. SUCCESS on a
 * healthy stream. */
DGPU_API dgpuStatus_t dgpuStreamReset(dgpuStream_t stream, uint64_t timeout_ns);
/* SUCCESS and a zero record while healthy; else SUCCESS and the first failure since the last reset. */
DGPU_API dgpuStatus_t dgpuStreamGetError(dgpuStream_t stream, dgpuErrorInfo *out_info);

/* Runs callback(status, user) on a library thread when all earlier commands have retired; later commands wait for it.
 * Exactly once, also when the stream failed (status is then the failure) or is destroyed, or at shutdown
 * (DGPU_STATUS_SHUTDOWN). Returning a negative status fails the stream with CALLBACK_FAILED. Calls that would block
 * are NOT_PERMITTED inside. Callbacks of one stream run in order; different streams may share the thread. */
typedef dgpuStatus_t (*dgpuHostCallback)(dgpuStatus_t status, void *user);
DGPU_API dgpuStatus_t dgpuStreamHostCallback(dgpuStream_t stream, dgpuHostCallback callback, void *user);

/* ---- Events -----------------------------------------------------------------------------------------------------
 * A convenient name for {timeline, value}, with a time stamp if asked for. */

enum { DGPU_EVENT_TIMING = 1 };
DGPU_API dgpuStatus_t dgpuEventCreate(dgpuContext_t context, uint32_t flags, dgpuEvent_t *out_event);
DGPU_API dgpuStatus_t dgpuEventDestroy(dgpuEvent_t event);
/* The event now stands for everything submitted to `stream` so far. Recording again replaces the meaning; waits that
 * were made earlier keep theirs. Accepted on a failed stream. */
DGPU_API dgpuStatus_t dgpuEventRecord(dgpuEvent_t event, dgpuStream_t stream);
/* SUCCESS, NOT_READY, the failure, or INVALID_STATE if never recorded. */
DGPU_API dgpuStatus_t dgpuEventQuery(dgpuEvent_t event);
DGPU_API dgpuStatus_t dgpuEventSynchronize(dgpuEvent_t event, uint64_t timeout_ns);
DGPU_API dgpuStatus_t dgpuStreamWaitEvent(dgpuStream_t stream, dgpuEvent_t event);
/* The {timeline, value} behind the event; the timeline is a new handle that the caller destroys. */
DGPU_API dgpuStatus_t dgpuEventGetPoint(dgpuEvent_t event, dgpuTimeline_t *out_timeline, uint64_t *out_value);
/* Time between two recorded DGPU_EVENT_TIMING events of one device, on that device's clock, in nanoseconds; negative
 * if `end` came first. NOT_READY while one has not retired; the failure that one carries; INVALID_STATE if one was
 * never recorded; INVALID_ARGUMENT without DGPU_EVENT_TIMING or on two devices. */
DGPU_API dgpuStatus_t dgpuEventElapsed(dgpuEvent_t start, dgpuEvent_t end, int64_t *out_ns);

DGPU_EXTERN_C_END
#endif /* DGPU_STREAM_H */
