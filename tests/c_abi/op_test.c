/* Operators from C: schemas, descriptors, plans, execution, errors, handles. */
#include <math.h>

#include "check.h"

struct fixture {
  dgpuDevice_t device;
  dgpuContext_t context;
  dgpuStream_t stream;
};

static int setup(void** state) {
  static struct fixture f;
  if (setup_library(state)) return -1;
  if (dgpuDeviceGet(0, &f.device) || dgpuContextCreate(&f.device, 1, NULL, &f.context) ||
      dgpuStreamCreate(f.context, f.device, NULL, &f.stream))
    return -1;
  *state = &f;
  return 0;
}

static int teardown(void** state) {
  struct fixture* f = *state;
  (void)dgpuStreamDestroy(f->stream);
  (void)dgpuContextDestroy(f->context);
  return teardown_library(state);
}

static dgpuTensorDesc tensor(dgpuDtype_t dtype, uint32_t rank, int64_t n0, int64_t n1) {
  const int64_t shape[2] = {n0, n1};
  dgpuTensorDesc desc = DGPU_TENSOR_DESC_INIT;
  OK(dgpuTensorDescPack(&desc, dtype, rank, shape));
  return desc;
}

/* out = a + b, [4 rows at most, 3], the rows symbol 1 if `symbolic`. */
static dgpuOpDesc_t add_op(int symbolic) {
  dgpuOpDesc_t op = NULL;
  dgpuTensorDesc matrix = tensor(DGPU_DTYPE_F32, 2, 4, 3);
  matrix.symbols[0] = symbolic ? 1 : 0;
  OK(dgpuOpDescCreate("binary", &op));
  OK(dgpuOpDescSetString(op, "fn", "add"));
  OK(dgpuOpDescSetTensor(op, "a", &matrix));
  OK(dgpuOpDescSetTensor(op, "b", &matrix));
  OK(dgpuOpDescSetTensor(op, "out", &matrix));
  return op;
}

static dgpuAddr_t upload(const struct fixture* f, const void* data, size_t size) {
  dgpuAddr_t address = 0;
  OK(dgpuMemAlloc(f->context, f->device, size, &address));
  OK(dgpuMemCopyFromHostAsync(f->stream, address, data, size));
  OK(dgpuStreamSynchronize(f->stream, DGPU_TIMEOUT_INFINITE));
  return address;
}

static void download(const struct fixture* f, void* data, dgpuAddr_t address, size_t size) {
  OK(dgpuMemCopyToHostAsync(f->stream, data, address, size));
  OK(dgpuStreamSynchronize(f->stream, DGPU_TIMEOUT_INFINITE));
}

static void schemas_are_listed(void** state) {
  uint32_t count = 0;
  const char* previous = "";
  const char* name = NULL;
  char json[16384];
  size_t needed = 0;
  (void)state;
  OK(dgpuOpCount(&count));
  assert_int_equal(count, 19);
  for (uint32_t i = 0; i < count; ++i) {
    OK(dgpuOpGetName(i, &name));
    assert_true(strcmp(previous, name) < 0);
    previous = name;
    OK(dgpuOpGetSchema(name, NULL, 0, &needed));
    assert_true(needed > 100 && needed <= sizeof(json));
    OK(dgpuOpGetSchema(name, json, sizeof(json), NULL));
    assert_int_equal(strlen(json) + 1, needed);
    CHECK(DGPU_STATUS_BUFFER_TOO_SMALL, dgpuOpGetSchema(name, json, needed - 1, NULL));
  }
  OK(dgpuOpGetSchema("rms_norm", json, sizeof(json), NULL));
  assert_non_null(strstr(json, "\"before_weight\""));
  assert_non_null(strstr(json, "\"version\": 1"));
  name = "x";
  CHECK(DGPU_STATUS_NOT_FOUND, dgpuOpGetName(count, &name));
  assert_null(name);
  CHECK(DGPU_STATUS_NOT_FOUND, dgpuOpGetSchema("nonsense", json, sizeof(json), NULL));
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuOpGetSchema(NULL, json, sizeof(json), NULL));
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuOpCount(NULL));
}

