// Element types as numbers: what the reference reads, rounds and writes.
#pragma once
#include <cstdint>

#include "base/dtype.h"

namespace dgpu::ops {

// Element `index` (in elements, also for packed sub-byte types) as a number.
double load_float(dgpuDtype_t dtype, const void* base, int64_t index);
int64_t load_int(dgpuDtype_t dtype, const void* base, int64_t index);
// Rounds once, to nearest even. 8- and 4-bit floats saturate; f8e8m0 takes the power of two below.
void store_float(dgpuDtype_t dtype, void* base, int64_t index, double value);
// Integers keep their low bits; bool becomes 0 or 1.
void store_int(dgpuDtype_t dtype, void* base, int64_t index, int64_t value);
// The value that store_float and load_float give.
double round_to(dgpuDtype_t dtype, double value);
// Truncates towards zero and saturates at the type's limits; NaN gives 0. bool: 1 unless 0.
int64_t float_to_int(dgpuDtype_t dtype, double value);

}  // namespace dgpu::ops
