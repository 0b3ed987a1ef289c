// Products that read weights in place: rows times rows (vectors along k) and row times matrix (vectors along n).
// Included once per instruction set.
#if defined(DGPU_GEMM_INPLACE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DGPU_GEMM_INPLACE_INL_H_
#undef DGPU_GEMM_INPLACE_INL_H_
#else
#define DGPU_GEMM_INPLACE_INL_H_
#endif

#include "backends/cpu/gemm/kernels.h"
#include "backends/cpu/vec-inl.h"
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace dgpu::cpu::gemm::HWY_NAMESPACE {
using namespace vec::HWY_NAMESPACE;

// Rows of B per tile: at least 8 sums in flight cover the FMA latency, at most what the registers hold.
constexpr int dot_columns(int rows) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
  return rows == 4 ? 6 : 8;
#else
  return rows == 2 ? 4 : rows == 3 ? 3 : 2;
#endif
}

constexpr int dot_sums(int rows) { return (rows * dot_columns(rows) + 3) / 4 * 4; }

template <int R, class Tag>
HWY_INLINE void dot_tile(const float* const* a, const typename Tag::T* const* b, const typename Tag::T* const* next,
                         int64_t k, float* sums) {
  constexpr int C = dot_columns(R);
  constexpr int kSums = dot_sums(R);
  const D d;
  V s[kSums];
#pragma GCC unroll 24
  for (int i = 0; i < kSums; ++i) s[i] = hn::Zero(d);
  int64_t p = 0;
  for (; p + kLanes <= k; p += kLanes) {
    V x[R];
#pragma GCC unroll 4
    for (int i = 0; i < R; ++i) x[i] = hn::LoadU(d, a[i] + p);
#pragma GCC unroll 4
    for (int i = 0; i < kDotAhead; ++i) __builtin_prefetch(next[i] + p, 0, 2);
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) {
      const V y = load(Tag(), b[j] + p);
#pragma GCC unroll 4
      for (int i = 0; i < R; ++i) s[i * C + j] = hn::MulAdd(x[i], y, s[i * C + j]);
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < kSums; i += 4) store_sums4(s[i], s[i + 1], s[i + 2], s[i + 3], sums + i);
  for (; p < k; ++p) {
    for (int i = 0; i < R; ++i) {
      for (int j = 0; j < C; ++j) sums[i * C + j] += a[i][p] * load_one(Tag(), b[j] + p);
    }
  }
}

// Partial sums of one row of B with one of A.
template <class Tag>
HWY_INLINE V dot_row(const float* a, const typename Tag::T* b, int64_t whole) {
  constexpr int U = 8;  // sums in flight cover the FMA latency
  const D d;
  V s[U];
#pragma GCC unroll 8
  for (int u = 0; u < U; ++u) s[u] = hn::Zero(d);
  int64_t p = 0;
  for (; p + U * kLanes <= whole; p += U * kLanes) {
#pragma GCC unroll 8
    for (int u = 0; u < U; ++u) {
      s[u] = hn::MulAdd(hn::LoadU(d, a + p + u * kLanes), load(Tag(), b + p + u * kLanes), s[u]);
    }
  }
  for (; p < whole; p += kLanes) s[0] = hn::MulAdd(hn::LoadU(d, a + p), load(Tag(), b + p), s[0]);
#pragma GCC unroll 4
  for (int u = 0; u < U / 2; ++u) s[u] = hn::Add(s[u], s[u + U / 2]);
  return hn::Add(hn::Add(s[0], s[2]), hn::Add(s[1], s[3]));
}

// One row of A is bound by the memory of B, and nothing reads that as fast as the processor's own read-ahead, which
// follows a single run of addresses: one row of B after the other.
template <class Tag>
void dot_one(const void* const* av, const void* const* bv, const void* const*, int64_t count, int64_t k, float* c,
             int64_t, bool accumulate) {
  using T = typename Tag::T;
  const auto* a = static_cast<const float*>(*av);
  const int64_t whole = k / kLanes * kLanes;
  for (int64_t j0 = 0; j0 < count; j0 += 4) {
    const int valid = static_cast<int>(count - j0 < 4 ? count - j0 : 4);
    V s[4];
    for (int j = 0; j < 4; ++j) {
      s[j] = j < valid ? dot_row<Tag>(a, static_cast<const T*>(bv[j0 + j]), whole) : hn::Zero(D());
    }
    float sums[4];
    store_sums4(s[0], s[1], s[2], s[3], sums);
    for (int j = 0; j < valid; ++j) {
      for (int64_t p = whole; p < k; ++p) sums[j] += a[p] * load_one(Tag(), static_cast<const T*>(bv[j0 + j]) + p);
      c[j0 + j] = sums[j] + (accumulate ? c[j0 + j] : 0.0f);
    }
  }
}

