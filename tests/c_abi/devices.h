/* A library with two virtual cpu devices and the null backend, and a context over some of them. */
#ifndef DGPU_TESTS_DEVICES_H
#define DGPU_TESTS_DEVICES_H

#include "check.h"

#define SECOND ((uint64_t)1000000000)
#define LONG_TIME (60 * SECOND) /* ends a broken test; nothing here takes that long */

static inline int setup_devices(void** state) {
  (void)state;
  if (dgpuConfigSet("DGPU_CPU_DEVICES", "2") != DGPU_STATUS_SUCCESS) return -1;
  if (dgpuConfigSet("DGPU_CPU_MEMORY", "256M") != DGPU_STATUS_SUCCESS) return -1;
  return dgpuInit(NULL) == DGPU_STATUS_SUCCESS ? 0 : -1;
}

static inline dgpuDevice_t device_of(const char* backend, uint32_t index) {
  uint32_t count = 0;
  OK(dgpuDeviceCount(&count));
  for (uint32_t i = 0; i < count; ++i) {
    dgpuDevice_t device = NULL;
    dgpuDeviceInfo info = DGPU_DEVICE_INFO_INIT;
    OK(dgpuDeviceGet(i, &device));
    OK(dgpuDeviceGetInfo(device, &info));
    if (strcmp(info.backend, backend) == 0 && info.backend_ordinal == index) return device;
  }
  print_error("there is no %s device %u\n", backend, index);
  fail();
  return NULL;
}
static inline dgpuDevice_t cpu_device(uint32_t index) { return device_of("cpu", index); }

/* Loads the null backend unless it is there. */
static inline dgpuDevice_t null_device(void) {
  dgpuBackend_t backend = NULL;
  const dgpuStatus_t loaded = dgpuBackendLoad(need_env("DGPU_TEST_NULL_BACKEND"), &backend);
  assert_true(loaded == DGPU_STATUS_SUCCESS || loaded == DGPU_STATUS_ALREADY_EXISTS);
  return device_of("null", 0);
}

static inline dgpuContext_t context_of(dgpuDevice_t device) {
  dgpuContext_t context = NULL;
  OK(dgpuContextCreate(&device, 1, NULL, &context));
  return context;
}
static inline dgpuContext_t context_of_two(dgpuDevice_t a, dgpuDevice_t b) {
  const dgpuDevice_t devices[2] = {a, b};
  dgpuContext_t context = NULL;
  OK(dgpuContextCreate(devices, 2, NULL, &context));
  return context;
}
static inline dgpuStream_t stream_on(dgpuContext_t context, dgpuDevice_t device) {
  dgpuStream_t stream = NULL;
  OK(dgpuStreamCreate(context, device, NULL, &stream));
  return stream;
}

#endif /* DGPU_TESTS_DEVICES_H */
