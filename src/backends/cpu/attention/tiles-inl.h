// Register tiles: weights times values, and products of few query rows with keys in place. Included once per
// instruction set.
#if defined(DGPU_ATTENTION_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DGPU_ATTENTION_TILES_INL_H_
#undef DGPU_ATTENTION_TILES_INL_H_
#else
#define DGPU_ATTENTION_TILES_INL_H_
#endif

#include <cstring>
#include <type_traits>

#include "backends/cpu/attention/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dgpu::cpu::attention::HWY_NAMESPACE {

// 32 vector registers hold 14 x 2 sums (4 x 4 in the narrow path), 16 hold 6 x 2 (2 x 4).
#if HWY_TARGET == HWY_AVX3
constexpr int kValueRows = 14, kNarrowRows = 4;
#elif HWY_TARGET == HWY_NEON
constexpr int kValueRows = 12, kNarrowRows = 4;
#else
constexpr int kValueRows = 6, kNarrowRows = 2;
#endif

template <int R>
void values_wide(const float* HWY_RESTRICT v, int64_t ldv, const float* HWY_RESTRICT p, int64_t keys,
                 const float* alpha, float* HWY_RESTRICT o) {
  const D d;
  V s0[R], s1[R];
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) s0[i] = s1[i] = hn::Zero(d);
  for (int64_t k = 0; k < keys; ++k, v += ldv, p += kColumns) {
    const V p0 = hn::LoadU(d, p);
    const V p1 = hn::LoadU(d, p + kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      const V x = hn::Set(d, v[i]);
      s0[i] = hn::MulAdd(x, p0, s0[i]);
      s1[i] = hn::MulAdd(x, p1, s1[i]);
    }
  }
  const V a0 = hn::LoadU(d, alpha), a1 = hn::LoadU(d, alpha + kLanes);
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
    float* row = o + i * kColumns;
    hn::StoreU(hn::MulAdd(hn::LoadU(d, row), a0, s0[i]), d, row);
    hn::StoreU(hn::MulAdd(hn::LoadU(d, row + kLanes), a1, s1[i]), d, row + kLanes);
  }
}

inline void transpose_out(const float* o, int64_t n, int64_t count, const float* factor, float* dst, int64_t ld) {
  for (int64_t c = 0; c < count; ++c) {
    const float f = factor[c];
    float* row = dst + c * ld;
    for (int64_t i = 0; i < n; ++i) row[i] = o[i * kColumns + c] * f;
  }
}

// Elements that are read as whole vectors. bf16 comes in pairs of vectors: the even elements of 2 kLanes, then the odd
// ones, which takes one load and no shuffle; the other operand lies in that order (paired_order).
template <class Tag>
constexpr int kStep = std::is_same_v<Tag, BF16> ? 2 : 1;  // vectors

template <class Tag>
HWY_INLINE void load_step(Tag tag, const typename Tag::T* p, V* x) {
  if constexpr (kStep<Tag> == 2) {
    const DU du;
    const auto u = hn::LoadU(du, reinterpret_cast<const uint32_t*>(p));
    x[0] = hn::BitCast(D(), hn::ShiftLeft<16>(u));
    x[1] = hn::BitCast(D(), hn::And(u, hn::Set(du, 0xffff0000u)));
  } else {
    x[0] = load(tag, p);
  }
}

// Between natural order and that of load_step, in place; the part that is no whole step is natural in both.
template <class Tag>
void paired_order(float* x, int64_t n, bool to_natural) {
  if constexpr (kStep<Tag> == 2) {
    for (int64_t i = 0; i + 2 * kLanes <= n; i += 2 * kLanes, x += 2 * kLanes) {
      float y[2 * kLanes];
      for (int j = 0; j < kLanes; ++j) {
        if (to_natural) {
          y[2 * j] = x[j];
          y[2 * j + 1] = x[kLanes + j];
        } else {
          y[j] = x[2 * j];
          y[kLanes + j] = x[2 * j + 1];
        }
      }
      std::memcpy(x, y, sizeof(y));
    }
  }
}

