/* struct_size rules, errors, log, settings, element types. */
#include <pthread.h>
#include <stdatomic.h>

#include "check.h"

/* ---- struct_size ---- */

static void a_short_struct_means_zero(void** state) {
  struct {
    size_t struct_size;
    uint32_t flags;
  } early = {sizeof(size_t) + sizeof(uint32_t), 0};
  OK(dgpuInit((const dgpuInitOptions*)(const void*)&early));
  OK(dgpuShutdown());
}

static void a_struct_without_size_is_refused(void** state) {
  dgpuInitOptions options = DGPU_INIT_OPTIONS_INIT;
  options.struct_size = 0;
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuInit(&options));
  MESSAGE("dgpuInitOptions");
  MESSAGE("_INIT");
  options.struct_size = 4;
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuInit(&options));
}

typedef struct {
  dgpuInitOptions known;
  uint64_t later;
} LaterOptions;

static void a_long_struct_may_have_a_clean_tail(void** state) {
  LaterOptions options = {DGPU_INIT_OPTIONS_INIT, 0};
  options.known.struct_size = sizeof(options);
  OK(dgpuInit(&options.known));
  OK(dgpuShutdown());
}

static void a_long_struct_may_not_have_a_dirty_tail(void** state) {
  LaterOptions options = {DGPU_INIT_OPTIONS_INIT, 0};
  options.known.struct_size = sizeof(options);
  ((unsigned char*)&options.later)[7] = 1;
  CHECK(DGPU_STATUS_UNSUPPORTED_FIELD, dgpuInit(&options.known));
  MESSAGE("dgpuInitOptions");
  assert_string_equal(last_error().object, "dgpuInitOptions");
  options.known.struct_size = sizeof(options) - 1; /* now the dirty byte lies outside */
  OK(dgpuInit(&options.known));
  OK(dgpuShutdown());
}

static void unknown_flags_are_refused(void** state) {
  dgpuInitOptions options = DGPU_INIT_OPTIONS_INIT;
  options.flags = 1;
  CHECK(DGPU_STATUS_UNSUPPORTED_FIELD, dgpuInit(&options));
  assert_string_equal(last_error().object, "flags");
}

static void outputs_end_at_struct_size(void** state) {
  unsigned char bytes[sizeof(dgpuConfigInfo) + 16];
  memset(bytes, 0xAB, sizeof(bytes));
  dgpuConfigInfo* info = (dgpuConfigInfo*)(void*)bytes;
  info->struct_size = offsetof(dgpuConfigInfo, help);
  OK(dgpuConfigGetInfo(0, info));
  assert_int_equal(info->struct_size, offsetof(dgpuConfigInfo, help));
  assert_non_null(info->name);
  for (size_t i = offsetof(dgpuConfigInfo, help); i < sizeof(bytes); ++i) assert_int_equal(bytes[i], 0xAB);
  info->struct_size = sizeof(bytes); /* a caller of a later version: the rest stays as it was */
  OK(dgpuConfigGetInfo(0, info));
  assert_int_equal(info->struct_size, sizeof(bytes));
  assert_non_null(info->help);
  for (size_t i = sizeof(dgpuConfigInfo); i < sizeof(bytes); ++i) assert_int_equal(bytes[i], 0xAB);
}

static void outputs_are_zero_on_failure(void** state) {
  dgpuConfigInfo info = DGPU_CONFIG_INFO_INIT;
  info.name = "old";
  info.source = 99;
  CHECK(DGPU_STATUS_NOT_FOUND, dgpuConfigGetInfo(100000, &info));
  assert_null(info.name);
  assert_int_equal(info.source, 0);
  assert_int_equal(info.struct_size, sizeof(info));
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuConfigGetInfo(0, NULL));
}

/* ---- Errors ---- */

