// Vectors of f32: conversion from and to the storage types, elementary functions. Included once per instruction set.
#if defined(DGPU_CPU_VEC_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DGPU_CPU_VEC_INL_H_
#undef DGPU_CPU_VEC_INL_H_
#else
#define DGPU_CPU_VEC_INL_H_
#endif

#include <cmath>
#include <cstring>
#include <limits>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dgpu::cpu::vec::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
using DI = hn::RebindToSigned<D>;
using VI = hn::Vec<DI>;
using DU = hn::RebindToUnsigned<D>;
using VU = hn::Vec<DU>;
using DD = hn::ScalableTag<double>;
using VD = hn::Vec<DD>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));

HWY_INLINE V set(float x) { return hn::Set(D(), x); }

// ---- Storage types ----------------------------------------------------------------------------------------------

struct F32 {
  using T = float;
};
struct BF16 {
  using T = uint16_t;
};
struct F16 {
  using T = uint16_t;
};

// Instruction sets whose f16 conversions are native; Highway's emulation truncates.
#undef DGPU_VEC_NATIVE_F16
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
#define DGPU_VEC_NATIVE_F16 1
#else
#define DGPU_VEC_NATIVE_F16 0
#endif

HWY_INLINE VU load_u16(const uint16_t* p) { return hn::PromoteTo(DU(), hn::LoadU(hn::Rebind<uint16_t, DU>(), p)); }
HWY_INLINE void store_u16(VU v, uint16_t* p) {
  const hn::Rebind<uint16_t, D> d16;
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(DI(), v)), d16, p);
}

// Bits of f16 in the low half, by an exponent re-bias that also normalises subnormals (F. Giesen, half_to_float_fast5).
HWY_INLINE V f16_from_bits(VU low16) {
  const DU du;
  const VU sign = hn::ShiftLeft<16>(hn::And(low16, hn::Set(du, 0x8000u)));
  const VU magnitude = hn::ShiftLeft<13>(hn::And(low16, hn::Set(du, 0x7fffu)));
  const V scaled = hn::Mul(hn::BitCast(D(), magnitude), hn::BitCast(D(), hn::Set(du, (254u - 15u) << 23)));
  const auto special = hn::Ge(scaled, set(65536.0f));
  const VU bits = hn::Or(hn::BitCast(du, scaled), sign);
  return hn::BitCast(D(), hn::IfThenElse(hn::RebindMask(du, special), hn::Or(bits, hn::Set(du, 0x7f800000u)), bits));
}

// F. Giesen, float_to_half_fast3_rtne.
HWY_INLINE VU f16_to_bits(V v) {
  const DU du;
  const VU bits = hn::BitCast(du, v);
  const VU sign = hn::And(bits, hn::Set(du, 0x80000000u));
  const VU magnitude = hn::Xor(bits, sign);
  const V half = set(0.5f);  // its ulp is the smallest f16 subnormal
  const VU subnormal = hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(D(), magnitude), half)), hn::BitCast(du, half));
  const VU odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1u));
  const VU normal = hn::ShiftRight<13>(hn::Add(hn::Add(magnitude, odd), hn::Set(du, 0xfffu - (112u << 23))));
  const V abs = hn::BitCast(D(), magnitude);
  VU h = hn::IfThenElse(hn::RebindMask(du, hn::Lt(abs, set(6.103515625e-05f))), subnormal, normal);
  h = hn::IfThenElse(hn::RebindMask(du, hn::Ge(abs, set(65536.0f))), hn::Set(du, 0x7c00u), h);
  h = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), hn::Set(du, 0x7e00u), h);
  return hn::Or(h, hn::ShiftRight<16>(sign));
}

// Round to nearest even; the result is in the upper half of each lane, the lower half is garbage.
HWY_INLINE VU bf16_upper(V v) {
  const DU du;
  const VU bits = hn::BitCast(du, v);
  const VU odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const VU rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu)));
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), hn::Or(bits, hn::Set(du, 0x00400000u)), rounded);
}

