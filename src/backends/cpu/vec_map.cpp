// Elementwise functions.
#include "backends/cpu/vec.h"

#include "backends/cpu/simd.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/vec_map.cpp"
#include "hwy/foreach_target.h"
//
#include "backends/cpu/vec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dgpu::cpu::vec::HWY_NAMESPACE {

template <class F>
HWY_INLINE void map(const float* x, float* y, int64_t n, F f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(F32(), f(load(F32(), x + i)), y + i);
  if (i < n) store_part(F32(), f(load_part(F32(), x + i, n - i)), y + i, n - i);
}

template <class F>
HWY_INLINE void map2(const float* a, const float* b, float* y, int64_t n, F f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(F32(), f(load(F32(), a + i), load(F32(), b + i)), y + i);
  if (i < n) store_part(F32(), f(load_part(F32(), a + i, n - i), load_part(F32(), b + i, n - i)), y + i, n - i);
}

// Angles in f64: sin and cos of any f32 to f32 precision. Beyond 2^28 the reduction is left to the C library.
void sin_or_cos(bool want_cos, const float* x, float* y, int64_t n) {
  constexpr int64_t kBlock = 64;
  const DD d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  double a[kBlock], c[kBlock], s[kBlock];
  for (int64_t i = 0; i < n; i += kBlock) {
    const int64_t m = n - i < kBlock ? n - i : kBlock;
    for (int64_t j = 0; j < kBlock; ++j) a[j] = j < m && std::fabs(x[i + j]) < 268435456.0f ? x[i + j] : 0;
    for (int64_t j = 0; j < m; j += lanes) {
      VD vc, vs;
      cos_sin(hn::LoadU(d, a + j), &vc, &vs);
      hn::StoreU(vc, d, c + j);
      hn::StoreU(vs, d, s + j);
    }
    for (int64_t j = 0; j < m; ++j) {
      const float v = x[i + j];
      const bool small = std::fabs(v) < 268435456.0f;
      const double exact = small ? (want_cos ? c[j] : s[j]) : (want_cos ? std::cos(double(v)) : std::sin(double(v)));
      y[i + j] = static_cast<float>(exact);
    }
  }
}

// One function per case: inlining all of them into one switch makes the compiler spill.
#define DGPU_MAP(name, expression)                              \
  HWY_NOINLINE void name(const float* x, float* y, int64_t n) { \
    map(x, y, n, [](V v) HWY_ATTR { return expression; });      \
  }
DGPU_MAP(MapNeg, hn::Neg(v))
DGPU_MAP(MapAbs, hn::Abs(v))
DGPU_MAP(MapExp, exp(v))
DGPU_MAP(MapLog, log(v))
DGPU_MAP(MapSqrt, hn::Sqrt(v))
DGPU_MAP(MapRsqrt, hn::Div(set(1.0f), hn::Sqrt(v)))
DGPU_MAP(MapTanh, tanh(v))
DGPU_MAP(MapSigmoid, sigmoid(v))
DGPU_MAP(MapSilu, silu(v))
DGPU_MAP(MapGeluErf, gelu_erf(v))
DGPU_MAP(MapGeluTanh, gelu_tanh(v))
DGPU_MAP(MapRelu, relu(v))
DGPU_MAP(MapSoftplus, softplus(v))
DGPU_MAP(MapReciprocal, hn::Div(set(1.0f), v))
DGPU_MAP(MapSquare, hn::Mul(v, v))
#undef DGPU_MAP

void UnaryLoop(Unary fn, const float* x, float* y, int64_t n) {
  switch (fn) {
    case Unary::neg:
      return MapNeg(x, y, n);
    case Unary::abs:
      return MapAbs(x, y, n);
    case Unary::exp:
      return MapExp(x, y, n);
    case Unary::log:
      return MapLog(x, y, n);
    case Unary::sqrt:
      return MapSqrt(x, y, n);
    case Unary::rsqrt:
      return MapRsqrt(x, y, n);
    case Unary::tanh:
      return MapTanh(x, y, n);
    case Unary::sigmoid:
      return MapSigmoid(x, y, n);
    case Unary::silu:
      return MapSilu(x, y, n);
    case Unary::gelu_erf:
      return MapGeluErf(x, y, n);
    case Unary::gelu_tanh:
      return MapGeluTanh(x, y, n);
    case Unary::relu:
      return MapRelu(x, y, n);
    case Unary::softplus:
      return MapSoftplus(x, y, n);
    case Unary::sin:
      return sin_or_cos(false, x, y, n);
    case Unary::cos:
      return sin_or_cos(true, x, y, n);
    case Unary::reciprocal:
      return MapReciprocal(x, y, n);
    case Unary::square:
      return MapSquare(x, y, n);
  }
}