static void every_status_has_name_text_and_class(void** state) {
#define ROW(name, value, cls, text)                                              \
  assert_string_equal(dgpuStatusName(DGPU_STATUS_##name), "DGPU_STATUS_" #name); \
  assert_string_equal(dgpuStatusText(value), text);                              \
  assert_int_equal(dgpuStatusClass(value), DGPU_STATUS_CLASS_##cls);
  DGPU_STATUS_LIST(ROW)
#undef ROW
  assert_string_equal(dgpuStatusName(-99), "DGPU_STATUS_UNKNOWN");
  assert_int_equal(dgpuStatusClass(-99), DGPU_STATUS_CLASS_CALLER);
  assert_int_equal(dgpuStatusClass(-199), DGPU_STATUS_CLASS_RESOURCE);
  assert_int_equal(dgpuStatusClass(77), DGPU_STATUS_CLASS_OUTCOME);
}

static void the_record_stays_until_the_next_failure(void** state) {
  uint32_t count = 0;
  dgpuDtype_t dtype = 0;
  CHECK(DGPU_STATUS_NOT_FOUND, dgpuDtypeFromName("f33", &dtype));
  OK(dgpuConfigCount(&count));
  const dgpuErrorInfo info = last_error();
  assert_int_equal(info.status, DGPU_STATUS_NOT_FOUND);
  assert_string_equal(info.function, "dgpuDtypeFromName");
  assert_string_equal(info.object, "name");
  MESSAGE("f33");
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuConfigCount(NULL));
  assert_string_equal(last_error().object, "out_count");
}

static void* read_record(void* out) {
  *(dgpuStatus_t*)out = last_error().status;
  return NULL;
}

static void the_record_belongs_to_the_thread(void** state) {
  pthread_t thread;
  dgpuStatus_t seen = 1;
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuConfigCount(NULL));
  assert_int_equal(pthread_create(&thread, NULL, read_record, &seen), 0);
  pthread_join(thread, NULL);
  assert_int_equal(seen, 0);
}

static void the_error_record_may_be_short(void** state) {
  dgpuErrorInfo info = DGPU_ERROR_INFO_INIT;
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuConfigCount(NULL));
  info.struct_size = offsetof(dgpuErrorInfo, native_code);
  info.native_code = 1234;
  OK(dgpuGetLastError(&info));
  assert_int_equal(info.status, DGPU_STATUS_INVALID_ARGUMENT);
  assert_int_equal(info.native_code, 1234);
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuGetLastError(NULL));
}

/* ---- Log ---- */

typedef struct {
  atomic_int calls;
  atomic_int inside;
} LogCount;

static void count_log(uint32_t level, const char* component, const char* message, void* user) {
  LogCount* count = user;
  atomic_fetch_add(&count->inside, 1);
  atomic_fetch_add(&count->calls, 1);
  atomic_fetch_sub(&count->inside, 1);
}

static atomic_int stop_logging;
static void* make_log_lines(void* unused) {
  while (!atomic_load(&stop_logging)) {
    dgpuBackend_t backend = NULL;
    (void)dgpuBackendLoad("/nonexistent/libdgpu_backend_x.so", &backend); /* one info line */
  }
  return NULL;
}

static void the_old_log_callback_is_idle_after_replacing(void** state) {
  enum { kRounds = 50 };
  static LogCount counts[kRounds];
  pthread_t threads[3];
  OK(dgpuInit(NULL));
  OK(dgpuLogSetLevel(DGPU_LOG_DEBUG));
  OK(dgpuLogSetCallback(count_log, &counts[0]));
  atomic_store(&stop_logging, 0);
  for (int i = 0; i < 3; ++i) pthread_create(&threads[i], NULL, make_log_lines, NULL);
  for (int i = 0; i + 1 < kRounds; ++i) {
    while (atomic_load(&counts[i].calls) == 0) sched_yield();
    OK(dgpuLogSetCallback(count_log, &counts[i + 1]));
    assert_int_equal(atomic_load(&counts[i].inside), 0);
    const int calls = atomic_load(&counts[i].calls);
    sched_yield();
    assert_int_equal(atomic_load(&counts[i].calls), calls);
  }
  atomic_store(&stop_logging, 1);
  for (int i = 0; i < 3; ++i) pthread_join(threads[i], NULL);
  OK(dgpuLogSetCallback(NULL, NULL));
  OK(dgpuLogSetLevel(DGPU_LOG_WARN));
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuLogSetLevel(5));
  OK(dgpuShutdown());
}

/* ---- Settings ---- */

static void config_get(const char* name, char (*out)[256]) {
  size_t needed = 0;
  OK(dgpuConfigGet(name, NULL, 0, &needed));
  assert_true(needed <= sizeof(*out));
  OK(dgpuConfigGet(name, *out, needed, NULL));
  assert_int_equal(strlen(*out) + 1, needed);
}

static void every_setting_is_described(void** state) {
  uint32_t count = 0;
  const char* before = "";
  OK(dgpuConfigCount(&count));
  assert_true(count >= 10);
  for (uint32_t i = 0; i < count; ++i) {
    dgpuConfigInfo info = DGPU_CONFIG_INFO_INIT;
    OK(dgpuConfigGetInfo(i, &info));
    assert_memory_equal(info.name, "DGPU_", 5);
    assert_true(strcmp(before, info.name) < 0); /* alphabetical */
    before = info.name;
    assert_non_null(info.def);
    assert_non_null(info.type);
    assert_true(strlen(info.help) > 10 && info.help[strlen(info.help) - 1] == '.');
    if (info.def[0]) OK(dgpuConfigSet(info.name, info.def)); /* each default is a value of its type */
    OK(dgpuConfigSet(info.name, NULL));
  }
  dgpuConfigInfo info = DGPU_CONFIG_INFO_INIT;
  CHECK(DGPU_STATUS_NOT_FOUND, dgpuConfigGetInfo(count, &info));
}