static void descriptors_check_what_they_take(void** state) {
  dgpuOpDesc_t op = (dgpuOpDesc_t)(uintptr_t)1;
  dgpuTensorDesc matrix = tensor(DGPU_DTYPE_F32, 2, 2, 3), inferred = DGPU_TENSOR_DESC_INIT;
  struct {
    dgpuTensorDesc desc;
    uint64_t tail;
  } longer = {DGPU_TENSOR_DESC_INIT, 0};
  const int64_t axes[1] = {0};
  (void)state;
  CHECK(DGPU_STATUS_NOT_FOUND, dgpuOpDescCreate("nonsense", &op));
  assert_null(op);
  MESSAGE("rms_norm");
  OK(dgpuOpDescCreate("rms_norm", &op));
  CHECK(DGPU_STATUS_INVALID_ATTRIBUTE, dgpuOpDescSetFloat(op, "epsilon", 1e-5));
  MESSAGE("rms_norm: attribute epsilon");
  MESSAGE("eps weight_offset cast");
  CHECK(DGPU_STATUS_INVALID_ATTRIBUTE, dgpuOpDescSetString(op, "eps", "small"));
  MESSAGE("expected float, got string small");
  CHECK(DGPU_STATUS_INVALID_ATTRIBUTE, dgpuOpDescSetString(op, "cast", "never"));
  MESSAGE("before_weight after_weight");
  CHECK(DGPU_STATUS_INVALID_ATTRIBUTE, dgpuOpDescSetBool(op, "eps", 1));
  CHECK(DGPU_STATUS_INVALID_ATTRIBUTE, dgpuOpDescSetInts(op, "eps", axes, 1));
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuOpDescSetFloat(op, NULL, 1));
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuOpDescSetString(op, "cast", NULL));
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuOpDescSetInts(op, "eps", NULL, 1));
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuOpDescSetTensor(op, "x", NULL));
  CHECK(DGPU_STATUS_INVALID_ATTRIBUTE, dgpuOpDescSetTensor(op, "y", &matrix));
  matrix.dtype = DGPU_DTYPE_I32;
  CHECK(DGPU_STATUS_INVALID_DTYPE, dgpuOpDescSetTensor(op, "x", &matrix));
  MESSAGE("rms_norm: port x: expected f32 bf16 f16 f64, got i32");
  matrix.dtype = DGPU_DTYPE_BF16;
  CHECK(DGPU_STATUS_INVALID_ATTRIBUTE, dgpuOpDescInfer(op, "out", &inferred));
  MESSAGE("attribute eps: is missing");
  OK(dgpuOpDescSetInt(op, "eps", 1)); /* an integer is a float too */
  OK(dgpuOpDescSetFloat(op, "eps", 1e-5));
  CHECK(DGPU_STATUS_INVALID_SHAPE, dgpuOpDescInfer(op, "out", &inferred));
  MESSAGE("port x");
  longer.desc = matrix;
  longer.desc.struct_size = sizeof(longer);
  OK(dgpuOpDescSetTensor(op, "x", &longer.desc));
  longer.tail = 1;
  CHECK(DGPU_STATUS_UNSUPPORTED_FIELD, dgpuOpDescSetTensor(op, "x", &longer.desc));
  OK(dgpuOpDescInfer(op, "out", &inferred));
  assert_int_equal(inferred.dtype, DGPU_DTYPE_BF16);
  assert_int_equal(inferred.rank, 2);
  assert_int_equal(inferred.shape[1], 3);
  assert_int_equal(inferred.strides[0], 3);
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuOpDescInfer(op, "x", &inferred));
  assert_int_equal(inferred.rank, 0);
  OK(dgpuOpDescDestroy(op));
}