// NaN in either operand wins.
HWY_INLINE V max2(V a, V b) { return hn::IfThenElse(hn::IsNaN(a), a, hn::IfThenElse(hn::Gt(a, b), a, b)); }
HWY_INLINE V min2(V a, V b) { return hn::IfThenElse(hn::IsNaN(a), a, hn::IfThenElse(hn::Lt(a, b), a, b)); }

void BinaryLoop(Binary fn, const float* a, const float* b, float* y, int64_t n) {
  switch (fn) {
    case Binary::add:
      return map2(a, b, y, n, [](V u, V v) HWY_ATTR { return hn::Add(u, v); });
    case Binary::sub:
      return map2(a, b, y, n, [](V u, V v) HWY_ATTR { return hn::Sub(u, v); });
    case Binary::mul:
      return map2(a, b, y, n, [](V u, V v) HWY_ATTR { return hn::Mul(u, v); });
    case Binary::div:
      return map2(a, b, y, n, [](V u, V v) HWY_ATTR { return hn::Div(u, v); });
    case Binary::max:
      return map2(a, b, y, n, [](V u, V v) HWY_ATTR { return max2(u, v); });
    case Binary::min:
      return map2(a, b, y, n, [](V u, V v) HWY_ATTR { return min2(u, v); });
    case Binary::pow:
      for (int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(std::pow(double(a[i]), double(b[i])));
      return;
  }
}

template <class F>
HWY_INLINE void glu_map(const Glu& p, const float* gate, const float* up, float* y, int64_t n, F act) {
  const V gate_max = set(p.gate_max), clamp = set(p.up_clamp), offset = set(p.up_offset);
  const V lowest = hn::Neg(clamp);
  map2(gate, up, y, n, [&](V g, V u) HWY_ATTR {
    // NaN passes: the comparisons are false for it.
    g = hn::IfThenElse(hn::Gt(g, gate_max), gate_max, g);
    u = hn::IfThenElse(hn::Gt(u, clamp), clamp, hn::IfThenElse(hn::Lt(u, lowest), lowest, u));
    return hn::Mul(act(g), hn::Add(u, offset));
  });
}

void GluLoop(const Glu& p, const float* gate, const float* up, float* y, int64_t n) {
  switch (p.activation) {
    case Activation::none:
      return glu_map(p, gate, up, y, n, [](V g) HWY_ATTR { return g; });
    case Activation::relu:
      return glu_map(p, gate, up, y, n, [](V g) HWY_ATTR { return relu(g); });
    case Activation::gelu_erf:
      return glu_map(p, gate, up, y, n, [](V g) HWY_ATTR { return gelu_erf(g); });
    case Activation::gelu_tanh:
      return glu_map(p, gate, up, y, n, [](V g) HWY_ATTR { return gelu_tanh(g); });
    case Activation::sigmoid:
      return glu_map(p, gate, up, y, n, [](V g) HWY_ATTR { return sigmoid(g); });
    case Activation::silu: {
      if (p.alpha == 1) return glu_map(p, gate, up, y, n, [](V g) HWY_ATTR { return silu(g); });
      const V alpha = set(p.alpha);
      return glu_map(p, gate, up, y, n, [&](V g) HWY_ATTR { return hn::Mul(g, sigmoid(hn::Mul(g, alpha))); });
    }
  }
}

void Scale(const float* x, float s, float* y, int64_t n) {
  const V vs = set(s);
  map(x, y, n, [&](V v) HWY_ATTR { return hn::Mul(v, vs); });
}

template <class Tag>
void scale_mul_as(Tag tag, const float* x, float s, const float* w, float* y, int64_t n) {
  const V vs = set(s);
  map2(x, w, y, n, [&](V v, V u) HWY_ATTR { return hn::Mul(rounded(tag, hn::Mul(v, vs)), u); });
}
void ScaleMul(const float* x, float s, dgpuDtype_t type, const float* w, float* y, int64_t n) {
  if (type == DGPU_DTYPE_BF16) return scale_mul_as(BF16(), x, s, w, y, n);
  if (type == DGPU_DTYPE_F16) return scale_mul_as(F16(), x, s, w, y, n);
  scale_mul_as(F32(), x, s, w, y, n);
}

template <class Tag>
void add_as(Tag tag, const float* a, const float* b, float* y, int64_t n) {
  map2(a, b, y, n, [&](V u, V v) HWY_ATTR { return rounded(tag, hn::Add(u, v)); });
}
void AddRounded(const float* a, const float* b, dgpuDtype_t type, float* y, int64_t n) {
  if (type == DGPU_DTYPE_BF16) return add_as(BF16(), a, b, y, n);
  if (type == DGPU_DTYPE_F16) return add_as(F16(), a, b, y, n);
  add_as(F32(), a, b, y, n);
}

void Affine(const float* x, float mean, float s, const float* w, const float* b, float* y, int64_t n) {
  const V vm = set(mean), vs = set(s);
  map(x, y, n, [&](V v) HWY_ATTR { return hn::Mul(hn::Sub(v, vm), vs); });
  if (w) map2(y, w, y, n, [](V v, V u) HWY_ATTR { return hn::Mul(v, u); });
  if (b) map2(y, b, y, n, [](V v, V u) HWY_ATTR { return hn::Add(v, u); });
}

void CosSin(const double* angles, float s, float* cosine, float* sine, int64_t n) {
  const DD d;
  const hn::Rebind<float, DD> df;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto vs = hn::Set(df, s);
  VD c, si;
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    cos_sin(hn::LoadU(d, angles + i), &c, &si);
    hn::StoreU(hn::Mul(hn::DemoteTo(df, c), vs), df, cosine + i);
    hn::StoreU(hn::Mul(hn::DemoteTo(df, si), vs), df, sine + i);
  }
  for (; i < n; ++i) {
    double a[kLanes] = {angles[i]};
    cos_sin(hn::LoadU(d, a), &c, &si);
    cosine[i] = static_cast<float>(hn::GetLane(c)) * s;
    sine[i] = static_cast<float>(hn::GetLane(si)) * s;
  }
}

