/* Injected faults of the cpu backend, as an embedder meets them: failed commands and copies, lost devices, memory that
 * runs out, entries that fail. Each test has a library of its own, as occurrences are counted from dgpuInit on. */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "devices.h"

static char file_name[] = "/tmp/dgpu_fault_test_XXXXXX";

/* A library with two cpu devices and these faults. */
static void start_with(const char* document) {
  FILE* file = fopen(file_name, "w");
  assert_non_null(file);
  fputs(document, file);
  fclose(file);
  OK(dgpuConfigSet("DGPU_CPU_TOPOLOGY", file_name));
  OK(dgpuConfigSet("DGPU_CPU_DEVICES", "2"));
  OK(dgpuConfigSet("DGPU_CPU_MEMORY", "256M"));
  OK(dgpuInit(NULL));
}
#define FAULTS(list) start_with("{\"version\": 1, \"faults\": [" list "]}")

static int stop(void** state) {
  (void)state;
  return dgpuShutdown() == DGPU_STATUS_SUCCESS ? 0 : -1;
}

static dgpuMemStats stats_of(dgpuContext_t context, dgpuDevice_t device) {
  dgpuMemStats stats = DGPU_MEM_STATS_INIT;
  OK(dgpuMemGetStats(context, device, &stats));
  return stats;
}

static double metric(dgpuDevice_t device, uint32_t id) {
  dgpuMetric value = DGPU_METRIC_INIT;
  OK(dgpuDeviceGetMetric(device, id, &value));
  assert_int_equal(value.absent, 0);
  return value.value;
}

/* Nothing is left of a context that was destroyed. Its streams are released by another thread, which ends in time. */
static void wait_for_no_memory(dgpuDevice_t device) {
  for (int ms = 0; metric(device, DGPU_METRIC_MEMORY_RESERVED) > 0; ++ms) {
    assert_true(ms < 60000);
    usleep(1000);
  }
}

static unsigned char byte_at(dgpuStream_t stream, dgpuAddr_t address) {
  unsigned char byte = 0;
  OK(dgpuMemCopyToHostAsync(stream, &byte, address, 1));
  OK(dgpuStreamSynchronize(stream, LONG_TIME));
  return byte;
}

/* ---- Commands ------------------------------------------------------------------------------------------------------
 */

static void a_failed_command_fails_its_stream_until_reset(void** state) {
  FAULTS(
      "{\"fail\": \"command\", \"device\": 0, \"at\": 3, \"status\": \"DATA_OUT_OF_RANGE\", \"message\": \"bit rot\"}");
  dgpuContext_t context = context_of_two(cpu_device(0), cpu_device(1));
  dgpuStream_t stream = stream_on(context, cpu_device(0)), other = stream_on(context, cpu_device(1));
  dgpuTimeline_t timeline = NULL;
  dgpuAddr_t memory = 0, there = 0;
  OK(dgpuStreamGetTimeline(stream, &timeline));
  OK(dgpuMemAlloc(context, cpu_device(0), 64, &memory));
  OK(dgpuMemAlloc(context, cpu_device(1), 64, &there));
  OK(dgpuMemFillAsync(stream, memory, 1, 1, 64));
  OK(dgpuMemFillAsync(stream, memory, 2, 1, 64));
  OK(dgpuStreamSynchronize(stream, LONG_TIME));
  OK(dgpuMemFillAsync(stream, memory, 3, 1, 64));
  CHECK(DGPU_STATUS_DATA_OUT_OF_RANGE, dgpuStreamSynchronize(stream, LONG_TIME));
  MESSAGE("bit rot (injected by faults[0]: command 3 of cpu device 0 fails)");
  assert_int_equal(last_error().value, 3);
  assert_string_equal(last_error().function, "dgpuMemFillAsync");
  assert_string_equal(last_error().backend, "cpu");
  CHECK(DGPU_STATUS_STREAM_FAILED, dgpuMemFillAsync(stream, memory, 4, 1, 64));
  /* Another stream of the same device, and the other device, do not care. */
  dgpuStream_t second = stream_on(context, cpu_device(0));
  assert_int_equal(byte_at(second, memory), 2);
  OK(dgpuMemFillAsync(other, there, 9, 1, 64));
  assert_int_equal(byte_at(other, there), 9);
  OK(dgpuStreamReset(stream, LONG_TIME));
  OK(dgpuMemFillAsync(stream, memory, 4, 1, 64));
  assert_int_equal(byte_at(stream, memory), 4);
  CHECK(DGPU_STATUS_DATA_OUT_OF_RANGE, dgpuTimelineQuery(timeline, 3));
  OK(dgpuContextDestroy(context));
}

