// Reductions in a fixed order, and comparisons by order keys.
#include "backends/cpu/vec.h"

#include "backends/cpu/simd.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/vec_reduce.cpp"
#include "hwy/foreach_target.h"
//
#include "backends/cpu/vec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dgpu::cpu::vec::HWY_NAMESPACE {

constexpr int64_t kBlock = 1024;

// term(x + i, count of valid lanes) gives the summands of one vector, 0 in the lanes that are not valid.
template <class F>
HWY_INLINE double blocked_sum(int64_t n, F term) {
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = n - begin < kBlock ? n : begin + kBlock;
    V s0 = hn::Zero(D()), s1 = s0, s2 = s0, s3 = s0;
    int64_t i = begin;
    for (; i + 4 * kLanes <= end; i += 4 * kLanes) {
      s0 = hn::Add(s0, term(i, kLanes));
      s1 = hn::Add(s1, term(i + kLanes, kLanes));
      s2 = hn::Add(s2, term(i + 2 * kLanes, kLanes));
      s3 = hn::Add(s3, term(i + 3 * kLanes, kLanes));
    }
    for (; i < end; i += kLanes) s0 = hn::Add(s0, term(i, end - i < kLanes ? end - i : kLanes));
    total += hn::GetLane(hn::SumOfLanes(D(), hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
  }
  return total;
}

HWY_INLINE V load_upto(const float* p, int64_t n, float fill) {
  return n == kLanes ? load(F32(), p) : load_part(F32(), p, n, fill);
}

double Sum(const float* x, int64_t n) {
  return blocked_sum(n, [&](int64_t i, int64_t m) HWY_ATTR { return load_upto(x + i, m, 0); });
}

double SumSq(const float* x, int64_t n) {
  return blocked_sum(n, [&](int64_t i, int64_t m) HWY_ATTR {
    const V v = load_upto(x + i, m, 0);
    return hn::Mul(v, v);
  });
}

double SumSqDiff(const float* x, float mean, int64_t n) {
  const V vm = set(mean);
  return blocked_sum(n, [&](int64_t i, int64_t m) HWY_ATTR {
    const V v = hn::Sub(load_upto(x + i, m, mean), vm);
    return hn::Mul(v, v);
  });
}

double ExpSum(const float* x, float m, float* y, int64_t n) {
  const V vm = set(m);
  return blocked_sum(n, [&](int64_t i, int64_t valid) HWY_ATTR {
    V v = exp(hn::Sub(load_upto(x + i, valid, 0), vm));
    if (valid == kLanes) {
      if (y) store(F32(), v, y + i);
      return v;
    }
    if (y) store_part(F32(), v, y + i, valid);
    return hn::IfThenElseZero(hn::FirstN(D(), static_cast<size_t>(valid)), v);
  });
}

// kSign = 1: largest, -1: smallest.
template <int kSign>
float extreme(const float* x, int64_t n) {
  const float start = -kSign * std::numeric_limits<float>::infinity();
  V best = set(start), nan = hn::Zero(D());
  for (int64_t i = 0; i < n; i += kLanes) {
    const V v = load_upto(x + i, n - i < kLanes ? n - i : kLanes, start);
    best = hn::IfThenElse(kSign > 0 ? hn::Gt(v, best) : hn::Lt(v, best), v, best);
    nan = hn::IfThenElse(hn::IsNaN(v), v, nan);
  }
  if (!hn::AllFalse(D(), hn::IsNaN(nan))) return std::numeric_limits<float>::quiet_NaN();
  return hn::GetLane(kSign > 0 ? hn::MaxOfLanes(D(), best) : hn::MinOfLanes(D(), best));
}

float Max(const float* x, int64_t n) { return extreme<1>(x, n); }
float Min(const float* x, int64_t n) { return extreme<-1>(x, n); }

HWY_INLINE VI key_of(V v, VI flip) {
  const DI di;
  const VI bits = hn::BitCast(di, v);
  // Negative: all bits but the sign are inverted.
  VI key = hn::Xor(bits, hn::And(hn::BroadcastSignBit(bits), hn::Set(di, 0x7fffffff)));
  key = hn::IfThenElse(hn::RebindMask(di, hn::Eq(v, hn::Zero(D()))), hn::Zero(di), key);
  key = hn::IfThenElse(hn::RebindMask(di, hn::IsNaN(v)), hn::Set(di, 0x7fffffff), key);
  return hn::Xor(key, flip);
}

void OrderKeys(const float* x, bool ascending, int32_t* keys, int64_t n) {
  const DI di;
  const VI flip = hn::Set(di, ascending ? -1 : 0);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(key_of(load(F32(), x + i), flip), di, keys + i);
  if (i == n) return;
  int32_t lanes[kLanes];
  hn::StoreU(key_of(load_part(F32(), x + i, n - i), flip), di, lanes);
  std::memcpy(keys + i, lanes, static_cast<size_t>(n - i) * sizeof(int32_t));
}

int32_t MaxKey(const int32_t* keys, int64_t n) {
  const DI di;
  VI best = hn::Set(di, std::numeric_limits<int32_t>::min());
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) best = hn::Max(best, hn::LoadU(di, keys + i));
  int32_t result = hn::GetLane(hn::MaxOfLanes(di, best));
  for (; i < n; ++i) result = keys[i] > result ? keys[i] : result;
  return result;
}

