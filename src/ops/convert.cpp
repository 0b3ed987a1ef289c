#include "ops/convert.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace dgpu::ops {

namespace {

// A floating-point format of 8 or 4 bits: sign, exponent, mantissa. Values beyond the largest become the largest.
struct Format {
  int exponent_bits;
  int mantissa_bits;
  bool infinity;  // all exponent bits set means infinity and NaN, as in IEEE 754
  double largest;
};
constexpr Format kF8E4M3{4, 3, false, 448.0};  // OCP e4m3fn: one NaN pattern, no infinity
constexpr Format kF8E5M2{5, 2, true, 57344.0};
constexpr Format kF4E2M1{2, 1, false, 6.0};  // no NaN either

double decode(const Format& f, uint32_t bits) {
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  const uint32_t mantissa = bits & ((1u << f.mantissa_bits) - 1);
  const uint32_t exponent = (bits >> f.mantissa_bits) & ((1u << f.exponent_bits) - 1);
  const bool negative = (bits >> (f.mantissa_bits + f.exponent_bits)) & 1;
  const uint32_t top = (1u << f.exponent_bits) - 1;
  double value = 0;
  if (f.infinity && exponent == top)
    value = mantissa ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
  else if (f.exponent_bits == 4 && exponent == top && mantissa == 7)
    value = std::numeric_limits<double>::quiet_NaN();
  else if (exponent == 0)
    value = std::ldexp(mantissa, 1 - bias - f.mantissa_bits);
  else
    value = std::ldexp(mantissa + (1u << f.mantissa_bits), static_cast<int>(exponent) - bias - f.mantissa_bits);
  return negative ? -value : value;
}

// Nearest value of the format, ties to even, before overflow is looked at.
double nearest(const Format& f, double magnitude) {
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  int exponent = 0;
  std::frexp(magnitude, &exponent);  // magnitude in [2^(exponent-1), 2^exponent)
  const int low = std::max(exponent - 1, 1 - bias) - f.mantissa_bits;
  return std::ldexp(std::nearbyint(std::ldexp(magnitude, -low)), low);
}

uint32_t encode(const Format& f, double value) {
  const uint32_t sign = std::signbit(value) ? 1u << (f.mantissa_bits + f.exponent_bits) : 0;
  const uint32_t top = ((1u << f.exponent_bits) - 1) << f.mantissa_bits;
  if (std::isnan(value)) {
    if (f.infinity) return sign | top | (1u << (f.mantissa_bits - 1));
    return f.exponent_bits == 4 ? sign | 0x7f : 0;
  }
  double magnitude = std::fabs(value);
  if (!std::isinf(magnitude)) magnitude = nearest(f, magnitude);
  if (magnitude > f.largest) magnitude = f.largest;
  if (magnitude == 0) return sign;
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  if (exponent - 1 < 1 - bias) return sign | static_cast<uint32_t>(std::ldexp(magnitude, bias - 1 + f.mantissa_bits));
  const auto mantissa = static_cast<uint32_t>(std::ldexp(magnitude, f.mantissa_bits - (exponent - 1)));
  return sign | static_cast<uint32_t>(exponent - 1 + bias) << f.mantissa_bits |
         (mantissa & ((1u << f.mantissa_bits) - 1));
}

template <typename T>
T read(const void* base, int64_t index) {
  T v;
  std::memcpy(&v, static_cast<const char*>(base) + index * static_cast<int64_t>(sizeof(T)), sizeof v);
  return v;
}
template <typename T>
void write(void* base, int64_t index, T v) {
  std::memcpy(static_cast<char*>(base) + index * static_cast<int64_t>(sizeof(T)), &v, sizeof v);
}
uint32_t read_nibble(const void* base, int64_t index) {
  return (read<uint8_t>(base, index / 2) >> (index % 2 * 4)) & 15;
}
void write_nibble(void* base, int64_t index, uint32_t v) {
  const uint32_t old = read<uint8_t>(base, index / 2);
  const uint32_t shift = index % 2 * 4;
  write<uint8_t>(base, index / 2, static_cast<uint8_t>((old & ~(15u << shift)) | (v & 15) << shift));
}

// f64 to f32 in hardware is one rounding to nearest even.
float to_f32(double v) { return static_cast<float>(v); }

uint8_t encode_e8m0(double v) {
  if (std::isnan(v)) return 255;
  int exponent = 0;
  std::frexp(std::fabs(v), &exponent);
  if (v == 0) return 0;
  return static_cast<uint8_t>(std::min(std::max(exponent - 1 + 127, 0), 254));
}

}  // namespace