/* A whole queue behind the failure is cancelled: none of it has run, its frees are given back, its waiters see why. */
static void what_stands_behind_a_failure_does_not_run(void** state) {
  enum { kBehind = 200 };
  FAULTS("{\"fail\": \"command\", \"device\": 0, \"at\": 2}");
  dgpuContext_t context = context_of_two(cpu_device(0), cpu_device(1));
  dgpuStream_t stream = stream_on(context, cpu_device(0)), waiter = stream_on(context, cpu_device(1));
  dgpuTimeline_t gate = NULL, timeline = NULL;
  dgpuEvent_t event = NULL;
  dgpuAddr_t memory = 0, there = 0, block = 0;
  OK(dgpuTimelineCreate(context, 0, &gate));
  OK(dgpuStreamGetTimeline(stream, &timeline));
  OK(dgpuEventCreate(context, 0, &event));
  OK(dgpuMemAlloc(context, cpu_device(0), 64, &memory));
  OK(dgpuMemAlloc(context, cpu_device(1), 64, &there));
  OK(dgpuMemFillAsync(stream, memory, 1, 1, 64));
  OK(dgpuStreamWaitTimeline(stream, gate, 1));
  for (int i = 0; i < kBehind; ++i) {
    OK(dgpuMemAllocAsync(stream, 4096, &block));
    OK(dgpuMemFillAsync(stream, block, 7, 1, 4096));
    OK(dgpuMemFillAsync(stream, memory, 7, 1, 64));
    OK(dgpuMemFreeAsync(stream, block));
  }
  OK(dgpuEventRecord(event, stream));
  OK(dgpuStreamWaitEvent(waiter, event));
  OK(dgpuMemFillAsync(waiter, there, 1, 1, 64));
  OK(dgpuTimelineSignal(gate, 1));
  CHECK(DGPU_STATUS_COMMAND_FAILED, dgpuStreamSynchronize(stream, LONG_TIME));
  CHECK(DGPU_STATUS_COMMAND_FAILED, dgpuEventSynchronize(event, LONG_TIME));
  CHECK(DGPU_STATUS_COMMAND_FAILED, dgpuStreamSynchronize(waiter, LONG_TIME));
  MESSAGE("injected by faults[0]");
  assert_int_equal(stats_of(context, cpu_device(0)).used_bytes, 64);
  assert_int_equal(stats_of(context, cpu_device(0)).pending_bytes, 0);
  OK(dgpuStreamReset(stream, LONG_TIME));
  OK(dgpuStreamReset(waiter, LONG_TIME));
  assert_int_equal(byte_at(stream, memory), 1);
  OK(dgpuMemFillAsync(waiter, there, 5, 1, 64));
  assert_int_equal(byte_at(waiter, there), 5);
  OK(dgpuContextDestroy(context));
  wait_for_no_memory(cpu_device(0));
}

