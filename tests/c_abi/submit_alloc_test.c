/* Submitting allocates nothing, on any thread: kernels, copies, fills, waits, signals, events, callbacks; nor does the
 * hot pair of a stream-ordered free and allocation. malloc is replaced by a counting one. */
#include <stdatomic.h>

#include "devices.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNTED 0 /* sanitizers bring their own malloc */
#else
#define COUNTED 1
static atomic_long allocations;
/* Of the submitting thread alone, which also helps: a worker that wakes up for the first time sets itself up. */
static _Thread_local int counting;
extern void* __libc_malloc(size_t size);
extern void* __libc_calloc(size_t count, size_t size);
extern void* __libc_realloc(void* pointer, size_t size);
extern void* __libc_memalign(size_t alignment, size_t size);
DGPU_API void* malloc(size_t size) { /* operator new comes here, too */
  if (counting) ++allocations;
  return __libc_malloc(size);
}
DGPU_API void* calloc(size_t count, size_t size) {
  if (counting) ++allocations;
  return __libc_calloc(count, size);
}
DGPU_API void* realloc(void* pointer, size_t size) {
  if (counting) ++allocations;
  return __libc_realloc(pointer, size);
}
DGPU_API void* aligned_alloc(size_t alignment, size_t size) {
  if (counting) ++allocations;
  return __libc_memalign(alignment, size);
}
#endif

#if COUNTED
static void empty(void) {}
static void one_pointer(const void* pointer) { (void)pointer; }
static dgpuStatus_t callback(dgpuStatus_t status, void* user) { return status; }
#endif

static void submitting_allocates_nothing(void** state) {
#if !COUNTED
  print_message("skipped: the sanitizer replaces malloc\n");
  skip();
#else
  dgpuDevice_t device = cpu_device(0);
  dgpuContext_t context = context_of_two(device, cpu_device(1));
  dgpuStream_t stream = stream_on(context, device), other = stream_on(context, cpu_device(1));
  dgpuKernel_t nothing = NULL, pointer = NULL;
  dgpuTimeline_t timeline = NULL;
  dgpuEvent_t event = NULL, timed = NULL;
  dgpuAddr_t memory = 0, there = 0, scratch = 0;
  static unsigned char host[4096];
  OK(dgpuKernelCreate(context, "empty", empty, "", NULL, 0, &nothing));
  OK(dgpuKernelCreate(context, "pointer", (dgpuKernelFunction)one_pointer, "ptr", NULL, 0, &pointer));
  OK(dgpuTimelineCreate(context, 0, &timeline));
  OK(dgpuEventCreate(context, 0, &event));
  OK(dgpuEventCreate(context, DGPU_EVENT_TIMING, &timed));
  OK(dgpuMemAlloc(context, device, 4096, &memory));
  OK(dgpuMemAlloc(context, cpu_device(1), 4096, &there));
  long before = 0;
  for (uint64_t round = 1; round <= 300; ++round) {
    if (round == 100) { /* caches are warm */
      before = atomic_load(&allocations);
      counting = 1;
    }
    const uint32_t types[1] = {DGPU_ARG_PTR};
    const uint64_t values[1] = {memory + 16};
    OK(dgpuKernelLaunch(stream, nothing, 1, 1, 1, NULL, NULL, 0));
    OK(dgpuKernelLaunch(stream, pointer, 4, 1, 1, types, values, 1));
    OK(dgpuMemFillAsync(stream, memory, round, 4, 4096));
    OK(dgpuMemCopyToHostAsync(stream, host, memory, 4096));
    OK(dgpuEventRecord(event, stream));
    OK(dgpuEventRecord(timed, stream));
    OK(dgpuStreamWaitEvent(other, event));
    OK(dgpuMemCopyAsync(other, there, memory, 4096));
    OK(dgpuStreamSignalTimeline(other, timeline, round));
    OK(dgpuStreamWaitTimeline(stream, timeline, round));
    OK(dgpuStreamHostCallback(stream, callback, NULL));
    OK(dgpuMemAllocAsync(stream, 1000, &scratch));
    OK(dgpuMemFillAsync(stream, scratch, 1, 1, 1000));
    OK(dgpuMemFreeAsync(stream, scratch));
    OK(dgpuStreamSynchronize(stream, LONG_TIME));
    OK(dgpuEventSynchronize(timed, LONG_TIME));
  }
  counting = 0;
  const long after = atomic_load(&allocations);
  if (after != before) fail_msg("200 rounds allocated %ld times", after - before);
  OK(dgpuContextDestroy(context));
#endif
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(submitting_allocates_nothing)};
  return cmocka_run_group_tests(tests, setup_devices, teardown_library);
}
