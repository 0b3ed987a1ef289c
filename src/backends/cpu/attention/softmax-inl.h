// Exponentials, masks and running sums. Included once per instruction set.
#if defined(DGPU_ATTENTION_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DGPU_ATTENTION_SOFTMAX_INL_H_
#undef DGPU_ATTENTION_SOFTMAX_INL_H_
#else
#define DGPU_ATTENTION_SOFTMAX_INL_H_
#endif

#include <cmath>
#include <limits>

#include "backends/cpu/attention/kernels.h"
#include "backends/cpu/vec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dgpu::cpu::attention::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using namespace vec::HWY_NAMESPACE;
constexpr int kColumns = 2 * kLanes;
constexpr float kNegInf = -std::numeric_limits<float>::infinity();

// 2^x for x <= 0 within 1 ulp; 0 below 2^-126; 2^0 = 1 exactly; NaN stays NaN. Minimax polynomial (Remez, relative
// error 3e-9) of the fraction in [-1/2, 1/2].
HWY_INLINE V exp2_negative(V x) {
  const D d;
  const V magic = hn::Set(d, 12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const V t = hn::Add(x, magic);
  const V r = hn::Sub(x, hn::Sub(t, magic));
  V p = hn::Set(d, 1.5594677e-4f);
  p = hn::MulAdd(p, r, hn::Set(d, 1.3406644e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 9.6176930e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 5.5503106e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 2.4022653e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 6.9314721e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  const DI di;
  const VI bits = hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(hn::BitCast(di, t)));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -126.0f)), hn::BitCast(d, bits));
}

// tanh as a rational function (Eigen's ptanh_float), within 3 ulp.
HWY_INLINE V tanh_rational(V a) {
  const D d;
  const V limit = hn::Set(d, 7.90531110763549805f);
  const V x = hn::Min(hn::Max(a, hn::Neg(limit)), limit);
  const V z = hn::Mul(x, x);
  V p = hn::Set(d, -2.76076847742355e-16f);
  p = hn::MulAdd(p, z, hn::Set(d, 2.00018790482477e-13f));
  p = hn::MulAdd(p, z, hn::Set(d, -8.60467152213735e-11f));
  p = hn::MulAdd(p, z, hn::Set(d, 5.12229709037114e-08f));
  p = hn::MulAdd(p, z, hn::Set(d, 1.48572235717979e-05f));
  p = hn::MulAdd(p, z, hn::Set(d, 6.37261928875436e-04f));
  p = hn::MulAdd(p, z, hn::Set(d, 4.89352455891786e-03f));
  V q = hn::Set(d, 1.19825839466702e-06f);
  q = hn::MulAdd(q, z, hn::Set(d, 1.18534705686654e-04f));
  q = hn::MulAdd(q, z, hn::Set(d, 2.26843463243900e-03f));
  q = hn::MulAdd(q, z, hn::Set(d, 4.89352518554385e-03f));
  return hn::Div(hn::Mul(x, p), q);
}

// Factor for a sum that had the maximum `m` once the maximum is `top`; a row without keys keeps -inf.
HWY_INLINE V rescale(V m, V top) {
  const D d;
  const V inf = hn::Set(d, kNegInf);
  return hn::IfThenZeroElse(hn::Eq(m, inf), exp2_negative(hn::Sub(m, top)));
}

// The maximum to subtract: 0 where there is none, so that -inf - max stays -inf.
HWY_INLINE V safe_max(V top) { return hn::IfThenZeroElse(hn::Eq(top, hn::Set(D(), kNegInf)), top); }

struct Transform {
  V scale, cap, inverse;
  explicit Transform(const ScoreRule& r)
      : scale(hn::Set(D(), r.scale)),
        cap(hn::Set(D(), r.softcap)),
        inverse(hn::Set(D(), r.softcap > 0 ? r.scale / r.softcap : 0.0f)) {}
};

// The score in units of log2 from the raw product; kPlain: neither softcap nor bias.
template <bool kPlain>
HWY_INLINE V score(const Transform& t, const ScoreRule& rule, V raw, const float* bias) {
  if constexpr (kPlain) return hn::Mul(raw, t.scale);
  const D d;
  V s;
  if (rule.softcap > 0) {
    s = hn::Mul(tanh_rational(hn::Mul(raw, t.inverse)), t.cap);
  } else {
    s = hn::Mul(raw, t.scale);
  }
  if (bias != nullptr) s = hn::Add(s, hn::LoadU(d, bias));
  return hn::Mul(s, hn::Set(d, kLog2e));
}

