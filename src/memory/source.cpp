#include "memory/source.h"

#include "memory/host_allocator.h"

namespace dgpu::memory {

Status DeviceSource::allocate(uint64_t size, Segment& out) {
  dgpuBackendAllocation allocation{};
  allocation.struct_size = sizeof(allocation);
  DGPU_TRY(device().memory().allocate(device().opened(), size, &allocation));
  out.device = index_;
  out.memory = allocation.memory;
  out.native = allocation.native;
  out.host = static_cast<std::byte*>(allocation.host);
  out.size = size;
  return DGPU_STATUS_SUCCESS;
}

void DeviceSource::release(Segment& segment) noexcept {
  device().memory().free(device().opened(), segment.memory);
  segment.memory = nullptr;
}

Status HostSource::allocate(uint64_t size, Segment& out) {
  constexpr size_t kPage = 4096;
  void* const pages = host_allocate(size, kPage);
  if (!pages) return DGPU_STATUS_OUT_OF_HOST_MEMORY;
  out.device = Segment::kHost;
  out.native = reinterpret_cast<uintptr_t>(pages);
  out.host = static_cast<std::byte*>(pages);
  out.size = size;
  out.registered.assign(context_.device_count(), {});
  for (uint32_t i = 0; i < context_.device_count(); ++i) {
    backend::Device& device = context_.device(i);
    if (!device.memory().register_host || device.lost()) continue;
    dgpuBackendAllocation& here = out.registered[i];
    here.struct_size = sizeof(here);
    if (device.memory().register_host(device.opened(), pages, size, &here) < 0) here = {};  // copies still work
  }
  return DGPU_STATUS_SUCCESS;
}

void HostSource::release(Segment& segment) noexcept {
  for (uint32_t i = 0; i < segment.registered.size(); ++i) {
    backend::Device& device = context_.device(i);
    if (segment.registered[i].memory && device.memory().unregister_host) {
      device.memory().unregister_host(device.opened(), segment.registered[i].memory);
    }
  }
  segment.registered.clear();
  host_release(segment.host);
  segment.host = nullptr;
}

}  // namespace dgpu::memory
