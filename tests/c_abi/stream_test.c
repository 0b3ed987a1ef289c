/* Timelines, streams, events, host callbacks. */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "devices.h"

/* A callback that holds its stream until a timeline is signalled would be refused; this one holds it with a user-owned
 * timeline instead: work behind a gate has certainly not run. */
static dgpuTimeline_t gate_on(dgpuContext_t context, dgpuStream_t stream) {
  dgpuTimeline_t gate = NULL;
  OK(dgpuTimelineCreate(context, 0, &gate));
  OK(dgpuStreamWaitTimeline(stream, gate, 1));
  return gate;
}

static dgpuStatus_t count_calls(dgpuStatus_t status, void* user) {
  (void)status;
  atomic_fetch_add((atomic_int*)user, 1);
  return DGPU_STATUS_SUCCESS;
}
static dgpuStatus_t keep_status(dgpuStatus_t status, void* user) {
  atomic_store((atomic_int*)user, status);
  return DGPU_STATUS_SUCCESS;
}
static dgpuStatus_t give_up(dgpuStatus_t status, void* user) {
  (void)status;
  (void)user;
  return -77;
}

/* ---- user-owned timelines -------------------------------------------------------------------------------------------
 */

static void user_timeline_moves_and_fails(void** state) {
  dgpuContext_t context = context_of(cpu_device(0));
  dgpuTimeline_t timeline = NULL;
  uint64_t value = 0;
  OK(dgpuTimelineCreate(context, 5, &timeline));
  OK(dgpuTimelineGetValue(timeline, &value));
  assert_int_equal(value, 5);
  OK(dgpuTimelineWait(timeline, 5, 0));
  CHECK(DGPU_STATUS_TIMEOUT, dgpuTimelineWait(timeline, 6, 1000000));
  CHECK(DGPU_STATUS_NOT_READY, dgpuTimelineQuery(timeline, 6));
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuTimelineSignal(timeline, 5));
  OK(dgpuTimelineSignal(timeline, 6));
  OK(dgpuTimelineFail(timeline, 9, DGPU_STATUS_COMMAND_FAILED, "the producer is out of ink"));
  OK(dgpuTimelineSignal(timeline, 12));
  OK(dgpuTimelineQuery(timeline, 6));
  for (uint64_t v = 7; v <= 9; ++v) {
    CHECK(DGPU_STATUS_COMMAND_FAILED, dgpuTimelineWait(timeline, v, LONG_TIME));
    MESSAGE("out of ink");
  }
  OK(dgpuTimelineWait(timeline, 10, 0));
  OK(dgpuTimelineQuery(timeline, 12));
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuTimelineFail(timeline, 13, DGPU_STATUS_SUCCESS, "fine"));
  OK(dgpuTimelineDestroy(timeline));
  OK(dgpuContextDestroy(context));
}

static void* signal_later(void* user) {
  usleep(20000);
  (void)dgpuTimelineSignal((dgpuTimeline_t)user, 3);
  return NULL;
}

static void a_blocked_wait_is_woken_by_a_signal(void** state) {
  dgpuContext_t context = context_of(cpu_device(0));
  dgpuTimeline_t timeline = NULL;
  pthread_t thread;
  OK(dgpuTimelineCreate(context, 0, &timeline));
  assert_int_equal(pthread_create(&thread, NULL, signal_later, timeline), 0);
  OK(dgpuTimelineWait(timeline, 2, DGPU_TIMEOUT_INFINITE));
  pthread_join(thread, NULL);
  OK(dgpuTimelineDestroy(timeline));
  OK(dgpuContextDestroy(context));
}

/* ---- streams --------------------------------------------------------------------------------------------------------
 */

static void values_count_commands(void** state) {
  dgpuContext_t context = context_of(cpu_device(0));
  dgpuStream_t stream = stream_on(context, cpu_device(0));
  dgpuTimeline_t timeline = NULL;
  dgpuAddr_t memory = 0;
  uint64_t value = 77;
  OK(dgpuStreamQuery(stream));
  OK(dgpuStreamSynchronize(stream, 0));
  OK(dgpuStreamGetValue(stream, &value));
  assert_int_equal(value, 0);
  OK(dgpuStreamGetTimeline(stream, &timeline));
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuTimelineWait(timeline, 1, 0));
  MESSAGE("not submitted");
  CHECK(DGPU_STATUS_NOT_PERMITTED, dgpuTimelineSignal(timeline, 1));
  CHECK(DGPU_STATUS_NOT_PERMITTED, dgpuTimelineFail(timeline, 1, DGPU_STATUS_CANCELLED, ""));
  CHECK(DGPU_STATUS_NOT_PERMITTED, dgpuStreamSignalTimeline(stream, timeline, 1));
  OK(dgpuMemAlloc(context, cpu_device(0), 4096, &memory));
  for (int i = 0; i < 10; ++i) OK(dgpuMemFillAsync(stream, memory, 1, 1, 4096));
  OK(dgpuStreamGetValue(stream, &value));
  assert_int_equal(value, 10);
  OK(dgpuTimelineWait(timeline, 10, LONG_TIME));
  OK(dgpuStreamSynchronize(stream, LONG_TIME));
  OK(dgpuTimelineGetValue(timeline, &value));
  assert_int_equal(value, 10);
  OK(dgpuStreamDestroy(stream));
  OK(dgpuTimelineQuery(timeline, 10)); /* the timeline outlives the stream */
  OK(dgpuTimelineDestroy(timeline));
  OK(dgpuMemFree(context, memory));
  OK(dgpuContextDestroy(context));
}

