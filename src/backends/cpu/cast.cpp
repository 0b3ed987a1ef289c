#include "backends/cpu/cast.h"

#include <bit>
#include <cmath>
#include <limits>

namespace dgpu::cpu {
namespace {

// A binary floating-point type of at most 8 bits: sign, exponent, mantissa.
struct Tiny {
  int exponent, mantissa;
  bool infinity;   // all exponent bits set: infinity and NaN
  double largest;  // finite; larger values saturate to it
  int bias() const { return (1 << (exponent - 1)) - 1; }
};
constexpr Tiny kE4M3{4, 3, false, 448.0};  // OCP e4m3fn: S.1111.111 is NaN
constexpr Tiny kE5M2{5, 2, true, 57344.0};
constexpr Tiny kE2M1{2, 1, false, 6.0};  // no NaN

double decode(const Tiny& f, uint32_t bits) {
  const uint32_t m = bits & ((1u << f.mantissa) - 1), e = (bits >> f.mantissa) & ((1u << f.exponent) - 1);
  const uint32_t top = (1u << f.exponent) - 1;
  double v = e == 0 ? std::ldexp(m, 1 - f.bias() - f.mantissa)
                    : std::ldexp(m + (1u << f.mantissa), static_cast<int>(e) - f.bias() - f.mantissa);
  if (f.infinity && e == top)
    v = m ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
  if (f.exponent == 4 && e == top && m == 7) v = std::numeric_limits<double>::quiet_NaN();
  return (bits >> (f.mantissa + f.exponent)) & 1 ? -v : v;
}

uint32_t encode(const Tiny& f, double v) {
  const uint32_t sign = std::signbit(v) ? 1u << (f.mantissa + f.exponent) : 0;
  const uint32_t top = ((1u << f.exponent) - 1) << f.mantissa;
  if (std::isnan(v)) return f.infinity ? sign | top | (1u << (f.mantissa - 1)) : f.exponent == 4 ? sign | 0x7f : 0;
  double a = std::fabs(v);
  if (a > 2 * f.largest) a = f.largest;
  if (a == 0) return sign;
  int e = 0;
  std::frexp(a, &e);
  const int unit = (e - 1 > 1 - f.bias() ? e - 1 : 1 - f.bias()) - f.mantissa;  // exponent of the last place
  a = std::ldexp(std::nearbyint(std::ldexp(a, -unit)), unit);
  if (a > f.largest) a = f.largest;
  if (a < std::ldexp(1.0, 1 - f.bias())) return sign | static_cast<uint32_t>(std::ldexp(a, f.bias() - 1 + f.mantissa));
  std::frexp(a, &e);
  const auto m = static_cast<uint32_t>(std::ldexp(a, f.mantissa - (e - 1)));
  return sign | static_cast<uint32_t>(e - 1 + f.bias()) << f.mantissa | (m & ((1u << f.mantissa) - 1));
}

uint32_t get_nibble(const void* p, int64_t i) { return (static_cast<const uint8_t*>(p)[i >> 1] >> ((i & 1) * 4)) & 15; }
void set_nibble(void* p, int64_t i, uint32_t v) {
  uint8_t& b = static_cast<uint8_t*>(p)[i >> 1];
  const int shift = (i & 1) * 4;
  b = static_cast<uint8_t>((b & ~(15 << shift)) | (v & 15) << shift);
}

// Round to odd in f32, so that a later rounding to fewer bits is the rounding of the f64 value.
float odd_f32(double v) {
  const auto f = static_cast<float>(v);
  if (std::isnan(v) || std::isinf(f) || static_cast<double>(f) == v) return f;
  const auto toward = std::fabs(static_cast<double>(f)) > std::fabs(v) ? std::nextafter(f, 0.0f) : f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(toward) | 1u);
}

double get_float(dgpuDtype_t type, const void* p, int64_t i) {
  switch (type) {
    case DGPU_DTYPE_F64:
      return static_cast<const double*>(p)[i];
    case DGPU_DTYPE_F32:
      return static_cast<const float*>(p)[i];
    case DGPU_DTYPE_F16:
    case DGPU_DTYPE_BF16: {
      float f = 0;
      vec::load(static_cast<const uint16_t*>(p) + i, type, 1, &f);
      return f;
    }
    case DGPU_DTYPE_F8E4M3:
      return decode(kE4M3, static_cast<const uint8_t*>(p)[i]);
    case DGPU_DTYPE_F8E5M2:
      return decode(kE5M2, static_cast<const uint8_t*>(p)[i]);
    case DGPU_DTYPE_F4E2M1:
      return decode(kE2M1, get_nibble(p, i));
    case DGPU_DTYPE_F8E8M0: {
      const int e = static_cast<const uint8_t*>(p)[i];
      return e == 255 ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1.0, e - 127);
    }
    default:
      return 0;
  }
}

