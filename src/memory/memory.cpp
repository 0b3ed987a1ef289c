#include "memory/memory.h"

#include "backend/registry.h"
#include "memory/context_memory.h"
#include "runtime/runtime.h"
#include "runtime/submission.h"

namespace dgpu::memory {

namespace {

// What the registry asks when it unloads a backend, and the memory metrics.
class MemoryState final : public LibraryState, public backend::MemoryLink {
 public:
  MemoryState() {
    backend::registry().set_memory(this);
    backend::registry().add_metric_source(metric);
  }

  std::string live(backend::Backend& backend) override {
    runtime().flush_reaper();
    std::string text;
    for (const auto& device : backend.devices()) {
      const dgpuMemStats sum = device_sum(*device);
      if (!sum.allocations) continue;
      if (!text.empty()) text += "; ";
      text += fmt::format("{}: {} allocations, {} bytes", device->label(), sum.allocations, sum.used_bytes);
    }
    return text;
  }

  void release(backend::Backend& backend) noexcept override {
    for (const auto& context : runtime().contexts()) {
      for (uint32_t i = 0; i < context->device_count(); ++i) {
        if (&context->device(i).backend() == &backend && context->memory()) of(*context).pool(i).trim(0);
      }
    }
  }

 private:
  static dgpuMemStats device_sum(const backend::Device& device) {
    dgpuMemStats sum{};
    for (const auto& context : runtime().contexts()) {
      if (!context->memory()) continue;
      for (uint32_t i = 0; i < context->device_count(); ++i) {
        if (&context->device(i) != &device) continue;
        dgpuMemStats one{};
        of(*context).pool(i).stats(one);
        sum.allocations += one.allocations;
        sum.used_bytes += one.used_bytes;
        sum.reserved_bytes += one.reserved_bytes;
      }
    }
    return sum;
  }

