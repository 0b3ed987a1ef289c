/* The stream engine against a backend that runs, fails, refuses and vanishes on demand, and whose memory the host
 * cannot touch. */
#include <dlfcn.h>
#include <stdatomic.h>
#include <unistd.h>

#include "devices.h"

static struct {
  dgpuBackend_t backend;
  dgpuDevice_t device;
  void* code;
  int (*run)(int);
  int (*waiting)(void);
  void (*run_at_once)(int);
  void (*fail_next)(dgpuStatus_t);
  void (*refuse_next)(dgpuStatus_t);
  void (*misalign_next)(int);
  void (*report_twice)(int);
  void (*lose)(const char*);
  void (*lose_in_submit)(void);
  void (*drop)(void);
  int (*live_queues)(void);
  int (*live_blocks)(void);
  int (*resets)(void);
} manual;

#define FIND(name) *(void**)&manual.name = dlsym(manual.code, "manual_" #name)

static int load_manual(void** state) {
  char path[512];
  uint32_t count = 0;
  snprintf(path, sizeof(path), "%s/manual.so", need_env("DGPU_TEST_PLUGINS"));
  if (setup_devices(state)) return -1;
  OK(dgpuBackendLoad(path, &manual.backend));
  OK(dgpuDeviceCount(&count));
  OK(dgpuDeviceGet(count - 1, &manual.device));
  manual.code = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  assert_non_null(manual.code);
  FIND(run);
  FIND(waiting);
  FIND(run_at_once);
  FIND(fail_next);
  FIND(refuse_next);
  FIND(misalign_next);
  FIND(report_twice);
  FIND(lose);
  FIND(lose_in_submit);
  FIND(drop);
  FIND(live_queues);
  FIND(live_blocks);
  FIND(resets);
  return 0;
}

/* Everything that was made on the device is given back, whatever went wrong on it. */
static int shut_down(void** state) {
  (void)state;
  OK(dgpuShutdown());
  assert_int_equal(manual.live_queues(), 0);
  assert_int_equal(manual.live_blocks(), 0);
  dlclose(manual.code);
  return 0;
}

/* What a test before this one left to be released by another thread is gone. */
static int alone(void** state) {
  (void)state;
  for (int ms = 0; manual.live_blocks() || manual.live_queues(); ++ms) {
    if (ms == 60000) return -1;
    usleep(1000);
  }
  return 0;
}

static dgpuStatus_t keep_status(dgpuStatus_t status, void* user) {
  atomic_store((atomic_int*)user, status);
  return DGPU_STATUS_SUCCESS;
}

static void failures_carry_their_record(void** state) {
  dgpuContext_t context = context_of(manual.device);
  dgpuStream_t stream = stream_on(context, manual.device);
  dgpuAddr_t memory = 0;
  dgpuTimeline_t timeline = NULL;
  OK(dgpuStreamGetTimeline(stream, &timeline));
  OK(dgpuMemAlloc(context, manual.device, 64, &memory));
  for (int i = 0; i < 5; ++i) OK(dgpuMemFillAsync(stream, memory, 1, 1, 64));
  assert_int_equal(manual.waiting(), 5);
  CHECK(DGPU_STATUS_NOT_READY, dgpuStreamQuery(stream));
  assert_int_equal(manual.run(2), 2);
  manual.fail_next(DGPU_STATUS_COMMAND_FAILED);
  assert_int_equal(manual.run(3), 3);
  CHECK(DGPU_STATUS_COMMAND_FAILED, dgpuStreamSynchronize(stream, LONG_TIME));
  MESSAGE("the manual device stumbled");
  const dgpuErrorInfo info = last_error();
  assert_int_equal(info.value, 3);
  assert_int_equal(info.native_code, 42);
  assert_string_equal(info.function, "dgpuMemFillAsync");
  assert_string_equal(info.backend, "manual");
  OK(dgpuTimelineQuery(timeline, 2));
  for (uint64_t v = 3; v <= 5; ++v) CHECK(DGPU_STATUS_COMMAND_FAILED, dgpuTimelineQuery(timeline, v));
  const int resets = manual.resets();
  OK(dgpuStreamReset(stream, LONG_TIME));
  assert_int_equal(manual.resets(), resets + 1);
  OK(dgpuMemFillAsync(stream, memory, 1, 1, 64));
  assert_int_equal(manual.run(100), 1);
  OK(dgpuStreamSynchronize(stream, LONG_TIME));
  CHECK(DGPU_STATUS_COMMAND_FAILED, dgpuTimelineQuery(timeline, 5)); /* the last of the interval */
  OK(dgpuTimelineQuery(timeline, 6));
  OK(dgpuContextDestroy(context));
}

