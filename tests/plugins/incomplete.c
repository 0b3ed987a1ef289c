/* Forgot queue.submit. */
#include "null_base.h"

dgpuStatus_t dgpuBackendQuery(uint32_t core_major, uint32_t core_minor, const dgpuBackendTable** out_table) {
  static dgpuBackendQueueGroup queue;
  static dgpuBackendTable mine;
  queue = queue_group;
  queue.submit = NULL;
  mine = table;
  mine.name = "incomplete";
  mine.queue = &queue;
  *out_table = &mine;
  return DGPU_STATUS_SUCCESS;
}
