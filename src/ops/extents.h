// Where a tensor lies in memory, for given symbol values. Nothing here allocates.
#pragma once
#include "ops/op.h"

namespace dgpu::ops {

// Bytes from the address on that the tensor may touch; 0 if it has no element.
uint64_t touched_bytes(const dgpuTensorDesc& d, const int64_t* symbols);

// The same elements in the same places, given the same address.
bool same_layout(const dgpuTensorDesc& a, const dgpuTensorDesc& b);

// Whether two tensors at these addresses share no byte: their ranges are apart, or both are columns of rows with the
// same pitch and the columns are apart.
bool disjoint(const dgpuTensorDesc& a, uint64_t a_address, uint64_t a_bytes, const dgpuTensorDesc& b,
              uint64_t b_address, uint64_t b_bytes, const int64_t* symbols);

}  // namespace dgpu::ops
