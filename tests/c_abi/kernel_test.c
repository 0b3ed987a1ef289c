/* Kernels: signatures, launches, argument checks, failure. */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "devices.h"

#define FUNCTION(f) ((dgpuKernelFunction)(f))

static void saxpy(uint64_t i, float a, const float* x, float* y) { y[i] += a * x[i]; }
static void coordinates(void* user, uint64_t x, uint64_t y, uint64_t z, uint32_t* out) {
  const uint64_t* extent = user;
  out[(z * extent[1] + y) * extent[0] + x] = (uint32_t)(x + 100 * y + 10000 * z);
}
static void all_types(uint64_t i, int32_t a, uint32_t b, int64_t c, uint64_t d, float e, double f, double* out) {
  if (i) return;
  out[0] = a;
  out[1] = b;
  out[2] = (double)c;
  out[3] = (double)d;
  out[4] = e;
  out[5] = f;
}
static int32_t fails_at_three(uint64_t i) { return i == 3 ? -9 : 0; }
static void sees_null(const void* pointer, int64_t* out) { *out = pointer == NULL; }

static atomic_int inside, most_inside, points;
static uint64_t last_point;
static atomic_int out_of_order;
static void one_at_a_time(uint64_t i) {
  const int now = atomic_fetch_add(&inside, 1) + 1;
  int most = atomic_load(&most_inside);
  while (now > most && !atomic_compare_exchange_weak(&most_inside, &most, now)) {
  }
  if (i && i != last_point + 1) atomic_store(&out_of_order, 1);
  last_point = i;
  atomic_fetch_add(&points, 1);
  atomic_fetch_sub(&inside, 1);
}

static dgpuKernel_t kernel_of(dgpuContext_t context, const char* name, dgpuKernelFunction function,
                              const char* signature) {
  dgpuKernel_t kernel = NULL;
  OK(dgpuKernelCreate(context, name, function, signature, NULL, 0, &kernel));
  return kernel;
}

static void saxpy_runs_over_a_grid(void** state) {
  enum { kCount = 10000 };
  dgpuDevice_t device = cpu_device(0);
  dgpuContext_t context = context_of(device);
  dgpuStream_t stream = stream_on(context, device);
  dgpuKernel_t kernel = kernel_of(context, "saxpy", FUNCTION(saxpy), "gx,f32,ptr,ptr");
  dgpuKernelInfo info = DGPU_KERNEL_INFO_INIT;
  dgpuAddr_t x = 0, y = 0;
  uint32_t type = 0;
  static float in[kCount], out[kCount];
  OK(dgpuKernelGetInfo(kernel, &info));
  assert_string_equal(info.name, "saxpy");
  assert_string_equal(info.signature, "gx,f32,ptr,ptr");
  assert_int_equal(info.arg_count, 3);
  OK(dgpuKernelGetArgType(kernel, 0, &type));
  assert_int_equal(type, DGPU_ARG_F32);
  CHECK(DGPU_STATUS_NOT_FOUND, dgpuKernelGetArgType(kernel, 3, &type));
  for (int i = 0; i < kCount; ++i) in[i] = (float)i;
  OK(dgpuMemAlloc(context, device, sizeof(in), &x));
  OK(dgpuMemAlloc(context, device, sizeof(in), &y));
  OK(dgpuMemCopyFromHostAsync(stream, x, in, sizeof(in)));
  OK(dgpuMemCopyFromHostAsync(stream, y, in, sizeof(in)));
  const uint32_t types[] = {DGPU_ARG_F32, DGPU_ARG_PTR, DGPU_ARG_PTR};
  uint64_t values[] = {dgpuArgF32(2.5f), x, y};
  OK(dgpuKernelLaunch(stream, kernel, kCount, 1, 1, types, values, 3));
  values[0] = dgpuArgF32(99);                                      /* arguments were copied */
  OK(dgpuKernelLaunch(stream, kernel, 0, 1, 1, types, values, 3)); /* runs nothing */
  OK(dgpuKernelDestroy(kernel));                                   /* still runs */
  OK(dgpuMemCopyToHostAsync(stream, out, y, sizeof(out)));
  OK(dgpuStreamSynchronize(stream, LONG_TIME));
  for (int i = 0; i < kCount; ++i) assert_true(out[i] == in[i] + 2.5f * in[i]);
  OK(dgpuContextDestroy(context));
}