/* Fails, is reset, fails again, many times: records do not pile up in the way of anything. */
static void a_stream_survives_many_failures(void** state) {
  FAULTS("{\"fail\": \"command\", \"device\": 0, \"at\": 1, \"count\": 500}");
  dgpuContext_t context = context_of(cpu_device(0));
  dgpuStream_t stream = stream_on(context, cpu_device(0));
  dgpuAddr_t memory = 0;
  OK(dgpuMemAlloc(context, cpu_device(0), 64, &memory));
  for (int i = 0; i < 500; ++i) {
    OK(dgpuMemFillAsync(stream, memory, 1, 1, 64));
    CHECK(DGPU_STATUS_COMMAND_FAILED, dgpuStreamSynchronize(stream, LONG_TIME));
    OK(dgpuStreamReset(stream, LONG_TIME));
  }
  OK(dgpuMemFillAsync(stream, memory, 8, 1, 64));
  assert_int_equal(byte_at(stream, memory), 8);
  OK(dgpuContextDestroy(context));
}

static void a_copy_fails_on_its_link_and_in_its_direction_only(void** state) {
  FAULTS("{\"fail\": \"copy\", \"from\": 0, \"to\": 1, \"at\": 2}");
  dgpuContext_t context = context_of_two(cpu_device(0), cpu_device(1));
  dgpuStream_t stream = stream_on(context, cpu_device(1));
  dgpuAddr_t here = 0, there = 0;
  OK(dgpuMemAlloc(context, cpu_device(0), 4096, &here));
  OK(dgpuMemAlloc(context, cpu_device(1), 4096, &there));
  OK(dgpuMemCopyAsync(stream, there, here, 4096));
  OK(dgpuMemCopyAsync(stream, here, there, 4096));
  OK(dgpuMemCopyAsync(stream, here, there, 4096));
  OK(dgpuStreamSynchronize(stream, LONG_TIME));
  OK(dgpuMemCopyAsync(stream, there, here, 4096));
  CHECK(DGPU_STATUS_COMMAND_FAILED, dgpuStreamSynchronize(stream, LONG_TIME));
  MESSAGE("copy 2 from cpu device 0 to 1 fails");
  OK(dgpuStreamReset(stream, LONG_TIME));
  OK(dgpuMemCopyAsync(stream, there, here, 4096));
  OK(dgpuStreamSynchronize(stream, LONG_TIME));
  OK(dgpuContextDestroy(context));
}

/* ---- Lost devices ---------------------------------------------------------------------------------------------------
 */

static dgpuStatus_t keep_status(dgpuStatus_t status, void* user) {
  atomic_store((atomic_int*)user, status);
  return DGPU_STATUS_SUCCESS;
}