template <bool kPlain, bool kMasked>
HWY_INLINE void softmax_columns(float* HWY_RESTRICT s, int64_t keys, const ScoreRule& rule, int c, float* m, float* l,
                                float* alpha) {
  const D d;
  const DI di;
  const Transform t(rule);
  const V inf = hn::Set(d, kNegInf);
  const V old = hn::LoadU(d, m + c);
  V top = old;
  [[maybe_unused]] VI lo, last, p_lo, p_last;
  if constexpr (kMasked) {
    lo = hn::LoadU(di, rule.j_lo + c);
    last = hn::Sub(hn::LoadU(di, rule.j_hi + c), hn::Set(di, 1));
    p_lo = hn::LoadU(di, rule.p_lo + c);
    p_last = hn::LoadU(di, rule.p_last + c);
  }
  float* p = s + c;
  for (int64_t k = 0; k < keys; ++k, p += kColumns) {
    V x = score<kPlain>(t, rule, hn::LoadU(d, p), kPlain || rule.bias == nullptr ? nullptr : rule.bias + (p - s));
    if constexpr (kMasked) {
      const VI j = hn::Set(di, rule.j0 + static_cast<int32_t>(k));
      auto hidden = hn::Or(hn::Lt(j, lo), hn::Gt(j, last));
      if (rule.positions != nullptr) {
        const VI at = hn::Set(di, rule.positions[k]);
        hidden = hn::Or(hidden, hn::Or(hn::Lt(at, p_lo), hn::Gt(at, p_last)));
      }
      x = hn::IfThenElse(hn::RebindMask(d, hidden), inf, x);
    }
    hn::StoreU(x, d, p);
    top = hn::Max(top, x);
  }
  const V base = safe_max(top);
  V sum0 = hn::Zero(d), sum1 = hn::Zero(d);
  p = s + c;
  int64_t k = 0;
  for (; k + 2 <= keys; k += 2, p += 2 * kColumns) {
    const V a = exp2_negative(hn::Sub(hn::LoadU(d, p), base));
    const V b = exp2_negative(hn::Sub(hn::LoadU(d, p + kColumns), base));
    hn::StoreU(a, d, p);
    hn::StoreU(b, d, p + kColumns);
    sum0 = hn::Add(sum0, a);
    sum1 = hn::Add(sum1, b);
  }
  if (k < keys) {
    const V a = exp2_negative(hn::Sub(hn::LoadU(d, p), base));
    hn::StoreU(a, d, p);
    sum0 = hn::Add(sum0, a);
  }
  const V factor = rescale(old, base);
  hn::StoreU(factor, d, alpha + c);
  hn::StoreU(hn::MulAdd(hn::LoadU(d, l + c), factor, hn::Add(sum0, sum1)), d, l + c);
  hn::StoreU(top, d, m + c);
}

inline void softmax_wide(float* s, int64_t keys, const ScoreRule& rule, float* m, float* l, float* alpha) {
  const bool plain = rule.softcap <= 0 && rule.bias == nullptr;
  for (int c = 0; c < kColumns; c += kLanes) {
    if (plain && !rule.masked) softmax_columns<true, false>(s, keys, rule, c, m, l, alpha);
    if (plain && rule.masked) softmax_columns<true, true>(s, keys, rule, c, m, l, alpha);
    if (!plain && !rule.masked) softmax_columns<false, false>(s, keys, rule, c, m, l, alpha);
    if (!plain && rule.masked) softmax_columns<false, true>(s, keys, rule, c, m, l, alpha);
  }
}

template <bool kPlain>
void softmax_row(float* HWY_RESTRICT s, int64_t keys, const ScoreRule& rule, float* m, float* l, float* alpha) {
  const D d;
  const DI di;
  const Transform t(rule);
  const V inf = hn::Set(d, kNegInf);
  const VI lo = hn::Set(di, rule.masked ? *rule.j_lo : rule.j0);
  const int32_t end = rule.j0 + static_cast<int32_t>(keys);
  const VI last = hn::Set(di, (rule.masked && *rule.j_hi < end ? *rule.j_hi : end) - 1);
  const bool placed = rule.masked && rule.positions != nullptr;
  const VI p_lo = hn::Set(di, placed ? *rule.p_lo : 0), p_last = hn::Set(di, placed ? *rule.p_last : 0);
  V top = inf;
  for (int64_t k = 0; k < keys; k += kLanes) {
    V x = score<kPlain>(t, rule, hn::LoadU(d, s + k), kPlain || rule.bias == nullptr ? nullptr : rule.bias + k);
    const VI j = hn::Iota(di, rule.j0 + static_cast<int32_t>(k));
    auto hidden = hn::Or(hn::Lt(j, lo), hn::Gt(j, last));
    if (placed) {
      const VI at = hn::LoadU(di, rule.positions + k);
      hidden = hn::Or(hidden, hn::Or(hn::Lt(at, p_lo), hn::Gt(at, p_last)));
    }
    x = hn::IfThenElse(hn::RebindMask(d, hidden), inf, x);
    hn::StoreU(x, d, s + k);
    top = hn::Max(top, x);
  }
  const V old = hn::Set(d, *m);
  top = hn::Max(hn::MaxOfLanes(d, top), old);
  const V base = safe_max(top);
  V sum = hn::Zero(d);
  for (int64_t k = 0; k < keys; k += kLanes) {
    const V a = exp2_negative(hn::Sub(hn::LoadU(d, s + k), base));
    hn::StoreU(a, d, s + k);
    sum = hn::Add(sum, a);
  }
  const float factor = hn::GetLane(rescale(old, base));
  *alpha = factor;
  *l = *l * factor + hn::GetLane(hn::SumOfLanes(d, sum));
  *m = hn::GetLane(top);
}

