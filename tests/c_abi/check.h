/* What every C ABI test starts with: cmocka in the order it wants, and assertions that print the library's own text. */
#ifndef DGPU_TESTS_CHECK_H
#define DGPU_TESTS_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "dgpu.h"

static inline dgpuErrorInfo last_error(void) {
  dgpuErrorInfo info = DGPU_ERROR_INFO_INIT;
  (void)dgpuGetLastError(&info);
  return info;
}

static inline void check_status(dgpuStatus_t got, dgpuStatus_t wanted, const char* call, const char* file, int line) {
  if (got == wanted) return;
  print_error("%s:%d: %s gave %s, expected %s", file, line, call, dgpuStatusName(got), dgpuStatusName(wanted));
  if (got < 0) print_error(" (%s: %s)", last_error().object, last_error().message);
  print_error("\n");
  _fail(file, line);
}
/* The call gives that status: CHECK(DGPU_STATUS_NOT_FOUND, dgpuDeviceGet(99, &device)). */
#define CHECK(wanted, call) check_status((call), (wanted), #call, __FILE__, __LINE__)
#define OK(call) CHECK(DGPU_STATUS_SUCCESS, call)

/* The last error's message contains the text. */
static inline void check_message(const char* text, const char* file, int line) {
  const dgpuErrorInfo info = last_error();
  if (strstr(info.message, text)) return;
  print_error("%s:%d: message is \"%s\", expected it to contain \"%s\"\n", file, line, info.message, text);
  _fail(file, line);
}
#define MESSAGE(text) check_message((text), __FILE__, __LINE__)

/* A path from the environment that ctest sets; the test is skipped with the reason where it is missing. */
static inline const char* need_env(const char* name) {
  const char* value = getenv(name);
  if (!value) {
    print_message("skipped: %s is not set; run by ctest\n", name);
    skip();
  }
  return value;
}

static inline int setup_library(void** state) {
  (void)state;
  return dgpuInit(NULL) == DGPU_STATUS_SUCCESS ? 0 : -1;
}
static inline int teardown_library(void** state) {
  (void)state;
  return dgpuShutdown() == DGPU_STATUS_SUCCESS ? 0 : -1;
}

#endif /* DGPU_TESTS_CHECK_H */
