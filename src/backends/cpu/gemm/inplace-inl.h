// Products that read weights in place: rows times rows (vectors along k) and row times matrix (vectors along n).
// Included once per instruction set.
#if defined(DGPU_GEMM_INPLACE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DGPU_GEMM_INPLACE_INL_H_
#undef DGPU_GEMM_INPLACE_INL_H_
#else
#define DGPU_GEMM_INPLACE_INL_H_
#endif

#include "backends/cpu/gemm/convert-inl.h"
#include "backends/cpu/gemm/kernels.h"
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace dgpu::cpu::gemm::HWY_NAMESPACE {

// Rows of B per tile: at least 8 sums in flight cover the FMA latency, at most what the registers hold.
constexpr int dot_columns(int rows) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
  return rows == 4 ? 6 : 8;
#else
  return rows == 1 ? 8 : rows == 2 ? 4 : rows == 3 ? 3 : 2;
#endif
}

template <int R, class Tag>
HWY_INLINE void dot_tile(const float* const* a, const typename Tag::T* const* b, int64_t k, float* sums) {
  constexpr int C = dot_columns(R);
  const D d;
  V s[R][C];
#pragma GCC unroll 4
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) s[i][j] = hn::Zero(d);
  }
  int64_t p = 0;
  for (; p + kLanes <= k; p += kLanes) {
    V x[R];
#pragma GCC unroll 4
    for (int i = 0; i < R; ++i) x[i] = hn::LoadU(d, a[i] + p);
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) {
      const V y = load(Tag(), b[j] + p);
#pragma GCC unroll 4
      for (int i = 0; i < R; ++i) s[i][j] = hn::MulAdd(x[i], y, s[i][j]);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) sums[i * C + j] = hn::GetLane(hn::SumOfLanes(d, s[i][j]));
  }
  for (; p < k; ++p) {
    for (int i = 0; i < R; ++i) {
      for (int j = 0; j < C; ++j) sums[i * C + j] += a[i][p] * load_one(Tag(), b[j] + p);
    }
  }
}

template <int R, class Tag>
void dot(const void* const* av, const void* const* bv, int64_t count, int64_t k, float* c, int64_t ldc,
         bool accumulate) {
  using T = typename Tag::T;
  constexpr int C = dot_columns(R);
  const float* a[R];
  for (int i = 0; i < R; ++i) a[i] = static_cast<const float*>(av[i]);
  for (int64_t j0 = 0; j0 < count; j0 += C) {
    const int valid = static_cast<int>(count - j0 < C ? count - j0 : C);
    const T* b[C];
    for (int j = 0; j < C; ++j) b[j] = static_cast<const T*>(bv[j0 + (j < valid ? j : valid - 1)]);
    float sums[R * C];
    dot_tile<R, Tag>(a, b, k, sums);
    for (int i = 0; i < R; ++i) {
      float* row = c + i * ldc + j0;
      for (int j = 0; j < valid; ++j) row[j] = sums[i * C + j] + (accumulate ? row[j] : 0.0f);
    }
  }
}

constexpr int stream_steps(int rows) { return rows <= 2 ? 8 : rows <= 4 ? 4 : 2; }

// U rows of B at a time are added to the sums, which stay in the first-level cache.
template <int R, int U, class Tag>
HWY_INLINE void stream_step(const float* a, int64_t lda, const typename Tag::T* b, int64_t ldb, int64_t n, float* c,
                            int64_t ldc) {
  const D d;
  V x[R][U];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int u = 0; u < U; ++u) x[i][u] = hn::Set(d, a[i * lda + u]);
  }
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    V y[U];
#pragma GCC unroll 8
    for (int u = 0; u < U; ++u) {
      y[u] = load(Tag(), b + u * ldb + j);
      hwy::Prefetch(b + (u + U) * ldb + j);
    }
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      V s = hn::LoadU(d, c + i * ldc + j);
#pragma GCC unroll 8
      for (int u = 0; u < U; ++u) s = hn::MulAdd(x[i][u], y[u], s);
      hn::StoreU(s, d, c + i * ldc + j);
    }
  }
  for (; j < n; ++j) {
    for (int i = 0; i < R; ++i) {
      for (int u = 0; u < U; ++u) c[i * ldc + j] += a[i * lda + u] * load_one(Tag(), b + u * ldb + j);
    }
  }
}

template <int R, class Tag>
void stream(const float* a, int64_t lda, const void* bv, int64_t ldb, int64_t n, int64_t k, float* c, int64_t ldc) {
  constexpr int U = stream_steps(R);
  const auto* b = static_cast<const typename Tag::T*>(bv);
  for (int i = 0; i < R; ++i) std::memset(c + i * ldc, 0, static_cast<size_t>(n) * sizeof(float));
  int64_t p = 0;
  for (; p + U <= k; p += U) stream_step<R, U, Tag>(a + p, lda, b + p * ldb, ldb, n, c, ldc);
  for (; p < k; ++p) stream_step<R, 1, Tag>(a + p, lda, b + p * ldb, ldb, n, c, ldc);
}

}  // namespace dgpu::cpu::gemm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
