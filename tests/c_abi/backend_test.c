/* Backends: loading, refusal of everything that is broken, unloading, loading again while others call. */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "check.h"

static char directory[] = "/tmp/dgpu_backend_test_XXXXXX";

static const char* plugin(const char* name) {
  static char path[512];
  snprintf(path, sizeof(path), "%s/%s.so", need_env("DGPU_TEST_PLUGINS"), name);
  return path;
}

static const char* temp_file(const char* name, const void* bytes, size_t size) {
  static char path[512];
  snprintf(path, sizeof(path), "%s/%s", directory, name);
  FILE* file = fopen(path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(bytes, 1, size, file), size);
  fclose(file);
  return path;
}

static void refused(const char* path, const char* reason) {
  dgpuBackend_t backend = (dgpuBackend_t)(uintptr_t)1;
  CHECK(DGPU_STATUS_BACKEND_REFUSED, dgpuBackendLoad(path, &backend));
  assert_null(backend);
  MESSAGE(reason);
  uint32_t count = 0;
  dgpuBackendAttempt attempt = DGPU_BACKEND_ATTEMPT_INIT;
  OK(dgpuBackendAttemptCount(&count));
  OK(dgpuBackendAttemptGet(count - 1, &attempt));
  assert_int_equal(attempt.accepted, 0);
  assert_int_equal(attempt.status, DGPU_STATUS_BACKEND_REFUSED);
  assert_non_null(strstr(attempt.reason, reason));
  assert_non_null(strstr(attempt.path, strrchr(path, '/')));
}

static void null_loads_by_manifest_and_unloads(void** state) {
  const char* manifest = need_env("DGPU_TEST_NULL_BACKEND");
  uint32_t before = 0, devices_before = 0, count = 0;
  dgpuBackend_t backend = NULL, again = NULL;
  dgpuBackendInfo info = DGPU_BACKEND_INFO_INIT;
  dgpuDevice_t device = NULL;
  dgpuDeviceInfo device_info = DGPU_DEVICE_INFO_INIT;
  OK(dgpuBackendCount(&before));
  OK(dgpuDeviceCount(&devices_before));
  OK(dgpuBackendLoad(manifest, &backend));
  OK(dgpuBackendGetInfo(backend, &info));
  assert_string_equal(info.name, "null");
  assert_int_equal(info.abi_major, 1);
  assert_int_equal(info.device_count, 1);
  assert_int_equal(info.built_in, 0);
  assert_non_null(strstr(info.path, "libdgpu_backend_null.so"));
  CHECK(DGPU_STATUS_ALREADY_EXISTS, dgpuBackendLoad(manifest, &again));
  assert_null(again);
  OK(dgpuBackendCount(&count));
  assert_int_equal(count, before + 1);
  OK(dgpuBackendGet(before, &again));
  assert_ptr_equal(again, backend);
  OK(dgpuDeviceCount(&count));
  assert_int_equal(count, devices_before + 1);
  OK(dgpuDeviceGet(devices_before, &device));
  OK(dgpuDeviceGetInfo(device, &device_info));
  assert_string_equal(device_info.name, "null");
  assert_string_equal(device_info.backend, "null");
  assert_int_equal(device_info.ordinal, devices_before);
  assert_int_equal(device_info.backend_ordinal, 0);
  assert_int_equal(device_info.memory_bytes, 64 << 20);
  OK(dgpuBackendUnload(backend, 1000000000));
  CHECK(DGPU_STATUS_INVALID_HANDLE, dgpuBackendGetInfo(backend, &info));
  CHECK(DGPU_STATUS_INVALID_HANDLE, dgpuDeviceGetInfo(device, &device_info));
  CHECK(DGPU_STATUS_INVALID_HANDLE, dgpuBackendUnload(backend, 0));
  OK(dgpuDeviceCount(&count));
  assert_int_equal(count, devices_before);
  OK(dgpuBackendLoad(manifest, &again));
  assert_ptr_not_equal(again, backend);
  OK(dgpuBackendUnload(again, 1000000000));
}

