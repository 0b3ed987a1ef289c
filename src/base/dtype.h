// Element types: names, sizes, and conversions between f32/f64 and the 16-bit floats, rounding to nearest even.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "dgpu/types.h"

namespace dgpu {

const char* dtype_name(dgpuDtype_t dtype);           // "none" if unknown
uint32_t dtype_bits(dgpuDtype_t dtype);              // 0 if unknown
dgpuDtype_t dtype_from_name(std::string_view name);  // DGPU_DTYPE_NONE if unknown
inline bool dtype_known(dgpuDtype_t dtype) { return dtype_bits(dtype) != 0; }
inline bool dtype_is_float(dgpuDtype_t d) { return d >= DGPU_DTYPE_F32 && d <= DGPU_DTYPE_F4E2M1; }

inline float bf16_to_f32(uint16_t x) { return std::bit_cast<float>(uint32_t{x} << 16); }

inline uint16_t f32_to_bf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);  // NaN stays NaN, made quiet
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

inline float f16_to_f32(uint16_t x) {
  const uint32_t sign = (uint32_t{x} & 0x8000u) << 16;
  const uint32_t rest = x & 0x7fffu;
  if (rest >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | ((rest & 0x3ffu) << 13));
  if (rest >= 0x400u) return std::bit_cast<float>(sign | ((rest + ((127u - 15u) << 10)) << 13));
  const float magnitude = static_cast<float>(rest) * 0x1p-24f;  // subnormal or zero, exact
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

inline uint16_t f32_to_f16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint16_t sign = static_cast<uint16_t>((u >> 16) & 0x8000u);
  const uint32_t rest = u & 0x7fffffffu;
  if (rest > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((rest >> 13) & 0x1ffu));
  if (rest >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and up round to infinity
  if (rest < 0x38800000u) {  // below 2^-14: adding 0.5 rounds the subnormal into the low bits
    const float shifted = std::bit_cast<float>(rest) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = rest + 0xfffu + ((rest >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - ((127u - 15u) << 23)) >> 13));
}

// f64 to f32 rounding to odd: a second rounding to fewer bits then gives what one rounding from f64 would.
inline float f64_to_f32_odd(double x) {
  const float nearest = static_cast<float>(x);
  if (static_cast<double>(nearest) == x || !std::isfinite(nearest) || std::isnan(x)) {
    if (std::isinf(nearest) && std::isfinite(x)) {
      return std::copysign(std::bit_cast<float>(0x7f7fffffu), nearest);  // odd and largest
    }
    return nearest;
  }
  uint32_t u = std::bit_cast<uint32_t>(nearest);
  // Truncate toward zero, then set the lowest bit.
  if (std::fabs(static_cast<double>(nearest)) > std::fabs(x)) --u;
  return std::bit_cast<float>(u | 1u);
}
inline uint16_t f64_to_bf16(double x) { return f32_to_bf16(f64_to_f32_odd(x)); }
inline uint16_t f64_to_f16(double x) { return f32_to_f16(f64_to_f32_odd(x)); }

}  // namespace dgpu