static void three_dimensions_and_user_pointer(void** state) {
  uint64_t extent[3] = {7, 5, 3};
  dgpuDevice_t device = cpu_device(0);
  dgpuContext_t context = context_of(device);
  dgpuStream_t stream = stream_on(context, device);
  dgpuKernel_t kernel = NULL;
  dgpuAddr_t memory = 0;
  uint32_t out[7 * 5 * 3];
  OK(dgpuKernelCreate(context, "coordinates", FUNCTION(coordinates), "user, gx, gy, gz, ptr", extent, 0, &kernel));
  OK(dgpuMemAlloc(context, device, sizeof(out), &memory));
  const uint32_t types[] = {DGPU_ARG_PTR};
  const uint64_t values[] = {memory};
  OK(dgpuKernelLaunch(stream, kernel, 7, 5, 3, types, values, 1));
  OK(dgpuMemCopyToHostAsync(stream, out, memory, sizeof(out)));
  OK(dgpuStreamSynchronize(stream, LONG_TIME));
  for (uint32_t z = 0; z < 3; ++z) {
    for (uint32_t y = 0; y < 5; ++y) {
      for (uint32_t x = 0; x < 7; ++x) assert_int_equal(out[(z * 5 + y) * 7 + x], x + 100 * y + 10000 * z);
    }
  }
  CHECK(DGPU_STATUS_INVALID_ARGUMENT,
        dgpuKernelLaunch(stream, kernel, (uint64_t)1 << 40, (uint64_t)1 << 40, 1, types, values, 1));
  OK(dgpuContextDestroy(context));
}

static void every_type_arrives(void** state) {
  dgpuDevice_t device = cpu_device(0);
  dgpuContext_t context = context_of(device);
  dgpuStream_t stream = stream_on(context, device);
  dgpuKernel_t kernel = kernel_of(context, "all_types", FUNCTION(all_types), "gx,i32,u32,i64,u64,f32,f64,ptr");
  dgpuKernel_t null_kernel = kernel_of(context, "sees_null", FUNCTION(sees_null), "ptr,ptr");
  dgpuAddr_t memory = 0, host = 0;
  double out[6];
  void* pointer = NULL;
  OK(dgpuMemAlloc(context, device, sizeof(out), &memory));
  OK(dgpuMemAllocHost(context, 8, &host, &pointer));
  uint32_t types[] = {DGPU_ARG_I32, DGPU_ARG_U32, DGPU_ARG_I64, DGPU_ARG_U64, DGPU_ARG_F32, DGPU_ARG_F64, DGPU_ARG_PTR};
  uint64_t values[] = {dgpuArgI32(-7),
                       dgpuArgU32(4000000000u),
                       dgpuArgI64(-1234567890123),
                       (uint64_t)1 << 52,
                       dgpuArgF32(0.5f),
                       dgpuArgF64(-2.25),
                       memory};
  OK(dgpuKernelLaunch(stream, kernel, 2, 1, 1, types, values, 7));
  OK(dgpuMemCopyToHostAsync(stream, out, memory, sizeof(out)));
  OK(dgpuStreamSynchronize(stream, LONG_TIME));
  assert_true(out[0] == -7 && out[1] == 4000000000.0 && out[2] == -1234567890123.0 && out[3] == 4503599627370496.0);
  assert_true(out[4] == 0.5 && out[5] == -2.25);
  /* 0 is a null pointer; pinned memory is reachable. */
  const uint32_t pointers[] = {DGPU_ARG_PTR, DGPU_ARG_PTR};
  const uint64_t null_and_host[] = {0, host};
  OK(dgpuKernelLaunch(stream, null_kernel, 1, 1, 1, pointers, null_and_host, 2));
  OK(dgpuStreamSynchronize(stream, LONG_TIME));
  assert_int_equal(*(int64_t*)pointer, 1);

  /* Wrong ones are named. */
  types[4] = DGPU_ARG_F64;
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuKernelLaunch(stream, kernel, 1, 1, 1, types, values, 7));
  MESSAGE("argument 4 of kernel all_types is f32, f64 was given");
  assert_string_equal(last_error().object, "types[4]");
  types[4] = 12345;
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuKernelLaunch(stream, kernel, 1, 1, 1, types, values, 7));
  types[4] = DGPU_ARG_F32;
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuKernelLaunch(stream, kernel, 1, 1, 1, types, values, 6));
  MESSAGE("takes 7 arguments");
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuKernelLaunch(stream, kernel, 1, 1, 1, NULL, values, 7));
  values[6] = memory + 100000;
  CHECK(DGPU_STATUS_INVALID_ADDRESS, dgpuKernelLaunch(stream, kernel, 1, 1, 1, types, values, 7));
  values[6] = (uint64_t)(uintptr_t)out;
  CHECK(DGPU_STATUS_INVALID_ADDRESS, dgpuKernelLaunch(stream, kernel, 1, 1, 1, types, values, 7));
  assert_string_equal(last_error().object, "values[6]");
  uint64_t value = 0;
  OK(dgpuStreamGetValue(stream, &value));
  assert_int_equal(value, 3); /* refused launches leave no trace */
  OK(dgpuContextDestroy(context));
}