static void work_behind_a_gate_waits(void** state) {
  dgpuContext_t context = context_of(cpu_device(0));
  dgpuStream_t stream = stream_on(context, cpu_device(0));
  dgpuTimeline_t gate = gate_on(context, stream);
  unsigned char bytes[64] = {0};
  dgpuAddr_t memory = 0;
  OK(dgpuMemAlloc(context, cpu_device(0), 64, &memory));
  OK(dgpuMemFillAsync(stream, memory, 0xab, 1, 64));
  OK(dgpuMemCopyToHostAsync(stream, bytes, memory, 64));
  CHECK(DGPU_STATUS_NOT_READY, dgpuStreamQuery(stream));
  CHECK(DGPU_STATUS_TIMEOUT, dgpuStreamSynchronize(stream, 20000000));
  assert_int_equal(bytes[0], 0);
  OK(dgpuTimelineSignal(gate, 1));
  OK(dgpuStreamSynchronize(stream, LONG_TIME));
  assert_int_equal(bytes[0], 0xab);
  assert_int_equal(bytes[63], 0xab);
  OK(dgpuTimelineDestroy(gate));
  OK(dgpuStreamDestroy(stream));
  OK(dgpuContextDestroy(context));
}

static void a_full_queue_says_so(void** state) {
  dgpuContext_t context = context_of(cpu_device(0));
  dgpuStreamOptions options = DGPU_STREAM_OPTIONS_INIT;
  dgpuStream_t stream = NULL;
  dgpuAddr_t memory = 0;
  options.capacity = 7; /* rounded up to 8 */
  OK(dgpuStreamCreate(context, cpu_device(0), &options, &stream));
  OK(dgpuMemAlloc(context, cpu_device(0), 64, &memory));
  dgpuTimeline_t gate = gate_on(context, stream);
  for (int i = 0; i < 7; ++i) OK(dgpuMemFillAsync(stream, memory, 1, 1, 64));
  CHECK(DGPU_STATUS_QUEUE_FULL, dgpuMemFillAsync(stream, memory, 1, 1, 64));
  OK(dgpuTimelineSignal(gate, 1));
  OK(dgpuStreamSynchronize(stream, LONG_TIME));
  OK(dgpuMemFillAsync(stream, memory, 1, 1, 64));
  OK(dgpuStreamSynchronize(stream, LONG_TIME));
  OK(dgpuTimelineDestroy(gate));
  OK(dgpuStreamDestroy(stream));
  OK(dgpuContextDestroy(context));
}

static void* open_gate(void* user) {
  usleep(20000);
  (void)dgpuTimelineSignal((dgpuTimeline_t)user, 1);
  return NULL;
}

static void a_blocking_stream_waits_for_room(void** state) {
  dgpuContext_t context = context_of(cpu_device(0));
  dgpuStreamOptions options = DGPU_STREAM_OPTIONS_INIT;
  dgpuStream_t stream = NULL;
  dgpuAddr_t memory = 0;
  pthread_t thread;
  options.capacity = 4;
  options.flags = DGPU_STREAM_BLOCKING_SUBMIT;
  OK(dgpuStreamCreate(context, cpu_device(0), &options, &stream));
  OK(dgpuMemAlloc(context, cpu_device(0), 64, &memory));
  dgpuTimeline_t gate = gate_on(context, stream);
  assert_int_equal(pthread_create(&thread, NULL, open_gate, gate), 0);
  for (int i = 0; i < 100; ++i) OK(dgpuMemFillAsync(stream, memory, (uint64_t)i, 1, 64));
  OK(dgpuStreamSynchronize(stream, LONG_TIME));
  pthread_join(thread, NULL);
  OK(dgpuTimelineDestroy(gate));
  OK(dgpuStreamDestroy(stream));
  OK(dgpuContextDestroy(context));
}

