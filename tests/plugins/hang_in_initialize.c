/* Never returns from its initialize. */
#include <unistd.h>

#include "null_base.h"

static dgpuStatus_t hang(const dgpuBackendServices* given, void** out_backend) {
  for (;;) pause();
  return DGPU_STATUS_INTERNAL;
}

dgpuStatus_t dgpuBackendQuery(uint32_t core_major, uint32_t core_minor, const dgpuBackendTable** out_table) {
  return null_query_with(hang, core_major, core_minor, out_table);
}