static void what_is_no_backend_is_refused(void** state) {
  static const char text[] = "int main(void) { return 0; }\n";
  refused("/nonexistent/libdgpu_backend_x.so", "No such file");
  refused(temp_file("text.so", text, sizeof(text) - 1), "not an ELF file");
  refused(temp_file("empty.so", text, 0), "not an ELF file");
  refused("/tmp", "not a regular file");
  refused(plugin("no_symbol"), "dgpuBackendQuery");
  dgpuBackend_t backend = NULL;
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuBackendLoad(NULL, &backend));
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuBackendLoad("/tmp/x.so", NULL));
}

/* Every cut of a real plugin: in the header, in the program headers, in the segments. */
static void a_truncated_plugin_is_refused(void** state) {
  FILE* file = fopen(plugin("old_schema"), "rb");
  assert_non_null(file);
  static unsigned char bytes[1 << 20];
  const size_t size = fread(bytes, 1, sizeof(bytes), file);
  fclose(file);
  assert_true(size > 8192);
  refused(temp_file("cut3.so", bytes, 3), "not an ELF file");
  refused(temp_file("cut20.so", bytes, 20), "truncated");
  refused(temp_file("cut100.so", bytes, 100), "truncated");
  refused(temp_file("cut4096.so", bytes, 4096), "truncated");
  bytes[18] = 0xF7; /* e_machine: eBPF */
  bytes[19] = 0;
  refused(temp_file("machine.so", bytes, size), "another processor");
}

static void other_versions_are_refused(void** state) {
  refused(plugin("wrong_major"), "majors must match");
  refused(plugin("version_mismatch"), "does not speak");
}

static void crashes_and_hangs_are_contained(void** state) {
  refused(plugin("crash_in_query"), "crashed in its dgpuBackendQuery");
  refused(plugin("crash_in_load"), "crashed while it was loaded");
  refused(plugin("hang_in_query"), "did not answer within 2000 ms in its dgpuBackendQuery");
}

static void crashes_and_hangs_of_the_start_are_contained(void** state) {
  refused(plugin("crash_in_initialize"), "crashed in its initialize");
  refused(plugin("abort_in_info"), "crashed in its device.info (Aborted)");
  refused(plugin("hang_in_initialize"), "did not answer within 2000 ms in its initialize");
  /* The time that the manifest gives counts. */
  char text[1024];
  snprintf(text, sizeof(text), "{\"name\":\"null\",\"library\":\"%s\",\"abi_major\":1,\"probe_timeout_ms\":300}",
           plugin("hang_in_initialize"));
  refused(temp_file("hang.json", text, strlen(text)), "did not answer within 300 ms in its initialize");
  MESSAGE("\"probe\": \"query\"");
}

static size_t starts(const char* path) {
  char bytes[16];
  FILE* file = fopen(path, "rb");
  const size_t count = file ? fread(bytes, 1, sizeof(bytes), file) : 0;
  if (file) fclose(file);
  return count;
}

/* Started in a child once while the file stays as it is, and never where its manifest says so. */
static void a_plugin_is_probed_once_and_as_its_manifest_says(void** state) {
  const char* depths[] = {"start", "query", "none"};
  char marks[256], text[1024];
  snprintf(marks, sizeof(marks), "%s/starts", directory);
  setenv("DGPU_TEST_STARTS", marks, 1);
  for (size_t i = 0; i < 3; ++i) {
    dgpuBackend_t backend = NULL;
    unlink(marks);
    snprintf(text, sizeof(text), "{\"name\":\"counts_starts\",\"library\":\"%s\",\"abi_major\":1,\"probe\":\"%s\"}",
             plugin("counts_starts"), depths[i]);
    const char* manifest = temp_file("counts.json", text, strlen(text));
    OK(dgpuBackendLoad(manifest, &backend));
    assert_int_equal(starts(marks), i == 0 ? 2 : 1);
    OK(dgpuBackendUnload(backend, 1000000000));
    OK(dgpuBackendLoad(manifest, &backend));
    assert_int_equal(starts(marks), i == 0 ? 3 : 2);
    OK(dgpuBackendUnload(backend, 1000000000));
  }
  unsetenv("DGPU_TEST_STARTS");
}

/* What a plugin answers in the child is not the last word: a driver may refuse there what it grants here. */
static void an_error_in_the_child_does_not_refuse(void** state) {
  dgpuBackend_t backend = NULL;
  refused(plugin("counts_starts"), "does not start"); /* not "crashed": its error comes from this process */
  OK(dgpuBackendLoad(plugin("old_schema"), &backend));
  OK(dgpuBackendUnload(backend, 1000000000));
}