static void streams_wait_for_each_other_across_devices(void** state) {
  dgpuContext_t context = context_of_two(cpu_device(0), cpu_device(1));
  dgpuStream_t first = stream_on(context, cpu_device(0)), second = stream_on(context, cpu_device(1));
  dgpuEvent_t event = NULL;
  dgpuAddr_t a = 0, b = 0;
  unsigned char bytes[256];
  OK(dgpuEventCreate(context, 0, &event));
  CHECK(DGPU_STATUS_INVALID_STATE, dgpuEventQuery(event));
  CHECK(DGPU_STATUS_INVALID_STATE, dgpuStreamWaitEvent(second, event));
  OK(dgpuMemAlloc(context, cpu_device(0), 256, &a));
  OK(dgpuMemAlloc(context, cpu_device(1), 256, &b));
  for (int round = 1; round <= 50; ++round) {
    dgpuTimeline_t gate = gate_on(context, first);
    OK(dgpuMemFillAsync(first, a, (uint64_t)round, 1, 256));
    OK(dgpuEventRecord(event, first));
    OK(dgpuStreamWaitEvent(second, event));
    OK(dgpuMemCopyAsync(second, b, a, 256)); /* reads what the first stream wrote */
    OK(dgpuMemCopyToHostAsync(second, bytes, b, 256));
    OK(dgpuEventRecord(event, second));
    OK(dgpuStreamWaitEvent(first, event)); /* and the first may overwrite it only afterwards */
    OK(dgpuTimelineSignal(gate, 1));
    OK(dgpuStreamSynchronize(second, LONG_TIME));
    assert_int_equal(bytes[0], round);
    assert_int_equal(bytes[255], round);
    OK(dgpuTimelineDestroy(gate));
  }
  OK(dgpuEventSynchronize(event, LONG_TIME));
  OK(dgpuEventDestroy(event));
  OK(dgpuStreamDestroy(first));
  OK(dgpuStreamDestroy(second));
  OK(dgpuContextDestroy(context));
}

static void streams_of_different_backends_wait_for_each_other(void** state) {
  dgpuDevice_t other = null_device();
  dgpuContext_t context = context_of_two(cpu_device(0), other);
  dgpuStream_t first = stream_on(context, cpu_device(0)), second = stream_on(context, other);
  dgpuTimeline_t timeline = NULL, gate = gate_on(context, first);
  dgpuAddr_t a = 0, b = 0;
  uint64_t value = 0;
  uint32_t got = 0;
  OK(dgpuMemAlloc(context, cpu_device(0), 4, &a));
  OK(dgpuMemAlloc(context, other, 4, &b));
  OK(dgpuMemFillAsync(first, a, 0x01020304, 4, 4));
  OK(dgpuStreamGetTimeline(first, &timeline));
  OK(dgpuStreamGetValue(first, &value));
  OK(dgpuStreamWaitTimeline(second, timeline, value));
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuStreamWaitTimeline(second, timeline, value + 1));
  OK(dgpuMemCopyAsync(second, b, a, 4));
  OK(dgpuMemCopyToHostAsync(second, &got, b, 4));
  CHECK(DGPU_STATUS_NOT_READY, dgpuStreamQuery(second));
  OK(dgpuTimelineSignal(gate, 1));
  OK(dgpuContextSynchronize(context, LONG_TIME));
  assert_int_equal(got, 0x01020304);
  OK(dgpuTimelineDestroy(gate));
  OK(dgpuTimelineDestroy(timeline));
  OK(dgpuContextDestroy(context));
}

static void a_stream_signals_a_user_timeline(void** state) {
  dgpuContext_t context = context_of(cpu_device(0));
  dgpuStream_t stream = stream_on(context, cpu_device(0));
  dgpuTimeline_t gate = gate_on(context, stream), done = NULL;
  OK(dgpuTimelineCreate(context, 0, &done));
  OK(dgpuStreamSignalTimeline(stream, done, 4));
  CHECK(DGPU_STATUS_NOT_READY, dgpuTimelineQuery(done, 4));
  OK(dgpuTimelineSignal(gate, 1));
  OK(dgpuTimelineWait(done, 4, LONG_TIME));
  /* A stream that failed fails the timeline, with its record. */
  OK(dgpuStreamWaitTimeline(stream, gate, 2));
  OK(dgpuStreamHostCallback(stream, give_up, NULL));
  OK(dgpuStreamSignalTimeline(stream, done, 6));
  OK(dgpuTimelineSignal(gate, 2));
  CHECK(DGPU_STATUS_CALLBACK_FAILED, dgpuTimelineWait(done, 5, LONG_TIME));
  MESSAGE("-77");
  OK(dgpuTimelineDestroy(gate));
  OK(dgpuTimelineDestroy(done));
  OK(dgpuContextDestroy(context));
}

static void thousand_streams_in_a_chain(void** state) {
  enum { kStreams = 1000 };
  static dgpuStream_t streams[kStreams];
  dgpuContext_t context = context_of(cpu_device(0));
  dgpuStreamOptions options = DGPU_STREAM_OPTIONS_INIT;
  dgpuEvent_t event = NULL;
  options.capacity = 4;
  OK(dgpuEventCreate(context, 0, &event));
  dgpuTimeline_t gate = NULL;
  for (int i = 0; i < kStreams; ++i) {
    OK(dgpuStreamCreate(context, cpu_device(0), &options, &streams[i]));
    if (i == 0) {
      gate = gate_on(context, streams[0]);
    } else {
      OK(dgpuStreamWaitEvent(streams[i], event));
    }
    OK(dgpuEventRecord(event, streams[i]));
  }
  CHECK(DGPU_STATUS_NOT_READY, dgpuEventQuery(event));
  OK(dgpuTimelineSignal(gate, 1));
  OK(dgpuEventSynchronize(event, LONG_TIME));
  OK(dgpuEventDestroy(event));
  OK(dgpuTimelineDestroy(gate));
  OK(dgpuContextDestroy(context));
}

/* ---- failure and reset ----------------------------------------------------------------------------------------------
 */

