/* Executing a native or composed plan allocates nothing on the calling thread. malloc is replaced by a counting one. */
#include "check.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNTED 0 /* sanitizers bring their own malloc */
#else
#define COUNTED 1
static _Thread_local long allocations;
extern void* __libc_malloc(size_t size);
extern void* __libc_calloc(size_t count, size_t size);
extern void* __libc_realloc(void* pointer, size_t size);
extern void* __libc_memalign(size_t alignment, size_t size);
DGPU_API void* malloc(size_t size) {
  ++allocations;
  return __libc_malloc(size);
}
DGPU_API void* calloc(size_t count, size_t size) {
  ++allocations;
  return __libc_calloc(count, size);
}
DGPU_API void* realloc(void* pointer, size_t size) {
  ++allocations;
  return __libc_realloc(pointer, size);
}
DGPU_API void* aligned_alloc(size_t alignment, size_t size) {
  ++allocations;
  return __libc_memalign(alignment, size);
}
#endif

static void execution_allocates_nothing(void** state) {
  (void)state;
#if !COUNTED
  print_message("skipped: the sanitizer replaces malloc\n");
  skip();
#else
  const int64_t a_shape[2] = {8, 16}, b_shape[2] = {32, 16}, out_shape[2] = {8, 32};
  dgpuDevice_t device = NULL;
  dgpuContext_t context = NULL;
  dgpuStream_t stream = NULL;
  dgpuOpDesc_t op = NULL;
  dgpuOpPlan_t plan = NULL;
  dgpuPlanInfo info = DGPU_PLAN_INFO_INIT;
  dgpuTensorDesc a = DGPU_TENSOR_DESC_INIT, b = DGPU_TENSOR_DESC_INIT, out = DGPU_TENSOR_DESC_INIT;
  dgpuAddr_t memory = 0, workspace = 0;
  OK(dgpuDeviceGet(0, &device));
  OK(dgpuContextCreate(&device, 1, NULL, &context));
  OK(dgpuStreamCreate(context, device, NULL, &stream));
  OK(dgpuTensorDescPack(&a, DGPU_DTYPE_F32, 2, a_shape));
  OK(dgpuTensorDescPack(&b, DGPU_DTYPE_F32, 2, b_shape));
  OK(dgpuTensorDescPack(&out, DGPU_DTYPE_F32, 2, out_shape));
  a.symbols[0] = out.symbols[0] = 1;
  OK(dgpuOpDescCreate("matmul", &op));
  OK(dgpuOpDescSetBool(op, "transpose_b", 1));
  OK(dgpuOpDescSetString(op, "activation", "silu"));
  OK(dgpuOpDescSetTensor(op, "a", &a));
  OK(dgpuOpDescSetTensor(op, "b", &b));
  OK(dgpuOpDescSetTensor(op, "out", &out));
  OK(dgpuOpPlanCreate(context, device, op, &plan));
  OK(dgpuOpPlanGetInfo(plan, &info));
  assert_int_not_equal(info.mode, DGPU_PLAN_REFERENCE);
  assert_true(allocations > 0); /* planning does allocate: the library's calls are counted */
  OK(dgpuMemAlloc(context, device, 8192, &memory));
  if (info.workspace_bytes) OK(dgpuMemAlloc(context, device, info.workspace_bytes, &workspace));
  OK(dgpuMemFillAsync(stream, memory, 0, 4, 8192));
  const dgpuAddr_t addresses[3] = {memory, memory + 2048, memory + 6144};
  long most = 0;
  for (int round = 0; round < 100; ++round) {
    const int64_t rows = round % 9;
    const long before = allocations;
    const dgpuStatus_t status = dgpuOpPlanExecute(plan, stream, addresses, 3, &rows, 1, workspace);
    if (round >= 10 && allocations - before > most) most = allocations - before; /* threads have warmed up */
    OK(status);
    if (round % 16 == 15) OK(dgpuStreamSynchronize(stream, DGPU_TIMEOUT_INFINITE));
  }
  assert_int_equal(most, 0);
  OK(dgpuStreamSynchronize(stream, DGPU_TIMEOUT_INFINITE));
  OK(dgpuOpPlanDestroy(plan));
  OK(dgpuOpDescDestroy(op));
  OK(dgpuStreamDestroy(stream));
  OK(dgpuContextDestroy(context));
#endif
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(execution_allocates_nothing)};
  return cmocka_run_group_tests(tests, setup_library, teardown_library);
}
