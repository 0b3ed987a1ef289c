/* Library life time: reference counting, order of calls, growth, fork. */
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static void calls_before_init_say_so(void** state) {
  uint32_t count = 7;
  dgpuDevice_t device = (dgpuDevice_t)(uintptr_t)1;
  CHECK(DGPU_STATUS_NOT_INITIALIZED, dgpuDeviceCount(&count));
  MESSAGE("dgpuInit");
  assert_int_equal(count, 0);
  CHECK(DGPU_STATUS_NOT_INITIALIZED, dgpuDeviceGet(0, &device));
  assert_null(device);
  CHECK(DGPU_STATUS_NOT_INITIALIZED, dgpuShutdown());
  assert_string_equal(last_error().function, "dgpuShutdown");
}

static void version_is_known_without_init(void** state) {
  uint32_t major = 0, minor = 99, patch = 99;
  OK(dgpuGetVersion(&major, &minor, &patch));
  OK(dgpuGetVersion(NULL, NULL, NULL));
  assert_int_equal(major, DGPU_VERSION_MAJOR);
  assert_int_equal(minor, DGPU_VERSION_MINOR);
  assert_int_equal(patch, DGPU_VERSION_PATCH);
}

static void init_is_counted(void** state) {
  uint32_t count = 0;
  OK(dgpuInit(NULL));
  OK(dgpuInit(NULL));
  OK(dgpuShutdown());
  OK(dgpuDeviceCount(&count));
  OK(dgpuShutdown());
  CHECK(DGPU_STATUS_SHUTDOWN, dgpuDeviceCount(&count));
  assert_int_equal(count, 0);
  CHECK(DGPU_STATUS_SHUTDOWN, dgpuShutdown());
}

static void handles_do_not_survive_shutdown(void** state) {
  uint32_t count = 0;
  dgpuBackend_t backend = NULL;
  dgpuBackendInfo info = DGPU_BACKEND_INFO_INIT;
  OK(dgpuInit(NULL));
  OK(dgpuBackendLoad(need_env("DGPU_TEST_NULL_BACKEND"), &backend));
  OK(dgpuBackendGetInfo(backend, &info));
  OK(dgpuShutdown());
  CHECK(DGPU_STATUS_SHUTDOWN, dgpuBackendGetInfo(backend, &info));
  OK(dgpuInit(NULL));
  CHECK(DGPU_STATUS_INVALID_HANDLE, dgpuBackendGetInfo(backend, &info));
  MESSAGE("destroyed");
  OK(dgpuBackendCount(&count));
  OK(dgpuShutdown());
}

