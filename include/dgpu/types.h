/* Types that every chapter and the backend header share. SPDX-License-Identifier: Apache-2.0 */
#ifndef DGPU_TYPES_H
#define DGPU_TYPES_H

#include <stddef.h>
#include <stdint.h>

#include "dgpu/status.h"

#if defined(__cplusplus)
#define DGPU_EXTERN_C_BEGIN extern "C" {
#define DGPU_EXTERN_C_END }
#else
#define DGPU_EXTERN_C_BEGIN
#define DGPU_EXTERN_C_END
#endif

#if defined(__GNUC__)
#define DGPU_API __attribute__((visibility("default")))
#else
#define DGPU_API
#endif

/* Version of this header. The soname carries the major; a minor only adds. */
#define DGPU_VERSION_MAJOR 1
#define DGPU_VERSION_MINOR 0
#define DGPU_VERSION_PATCH 0

#define DGPU_TIMEOUT_INFINITE UINT64_MAX /* nanoseconds */

/* A device address: unique over all devices of the process. Arithmetic is valid inside one allocation; 0 is null. */
typedef uint64_t dgpuAddr_t;

/* Element types. X(name, value, bits, text). Sub-byte types are packed, lowest bits first. */
#define DGPU_DTYPE_LIST(X)   \
  X(F32, 1, 32, "f32")       \
  X(F16, 2, 16, "f16")       \
  X(BF16, 3, 16, "bf16")     \
  X(F64, 4, 64, "f64")       \
  X(F8E4M3, 5, 8, "f8e4m3")  \
  X(F8E5M2, 6, 8, "f8e5m2")  \
  X(F8E8M0, 7, 8, "f8e8m0")  \
  X(F4E2M1, 8, 4, "f4e2m1")  \
  X(I8, 9, 8, "i8")          \
  X(U8, 10, 8, "u8")         \
  X(I4, 11, 4, "i4")         \
  X(U4, 12, 4, "u4")         \
  X(I16, 13, 16, "i16")      \
  X(I32, 14, 32, "i32")      \
  X(I64, 15, 64, "i64")      \
  X(BOOL, 16, 8, "bool")

typedef uint32_t dgpuDtype_t; /* one of DGPU_DTYPE_*; 0 is none */

enum {
  DGPU_DTYPE_NONE = 0,
#define DGPU_DTYPE_ENUM_ROW(name, value, bits, text) DGPU_DTYPE_##name = value,
  DGPU_DTYPE_LIST(DGPU_DTYPE_ENUM_ROW)
#undef DGPU_DTYPE_ENUM_ROW
      DGPU_DTYPE_FORCE_INT32_ = 0x7fffffff
};

#define DGPU_MAX_RANK 8

/* A tensor without its data. The address is given when a plan is executed.
 * symbols[i] != 0 says that dimension i is symbolic: shape[i] is then its stated maximum, and the value comes with each
 * execution in symbols[id - 1]. Strides of a symbolic tensor are fixed by the maximum. */
typedef struct dgpuTensorDesc {
  size_t struct_size;
  dgpuDtype_t dtype;
  uint32_t rank;                   /* 0 (scalar) to DGPU_MAX_RANK */
  int64_t shape[DGPU_MAX_RANK];    /* elements; 0 is allowed */
  int64_t strides[DGPU_MAX_RANK];  /* elements; 0 broadcasts an input; use dgpuTensorDescPack for row-major */
  uint32_t symbols[DGPU_MAX_RANK]; /* symbol id per dimension, 1 to 64; 0: the dimension is fixed */
  uint32_t layout;                 /* 0: strided */
  uint32_t flags;                  /* must be 0 */
} dgpuTensorDesc;
#define DGPU_TENSOR_DESC_INIT {sizeof(dgpuTensorDesc), 0, 0, {0}, {0}, {0}, 0, 0}

#endif /* DGPU_TYPES_H */