void Rotate(const float* a, const float* b, const float* c, const float* s, float* ya, float* yb, int64_t n) {
  int64_t i = 0;
  const auto step = [&](V va, V vb, V vc, V vs, V* u, V* v) HWY_ATTR {
    *u = hn::NegMulAdd(vb, vs, hn::Mul(va, vc));
    *v = hn::MulAdd(va, vs, hn::Mul(vb, vc));
  };
  V u, v;
  for (; i + kLanes <= n; i += kLanes) {
    step(load(F32(), a + i), load(F32(), b + i), load(F32(), c + i), load(F32(), s + i), &u, &v);
    store(F32(), u, ya + i);
    store(F32(), v, yb + i);
  }
  if (i == n) return;
  step(load_part(F32(), a + i, n - i), load_part(F32(), b + i, n - i), load_part(F32(), c + i, n - i),
       load_part(F32(), s + i, n - i), &u, &v);
  store_part(F32(), u, ya + i, n - i);
  store_part(F32(), v, yb + i, n - i);
}

void SplitPairs(const float* x, float* even, float* odd, int64_t n) {
  int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const D d;
  for (; i + kLanes <= n; i += kLanes) {
    const V lo = load(F32(), x + 2 * i), hi = load(F32(), x + 2 * i + kLanes);
    store(F32(), hn::ConcatEven(d, hi, lo), even + i);
    store(F32(), hn::ConcatOdd(d, hi, lo), odd + i);
  }
#endif
  for (; i < n; ++i) {
    even[i] = x[2 * i];
    odd[i] = x[2 * i + 1];
  }
}

void JoinPairs(const float* even, const float* odd, float* x, int64_t n) {
  int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const D d;
  for (; i + kLanes <= n; i += kLanes) hn::StoreInterleaved2(load(F32(), even + i), load(F32(), odd + i), d, x + 2 * i);
#endif
  for (; i < n; ++i) {
    x[2 * i] = even[i];
    x[2 * i + 1] = odd[i];
  }
}

void ScaledDiff(const float* x, double m, double s, double* y, int64_t n) {
  const DD d;
  const hn::Rebind<float, DD> df;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const VD vm = hn::Set(d, m), vs = hn::Set(d, s);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    hn::StoreU(hn::Mul(hn::Sub(hn::PromoteTo(d, hn::LoadU(df, x + i)), vm), vs), d, y + i);
  for (; i < n; ++i) y[i] = (static_cast<double>(x[i]) - m) * s;
}

