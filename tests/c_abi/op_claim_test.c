/* A plugin of an older operator schema is offered only what it knows; the rest runs another way, with the reason said.
 * The plugin aborts the process when it is offered more, see tests/plugins/old_schema.c. */
#include <math.h>

#include "check.h"

struct fixture {
  dgpuBackend_t backend;
  dgpuDevice_t device;
  dgpuContext_t context;
  dgpuStream_t stream;
};

enum { ROWS = 3, WIDTH = 5 };

static dgpuTensorDesc tensor(dgpuDtype_t dtype, uint32_t rank) {
  const int64_t shape[2] = {rank == 2 ? ROWS : WIDTH, WIDTH};
  dgpuTensorDesc desc = DGPU_TENSOR_DESC_INIT;
  OK(dgpuTensorDescPack(&desc, dtype, rank, shape));
  return desc;
}

static int setup(void** state) {
  static struct fixture f;
  char path[512];
  uint32_t count = 0;
  if (setup_library(state)) return -1;
  const char* plugins = getenv("DGPU_TEST_PLUGINS");
  snprintf(path, sizeof(path), "%s/old_schema.so", plugins ? plugins : "build/release/tests/plugins");
  if (dgpuBackendLoad(path, &f.backend) || dgpuDeviceCount(&count) || dgpuDeviceGet(count - 1, &f.device) ||
      dgpuContextCreate(&f.device, 1, NULL, &f.context) || dgpuStreamCreate(f.context, f.device, NULL, &f.stream)) {
    print_error("setup: %s\n", last_error().message);
    return -1;
  }
  *state = &f;
  return 0;
}

static int teardown(void** state) {
  struct fixture* f = *state;
  (void)dgpuStreamDestroy(f->stream);
  (void)dgpuContextDestroy(f->context);
  (void)dgpuBackendUnload(f->backend, 1000000000);
  return teardown_library(state);
}

/* A norm with weight, in f32, as the plugin knows it. */
static dgpuOpDesc_t known_norm(void) {
  dgpuOpDesc_t op = NULL;
  dgpuTensorDesc matrix = tensor(DGPU_DTYPE_F32, 2), row = tensor(DGPU_DTYPE_F32, 1);
  OK(dgpuOpDescCreate("rms_norm", &op));
  OK(dgpuOpDescSetFloat(op, "eps", 1e-3));
  OK(dgpuOpDescSetFloat(op, "weight_offset", 1));
  OK(dgpuOpDescSetString(op, "cast", "before_weight"));
  OK(dgpuOpDescSetTensor(op, "x", &matrix));
  OK(dgpuOpDescSetTensor(op, "weight", &row));
  OK(dgpuOpDescSetTensor(op, "out", &matrix));
  return op;
}

/* Plans, runs on f32 data, and compares every output with the reference. */
static void check_run(const struct fixture* f, dgpuOpDesc_t op, uint32_t mode, const char* reason) {
  dgpuOpPlan_t plan = NULL;
  dgpuPlanInfo info = DGPU_PLAN_INFO_INIT;
  float host[8][ROWS * WIDTH], got[ROWS * WIDTH];
  void* pointers[8];
  dgpuAddr_t addresses[8], workspace = 0;
  OK(dgpuOpPlanCreate(f->context, f->device, op, &plan));
  OK(dgpuOpPlanGetInfo(plan, &info));
  if (info.mode != mode || !strstr(info.reason, reason))
    print_error("mode %u, reason \"%s\"\n", info.mode, info.reason);
  assert_int_equal(info.mode, mode);
  assert_non_null(strstr(info.reason, reason));
  assert_true(info.port_count <= 8);
  for (uint32_t p = 0; p < info.port_count; ++p) {
    pointers[p] = host[p];
    for (int i = 0; i < ROWS * WIDTH; ++i) host[p][i] = (float)((i * 7 + p * 3) % 11) - 5;
    OK(dgpuMemAlloc(f->context, f->device, sizeof(host[p]), &addresses[p]));
    OK(dgpuMemCopyFromHostAsync(f->stream, addresses[p], host[p], sizeof(host[p])));
  }
  if (info.workspace_bytes) OK(dgpuMemAlloc(f->context, f->device, info.workspace_bytes, &workspace));
  OK(dgpuOpPlanExecute(plan, f->stream, addresses, info.port_count, NULL, 0, workspace));
  OK(dgpuStreamSynchronize(f->stream, DGPU_TIMEOUT_INFINITE));
  OK(dgpuOpReference(op, pointers, info.port_count, NULL, 0));
  for (uint32_t p = 0; p < info.port_count; ++p) {
    OK(dgpuMemCopyToHostAsync(f->stream, got, addresses[p], sizeof(got)));
    OK(dgpuStreamSynchronize(f->stream, DGPU_TIMEOUT_INFINITE));
    for (int i = 0; i < ROWS * WIDTH; ++i) assert_true(fabsf(got[i] - host[p][i]) <= 1e-6f * (1 + fabsf(host[p][i])));
    OK(dgpuMemFree(f->context, addresses[p]));
  }
  if (workspace) OK(dgpuMemFree(f->context, workspace));
  OK(dgpuOpPlanDestroy(plan));
  OK(dgpuOpDescDestroy(op));
}

static void what_it_knows_is_native(void** state) { check_run(*state, known_norm(), DGPU_PLAN_NATIVE, ""); }

