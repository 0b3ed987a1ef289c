// Activations and elementwise steps on f32 rows. Included once per instruction set.
#if defined(DGPU_GEMM_EPILOGUE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DGPU_GEMM_EPILOGUE_INL_H_
#undef DGPU_GEMM_EPILOGUE_INL_H_
#else
#define DGPU_GEMM_EPILOGUE_INL_H_
#endif

#include "backends/cpu/gemm/convert-inl.h"
#include "backends/cpu/gemm/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace dgpu::cpu::gemm::HWY_NAMESPACE {

// exp(x) within 2 ulp for x in [-87, 88]; clamped outside: underflow gives about 1e-38, NaN stays NaN.
// Cody and Waite reduction by ln 2 in two parts, then the Cephes expf polynomial. Adding `magic` rounds to an integer
// and leaves it, biased, in the low bits.
HWY_INLINE V exp(V x) {
  const D d;
  const DU du;
  const V magic = hn::Set(d, 12582912.0f + 127.0f);  // 1.5 * 2^23 + exponent bias
  const V y = hn::Max(hn::Set(d, -87.0f), hn::Min(hn::Set(d, 88.0f), x));
  const V biased = hn::MulAdd(y, hn::Set(d, 1.44269504f), magic);
  const V n = hn::Sub(biased, magic);
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), y);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  V p = hn::Set(d, 1.9875691500e-4f);
  p = hn::MulAdd(p, r, hn::Set(d, 1.3981999507e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 8.3334519073e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 4.1665795894e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.6666665459e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 5.0000001201e-1f));
  p = hn::Add(hn::MulAdd(hn::Mul(r, r), p, r), hn::Set(d, 1.0f));
  return hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(du, biased))));
}

HWY_INLINE V silu(V x) {
  const V one = hn::Set(D(), 1.0f);
  return hn::Div(x, hn::Add(one, exp(hn::Neg(x))));
}

// 0.5 x (1 + tanh(u)) = x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3).
HWY_INLINE V gelu_tanh(V x) {
  const D d;
  const V x2 = hn::Mul(x, x);
  const V minus_2u = hn::Mul(x, hn::MulAdd(x2, hn::Set(d, -0.0713548162726f), hn::Set(d, -1.59576912161f)));
  return hn::Div(x, hn::Add(hn::Set(d, 1.0f), exp(minus_2u)));
}

// x Phi(x) through erfc(z) = exp(-z^2) t P(t), z = |x|/sqrt(2), t = 1/(1 + 0.4 z): P interpolates at Chebyshev nodes
// of z in [0, 10] with relative error 3e-8, so that the left tail keeps its relative accuracy.
HWY_INLINE V gelu_erf(V x) {
  const D d;
  const V z = hn::Mul(hn::Abs(x), hn::Set(d, 0.70710678f));
  const V t = hn::Div(hn::Set(d, 1.0f), hn::MulAdd(z, hn::Set(d, 0.4f), hn::Set(d, 1.0f)));
  V p = hn::Set(d, -0.03350112587213516f);
  p = hn::MulAdd(p, t, hn::Set(d, 0.218785360455513f));
  p = hn::MulAdd(p, t, hn::Set(d, -0.5465025901794434f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.6093421578407288f));
  p = hn::MulAdd(p, t, hn::Set(d, -0.3343118727207184f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.2979731857776642f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.12105998396873474f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.21668939292430878f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.2247486710548401f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.22571685910224915f));
  const V half_erfc = hn::Mul(hn::Mul(hn::Set(d, 0.5f), t), hn::Mul(p, exp(hn::Mul(hn::Set(d, -0.5f), hn::Mul(x, x)))));
  const V phi = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), half_erfc, hn::Sub(hn::Set(d, 1.0f), half_erfc));
  return hn::Mul(x, phi);
}

HWY_INLINE V relu(V x) { return hn::IfThenElse(hn::Lt(x, hn::Zero(D())), hn::Zero(D()), x); }

template <class F>
HWY_INLINE void map_rows(float* x, const float* bias, int64_t n, F f) {
  const D d;
  int64_t i = 0;
  if (bias != nullptr) {
    for (; i + kLanes <= n; i += kLanes) {
      hn::StoreU(f(hn::Add(hn::LoadU(d, x + i), hn::LoadU(d, bias + i))), d, x + i);
    }
  } else {
    for (; i + kLanes <= n; i += kLanes) hn::StoreU(f(hn::LoadU(d, x + i)), d, x + i);
  }
  if (i == n) return;
  float tail[kLanes] = {};
  for (int64_t j = i; j < n; ++j) tail[j - i] = bias != nullptr ? x[j] + bias[j] : x[j];
  hn::StoreU(f(hn::LoadU(d, tail)), d, tail);
  std::memcpy(x + i, tail, static_cast<size_t>(n - i) * sizeof(float));
}

inline void bias_activation(float* x, const float* bias, int64_t n, Activation activation) {
  switch (activation) {
    case Activation::none:
      if (bias != nullptr) map_rows(x, bias, n, [](V v) HWY_ATTR { return v; });
      return;
    case Activation::relu:
      return map_rows(x, bias, n, [](V v) HWY_ATTR { return relu(v); });
    case Activation::gelu_erf:
      return map_rows(x, bias, n, [](V v) HWY_ATTR { return gelu_erf(v); });
    case Activation::gelu_tanh:
      return map_rows(x, bias, n, [](V v) HWY_ATTR { return gelu_tanh(v); });
    case Activation::silu:
      return map_rows(x, bias, n, [](V v) HWY_ATTR { return silu(v); });
  }
}

inline void multiply(float* x, const float* y, int64_t n) {
  const D d;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(hn::Mul(hn::LoadU(d, x + i), hn::LoadU(d, y + i)), d, x + i);
  for (; i < n; ++i) x[i] *= y[i];
}

inline void add(float* x, const float* y, int64_t n) {
  const D d;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(hn::Add(hn::LoadU(d, x + i), hn::LoadU(d, y + i)), d, x + i);
  for (; i < n; ++i) x[i] += y[i];
}

}  // namespace dgpu::cpu::gemm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