static void a_call_beats_the_environment_beats_the_default(void** state) {
  char text[256];
  unsetenv("DGPU_CPU_DEVICES");
  config_get("DGPU_CPU_DEVICES", &text);
  assert_string_equal(text, "1");
  setenv("DGPU_CPU_DEVICES", "3", 1);
  config_get("DGPU_CPU_DEVICES", &text);
  assert_string_equal(text, "3");
  OK(dgpuConfigSet("DGPU_CPU_DEVICES", "4"));
  config_get("DGPU_CPU_DEVICES", &text);
  assert_string_equal(text, "4");
  OK(dgpuConfigSet("DGPU_CPU_DEVICES", NULL));
  config_get("DGPU_CPU_DEVICES", &text);
  assert_string_equal(text, "3");
  unsetenv("DGPU_CPU_DEVICES");
}

static void bad_values_are_refused_with_the_accepted_form(void** state) {
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuConfigSet("DGPU_CPU_DEVICES", "two"));
  assert_string_equal(last_error().object, "DGPU_CPU_DEVICES");
  MESSAGE("whole number");
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuConfigSet("DGPU_CPU_MEMORY", "12Q"));
  MESSAGE("K, M, G");
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuConfigSet("DGPU_CPU_MEMORY", "99999999999G"));
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuConfigSet("DGPU_CPU_MEMORY", ""));
  OK(dgpuConfigSet("DGPU_CPU_MEMORY", "512M"));
  OK(dgpuConfigSet("DGPU_CPU_MEMORY", NULL));
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuConfigSet("DGPU_CPU_BF16", "maybe"));
  MESSAGE("auto|dot|fma");
  CHECK(DGPU_STATUS_NOT_FOUND, dgpuConfigSet("DGPU_NONSENSE", "1"));
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuConfigSet(NULL, "1"));
}

/* Where it is set, not at the first call that finds no device. */
static void values_out_of_range_are_refused(void** state) {
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuConfigSet("DGPU_CPU_DEVICES", "0"));
  MESSAGE("from 1 to 64");
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuConfigSet("DGPU_CPU_DEVICES", "65"));
  OK(dgpuConfigSet("DGPU_CPU_DEVICES", "64"));
  OK(dgpuConfigSet("DGPU_CPU_DEVICES", NULL));
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuConfigSet("DGPU_CPU_THREADS", "-1"));
  setenv("DGPU_CPU_DEVICES", "65", 1);
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuInit(NULL));
  unsetenv("DGPU_CPU_DEVICES");
  dgpuInitOptions options = DGPU_INIT_OPTIONS_INIT;
  options.cpu_threads = 1000000;
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuInit(&options));
  CHECK(DGPU_STATUS_SHUTDOWN, dgpuShutdown());
}

/* The reason is in the message of the first call that wants a device. */
static void a_backend_that_does_not_start_is_named(void** state) {
  dgpuDevice_t device = NULL;
  OK(dgpuConfigSet("DGPU_CPU_TOPOLOGY", "/nonexistent/topology.json"));
  OK(dgpuLogSetLevel(DGPU_LOG_OFF));
  OK(dgpuInit(NULL));
  CHECK(DGPU_STATUS_NOT_FOUND, dgpuDeviceGet(0, &device));
  MESSAGE("/nonexistent/topology.json");
  OK(dgpuShutdown());
  OK(dgpuConfigSet("DGPU_CPU_TOPOLOGY", NULL));
  OK(dgpuLogSetLevel(DGPU_LOG_WARN));
}

static void a_bad_environment_value_fails_init(void** state) {
  setenv("DGPU_CPU_DEVICES", "many", 1);
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuInit(NULL));
  MESSAGE("many");
  unsetenv("DGPU_CPU_DEVICES");
  OK(dgpuInit(NULL));
  OK(dgpuShutdown());
}

static void settings_are_fixed_while_initialised(void** state) {
  char text[256];
  dgpuInitOptions options = DGPU_INIT_OPTIONS_INIT;
  options.cpu_threads = 5;
  OK(dgpuInit(&options));
  CHECK(DGPU_STATUS_INVALID_STATE, dgpuConfigSet("DGPU_CPU_DEVICES", "2"));
  setenv("DGPU_CPU_DEVICES", "6", 1);
  config_get("DGPU_CPU_DEVICES", &text);
  assert_string_equal(text, "1");
  config_get("DGPU_CPU_THREADS", &text);
  assert_string_equal(text, "5");
  OK(dgpuShutdown());
  unsetenv("DGPU_CPU_DEVICES");
  config_get("DGPU_CPU_THREADS", &text);
  assert_string_equal(text, "0");
}