uint8_t encode_e8m0(double v) {
  if (std::isnan(v)) return 255;
  if (v == 0) return 0;
  int e = 0;
  std::frexp(std::fabs(v), &e);
  if (std::isinf(v)) return 254;
  return static_cast<uint8_t>(e - 1 + 127 < 0 ? 0 : e - 1 + 127 > 254 ? 254 : e - 1 + 127);
}

void set_float(dgpuDtype_t type, void* p, int64_t i, double v) {
  switch (type) {
    case DGPU_DTYPE_F64:
      static_cast<double*>(p)[i] = v;
      return;
    case DGPU_DTYPE_F32:
      static_cast<float*>(p)[i] = static_cast<float>(v);
      return;
    case DGPU_DTYPE_F16:
    case DGPU_DTYPE_BF16: {
      const float f = odd_f32(v);
      return vec::store(&f, type, 1, static_cast<uint16_t*>(p) + i);
    }
    case DGPU_DTYPE_F8E4M3:
      static_cast<uint8_t*>(p)[i] = static_cast<uint8_t>(encode(kE4M3, v));
      return;
    case DGPU_DTYPE_F8E5M2:
      static_cast<uint8_t*>(p)[i] = static_cast<uint8_t>(encode(kE5M2, v));
      return;
    case DGPU_DTYPE_F8E8M0:
      static_cast<uint8_t*>(p)[i] = encode_e8m0(v);
      return;
    case DGPU_DTYPE_F4E2M1:
      return set_nibble(p, i, encode(kE2M1, v));
    default:
      return;
  }
}

bool is_integer(dgpuDtype_t t) { return t >= DGPU_DTYPE_I8 && t <= DGPU_DTYPE_BOOL; }

int64_t get_int(dgpuDtype_t type, const void* p, int64_t i) {
  switch (type) {
    case DGPU_DTYPE_I64:
      return static_cast<const int64_t*>(p)[i];
    case DGPU_DTYPE_I32:
      return static_cast<const int32_t*>(p)[i];
    case DGPU_DTYPE_I16:
      return static_cast<const int16_t*>(p)[i];
    case DGPU_DTYPE_I8:
      return static_cast<const int8_t*>(p)[i];
    case DGPU_DTYPE_U8:
      return static_cast<const uint8_t*>(p)[i];
    case DGPU_DTYPE_BOOL:
      return static_cast<const uint8_t*>(p)[i] != 0;
    case DGPU_DTYPE_U4:
      return get_nibble(p, i);
    case DGPU_DTYPE_I4:
      return static_cast<int64_t>(get_nibble(p, i) ^ 8) - 8;
    default:
      return 0;
  }
}

void set_int(dgpuDtype_t type, void* p, int64_t i, int64_t v) {
  switch (type) {
    case DGPU_DTYPE_I64:
      static_cast<int64_t*>(p)[i] = v;
      return;
    case DGPU_DTYPE_I32:
      static_cast<int32_t*>(p)[i] = static_cast<int32_t>(v);
      return;
    case DGPU_DTYPE_I16:
      static_cast<int16_t*>(p)[i] = static_cast<int16_t>(v);
      return;
    case DGPU_DTYPE_I8:
    case DGPU_DTYPE_U8:
      static_cast<uint8_t*>(p)[i] = static_cast<uint8_t>(v);
      return;
    case DGPU_DTYPE_BOOL:
      static_cast<uint8_t*>(p)[i] = v != 0;
      return;
    case DGPU_DTYPE_I4:
    case DGPU_DTYPE_U4:
      return set_nibble(p, i, static_cast<uint32_t>(v));
    default:
      return;
  }
}

