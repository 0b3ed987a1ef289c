// Device and host memory of a context: allocation, copies, fill. What the API's memory chapter and the rooms above
// call.
#pragma once
#include <cstdint>
#include <memory>

#include "dgpu/memory.h"
#include "runtime/address_table.h"
#include "runtime/context.h"
#include "runtime/stream.h"

namespace dgpu::memory {

// Gives a new context its pools. Once, before the context is published.
Status attach(Context& context);

// ---- Allocation. `device` is an index in the context. ----

Status allocate(Context& context, uint32_t device, uint64_t size, dgpuAddr_t& out);
// `pointer` may be null.
Status allocate_host(Context& context, uint64_t size, dgpuAddr_t& out, void** pointer = nullptr);
// The address is invalid at once; the bytes come back when everything submitted before has retired. 0 is allowed.
Status free(Context& context, dgpuAddr_t address);
Status allocate_async(Stream& stream, uint64_t size, dgpuAddr_t& out);
Status free_async(Stream& stream, dgpuAddr_t address);

// Memory of somebody else on the host as an address of the context; `free` takes it back, and `owner` is let go when
// everything submitted before has retired. Not counted in statistics.
Status import_host(Context& context, void* pointer, uint64_t size, std::shared_ptr<const void> owner, dgpuAddr_t& out);
// Whether operators on that device can use the address as it is.
bool reachable(Context& context, dgpuAddr_t address, uint32_t device);

Status info(Context& context, dgpuAddr_t address, dgpuMemInfo& out);
// Segment::kHost for pinned host memory.
Status stats(Context& context, uint32_t device, dgpuMemStats& out);
Status trim(Context& context, uint32_t device, uint64_t keep_bytes);

// ---- Commands. `function` is the API function, static storage. QUEUE_FULL is a positive status. ----

Status copy(Stream& stream, const char* function, dgpuAddr_t dst, dgpuAddr_t src, uint64_t size);
Status copy_from_host(Stream& stream, const char* function, dgpuAddr_t dst, const void* src, uint64_t size);
Status copy_to_host(Stream& stream, const char* function, void* dst, dgpuAddr_t src, uint64_t size);
Status copy_2d(Stream& stream, const char* function, dgpuAddr_t dst, uint64_t dst_pitch, dgpuAddr_t src,
               uint64_t src_pitch, uint64_t width, uint64_t rows);
Status fill(Stream& stream, const char* function, dgpuAddr_t dst, uint64_t pattern, uint32_t pattern_size,
            uint64_t size);

// ---- For host tasks (Submission::add_task): blocking access to memory located at submit (Submission::locate).
// The range must lie in the located allocation. A null result of Location::host() means that the host cannot
// touch it.

Status read(Context& context, const Location& src, void* dst, uint64_t size);
Status write(Context& context, const Location& dst, const void* src, uint64_t size);

}  // namespace dgpu::memory
