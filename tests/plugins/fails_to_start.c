/* Its initialize fails, with a reason. */
#include "null_base.h"

static dgpuStatus_t no_start(const dgpuBackendServices* services, void** out_backend) {
  return services->fail(services->core, DGPU_STATUS_IO_ERROR, "driver", "the driver is not installed", 42);
}

dgpuStatus_t dgpuBackendQuery(uint32_t core_major, uint32_t core_minor, const dgpuBackendTable** out_table) {
  static dgpuBackendTable mine;
  mine = table;
  mine.name = "no_start";
  mine.initialize = no_start;
  *out_table = &mine;
  return DGPU_STATUS_SUCCESS;
}