HWY_INLINE V load(F32, const float* p) { return hn::LoadU(D(), p); }
HWY_INLINE V load(BF16, const uint16_t* p) { return hn::BitCast(D(), hn::ShiftLeft<16>(load_u16(p))); }
HWY_INLINE V load(F16, const uint16_t* p) {
#if DGPU_VEC_NATIVE_F16
  return hn::PromoteTo(D(), hn::LoadU(hn::Rebind<hwy::float16_t, D>(), reinterpret_cast<const hwy::float16_t*>(p)));
#else
  return f16_from_bits(load_u16(p));
#endif
}

HWY_INLINE void store(F32, V v, float* p) { hn::StoreU(v, D(), p); }
HWY_INLINE void store(BF16, V v, uint16_t* p) { store_u16(hn::ShiftRight<16>(bf16_upper(v)), p); }
HWY_INLINE void store(F16, V v, uint16_t* p) {
#if DGPU_VEC_NATIVE_F16
  const hn::Rebind<hwy::float16_t, D> d16;
  hn::StoreU(hn::DemoteTo(d16, v), d16, reinterpret_cast<hwy::float16_t*>(p));
#else
  store_u16(f16_to_bits(v), p);
#endif
}

// Two vectors.
template <class Tag>
HWY_INLINE void store2(Tag tag, V a, V b, typename Tag::T* p) {
  store(tag, a, p);
  store(tag, b, p + kLanes);
}
#if HWY_TARGET != HWY_SCALAR
HWY_INLINE void store2(BF16, V a, V b, uint16_t* p) {  // their upper halves at once
  const hn::Repartition<uint16_t, D> d16;
  hn::StoreU(hn::ConcatOdd(d16, hn::BitCast(d16, bf16_upper(b)), hn::BitCast(d16, bf16_upper(a))), d16, p);
}
#endif

// To the type's precision and back.
HWY_INLINE V rounded(F32, V v) { return v; }
HWY_INLINE V rounded(BF16, V v) { return hn::BitCast(D(), hn::And(bf16_upper(v), hn::Set(DU(), 0xffff0000u))); }
HWY_INLINE V rounded(F16, V v) {
#if DGPU_VEC_NATIVE_F16
  return hn::PromoteTo(D(), hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), v));
#else
  return f16_from_bits(f16_to_bits(v));
#endif
}

// The first n < kLanes elements; the lanes behind them are `fill`.
template <class Tag>
HWY_INLINE V load_part(Tag tag, const typename Tag::T* p, int64_t n, float fill = 0) {
  typename Tag::T lanes[kLanes] = {};
  std::memcpy(lanes, p, static_cast<size_t>(n) * sizeof(lanes[0]));
  const V v = load(tag, lanes);
  return fill == 0 ? v : hn::IfThenElse(hn::FirstN(D(), static_cast<size_t>(n)), v, set(fill));
}
template <class Tag>
HWY_INLINE void store_part(Tag tag, V v, typename Tag::T* p, int64_t n) {
  typename Tag::T lanes[kLanes];
  store(tag, v, lanes);
  std::memcpy(p, lanes, static_cast<size_t>(n) * sizeof(lanes[0]));
}

// One element, by way of a vector so that every path rounds alike.
template <class Tag>
HWY_INLINE float load_one(Tag tag, const typename Tag::T* p) {
  return hn::GetLane(load_part(tag, p, 1));
}
HWY_INLINE float load_one(F32, const float* p) { return *p; }

// Sums over the lanes of four vectors.
HWY_INLINE void store_sums4(V a, V b, V c, V e, float* out) {
#if HWY_TARGET == HWY_SCALAR
  out[0] = hn::GetLane(a);
  out[1] = hn::GetLane(b);
  out[2] = hn::GetLane(c);
  out[3] = hn::GetLane(e);
#else
  const D d;
  const hn::RepartitionToWide<DU> dw;
  const V ab = hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  const V ce = hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e));
  const V lower = hn::BitCast(d, hn::InterleaveLower(dw, hn::BitCast(dw, ab), hn::BitCast(dw, ce)));
  const V upper = hn::BitCast(d, hn::InterleaveUpper(dw, hn::BitCast(dw, ab), hn::BitCast(dw, ce)));
  const V sum = hn::Add(lower, upper);
