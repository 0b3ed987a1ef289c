/* Unloading a backend that is in use: live memory, queued work, blocked calls, threads that go on calling. */
#include <pthread.h>
#include <stdatomic.h>

#include "check.h"

#define SECOND UINT64_C(1000000000)

typedef struct {
  dgpuBackend_t backend;
  dgpuDevice_t device;
  dgpuContext_t context;
  dgpuStream_t stream;
} Null;

static Null load_null(void) {
  Null null = {0};
  uint32_t count = 0;
  OK(dgpuBackendLoad(need_env("DGPU_TEST_NULL_BACKEND"), &null.backend));
  OK(dgpuDeviceCount(&count));
  OK(dgpuDeviceGet(count - 1, &null.device));
  OK(dgpuContextCreate(&null.device, 1, NULL, &null.context));
  OK(dgpuStreamCreate(null.context, null.device, NULL, &null.stream));
  return null;
}

static void live_memory_makes_it_busy(void** state) {
  const Null null = load_null();
  dgpuAddr_t address = 0;
  unsigned char bytes[64], back[64];
  OK(dgpuMemAlloc(null.context, null.device, 4096, &address));
  CHECK(DGPU_STATUS_BUSY, dgpuBackendUnload(null.backend, SECOND));
  MESSAGE("null device 0");
  MESSAGE("1 allocation");
  MESSAGE("4096 bytes");
  /* Nothing has changed: the device still works. */
  memset(bytes, 0x5A, sizeof(bytes));
  OK(dgpuMemCopyFromHostAsync(null.stream, address, bytes, sizeof(bytes)));
  OK(dgpuMemFillAsync(null.stream, address + 16, 0x77, 1, 16));
  OK(dgpuMemCopyToHostAsync(null.stream, back, address, sizeof(back)));
  OK(dgpuStreamSynchronize(null.stream, 10 * SECOND));
  assert_int_equal(back[15], 0x5A);
  assert_int_equal(back[16], 0x77);
  assert_int_equal(back[31], 0x77);
  assert_int_equal(back[32], 0x5A);
  OK(dgpuMemFree(null.context, address));
  OK(dgpuBackendUnload(null.backend, 10 * SECOND));
  CHECK(DGPU_STATUS_INVALID_HANDLE, dgpuStreamQuery(null.stream));
  CHECK(DGPU_STATUS_INVALID_HANDLE, dgpuContextSynchronize(null.context, 0));
  CHECK(DGPU_STATUS_INVALID_HANDLE, dgpuStreamDestroy(null.stream));
}

static void a_stream_ordered_free_counts_when_it_has_run(void** state) {
  const Null null = load_null();
  dgpuAddr_t address = 0;
  OK(dgpuMemAllocAsync(null.stream, 1000, &address));
  CHECK(DGPU_STATUS_BUSY, dgpuBackendUnload(null.backend, 0));
  MESSAGE("1000 bytes");
  OK(dgpuMemFreeAsync(null.stream, address));
  OK(dgpuStreamSynchronize(null.stream, 10 * SECOND));
  OK(dgpuBackendUnload(null.backend, 10 * SECOND));
}

static void queued_work_finishes_before_the_deadline(void** state) {
  const Null null = load_null();
  dgpuDevice_t first = NULL;
  dgpuContext_t other = NULL;
  dgpuTimeline_t gate = NULL, done = NULL;
  OK(dgpuDeviceGet(0, &first));
  OK(dgpuContextCreate(&first, 1, NULL, &other));
  OK(dgpuTimelineCreate(null.context, 0, &gate));
  OK(dgpuStreamGetTimeline(null.stream, &done));
  OK(dgpuTimelineSignal(gate, 1));
  OK(dgpuStreamWaitTimeline(null.stream, gate, 1));
  OK(dgpuBackendUnload(null.backend, 10 * SECOND));
  CHECK(DGPU_STATUS_INVALID_HANDLE, dgpuTimelineQuery(done, 1));
  OK(dgpuContextSynchronize(other, 0)); /* other backends do not notice */
  OK(dgpuContextDestroy(other));
}

static void* wait_for_stream(void* stream) {
  return (void*)(intptr_t)dgpuStreamSynchronize(stream, DGPU_TIMEOUT_INFINITE);
}

