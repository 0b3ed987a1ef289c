#include "case.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace conformance {

const char* layout_name(Layout layout) {
  constexpr const char* names[] = {"packed", "padded", "transposed", "spread", "broadcast"};
  return names[static_cast<int>(layout)];
}

Case& Case::in(std::string name, dgpuDtype_t dtype, Shape shape, double low, double high) {
  Port p;
  p.name = std::move(name);
  p.dtype = dtype;
  p.shape = std::move(shape);
  p.low = low;
  p.high = high;
  ports.push_back(std::move(p));
  return *this;
}
Case& Case::data(std::string name, dgpuDtype_t dtype, Shape shape, std::vector<double> values) {
  in(std::move(name), dtype, std::move(shape));
  ports.back().given = std::move(values);
  if (ports.back().given.empty()) ports.back().given.push_back(0);  // an empty tensor
  return *this;
}
Case& Case::out(std::string name, dgpuDtype_t dtype, Shape shape) {
  in(std::move(name), dtype, std::move(shape));
  ports.back().direction = Port::out;
  return *this;
}
Case& Case::inout(std::string name, dgpuDtype_t dtype, Shape shape) {
  in(std::move(name), dtype, std::move(shape));
  ports.back().direction = Port::inout;
  return *this;
}
Port& Case::port(const std::string& name) {
  for (auto& p : ports)
    if (p.name == name) return p;
  std::abort();
}
bool Case::has(const std::string& name) const {
  for (const auto& p : ports)
    if (p.name == name) return true;
  return false;
}

std::string Case::text() const {
  std::string out = op + "(";
  struct Text {
    std::string operator()(int64_t v) const { return std::to_string(v); }
    std::string operator()(double v) const { return std::to_string(v); }
    std::string operator()(bool v) const { return v ? "true" : "false"; }
    std::string operator()(const std::string& v) const { return v; }
    std::string operator()(const std::vector<int64_t>& v) const {
      std::string s = "[";
      for (const int64_t i : v) s += (s.size() > 1 ? "," : "") + std::to_string(i);
      return s + "]";
    }
  };
  for (const auto& [name, value] : attrs) out += name + "=" + std::visit(Text{}, value) + " ";
  if (!attrs.empty()) out.pop_back();
  out += ")";
  for (const auto& p : ports) {
    out += " " + p.name + ":" + dgpuDtypeName(p.dtype) + "[";
    for (size_t i = 0; i < p.shape.size(); ++i)
      out += (i ? "," : "") + std::to_string(p.shape[i]) + (p.symbol_dim == static_cast<int>(i) ? "*" : "");
    out += "]";
    if (p.layout != Layout::packed) out += std::string("/") + layout_name(p.layout);
  }
  if (!alias_out.empty()) out += " " + alias_out + " is " + alias_in;
  return out;
}

// splitmix64, public domain (Steele, Lea, Flood 2014).
uint64_t hash(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

int64_t element_bytes(dgpuDtype_t dtype) { return dgpuDtypeBits(dtype) / 8; }
bool is_int(dgpuDtype_t dtype) { return dtype >= DGPU_DTYPE_I8; }

// Nearest value with `bits` significant bits and exponents from `low` on, ties to even.
static double to_bits(double value, int bits, int low, double largest) {
  if (value == 0 || !std::isfinite(value)) return value;
  int exponent = 0;
  std::frexp(value, &exponent);
  const int unit = std::max(exponent - bits, low);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(value, -unit)), unit);
  return std::fabs(rounded) > largest ? std::copysign(INFINITY, value) : rounded;
}

double round_value(dgpuDtype_t dtype, double value) {
  switch (dtype) {
    case DGPU_DTYPE_F32:
      return static_cast<float>(value);
    case DGPU_DTYPE_BF16:
      return to_bits(value, 8, -133, 0x1.fep127);
    case DGPU_DTYPE_F16:
      return to_bits(value, 11, -24, 65504);
    default:
      return value;
  }
}

static double half_value(uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const double magnitude = exponent == 31 ? (mantissa ? NAN : INFINITY)
                           : exponent     ? std::ldexp(1024 + mantissa, exponent - 25)
                                          : std::ldexp(mantissa, -24);
  return bits & 0x8000 ? -magnitude : magnitude;
}

static uint16_t half_bits(double rounded) {
  const uint16_t sign = std::signbit(rounded) ? 0x8000 : 0;
  if (std::isnan(rounded)) return sign | 0x7e00;
  if (std::isinf(rounded)) return sign | 0x7c00;
  const double m = std::fabs(rounded);
  if (m < 0x1p-14) return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::ldexp(m, 24)));
  int exponent = 0;
  std::frexp(m, &exponent);
  return static_cast<uint16_t>(sign | ((exponent + 14) << 10) |
                               (static_cast<uint16_t>(std::ldexp(m, 11 - exponent)) & 1023));
}

template <typename T>
static T read(const unsigned char* at) {
  T v;
  std::memcpy(&v, at, sizeof v);
  return v;
}

double load(dgpuDtype_t dtype, const unsigned char* at) {
  switch (dtype) {
    case DGPU_DTYPE_F64:
      return read<double>(at);
    case DGPU_DTYPE_F32:
      return read<float>(at);
    case DGPU_DTYPE_BF16:
      return std::bit_cast<float>(static_cast<uint32_t>(read<uint16_t>(at)) << 16);
    case DGPU_DTYPE_F16:
      return half_value(read<uint16_t>(at));
    case DGPU_DTYPE_I8:
      return read<int8_t>(at);
    case DGPU_DTYPE_U8:
      return read<uint8_t>(at);
    case DGPU_DTYPE_I32:
      return read<int32_t>(at);
    case DGPU_DTYPE_I64:
      return static_cast<double>(read<int64_t>(at));
    default:
      std::abort();
  }
}

template <typename T>
static void write(unsigned char* at, T v) {
  std::memcpy(at, &v, sizeof v);
}

void store(dgpuDtype_t dtype, unsigned char* at, double value) {
  switch (dtype) {
    case DGPU_DTYPE_F64:
      return write(at, value);
    case DGPU_DTYPE_F32:
      return write(at, static_cast<float>(value));
    case DGPU_DTYPE_BF16:
      return write(at,
                   static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(round_value(dtype, value))) >> 16));
    case DGPU_DTYPE_F16:
      return write(at, half_bits(round_value(dtype, value)));
    case DGPU_DTYPE_I8:
      return write(at, static_cast<int8_t>(value));
    case DGPU_DTYPE_U8:
      return write(at, static_cast<uint8_t>(value));
    case DGPU_DTYPE_I32:
      return write(at, static_cast<int32_t>(value));
    case DGPU_DTYPE_I64:
      return write(at, static_cast<int64_t>(value));
    default:
      std::abort();
  }
}

}  // namespace conformance