static void a_failed_interval_is_seen_after_reset(void** state) {
  dgpuContext_t context = context_of(cpu_device(0));
  dgpuStream_t stream = stream_on(context, cpu_device(0));
  dgpuTimeline_t gate = NULL, timeline = NULL;
  dgpuEvent_t before = NULL, inside = NULL, after = NULL;
  dgpuErrorInfo info = DGPU_ERROR_INFO_INIT;
  dgpuAddr_t memory = 0;
  uint64_t failed = 0;
  OK(dgpuStreamGetTimeline(stream, &timeline));
  OK(dgpuEventCreate(context, 0, &before));
  OK(dgpuEventCreate(context, 0, &inside));
  OK(dgpuEventCreate(context, DGPU_EVENT_TIMING, &after));
  OK(dgpuMemAlloc(context, cpu_device(0), 64, &memory));
  OK(dgpuStreamReset(stream, 0)); /* healthy: nothing to do */

  gate = gate_on(context, stream);
  OK(dgpuEventRecord(before, stream));
  OK(dgpuStreamHostCallback(stream, give_up, NULL));
  OK(dgpuStreamGetValue(stream, &failed));
  OK(dgpuMemFillAsync(stream, memory, 1, 1, 64));
  OK(dgpuEventRecord(inside, stream));
  CHECK(DGPU_STATUS_TIMEOUT, dgpuStreamReset(stream, 1000000)); /* not everything has retired */
  OK(dgpuTimelineSignal(gate, 1));
  CHECK(DGPU_STATUS_CALLBACK_FAILED, dgpuStreamSynchronize(stream, LONG_TIME));
  assert_string_equal(last_error().function, "dgpuStreamHostCallback");
  assert_int_equal(last_error().value, failed);
  assert_int_equal(last_error().native_code, -77);
  CHECK(DGPU_STATUS_CALLBACK_FAILED, dgpuStreamQuery(stream));
  OK(dgpuStreamGetError(stream, &info));
  assert_int_equal(info.status, DGPU_STATUS_CALLBACK_FAILED);
  CHECK(DGPU_STATUS_STREAM_FAILED, dgpuMemFillAsync(stream, memory, 1, 1, 64));
  MESSAGE("dgpuStreamReset");
  OK(dgpuEventRecord(inside, stream)); /* accepted on a failed stream */
  OK(dgpuEventRecord(after, stream));
  CHECK(DGPU_STATUS_CALLBACK_FAILED, dgpuEventSynchronize(after, LONG_TIME));

  OK(dgpuStreamReset(stream, LONG_TIME));
  OK(dgpuStreamGetError(stream, &info));
  assert_int_equal(info.status, 0);
  for (int i = 0; i < 5; ++i) OK(dgpuMemFillAsync(stream, memory, 1, 1, 64));
  OK(dgpuEventRecord(after, stream));
  OK(dgpuStreamSynchronize(stream, LONG_TIME));
  OK(dgpuStreamQuery(stream));
  OK(dgpuEventQuery(before));
  OK(dgpuEventQuery(after));
  CHECK(DGPU_STATUS_CALLBACK_FAILED, dgpuEventQuery(inside));
  CHECK(DGPU_STATUS_CALLBACK_FAILED, dgpuTimelineQuery(timeline, failed));
  MESSAGE("-77");
  OK(dgpuTimelineQuery(timeline, failed - 1));
  /* Whoever waits for a failed value fails with its record, also now. */
  dgpuStream_t other = stream_on(context, cpu_device(0));
  OK(dgpuStreamWaitEvent(other, inside));
  CHECK(DGPU_STATUS_CALLBACK_FAILED, dgpuStreamSynchronize(other, LONG_TIME));
  OK(dgpuEventDestroy(before));
  OK(dgpuEventDestroy(inside));
  OK(dgpuEventDestroy(after));
  OK(dgpuTimelineDestroy(gate));
  OK(dgpuTimelineDestroy(timeline));
  OK(dgpuContextDestroy(context));
}

static void a_failed_stream_leaks_no_memory(void** state) {
  dgpuContext_t context = context_of(cpu_device(0));
  dgpuStream_t stream = stream_on(context, cpu_device(0));
  dgpuMemStats stats = DGPU_MEM_STATS_INIT;
  for (int round = 0; round < 20; ++round) {
    dgpuAddr_t sync = 0, async = 0;
    dgpuTimeline_t gate = gate_on(context, stream);
    OK(dgpuMemAlloc(context, cpu_device(0), 100 << 20, &sync)); /* two of them do not fit the device's 256 MiB twice */
    OK(dgpuMemAllocAsync(stream, 100 << 20, &async));
    OK(dgpuStreamHostCallback(stream, give_up, NULL));
    OK(dgpuMemFreeAsync(stream, async)); /* not failed yet */
    OK(dgpuTimelineSignal(gate, 1));
    CHECK(DGPU_STATUS_CALLBACK_FAILED, dgpuStreamSynchronize(stream, LONG_TIME));
    OK(dgpuMemFreeAsync(stream, sync)); /* on the failed stream */
    OK(dgpuStreamReset(stream, LONG_TIME));
    OK(dgpuTimelineDestroy(gate));
  }
  OK(dgpuMemGetStats(context, cpu_device(0), &stats));
  assert_int_equal(stats.used_bytes, 0);
  assert_int_equal(stats.allocations, 0);
  assert_int_equal(stats.pending_bytes, 0);
  assert_int_equal(stats.peak_used_bytes, 200 << 20);
  OK(dgpuContextDestroy(context));
}