static void a_refused_submit_fails_the_stream(void** state) {
  dgpuContext_t context = context_of(manual.device);
  dgpuStream_t stream = stream_on(context, manual.device);
  dgpuAddr_t memory = 0;
  OK(dgpuMemAlloc(context, manual.device, 64, &memory));
  manual.refuse_next(DGPU_STATUS_OUT_OF_HOST_MEMORY);
  OK(dgpuMemFillAsync(stream, memory, 1, 1, 64)); /* the command fails, not the call */
  CHECK(DGPU_STATUS_OUT_OF_HOST_MEMORY, dgpuStreamSynchronize(stream, LONG_TIME));
  MESSAGE("nothing today");
  OK(dgpuStreamReset(stream, LONG_TIME));
  OK(dgpuMemFillAsync(stream, memory, 1, 1, 64));
  assert_int_equal(manual.run(100), 1);
  OK(dgpuStreamSynchronize(stream, LONG_TIME));
  OK(dgpuContextDestroy(context));
}

/* Neither taken nor refused: nobody would ever report the command. */
static void a_submit_that_answers_nothing_known_fails_the_stream(void** state) {
  dgpuContext_t context = context_of(manual.device);
  dgpuStream_t stream = stream_on(context, manual.device);
  dgpuAddr_t memory = 0;
  OK(dgpuMemAlloc(context, manual.device, 64, &memory));
  manual.refuse_next(DGPU_STATUS_QUEUE_FULL);
  OK(dgpuMemFillAsync(stream, memory, 1, 1, 64));
  CHECK(DGPU_STATUS_INTERNAL, dgpuStreamSynchronize(stream, LONG_TIME));
  MESSAGE("DGPU_STATUS_QUEUE_FULL");
  OK(dgpuContextDestroy(context));
}

static void a_misaligned_block_is_refused(void** state) {
  dgpuContext_t context = context_of(manual.device);
  dgpuAddr_t memory = 0;
  manual.misalign_next(8);
  CHECK(DGPU_STATUS_INTERNAL, dgpuMemAlloc(context, manual.device, 64, &memory));
  MESSAGE("aligned to 256");
  assert_int_equal(manual.live_blocks(), 0);
  OK(dgpuMemAlloc(context, manual.device, 64, &memory));
  OK(dgpuContextDestroy(context));
}

static atomic_int messages;
static void count_messages(uint32_t level, const char* component, const char* message, void* user) {
  if (strstr(message, "out of order")) atomic_fetch_add(&messages, 1);
}
static void doubled_reports_do_not_flood_the_log(void** state) {
  dgpuContext_t context = context_of(manual.device);
  dgpuStream_t stream = stream_on(context, manual.device);
  dgpuAddr_t memory = 0;
  OK(dgpuMemAlloc(context, manual.device, 64, &memory));
  OK(dgpuLogSetCallback(count_messages, NULL));
  atomic_store(&messages, 0);
  manual.report_twice(1);
  for (int i = 0; i < 100; ++i) OK(dgpuMemFillAsync(stream, memory, 1, 1, 64));
  assert_int_equal(manual.run(100), 100);
  manual.report_twice(0);
  OK(dgpuStreamSynchronize(stream, LONG_TIME));
  OK(dgpuLogSetCallback(NULL, NULL));
  assert_in_range(atomic_load(&messages), 1, 7); /* of 100: at 1, 2, 4, ... */
  OK(dgpuContextDestroy(context));
}