inline void softmax_narrow(float* s, int64_t keys, const ScoreRule& rule, float* m, float* l, float* alpha) {
  if (rule.softcap <= 0 && rule.bias == nullptr) {
    softmax_row<true>(s, keys, rule, m, l, alpha);
  } else {
    softmax_row<false>(s, keys, rule, m, l, alpha);
  }
}

// a = 2^(m - M), b = 2^(part_m - M), M = max.
HWY_INLINE V merge_factors(V m, V part_m, V* a, V* b) {
  const V top = hn::Max(m, part_m);
  const V base = safe_max(top);
  *a = rescale(m, base);
  *b = rescale(part_m, base);
  return top;
}
HWY_INLINE V merge_two(V x, V a, V y, V b) { return hn::MulAdd(y, b, hn::Mul(x, a)); }

inline void merge_wide(int64_t rows, float* HWY_RESTRICT o, float* m, float* l, const float* HWY_RESTRICT part,
                       const float* part_m, const float* part_l) {
  const D d;
  for (int c = 0; c < kColumns; c += kLanes) {
    V a, b;
    const V top = merge_factors(hn::LoadU(d, m + c), hn::LoadU(d, part_m + c), &a, &b);
    hn::StoreU(top, d, m + c);
    hn::StoreU(merge_two(hn::LoadU(d, l + c), a, hn::LoadU(d, part_l + c), b), d, l + c);
    for (int64_t i = c; i < rows * kColumns; i += kColumns) {
      hn::StoreU(merge_two(hn::LoadU(d, o + i), a, hn::LoadU(d, part + i), b), d, o + i);
    }
  }
}

inline void merge_row(int64_t n, float* HWY_RESTRICT o, float* m, float* l, const float* HWY_RESTRICT part,
                      float part_m, float part_l) {
  const D d;
  V a, b;
  const V top = merge_factors(hn::Set(d, *m), hn::Set(d, part_m), &a, &b);
  *m = hn::GetLane(top);
  *l = hn::GetLane(merge_two(hn::Set(d, *l), a, hn::Set(d, part_l), b));
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    hn::StoreU(merge_two(hn::LoadU(d, o + i), a, hn::LoadU(d, part + i), b), d, o + i);
  }
  for (; i < n; ++i) o[i] = hn::GetLane(merge_two(hn::Set(d, o[i]), a, hn::Set(d, part[i]), b));
}

inline void finish(int64_t n, const float* m, const float* l, const float* sink, float* factor, float* lse) {
  const D d;
  const V zero = hn::Zero(d), one = hn::Set(d, 1.0f);
  for (int64_t i = 0; i < n; i += kLanes) {
    V top = hn::LoadU(d, m + i), sum = hn::LoadU(d, l + i), scale = one;
    if (sink != nullptr) {
      V extra;
      top = merge_factors(top, hn::LoadU(d, sink + i), &scale, &extra);
      sum = hn::MulAdd(sum, scale, extra);
    }
    const auto none = hn::Eq(sum, zero);
    hn::StoreU(hn::IfThenZeroElse(none, hn::Div(scale, sum)), d, factor + i);
    hn::StoreU(top, d, lse + i);
    float sums[kLanes];
    hn::StoreU(sum, d, sums);
    for (int64_t j = 0; j < kLanes && i + j < n; ++j) {
      lse[i + j] = sums[j] == 0 ? kNegInf : lse[i + j] * kLn2 + std::log(sums[j]);
    }
  }
}

inline void multiply(const float* x, int64_t n, float factor, float* dst) {
  const D d;
  const V f = hn::Set(d, factor);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(hn::Mul(hn::LoadU(d, x + i), f), d, dst + i);
  for (; i < n; ++i) dst[i] = x[i] * factor;
}

}  // namespace dgpu::cpu::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