/* Device 0 goes after three commands of a stream that also allocates, frees, waits and calls back. */
static void lose_device_0(int reports) {
  dgpuDevice_t gone = cpu_device(0), healthy = cpu_device(1);
  dgpuContext_t context = context_of_two(gone, healthy);
  dgpuStream_t stream = stream_on(context, gone), idle = stream_on(context, gone), other = stream_on(context, healthy);
  dgpuStream_t none = NULL;
  dgpuTimeline_t gate = NULL;
  dgpuEvent_t event = NULL;
  dgpuAddr_t memory = 0, there = 0, block = 0, pinned = 0;
  void* pointer = NULL;
  dgpuMetric value = DGPU_METRIC_INIT;
  atomic_int told = 1;
  OK(dgpuTimelineCreate(context, 0, &gate));
  OK(dgpuEventCreate(context, 0, &event));
  OK(dgpuMemAlloc(context, gone, 4096, &memory));
  OK(dgpuMemAlloc(context, healthy, 4096, &there));
  OK(dgpuMemAllocHost(context, 4096, &pinned, &pointer));
  OK(dgpuMemFillAsync(stream, memory, 1, 1, 4096));
  OK(dgpuStreamWaitTimeline(stream, gate, 1));
  for (int i = 0; i < 20; ++i) {
    OK(dgpuMemAllocAsync(stream, 4096, &block));
    OK(dgpuMemCopyAsync(stream, block, pinned, 4096));
    OK(dgpuMemFreeAsync(stream, block));
  }
  OK(dgpuStreamHostCallback(stream, keep_status, &told));
  OK(dgpuEventRecord(event, stream));
  OK(dgpuStreamWaitEvent(other, event));
  OK(dgpuMemFillAsync(other, there, 1, 1, 4096));
  OK(dgpuTimelineSignal(gate, 1));
  CHECK(DGPU_STATUS_DEVICE_LOST, dgpuStreamSynchronize(stream, LONG_TIME));
  MESSAGE("injected by faults[0]: cpu device 0 is lost after 3 commands");
  CHECK(DGPU_STATUS_DEVICE_LOST, dgpuEventSynchronize(event, LONG_TIME));
  CHECK(DGPU_STATUS_DEVICE_LOST, dgpuStreamSynchronize(other, LONG_TIME));
  for (int ms = 0; atomic_load(&told) == 1; ++ms) {
    assert_true(ms < 60000);
    usleep(1000);
  }
  assert_int_equal(atomic_load(&told), DGPU_STATUS_DEVICE_LOST);
  /* Everything on it answers so, at once. */
  CHECK(DGPU_STATUS_DEVICE_LOST, dgpuMemFillAsync(stream, memory, 1, 1, 64));
  CHECK(DGPU_STATUS_DEVICE_LOST, dgpuMemFillAsync(idle, memory, 1, 1, 64));
  CHECK(DGPU_STATUS_DEVICE_LOST, dgpuStreamReset(stream, LONG_TIME));
  CHECK(DGPU_STATUS_DEVICE_LOST, dgpuMemAllocAsync(stream, 64, &block));
  assert_int_equal(block, 0);
  CHECK(DGPU_STATUS_DEVICE_LOST, dgpuMemAlloc(context, gone, 64, &block));
  CHECK(DGPU_STATUS_DEVICE_LOST, dgpuStreamCreate(context, gone, NULL, &none));
  OK(dgpuDeviceGetMetric(gone, DGPU_METRIC_COMMANDS, &value));
  assert_int_equal(value.absent, DGPU_ABSENT_DEVICE_LOST);
  /* What is left is freed, and the healthy device of the same context works on. */
  OK(dgpuMemFree(context, memory));
  OK(dgpuMemFree(context, pinned));
  OK(dgpuStreamReset(other, LONG_TIME));
  OK(dgpuMemFillAsync(other, there, 6, 1, 4096));
  assert_int_equal(byte_at(other, there), 6);
  OK(dgpuMemFree(context, there));
  assert_int_equal(stats_of(context, healthy).used_bytes, 0);
  assert_int_equal(stats_of(context, gone).used_bytes, 0);
  OK(dgpuMemTrim(context, healthy, 0));
  /* Commands that are never reported may write, also to the other device: what was alive then is kept, and no more. */
  OK(dgpuMemAlloc(context, healthy, 1 << 20, &block));
  OK(dgpuMemFree(context, block));
  assert_int_equal(stats_of(context, healthy).pending_bytes, reports ? 0 : 4096);
  OK(dgpuMemTrim(context, healthy, 0));
  assert_int_equal(metric(healthy, DGPU_METRIC_MEMORY_RESERVED) == 0, reports);
  OK(dgpuContextDestroy(context));
  /* A new context: not with it, but without it. */
  dgpuContext_t again = NULL;
  CHECK(DGPU_STATUS_DEVICE_LOST, dgpuContextCreate(&gone, 1, NULL, &again));
  assert_null(again);
  again = context_of(healthy);
  OK(dgpuMemAlloc(again, healthy, 64, &there));
  stream = stream_on(again, healthy);
  OK(dgpuMemFillAsync(stream, there, 3, 1, 64));
  assert_int_equal(byte_at(stream, there), 3);
}

static void a_lost_device_fails_everything_on_it_and_nothing_else(void** state) {
  FAULTS("{\"fail\": \"device\", \"device\": 0, \"after\": 3}");
  lose_device_0(1);
}
/* Commands that it holds are never reported, as of hardware that fell off the bus. */
static void a_device_that_vanishes_without_a_word_holds_nobody_up(void** state) {
  FAULTS("{\"fail\": \"device\", \"device\": 0, \"after\": 3, \"reports\": false}");
  lose_device_0(0);
}