static void held_back_commands_stay_in_the_core(void** state) {
  dgpuContext_t context = context_of_two(manual.device, cpu_device(0));
  dgpuStream_t stream = stream_on(context, manual.device), other = stream_on(context, cpu_device(0));
  dgpuTimeline_t gate = NULL;
  dgpuEvent_t event = NULL;
  dgpuAddr_t memory = 0, there = 0;
  unsigned char byte = 0;
  OK(dgpuTimelineCreate(context, 0, &gate));
  OK(dgpuEventCreate(context, 0, &event));
  OK(dgpuMemAlloc(context, manual.device, 64, &memory));
  OK(dgpuMemAlloc(context, cpu_device(0), 64, &there));
  OK(dgpuMemFillAsync(stream, memory, 1, 1, 64));
  OK(dgpuStreamWaitTimeline(stream, gate, 1));
  OK(dgpuMemFillAsync(stream, memory, 2, 1, 64));
  OK(dgpuEventRecord(event, stream));
  OK(dgpuStreamWaitEvent(other, event));
  OK(dgpuMemFillAsync(other, there, 3, 1, 64));
  OK(dgpuMemCopyToHostAsync(other, &byte, there, 1));
  assert_int_equal(manual.waiting(), 1);
  OK(dgpuTimelineSignal(gate, 1));
  assert_int_equal(manual.waiting(), 2); /* in order on one queue: no need to wait for the first */
  assert_int_equal(manual.run(1), 1);
  CHECK(DGPU_STATUS_TIMEOUT, dgpuStreamSynchronize(other, 10000000));
  assert_int_equal(byte, 0);
  assert_int_equal(manual.run(1), 1);
  OK(dgpuStreamSynchronize(other, LONG_TIME));
  assert_int_equal(byte, 3);
  OK(dgpuContextDestroy(context));
}

/* Nobody waits: slots are taken back when they are needed, and not before their commands were reported. */
static void a_ring_goes_round_without_a_wait(void** state) {
  dgpuContext_t context = context_of(manual.device);
  dgpuStreamOptions options = DGPU_STREAM_OPTIONS_INIT;
  dgpuStream_t stream = NULL;
  dgpuTimeline_t timeline = NULL;
  dgpuAddr_t memory = 0;
  uint64_t value = 0;
  options.capacity = 8;
  OK(dgpuStreamCreate(context, manual.device, &options, &stream));
  OK(dgpuStreamGetTimeline(stream, &timeline));
  OK(dgpuMemAlloc(context, manual.device, 64, &memory));
  for (uint64_t i = 0; i < 8; ++i) OK(dgpuMemFillAsync(stream, memory, i, 1, 64));
  for (uint64_t round = 1; round <= 50; ++round) {
    const int some = 1 + (int)(round % 8);
    assert_int_equal(dgpuMemFillAsync(stream, memory, 1, 1, 64), DGPU_STATUS_QUEUE_FULL);
    assert_int_equal(manual.run(some), some);
    OK(dgpuTimelineGetValue(timeline, &value));
    OK(dgpuTimelineQuery(timeline, value));
    for (int i = 0; i < some; ++i) OK(dgpuMemFillAsync(stream, memory, 1, 1, 64));
    assert_int_equal(dgpuTimelineQuery(timeline, value + 1), DGPU_STATUS_NOT_READY);
    assert_int_equal(manual.waiting(), 8);
  }
  assert_int_equal(manual.run(8), 8);
  OK(dgpuStreamQuery(stream));
  OK(dgpuContextDestroy(context));
}

