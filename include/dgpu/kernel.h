/* Kernels: a C function with a declared signature, launched over a grid. SPDX-License-Identifier: Apache-2.0 */
#ifndef DGPU_KERNEL_H
#define DGPU_KERNEL_H

#include <string.h>

#include "dgpu/base.h"

DGPU_EXTERN_C_BEGIN

/* Argument types of a signature, and what a launch passes for them. */
enum {
  DGPU_ARG_I32 = 1,
  DGPU_ARG_U32 = 2,
  DGPU_ARG_I64 = 3,
  DGPU_ARG_U64 = 4,
  DGPU_ARG_F32 = 5,
  DGPU_ARG_F64 = 6,
  DGPU_ARG_PTR = 7 /* a device address; the function receives the native pointer */
};

typedef void (*dgpuKernelFunction)(void); /* cast from the function's real type */

enum {
  DGPU_KERNEL_MAY_BLOCK = 1, /* for code that takes locks, as Python callbacks do: all grid points of a launch in order,
                                on a thread that others do not wait for. Ending that thread fails the command */
  DGPU_KERNEL_STATUS = 2     /* the function returns int32_t: a negative value fails the command */
};

/* Makes a kernel of a C function of a device whose backend runs host functions (`cpu`). `signature` lists its
 * parameters in order, separated by commas:
 *   gx gy gz            uint64_t: the grid point this call works on
 *   i32 u32 i64 u64 f32 f64   a value given at launch
 *   ptr                 a pointer; a device address is given at launch
 * Example: void saxpy(uint64_t i, float a, const float *x, float *y) has the signature "gx,f32,ptr,ptr".
 * The function is called once per grid point through libffi, on library threads, several points at once unless
 * DGPU_KERNEL_MAY_BLOCK. It must return; blocking functions of the library answer NOT_PERMITTED in it. At most 24
 * parameters.
 * `user`, if the signature starts with "user", is passed as a void* first parameter.
 * The function's code must stay loaded until the kernel is destroyed and its launches have retired. */
DGPU_API dgpuStatus_t dgpuKernelCreate(dgpuContext_t context, const char *name, dgpuKernelFunction function,
                                       const char *signature, void *user, uint32_t flags, dgpuKernel_t *out_kernel);
DGPU_API dgpuStatus_t dgpuKernelDestroy(dgpuKernel_t kernel);

typedef struct dgpuKernelInfo {
  size_t struct_size;
  char name[64];
  char signature[256];
  uint32_t arg_count; /* arguments given at launch: without grid and user parameters */
  uint32_t flags;
} dgpuKernelInfo;
#define DGPU_KERNEL_INFO_INIT {sizeof(dgpuKernelInfo), {0}, {0}, 0, 0}
DGPU_API dgpuStatus_t dgpuKernelGetInfo(dgpuKernel_t kernel, dgpuKernelInfo *out_info);
/* Type of launch argument `index`, DGPU_ARG_*. */
DGPU_API dgpuStatus_t dgpuKernelGetArgType(dgpuKernel_t kernel, uint32_t index, uint32_t *out_type);

/* Launches over grid x * y * z points (a zero extent runs nothing). types[i] and values[i] describe argument i: the
 * type must equal the signature's (INVALID_ARGUMENT names the argument); the value holds the bits, see dgpuArgF32 and
 * friends. Pointer arguments must lie in live allocations of the context; 0 passes a null pointer. */
DGPU_API dgpuStatus_t dgpuKernelLaunch(dgpuStream_t stream, dgpuKernel_t kernel, uint64_t grid_x, uint64_t grid_y,
                                       uint64_t grid_z, const uint32_t *types, const uint64_t *values, uint32_t count);

static inline uint64_t dgpuArgI32(int32_t v) { return (uint64_t)(int64_t)v; }
static inline uint64_t dgpuArgU32(uint32_t v) { return v; }
static inline uint64_t dgpuArgI64(int64_t v) { return (uint64_t)v; }
static inline uint64_t dgpuArgF32(float v) {
  uint32_t bits;
  memcpy(&bits, &v, sizeof bits);
  return bits;
}
static inline uint64_t dgpuArgF64(double v) {
  uint64_t bits;
  memcpy(&bits, &v, sizeof bits);
  return bits;
}

DGPU_EXTERN_C_END
#endif /* DGPU_KERNEL_H */