static uint64_t resident_bytes(void) {
  unsigned long total = 0, resident = 0;
  FILE* file = fopen("/proc/self/statm", "r");
  assert_non_null(file);
  assert_int_equal(fscanf(file, "%lu %lu", &total, &resident), 2);
  fclose(file);
  return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void cycle(const char* plugin, int use_devices) {
  OK(dgpuInit(NULL));
  if (use_devices) {
    uint32_t count = 0;
    dgpuBackend_t backend = NULL;
    OK(dgpuDeviceCount(&count));
    OK(dgpuBackendLoad(plugin, &backend));
    OK(dgpuDeviceCount(&count));
    for (uint32_t i = 0; i < count; ++i) {
      dgpuDevice_t device = NULL;
      dgpuContext_t context = NULL;
      dgpuStream_t stream = NULL;
      OK(dgpuDeviceGet(i, &device));
      OK(dgpuContextCreate(&device, 1, NULL, &context));
      OK(dgpuStreamCreate(context, device, NULL, &stream)); /* left to shutdown */
    }
  }
  OK(dgpuShutdown());
}

/* Everything that a cycle allocates is freed: heap in use does not grow from cycle to cycle, nor does the process. The
 * probe is off, so that 1000 cycles do not mean 1000 child processes. */
static void a_thousand_cycles_do_not_grow(void** state) {
  const char* plugin = need_env("DGPU_TEST_NULL_BACKEND");
  OK(dgpuConfigSet("DGPU_BACKEND_PROBE", "0"));
  for (int i = 0; i < 200; ++i) cycle(plugin, i % 10 == 0);
  const size_t heap_before = mallinfo2().uordblks;
  const uint64_t resident_before = resident_bytes();
  for (int i = 0; i < 1000; ++i) cycle(plugin, i % 10 == 0);
  const size_t heap_after = mallinfo2().uordblks;
  const uint64_t resident_after = resident_bytes();
  OK(dgpuConfigSet("DGPU_BACKEND_PROBE", NULL));
  print_message("heap %zu -> %zu bytes, resident %llu -> %llu bytes\n", heap_before, heap_after,
                (unsigned long long)resident_before, (unsigned long long)resident_after);
  /* Sanitizers replace malloc, and report leaks themselves. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  if (getenv("GLIBC_TUNABLES")) assert_true(heap_after <= heap_before); /* set by ctest: no caches, see there */
  assert_true(resident_after < resident_before + (4u << 20));
#endif
}

static void* init_shutdown_loop(void* unused) {
  for (int i = 0; i < 200; ++i) {
    uint32_t count = 0;
    if (dgpuInit(NULL) != DGPU_STATUS_SUCCESS) return (void*)1;
    if (dgpuDeviceCount(&count) != DGPU_STATUS_SUCCESS) return (void*)2;
    if (dgpuShutdown() != DGPU_STATUS_SUCCESS) return (void*)3;
  }
  return NULL;
}

static void threads_may_init_and_shut_down_at_once(void** state) {
  pthread_t threads[4];
  for (int i = 0; i < 4; ++i) assert_int_equal(pthread_create(&threads[i], NULL, init_shutdown_loop, NULL), 0);
  for (int i = 0; i < 4; ++i) {
    void* result = NULL;
    assert_int_equal(pthread_join(threads[i], &result), 0);
    assert_null(result);
  }
}

/* A library inside the program inits and shuts down for itself, also where the last shutdown could not happen. */
static dgpuStatus_t init_in_callback(dgpuStatus_t status, void* user) {
  dgpuStatus_t* answers = user;
  answers[0] = dgpuInit(NULL);
  answers[1] = dgpuShutdown();
  answers[2] = dgpuShutdown(); /* the program's own */
  return DGPU_STATUS_SUCCESS;
}
static void init_and_shutdown_pair_inside_a_callback(void** state) {
  dgpuStatus_t answers[3] = {-1, -1, -1};
  dgpuDevice_t device = NULL;
  dgpuContext_t context = NULL;
  dgpuStream_t stream = NULL;
  OK(dgpuInit(NULL));
  OK(dgpuDeviceGet(0, &device));
  OK(dgpuContextCreate(&device, 1, NULL, &context));
  OK(dgpuStreamCreate(context, device, NULL, &stream));
  OK(dgpuStreamHostCallback(stream, init_in_callback, answers));
  OK(dgpuStreamSynchronize(stream, 60000000000u));
  assert_int_equal(answers[0], DGPU_STATUS_SUCCESS);
  assert_int_equal(answers[1], DGPU_STATUS_SUCCESS);
  assert_int_equal(answers[2], DGPU_STATUS_NOT_PERMITTED);
  OK(dgpuShutdown());
  CHECK(DGPU_STATUS_SHUTDOWN, dgpuShutdown());
}

static int in_child(dgpuBackend_t old) {
  dgpuBackendInfo info = DGPU_BACKEND_INFO_INIT;
  dgpuBackend_t own = NULL;
  uint32_t count = 0;
  if (dgpuBackendGetInfo(old, &info) != DGPU_STATUS_FORKED) return 1;
  if (dgpuDeviceCount(&count) != DGPU_STATUS_FORKED) return 2;
  if (dgpuShutdown() != DGPU_STATUS_FORKED) return 3;
  if (dgpuInit(NULL) != DGPU_STATUS_SUCCESS) return 4;
  if (dgpuBackendGetInfo(old, &info) != DGPU_STATUS_FORKED) return 5;
  if (!strstr(last_error().message, "parent process")) return 6;
  if (dgpuBackendLoad(getenv("DGPU_TEST_NULL_BACKEND"), &own) != DGPU_STATUS_SUCCESS) return 7;
  if (dgpuBackendGetInfo(own, &info) != DGPU_STATUS_SUCCESS) return 8;
  if (dgpuDeviceCount(&count) != DGPU_STATUS_SUCCESS || count == 0) return 9;
  if (dgpuShutdown() != DGPU_STATUS_SUCCESS) return 10;
  return 0;
}

static void a_forked_child_starts_anew(void** state) {
  dgpuBackend_t backend = NULL;
  dgpuBackendInfo info = DGPU_BACKEND_INFO_INIT;
  OK(dgpuInit(NULL));
  OK(dgpuBackendLoad(need_env("DGPU_TEST_NULL_BACKEND"), &backend));
  fflush(NULL);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60); /* a lock held over fork must not hang the test */
    _exit(in_child(backend));
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
  OK(dgpuBackendGetInfo(backend, &info));
  OK(dgpuShutdown());
}

static atomic_int stop_forking;
static void* busy_calls(void* unused) {
  while (!atomic_load(&stop_forking)) {
    uint32_t count = 0;
    dgpuDevice_t device = NULL;
    dgpuDeviceInfo info = DGPU_DEVICE_INFO_INIT;
    (void)dgpuDeviceCount(&count);
    if (dgpuDeviceGet(0, &device) == DGPU_STATUS_SUCCESS) (void)dgpuDeviceGetInfo(device, &info);
    (void)dgpuDeviceGet(1000, &device);
  }
  return NULL;
}

/* The other thread is inside the library, most likely holding some lock, when this one forks. */
static void fork_in_the_middle_of_calls(void** state) {
  pthread_t thread;
  OK(dgpuInit(NULL));
  atomic_store(&stop_forking, 0);
  assert_int_equal(pthread_create(&thread, NULL, busy_calls, NULL), 0);
  for (int i = 0; i < 20; ++i) {
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
      uint32_t count = 0;
      alarm(60);
      if (dgpuInit(NULL) != DGPU_STATUS_SUCCESS) _exit(1);
      if (dgpuDeviceCount(&count) != DGPU_STATUS_SUCCESS) _exit(2);
      if (dgpuShutdown() != DGPU_STATUS_SUCCESS) _exit(3);
      _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
  }
  atomic_store(&stop_forking, 1);
  pthread_join(thread, NULL);
  OK(dgpuShutdown());
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(calls_before_init_say_so), /* first: the library was never initialised */
      cmocka_unit_test(version_is_known_without_init),
      cmocka_unit_test(init_is_counted),
      cmocka_unit_test(handles_do_not_survive_shutdown),
      cmocka_unit_test(a_thousand_cycles_do_not_grow),
      cmocka_unit_test(threads_may_init_and_shut_down_at_once),
      cmocka_unit_test(init_and_shutdown_pair_inside_a_callback),
      cmocka_unit_test(a_forked_child_starts_anew),
      cmocka_unit_test(fork_in_the_middle_of_calls),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
