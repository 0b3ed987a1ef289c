/* libdgpu: one C library for accelerators. SPDX-License-Identifier: Apache-2.0
 *
 * What an embedder includes. Reads in this order: base (library, errors, log, settings), device (backends, devices,
 * contexts), stream (timelines, streams, events), memory, kernel, op, model, day0. Vendors who write a backend include
 * dgpu/backend.h instead.
 *
 * Conventions that hold for every function, unless its comment says otherwise:
 *  - It returns a dgpuStatus_t: 0 is success, positive values are normal outcomes, negative values are errors. Output
 *    parameters come last and are null or zero on failure. dgpuGetLastError() tells the details, per thread.
 *  - It may be called from any thread, on any handle, at any time, also while another thread destroys that handle: the
 *    call then either completes or answers DGPU_STATUS_INVALID_HANDLE. There is no current device and no current stream.
 *  - It does not block. Functions that can block take a timeout in nanoseconds (DGPU_TIMEOUT_INFINITE waits without
 *    limit) and are woken by failure, by device loss and by shutdown.
 *  - Strings passed in are copied. Strings handed out live as long as the handle named beside them, or are written to
 *    the caller's buffer by the two-call rule: *needed receives the size with the final NUL; a null buffer only asks;
 *    a buffer that is too small is left empty and gives DGPU_STATUS_BUFFER_TOO_SMALL. Nothing returned needs free().
 *  - Structs start with struct_size. Fill them with their _INIT macro; fields added later are zero for old callers.
 *  - Sizes are bytes, times are nanoseconds, shapes and strides are elements.
 */
#ifndef DGPU_H
#define DGPU_H

#include "dgpu/base.h"
#include "dgpu/day0.h"
#include "dgpu/device.h"
#include "dgpu/kernel.h"
#include "dgpu/memory.h"
#include "dgpu/model.h"
#include "dgpu/op.h"
#include "dgpu/stream.h"

#endif /* DGPU_H */
