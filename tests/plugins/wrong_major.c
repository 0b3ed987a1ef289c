/* Speaks the next major and hands out its table anyway. */
#include "null_base.h"

dgpuStatus_t dgpuBackendQuery(uint32_t core_major, uint32_t core_minor, const dgpuBackendTable** out_table) {
  static dgpuBackendTable mine;
  mine = table;
  mine.abi_major = DGPU_BACKEND_ABI_MAJOR + 1;
  mine.name = "wrong_major";
  *out_table = &mine;
  return DGPU_STATUS_SUCCESS;
}
