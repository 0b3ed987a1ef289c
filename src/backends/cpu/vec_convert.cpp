// Conversion between storage types and f32.
#include "backends/cpu/vec.h"

#include "backends/cpu/simd.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/vec_convert.cpp"
#include "hwy/foreach_target.h"
//
#include "backends/cpu/vec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dgpu::cpu::vec::HWY_NAMESPACE {

template <class Tag>
void widen(Tag tag, const void* src, int64_t n, float* dst) {
  const auto* p = static_cast<const typename Tag::T*>(src);
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    const V a = load(tag, p + i), b = load(tag, p + i + kLanes);
    store(F32(), a, dst + i);
    store(F32(), b, dst + i + kLanes);
  }
  for (; i + kLanes <= n; i += kLanes) store(F32(), load(tag, p + i), dst + i);
  if (i < n) store_part(F32(), load_part(tag, p + i, n - i), dst + i, n - i);
}

template <class Tag>
void narrow(Tag tag, const float* src, int64_t n, void* dst) {
  auto* p = static_cast<typename Tag::T*>(dst);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(tag, load(F32(), src + i), p + i);
  if (i < n) store_part(tag, load_part(F32(), src + i, n - i), p + i, n - i);
}

// Two vectors' upper halves in one store.
void narrow_bf16(const float* src, int64_t n, void* dst) {
  auto* p = static_cast<uint16_t*>(dst);
  int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::Repartition<uint16_t, D> d16;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    const auto a = hn::BitCast(d16, bf16_upper(load(F32(), src + i)));
    const auto b = hn::BitCast(d16, bf16_upper(load(F32(), src + i + kLanes)));
    hn::StoreU(hn::ConcatOdd(d16, b, a), d16, p + i);
  }
#endif
  narrow(BF16(), src + i, n - i, p + i);
}

template <class Tag>
void round_in(Tag tag, float* x, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(F32(), rounded(tag, load(F32(), x + i)), x + i);
  if (i < n) store_part(F32(), rounded(tag, load_part(F32(), x + i, n - i)), x + i, n - i);
}

void Load(const void* src, dgpuDtype_t type, int64_t n, float* dst) {
  if (type == DGPU_DTYPE_BF16) return widen(BF16(), src, n, dst);
  if (type == DGPU_DTYPE_F16) return widen(F16(), src, n, dst);
  std::memcpy(dst, src, static_cast<size_t>(n) * sizeof(float));
}

void Store(const float* src, dgpuDtype_t type, int64_t n, void* dst) {
  if (type == DGPU_DTYPE_BF16) return narrow_bf16(src, n, dst);
  if (type == DGPU_DTYPE_F16) return narrow(F16(), src, n, dst);
  std::memcpy(dst, src, static_cast<size_t>(n) * sizeof(float));
}

void Round(float* x, dgpuDtype_t type, int64_t n) {
  if (type == DGPU_DTYPE_BF16) return round_in(BF16(), x, n);
  if (type == DGPU_DTYPE_F16) return round_in(F16(), x, n);
}

}  // namespace dgpu::cpu::vec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dgpu::cpu::vec {
HWY_EXPORT(Load);
HWY_EXPORT(Store);
HWY_EXPORT(Round);

void load(const void* src, dgpuDtype_t type, int64_t n, float* dst) { HWY_DYNAMIC_DISPATCH(Load)(src, type, n, dst); }
void store(const float* src, dgpuDtype_t type, int64_t n, void* dst) { HWY_DYNAMIC_DISPATCH(Store)(src, type, n, dst); }
void round(float* x, dgpuDtype_t type, int64_t n) { HWY_DYNAMIC_DISPATCH(Round)(x, type, n); }

}  // namespace dgpu::cpu::vec
#endif
