// Device memory: anonymous mappings, counted against the device's limit.
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "backends/cpu/device.h"
#include "backends/kit/abi.h"

namespace dgpu::cpu {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kHugePage = 2 << 20;

// What dgpuBackendMemory stands for. Host memory that was registered has no mapping of its own.
struct Memory {
  void* base = nullptr;
  uint64_t mapped = 0;
  uint64_t size = 0;
};

// Maps `size` bytes, aligned to a huge page where that pays. Null if the system has none left.
void* map(uint64_t size) {
  const bool huge = size >= kHugePage;
  const uint64_t extra = huge ? kHugePage : 0;
  void* raw = mmap(nullptr, size + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  if (!huge) return raw;
  const auto begin = reinterpret_cast<uintptr_t>(raw);
  const uintptr_t aligned = (begin + kHugePage - 1) / kHugePage * kHugePage;
  if (aligned > begin) munmap(raw, aligned - begin);
  const uintptr_t end = begin + size + extra;
  if (end > aligned + size) munmap(reinterpret_cast<void*>(aligned + size), end - aligned - size);
  void* base = reinterpret_cast<void*>(aligned);
  madvise(base, size, MADV_HUGEPAGE);  // a wish: the system may have it switched off
  return base;
}

// Takes `size` bytes of the device's budget; otherwise the bytes that are free.
bool reserve(Device& device, uint64_t size, uint64_t* free) {
  uint64_t used = device.memory_used.load();
  do {
    *free = device.memory_limit - used;
    if (size > *free) return false;
  } while (!device.memory_used.compare_exchange_weak(used, used + size));
  return true;
}

}  // namespace

dgpuStatus_t allocate(Device& device, uint64_t size, dgpuBackendAllocation* out) {
  const Services& services = device.backend->services;
  uint64_t free = 0;
  if (size == 0) return services.fail(DGPU_STATUS_INVALID_ARGUMENT, "size", "size is 0");
  if (!reserve(device, size, &free))
    return services.fail(DGPU_STATUS_OUT_OF_MEMORY, "size",
                         "cpu device {}: {} bytes asked, {} of {} bytes free, {} missing; free memory or raise "
                         "DGPU_CPU_MEMORY",
                         device.index, size, free, device.memory_limit, size - free);
  const uint64_t mapped = (size + kPage - 1) / kPage * kPage;
  auto* memory = new (std::nothrow) Memory;
  void* base = memory ? map(mapped) : nullptr;
  if (!base) {
    const int error = errno;
    delete memory;
    device.memory_used.fetch_sub(size);
    return services.fail(DGPU_STATUS_OUT_OF_MEMORY, "size", "cpu device {}: the system cannot map {} bytes: {}",
                         device.index, mapped, std::strerror(error));
  }
  *memory = {base, mapped, size};
  dgpuBackendAllocation allocation{};
  allocation.memory = reinterpret_cast<dgpuBackendMemory*>(memory);
  allocation.native = reinterpret_cast<uint64_t>(base);
  allocation.host = base;
  kit::write_struct(out, allocation);
  return DGPU_STATUS_SUCCESS;
}

void deallocate(Device& device, dgpuBackendMemory* handle) {
  auto* memory = reinterpret_cast<Memory*>(handle);
  if (!memory) return;
  if (memory->mapped) {
    munmap(memory->base, memory->mapped);
    device.memory_used.fetch_sub(memory->size);
  }
  delete memory;
}

dgpuStatus_t register_host(Device& device, void* pointer, dgpuBackendAllocation* out) {
  auto* memory = new (std::nothrow) Memory;
  if (!memory)
    return device.backend->services.fail(DGPU_STATUS_OUT_OF_HOST_MEMORY, "pointer", "no host memory for the record");
  memory->base = pointer;
  dgpuBackendAllocation allocation{};
  allocation.memory = reinterpret_cast<dgpuBackendMemory*>(memory);
  allocation.native = reinterpret_cast<uint64_t>(pointer);
  allocation.host = pointer;
  kit::write_struct(out, allocation);
  return DGPU_STATUS_SUCCESS;
}

}  // namespace dgpu::cpu
