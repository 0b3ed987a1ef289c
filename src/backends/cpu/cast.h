// Conversion of a run of elements between any two types.
#pragma once
#include "backends/cpu/rows.h"

namespace dgpu::cpu {

// n elements from src[offset + i stride] to dst[...]; offsets and strides in elements, so that types below a byte work.
// Float to integer truncates and saturates, NaN gives 0; integer to integer wraps; anything to bool is x != 0; to f8
// and f4 saturates where the type has no infinity (f8e4m3, f4e2m1) and for f8e5m2.
struct CastSide {
  dgpuDtype_t type;
  int64_t offset, stride;
};
void cast_run(const void* src, CastSide from, void* dst, CastSide to, int64_t n);

}  // namespace dgpu::cpu