static void an_incomplete_or_failing_plugin_is_refused(void** state) {
  refused(plugin("incomplete"), "queue.submit");
  refused(plugin("fails_to_start"), "the driver is not installed");
}

static void a_plugin_of_an_earlier_header_is_read_up_to_its_size(void** state) {
  dgpuBackend_t backend = NULL;
  dgpuDevice_t device = NULL;
  uint32_t count = 0;
  dgpuLinkInfo link = DGPU_LINK_INFO_INIT;
  OK(dgpuBackendLoad(plugin("old_minor"), &backend));
  OK(dgpuDeviceCount(&count));
  OK(dgpuDeviceGet(count - 1, &device));
  OK(dgpuDeviceGetLink(device, device, &link));
  assert_int_equal(link.kind, DGPU_LINK_SAME);
  OK(dgpuBackendUnload(backend, 1000000000));
}

static void manifests_are_checked(void** state) {
  char text[1024];
  const struct {
    const char *json, *reason;
  } cases[] = {
      {"", "not a JSON object"},
      {"[1,2]", "not a JSON object"},
      {"{\"name\":\"null\",", "not a JSON object"},
      {"{}", "its name is ''"},
      {"{\"name\":\"Null!\",\"library\":\"x.so\",\"abi_major\":1}", "a-z 0-9"},
      {"{\"name\":\"null\",\"abi_major\":1}", "\"library\""},
      {"{\"name\":\"null\",\"library\":\"x.so\"}", "abi_major"},
      {"{\"name\":\"null\",\"library\":\"x.so\",\"abi_major\":\"1\"}", "abi_major"},
      {"{\"name\":\"null\",\"library\":\"x.so\",\"abi_major\":2}", "majors must match"},
      {"{\"name\":\"null\",\"library\":\"x.so\",\"abi_major\":1}", "No such file"},
      {"{\"name\":\"null\",\"library\":\"x.so\",\"abi_major\":1,\"load\":\"never\"}", "auto, explicit"},
      {"{\"name\":\"null\",\"library\":\"x.so\",\"abi_major\":1,\"probe\":\"twice\"}",
       "\"start\", \"query\", \"none\""},
      {"{\"name\":\"null\",\"library\":\"x.so\",\"abi_major\":1,\"probe\":1}", "\"start\", \"query\", \"none\""},
      {"{\"name\":\"null\",\"library\":\"x.so\",\"abi_major\":1,\"probe_timeout_ms\":0}", "from 1 to 600000"},
      {"{\"name\":\"null\",\"library\":\"x.so\",\"abi_major\":1,\"probe_timeout_ms\":\"5s\"}", "from 1 to 600000"},
  };
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
    refused(temp_file("case.json", cases[i].json, strlen(cases[i].json)), cases[i].reason);
  }
  snprintf(text, sizeof(text), "{\"name\":\"other\",\"library\":\"%s\",\"abi_major\":1}", plugin("old_schema"));
  refused(temp_file("other.json", text, strlen(text)), "its manifest says 'other', its table says 'old_schema'");
  refused("/nonexistent/x.json", "No such file");
}

static void metrics_and_links_have_typed_absence(void** state) {
  dgpuBackend_t backend = NULL;
  dgpuDevice_t device = NULL, first = NULL;
  uint32_t count = 0;
  dgpuMetric metric = DGPU_METRIC_INIT;
  dgpuLinkInfo link = DGPU_LINK_INFO_INIT;
  OK(dgpuBackendLoad(need_env("DGPU_TEST_NULL_BACKEND"), &backend));
  OK(dgpuDeviceCount(&count));
  OK(dgpuDeviceGet(count - 1, &device));
  OK(dgpuDeviceGetMetric(device, DGPU_METRIC_TEMPERATURE, &metric));
  assert_int_equal(metric.absent, DGPU_ABSENT_UNSUPPORTED);
  OK(dgpuDeviceGetMetric(device, 4711, &metric));
  assert_int_equal(metric.absent, DGPU_ABSENT_UNSUPPORTED);
  if (count > 1) {
    OK(dgpuDeviceGet(0, &first));
    OK(dgpuDeviceGetLink(first, device, &link));
    assert_int_equal(link.kind, DGPU_LINK_HOST);
    assert_int_equal(link.peer_access, 0);
  }
  CHECK(DGPU_STATUS_NOT_FOUND, dgpuDeviceGet(count, &first));
  assert_null(first);
  CHECK(DGPU_STATUS_INVALID_HANDLE, dgpuDeviceGetInfo((dgpuDevice_t)(void*)backend, NULL));
  MESSAGE("is a backend handle");
  OK(dgpuBackendUnload(backend, 1000000000));
}

