#include "memory/import.h"

#include <algorithm>

#include "runtime/runtime.h"

namespace dgpu::memory {

void register_host(Context& context, Segment& segment) {
  segment.registered.assign(context.device_count(), {});
  for (uint32_t i = 0; i < context.device_count(); ++i) {
    backend::Device& device = context.device(i);
    if (!device.memory().register_host || device.lost()) continue;
    dgpuBackendAllocation& here = segment.registered[i];
    here.struct_size = sizeof(here);
    if (device.memory().register_host(device.opened(), segment.host, segment.size, &here) < 0) here = {};  // can copy
  }
}

void unregister_host(Context& context, Segment& segment) noexcept {
  for (uint32_t i = 0; i < segment.registered.size(); ++i) {
    backend::Device& device = context.device(i);
    if (segment.registered[i].memory && device.memory().unregister_host)
      device.memory().unregister_host(device.opened(), segment.registered[i].memory);
  }
  segment.registered.clear();
}

Imports::~Imports() {
  for (Import& import : store_) {
    Location location;
    if (import.address) addresses_.retire(&context_, import.address, location);
    if (import.owner) release(import);
  }
}

void Imports::release(Import& import) noexcept {
  unregister_host(context_, import.segment);
  import.owner = nullptr;
  import.points.clear();
}

Status Imports::import(void* pointer, uint64_t size, std::shared_ptr<const void> owner, dgpuAddr_t& out) {
  out = 0;
  settle();
  std::lock_guard lock(mutex_);
  auto it = std::find_if(store_.begin(), store_.end(), [](const Import& import) { return !import.owner; });
  Import& import = it == store_.end() ? store_.emplace_back() : *it;
  import.segment.context = &context_;
  import.segment.device = Segment::kHost;
  import.segment.imported = true;
  import.segment.native = reinterpret_cast<uintptr_t>(pointer);
  import.segment.host = static_cast<std::byte*>(pointer);
  import.segment.size = size;
  register_host(context_, import.segment);
  import.owner = std::move(owner);
  out = import.address = addresses_.publish(&import.segment, 0, size, &import);
  if (out) return DGPU_STATUS_SUCCESS;
  release(import);
  return fail(DGPU_STATUS_OUT_OF_HOST_MEMORY, "memory", "no host memory is left for the record of an import");
}

void Imports::free(Import* import, std::vector<Context::Point> points) {
  {
    std::lock_guard lock(mutex_);
    import->address = 0;
    import->points = std::move(points);
  }
  settle();
}

void Imports::settle() noexcept {
  std::lock_guard lock(mutex_);
  for (Import& import : store_) {
    if (!import.owner || import.address) continue;
    std::erase_if(import.points, [](const Context::Point& p) { return p.timeline->retired() >= p.value; });
    if (import.points.empty()) release(import);
  }
}

}  // namespace dgpu::memory