static void texts_follow_the_two_call_rule(void** state) {
  char small[3] = "xx";
  size_t needed = 0;
  CHECK(DGPU_STATUS_BUFFER_TOO_SMALL, dgpuConfigGet("DGPU_LOG_LEVEL", small, sizeof(small), &needed));
  assert_int_equal(needed, sizeof("warn"));
  assert_string_equal(small, "");
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuConfigGet("DGPU_LOG_LEVEL", NULL, 0, NULL));
  needed = 9;
  CHECK(DGPU_STATUS_NOT_FOUND, dgpuConfigGet("DGPU_NONSENSE", NULL, 0, &needed));
  assert_int_equal(needed, 0);
}

/* ---- Element types ---- */

static void element_types_have_names_and_sizes(void** state) {
  dgpuDtype_t dtype = 0;
#define ROW(name, value, bits, text)               \
  assert_string_equal(dgpuDtypeName(value), text); \
  assert_int_equal(dgpuDtypeBits(value), bits);    \
  OK(dgpuDtypeFromName(text, &dtype));             \
  assert_int_equal(dtype, DGPU_DTYPE_##name);
  DGPU_DTYPE_LIST(ROW)
#undef ROW
  assert_string_equal(dgpuDtypeName(999), "none");
  assert_int_equal(dgpuDtypeBits(999), 0);
}

static void a_tensor_is_packed_row_major(void** state) {
  const int64_t shape[4] = {2, 0, 3, 5};
  const int64_t negative[1] = {-1};
  const int64_t huge[3] = {INT64_MAX, 4, 4};
  dgpuTensorDesc desc = DGPU_TENSOR_DESC_INIT;
  desc.symbols[1] = 7;
  OK(dgpuTensorDescPack(&desc, DGPU_DTYPE_BF16, 4, shape));
  assert_int_equal(desc.rank, 4);
  assert_int_equal(desc.dtype, DGPU_DTYPE_BF16);
  assert_int_equal(desc.strides[3], 1);
  assert_int_equal(desc.strides[2], 5);
  assert_int_equal(desc.strides[1], 15);
  assert_int_equal(desc.strides[0], 15);
  assert_int_equal(desc.symbols[1], 0);
  OK(dgpuTensorDescPack(&desc, DGPU_DTYPE_F32, 0, NULL));
  CHECK(DGPU_STATUS_INVALID_SHAPE, dgpuTensorDescPack(&desc, DGPU_DTYPE_F32, 9, shape));
  CHECK(DGPU_STATUS_INVALID_SHAPE, dgpuTensorDescPack(&desc, DGPU_DTYPE_F32, 1, negative));
  CHECK(DGPU_STATUS_INVALID_SHAPE, dgpuTensorDescPack(&desc, DGPU_DTYPE_F32, 3, huge));
  CHECK(DGPU_STATUS_INVALID_DTYPE, dgpuTensorDescPack(&desc, 0, 1, shape));
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuTensorDescPack(&desc, DGPU_DTYPE_F32, 1, NULL));
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuTensorDescPack(NULL, DGPU_DTYPE_F32, 1, shape));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_short_struct_means_zero),
      cmocka_unit_test(a_struct_without_size_is_refused),
      cmocka_unit_test(a_long_struct_may_have_a_clean_tail),
      cmocka_unit_test(a_long_struct_may_not_have_a_dirty_tail),
      cmocka_unit_test(unknown_flags_are_refused),
      cmocka_unit_test(outputs_end_at_struct_size),
      cmocka_unit_test(outputs_are_zero_on_failure),
      cmocka_unit_test(every_status_has_name_text_and_class),
      cmocka_unit_test(the_record_stays_until_the_next_failure),
      cmocka_unit_test(the_record_belongs_to_the_thread),
      cmocka_unit_test(the_error_record_may_be_short),
      cmocka_unit_test(the_old_log_callback_is_idle_after_replacing),
      cmocka_unit_test(every_setting_is_described),
      cmocka_unit_test(a_call_beats_the_environment_beats_the_default),
      cmocka_unit_test(bad_values_are_refused_with_the_accepted_form),
      cmocka_unit_test(a_bad_environment_value_fails_init),
      cmocka_unit_test(values_out_of_range_are_refused),
      cmocka_unit_test(a_backend_that_does_not_start_is_named),
      cmocka_unit_test(settings_are_fixed_while_initialised),
      cmocka_unit_test(texts_follow_the_two_call_rule),
      cmocka_unit_test(element_types_have_names_and_sizes),
      cmocka_unit_test(a_tensor_is_packed_row_major),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