#if HWY_MAX_BYTES == 64
  const hn::Half<D> dh;
  const hn::Half<decltype(dh)> dq;
  const auto half = hn::Add(hn::LowerHalf(dh, sum), hn::UpperHalf(dh, sum));
  hn::StoreU(hn::Add(hn::LowerHalf(dq, half), hn::UpperHalf(dq, half)), dq, out);
#elif HWY_MAX_BYTES == 32
  const hn::Half<D> dh;
  hn::StoreU(hn::Add(hn::LowerHalf(dh, sum), hn::UpperHalf(dh, sum)), dh, out);
#else
  hn::StoreU(sum, d, out);
#endif
#endif
}

// Arrays to f32 and back.
template <class Tag>
void widen(const void* src, int64_t n, float* dst) {
  const auto* p = static_cast<const typename Tag::T*>(src);
  const Tag tag;
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) store2(F32(), load(tag, p + i), load(tag, p + i + kLanes), dst + i);
  for (; i + kLanes <= n; i += kLanes) store(F32(), load(tag, p + i), dst + i);
  if (i < n) store_part(F32(), load_part(tag, p + i, n - i), dst + i, n - i);
}
template <class Tag>
void narrow(const float* src, int64_t n, void* dst) {
  auto* p = static_cast<typename Tag::T*>(dst);
  const Tag tag;
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) store2(tag, load(F32(), src + i), load(F32(), src + i + kLanes), p + i);
  for (; i + kLanes <= n; i += kLanes) store(tag, load(F32(), src + i), p + i);
  if (i < n) store_part(tag, load_part(F32(), src + i, n - i), p + i, n - i);
}

// ---- Elementary functions ---------------------------------------------------------------------------------------

// x within the limit; NaN stays NaN: x86 returns the second argument where one is NaN.
HWY_INLINE V at_most(V x, float limit) {
#if HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  return hn::Min(set(limit), x);
#else
  return hn::IfThenElse(hn::Gt(x, set(limit)), set(limit), x);
#endif
}
HWY_INLINE V at_least(V x, float limit) {
#if HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  return hn::Max(set(limit), x);
#else
  return hn::IfThenElse(hn::Lt(x, set(limit)), set(limit), x);
#endif
}

// p 2^n for p in [0.5, 2] and integers n in [-150, 128]; right where that is subnormal.
HWY_INLINE V scaled_by_power(V p, V n) {
#if HWY_TARGET == HWY_AVX3
  return V{_mm512_scalef_ps(p.raw, n.raw)};
#else
  const DI di;
  const VI e = hn::ConvertTo(di, n);
  const VI half = hn::ShiftRight<1>(e);
  const VI bias = hn::Set(di, 127);
  p = hn::Mul(p, hn::BitCast(D(), hn::ShiftLeft<23>(hn::Add(half, bias))));
  return hn::Mul(p, hn::BitCast(D(), hn::ShiftLeft<23>(hn::Add(hn::Sub(e, half), bias))));
#endif
}

// exp within 2 ulp, right at both ends (subnormals, 0, inf, NaN). Cody and Waite reduction by ln 2 in two parts, the
// Cephes expf polynomial.
HWY_INLINE V exp(V x) {
  const V y = at_least(at_most(x, 89.0f), -104.0f);
  const V n = hn::Round(hn::Mul(y, set(1.44269504f)));
  V r = hn::NegMulAdd(n, set(0.693359375f), y);
  r = hn::NegMulAdd(n, set(-2.12194440e-4f), r);
  V p = set(1.9875691500e-4f);
  p = hn::MulAdd(p, r, set(1.3981999507e-3f));
  p = hn::MulAdd(p, r, set(8.3334519073e-3f));
  p = hn::MulAdd(p, r, set(4.1665795894e-2f));
  p = hn::MulAdd(p, r, set(1.6666665459e-1f));
  p = hn::MulAdd(p, r, set(5.0000001201e-1f));
  p = hn::Add(hn::MulAdd(hn::Mul(r, r), p, r), set(1.0f));
  return scaled_by_power(p, n);
}