static void memory_of_another_device_is_refused(void** state) {
  dgpuContext_t context = context_of_two(cpu_device(0), cpu_device(1));
  dgpuStream_t stream = stream_on(context, cpu_device(0));
  dgpuKernel_t kernel = kernel_of(context, "sees_null", FUNCTION(sees_null), "ptr,ptr");
  dgpuAddr_t memory = 0;
  OK(dgpuMemAlloc(context, cpu_device(1), 64, &memory));
  const uint32_t types[] = {DGPU_ARG_PTR, DGPU_ARG_PTR};
  const uint64_t values[] = {memory, memory};
  CHECK(DGPU_STATUS_INVALID_ADDRESS, dgpuKernelLaunch(stream, kernel, 1, 1, 1, types, values, 2));
  MESSAGE("cpu device 1");
  OK(dgpuContextDestroy(context));
}

static void signatures_are_checked(void** state) {
  dgpuContext_t context = context_of(cpu_device(0));
  dgpuKernel_t kernel = (dgpuKernel_t)(uintptr_t)1;
  char many[400] = "gx", name[100];
  CHECK(DGPU_STATUS_INVALID_ARGUMENT,
        dgpuKernelCreate(context, "k", FUNCTION(saxpy), "gx,float,ptr", NULL, 0, &kernel));
  MESSAGE("parameter 1 of the signature is 'float'");
  assert_null(kernel);
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuKernelCreate(context, "k", FUNCTION(saxpy), "gx,", NULL, 0, &kernel));
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuKernelCreate(context, "k", FUNCTION(saxpy), "gx,,ptr", NULL, 0, &kernel));
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuKernelCreate(context, "k", FUNCTION(saxpy), "gx,user", NULL, 0, &kernel));
  for (int i = 0; i < 24; ++i) strcat(many, ",i32");
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuKernelCreate(context, "k", FUNCTION(saxpy), many, NULL, 0, &kernel));
  MESSAGE("more than 24");
  memset(name, 'x', sizeof(name));
  name[sizeof(name) - 1] = 0;
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuKernelCreate(context, name, FUNCTION(saxpy), "gx", NULL, 0, &kernel));
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuKernelCreate(context, "k", FUNCTION(saxpy), "gx", NULL, 64, &kernel));
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuKernelCreate(context, "k", NULL, "gx", NULL, 0, &kernel));
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuKernelCreate(context, "k", FUNCTION(saxpy), NULL, NULL, 0, &kernel));
  OK(dgpuContextDestroy(context));
}

static void a_device_without_host_functions_says_so(void** state) {
  dgpuDevice_t null = null_device();
  dgpuContext_t alone = context_of(null), both = context_of_two(cpu_device(0), null);
  dgpuKernel_t kernel = NULL;
  dgpuStream_t stream = stream_on(both, null);
  CHECK(DGPU_STATUS_UNSUPPORTED, dgpuKernelCreate(alone, "k", FUNCTION(fails_at_three), "gx", NULL, 0, &kernel));
  kernel = kernel_of(both, "k", FUNCTION(fails_at_three), "gx");
  CHECK(DGPU_STATUS_UNSUPPORTED, dgpuKernelLaunch(stream, kernel, 1, 1, 1, NULL, NULL, 0));
  OK(dgpuContextDestroy(alone));
  OK(dgpuContextDestroy(both));
}

static void ends_its_thread(uint64_t x) {
  if (x == 1) pthread_exit(NULL);
}

/* What Python does to the threads that enter it while the interpreter exits. */
static void a_kernel_that_ends_its_thread_fails_its_command(void** state) {
  dgpuDevice_t device = cpu_device(0);
  dgpuContext_t context = context_of(device);
  dgpuStream_t stream = stream_on(context, device);
  dgpuKernel_t kernel = NULL;
  dgpuErrorInfo info = DGPU_ERROR_INFO_INIT;
  OK(dgpuKernelCreate(context, "quitter", FUNCTION(ends_its_thread), "gx", NULL, DGPU_KERNEL_MAY_BLOCK, &kernel));
  for (int round = 0; round < 5; ++round) {
    OK(dgpuKernelLaunch(stream, kernel, 1, 1, 1, NULL, NULL, 0));
    OK(dgpuStreamSynchronize(stream, LONG_TIME));
    OK(dgpuKernelLaunch(stream, kernel, 3, 1, 1, NULL, NULL, 0));
    CHECK(DGPU_STATUS_CALLBACK_FAILED, dgpuStreamSynchronize(stream, LONG_TIME));
    OK(dgpuGetLastError(&info));
    assert_non_null(strstr(info.message, "ended its thread"));
    OK(dgpuStreamReset(stream, LONG_TIME));
  }
  OK(dgpuContextDestroy(context));
}