/* Threads that are inside blocking calls when the device goes come back. */
static dgpuStream_t blocked_stream;
static dgpuTimeline_t blocked_timeline;
static void* wait_for_stream(void* unused) { return (void*)(intptr_t)dgpuStreamSynchronize(blocked_stream, LONG_TIME); }
static void* wait_for_value(void* unused) { return (void*)(intptr_t)dgpuTimelineWait(blocked_timeline, 3, LONG_TIME); }

static void loss_wakes_blocked_calls(void** state) {
  FAULTS("{\"fail\": \"device\", \"device\": 0, \"after\": 1, \"reports\": false}");
  dgpuContext_t context = context_of(cpu_device(0));
  dgpuTimeline_t gate = NULL;
  dgpuAddr_t memory = 0;
  pthread_t threads[2];
  blocked_stream = stream_on(context, cpu_device(0));
  OK(dgpuStreamGetTimeline(blocked_stream, &blocked_timeline));
  OK(dgpuTimelineCreate(context, 0, &gate));
  OK(dgpuMemAlloc(context, cpu_device(0), 64, &memory));
  OK(dgpuMemFillAsync(blocked_stream, memory, 1, 1, 64));
  OK(dgpuStreamWaitTimeline(blocked_stream, gate, 1));
  OK(dgpuMemFillAsync(blocked_stream, memory, 2, 1, 64));
  assert_int_equal(pthread_create(&threads[0], NULL, wait_for_stream, NULL), 0);
  assert_int_equal(pthread_create(&threads[1], NULL, wait_for_value, NULL), 0);
  OK(dgpuTimelineSignal(gate, 1));
  for (int i = 0; i < 2; ++i) {
    void* result = NULL;
    pthread_join(threads[i], &result);
    assert_int_equal((dgpuStatus_t)(intptr_t)result, DGPU_STATUS_DEVICE_LOST);
  }
  OK(dgpuContextDestroy(context));
}

/* The last commands of a destroyed context are in flight when the device goes without a word: shutdown does not wait
 * for them. */
static void shutdown_does_not_wait_for_a_lost_device(void** state) {
  FAULTS("{\"fail\": \"device\", \"device\": 0, \"after\": 2, \"reports\": false}");
  dgpuContext_t context = context_of(cpu_device(0));
  dgpuStream_t stream = stream_on(context, cpu_device(0));
  dgpuAddr_t memory = 0;
  OK(dgpuMemAlloc(context, cpu_device(0), 64, &memory));
  for (int i = 0; i < 100; ++i) {
    const dgpuStatus_t submitted = dgpuMemFillAsync(stream, memory, 1, 1, 64);
    if (submitted == DGPU_STATUS_DEVICE_LOST) break; /* it went while this loop ran */
    OK(submitted);
  }
  OK(dgpuContextDestroy(context)); /* stop() shuts down */
}

/* ---- Memory
 * ----------------------------------------------------------------------------------------------------------- */

static void memory_runs_out_and_comes_back(void** state) {
  /* One call of the pool may try nine times: a shared segment, one of the exact size, one after giving back what is
   * free; the same again when contexts that were destroyed have gone; and when other contexts gave back, too. */
  FAULTS("{\"fail\": \"allocation\", \"device\": 0, \"at\": 2, \"count\": 9}");
  dgpuContext_t context = context_of(cpu_device(0));
  dgpuAddr_t first = 0, second = 1, third = 0;
  OK(dgpuMemAlloc(context, cpu_device(0), 16 << 20, &first));
  CHECK(DGPU_STATUS_OUT_OF_MEMORY, dgpuMemAlloc(context, cpu_device(0), 1 << 20, &second));
  assert_int_equal(second, 0);
  assert_int_equal(stats_of(context, cpu_device(0)).used_bytes, 16 << 20);
  assert_int_equal(stats_of(context, cpu_device(0)).allocations, 1);
  OK(dgpuMemAlloc(context, cpu_device(0), 1 << 20, &third));
  OK(dgpuMemFree(context, first));
  OK(dgpuMemFree(context, third));
  assert_int_equal(stats_of(context, cpu_device(0)).used_bytes, 0);
  OK(dgpuContextDestroy(context));
  wait_for_no_memory(cpu_device(0));
}

