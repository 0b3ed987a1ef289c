// Vectors of f32 from and to the storage types. Included once per instruction set.
#if defined(DGPU_GEMM_CONVERT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DGPU_GEMM_CONVERT_INL_H_
#undef DGPU_GEMM_CONVERT_INL_H_
#else
#define DGPU_GEMM_CONVERT_INL_H_
#endif

#include <cstring>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dgpu::cpu::gemm::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
using DU = hn::RebindToUnsigned<D>;
using VU = hn::Vec<DU>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));

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
#undef DGPU_GEMM_NATIVE_F16
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
#define DGPU_GEMM_NATIVE_F16 1
#else
#define DGPU_GEMM_NATIVE_F16 0
#endif
HWY_INLINE VU load_u16(const uint16_t* p) { return hn::PromoteTo(DU(), hn::LoadU(hn::Rebind<uint16_t, DU>(), p)); }
HWY_INLINE V bf16_bits(VU low16) { return hn::BitCast(D(), hn::ShiftLeft<16>(low16)); }

HWY_INLINE V f16_bits(VU low16) {
#if DGPU_GEMM_NATIVE_F16
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<hwy::float16_t, D> df16;
  return hn::PromoteTo(D(), hn::BitCast(df16, hn::DemoteTo(d16, hn::BitCast(hn::RebindToSigned<D>(), low16))));
#else
  // Exponent re-biased by a multiplication, which also normalises subnormals (F. Giesen, half_to_float_fast5).
  const DU du;
  const VU sign = hn::ShiftLeft<16>(hn::And(low16, hn::Set(du, 0x8000u)));
  const VU magnitude = hn::ShiftLeft<13>(hn::And(low16, hn::Set(du, 0x7fffu)));
  const V scaled = hn::Mul(hn::BitCast(D(), magnitude), hn::BitCast(D(), hn::Set(du, (254u - 15u) << 23)));
  const auto special = hn::Ge(scaled, hn::Set(D(), 65536.0f));
  const VU bits = hn::Or(hn::BitCast(du, scaled), sign);
  return hn::BitCast(D(), hn::IfThenElse(hn::RebindMask(du, special), hn::Or(bits, hn::Set(du, 0x7f800000u)), bits));
#endif
}

HWY_INLINE V load(F32, const float* p) { return hn::LoadU(D(), p); }
HWY_INLINE V load(BF16, const uint16_t* p) { return bf16_bits(load_u16(p)); }
HWY_INLINE V load(F16, const uint16_t* p) {
#if DGPU_GEMM_NATIVE_F16
  const hn::Rebind<hwy::float16_t, D> df16;
  return hn::PromoteTo(D(), hn::LoadU(df16, reinterpret_cast<const hwy::float16_t*>(p)));
#else
  return f16_bits(load_u16(p));
#endif
}

HWY_INLINE void store_u16(VU v, uint16_t* p) {
  const hn::Rebind<uint16_t, D> d16;
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(hn::RebindToSigned<D>(), v)), d16, p);
}
HWY_INLINE void store(F32, V v, float* p) { hn::StoreU(v, D(), p); }
HWY_INLINE void store(BF16, V v, uint16_t* p) {
  const DU du;
  const VU bits = hn::BitCast(du, v);
  const VU odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const VU rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu)));
  const VU quiet = hn::Or(bits, hn::Set(du, 0x00400000u));
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(v));
  store_u16(hn::ShiftRight<16>(hn::IfThenElse(is_nan, quiet, rounded)), p);
}
HWY_INLINE void store(F16, V v, uint16_t* p) {
#if DGPU_GEMM_NATIVE_F16
  const hn::Rebind<hwy::float16_t, D> df16;
  hn::StoreU(hn::DemoteTo(df16, v), df16, reinterpret_cast<hwy::float16_t*>(p));
#else
  // F. Giesen, float_to_half_fast3_rtne.
  const DU du;
  const VU bits = hn::BitCast(du, v);
  const VU sign = hn::And(bits, hn::Set(du, 0x80000000u));
  const VU magnitude = hn::Xor(bits, sign);
  const V half = hn::Set(D(), 0.5f);  // its ulp is the smallest f16 subnormal
  const VU subnormal = hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(D(), magnitude), half)), hn::BitCast(du, half));
  const VU odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1u));
  const VU normal = hn::ShiftRight<13>(hn::Add(hn::Add(magnitude, odd), hn::Set(du, 0xfffu - (112u << 23))));
  const V abs = hn::BitCast(D(), magnitude);
  VU h = hn::IfThenElse(hn::RebindMask(du, hn::Lt(abs, hn::Set(D(), 6.103515625e-05f))), subnormal, normal);
  h = hn::IfThenElse(hn::RebindMask(du, hn::Ge(abs, hn::Set(D(), 65536.0f))), hn::Set(du, 0x7c00u), h);
  h = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), hn::Set(du, 0x7e00u), h);
  store_u16(hn::Or(h, hn::ShiftRight<16>(sign)), p);
#endif
}

// One element, by way of a vector so that every path rounds alike.
HWY_INLINE float load_one(F32, const float* p) { return *p; }
template <class Tag>
HWY_INLINE float load_one(Tag tag, const uint16_t* p) {
  uint16_t lanes[kLanes] = {*p};
  return hn::GetLane(load(tag, lanes));
}

template <class Tag>
void widen(const void* src, int64_t n, float* dst) {
  const auto* p = static_cast<const typename Tag::T*>(src);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(load(Tag(), p + i), D(), dst + i);
  for (; i < n; ++i) dst[i] = load_one(Tag(), p + i);
}

template <class Tag>
void narrow(const float* src, int64_t n, void* dst) {
  using T = typename Tag::T;
  auto* p = static_cast<T*>(dst);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(Tag(), hn::LoadU(D(), src + i), p + i);
  if (i == n) return;
  float in[kLanes] = {};
  T out[kLanes];
  std::memcpy(in, src + i, static_cast<size_t>(n - i) * sizeof(float));
  store(Tag(), hn::LoadU(D(), in), out);
  std::memcpy(p + i, out, static_cast<size_t>(n - i) * sizeof(T));
}

}  // namespace dgpu::cpu::gemm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
