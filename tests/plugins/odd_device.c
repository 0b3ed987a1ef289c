/* Two devices that answer what a reader must not choke on: the name is that of DGPU_TEST_NAME, there is no link between
 * them, and metrics are not numbers or larger than any integer. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "null_base.h"

static const dgpuBackendTable* original;
static const dgpuBackendServices* core;

static dgpuStatus_t start(const dgpuBackendServices* given, void** out_backend) {
  core = given;
  return original->initialize(given, out_backend);
}
static dgpuStatus_t two(void* backend, uint32_t* out_count) {
  (void)backend;
  *out_count = 2;
  return DGPU_STATUS_SUCCESS;
}
static dgpuStatus_t describe(void* backend, uint32_t index, dgpuDeviceInfo* out_info) {
  const dgpuStatus_t status = original->device->info(backend, 0, out_info);
  const char* name = getenv("DGPU_TEST_NAME");
  (void)index;
  if (name) snprintf(out_info->name, sizeof(out_info->name), "%s", name);
  return status;
}
static dgpuStatus_t unlinked(void* backend, uint32_t from, uint32_t to, dgpuLinkInfo* out_info) {
  (void)backend, (void)from, (void)to, (void)out_info;
  return core->fail(core->core, DGPU_STATUS_INTERNAL, "link", "the cable is out", 0);
}
static dgpuStatus_t metric(void* backend, uint32_t index, uint32_t id, dgpuMetric* out_metric) {
  (void)backend, (void)index;
  out_metric->value = id == DGPU_METRIC_TEMPERATURE ? NAN : id == DGPU_METRIC_POWER ? -INFINITY : 1e300;
  return DGPU_STATUS_SUCCESS;
}
static const dgpuBackendTelemetryGroup telemetry = {sizeof(telemetry), metric};

dgpuStatus_t dgpuBackendQuery(uint32_t core_major, uint32_t core_minor, const dgpuBackendTable** out_table) {
  static dgpuBackendTable changed;
  static dgpuBackendDeviceGroup devices;
  const dgpuStatus_t status = null_query(core_major, core_minor, &original);
  if (status != DGPU_STATUS_SUCCESS) return status;
  devices = *original->device;
  devices.count = two;
  devices.info = describe;
  devices.link = unlinked;
  changed = *original;
  changed.name = "odd";
  changed.device = &devices;
  changed.telemetry = &telemetry;
  changed.initialize = start;
  *out_table = &changed;
  return DGPU_STATUS_SUCCESS;
}