HWY_INLINE V log(V x) {
  const float inf = std::numeric_limits<float>::infinity();
  V y = hn::Log(D(), x);
  y = hn::IfThenElse(hn::Eq(x, set(inf)), x, y);
  y = hn::IfThenElse(hn::Eq(x, hn::Zero(D())), set(-inf), y);
  // Ge is false for NaN, too.
  return hn::IfThenElse(hn::Ge(x, hn::Zero(D())), y, set(std::numeric_limits<float>::quiet_NaN()));
}

// exp of the negative magnitude on either side: no overflow, full relative accuracy in both tails.
HWY_INLINE V sigmoid(V x) {
  const V e = exp(hn::Neg(hn::Abs(x)));
  const V one = set(1.0f);
  return hn::Div(hn::IfThenElse(hn::Lt(x, hn::Zero(D())), e, one), hn::Add(one, e));
}

// x sigmoid(x) with the limits -0 and inf.
HWY_INLINE V silu(V x) {
  const float inf = std::numeric_limits<float>::infinity();
  return hn::IfThenElse(hn::Eq(x, set(-inf)), set(-0.0f), hn::Mul(x, sigmoid(x)));
}

// tanh(x) = sign (1 - e) / (1 + e) with e = exp(-2|x|); below 0.625 the Cephes tanhf polynomial.
HWY_INLINE V tanh(V x) {
  const V a = hn::Abs(x);
  const V e = exp(hn::Mul(a, set(-2.0f)));
  const V large = hn::CopySign(hn::Div(hn::Sub(set(1.0f), e), hn::Add(set(1.0f), e)), x);
  const V z = hn::Mul(x, x);
  V p = set(-5.70498872745e-3f);
  p = hn::MulAdd(p, z, set(2.06390887954e-2f));
  p = hn::MulAdd(p, z, set(-5.37397155531e-2f));
  p = hn::MulAdd(p, z, set(1.33314422036e-1f));
  p = hn::MulAdd(p, z, set(-3.33332819422e-1f));
  const V small = hn::MulAdd(hn::Mul(p, z), x, x);
  return hn::IfThenElse(hn::Lt(a, set(0.625f)), small, large);
}

// 0.5 x (1 + tanh(u)) = x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3). The quotient is below the smallest
// normal where exp overflows, before x = -11.
HWY_INLINE V gelu_tanh(V x) {
  const V y = at_least(x, -20.0f);
  const V minus_2u = hn::Mul(y, hn::MulAdd(hn::Mul(y, y), set(-0.0713548162726f), set(-1.59576912161f)));
  return hn::Div(y, hn::Add(set(1.0f), exp(minus_2u)));
}

// x Phi(x) through erfc(z) = exp(-z^2) t P(t), z = |x|/sqrt(2), t = 1/(1 + 0.4 z): P interpolates at Chebyshev nodes
// of z in [0, 10] with relative error 3e-8. With FMA the rounding error of x^2 goes back in as a factor, so that the
// left tail keeps its relative accuracy. Beyond -20 the product is below the smallest subnormal.
HWY_INLINE V gelu_erf(V x) {
  const V a = hn::Min(hn::Abs(x), set(20.0f));
  const V t = hn::Div(set(1.0f), hn::MulAdd(a, set(0.28284271f), set(1.0f)));
  V p = set(-0.03350112587213516f);
  p = hn::MulAdd(p, t, set(0.218785360455513f));
  p = hn::MulAdd(p, t, set(-0.5465025901794434f));
  p = hn::MulAdd(p, t, set(0.6093421578407288f));
  p = hn::MulAdd(p, t, set(-0.3343118727207184f));
  p = hn::MulAdd(p, t, set(0.2979731857776642f));
  p = hn::MulAdd(p, t, set(0.12105998396873474f));
  p = hn::MulAdd(p, t, set(0.21668939292430878f));
  p = hn::MulAdd(p, t, set(0.2247486710548401f));
  p = hn::MulAdd(p, t, set(0.22571685910224915f));
  const V square = hn::Mul(a, a);
  const V error = hn::MulSub(a, a, square);
  const V e = hn::Mul(exp(hn::Mul(set(-0.5f), square)), hn::NegMulAdd(set(0.5f), error, set(1.0f)));
  const V half_erfc = hn::Mul(hn::Mul(set(0.5f), t), hn::Mul(p, e));
  const V phi = hn::IfThenElse(hn::Lt(x, hn::Zero(D())), half_erfc, hn::Sub(set(1.0f), half_erfc));
  return hn::IfThenElse(hn::Lt(x, set(-20.0f)), set(-0.0f), hn::Mul(x, phi));
}

