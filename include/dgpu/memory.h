/* Device memory, pinned host memory, copies, fill. SPDX-License-Identifier: Apache-2.0
 *
 * Host writes made before a submit are visible to the command; a command's writes are visible after a successful wait
 * or query; polling memory is no synchronisation. The host dereferences only what dgpuMemInfo.host_pointer reports,
 * even on the cpu backend. Address ranges are checked when a command is submitted: INVALID_ADDRESS then. */
#ifndef DGPU_MEMORY_H
#define DGPU_MEMORY_H

#include "dgpu/base.h"

DGPU_EXTERN_C_BEGIN

/* Allocates `size` bytes (0 gives a distinct address that holds nothing), aligned to 256. OUT_OF_MEMORY names the
 * device, what is used, free and asked for. Contents are undefined. */
DGPU_API dgpuStatus_t dgpuMemAlloc(dgpuContext_t context, dgpuDevice_t device, size_t size, dgpuAddr_t *out_address);
/* Pinned host memory that every device of the context can copy from and to; out_pointer may be null. */
DGPU_API dgpuStatus_t dgpuMemAllocHost(dgpuContext_t context, size_t size, dgpuAddr_t *out_address, void **out_pointer);
/* Frees device or host memory by its start address; 0 is allowed. The address is invalid at once; the bytes are
 * reused when all work that was submitted to the context's streams before this call has retired. */
DGPU_API dgpuStatus_t dgpuMemFree(dgpuContext_t context, dgpuAddr_t address);
/* Allocates in stream order: usable by commands submitted to `stream` later, by others after the usual wait. */
DGPU_API dgpuStatus_t dgpuMemAllocAsync(dgpuStream_t stream, size_t size, dgpuAddr_t *out_address);
/* Frees in stream order: later allocations on `stream` may reuse the bytes at once, others when the current value of
 * the stream has retired; the stream may be on another device of the context. Other streams that still use the memory
 * must be waited for first. Also accepted on a failed stream; nothing leaks. */
DGPU_API dgpuStatus_t dgpuMemFreeAsync(dgpuStream_t stream, dgpuAddr_t address);

enum { DGPU_MEMORY_KIND_DEVICE = 1, DGPU_MEMORY_KIND_HOST = 2 };
typedef struct dgpuMemInfo {
  size_t struct_size;
  dgpuAddr_t base;     /* start of the allocation that the address lies in */
  uint64_t size;       /* bytes asked for */
  void *host_pointer;  /* host address of the asked-for address, null where the host may not touch it */
  uint32_t kind;       /* DGPU_MEMORY_KIND_* */
  uint32_t device;     /* ordinal of the device; UINT32_MAX for host memory */
} dgpuMemInfo;
#define DGPU_MEM_INFO_INIT {sizeof(dgpuMemInfo), 0, 0, 0, 0, 0}
/* The allocation that `address` lies in. INVALID_ADDRESS if there is none. */
DGPU_API dgpuStatus_t dgpuMemGetInfo(dgpuContext_t context, dgpuAddr_t address, dgpuMemInfo *out_info);

typedef struct dgpuMemStats {
  size_t struct_size;
  uint64_t used_bytes;      /* asked for by live allocations, byte-exact */
  uint64_t reserved_bytes;  /* taken from the device, free blocks included */
  uint64_t peak_used_bytes; /* highest used_bytes since the context was created */
  uint64_t capacity_bytes;  /* memory of the device */
  uint64_t allocations;     /* live */
  uint64_t pending_bytes;   /* freed, not yet reusable everywhere */
} dgpuMemStats;
#define DGPU_MEM_STATS_INIT {sizeof(dgpuMemStats), 0, 0, 0, 0, 0, 0}
/* The context's pool on one device; a null device asks for pinned host memory (its capacity is 0: unknown). */
DGPU_API dgpuStatus_t dgpuMemGetStats(dgpuContext_t context, dgpuDevice_t device, dgpuMemStats *out_stats);
/* Gives free memory back to the device until at most keep_bytes are reserved, as far as blocks in use allow. */
DGPU_API dgpuStatus_t dgpuMemTrim(dgpuContext_t context, dgpuDevice_t device, uint64_t keep_bytes);

/* Copies in all directions between addresses of the context: device to device, to another device, host to device, and
 * so on. Ranges must not overlap. */
DGPU_API dgpuStatus_t dgpuMemCopyAsync(dgpuStream_t stream, dgpuAddr_t dst, dgpuAddr_t src, uint64_t size);
/* From and to ordinary host memory, which must stay valid and untouched until the command has retired. */
DGPU_API dgpuStatus_t dgpuMemCopyFromHostAsync(dgpuStream_t stream, dgpuAddr_t dst, const void *src, uint64_t size);
DGPU_API dgpuStatus_t dgpuMemCopyToHostAsync(dgpuStream_t stream, void *dst, dgpuAddr_t src, uint64_t size);
/* `rows` rows of `width` bytes; pitches are the distances of row starts in bytes and at least `width`. */
DGPU_API dgpuStatus_t dgpuMemCopy2DAsync(dgpuStream_t stream, dgpuAddr_t dst, uint64_t dst_pitch, dgpuAddr_t src,
                                         uint64_t src_pitch, uint64_t width, uint64_t rows);
/* Repeats the low pattern_size bytes of `pattern`: 1, 2, 4 or 8; size must be a multiple of it, dst aligned to it. */
DGPU_API dgpuStatus_t dgpuMemFillAsync(dgpuStream_t stream, dgpuAddr_t dst, uint64_t pattern, uint32_t pattern_size,
                                       uint64_t size);

DGPU_EXTERN_C_END
#endif /* DGPU_MEMORY_H */
