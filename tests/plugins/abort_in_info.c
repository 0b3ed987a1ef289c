/* Starts, says that it has two devices, and aborts when the second one is described. */
#include <stdlib.h>

#include "null_base.h"

static dgpuStatus_t two(void* backend, uint32_t* out_count) {
  *out_count = 2;
  return DGPU_STATUS_SUCCESS;
}
static dgpuStatus_t describe(void* backend, uint32_t index, dgpuDeviceInfo* out_info) {
  if (index == 1) abort();
  return DGPU_STATUS_SUCCESS;
}

dgpuStatus_t dgpuBackendQuery(uint32_t core_major, uint32_t core_minor, const dgpuBackendTable** out_table) {
  static dgpuBackendTable changed;
  static dgpuBackendDeviceGroup devices;
  const dgpuBackendTable* original = NULL;
  const dgpuStatus_t status = null_query(core_major, core_minor, &original);
  if (status != DGPU_STATUS_SUCCESS) return status;
  devices = *original->device;
  devices.count = two;
  devices.info = describe;
  changed = *original;
  changed.device = &devices;
  *out_table = &changed;
  return DGPU_STATUS_SUCCESS;
}