HWY_INLINE V relu(V x) { return hn::IfThenElse(hn::Lt(x, hn::Zero(D())), hn::Zero(D()), x); }

// log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|)).
HWY_INLINE V softplus(V x) {
  const V tail = hn::Log1p(D(), exp(hn::Neg(hn::Abs(x))));
  return hn::Add(hn::IfThenElse(hn::Lt(x, hn::Zero(D())), hn::Zero(D()), x), tail);
}

// cos and sin of f64 angles, |a| < 2^29, within 1e-15: reduction by pi/2 in three parts of 33 bits (fdlibm), then the
// fdlibm polynomials on [-pi/4, pi/4].
HWY_INLINE void cos_sin(VD a, VD* cosine, VD* sine) {
  const DD d;
  const VD q = hn::Round(hn::Mul(a, hn::Set(d, 0.63661977236758134308)));
  VD r = hn::NegMulAdd(q, hn::Set(d, 1.57079632673412561417e+00), a);
  r = hn::NegMulAdd(q, hn::Set(d, 6.07710050630396597660e-11), r);
  r = hn::NegMulAdd(q, hn::Set(d, 2.02226624871116645580e-21), r);
  const VD z = hn::Mul(r, r);
  VD s = hn::Set(d, 1.58969099521155010221e-10);
  s = hn::MulAdd(s, z, hn::Set(d, -2.50507602534068634195e-08));
  s = hn::MulAdd(s, z, hn::Set(d, 2.75573137070700676789e-06));
  s = hn::MulAdd(s, z, hn::Set(d, -1.98412698298579493134e-04));
  s = hn::MulAdd(s, z, hn::Set(d, 8.33333333332248946124e-03));
  s = hn::MulAdd(s, z, hn::Set(d, -1.66666666666666324348e-01));
  s = hn::MulAdd(hn::Mul(s, z), r, r);
  VD c = hn::Set(d, -1.13596475577881948265e-11);
  c = hn::MulAdd(c, z, hn::Set(d, 2.08757232129817482790e-09));
  c = hn::MulAdd(c, z, hn::Set(d, -2.75573143513906633035e-07));
  c = hn::MulAdd(c, z, hn::Set(d, 2.48015872894767294178e-05));
  c = hn::MulAdd(c, z, hn::Set(d, -1.38888888888741095749e-03));
  c = hn::MulAdd(c, z, hn::Set(d, 4.16666666666666019037e-02));
  c = hn::MulAdd(hn::Mul(c, z), z, hn::NegMulAdd(hn::Set(d, 0.5), z, hn::Set(d, 1.0)));
  // Quadrant: q mod 4 from q/4 - floor(q/4), exact in f64.
  const VD quarter = hn::Mul(q, hn::Set(d, 0.25));
  const VD m = hn::Sub(quarter, hn::Floor(quarter));  // 0, 0.25, 0.5, 0.75
  const auto odd = hn::Or(hn::Eq(m, hn::Set(d, 0.25)), hn::Eq(m, hn::Set(d, 0.75)));
  const VD sc = hn::IfThenElse(odd, s, c), ss = hn::IfThenElse(odd, c, s);
  const auto negative_cos = hn::Or(hn::Eq(m, hn::Set(d, 0.25)), hn::Eq(m, hn::Set(d, 0.5)));
  const auto negative_sin = hn::Ge(m, hn::Set(d, 0.5));
  *cosine = hn::IfThenElse(negative_cos, hn::Neg(sc), sc);
  *sine = hn::IfThenElse(negative_sin, hn::Neg(ss), ss);
}

}  // namespace dgpu::cpu::vec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