static void a_built_in_backend_stays(void** state) {
  uint32_t count = 0;
  OK(dgpuBackendCount(&count));
  for (uint32_t i = 0; i < count; ++i) {
    dgpuBackend_t backend = NULL;
    dgpuBackendInfo info = DGPU_BACKEND_INFO_INIT;
    OK(dgpuBackendGet(i, &backend));
    OK(dgpuBackendGetInfo(backend, &info));
    if (!info.built_in) continue;
    CHECK(DGPU_STATUS_NOT_PERMITTED, dgpuBackendUnload(backend, 0));
    OK(dgpuBackendGetInfo(backend, &info));
  }
}

static atomic_int stop_calls;
static void* use_devices(void* unused) {
  while (!atomic_load(&stop_calls)) {
    uint32_t count = 0;
    if (dgpuDeviceCount(&count) != DGPU_STATUS_SUCCESS) return (void*)1;
    for (uint32_t i = 0; i < count; ++i) {
      dgpuDevice_t device = NULL;
      dgpuDeviceInfo info = DGPU_DEVICE_INFO_INIT;
      dgpuLinkInfo link = DGPU_LINK_INFO_INIT;
      dgpuStatus_t status = dgpuDeviceGet(i, &device);
      if (status == DGPU_STATUS_NOT_FOUND) continue; /* unloaded since the count */
      if (status != DGPU_STATUS_SUCCESS) return (void*)2;
      status = dgpuDeviceGetInfo(device, &info);
      if (status != DGPU_STATUS_SUCCESS && status != DGPU_STATUS_INVALID_HANDLE) return (void*)3;
      status = dgpuDeviceGetLink(device, device, &link);
      if (status != DGPU_STATUS_SUCCESS && status != DGPU_STATUS_INVALID_HANDLE) return (void*)4;
    }
  }
  return NULL;
}

/* Sanitizers replace malloc by one that a forked child of several threads cannot use: no probe there. */
static void without_probe_under_sanitizers(void) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  OK(dgpuShutdown());
  OK(dgpuConfigSet("DGPU_BACKEND_PROBE", "0"));
  OK(dgpuInit(NULL));
#endif
}

static void unload_and_load_while_others_call(void** state) {
  pthread_t threads[4];
  without_probe_under_sanitizers();
  atomic_store(&stop_calls, 0);
  for (int i = 0; i < 4; ++i) assert_int_equal(pthread_create(&threads[i], NULL, use_devices, NULL), 0);
  for (int i = 0; i < 40; ++i) {
    dgpuBackend_t backend = NULL;
    OK(dgpuBackendLoad(need_env("DGPU_TEST_NULL_BACKEND"), &backend));
    OK(dgpuBackendUnload(backend, 10000000000));
  }
  atomic_store(&stop_calls, 1);
  for (int i = 0; i < 4; ++i) {
    void* result = NULL;
    pthread_join(threads[i], &result);
    assert_null(result);
  }
}

static int discover_with_path(const char* path) {
  if (dgpuShutdown() != DGPU_STATUS_SUCCESS) return -1;
  if (dgpuConfigSet("DGPU_BACKEND_PROBE", NULL) != DGPU_STATUS_SUCCESS) return -1;
  if (dgpuConfigSet("DGPU_BACKEND_PATH", path) != DGPU_STATUS_SUCCESS) return -1;
  return dgpuInit(NULL) == DGPU_STATUS_SUCCESS ? 0 : -1;
}