/* Reports that moved the timeline themselves, and then one that a callback waits for. */
static void a_callback_waits_for_reports_of_both_kinds(void** state) {
  dgpuContext_t context = context_of(manual.device);
  dgpuStream_t stream = stream_on(context, manual.device);
  dgpuAddr_t memory = 0;
  OK(dgpuMemAlloc(context, manual.device, 64, &memory));
  for (int before = 0; before <= 3; ++before) {
    atomic_int told = 1;
    for (int i = 0; i < 3; ++i) OK(dgpuMemFillAsync(stream, memory, 1, 1, 64));
    assert_int_equal(manual.run(before), before);
    OK(dgpuStreamHostCallback(stream, keep_status, &told));
    OK(dgpuMemFillAsync(stream, memory, 1, 1, 64));
    if (before < 3) {
      CHECK(DGPU_STATUS_TIMEOUT, dgpuStreamSynchronize(stream, 1000000));
      assert_int_equal(atomic_load(&told), 1);
      assert_int_equal(manual.waiting(), 3 - before); /* what comes after the callback is held back */
      assert_int_equal(manual.run(3 - before), 3 - before);
    }
    for (int ms = 0; manual.waiting() == 0 && ms < 60000; ++ms) usleep(1000);
    assert_int_equal(atomic_load(&told), DGPU_STATUS_SUCCESS);
    assert_int_equal(manual.run(1), 1);
    OK(dgpuStreamSynchronize(stream, LONG_TIME));
  }
  OK(dgpuContextDestroy(context));
}

/* The last report frees a stream that nobody holds any more, whenever its handle went. */
static void a_destroyed_stream_goes_with_its_last_report(void** state) {
  dgpuContext_t context = context_of(manual.device);
  dgpuAddr_t memory = 0;
  OK(dgpuMemAlloc(context, manual.device, 64, &memory));
  for (int before = 0; before <= 3; ++before) {
    dgpuStream_t stream = stream_on(context, manual.device);
    for (int i = 0; i < 3; ++i) OK(dgpuMemFillAsync(stream, memory, 1, 1, 64));
    assert_int_equal(manual.run(before), before);
    OK(dgpuStreamDestroy(stream));
    if (before < 3) assert_int_equal(manual.live_queues(), 1);
    assert_int_equal(manual.run(3), 3 - before);
    for (int ms = 0; manual.live_queues() && ms < 60000; ++ms) usleep(1000);
    assert_int_equal(manual.live_queues(), 0);
  }
  OK(dgpuContextDestroy(context));
}

static void frees_wait_for_the_device(void** state) {
  dgpuContext_t context = context_of(manual.device);
  dgpuStream_t stream = stream_on(context, manual.device);
  dgpuMemStats stats = DGPU_MEM_STATS_INIT;
  dgpuAddr_t a = 0, b = 0;
  OK(dgpuMemAlloc(context, manual.device, 1 << 20, &a));
  OK(dgpuMemAllocAsync(stream, 1 << 20, &b));
  OK(dgpuMemFillAsync(stream, a, 1, 1, 1 << 20));
  OK(dgpuMemFree(context, a));
  OK(dgpuMemFreeAsync(stream, b));
  OK(dgpuMemTrim(context, manual.device, 0)); /* must not take what the device still writes */
  OK(dgpuMemGetStats(context, manual.device, &stats));
  assert_int_equal(stats.used_bytes, 0);
  assert_int_equal(stats.pending_bytes, 2 << 20);
  assert_true(stats.reserved_bytes >= 2 << 20);
  assert_int_equal(manual.run(100), 1);
  OK(dgpuStreamSynchronize(stream, LONG_TIME));
  OK(dgpuMemTrim(context, manual.device, 0));
  OK(dgpuMemGetStats(context, manual.device, &stats));
  assert_int_equal(stats.pending_bytes, 0);
  assert_int_equal(stats.reserved_bytes, 0);
  assert_int_equal(manual.live_blocks(), 0);
  OK(dgpuContextDestroy(context));
}

