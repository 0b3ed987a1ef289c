/* Its telemetry never answers, as of a device whose firmware is stuck, and its name has everything that breaks tables.
 * With DGPU_TEST_HANG_AT_START set, its initialize does not answer either. */
#include <stdlib.h>
#include <unistd.h>

#include "null_base.h"

static const dgpuBackendTable* original;

static dgpuStatus_t hang(void* backend, uint32_t index, uint32_t metric, dgpuMetric* out_metric) {
  for (;;) pause();
  return DGPU_STATUS_INTERNAL;
}
static dgpuStatus_t start(const dgpuBackendServices* given, void** out_backend) {
  while (getenv("DGPU_TEST_HANG_AT_START")) pause();
  return original->initialize(given, out_backend);
}
static dgpuStatus_t describe(void* backend, uint32_t index, dgpuDeviceInfo* out_info) {
  const dgpuStatus_t status = original->device->info(backend, index, out_info);
  strcpy(out_info->name, "a \"quoted\",\nname\x1b[31m\xff");
  return status;
}
static const dgpuBackendTelemetryGroup telemetry = {sizeof(telemetry), hang};

dgpuStatus_t dgpuBackendQuery(uint32_t core_major, uint32_t core_minor, const dgpuBackendTable** out_table) {
  static dgpuBackendTable changed;
  static dgpuBackendDeviceGroup devices;
  const dgpuStatus_t status = null_query(core_major, core_minor, &original);
  if (status != DGPU_STATUS_SUCCESS) return status;
  devices = *original->device;
  devices.info = describe;
  changed = *original;
  changed.name = "stuck";
  changed.device = &devices;
  changed.telemetry = &telemetry;
  changed.initialize = start;
  *out_table = &changed;
  return DGPU_STATUS_SUCCESS;
}
