/* Its initialize follows a wild pointer. */
#include "null_base.h"

static volatile int* volatile nowhere;

static dgpuStatus_t crash(const dgpuBackendServices* given, void** out_backend) { return *nowhere; }

dgpuStatus_t dgpuBackendQuery(uint32_t core_major, uint32_t core_minor, const dgpuBackendTable** out_table) {
  static dgpuBackendTable changed;
  const dgpuBackendTable* original = NULL;
  const dgpuStatus_t status = null_query(core_major, core_minor, &original);
  if (status != DGPU_STATUS_SUCCESS) return status;
  changed = *original;
  changed.initialize = crash;
  *out_table = &changed;
  return DGPU_STATUS_SUCCESS;
}