static void a_failing_kernel_fails_its_command(void** state) {
  dgpuDevice_t device = cpu_device(0);
  dgpuContext_t context = context_of(device);
  dgpuStream_t stream = stream_on(context, device);
  dgpuKernel_t kernel = NULL;
  dgpuAddr_t memory = 0;
  unsigned char byte = 1;
  OK(dgpuMemAlloc(context, device, 64, &memory));
  OK(dgpuKernelCreate(context, "picky", FUNCTION(fails_at_three), "gx", NULL, DGPU_KERNEL_STATUS, &kernel));
  OK(dgpuKernelLaunch(stream, kernel, 3, 1, 1, NULL, NULL, 0));
  OK(dgpuStreamSynchronize(stream, LONG_TIME));
  for (int round = 0; round < 20; ++round) {
    OK(dgpuKernelLaunch(stream, kernel, 8, 1, 1, NULL, NULL, 0));
    const dgpuStatus_t later = dgpuMemCopyToHostAsync(stream, &byte, memory, 1); /* too late, or cancelled */
    assert_true(later == DGPU_STATUS_SUCCESS || later == DGPU_STATUS_STREAM_FAILED);
    CHECK(DGPU_STATUS_CALLBACK_FAILED, dgpuStreamSynchronize(stream, LONG_TIME));
    assert_string_equal(last_error().op, "picky");
    assert_string_equal(last_error().function, "dgpuKernelLaunch");
    assert_string_equal(last_error().backend, "cpu");
    OK(dgpuStreamReset(stream, LONG_TIME));
    OK(dgpuKernelLaunch(stream, kernel, 2, 1, 1, NULL, NULL, 0));
    OK(dgpuStreamSynchronize(stream, LONG_TIME));
  }
  assert_int_equal(byte, 1);
  OK(dgpuContextDestroy(context));
}

static void kernels_that_may_block_run_in_order(void** state) {
  dgpuDevice_t device = cpu_device(0);
  dgpuContext_t context = context_of(device);
  dgpuStream_t stream = stream_on(context, device);
  dgpuKernel_t kernel = NULL;
  OK(dgpuKernelCreate(context, "slow", FUNCTION(one_at_a_time), "gx", NULL, DGPU_KERNEL_MAY_BLOCK, &kernel));
  for (int i = 0; i < 20; ++i) {
    OK(dgpuKernelLaunch(stream, kernel, 50, 1, 1, NULL, NULL, 0));
  }
  OK(dgpuContextSynchronize(context, LONG_TIME));
  assert_int_equal(atomic_load(&points), 20 * 50);
  assert_int_equal(atomic_load(&most_inside), 1);
  assert_int_equal(atomic_load(&out_of_order), 0);
  OK(dgpuContextDestroy(context));
}

/* A kernel that waits for one on another stream: neither may keep the other from running. */
static atomic_int arrived;
static void meet(void) {
  atomic_fetch_add(&arrived, 1);
  for (int i = 0; i < 60000 && atomic_load(&arrived) < 2; ++i) usleep(1000);
}

static void kernels_that_may_block_do_not_block_other_streams(void** state) {
  dgpuContext_t context = context_of_two(cpu_device(0), cpu_device(1));
  dgpuStream_t a = stream_on(context, cpu_device(0)), b = stream_on(context, cpu_device(1));
  dgpuKernel_t kernel = NULL;
  OK(dgpuKernelCreate(context, "meet", meet, "", NULL, DGPU_KERNEL_MAY_BLOCK, &kernel));
  OK(dgpuKernelLaunch(a, kernel, 1, 1, 1, NULL, NULL, 0));
  OK(dgpuKernelLaunch(b, kernel, 1, 1, 1, NULL, NULL, 0));
  OK(dgpuContextSynchronize(context, LONG_TIME));
  assert_int_equal(atomic_load(&arrived), 2);
  OK(dgpuContextDestroy(context));
}