double load_float(dgpuDtype_t dtype, const void* base, int64_t index) {
  switch (dtype) {
    case DGPU_DTYPE_F64:
      return read<double>(base, index);
    case DGPU_DTYPE_F32:
      return read<float>(base, index);
    case DGPU_DTYPE_BF16:
      return bf16_to_f32(read<uint16_t>(base, index));
    case DGPU_DTYPE_F16:
      return f16_to_f32(read<uint16_t>(base, index));
    case DGPU_DTYPE_F8E4M3:
      return decode(kF8E4M3, read<uint8_t>(base, index));
    case DGPU_DTYPE_F8E5M2:
      return decode(kF8E5M2, read<uint8_t>(base, index));
    case DGPU_DTYPE_F4E2M1:
      return decode(kF4E2M1, read_nibble(base, index));
    case DGPU_DTYPE_F8E8M0: {
      const int e = read<uint8_t>(base, index);
      return e == 255 ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1.0, e - 127);
    }
  }
  return static_cast<double>(load_int(dtype, base, index));
}

int64_t load_int(dgpuDtype_t dtype, const void* base, int64_t index) {
  switch (dtype) {
    case DGPU_DTYPE_I64:
      return read<int64_t>(base, index);
    case DGPU_DTYPE_I32:
      return read<int32_t>(base, index);
    case DGPU_DTYPE_I16:
      return read<int16_t>(base, index);
    case DGPU_DTYPE_I8:
      return read<int8_t>(base, index);
    case DGPU_DTYPE_U8:
      return read<uint8_t>(base, index);
    case DGPU_DTYPE_BOOL:
      return read<uint8_t>(base, index) != 0;
    case DGPU_DTYPE_U4:
      return read_nibble(base, index);
    case DGPU_DTYPE_I4:
      return static_cast<int64_t>(read_nibble(base, index) ^ 8) - 8;
  }
  return 0;
}

void store_float(dgpuDtype_t dtype, void* base, int64_t index, double v) {
  switch (dtype) {
    case DGPU_DTYPE_F64:
      return write<double>(base, index, v);
    case DGPU_DTYPE_F32:
      return write<float>(base, index, to_f32(v));
    case DGPU_DTYPE_BF16:
      return write<uint16_t>(base, index, f64_to_bf16(v));
    case DGPU_DTYPE_F16:
      return write<uint16_t>(base, index, f64_to_f16(v));
    case DGPU_DTYPE_F8E4M3:
      return write<uint8_t>(base, index, static_cast<uint8_t>(encode(kF8E4M3, v)));
    case DGPU_DTYPE_F8E5M2:
      return write<uint8_t>(base, index, static_cast<uint8_t>(encode(kF8E5M2, v)));
    case DGPU_DTYPE_F8E8M0:
      return write<uint8_t>(base, index, encode_e8m0(v));
    case DGPU_DTYPE_F4E2M1:
      return write_nibble(base, index, encode(kF4E2M1, v));
  }
}

void store_int(dgpuDtype_t dtype, void* base, int64_t index, int64_t v) {
  switch (dtype) {
    case DGPU_DTYPE_I64:
      return write<int64_t>(base, index, v);
    case DGPU_DTYPE_I32:
      return write<uint32_t>(base, index, static_cast<uint32_t>(v));
    case DGPU_DTYPE_I16:
      return write<uint16_t>(base, index, static_cast<uint16_t>(v));
    case DGPU_DTYPE_I8:
    case DGPU_DTYPE_U8:
      return write<uint8_t>(base, index, static_cast<uint8_t>(v));
    case DGPU_DTYPE_BOOL:
      return write<uint8_t>(base, index, v != 0);
    case DGPU_DTYPE_I4:
    case DGPU_DTYPE_U4:
      return write_nibble(base, index, static_cast<uint32_t>(v));
  }
}

double round_to(dgpuDtype_t dtype, double value) {
  if (dtype == DGPU_DTYPE_F64) return value;
  if (dtype == DGPU_DTYPE_F32) return to_f32(value);
  uint64_t cell = 0;
  store_float(dtype, &cell, 0, value);
  return load_float(dtype, &cell, 0);
}

int64_t float_to_int(dgpuDtype_t dtype, double value) {
  if (std::isnan(value)) return 0;
  if (dtype == DGPU_DTYPE_BOOL) return value != 0;
  const uint32_t bits = dtype_bits(dtype);
  const bool is_signed = dtype != DGPU_DTYPE_U8 && dtype != DGPU_DTYPE_U4;
  const double top = std::ldexp(1.0, static_cast<int>(is_signed ? bits - 1 : bits));  // first value beyond the largest
  if (value >= top) return bits == 64 ? std::numeric_limits<int64_t>::max() : static_cast<int64_t>(top) - 1;
  if (value < (is_signed ? -top : 0)) return is_signed ? static_cast<int64_t>(-top) : 0;
  return static_cast<int64_t>(value);
}

}  // namespace dgpu::ops
