// Device memory, pinned host memory, copies, fill.
#include "memory/memory.h"

#include "api/entry.h"
#include "backend/registry.h"

using namespace dgpu;

extern "C" {

dgpuStatus_t dgpuMemAlloc(dgpuContext_t context, dgpuDevice_t device, size_t size, dgpuAddr_t* out_address) {
  return entry("dgpuMemAlloc", [&]() -> Status {
    if (out_address) *out_address = 0;
    DGPU_PIN(Context, owner, context);
    DGPU_PIN(backend::Device, target, device);
    DGPU_TRY(need(out_address, "out_address"));
    uint32_t index = 0;
    DGPU_TRY(owner->device_index(*target, index));
    return memory::allocate(*owner, index, size, *out_address);
  });
}

dgpuStatus_t dgpuMemAllocHost(dgpuContext_t context, size_t size, dgpuAddr_t* out_address, void** out_pointer) {
  return entry("dgpuMemAllocHost", [&]() -> Status {
    if (out_address) *out_address = 0;
    if (out_pointer) *out_pointer = nullptr;
    DGPU_PIN(Context, owner, context);
    DGPU_TRY(need(out_address, "out_address"));
    return memory::allocate_host(*owner, size, *out_address, out_pointer);
  });
}

dgpuStatus_t dgpuMemFree(dgpuContext_t context, dgpuAddr_t address) {
  return entry("dgpuMemFree", [&]() -> Status {
    DGPU_PIN(Context, owner, context);
    return memory::free(*owner, address);
  });
}

dgpuStatus_t dgpuMemAllocAsync(dgpuStream_t stream, size_t size, dgpuAddr_t* out_address) {
  return entry("dgpuMemAllocAsync", [&]() -> Status {
    if (out_address) *out_address = 0;
    DGPU_PIN(Stream, pinned, stream);
    DGPU_TRY(need(out_address, "out_address"));
    return memory::allocate_async(*pinned, size, *out_address);
  });
}

dgpuStatus_t dgpuMemFreeAsync(dgpuStream_t stream, dgpuAddr_t address) {
  return entry("dgpuMemFreeAsync", [&]() -> Status {
    DGPU_PIN(Stream, pinned, stream);
    return memory::free_async(*pinned, address);
  });
}

dgpuStatus_t dgpuMemGetInfo(dgpuContext_t context, dgpuAddr_t address, dgpuMemInfo* out_info) {
  return entry("dgpuMemGetInfo", [&]() -> Status {
    zero_struct(out_info);
    DGPU_PIN(Context, owner, context);
    dgpuMemInfo info = DGPU_MEM_INFO_INIT;
    DGPU_TRY(memory::info(*owner, address, info));
    return write_struct(out_info, "dgpuMemInfo", info);
  });
}

dgpuStatus_t dgpuMemGetStats(dgpuContext_t context, dgpuDevice_t device, dgpuMemStats* out_stats) {
  return entry("dgpuMemGetStats", [&]() -> Status {
    zero_struct(out_stats);
    DGPU_PIN(Context, owner, context);
    uint32_t index = Segment::kHost;
    if (device) {
      DGPU_PIN(backend::Device, target, device);
      DGPU_TRY(owner->device_index(*target, index));
    }
    dgpuMemStats stats = DGPU_MEM_STATS_INIT;
    DGPU_TRY(memory::stats(*owner, index, stats));
    return write_struct(out_stats, "dgpuMemStats", stats);
  });
}

dgpuStatus_t dgpuMemTrim(dgpuContext_t context, dgpuDevice_t device, uint64_t keep_bytes) {
  return entry("dgpuMemTrim", [&]() -> Status {
    DGPU_PIN(Context, owner, context);
    uint32_t index = Segment::kHost;
    if (device) {
      DGPU_PIN(backend::Device, target, device);
      DGPU_TRY(owner->device_index(*target, index));
    }
    return memory::trim(*owner, index, keep_bytes);
  });
}

dgpuStatus_t dgpuMemCopyAsync(dgpuStream_t stream, dgpuAddr_t dst, dgpuAddr_t src, uint64_t size) {
  return entry("dgpuMemCopyAsync", [&]() -> Status {
    DGPU_PIN(Stream, pinned, stream);
    return memory::copy(*pinned, "dgpuMemCopyAsync", dst, src, size);
  });
}

dgpuStatus_t dgpuMemCopyFromHostAsync(dgpuStream_t stream, dgpuAddr_t dst, const void* src, uint64_t size) {
  return entry("dgpuMemCopyFromHostAsync", [&]() -> Status {
    DGPU_PIN(Stream, pinned, stream);
    return memory::copy_from_host(*pinned, "dgpuMemCopyFromHostAsync", dst, src, size);
  });
}

dgpuStatus_t dgpuMemCopyToHostAsync(dgpuStream_t stream, void* dst, dgpuAddr_t src, uint64_t size) {
  return entry("dgpuMemCopyToHostAsync", [&]() -> Status {
    DGPU_PIN(Stream, pinned, stream);
    return memory::copy_to_host(*pinned, "dgpuMemCopyToHostAsync", dst, src, size);
  });
}

dgpuStatus_t dgpuMemCopy2DAsync(dgpuStream_t stream, dgpuAddr_t dst, uint64_t dst_pitch, dgpuAddr_t src,
                                uint64_t src_pitch, uint64_t width, uint64_t rows) {
  return entry("dgpuMemCopy2DAsync", [&]() -> Status {
    DGPU_PIN(Stream, pinned, stream);
    return memory::copy_2d(*pinned, "dgpuMemCopy2DAsync", dst, dst_pitch, src, src_pitch, width, rows);
  });
}

dgpuStatus_t dgpuMemFillAsync(dgpuStream_t stream, dgpuAddr_t dst, uint64_t pattern, uint32_t pattern_size,
                              uint64_t size) {
  return entry("dgpuMemFillAsync", [&]() -> Status {
    DGPU_PIN(Stream, pinned, stream);
    return memory::fill(*pinned, "dgpuMemFillAsync", dst, pattern, pattern_size, size);
  });
}

}  // extern "C"
