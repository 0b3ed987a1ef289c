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
void round_in(Tag tag, float* x, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(F32(), rounded(tag, load(F32(), x + i)), x + i);
  if (i < n) store_part(F32(), rounded(tag, load_part(F32(), x + i, n - i)), x + i, n - i);
}

void Load(const void* src, dgpuDtype_t type, int64_t n, float* dst) {
  if (type == DGPU_DTYPE_BF16) return widen<BF16>(src, n, dst);
  if (type == DGPU_DTYPE_F16) return widen<F16>(src, n, dst);
  std::memcpy(dst, src, static_cast<size_t>(n) * sizeof(float));
}

void Store(const float* src, dgpuDtype_t type, int64_t n, void* dst) {
  if (type == DGPU_DTYPE_BF16) return narrow<BF16>(src, n, dst);
  if (type == DGPU_DTYPE_F16) return narrow<F16>(src, n, dst);
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