/* Neither backend can reach the other's memory, nor the host the manual one's. */
static void copies_are_staged_through_the_host(void** state) {
  enum { kBytes = 9 << 20, kRows = 33, kPitch = 300 }; /* more than two stages */
  dgpuContext_t context = context_of_two(manual.device, cpu_device(0));
  dgpuAddr_t here = 0, there = 0;
  dgpuMemInfo info = DGPU_MEM_INFO_INIT;
  static unsigned char in[kBytes], out[kBytes];
  manual.run_at_once(1);
  for (size_t i = 0; i < kBytes; ++i) in[i] = (unsigned char)((i * 2654435761u) >> 11);
  OK(dgpuMemAlloc(context, manual.device, kBytes, &here));
  OK(dgpuMemAlloc(context, cpu_device(0), kBytes, &there));
  OK(dgpuMemGetInfo(context, here, &info));
  assert_null(info.host_pointer);
  for (int turn = 0; turn < 2; ++turn) {
    dgpuStream_t stream = stream_on(context, turn ? manual.device : cpu_device(0));
    memset(out, 0, kBytes);
    OK(dgpuMemFillAsync(stream, here, 0x11, 1, kBytes));
    OK(dgpuMemFillAsync(stream, there, 0x22, 1, kBytes));
    OK(dgpuMemCopyFromHostAsync(stream, there, in, kBytes));
    OK(dgpuMemCopyAsync(stream, here + 1, there, kBytes - 1));
    OK(dgpuMemFillAsync(stream, there, 0x33, 1, kBytes));
    OK(dgpuMemCopyAsync(stream, there, here, kBytes));
    OK(dgpuMemCopyToHostAsync(stream, out, there, kBytes));
    OK(dgpuStreamSynchronize(stream, LONG_TIME));
    assert_int_equal(out[0], 0x11);
    assert_memory_equal(out + 1, in, kBytes - 1);
    OK(dgpuMemFillAsync(stream, here, 0, 1, kBytes));
    OK(dgpuMemCopy2DAsync(stream, here + 7, kPitch, there + 1, 256, 200, kRows));
    OK(dgpuMemCopyToHostAsync(stream, out, here, kRows * kPitch));
    OK(dgpuStreamSynchronize(stream, LONG_TIME));
    for (size_t row = 0; row < kRows - 1; ++row) {
      assert_memory_equal(out + 7 + row * kPitch, in + row * 256, 200);
      assert_int_equal(out[7 + row * kPitch + 200], 0);
    }
    OK(dgpuStreamDestroy(stream));
  }
  manual.run_at_once(0);
  OK(dgpuContextDestroy(context));
}

static void a_failing_staged_copy_fails_its_stream(void** state) {
  dgpuContext_t context = context_of_two(manual.device, cpu_device(0));
  dgpuStream_t stream = stream_on(context, cpu_device(0));
  dgpuAddr_t here = 0, there = 0;
  manual.run_at_once(1);
  OK(dgpuMemAlloc(context, manual.device, 64, &here));
  OK(dgpuMemAlloc(context, cpu_device(0), 64, &there));
  manual.fail_next(DGPU_STATUS_COMMAND_FAILED);
  OK(dgpuMemCopyAsync(stream, there, here, 64));
  CHECK(DGPU_STATUS_COMMAND_FAILED, dgpuStreamSynchronize(stream, LONG_TIME));
  MESSAGE("stumbled");
  OK(dgpuStreamReset(stream, LONG_TIME));
  OK(dgpuMemCopyAsync(stream, there, here, 64));
  OK(dgpuStreamSynchronize(stream, LONG_TIME));
  manual.run_at_once(0);
  OK(dgpuContextDestroy(context));
}

