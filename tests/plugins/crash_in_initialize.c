/* Its initialize follows a wild pointer. */
#include "null_base.h"

static volatile int* volatile nowhere;

static dgpuStatus_t crash(const dgpuBackendServices* given, void** out_backend) { return *nowhere; }

dgpuStatus_t dgpuBackendQuery(uint32_t core_major, uint32_t core_minor, const dgpuBackendTable** out_table) {
  return null_query_with(crash, core_major, core_minor, out_table);
}