void BucketsLoop(const double* x, double per_unit, int32_t last, int32_t* b, int64_t n) {
  const DD d;
  const hn::Rebind<int32_t, DD> di;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const VD factor = hn::Set(d, -per_unit), top = hn::Set(d, static_cast<double>(last));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    hn::StoreU(hn::DemoteTo(di, hn::Min(hn::Mul(hn::LoadU(d, x + i), factor), top)), di, b + i);
  for (; i < n; ++i) b[i] = static_cast<int32_t>(std::fmin(x[i] * -per_unit, static_cast<double>(last)));
}

void ExpF64(double* x, int64_t n) {
  const DD d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  // Highway's exp is made for finite arguments; NaN stays NaN.
  const VD low = hn::Set(d, -800.0);
  const auto f = [&](VD v) HWY_ATTR { return hn::Exp(d, hn::IfThenElse(hn::Lt(v, low), low, v)); };
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(f(hn::LoadU(d, x + i)), d, x + i);
  for (; i < n; ++i) x[i] = hn::GetLane(f(hn::Set(d, x[i])));
}

}  // namespace dgpu::cpu::vec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dgpu::cpu::vec {
HWY_EXPORT(UnaryLoop);
HWY_EXPORT(BinaryLoop);
HWY_EXPORT(GluLoop);
HWY_EXPORT(Scale);
HWY_EXPORT(ScaleMul);
HWY_EXPORT(AddRounded);
HWY_EXPORT(BucketsLoop);
HWY_EXPORT(Affine);
HWY_EXPORT(CosSin);
HWY_EXPORT(Rotate);
HWY_EXPORT(SplitPairs);
HWY_EXPORT(JoinPairs);
HWY_EXPORT(ScaledDiff);
HWY_EXPORT(ExpF64);

void unary(Unary fn, const float* x, float* y, int64_t n) { HWY_DYNAMIC_DISPATCH(UnaryLoop)(fn, x, y, n); }
void binary(Binary fn, const float* a, const float* b, float* y, int64_t n) {
  HWY_DYNAMIC_DISPATCH(BinaryLoop)(fn, a, b, y, n);
}
void glu(const Glu& p, const float* gate, const float* up, float* y, int64_t n) {
  HWY_DYNAMIC_DISPATCH(GluLoop)(p, gate, up, y, n);
}
void scale(const float* x, float s, float* y, int64_t n) { HWY_DYNAMIC_DISPATCH(Scale)(x, s, y, n); }
void scale_mul(const float* x, float s, dgpuDtype_t type, const float* w, float* y, int64_t n) {
  HWY_DYNAMIC_DISPATCH(ScaleMul)(x, s, type, w, y, n);
}
void add_rounded(const float* a, const float* b, dgpuDtype_t type, float* y, int64_t n) {
  HWY_DYNAMIC_DISPATCH(AddRounded)(a, b, type, y, n);
}
void affine(const float* x, float mean, float s, const float* w, const float* b, float* y, int64_t n) {
  HWY_DYNAMIC_DISPATCH(Affine)(x, mean, s, w, b, y, n);
}
void cos_sin(const double* angles, float s, float* cosine, float* sine, int64_t n) {
  HWY_DYNAMIC_DISPATCH(CosSin)(angles, s, cosine, sine, n);
}
void rotate(const float* a, const float* b, const float* c, const float* s, float* ya, float* yb, int64_t n) {
  HWY_DYNAMIC_DISPATCH(Rotate)(a, b, c, s, ya, yb, n);
}
void split_pairs(const float* x, float* even, float* odd, int64_t n) {
  HWY_DYNAMIC_DISPATCH(SplitPairs)(x, even, odd, n);
}
void join_pairs(const float* even, const float* odd, float* x, int64_t n) {
  HWY_DYNAMIC_DISPATCH(JoinPairs)(even, odd, x, n);
}
void scaled_diff(const float* x, double m, double s, double* y, int64_t n) {
  HWY_DYNAMIC_DISPATCH(ScaledDiff)(x, m, s, y, n);
}
void buckets(const double* d, double per_unit, int32_t last, int32_t* b, int64_t n) {
  HWY_DYNAMIC_DISPATCH(BucketsLoop)(d, per_unit, last, b, n);
}
void exp_f64(double* x, int64_t n) { HWY_DYNAMIC_DISPATCH(ExpF64)(x, n); }

}  // namespace dgpu::cpu::vec
#endif