static void a_lost_device_fails_everything_at_once(void** state) {
  dgpuContext_t context = context_of_two(manual.device, cpu_device(0));
  dgpuStream_t stream = stream_on(context, manual.device), healthy = stream_on(context, cpu_device(0));
  dgpuStream_t none = NULL;
  dgpuEvent_t event = NULL;
  dgpuAddr_t memory = 0, other = 0, more = 0;
  dgpuMemStats stats = DGPU_MEM_STATS_INIT;
  atomic_int told = 1;
  OK(dgpuEventCreate(context, 0, &event));
  OK(dgpuMemAlloc(context, manual.device, 4096, &memory));
  OK(dgpuMemAlloc(context, cpu_device(0), 4096, &other));
  for (int i = 0; i < 3; ++i) OK(dgpuMemFillAsync(stream, memory, 1, 1, 4096));
  OK(dgpuStreamHostCallback(stream, keep_status, &told));
  OK(dgpuEventRecord(event, stream));
  OK(dgpuStreamWaitEvent(healthy, event));
  assert_int_equal(manual.run(1), 1);
  manual.lose("the bus is on fire");
  CHECK(DGPU_STATUS_DEVICE_LOST, dgpuStreamSynchronize(stream, LONG_TIME)); /* two commands are still out */
  MESSAGE("the bus is on fire");
  CHECK(DGPU_STATUS_DEVICE_LOST, dgpuEventSynchronize(event, LONG_TIME));
  CHECK(DGPU_STATUS_DEVICE_LOST, dgpuStreamSynchronize(healthy, LONG_TIME));
  while (atomic_load(&told) == 1) usleep(100);
  assert_int_equal(atomic_load(&told), DGPU_STATUS_DEVICE_LOST);
  CHECK(DGPU_STATUS_DEVICE_LOST, dgpuMemFillAsync(stream, memory, 1, 1, 64));
  CHECK(DGPU_STATUS_DEVICE_LOST, dgpuStreamReset(stream, LONG_TIME));
  CHECK(DGPU_STATUS_DEVICE_LOST, dgpuMemAlloc(context, manual.device, 64, &more));
  CHECK(DGPU_STATUS_DEVICE_LOST, dgpuStreamCreate(context, manual.device, NULL, &none));
  OK(dgpuEventRecord(event, stream));
  CHECK(DGPU_STATUS_DEVICE_LOST, dgpuEventQuery(event));
  /* Memory that it may still write is not given away. */
  OK(dgpuMemFree(context, memory));
  OK(dgpuMemTrim(context, manual.device, 0));
  OK(dgpuMemGetStats(context, manual.device, &stats));
  assert_int_equal(stats.pending_bytes, 4096);
  assert_int_equal(manual.live_blocks(), 1);
  /* The rest of the context lives on. */
  OK(dgpuStreamReset(healthy, LONG_TIME));
  OK(dgpuMemFillAsync(healthy, other, 1, 1, 4096));
  OK(dgpuStreamSynchronize(healthy, LONG_TIME));
  /* One late report, one that never comes. */
  assert_int_equal(manual.run(1), 1);
  manual.drop();
  OK(dgpuContextDestroy(context));
}

/* The pump that hands the commands over is the one that learns of the loss. */
static void a_device_lost_inside_a_submit_fails_what_it_took(void** state) {
  dgpuContext_t context = context_of(manual.device);
  dgpuStream_t stream = stream_on(context, manual.device), idle = stream_on(context, manual.device);
  dgpuTimeline_t timeline = NULL;
  dgpuAddr_t memory = 0;
  OK(dgpuStreamGetTimeline(stream, &timeline));
  OK(dgpuMemAlloc(context, manual.device, 64, &memory));
  OK(dgpuMemFillAsync(stream, memory, 1, 1, 64));
  assert_int_equal(manual.run(1), 1);
  manual.lose_in_submit();
  OK(dgpuMemFillAsync(stream, memory, 2, 1, 64));
  OK(dgpuTimelineQuery(timeline, 1));
  CHECK(DGPU_STATUS_DEVICE_LOST, dgpuTimelineQuery(timeline, 2));
  MESSAGE("lost in a submit");
  CHECK(DGPU_STATUS_DEVICE_LOST, dgpuStreamSynchronize(stream, LONG_TIME));
  OK(dgpuStreamSynchronize(idle, LONG_TIME)); /* nothing of it was lost */
  OK(dgpuStreamQuery(idle));
  manual.drop();
  OK(dgpuContextDestroy(context));
}