static void memory_ends_after_some_bytes(void** state) {
  FAULTS("{\"fail\": \"allocation\", \"device\": 0, \"after_bytes\": 33554432}");
  dgpuContext_t context = context_of_two(cpu_device(0), cpu_device(1));
  dgpuStream_t stream = stream_on(context, cpu_device(0));
  dgpuAddr_t first = 0, second = 0;
  OK(dgpuMemAlloc(context, cpu_device(0), 32 << 20, &first));
  CHECK(DGPU_STATUS_OUT_OF_MEMORY, dgpuMemAlloc(context, cpu_device(0), 1, &second));
  CHECK(DGPU_STATUS_OUT_OF_MEMORY, dgpuMemAllocAsync(stream, 1, &second));
  OK(dgpuMemAlloc(context, cpu_device(1), 64 << 20, &second)); /* the other device has its own */
  /* What the pool has is used again. */
  OK(dgpuMemFree(context, first));
  OK(dgpuMemAlloc(context, cpu_device(0), 1 << 20, &first));
  OK(dgpuContextDestroy(context));
}

static void pinned_memory_that_a_device_refuses_is_still_copied(void** state) {
  FAULTS("{\"fail\": \"pin\", \"device\": 0, \"count\": 0}");
  dgpuContext_t context = context_of(cpu_device(0));
  dgpuStream_t stream = stream_on(context, cpu_device(0));
  dgpuAddr_t pinned = 0, memory = 0;
  void* pointer = NULL;
  OK(dgpuMemAllocHost(context, 4096, &pinned, &pointer));
  OK(dgpuMemAlloc(context, cpu_device(0), 4096, &memory));
  memset(pointer, 0x5a, 4096);
  OK(dgpuMemCopyAsync(stream, memory, pinned, 4096));
  assert_int_equal(byte_at(stream, memory + 4095), 0x5a);
  OK(dgpuMemFillAsync(stream, pinned, 0x11, 1, 4096));
  OK(dgpuStreamSynchronize(stream, LONG_TIME));
  assert_int_equal(((unsigned char*)pointer)[4095], 0x11);
  OK(dgpuContextDestroy(context));
}

/* ---- Entries
 * ----------------------------------------------------------------------------------------------------------- */

static void a_device_that_does_not_open_can_be_tried_again(void** state) {
  FAULTS("{\"fail\": \"open\", \"device\": 0, \"message\": \"firmware\"}");
  dgpuContext_t context = (dgpuContext_t)(uintptr_t)1;
  const dgpuDevice_t devices[2] = {cpu_device(1), cpu_device(0)};
  CHECK(DGPU_STATUS_INTERNAL, dgpuContextCreate(devices, 2, NULL, &context));
  MESSAGE("firmware");
  assert_null(context);
  OK(dgpuContextCreate(devices, 2, NULL, &context));
  OK(dgpuContextDestroy(context));
}

static void a_stream_that_cannot_be_made_leaves_nothing(void** state) {
  FAULTS("{\"fail\": \"stream\", \"device\": 0, \"count\": 50}");
  dgpuContext_t context = context_of(cpu_device(0));
  dgpuStream_t stream = (dgpuStream_t)(uintptr_t)1;
  for (int i = 0; i < 50; ++i) {
    CHECK(DGPU_STATUS_OUT_OF_HOST_MEMORY, dgpuStreamCreate(context, cpu_device(0), NULL, &stream));
    MESSAGE("injected by faults[0]");
    assert_null(stream);
  }
  stream = stream_on(context, cpu_device(0));
  OK(dgpuStreamSynchronize(stream, LONG_TIME));
  OK(dgpuContextDestroy(context));
}