static void plan_runs(void** state) {
  const struct fixture* f = *state;
  const float a[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
              b[12] = {10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120};
  const float zero[12] = {0};
  float got[12];
  dgpuOpDesc_t op = add_op(1);
  dgpuOpPlan_t plan = NULL;
  dgpuPlanInfo info = DGPU_PLAN_INFO_INIT;
  const char* port = NULL;
  OK(dgpuOpPlanCreate(f->context, f->device, op, &plan));
  OK(dgpuOpDescDestroy(op)); /* the plan does not need it */
  OK(dgpuOpPlanGetInfo(plan, &info));
  assert_int_equal(info.port_count, 3);
  assert_int_equal(info.symbol_count, 1);
  OK(dgpuOpPlanGetPort(plan, 2, &port));
  assert_string_equal(port, "out");
  CHECK(DGPU_STATUS_NOT_FOUND, dgpuOpPlanGetPort(plan, 3, &port));
  assert_null(port);
  dgpuAddr_t addresses[3] = {upload(f, a, sizeof(a)), upload(f, b, sizeof(b)), upload(f, zero, sizeof(zero))};
  dgpuAddr_t workspace = 0;
  if (info.workspace_bytes) OK(dgpuMemAlloc(f->context, f->device, info.workspace_bytes, &workspace));
  for (int64_t rows = 0; rows <= 4; rows += 2) {
    OK(dgpuOpPlanExecute(plan, f->stream, addresses, 3, &rows, 1, workspace));
    download(f, got, addresses[2], sizeof(got));
    for (int i = 0; i < 12; ++i) assert_true(got[i] == (i < 3 * rows ? a[i] + b[i] : 0));
  }
  /* In place: out may be a. */
  const int64_t rows = 4;
  const dgpuAddr_t in_place[3] = {addresses[0], addresses[1], addresses[0]};
  OK(dgpuOpPlanExecute(plan, f->stream, in_place, 3, &rows, 1, workspace));
  download(f, got, addresses[0], sizeof(got));
  for (int i = 0; i < 12; ++i) assert_true(got[i] == a[i] + b[i]);
  OK(dgpuOpPlanDestroy(plan));
  for (int i = 0; i < 3; ++i) OK(dgpuMemFree(f->context, addresses[i]));
  if (workspace) OK(dgpuMemFree(f->context, workspace));
}

static void execute_checks_its_arguments(void** state) {
  const struct fixture* f = *state;
  const float data[64] = {0};
  dgpuOpDesc_t op = add_op(1);
  dgpuOpPlan_t plan = NULL;
  OK(dgpuOpPlanCreate(f->context, f->device, op, &plan));
  const dgpuAddr_t m = upload(f, data, sizeof(data)), freed = upload(f, data, sizeof(data));
  OK(dgpuMemFree(f->context, freed));
  const dgpuAddr_t good[3] = {m, m + 48, m + 96};
  int64_t rows = 4;
  OK(dgpuOpPlanExecute(plan, f->stream, good, 3, &rows, 1, 0));
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuOpPlanExecute(plan, f->stream, good, 2, &rows, 1, 0));
  MESSAGE("expected 3");
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuOpPlanExecute(plan, f->stream, good, 3, &rows, 0, 0));
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuOpPlanExecute(plan, f->stream, NULL, 3, &rows, 1, 0));
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuOpPlanExecute(plan, f->stream, good, 3, NULL, 1, 0));
  rows = 5;
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuOpPlanExecute(plan, f->stream, good, 3, &rows, 1, 0));
  MESSAGE("symbol 1: expected 0 to 4, got 5");
  rows = -1;
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuOpPlanExecute(plan, f->stream, good, 3, &rows, 1, 0));
  rows = 4;
  const dgpuAddr_t overlap[3] = {m, m + 48, m + 12};
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuOpPlanExecute(plan, f->stream, overlap, 3, &rows, 1, 0));
  MESSAGE("port out: overlaps the memory of port a");
  const dgpuAddr_t beyond[3] = {m, m + 48, m + 256 - 36};
  CHECK(DGPU_STATUS_INVALID_ADDRESS, dgpuOpPlanExecute(plan, f->stream, beyond, 3, &rows, 1, 0));
  rows = 3; /* the smaller execution fits */
  OK(dgpuOpPlanExecute(plan, f->stream, beyond, 3, &rows, 1, 0));
  const dgpuAddr_t odd[3] = {m + 1, m + 48, m + 96}, dead[3] = {freed, m + 48, m + 96}, null[3] = {0, m + 48, m + 96};
  CHECK(DGPU_STATUS_INVALID_ADDRESS, dgpuOpPlanExecute(plan, f->stream, odd, 3, &rows, 1, 0));
  MESSAGE("not aligned");
  CHECK(DGPU_STATUS_INVALID_ADDRESS, dgpuOpPlanExecute(plan, f->stream, dead, 3, &rows, 1, 0));
  CHECK(DGPU_STATUS_INVALID_ADDRESS, dgpuOpPlanExecute(plan, f->stream, null, 3, &rows, 1, 0));
  OK(dgpuStreamSynchronize(f->stream, DGPU_TIMEOUT_INFINITE)); /* nothing of that was submitted */
  OK(dgpuMemFree(f->context, m));
  OK(dgpuOpPlanDestroy(plan));
  OK(dgpuOpDescDestroy(op));
}