/* What the device still held then did not run either, whatever had failed behind it. */
static void loss_after_a_failure_fails_what_stands_before_it(void** state) {
  dgpuContext_t context = context_of(manual.device);
  dgpuStream_t stream = stream_on(context, manual.device);
  dgpuTimeline_t timeline = NULL, gate = NULL;
  dgpuAddr_t memory = 0;
  OK(dgpuStreamGetTimeline(stream, &timeline));
  OK(dgpuTimelineCreate(context, 0, &gate));
  OK(dgpuMemAlloc(context, manual.device, 64, &memory));
  OK(dgpuMemFillAsync(stream, memory, 1, 1, 64));
  OK(dgpuMemFillAsync(stream, memory, 2, 1, 64));
  OK(dgpuStreamWaitTimeline(stream, gate, 1));
  OK(dgpuMemFillAsync(stream, memory, 3, 1, 64));
  OK(dgpuTimelineFail(gate, 1, DGPU_STATUS_COMMAND_FAILED, "the gate fell"));
  assert_int_equal(manual.run(1), 1);
  manual.lose("gone with one command");
  OK(dgpuTimelineQuery(timeline, 1));
  CHECK(DGPU_STATUS_DEVICE_LOST, dgpuTimelineQuery(timeline, 2));
  MESSAGE("gone with one command");
  for (uint64_t v = 3; v <= 4; ++v) CHECK(DGPU_STATUS_COMMAND_FAILED, dgpuTimelineQuery(timeline, v));
  MESSAGE("the gate fell");
  manual.drop();
  OK(dgpuContextDestroy(context));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(failures_carry_their_record, alone),
      cmocka_unit_test_setup(a_refused_submit_fails_the_stream, alone),
      cmocka_unit_test_setup(a_submit_that_answers_nothing_known_fails_the_stream, alone),
      cmocka_unit_test_setup(a_misaligned_block_is_refused, alone),
      cmocka_unit_test_setup(doubled_reports_do_not_flood_the_log, alone),
      cmocka_unit_test_setup(held_back_commands_stay_in_the_core, alone),
      cmocka_unit_test_setup(a_ring_goes_round_without_a_wait, alone),
      cmocka_unit_test_setup(a_callback_waits_for_reports_of_both_kinds, alone),
      cmocka_unit_test_setup(a_destroyed_stream_goes_with_its_last_report, alone),
      cmocka_unit_test_setup(frees_wait_for_the_device, alone),
      cmocka_unit_test_setup(copies_are_staged_through_the_host, alone),
      cmocka_unit_test_setup(a_failing_staged_copy_fails_its_stream, alone),
  };
  /* A lost device comes back with the next load only. */
  const struct CMUnitTest losses[] = {
      cmocka_unit_test_setup_teardown(a_lost_device_fails_everything_at_once, load_manual, shut_down),
      cmocka_unit_test_setup_teardown(a_device_lost_inside_a_submit_fails_what_it_took, load_manual, shut_down),
      cmocka_unit_test_setup_teardown(loss_after_a_failure_fails_what_stands_before_it, load_manual, shut_down),
  };
  const int failed = cmocka_run_group_tests(tests, load_manual, shut_down);
  return failed + cmocka_run_group_tests(losses, NULL, NULL);
}