template <int R, class Tag>
void dot(const void* const* av, const void* const* bv, const void* const* nextv, int64_t count, int64_t k, float* c,
         int64_t ldc, bool accumulate) {
  if constexpr (R == 1) return dot_one<Tag>(av, bv, nextv, count, k, c, ldc, accumulate);
  using T = typename Tag::T;
  constexpr int C = dot_columns(R);
  const float* a[R];
  for (int i = 0; i < R; ++i) a[i] = static_cast<const float*>(av[i]);
  for (int64_t j0 = 0; j0 < count; j0 += C) {
    const int valid = static_cast<int>(count - j0 < C ? count - j0 : C);
    const T* b[C];
    for (int j = 0; j < C; ++j) b[j] = static_cast<const T*>(bv[j0 + (j < valid ? j : valid - 1)]);
    const T* next[kDotAhead];
    for (int i = 0; i < kDotAhead; ++i) next[i] = static_cast<const T*>(nextv[j0 + (i < valid ? i : valid - 1)]);
    float sums[dot_sums(R)];
    dot_tile<R, Tag>(a, b, next, k, sums);
    for (int i = 0; i < R; ++i) {
      float* row = c + i * ldc + j0;
      for (int j = 0; j < valid; ++j) row[j] = sums[i * C + j] + (accumulate ? row[j] : 0.0f);
    }
  }
}

constexpr int kStreamSteps = 8;

// U rows of B at a time are added to the sums, which stay in the first-level cache; x holds the factors [R][U].
template <int R, int U, class Tag>
HWY_INLINE void stream_step(const float* x, const typename Tag::T* b, int64_t ldb, int64_t n, float* c, int64_t ldc) {
  const D d;
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    asm volatile("" ::: "memory");  // keeps x in memory: hoisted broadcasts would spill as whole vectors
    V y[U];
#pragma GCC unroll 8
    for (int u = 0; u < U; ++u) {
      y[u] = load(Tag(), b + u * ldb + j);
      // Into the second-level cache: rows a power of two apart would push each other out of the first.
      __builtin_prefetch(b + (u + U) * ldb + j, 0, 2);
    }
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      V s = hn::LoadU(d, c + i * ldc + j);
#pragma GCC unroll 8
      for (int u = 0; u < U; ++u) s = hn::MulAdd(hn::Set(d, x[i * U + u]), y[u], s);
      hn::StoreU(s, d, c + i * ldc + j);
    }
  }
  for (; j < n; ++j) {
    for (int i = 0; i < R; ++i) {
      for (int u = 0; u < U; ++u) c[i * ldc + j] += x[i * U + u] * load_one(Tag(), b + u * ldb + j);
    }
  }
}

template <int R, class Tag>
void stream(const void* av, int64_t lda, const void* bv, int64_t ldb, int64_t n, int64_t k, float* c, int64_t ldc) {
  constexpr int U = kStreamSteps;
  const auto* a = static_cast<const float*>(av);
  const auto* b = static_cast<const typename Tag::T*>(bv);
  for (int i = 0; i < R; ++i) std::memset(c + i * ldc, 0, static_cast<size_t>(n) * sizeof(float));
  float x[R * U];
  int64_t p = 0;
  for (; p + U <= k; p += U) {
    for (int i = 0; i < R; ++i) std::memcpy(x + i * U, a + i * lda + p, sizeof(float) * U);
    stream_step<R, U, Tag>(x, b + p * ldb, ldb, n, c, ldc);
  }
  for (; p < k; ++p) {
    for (int i = 0; i < R; ++i) x[i] = a[i * lda + p];
    stream_step<R, 1, Tag>(x, b + p * ldb, ldb, n, c, ldc);
  }
}

}  // namespace dgpu::cpu::gemm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