static void a_wait_for_a_failed_timeline_fails_the_stream(void** state) {
  dgpuContext_t context = context_of(cpu_device(0));
  dgpuStream_t stream = stream_on(context, cpu_device(0));
  dgpuTimeline_t gate = gate_on(context, stream);
  atomic_int told = 1;
  OK(dgpuStreamHostCallback(stream, keep_status, &told));
  OK(dgpuTimelineFail(gate, 1, DGPU_STATUS_DATA_OUT_OF_RANGE, "index 9 of 8"));
  CHECK(DGPU_STATUS_DATA_OUT_OF_RANGE, dgpuStreamSynchronize(stream, LONG_TIME));
  MESSAGE("index 9 of 8");
  assert_int_equal(atomic_load(&told), DGPU_STATUS_DATA_OUT_OF_RANGE);
  OK(dgpuTimelineDestroy(gate));
  OK(dgpuContextDestroy(context));
}

/* ---- callbacks ------------------------------------------------------------------------------------------------------
 */

typedef struct {
  dgpuStream_t stream;
  dgpuEvent_t event;
  dgpuContext_t context;
  dgpuStatus_t answers[6];
} Inside;

static dgpuStatus_t try_to_block(dgpuStatus_t status, void* user) {
  Inside* inside = user;
  dgpuAddr_t address = 0;
  (void)status;
  inside->answers[0] = dgpuStreamSynchronize(inside->stream, 0);
  inside->answers[1] = dgpuEventSynchronize(inside->event, 0);
  inside->answers[2] = dgpuContextSynchronize(inside->context, DGPU_TIMEOUT_INFINITE);
  inside->answers[3] = dgpuStreamReset(inside->stream, DGPU_TIMEOUT_INFINITE);
  inside->answers[4] = dgpuShutdown();
  inside->answers[5] = dgpuMemAllocAsync(inside->stream, 64, &address); /* does not block: permitted */
  (void)dgpuMemFreeAsync(inside->stream, address);
  return DGPU_STATUS_SUCCESS;
}

static void blocking_calls_are_refused_inside_callbacks(void** state) {
  dgpuContext_t context = context_of(cpu_device(0));
  Inside inside = {stream_on(context, cpu_device(0)), NULL, context, {0}};
  OK(dgpuEventCreate(context, 0, &inside.event));
  OK(dgpuEventRecord(inside.event, inside.stream));
  OK(dgpuStreamHostCallback(inside.stream, try_to_block, &inside));
  OK(dgpuStreamSynchronize(inside.stream, LONG_TIME));
  for (int i = 0; i < 5; ++i) assert_int_equal(inside.answers[i], DGPU_STATUS_NOT_PERMITTED);
  assert_int_equal(inside.answers[5], DGPU_STATUS_SUCCESS);
  OK(dgpuEventDestroy(inside.event));
  OK(dgpuContextDestroy(context));
}

static void callbacks_run_once_in_order(void** state) {
  dgpuContext_t context = context_of(cpu_device(0));
  dgpuStream_t stream = stream_on(context, cpu_device(0));
  atomic_int calls = 0, seen = 0;
  dgpuTimeline_t gate = gate_on(context, stream);
  for (int i = 0; i < 100; ++i) OK(dgpuStreamHostCallback(stream, count_calls, &calls));
  OK(dgpuTimelineSignal(gate, 1));
  OK(dgpuStreamSynchronize(stream, LONG_TIME));
  assert_int_equal(atomic_load(&calls), 100);
  /* Of a destroyed stream too. */
  OK(dgpuTimelineDestroy(gate));
  gate = gate_on(context, stream);
  OK(dgpuStreamHostCallback(stream, count_calls, &calls));
  OK(dgpuStreamHostCallback(stream, keep_status, &seen));
  OK(dgpuStreamDestroy(stream));
  atomic_store(&seen, 1);
  OK(dgpuTimelineSignal(gate, 1));
  while (atomic_load(&seen) == 1) usleep(100);
  assert_int_equal(atomic_load(&calls), 101);
  assert_int_equal(atomic_load(&seen), DGPU_STATUS_SUCCESS);
  OK(dgpuTimelineDestroy(gate));
  OK(dgpuContextDestroy(context));
}

/* ---- timelines that nobody can move any more ------------------------------------------------------------------------
 */

struct waiter {
  dgpuTimeline_t timeline;
  dgpuStream_t stream;
  atomic_int inside;
  dgpuStatus_t status;
  char message[512];
};
static void* wait_for_ever(void* user) {
  struct waiter* waiter = user;
  atomic_store(&waiter->inside, 1);
  waiter->status = waiter->stream ? dgpuStreamSynchronize(waiter->stream, DGPU_TIMEOUT_INFINITE)
                                  : dgpuTimelineWait(waiter->timeline, 1, DGPU_TIMEOUT_INFINITE);
  if (waiter->status < 0) memcpy(waiter->message, last_error().message, sizeof waiter->message);
  return NULL;
}
static pthread_t start_waiting(struct waiter* waiter) {
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, wait_for_ever, waiter), 0);
  while (!atomic_load(&waiter->inside)) usleep(1000);
  usleep(20000); /* usually inside the wait by now; the result is the same if not, but for the handle's own check */
  return thread;
}