int64_t FindKey(const int32_t* keys, int32_t key, int64_t n) {
  const DI di;
  const VI want = hn::Set(di, key);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const auto found = hn::FindFirstTrue(di, hn::Eq(hn::LoadU(di, keys + i), want));
    if (found >= 0) return i + found;
  }
  for (; i < n; ++i)
    if (keys[i] == key) return i;
  return -1;
}

int64_t FirstAbove(const int32_t* keys, int32_t key, int64_t begin, int64_t n) {
  const DI di;
  const VI bound = hn::Set(di, key);
  int64_t i = begin;
  for (; i + kLanes <= n; i += kLanes) {
    const auto found = hn::FindFirstTrue(di, hn::Gt(hn::LoadU(di, keys + i), bound));
    if (found >= 0) return i + found;
  }
  for (; i < n; ++i)
    if (keys[i] > key) return i;
  return n;
}

}  // namespace dgpu::cpu::vec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dgpu::cpu::vec {
HWY_EXPORT(Sum);
HWY_EXPORT(SumSq);
HWY_EXPORT(SumSqDiff);
HWY_EXPORT(ExpSum);
HWY_EXPORT(Max);
HWY_EXPORT(Min);
HWY_EXPORT(OrderKeys);
HWY_EXPORT(MaxKey);
HWY_EXPORT(FindKey);
HWY_EXPORT(FirstAbove);

double sum(const float* x, int64_t n) { return HWY_DYNAMIC_DISPATCH(Sum)(x, n); }
double sum_sq(const float* x, int64_t n) { return HWY_DYNAMIC_DISPATCH(SumSq)(x, n); }
double sum_sq_diff(const float* x, float mean, int64_t n) { return HWY_DYNAMIC_DISPATCH(SumSqDiff)(x, mean, n); }
double exp_sum(const float* x, float m, float* y, int64_t n) { return HWY_DYNAMIC_DISPATCH(ExpSum)(x, m, y, n); }
float max(const float* x, int64_t n) { return HWY_DYNAMIC_DISPATCH(Max)(x, n); }
float min(const float* x, int64_t n) { return HWY_DYNAMIC_DISPATCH(Min)(x, n); }
void order_keys(const float* x, bool ascending, int32_t* keys, int64_t n) {
  HWY_DYNAMIC_DISPATCH(OrderKeys)(x, ascending, keys, n);
}
int32_t max_key(const int32_t* keys, int64_t n) { return HWY_DYNAMIC_DISPATCH(MaxKey)(keys, n); }
int64_t find_key(const int32_t* keys, int32_t key, int64_t n) { return HWY_DYNAMIC_DISPATCH(FindKey)(keys, key, n); }
int64_t first_above(const int32_t* keys, int32_t key, int64_t begin, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(FirstAbove)(keys, key, begin, n);
}

}  // namespace dgpu::cpu::vec
#endif