/* Data that is out of range fails the command, and the stream carries the record to whoever waits. */
static void data_out_of_range_fails_the_stream(void** state) {
  const struct fixture* f = *state;
  const float table[6] = {1, 2, 3, 4, 5, 6}, zero[4] = {0};
  const int32_t ids[2] = {0, 7};
  dgpuOpDesc_t op = NULL;
  dgpuOpPlan_t plan = NULL;
  dgpuTensorDesc t = tensor(DGPU_DTYPE_F32, 2, 3, 2), i = tensor(DGPU_DTYPE_I32, 1, 2, 0),
                 o = tensor(DGPU_DTYPE_F32, 2, 2, 2);
  OK(dgpuOpDescCreate("embedding", &op));
  OK(dgpuOpDescSetTensor(op, "table", &t));
  OK(dgpuOpDescSetTensor(op, "ids", &i));
  OK(dgpuOpDescSetTensor(op, "out", &o));
  OK(dgpuOpPlanCreate(f->context, f->device, op, &plan));
  const dgpuAddr_t addresses[3] = {upload(f, table, sizeof(table)), upload(f, ids, sizeof(ids)),
                                   upload(f, zero, sizeof(zero))};
  OK(dgpuOpPlanExecute(plan, f->stream, addresses, 3, NULL, 0, 0));
  CHECK(DGPU_STATUS_DATA_OUT_OF_RANGE, dgpuStreamSynchronize(f->stream, DGPU_TIMEOUT_INFINITE));
  assert_string_equal(last_error().op, "embedding");
  assert_string_equal(last_error().function, "dgpuOpPlanExecute");
  assert_true(last_error().value > 0);
  CHECK(DGPU_STATUS_STREAM_FAILED, dgpuOpPlanExecute(plan, f->stream, addresses, 3, NULL, 0, 0));
  OK(dgpuStreamReset(f->stream, DGPU_TIMEOUT_INFINITE));
  for (int n = 0; n < 3; ++n) OK(dgpuMemFree(f->context, addresses[n]));
  OK(dgpuOpPlanDestroy(plan));
  OK(dgpuOpDescDestroy(op));
}

static void reference_runs_on_host_memory(void** state) {
  double a[12], out[12];
  float b[12];
  dgpuOpDesc_t op = add_op(1);
  dgpuTensorDesc wide = tensor(DGPU_DTYPE_F64, 2, 4, 3);
  const int64_t rows = 4, too_many = 5;
  (void)state;
  wide.symbols[0] = 1;
  OK(dgpuOpDescSetTensor(op, "a", &wide));
  OK(dgpuOpDescSetTensor(op, "out", &wide));
  for (int i = 0; i < 12; ++i) {
    a[i] = 1e-9 * i;
    b[i] = 1;
  }
  void* const pointers[3] = {a, b, out};
  void* const null[3] = {a, NULL, out};
  OK(dgpuOpReference(op, pointers, 3, &rows, 1));
  for (int i = 0; i < 12; ++i) assert_true(out[i] == a[i] + 1);
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuOpReference(op, pointers, 2, &rows, 1));
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuOpReference(op, pointers, 3, &too_many, 1));
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuOpReference(op, null, 3, &rows, 1));
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuOpReference(op, NULL, 3, &rows, 1));
  OK(dgpuOpDescDestroy(op));
}

#define DEAD(call) CHECK(DGPU_STATUS_INVALID_HANDLE, call)

static void bad_descriptor(const struct fixture* f, dgpuOpDesc_t op) {
  dgpuTensorDesc matrix = tensor(DGPU_DTYPE_F32, 2, 4, 3);
  dgpuOpPlan_t plan = (dgpuOpPlan_t)(uintptr_t)1;
  const int64_t ints[1] = {0};
  const double floats[1] = {0};
  DEAD(dgpuOpDescSetInt(op, "fn", 1));
  DEAD(dgpuOpDescSetFloat(op, "fn", 1));
  DEAD(dgpuOpDescSetBool(op, "fn", 1));
  DEAD(dgpuOpDescSetString(op, "fn", "add"));
  DEAD(dgpuOpDescSetInts(op, "fn", ints, 1));
  DEAD(dgpuOpDescSetFloats(op, "fn", floats, 1));
  DEAD(dgpuOpDescSetTensor(op, "a", &matrix));
  DEAD(dgpuOpDescInfer(op, "out", &matrix));
  DEAD(dgpuOpReference(op, NULL, 0, NULL, 0));
  DEAD(dgpuOpPlanCreate(f->context, f->device, op, &plan));
  assert_null(plan);
  DEAD(dgpuOpDescDestroy(op));
}