/* By its own destroy function, or with its context. */
static void a_destroyed_timeline_ends_the_waits_for_it(void** state) {
  for (int with_context = 0; with_context < 2; ++with_context) {
    dgpuContext_t context = context_of(cpu_device(0));
    struct waiter of_value = {0}, of_stream = {0};
    of_stream.stream = stream_on(context, cpu_device(0));
    of_value.timeline = gate_on(context, of_stream.stream);
    const pthread_t first = start_waiting(&of_value), second = start_waiting(&of_stream);
    if (with_context) {
      OK(dgpuContextDestroy(context));
    } else {
      OK(dgpuTimelineDestroy(of_value.timeline));
    }
    assert_int_equal(pthread_join(first, NULL), 0);
    assert_int_equal(pthread_join(second, NULL), 0);
    assert_true(of_value.status == DGPU_STATUS_CANCELLED || of_value.status == DGPU_STATUS_INVALID_HANDLE);
    assert_true(of_stream.status == DGPU_STATUS_CANCELLED || of_stream.status == DGPU_STATUS_INVALID_HANDLE);
    if (of_stream.status == DGPU_STATUS_CANCELLED) assert_non_null(strstr(of_stream.message, "destroyed at value 0"));
    if (with_context) continue;
    OK(dgpuStreamReset(of_stream.stream, LONG_TIME));
    OK(dgpuStreamQuery(of_stream.stream)); /* what was reset is told no more, also before anything new was submitted */
    OK(dgpuStreamSynchronize(of_stream.stream, LONG_TIME));
    OK(dgpuContextDestroy(context));
  }
}

/* A queued command will still move it: what it reaches succeeds, what it does not reach fails. */
static void a_destroyed_timeline_is_moved_by_what_is_queued(void** state) {
  dgpuContext_t context = context_of(cpu_device(0));
  dgpuStream_t mover = stream_on(context, cpu_device(0)), reached = stream_on(context, cpu_device(0)),
               missed = stream_on(context, cpu_device(0));
  dgpuTimeline_t moved = NULL, gate = gate_on(context, mover);
  OK(dgpuTimelineCreate(context, 0, &moved));
  OK(dgpuStreamSignalTimeline(mover, moved, 5));
  OK(dgpuStreamSignalTimeline(mover, moved, 7));
  OK(dgpuStreamWaitTimeline(reached, moved, 7));
  OK(dgpuStreamWaitTimeline(missed, moved, 8));
  OK(dgpuTimelineDestroy(moved));
  CHECK(DGPU_STATUS_NOT_READY, dgpuStreamQuery(reached));
  CHECK(DGPU_STATUS_NOT_READY, dgpuStreamQuery(missed));
  OK(dgpuTimelineSignal(gate, 1));
  OK(dgpuStreamSynchronize(reached, LONG_TIME));
  OK(dgpuStreamSynchronize(mover, LONG_TIME));
  CHECK(DGPU_STATUS_CANCELLED, dgpuStreamSynchronize(missed, LONG_TIME));
  MESSAGE("destroyed at value 7");
  OK(dgpuContextDestroy(context));
}

/* ---- events ---------------------------------------------------------------------------------------------------------
 */

static void events_measure_time(void** state) {
  dgpuContext_t context = context_of(cpu_device(0));
  dgpuStream_t stream = stream_on(context, cpu_device(0));
  dgpuEvent_t start = NULL, end = NULL, plain = NULL;
  dgpuTimeline_t point = NULL;
  dgpuAddr_t memory = 0;
  int64_t ns = 0;
  uint64_t value = 0;
  OK(dgpuEventCreate(context, DGPU_EVENT_TIMING, &start));
  OK(dgpuEventCreate(context, DGPU_EVENT_TIMING, &end));
  OK(dgpuEventCreate(context, 0, &plain));
  OK(dgpuMemAlloc(context, cpu_device(0), 64 << 20, &memory));
  CHECK(DGPU_STATUS_INVALID_STATE, dgpuEventElapsed(start, end, &ns));
  OK(dgpuEventRecord(start, stream));
  OK(dgpuMemFillAsync(stream, memory, 7, 1, 64 << 20));
  dgpuTimeline_t gate = gate_on(context, stream);
  OK(dgpuEventRecord(end, stream));
  CHECK(DGPU_STATUS_NOT_READY, dgpuEventElapsed(start, end, &ns));
  OK(dgpuTimelineSignal(gate, 1));
  OK(dgpuEventSynchronize(end, LONG_TIME));
  OK(dgpuEventElapsed(start, end, &ns));
  assert_true(ns > 0); /* 64 MiB were written in between */
  int64_t back = 0;
  OK(dgpuEventElapsed(end, start, &back));
  assert_true(back == -ns);
  OK(dgpuEventRecord(plain, stream));
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuEventElapsed(plain, end, &ns));
  MESSAGE("DGPU_EVENT_TIMING");
  OK(dgpuEventGetPoint(end, &point, &value));
  OK(dgpuTimelineQuery(point, value));
  OK(dgpuTimelineDestroy(point));
  OK(dgpuTimelineDestroy(gate));
  OK(dgpuEventDestroy(start));
  OK(dgpuEventDestroy(end));
  OK(dgpuEventDestroy(plain));
  OK(dgpuContextDestroy(context));
}