int64_t to_int(dgpuDtype_t type, double v) {
  if (type == DGPU_DTYPE_BOOL) return v != 0 && !std::isnan(v);
  if (std::isnan(v)) return 0;
  const bool is_signed = type != DGPU_DTYPE_U8 && type != DGPU_DTYPE_U4;
  const int bits = static_cast<int>(dtype_bits(type)) - (is_signed ? 1 : 0);
  const double limit = std::ldexp(1.0, bits);  // first value beyond the largest
  if (v >= limit) return bits == 63 ? std::numeric_limits<int64_t>::max() : static_cast<int64_t>(limit) - 1;
  if (v < (is_signed ? -limit : 0)) return is_signed ? static_cast<int64_t>(-limit) : 0;
  return static_cast<int64_t>(v);
}

void cast_floats(const char* src, CastSide from, char* dst, CastSide to, int64_t n) {
  float in[kBlockElems];
  for (int64_t begin = 0; begin < n; begin += kBlockElems) {
    const int64_t m = n - begin < kBlockElems ? n - begin : kBlockElems;
    const char* s = src + (from.offset + begin * from.stride) * dtype_bytes(from.type);
    char* d = dst + (to.offset + begin * to.stride) * dtype_bytes(to.type);
    float* y = target_row(d, to.type, to.stride, in);
    const float* x = load_row(s, from.type, from.stride, m, y);
    if (x != y || y == in) store_row(x, d, to.type, to.stride, m);
  }
}

template <class T>
void copy_strided(const void* src, CastSide from, void* dst, CastSide to, int64_t n) {
  const T* s = static_cast<const T*>(src) + from.offset;
  T* d = static_cast<T*>(dst) + to.offset;
  for (int64_t i = 0; i < n; ++i) d[i * to.stride] = s[i * from.stride];
}

// The same type on both sides: bytes move as they are.
bool copy(const void* src, CastSide from, void* dst, CastSide to, int64_t n) {
  const int64_t bytes = dtype_bytes(from.type);
  if (from.type != to.type || bytes == 0 || from.type == DGPU_DTYPE_BOOL) return false;
  if (from.stride == 1 && to.stride == 1)
    std::memmove(static_cast<char*>(dst) + to.offset * bytes, static_cast<const char*>(src) + from.offset * bytes,
                 static_cast<size_t>(n * bytes));
  else if (bytes == 8)
    copy_strided<uint64_t>(src, from, dst, to, n);
  else if (bytes == 4)
    copy_strided<uint32_t>(src, from, dst, to, n);
  else if (bytes == 2)
    copy_strided<uint16_t>(src, from, dst, to, n);
  else
    copy_strided<uint8_t>(src, from, dst, to, n);
  return true;
}

}  // namespace

void cast_run(const void* src, CastSide from, void* dst, CastSide to, int64_t n) {
  if (n <= 0 || copy(src, from, dst, to, n)) return;
  if (is_f(from.type) && is_f(to.type))
    return cast_floats(static_cast<const char*>(src), from, static_cast<char*>(dst), to, n);
  const bool int_in = is_integer(from.type), int_out = is_integer(to.type);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t s = from.offset + i * from.stride, d = to.offset + i * to.stride;
    if (int_in && int_out)
      set_int(to.type, dst, d, get_int(from.type, src, s));
    else if (int_in)
      set_float(to.type, dst, d, static_cast<double>(get_int(from.type, src, s)));
    else if (int_out)
      set_int(to.type, dst, d, to_int(to.type, get_float(from.type, src, s)));
    else
      set_float(to.type, dst, d, get_float(from.type, src, s));
  }
}

}  // namespace dgpu::cpu