static void add_one(uint64_t* p) { ++*p; }

static void kernels_and_plans_fail_and_succeed_later(void** state) {
  FAULTS(
      "{\"fail\": \"kernel\", \"device\": 0}, {\"fail\": \"plan\", \"device\": 0},"
      "{\"fail\": \"plan\", \"device\": 0, \"at\": 2, \"count\": 5, \"status\": \"UNSUPPORTED\"}");
  const int64_t shape[2] = {4, 4};
  dgpuContext_t context = context_of(cpu_device(0));
  dgpuKernel_t kernel = NULL;
  dgpuOpDesc_t op = NULL;
  dgpuOpPlan_t plan = (dgpuOpPlan_t)(uintptr_t)1;
  dgpuPlanInfo info = DGPU_PLAN_INFO_INIT;
  dgpuTensorDesc matrix = DGPU_TENSOR_DESC_INIT;
  CHECK(DGPU_STATUS_OUT_OF_HOST_MEMORY,
        dgpuKernelCreate(context, "add_one", (dgpuKernelFunction)add_one, "ptr", NULL, 0, &kernel));
  assert_null(kernel);
  OK(dgpuKernelCreate(context, "add_one", (dgpuKernelFunction)add_one, "ptr", NULL, 0, &kernel));
  OK(dgpuTensorDescPack(&matrix, DGPU_DTYPE_F32, 2, shape));
  OK(dgpuOpDescCreate("matmul", &op));
  OK(dgpuOpDescSetTensor(op, "a", &matrix));
  OK(dgpuOpDescSetTensor(op, "b", &matrix));
  OK(dgpuOpDescSetTensor(op, "out", &matrix));
  CHECK(DGPU_STATUS_OUT_OF_HOST_MEMORY, dgpuOpPlanCreate(context, cpu_device(0), op, &plan));
  MESSAGE("injected by faults[1]");
  assert_null(plan);
  OK(dgpuOpPlanCreate(context, cpu_device(0), op, &plan)); /* the device refuses, the reference does it */
  OK(dgpuOpPlanGetInfo(plan, &info));
  assert_int_equal(info.mode, DGPU_PLAN_REFERENCE);
  assert_non_null(strstr(info.reason, "injected by faults[2]"));
  OK(dgpuOpDescDestroy(op));
  OK(dgpuContextDestroy(context));
}

/* ---- Files
 * --------------------------------------------------------------------------------------------------------------- */

/* A file that is wrong stops the cpu backend, with the reason in one place; listing devices still works. */
static void a_wrong_file_is_told_once_and_listing_goes_on(void** state) {
  uint32_t count = 1;
  dgpuBackendAttempt attempt = DGPU_BACKEND_ATTEMPT_INIT;
  FAULTS("{\"fail\": \"command\", \"device\": 7}");
  OK(dgpuDeviceCount(&count));
  assert_int_equal(count, 0);
  OK(dgpuBackendAttemptGet(0, &attempt));
  assert_string_equal(attempt.name, "cpu");
  assert_int_equal(attempt.accepted, 0);
  assert_non_null(strstr(attempt.reason, file_name));
  assert_non_null(strstr(attempt.reason, "faults[0].device: must be a device index from 0 to 1"));
}

/* ---- Pacing
 * ---------------------------------------------------------------------------------------------------------------- */

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