/* The stream waits for a value that never comes, and a thread waits for the stream. */
static void waiting_work_is_cancelled_and_blocked_calls_return(void** state) {
  const Null null = load_null();
  dgpuTimeline_t never = NULL;
  pthread_t waiter;
  void* result = NULL;
  OK(dgpuTimelineCreate(null.context, 0, &never));
  OK(dgpuStreamWaitTimeline(null.stream, never, 1));
  CHECK(DGPU_STATUS_TIMEOUT, dgpuStreamSynchronize(null.stream, 1000));
  assert_int_equal(pthread_create(&waiter, NULL, wait_for_stream, null.stream), 0);
  OK(dgpuBackendUnload(null.backend, SECOND / 20));
  pthread_join(waiter, &result);
  const dgpuStatus_t status = (dgpuStatus_t)(intptr_t)result;
  assert_true(status == DGPU_STATUS_CANCELLED || status == DGPU_STATUS_INVALID_HANDLE);
}

static atomic_int stop_work;
static atomic_int rounds_done;

static int acceptable(dgpuStatus_t status) {
  switch (status) {
    case DGPU_STATUS_SUCCESS:
    case DGPU_STATUS_INVALID_HANDLE: /* unloaded meanwhile */
    case DGPU_STATUS_NOT_FOUND:
    case DGPU_STATUS_CANCELLED:
    case DGPU_STATUS_STREAM_FAILED:
    case DGPU_STATUS_QUEUE_FULL:
    case DGPU_STATUS_TIMEOUT:
      return 1;
    default:
      return 0;
  }
}

#define STEP(call)                                                                                   \
  do {                                                                                               \
    const dgpuStatus_t step_status = (call);                                                         \
    if (!acceptable(step_status)) {                                                                  \
      fprintf(stderr, "%s gave %s: %s\n", #call, dgpuStatusName(step_status), last_error().message); \
      return 1;                                                                                      \
    }                                                                                                \
    if (step_status != DGPU_STATUS_SUCCESS) goto out;                                                \
  } while (0)

static intptr_t one_round(void) {
  uint32_t count = 0;
  dgpuDevice_t device = NULL;
  dgpuContext_t context = NULL;
  dgpuStream_t stream = NULL;
  dgpuEvent_t event = NULL;
  STEP(dgpuDeviceCount(&count));
  STEP(dgpuDeviceGet(count - 1, &device));
  STEP(dgpuContextCreate(&device, 1, NULL, &context));
  STEP(dgpuStreamCreate(context, device, NULL, &stream));
  STEP(dgpuEventCreate(context, 0, &event));
  for (int i = 0; i < 8; ++i) STEP(dgpuEventRecord(event, stream));
  STEP(dgpuStreamSynchronize(stream, 10 * SECOND));
out:
  if (event) (void)dgpuEventDestroy(event);
  if (stream) (void)dgpuStreamDestroy(stream);
  if (context) (void)dgpuContextDestroy(context);
  atomic_fetch_add(&rounds_done, 1);
  return 0;
}

static void* work(void* unused) {
  while (!atomic_load(&stop_work)) {
    if (one_round()) return (void*)1;
  }
  return NULL;
}

static void loaded_and_unloaded_under_load(void** state) {
  pthread_t threads[3];
  atomic_store(&stop_work, 0);
  for (int i = 0; i < 3; ++i) assert_int_equal(pthread_create(&threads[i], NULL, work, NULL), 0);
  for (int i = 0; i < 30; ++i) {
    dgpuBackend_t backend = NULL;
    OK(dgpuBackendLoad(need_env("DGPU_TEST_NULL_BACKEND"), &backend));
    const int seen = atomic_load(&rounds_done);
    while (atomic_load(&rounds_done) < seen + 3) sched_yield();
    OK(dgpuBackendUnload(backend, 20 * SECOND));
  }
  atomic_store(&stop_work, 1);
  for (int i = 0; i < 3; ++i) {
    void* result = NULL;
    pthread_join(threads[i], &result);
    assert_null(result);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(live_memory_makes_it_busy, setup_library, teardown_library),
      cmocka_unit_test_setup_teardown(a_stream_ordered_free_counts_when_it_has_run, setup_library, teardown_library),
      cmocka_unit_test_setup_teardown(queued_work_finishes_before_the_deadline, setup_library, teardown_library),
      cmocka_unit_test_setup_teardown(waiting_work_is_cancelled_and_blocked_calls_return, setup_library,
                                      teardown_library),
      cmocka_unit_test_setup_teardown(loaded_and_unloaded_under_load, setup_library, teardown_library),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
