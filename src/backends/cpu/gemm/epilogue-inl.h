// The epilogue: from rows of sums to rows of the output. Included once per instruction set.
#if defined(DGPU_GEMM_EPILOGUE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DGPU_GEMM_EPILOGUE_INL_H_
#undef DGPU_GEMM_EPILOGUE_INL_H_
#else
#define DGPU_GEMM_EPILOGUE_INL_H_
#endif

#include "backends/cpu/gemm/kernels.h"
#include "backends/cpu/vec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dgpu::cpu::gemm::HWY_NAMESPACE {
using namespace vec::HWY_NAMESPACE;

template <class Tag, class F>
HWY_INLINE void finish_row(const Row& x, int64_t n, F f, typename Tag::T* out) {
  const auto at = [&x, f](int64_t i, auto load) HWY_ATTR {
    V v = load(x.sums + i);
    if (x.bias != nullptr) v = hn::Add(v, load(x.bias + i));
    v = f(v);
    if (x.gate != nullptr) v = hn::Mul(v, load(x.gate + i));
    if (x.residual != nullptr) v = hn::Add(v, load(x.residual + i));
    return v;
  };
  const auto whole = [](const float* p) HWY_ATTR { return hn::LoadU(D(), p); };
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) store2(Tag(), at(i, whole), at(i + kLanes, whole), out + i);
  for (; i < n; i += kLanes) {
    const int64_t left = n - i < kLanes ? n - i : kLanes;
    store_part(Tag(), at(i, [left](const float* p) HWY_ATTR { return load_part(F32(), p, left); }), out + i, left);
  }
}

template <class Tag>
void finish(const Row& x, int64_t n, Activation activation, void* out) {
  auto* p = static_cast<typename Tag::T*>(out);
  switch (activation) {
    case Activation::none:
      return finish_row<Tag>(
          x, n, [](V v) HWY_ATTR { return v; }, p);
    case Activation::relu:
      return finish_row<Tag>(
          x, n, [](V v) HWY_ATTR { return relu(v); }, p);
    case Activation::gelu_erf:
      return finish_row<Tag>(
          x, n, [](V v) HWY_ATTR { return gelu_erf(v); }, p);
    case Activation::gelu_tanh:
      return finish_row<Tag>(
          x, n, [](V v) HWY_ATTR { return gelu_tanh(v); }, p);
    case Activation::silu:
      return finish_row<Tag>(
          x, n, [](V v) HWY_ATTR { return silu(v); }, p);
  }
}

inline void add(float* x, const float* y, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(F32(), hn::Add(load(F32(), x + i), load(F32(), y + i)), x + i);
  for (; i < n; ++i) x[i] += y[i];
}

}  // namespace dgpu::cpu::gemm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