static void bad_plan(const struct fixture* f, dgpuOpPlan_t plan) {
  dgpuPlanInfo info = DGPU_PLAN_INFO_INIT;
  const char* port = "x";
  DEAD(dgpuOpPlanGetInfo(plan, &info));
  DEAD(dgpuOpPlanGetPort(plan, 0, &port));
  assert_null(port);
  DEAD(dgpuOpPlanExecute(plan, f->stream, NULL, 0, NULL, 0, 0));
  DEAD(dgpuOpPlanDestroy(plan));
}

static void handles_are_checked(void** state) {
  const struct fixture* f = *state;
  dgpuOpDesc_t op = add_op(0);
  dgpuOpPlan_t plan = NULL, other = NULL;
  dgpuContext_t context = NULL;
  OK(dgpuOpPlanCreate(f->context, f->device, op, &plan));
  bad_descriptor(f, NULL);
  bad_descriptor(f, (dgpuOpDesc_t)plan);
  bad_descriptor(f, (dgpuOpDesc_t)f->stream);
  bad_plan(f, NULL);
  bad_plan(f, (dgpuOpPlan_t)op);
  DEAD(dgpuOpPlanCreate(NULL, f->device, op, &other));
  DEAD(dgpuOpPlanCreate((dgpuContext_t)f->stream, f->device, op, &other));
  DEAD(dgpuOpPlanCreate(f->context, NULL, op, &other));
  DEAD(dgpuOpPlanExecute(plan, NULL, NULL, 0, NULL, 0, 0));
  DEAD(dgpuOpPlanExecute(plan, (dgpuStream_t)plan, NULL, 0, NULL, 0, 0));
  /* A plan of another context does not run on this one's stream, and dies with its context. */
  OK(dgpuContextCreate(&f->device, 1, NULL, &context));
  OK(dgpuOpPlanCreate(context, f->device, op, &other));
  const dgpuAddr_t none[3] = {0};
  CHECK(DGPU_STATUS_CONTEXT_MISMATCH, dgpuOpPlanExecute(other, f->stream, none, 3, NULL, 0, 0));
  OK(dgpuContextDestroy(context));
  bad_plan(f, other);
  OK(dgpuOpDescDestroy(op));
  bad_descriptor(f, op);
  OK(dgpuOpPlanDestroy(plan));
  bad_plan(f, plan);
}

/* Destroying a plan that is queued is fine. */
static void plan_may_go_while_it_runs(void** state) {
  const struct fixture* f = *state;
  const float data[36] = {0};
  const dgpuAddr_t m = upload(f, data, sizeof(data));
  const dgpuAddr_t addresses[3] = {m, m + 48, m + 96};
  for (int n = 0; n < 50; ++n) {
    dgpuOpDesc_t op = add_op(0);
    dgpuOpPlan_t plan = NULL;
    OK(dgpuOpPlanCreate(f->context, f->device, op, &plan));
    OK(dgpuOpPlanExecute(plan, f->stream, addresses, 3, NULL, 0, 0));
    OK(dgpuOpPlanDestroy(plan));
    OK(dgpuOpDescDestroy(op));
  }
  OK(dgpuStreamSynchronize(f->stream, DGPU_TIMEOUT_INFINITE));
  OK(dgpuMemFree(f->context, m));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(schemas_are_listed),
      cmocka_unit_test(descriptors_check_what_they_take),
      cmocka_unit_test(plan_runs),
      cmocka_unit_test(execute_checks_its_arguments),
      cmocka_unit_test(data_out_of_range_fails_the_stream),
      cmocka_unit_test(reference_runs_on_host_memory),
      cmocka_unit_test(handles_are_checked),
      cmocka_unit_test(plan_may_go_while_it_runs),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