/* A record that finds no room changes nothing: the event keeps its time. */
static void a_refused_record_keeps_the_time(void** state) {
  dgpuContext_t context = context_of(cpu_device(0));
  dgpuStreamOptions options = DGPU_STREAM_OPTIONS_INIT;
  dgpuStream_t stream = NULL;
  dgpuEvent_t event = NULL;
  int64_t ns = 1;
  options.capacity = 2;
  OK(dgpuStreamCreate(context, cpu_device(0), &options, &stream));
  OK(dgpuEventCreate(context, DGPU_EVENT_TIMING, &event));
  for (int round = 0; round < 3; ++round) {
    OK(dgpuEventRecord(event, stream));
    OK(dgpuEventSynchronize(event, LONG_TIME));
    dgpuTimeline_t gate = gate_on(context, stream);
    dgpuStatus_t filled = DGPU_STATUS_SUCCESS;
    while (filled == DGPU_STATUS_SUCCESS) filled = dgpuStreamWaitTimeline(stream, gate, 1);
    CHECK(DGPU_STATUS_QUEUE_FULL, filled);
    CHECK(DGPU_STATUS_QUEUE_FULL, dgpuEventRecord(event, stream));
    OK(dgpuEventElapsed(event, event, &ns));
    assert_int_equal(ns, 0);
    OK(dgpuTimelineSignal(gate, 1));
    OK(dgpuStreamSynchronize(stream, LONG_TIME));
    OK(dgpuTimelineDestroy(gate));
  }
  OK(dgpuContextDestroy(context));
}

struct shared_event {
  dgpuStream_t stream;
  dgpuEvent_t event;
  atomic_int stop;
};
static void* record_for_ever(void* user) {
  struct shared_event* shared = user;
  while (!atomic_load(&shared->stop)) {
    const dgpuStatus_t status = dgpuEventRecord(shared->event, shared->stream);
    if (status < 0) return (void*)(intptr_t)status;
  }
  return NULL;
}
static void events_are_read_while_they_are_recorded(void** state) {
  dgpuContext_t context = context_of(cpu_device(0));
  struct shared_event shared = {.stream = stream_on(context, cpu_device(0))};
  pthread_t threads[2];
  OK(dgpuEventCreate(context, DGPU_EVENT_TIMING, &shared.event));
  OK(dgpuEventRecord(shared.event, shared.stream));
  for (int i = 0; i < 2; ++i) assert_int_equal(pthread_create(&threads[i], NULL, record_for_ever, &shared), 0);
  for (int i = 0; i < 20000; ++i) {
    int64_t ns = 0;
    const dgpuStatus_t status = dgpuEventElapsed(shared.event, shared.event, &ns);
    assert_true(status == DGPU_STATUS_SUCCESS || status == DGPU_STATUS_NOT_READY);
  }
  atomic_store(&shared.stop, 1);
  for (int i = 0; i < 2; ++i) {
    void* result = NULL;
    assert_int_equal(pthread_join(threads[i], &result), 0);
    assert_null(result);
  }
  OK(dgpuContextDestroy(context));
}

/* ---- life time ------------------------------------------------------------------------------------------------------
 */

static void parents_go_before_children(void** state) {
  dgpuContext_t context = context_of(cpu_device(0));
  dgpuStream_t stream = stream_on(context, cpu_device(0));
  dgpuTimeline_t timeline = NULL, gate = gate_on(context, stream);
  dgpuEvent_t event = NULL;
  dgpuAddr_t memory = 0;
  OK(dgpuEventCreate(context, 0, &event));
  OK(dgpuStreamGetTimeline(stream, &timeline));
  OK(dgpuMemAlloc(context, cpu_device(0), 4096, &memory));
  OK(dgpuMemFillAsync(stream, memory, 1, 1, 4096));
  OK(dgpuTimelineSignal(gate, 1)); /* may still run */
  OK(dgpuContextDestroy(context));
  CHECK(DGPU_STATUS_INVALID_HANDLE, dgpuStreamSynchronize(stream, 0));
  CHECK(DGPU_STATUS_INVALID_HANDLE, dgpuStreamDestroy(stream));
  CHECK(DGPU_STATUS_INVALID_HANDLE, dgpuEventDestroy(event));
  CHECK(DGPU_STATUS_INVALID_HANDLE, dgpuTimelineDestroy(timeline));
  CHECK(DGPU_STATUS_INVALID_HANDLE, dgpuTimelineDestroy(gate));
  CHECK(DGPU_STATUS_INVALID_HANDLE, dgpuMemFree(context, memory));
  CHECK(DGPU_STATUS_INVALID_HANDLE, dgpuContextDestroy(context));
}