/* 8 MB at 80 MB/s and 5 ms: at least 105 ms. Lower bounds hold on any machine, however slow. */
static void paced_copies_take_their_time_and_block_nobody(void** state) {
  enum { kBytes = 8000000 };
  start_with(
      "{\"version\": 1, \"pacing\": true, \"links\": [{\"from\": 0, \"to\": 1, \"kind\": \"pcie\", \"both_ways\": "
      "false,"
      "\"bandwidth_bytes_per_s\": 80000000, \"latency_ns\": 5000000}]}");
  dgpuContext_t context = context_of_two(cpu_device(0), cpu_device(1));
  dgpuStream_t streams[2] = {stream_on(context, cpu_device(0)), stream_on(context, cpu_device(1))};
  dgpuStream_t other = stream_on(context, cpu_device(0));
  dgpuEvent_t begin = NULL, end = NULL;
  dgpuAddr_t here = 0, there = 0, more = 0;
  int64_t elapsed = 0;
  int finished_meanwhile = 0;
  OK(dgpuEventCreate(context, DGPU_EVENT_TIMING, &begin));
  OK(dgpuEventCreate(context, DGPU_EVENT_TIMING, &end));
  OK(dgpuMemAlloc(context, cpu_device(0), kBytes, &here));
  OK(dgpuMemAlloc(context, cpu_device(1), 2 * kBytes, &there));
  OK(dgpuMemAlloc(context, cpu_device(0), 64, &more));
  OK(dgpuMemFillAsync(streams[0], here, 0x77, 1, kBytes));
  OK(dgpuStreamSynchronize(streams[0], LONG_TIME));
  /* Two copies over one link, from streams of either device: 205 ms at least. */
  const uint64_t start = now_ns();
  OK(dgpuEventRecord(begin, streams[0]));
  OK(dgpuMemCopyAsync(streams[0], there, here, kBytes));
  OK(dgpuEventRecord(end, streams[0]));
  OK(dgpuMemCopyAsync(streams[1], there + kBytes, here, kBytes));
  while (dgpuStreamQuery(streams[0]) == DGPU_STATUS_NOT_READY || dgpuStreamQuery(streams[1]) == DGPU_STATUS_NOT_READY) {
    OK(dgpuMemFillAsync(other, more, 1, 1, 64));
    OK(dgpuStreamSynchronize(other, LONG_TIME));
    ++finished_meanwhile;
  }
  assert_true(now_ns() - start >= 205000000);
  assert_true(finished_meanwhile > 2); /* both workers are free, on a machine of any speed */
  OK(dgpuEventElapsed(begin, end, &elapsed));
  assert_true(elapsed >= 105000000);
  assert_int_equal(byte_at(streams[1], there + 2 * kBytes - 1), 0x77);
  /* The way back claims nothing and is not paced; inside a device there is no link. */
  OK(dgpuMemCopyAsync(streams[1], here, there, kBytes));
  OK(dgpuStreamSynchronize(streams[1], LONG_TIME));
  /* Shutdown while one is under way. */
  OK(dgpuMemCopyAsync(streams[0], there, here, kBytes));
}

static int make_file(void** state) {
  (void)state;
  const int fd = mkstemp(file_name);
  return fd < 0 ? -1 : close(fd);
}
static int remove_file(void** state) {
  (void)state;
  return unlink(file_name);
}

int main(void) {
#define TEST(name) cmocka_unit_test_teardown(name, stop)
  const struct CMUnitTest tests[] = {
      TEST(a_failed_command_fails_its_stream_until_reset),
      TEST(what_stands_behind_a_failure_does_not_run),
      TEST(a_stream_survives_many_failures),
      TEST(a_copy_fails_on_its_link_and_in_its_direction_only),
      TEST(a_lost_device_fails_everything_on_it_and_nothing_else),
      TEST(a_device_that_vanishes_without_a_word_holds_nobody_up),
      TEST(loss_wakes_blocked_calls),
      TEST(shutdown_does_not_wait_for_a_lost_device),
      TEST(memory_runs_out_and_comes_back),
      TEST(memory_ends_after_some_bytes),
      TEST(pinned_memory_that_a_device_refuses_is_still_copied),
      TEST(a_device_that_does_not_open_can_be_tried_again),
      TEST(a_stream_that_cannot_be_made_leaves_nothing),
      TEST(kernels_and_plans_fail_and_succeed_later),
      TEST(a_wrong_file_is_told_once_and_listing_goes_on),
      TEST(paced_copies_take_their_time_and_block_nobody),
  };
  return cmocka_run_group_tests(tests, make_file, remove_file);
}
