/* Does not speak the core's version and says so. */
#include "null_base.h"

dgpuStatus_t dgpuBackendQuery(uint32_t core_major, uint32_t core_minor, const dgpuBackendTable** out_table) {
  return DGPU_STATUS_VERSION_MISMATCH;
}
