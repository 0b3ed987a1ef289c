/* Never returns from its initialize. */
#include <unistd.h>

#include "null_base.h"

static dgpuStatus_t hang(const dgpuBackendServices* given, void** out_backend) {
  for (;;) pause();
  return DGPU_STATUS_INTERNAL;
}

dgpuStatus_t dgpuBackendQuery(uint32_t core_major, uint32_t core_minor, const dgpuBackendTable** out_table) {
  static dgpuBackendTable changed;
  const dgpuBackendTable* original = NULL;
  const dgpuStatus_t status = null_query(core_major, core_minor, &original);
  if (status != DGPU_STATUS_SUCCESS) return status;
  changed = *original;
  changed.initialize = hang;
  *out_table = &changed;
  return DGPU_STATUS_SUCCESS;
}