/* The path has a missing directory, a manifest that is broken, and null. */
static void discovery_goes_on_after_a_broken_plugin(void** state) {
  char text[1024], path[1024];
  uint32_t count = 0, attempts = 0, seen = 0;
  snprintf(text, sizeof(text), "{\"name\":\"crasher\",\"library\":\"%s\",\"abi_major\":1}", plugin("crash_in_query"));
  const char* broken = temp_file("a_broken.json", text, strlen(text));
  (void)broken;
  static const char* const left[] = {"case.json", "counts.json", "hang.json"};
  for (size_t i = 0; i < sizeof(left) / sizeof(left[0]); ++i) {
    snprintf(text, sizeof(text), "%s/%s", directory, left[i]);
    unlink(text);
  }
  snprintf(text, sizeof(text), "%s/other.json", directory);
  unlink(text);
  snprintf(text, sizeof(text), "%s", need_env("DGPU_TEST_NULL_BACKEND"));
  *strrchr(text, '/') = 0;
  if (snprintf(path, sizeof(path), "/nonexistent/dgpu:%s::%s", directory, text) >= (int)sizeof(path)) fail();
  assert_int_equal(discover_with_path(path), 0);
  OK(dgpuBackendCount(&count));
  assert_int_equal(last_error().status == DGPU_STATUS_BACKEND_REFUSED, 0); /* not the failure of this call */
  OK(dgpuBackendAttemptCount(&attempts));
  for (uint32_t i = 0; i < attempts; ++i) {
    dgpuBackendAttempt attempt = DGPU_BACKEND_ATTEMPT_INIT;
    OK(dgpuBackendAttemptGet(i, &attempt));
    if (strcmp(attempt.path, "/nonexistent/dgpu") == 0 && attempt.status == DGPU_STATUS_NOT_FOUND) seen |= 1;
    if (strstr(attempt.path, "a_broken.json") && strstr(attempt.reason, "crashed")) seen |= 2;
    if (strcmp(attempt.name, "null") == 0 && attempt.accepted) seen |= 4;
  }
  assert_int_equal(seen, 7);
  assert_int_equal(discover_with_path(NULL), 0);
}

/* The installed directory holds null, whose manifest asks to be loaded on request only. */
static void an_explicit_manifest_is_not_discovered(void** state) {
  uint32_t attempts = 0, seen = 0;
  OK(dgpuBackendAttemptCount(&attempts));
  for (uint32_t i = 0; i < attempts; ++i) {
    dgpuBackendAttempt attempt = DGPU_BACKEND_ATTEMPT_INIT;
    OK(dgpuBackendAttemptGet(i, &attempt));
    if (strcmp(attempt.name, "null") == 0) {
      assert_int_equal(attempt.accepted, 0);
      seen += strstr(attempt.reason, "explicit") != NULL;
    }
  }
  assert_int_equal(seen, 1);
}

static int set_up(void** state) {
  if (!mkdtemp(directory)) return -1;
  if (dgpuConfigSet("DGPU_BACKEND_PROBE_TIMEOUT_MS", "2000") != DGPU_STATUS_SUCCESS) return -1;
  return setup_library(state);
}

static int tear_down(void** state) {
  char command[256];
  snprintf(command, sizeof(command), "rm -rf '%s'", directory);
  return system(command) == 0 ? teardown_library(state) : -1;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_explicit_manifest_is_not_discovered),
      cmocka_unit_test(null_loads_by_manifest_and_unloads),
      cmocka_unit_test(what_is_no_backend_is_refused),
      cmocka_unit_test(a_truncated_plugin_is_refused),
      cmocka_unit_test(other_versions_are_refused),
      cmocka_unit_test(crashes_and_hangs_are_contained),
      cmocka_unit_test(crashes_and_hangs_of_the_start_are_contained),
      cmocka_unit_test(a_plugin_is_probed_once_and_as_its_manifest_says),
      cmocka_unit_test(an_error_in_the_child_does_not_refuse),
      cmocka_unit_test(an_incomplete_or_failing_plugin_is_refused),
      cmocka_unit_test(a_plugin_of_an_earlier_header_is_read_up_to_its_size),
      cmocka_unit_test(manifests_are_checked),
      cmocka_unit_test(metrics_and_links_have_typed_absence),
      cmocka_unit_test(a_built_in_backend_stays),
      cmocka_unit_test(unload_and_load_while_others_call),
      cmocka_unit_test(discovery_goes_on_after_a_broken_plugin),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