static void a_new_attribute_value_is_not_offered(void** state) {
  dgpuOpDesc_t op = known_norm();
  OK(dgpuOpDescSetString(op, "cast", "after_weight"));
  check_run(*state, op, DGPU_PLAN_REFERENCE, "claim lacks attribute cast=after_weight");
}

static void a_new_port_is_not_offered(void** state) {
  dgpuOpDesc_t op = known_norm();
  dgpuTensorDesc matrix = tensor(DGPU_DTYPE_F32, 2);
  OK(dgpuOpDescSetTensor(op, "residual", &matrix));
  /* The norm alone would be native, but the sum before it is not known either. */
  check_run(*state, op, DGPU_PLAN_REFERENCE,
            "claim lacks port residual=f32; not composed: binary: the backend does not claim");
}

static void a_new_type_is_not_offered(void** state) {
  const struct fixture* f = *state;
  dgpuOpDesc_t op = known_norm();
  dgpuOpPlan_t plan = NULL;
  dgpuPlanInfo info = DGPU_PLAN_INFO_INIT;
  dgpuTensorDesc row = tensor(DGPU_DTYPE_BF16, 1);
  OK(dgpuOpDescSetTensor(op, "weight", &row));
  OK(dgpuOpPlanCreate(f->context, f->device, op, &plan));
  OK(dgpuOpPlanGetInfo(plan, &info));
  assert_int_equal(info.mode, DGPU_PLAN_REFERENCE);
  assert_non_null(strstr(info.reason, "claim lacks port weight=bf16"));
  OK(dgpuOpPlanDestroy(plan));
  OK(dgpuOpDescDestroy(op));
}

static void another_operator_is_not_offered(void** state) {
  dgpuOpDesc_t op = NULL;
  dgpuTensorDesc matrix = tensor(DGPU_DTYPE_F32, 2);
  OK(dgpuOpDescCreate("unary", &op));
  OK(dgpuOpDescSetString(op, "fn", "square"));
  OK(dgpuOpDescSetTensor(op, "x", &matrix));
  OK(dgpuOpDescSetTensor(op, "out", &matrix));
  check_run(*state, op, DGPU_PLAN_REFERENCE, "the backend does not claim unary");
}

static dgpuOpDesc_t windowed_attention(void) {
  static const struct {
    const char* name;
    dgpuDtype_t dtype;
    uint32_t rank;
    int64_t shape[4];
  } ports[] = {{"q", DGPU_DTYPE_F32, 3, {1, 2, 4}},     {"k0", DGPU_DTYPE_F32, 4, {1, 8, 1, 4}},
               {"v0", DGPU_DTYPE_F32, 4, {1, 8, 1, 4}}, {"table0", DGPU_DTYPE_I32, 2, {1, 1}},
               {"lengths0", DGPU_DTYPE_I32, 1, {1}},    {"offsets", DGPU_DTYPE_I32, 1, {2}},
               {"positions", DGPU_DTYPE_I32, 1, {1}},   {"out", DGPU_DTYPE_F32, 3, {1, 2, 4}}};
  dgpuOpDesc_t op = NULL;
  const int64_t window = 4;
  OK(dgpuOpDescCreate("attention", &op));
  OK(dgpuOpDescSetFloat(op, "scale", 0.5));
  OK(dgpuOpDescSetBool(op, "causal", 1));
  OK(dgpuOpDescSetInts(op, "window", &window, 1));
  for (size_t i = 0; i < sizeof(ports) / sizeof(ports[0]); ++i) {
    dgpuTensorDesc desc = DGPU_TENSOR_DESC_INIT;
    OK(dgpuTensorDescPack(&desc, ports[i].dtype, ports[i].rank, ports[i].shape));
    OK(dgpuOpDescSetTensor(op, ports[i].name, &desc));
  }
  return op;
}

/* A ring keeps keys at other places: whoever ignores the attribute reads the wrong ones. */
static void a_ring_is_not_offered(void** state) {
  const struct fixture* f = *state;
  static const char* const reasons[] = {"old_schema was offered this attention", "claim lacks attribute ring=[1]"};
  for (int64_t ring = 0; ring < 2; ++ring) {
    dgpuOpDesc_t op = windowed_attention();
    dgpuOpPlan_t plan = NULL;
    dgpuPlanInfo info = DGPU_PLAN_INFO_INIT;
    if (ring) OK(dgpuOpDescSetInts(op, "ring", &ring, 1));
    OK(dgpuOpPlanCreate(f->context, f->device, op, &plan));
    OK(dgpuOpPlanGetInfo(plan, &info));
    assert_int_equal(info.mode, DGPU_PLAN_REFERENCE);
    if (!strstr(info.reason, reasons[ring])) print_error("reason \"%s\"\n", info.reason);
    assert_non_null(strstr(info.reason, reasons[ring]));
    OK(dgpuOpPlanDestroy(plan));
    OK(dgpuOpDescDestroy(op));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_it_knows_is_native),         cmocka_unit_test(a_new_attribute_value_is_not_offered),
      cmocka_unit_test(a_new_port_is_not_offered),       cmocka_unit_test(a_new_type_is_not_offered),
      cmocka_unit_test(another_operator_is_not_offered), cmocka_unit_test(a_ring_is_not_offered),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
