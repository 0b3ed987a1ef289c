#include "ops/extents.h"

#include <algorithm>

#include "base/dtype.h"

namespace dgpu::ops {

namespace {

// The largest stride of the tensor and the bytes that everything below it spans.
struct Rows {
  uint64_t pitch = 0;
  uint64_t width = 0;
};

Rows rows_of(const dgpuTensorDesc& d, const int64_t* symbols) {
  uint32_t outer = d.rank;
  for (uint32_t i = 0; i < d.rank; ++i)
    if (extent(d, i, symbols) > 1 && (outer == d.rank || d.strides[i] > d.strides[outer])) outer = i;
  const uint64_t bits = dtype_bits(d.dtype);
  if (outer == d.rank) return {};
  uint64_t span = 1;
  for (uint32_t i = 0; i < d.rank; ++i)
    if (i != outer && extent(d, i, symbols) > 1)
      span += static_cast<uint64_t>(extent(d, i, symbols) - 1) * static_cast<uint64_t>(d.strides[i]);
  return {static_cast<uint64_t>(d.strides[outer]) * bits / 8, (span * bits + 7) / 8};
}

}  // namespace

uint64_t touched_bytes(const dgpuTensorDesc& d, const int64_t* symbols) {
  uint64_t span = 1;
  for (uint32_t i = 0; i < d.rank; ++i) {
    const int64_t n = extent(d, i, symbols);
    if (n == 0) return 0;
    span += static_cast<uint64_t>(n - 1) * static_cast<uint64_t>(d.strides[i]);
  }
  return (span * dtype_bits(d.dtype) + 7) / 8;
}

bool same_layout(const dgpuTensorDesc& a, const dgpuTensorDesc& b) {
  if (a.dtype != b.dtype || a.rank != b.rank) return false;
  for (uint32_t i = 0; i < a.rank; ++i) {
    if (a.shape[i] != b.shape[i] || a.symbols[i] != b.symbols[i]) return false;
    if (a.strides[i] != b.strides[i] && a.shape[i] > 1) return false;
  }
  return true;
}

bool disjoint(const dgpuTensorDesc& a, uint64_t a_address, uint64_t a_bytes, const dgpuTensorDesc& b,
              uint64_t b_address, uint64_t b_bytes, const int64_t* symbols) {
  if (a_bytes == 0 || b_bytes == 0) return true;
  if (a_address + a_bytes <= b_address || b_address + b_bytes <= a_address) return true;
  const Rows ra = rows_of(a, symbols), rb = rows_of(b, symbols);
  if (ra.pitch == 0 || ra.pitch != rb.pitch || ra.width > ra.pitch || rb.width > rb.pitch) return false;
  // Columns [from, from + width) modulo the pitch.
  const uint64_t from_a = a_address % ra.pitch, from_b = b_address % ra.pitch;
  const uint64_t ahead = (from_b + ra.pitch - from_a) % ra.pitch;
  return ahead >= ra.width && ahead + rb.width <= ra.pitch;
}

}  // namespace dgpu::ops