static void contexts_do_not_mix(void** state) {
  dgpuContext_t a = context_of(cpu_device(0)), b = context_of(cpu_device(0));
  dgpuStream_t on_a = stream_on(a, cpu_device(0)), on_b = stream_on(b, cpu_device(0)), none = NULL;
  dgpuEvent_t event = NULL;
  dgpuTimeline_t timeline = NULL;
  dgpuAddr_t memory = 0;
  OK(dgpuEventCreate(b, 0, &event));
  OK(dgpuTimelineCreate(b, 0, &timeline));
  OK(dgpuMemAlloc(b, cpu_device(0), 64, &memory));
  CHECK(DGPU_STATUS_CONTEXT_MISMATCH, dgpuEventRecord(event, on_a));
  OK(dgpuEventRecord(event, on_b));
  CHECK(DGPU_STATUS_CONTEXT_MISMATCH, dgpuStreamWaitEvent(on_a, event));
  CHECK(DGPU_STATUS_CONTEXT_MISMATCH, dgpuStreamWaitTimeline(on_a, timeline, 0));
  CHECK(DGPU_STATUS_CONTEXT_MISMATCH, dgpuStreamSignalTimeline(on_a, timeline, 1));
  CHECK(DGPU_STATUS_CONTEXT_MISMATCH, dgpuMemFillAsync(on_a, memory, 0, 1, 64));
  CHECK(DGPU_STATUS_CONTEXT_MISMATCH, dgpuMemFree(a, memory));
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuStreamCreate(a, cpu_device(1), NULL, &none));
  assert_null(none);
  OK(dgpuContextDestroy(a));
  OK(dgpuContextDestroy(b));
}

static void bad_options_are_refused(void** state) {
  dgpuDevice_t device = cpu_device(0);
  const dgpuDevice_t twice[2] = {device, device};
  dgpuContext_t context = (dgpuContext_t)(uintptr_t)1;
  dgpuContextOptions wrong = DGPU_CONTEXT_OPTIONS_INIT;
  dgpuStreamOptions options = DGPU_STREAM_OPTIONS_INIT;
  dgpuStream_t stream = NULL;
  dgpuEvent_t event = NULL;
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuContextCreate(twice, 2, NULL, &context));
  assert_null(context);
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuContextCreate(&device, 0, NULL, &context));
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuContextCreate(NULL, 1, NULL, &context));
  wrong.flags = 0x80;
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuContextCreate(&device, 1, &wrong, &context));
  context = context_of(device);
  options.capacity = 1 << 30;
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuStreamCreate(context, device, &options, &stream));
  options.capacity = 0;
  options.flags = 0x80;
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuStreamCreate(context, device, &options, &stream));
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuEventCreate(context, 8, &event));
  OK(dgpuContextDestroy(context));
}

static void no_helping_still_finishes(void** state) {
  dgpuDevice_t device = cpu_device(0);
  dgpuContextOptions options = DGPU_CONTEXT_OPTIONS_INIT;
  dgpuContext_t context = NULL;
  dgpuAddr_t memory = 0;
  options.flags = DGPU_CONTEXT_NO_HELPING;
  OK(dgpuContextCreate(&device, 1, &options, &context));
  dgpuStream_t stream = stream_on(context, device);
  OK(dgpuMemAlloc(context, device, 1 << 20, &memory));
  for (int i = 0; i < 100; ++i) {
    OK(dgpuMemFillAsync(stream, memory, 1, 1, 1 << 20));
    OK(dgpuStreamSynchronize(stream, LONG_TIME));
  }
  OK(dgpuContextDestroy(context));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(user_timeline_moves_and_fails),
      cmocka_unit_test(a_blocked_wait_is_woken_by_a_signal),
      cmocka_unit_test(values_count_commands),
      cmocka_unit_test(work_behind_a_gate_waits),
      cmocka_unit_test(a_full_queue_says_so),
      cmocka_unit_test(a_blocking_stream_waits_for_room),
      cmocka_unit_test(streams_wait_for_each_other_across_devices),
      cmocka_unit_test(streams_of_different_backends_wait_for_each_other),
      cmocka_unit_test(a_stream_signals_a_user_timeline),
      cmocka_unit_test(thousand_streams_in_a_chain),
      cmocka_unit_test(a_failed_interval_is_seen_after_reset),
      cmocka_unit_test(a_failed_stream_leaks_no_memory),
      cmocka_unit_test(a_wait_for_a_failed_timeline_fails_the_stream),
      cmocka_unit_test(blocking_calls_are_refused_inside_callbacks),
      cmocka_unit_test(callbacks_run_once_in_order),
      cmocka_unit_test(a_destroyed_timeline_ends_the_waits_for_it),
      cmocka_unit_test(a_destroyed_timeline_is_moved_by_what_is_queued),
      cmocka_unit_test(events_measure_time),
      cmocka_unit_test(a_refused_record_keeps_the_time),
      cmocka_unit_test(events_are_read_while_they_are_recorded),
      cmocka_unit_test(parents_go_before_children),
      cmocka_unit_test(contexts_do_not_mix),
      cmocka_unit_test(bad_options_are_refused),
      cmocka_unit_test(no_helping_still_finishes),
  };
  return cmocka_run_group_tests(tests, setup_devices, teardown_library);
}