static void long_argument_lists_wrap_around(void** state) {
  /* 24 parameters through a small stream, often enough that its argument ring wraps many times. */
  dgpuDevice_t device = cpu_device(0);
  dgpuContext_t context = context_of(device);
  dgpuStreamOptions options = DGPU_STREAM_OPTIONS_INIT;
  dgpuStream_t stream = NULL;
  options.capacity = 64;
  options.flags = DGPU_STREAM_BLOCKING_SUBMIT;
  OK(dgpuStreamCreate(context, device, &options, &stream));
  dgpuKernel_t kernel = kernel_of(context, "all_types", FUNCTION(all_types), "gx,i32,u32,i64,u64,f32,f64,ptr");
  dgpuAddr_t memory = 0;
  OK(dgpuMemAlloc(context, device, 6 * 8 * 1000, &memory));
  const uint32_t types[] = {DGPU_ARG_I32, DGPU_ARG_U32, DGPU_ARG_I64, DGPU_ARG_U64,
                            DGPU_ARG_F32, DGPU_ARG_F64, DGPU_ARG_PTR};
  for (uint32_t i = 0; i < 1000; ++i) {
    const uint64_t values[] = {i, i + 1, i + 2, i + 3, dgpuArgF32((float)i), dgpuArgF64(i), memory + i * 48};
    OK(dgpuKernelLaunch(stream, kernel, 1, 1, 1, types, values, 7));
  }
  static double out[6 * 1000];
  OK(dgpuMemCopyToHostAsync(stream, out, memory, sizeof(out)));
  OK(dgpuStreamSynchronize(stream, LONG_TIME));
  for (uint32_t i = 0; i < 1000; ++i) {
    assert_true(out[i * 6] == i && out[i * 6 + 1] == i + 1 && out[i * 6 + 2] == i + 2 && out[i * 6 + 3] == i + 3);
    assert_true(out[i * 6 + 4] == i && out[i * 6 + 5] == i);
  }
  OK(dgpuContextDestroy(context));
}

/* A kernel that would wait for itself is told so. */
struct blocking {
  dgpuContext_t context;
  dgpuStream_t own, other;
  dgpuTimeline_t timeline; /* own's */
  dgpuStatus_t told[5];
};
static void calls_what_blocks(void* user) {
  struct blocking* b = user;
  b->told[0] = dgpuStreamSynchronize(b->own, LONG_TIME);
  b->told[1] = dgpuStreamSynchronize(b->other, LONG_TIME);
  b->told[2] = dgpuContextSynchronize(b->context, LONG_TIME);
  b->told[3] = dgpuTimelineWait(b->timeline, 1, LONG_TIME);
  b->told[4] = dgpuShutdown();
}

static void blocking_calls_inside_a_kernel_are_refused(void** state) {
  const uint32_t flags[2] = {0, DGPU_KERNEL_MAY_BLOCK};
  dgpuDevice_t device = cpu_device(0);
  struct blocking b = {.context = context_of(device)};
  b.own = stream_on(b.context, device);
  b.other = stream_on(b.context, device);
  OK(dgpuStreamGetTimeline(b.own, &b.timeline));
  for (int i = 0; i < 2; ++i) {
    dgpuKernel_t kernel = NULL;
    for (int j = 0; j < 5; ++j) b.told[j] = DGPU_STATUS_SUCCESS;
    OK(dgpuKernelCreate(b.context, "blocks", FUNCTION(calls_what_blocks), "user", &b, flags[i], &kernel));
    OK(dgpuKernelLaunch(b.own, kernel, 1, 1, 1, NULL, NULL, 0));
    OK(dgpuStreamSynchronize(b.own, LONG_TIME));
    for (int j = 0; j < 5; ++j) assert_int_equal(b.told[j], DGPU_STATUS_NOT_PERMITTED);
    OK(dgpuKernelDestroy(kernel));
  }
  OK(dgpuContextDestroy(b.context));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(saxpy_runs_over_a_grid),
      cmocka_unit_test(three_dimensions_and_user_pointer),
      cmocka_unit_test(every_type_arrives),
      cmocka_unit_test(memory_of_another_device_is_refused),
      cmocka_unit_test(signatures_are_checked),
      cmocka_unit_test(a_device_without_host_functions_says_so),
      cmocka_unit_test(a_kernel_that_ends_its_thread_fails_its_command),
      cmocka_unit_test(a_failing_kernel_fails_its_command),
      cmocka_unit_test(kernels_that_may_block_run_in_order),
      cmocka_unit_test(kernels_that_may_block_do_not_block_other_streams),
      cmocka_unit_test(blocking_calls_inside_a_kernel_are_refused),
      cmocka_unit_test(long_argument_lists_wrap_around),
  };
  return cmocka_run_group_tests(tests, setup_devices, teardown_library);
}
