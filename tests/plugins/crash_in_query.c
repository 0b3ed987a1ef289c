/* Writes through a null pointer in its query. */
#include "null_base.h"

dgpuStatus_t dgpuBackendQuery(uint32_t core_major, uint32_t core_minor, const dgpuBackendTable** out_table) {
  volatile int* nowhere = (volatile int*)(uintptr_t)(core_major - core_major);
  *nowhere = 1;
  return DGPU_STATUS_SUCCESS;
}
