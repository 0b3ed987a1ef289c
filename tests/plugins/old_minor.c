/* Built for an earlier header whose structs ended earlier: its tables are cut before the last optional members. */
#include "null_base.h"

dgpuStatus_t dgpuBackendQuery(uint32_t core_major, uint32_t core_minor, const dgpuBackendTable** out_table) {
  static dgpuBackendQueueGroup queue;
  static dgpuBackendDeviceGroup device;
  static dgpuBackendTable mine;
  queue = queue_group;
  queue.struct_size = offsetof(dgpuBackendQueueGroup, help);
  queue.help = (uint32_t(*)(dgpuBackendQueue*, uint64_t))(uintptr_t)1; /* behind struct_size: must not be read */
  queue.flush = (void (*)(dgpuBackendQueue*))(uintptr_t)1;
  device = device_group;
  device.struct_size = offsetof(dgpuBackendDeviceGroup, link);
  device.link = (dgpuStatus_t(*)(void*, uint32_t, uint32_t, dgpuLinkInfo*))(uintptr_t)1;
  mine = table;
  mine.name = "old_minor";
  mine.queue = &queue;
  mine.device = &device;
  *out_table = &mine;
  return DGPU_STATUS_SUCCESS;
}
