#include "memory/source.h"

#include "backend/registry.h"
#include "memory/context_memory.h"
#include "memory/host_allocator.h"
#include "memory/import.h"
#include "runtime/runtime.h"

namespace dgpu::memory {

namespace {
constexpr uint64_t kNativeAlignment = 256;  // that dgpuBackendAllocation.native promises
}

Status DeviceSource::allocate(uint64_t size, Segment& out) {
  dgpuBackendAllocation allocation{};
  allocation.struct_size = sizeof(allocation);
  backend::Backend& backend = device().backend();
  DGPU_TRY(backend.checked(device().memory().allocate(device().opened(), size, &allocation), "memory.allocate"));
  if (!allocation.memory || allocation.native % kNativeAlignment) {
    if (allocation.memory) device().memory().free(device().opened(), allocation.memory);
    return fail(DGPU_STATUS_INTERNAL, "memory.allocate", "backend {} {}", backend.name(),
                allocation.memory ? "allocated memory whose native address is not aligned to 256"
                                  : "allocated memory without handing out a block");
  }
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

template <typename F>
void DeviceSource::for_others(F call) const {
  for (const auto& other : context_.runtime().contexts()) {
    if (other.get() == &context_ || !other->memory()) continue;
    for (uint32_t i = 0; i < other->device_count(); ++i) {
      if (&other->device(i) == &device()) call(of(*other).pool(i));
    }
  }
}

uint64_t DeviceSource::held_elsewhere() const {
  uint64_t sum = 0;
  for_others([&](Pool& pool) {
    dgpuMemStats one{};
    pool.stats(one);
    sum += one.reserved_bytes;
  });
  return sum;
}

void DeviceSource::reclaim_elsewhere() {
  for_others([](Pool& pool) { pool.trim(0); });
}

Status HostSource::allocate(uint64_t size, Segment& out) {
  constexpr size_t kPage = 4096;
  void* const pages = host_allocate(size, kPage);
  if (!pages) return DGPU_STATUS_OUT_OF_HOST_MEMORY;
  out.device = Segment::kHost;
  out.native = reinterpret_cast<uintptr_t>(pages);
  out.host = static_cast<std::byte*>(pages);
  out.size = size;
  register_host(context_, out);
  return DGPU_STATUS_SUCCESS;
}

void HostSource::release(Segment& segment) noexcept {
  unregister_host(context_, segment);
  host_release(segment.host);
  segment.host = nullptr;
}

}  // namespace dgpu::memory