  static bool metric(backend::Device& device, uint32_t id, dgpuMetric& out) {
    if (id != DGPU_METRIC_MEMORY_USED && id != DGPU_METRIC_MEMORY_RESERVED) return false;
    const dgpuMemStats sum = device_sum(device);
    out.value = static_cast<double>(id == DGPU_METRIC_MEMORY_USED ? sum.used_bytes : sum.reserved_bytes);
    out.absent = DGPU_ABSENT_NO;
    return true;
  }
};

// Takes an address back. INVALID_ADDRESS unless it is the start of a live allocation of the context.
Status retire_address(Context& context, dgpuAddr_t address, Location& out) {
  AddressTable& addresses = context.runtime().addresses();
  if (addresses.retire(&context, address, out)) return DGPU_STATUS_SUCCESS;
  Location inside;
  DGPU_TRY(addresses.resolve(&context, address, 0, "address", inside));
  return fail(DGPU_STATUS_INVALID_ADDRESS, "address",
              "address {:#x} is {} bytes inside the allocation at {:#x}; memory is freed by its start address", address,
              address - inside.base, inside.base);
}

}  // namespace

Memory::Memory(Context& context) {
  AddressTable& addresses = context.runtime().addresses();
  for (uint32_t i = 0; i < context.device_count(); ++i) {
    devices_.push_back(std::make_unique<Pool>(context, addresses, std::make_unique<DeviceSource>(context, i)));
  }
  host_ = std::make_unique<Pool>(context, addresses, std::make_unique<HostSource>(context));
  imports_ = std::make_unique<Imports>(context, addresses);
}

void Memory::stream_gone() noexcept {
  for (const auto& pool : devices_) pool->settle();
  host_->settle();
  imports_->settle();
}

Status attach(Context& context) {
  library().state<MemoryState>();
  context.set_memory(std::make_unique<Memory>(context));
  return DGPU_STATUS_SUCCESS;
}

Status allocate(Context& context, uint32_t device, uint64_t size, dgpuAddr_t& out) {
  return of(context).pool(device).allocate(size, nullptr, out, nullptr);
}

Status allocate_host(Context& context, uint64_t size, dgpuAddr_t& out, void** pointer) {
  DGPU_TRY(of(context).pool(Segment::kHost).allocate(size, nullptr, out, nullptr));
  if (pointer) {
    Location location;
    DGPU_TRY(context.runtime().addresses().resolve(&context, out, 0, "address", location));
    *pointer = location.host();
  }
  return DGPU_STATUS_SUCCESS;
}

Status free(Context& context, dgpuAddr_t address) {
  if (!address) return DGPU_STATUS_SUCCESS;
  Location location;
  DGPU_TRY(retire_address(context, address, location));
  // After the address was retired: a submit that still found it alive is among the points.
  if (location.segment->imported) {
    of(context).imports().free(static_cast<Import*>(location.allocation), context.pending());
  } else {
    auto* const block = static_cast<Block*>(location.allocation);
    of(context).pool(location.segment->device).free_after(block, context.pending(block->born));
  }
  return DGPU_STATUS_SUCCESS;
}

Status allocate_async(Stream& stream, uint64_t size, dgpuAddr_t& out) {
  Context& context = *stream.context();
  Pool& pool = of(context).pool(stream.device_index());
  Context::Point wait{nullptr, 0};
  DGPU_TRY(pool.allocate(size, stream.timeline(), out, &wait));
  if (!wait.timeline) return DGPU_STATUS_SUCCESS;
  const Status status = submit_wait(stream, "dgpuMemAllocAsync", wait.timeline.get(), wait.value);
  if (status == DGPU_STATUS_SUCCESS) return status;
  Location location;
  if (context.runtime().addresses().retire(&context, out, location)) {
    pool.free_on_stream(static_cast<Block*>(location.allocation), wait.timeline.get(), wait.value);
  }
  out = 0;
  return status;
}

Status free_async(Stream& stream, dgpuAddr_t address) {
  if (!address) return DGPU_STATUS_SUCCESS;
  Context& context = *stream.context();
  Location location;
  DGPU_TRY(retire_address(context, address, location));
  const uint64_t value = stream.submitted_locked();
  if (location.segment->imported) {
    of(context).imports().free(static_cast<Import*>(location.allocation),
                               {{Ref<Timeline>::retain(stream.timeline()), value}});
  } else {
    of(context)
        .pool(location.segment->device)
        .free_on_stream(static_cast<Block*>(location.allocation), stream.timeline(), value);
  }
  return DGPU_STATUS_SUCCESS;
}

Status import_host(Context& context, void* pointer, uint64_t size, std::shared_ptr<const void> owner, dgpuAddr_t& out) {
  return of(context).imports().import(pointer, size, std::move(owner), out);
}

bool reachable(Context& context, dgpuAddr_t address, uint32_t device) {
  Location location;
  if (!context.runtime().addresses().find(&context, address, 0, location)) return false;
  const Segment& segment = *location.segment;
  return segment.device == device || (segment.device == Segment::kHost && segment.registered[device].memory);
}

Status info(Context& context, dgpuAddr_t address, dgpuMemInfo& out) {
  Location location;
  DGPU_TRY(context.runtime().addresses().resolve(&context, address, 0, "address", location));
  // The end of an allocation is no byte of it; one of no bytes has but its address.
  if (location.size > 0) DGPU_TRY(context.runtime().addresses().resolve(&context, address, 1, "address", location));
  const bool host = location.on_host();
  out.base = location.base;
  out.size = location.size;
  out.host_pointer = location.host();
  out.kind = host ? DGPU_MEMORY_KIND_HOST : DGPU_MEMORY_KIND_DEVICE;
  out.device = host ? UINT32_MAX : backend::registry().ordinal(context.device(location.segment->device));
  return DGPU_STATUS_SUCCESS;
}

Status stats(Context& context, uint32_t device, dgpuMemStats& out) {
  of(context).pool(device).stats(out);
  return DGPU_STATUS_SUCCESS;
}

Status trim(Context& context, uint32_t device, uint64_t keep_bytes) {
  of(context).pool(device).trim(keep_bytes);
  return DGPU_STATUS_SUCCESS;
}

}  // namespace dgpu::memory
