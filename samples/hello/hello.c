#include <dgpu.h>
#include <stdio.h>

int main(void) {
  dgpuDevice_t device;
  dgpuDeviceInfo info = DGPU_DEVICE_INFO_INIT;
  if (dgpuInit(NULL) != DGPU_STATUS_SUCCESS || dgpuDeviceGet(0, &device) != DGPU_STATUS_SUCCESS) return 1;
  if (dgpuDeviceGetInfo(device, &info) != DGPU_STATUS_SUCCESS) return 1;
  printf("%s: %llu MiB\n", info.name, (unsigned long long)(info.memory_bytes >> 20));
  return dgpuShutdown() == DGPU_STATUS_SUCCESS ? 0 : 1;
}