template <int R, class Tag>
void scores_narrow(const float* q, int64_t ldq, const void* const* kv, int64_t count, int64_t n, float* s,
                   int64_t lds) {
  using T = typename Tag::T;
  constexpr int C = 4;
  const D d;
  constexpr int W = kStep<Tag>;
  const int64_t whole = n / (W * kLanes) * (W * kLanes);
  for (int64_t j0 = 0; j0 < count; j0 += C) {
    const T* k[C];
    for (int j = 0; j < C; ++j) k[j] = static_cast<const T*>(kv[j0 + j < count ? j0 + j : count - 1]);
    V sum[R][C];
#pragma GCC unroll 4
    for (int i = 0; i < R; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < C; ++j) sum[i][j] = hn::Zero(d);
    }
    for (int64_t p = 0; p < whole; p += W * kLanes) {
      V x[C][W];
#pragma GCC unroll 4
      for (int j = 0; j < C; ++j) load_step(Tag(), k[j] + p, x[j]);
#pragma GCC unroll 4
      for (int i = 0; i < R; ++i) {
#pragma GCC unroll 2
        for (int w = 0; w < W; ++w) {
          const V y = hn::LoadU(d, q + i * ldq + p + w * kLanes);
#pragma GCC unroll 4
          for (int j = 0; j < C; ++j) sum[i][j] = hn::MulAdd(x[j][w], y, sum[i][j]);
        }
      }
    }
    for (int64_t p = whole; p < n; p += kLanes) {
#pragma GCC unroll 4
      for (int j = 0; j < C; ++j) {
        const V x = load_part(Tag(), k[j] + p, n - p < kLanes ? n - p : kLanes);
#pragma GCC unroll 4
        for (int i = 0; i < R; ++i) sum[i][j] = hn::MulAdd(x, hn::LoadU(d, q + i * ldq + p), sum[i][j]);
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < R; ++i) store_sums4(sum[i][0], sum[i][1], sum[i][2], sum[i][3], s + i * lds + j0);
  }
}

// N steps of output elements.
template <int R, int N, class Tag>
HWY_INLINE void values_tile(const float* p, int64_t ldp, const void* const* v, int64_t count, int64_t at,
                            const float* alpha, float* o, int64_t ldo) {
  using T = typename Tag::T;
  constexpr int W = kStep<Tag>, M = N * W;
  const D d;
  V sum[R][M];
#pragma GCC unroll 4
  for (int i = 0; i < R; ++i) {
    const V a = hn::Set(d, alpha[i]);
#pragma GCC unroll 8
    for (int c = 0; c < M; ++c) sum[i][c] = hn::Mul(a, hn::LoadU(d, o + i * ldo + at + c * kLanes));
  }
  for (int64_t j = 0; j < count; ++j) {
    const T* row = static_cast<const T*>(v[j]) + at;
    V x[M];
#pragma GCC unroll 8
    for (int c = 0; c < N; ++c) load_step(Tag(), row + c * W * kLanes, x + c * W);
#pragma GCC unroll 4
    for (int i = 0; i < R; ++i) {
      const V w = hn::Set(d, p[i * ldp + j]);
#pragma GCC unroll 8
      for (int c = 0; c < M; ++c) sum[i][c] = hn::MulAdd(w, x[c], sum[i][c]);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int c = 0; c < M; ++c) hn::StoreU(sum[i][c], d, o + i * ldo + at + c * kLanes);
  }
}

template <int R, class Tag>
void values_narrow(const float* p, int64_t ldp, const void* const* v, int64_t count, int64_t dv, const float* alpha,
                   float* o, int64_t ldo) {
  constexpr int W = kStep<Tag>, N = (R == 1 ? 8 : 4) / W;
  constexpr int64_t step = W * kLanes;
  int64_t at = 0;
  for (; at + N * step <= dv; at += N * step) values_tile<R, N, Tag>(p, ldp, v, count, at, alpha, o, ldo);
  for (; at + step <= dv; at += step) values_tile<R, 1, Tag>(p, ldp, v, count, at, alpha, o, ldo);
  const D d;
  for (; at < dv; at += kLanes) {  // what is no whole step, in natural order
    const int64_t n = dv - at < kLanes ? dv - at : kLanes;
    for (int i = 0; i < R; ++i) {
      float lanes[kLanes] = {};
      const size_t bytes = static_cast<size_t>(n) * sizeof(float);
      std::memcpy(lanes, o + i * ldo + at, bytes);
      V sum = hn::Mul(hn::Set(d, alpha[i]), hn::LoadU(d, lanes));
      for (int64_t j = 0; j < count; ++j) {
        const auto* row = static_cast<const typename Tag::T*>(v[j]) + at;
        sum = hn::MulAdd(hn::Set(d, p[i * ldp + j]), load_part(Tag(), row, n), sum);
      }
      hn::StoreU(sum, d, lanes);
      std::memcpy(o + i * ldo + at, lanes, bytes);
    }
  }
}

}  // namespace dgpu::cpu::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
