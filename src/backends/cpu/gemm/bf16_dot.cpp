// The AVX512_BF16 pair instruction, which Highway 1.0.3 has no target for.
#include <cstring>
#include <utility>

#include "backends/cpu/gemm/kernels.h"
#include "backends/cpu/isa.h"

#if (defined(__x86_64__) || defined(_M_X64)) && defined(__GNUC__)
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC bug 105593, in its own headers
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#define DGPU_BF16 __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,avx512bf16,avx,avx2,fma,f16c,bmi,bmi2")))
#define DGPU_BF16_INLINE DGPU_BF16 inline __attribute__((always_inline))

namespace dgpu::cpu::gemm {
namespace {

constexpr int kAWidth = 16, kBWidth = 32, kLanes = 16;

DGPU_BF16_INLINE __m512 multiply_pairs(__m512 sum, __m512i x, __m512i y) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(y));
}

template <int R>
DGPU_BF16 void micro(const void* av, const void* bv, int64_t units, float* __restrict c, int64_t ldc, bool accumulate) {
  const int* __restrict a = static_cast<const int*>(av);
  const int* __restrict b = static_cast<const int*>(bv);
  __m512 c0[R], c1[R];
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) c0[i] = c1[i] = _mm512_setzero_ps();
  for (int64_t u = 0; u < units; ++u, a += kAWidth, b += kBWidth) {
    const __m512i b0 = _mm512_loadu_si512(b);
    const __m512i b1 = _mm512_loadu_si512(b + kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      const __m512i x = _mm512_set1_epi32(a[i]);
      c0[i] = multiply_pairs(c0[i], x, b0);
      c1[i] = multiply_pairs(c1[i], x, b1);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
    float* row = c + i * ldc;
    if (accumulate) {
      c0[i] = _mm512_add_ps(c0[i], _mm512_loadu_ps(row));
      c1[i] = _mm512_add_ps(c1[i], _mm512_loadu_ps(row + kLanes));
    }
    _mm512_storeu_ps(row, c0[i]);
    _mm512_storeu_ps(row + kLanes, c1[i]);
  }
}

// Rows of B per tile.
constexpr int columns(int rows) { return rows == 4 ? 6 : 8; }

// sums[i] = sum of the lanes of v[i], i < 4.
DGPU_BF16_INLINE void sum_lanes4(const __m512* v, float* sums) {
  const __m512 s01 = _mm512_add_ps(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
  const __m512 s23 = _mm512_add_ps(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
  const __m512d a = _mm512_castps_pd(s01), b = _mm512_castps_pd(s23);
  const __m512 blocks =
      _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  const __m512 half = _mm512_add_ps(blocks, _mm512_shuffle_f32x4(blocks, blocks, 0xee));
  const __m512 quarter = _mm512_add_ps(half, _mm512_shuffle_f32x4(half, half, 0x55));
  _mm_storeu_ps(sums, _mm512_castps512_ps128(quarter));
}

// One row of A: see inplace-inl.h.
DGPU_BF16_INLINE __m512 dot_row(const uint16_t* a, const uint16_t* b, int64_t whole, __mmask32 rest) {
  constexpr int U = 8, kStep = 2 * kLanes;
  __m512 s[U];
#pragma GCC unroll 8
  for (int u = 0; u < U; ++u) s[u] = _mm512_setzero_ps();
  int64_t p = 0;
  for (; p + U * kStep <= whole; p += U * kStep) {
#pragma GCC unroll 8
    for (int u = 0; u < U; ++u) {
      s[u] = multiply_pairs(s[u], _mm512_loadu_si512(a + p + u * kStep), _mm512_loadu_si512(b + p + u * kStep));
    }
  }
  for (; p < whole; p += kStep) s[0] = multiply_pairs(s[0], _mm512_loadu_si512(a + p), _mm512_loadu_si512(b + p));
  if (rest != 0) {
    s[1] = multiply_pairs(s[1], _mm512_maskz_loadu_epi16(rest, a + whole), _mm512_maskz_loadu_epi16(rest, b + whole));
  }
#pragma GCC unroll 4
  for (int u = 0; u < U / 2; ++u) s[u] = _mm512_add_ps(s[u], s[u + U / 2]);
  return _mm512_add_ps(_mm512_add_ps(s[0], s[2]), _mm512_add_ps(s[1], s[3]));
}

DGPU_BF16 void dot_one(const void* const* av, const void* const* bv, int64_t count, int64_t k, float* c,
                       bool accumulate) {
  const auto* a = static_cast<const uint16_t*>(*av);
  const int64_t whole = k / (2 * kLanes) * (2 * kLanes);
  const __mmask32 rest = static_cast<__mmask32>((uint64_t{1} << (k - whole)) - 1);
  for (int64_t j0 = 0; j0 < count; j0 += 4) {
    const int valid = static_cast<int>(count - j0 < 4 ? count - j0 : 4);
    __m512 s[4];
    for (int j = 0; j < 4; ++j) {
      s[j] = j < valid ? dot_row(a, static_cast<const uint16_t*>(bv[j0 + j]), whole, rest) : _mm512_setzero_ps();
    }
    float sums[4];
    sum_lanes4(s, sums);
    for (int j = 0; j < valid; ++j) c[j0 + j] = sums[j] + (accumulate ? c[j0 + j] : 0.0f);
  }
}

template <int R>
DGPU_BF16 void dot(const void* const* av, const void* const* bv, const void* const* next, int64_t count, int64_t k,
                   float* c, int64_t ldc, bool accumulate) {
  if constexpr (R == 1) return dot_one(av, bv, count, k, c, accumulate);
  constexpr int C = columns(R);
  constexpr int kStep = 2 * kLanes;
  const int64_t whole = k / kStep * kStep;
  const __mmask32 rest = static_cast<__mmask32>((uint64_t{1} << (k - whole)) - 1);
  const uint16_t* a[R];
  for (int i = 0; i < R; ++i) a[i] = static_cast<const uint16_t*>(av[i]);
  for (int64_t j0 = 0; j0 < count; j0 += C) {
    const int valid = static_cast<int>(count - j0 < C ? count - j0 : C);
    const uint16_t* b[C];
    for (int j = 0; j < C; ++j) b[j] = static_cast<const uint16_t*>(bv[j0 + (j < valid ? j : valid - 1)]);
    const uint16_t* ahead[kDotAhead];
    for (int i = 0; i < kDotAhead; ++i) ahead[i] = static_cast<const uint16_t*>(next[j0 + (i < valid ? i : valid - 1)]);
    __m512 s[R * C];
#pragma GCC unroll 24
    for (int i = 0; i < R * C; ++i) s[i] = _mm512_setzero_ps();
    for (int64_t p = 0; p < whole; p += kStep) {
      __m512i x[R];
#pragma GCC unroll 4
      for (int i = 0; i < R; ++i) x[i] = _mm512_loadu_si512(a[i] + p);
#pragma GCC unroll 4
      for (int i = 0; i < kDotAhead; ++i) __builtin_prefetch(ahead[i] + p, 0, 2);
#pragma GCC unroll 8
      for (int j = 0; j < C; ++j) {
        const __m512i y = _mm512_loadu_si512(b[j] + p);
#pragma GCC unroll 4
        for (int i = 0; i < R; ++i) s[i * C + j] = multiply_pairs(s[i * C + j], x[i], y);
      }
    }
    if (rest != 0) {
      __m512i x[R];
#pragma GCC unroll 4
      for (int i = 0; i < R; ++i) x[i] = _mm512_maskz_loadu_epi16(rest, a[i] + whole);
#pragma GCC unroll 8
      for (int j = 0; j < C; ++j) {
        const __m512i y = _mm512_maskz_loadu_epi16(rest, b[j] + whole);
#pragma GCC unroll 4
        for (int i = 0; i < R; ++i) s[i * C + j] = multiply_pairs(s[i * C + j], x[i], y);
      }
    }
    float sums[R * C];
#pragma GCC unroll 6
    for (int i = 0; i < R * C; i += 4) sum_lanes4(s + i, sums + i);
    for (int i = 0; i < R; ++i) {
      float* row = c + i * ldc + j0;
      for (int j = 0; j < valid; ++j) row[j] = sums[i * C + j] + (accumulate ? row[j] : 0.0f);
    }
  }
}

// Sums of 32 columns lie in memory as the unpack instructions interleave them, until restore_order().
template <int R, int U>
DGPU_BF16_INLINE void stream_step(const int* x, const uint16_t* b, int64_t ldb, bool odd_row, int64_t n, float* c,
                                  int64_t ldc) {
  for (int64_t j = 0; j < n; j += kBWidth) {
    asm volatile("" ::: "memory");  // keeps x in memory: hoisted broadcasts would spill as whole vectors
    const __mmask32 mask = n - j >= kBWidth ? ~__mmask32{0} : static_cast<__mmask32>((uint64_t{1} << (n - j)) - 1);
    __m512i low[U], high[U];
#pragma GCC unroll 8
    for (int u = 0; u < U; ++u) {
      const uint16_t* row = b + 2 * u * ldb + j;
      const __m512i even = _mm512_maskz_loadu_epi16(mask, row);
      const __m512i odd = _mm512_maskz_loadu_epi16(odd_row ? mask : 0, row + ldb);
      low[u] = _mm512_unpacklo_epi16(even, odd);
      high[u] = _mm512_unpackhi_epi16(even, odd);
      __builtin_prefetch(row + 2 * U * ldb, 0, 2);
      __builtin_prefetch(row + (2 * U + 1) * ldb, 0, 2);
    }
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      float* s = c + i * ldc + j;
      __m512 s0 = _mm512_loadu_ps(s), s1 = _mm512_loadu_ps(s + kLanes);
#pragma GCC unroll 8
      for (int u = 0; u < U; ++u) {
        const __m512i pair = _mm512_set1_epi32(x[i * U + u]);
        s0 = multiply_pairs(s0, pair, low[u]);
        s1 = multiply_pairs(s1, pair, high[u]);
      }
      _mm512_storeu_ps(s, s0);
      _mm512_storeu_ps(s + kLanes, s1);
    }
  }
}

DGPU_BF16 void restore_order(float* c, int64_t n) {
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i second = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  for (int64_t j = 0; j < n; j += kBWidth) {
    const __m512 low = _mm512_loadu_ps(c + j), high = _mm512_loadu_ps(c + j + kLanes);
    _mm512_storeu_ps(c + j, _mm512_permutex2var_ps(low, first, high));
    _mm512_storeu_ps(c + j + kLanes, _mm512_permutex2var_ps(low, second, high));
  }
}

template <int R>
DGPU_BF16 void stream(const void* av, int64_t lda, const void* bv, int64_t ldb, int64_t n, int64_t k, float* c,
                      int64_t ldc) {
  constexpr int U = R >= 8 ? 8 : 4;  // many rows: half as many visits of the sums
  const auto* a = static_cast<const uint16_t*>(av);
  const auto* b = static_cast<const uint16_t*>(bv);
  const auto room = static_cast<size_t>((n + kBWidth - 1) / kBWidth * kBWidth);
  for (int i = 0; i < R; ++i) std::memset(c + i * ldc, 0, room * sizeof(float));
  int x[R * U];
  int64_t p = 0;
  for (; p + 2 * U <= k; p += 2 * U) {
    for (int i = 0; i < R; ++i) std::memcpy(x + i * U, a + i * lda + p, sizeof(int) * U);
    stream_step<R, U>(x, b + p * ldb, ldb, true, n, c, ldc);
  }
  for (; p < k; p += 2) {
    for (int i = 0; i < R; ++i) {
      x[i] = 0;
      std::memcpy(x + i, a + i * lda + p, p + 1 < k ? 4 : 2);
    }
    stream_step<R, 1>(x, b + p * ldb, ldb, p + 1 < k, n, c, ldc);
  }
  for (int i = 0; i < R; ++i) restore_order(c + i * ldc, n);
}

DGPU_BF16 double peak_loop(int64_t iterations) {
  constexpr int kSums = 12;
  __m512 s[kSums];
#pragma GCC unroll 12
  for (int i = 0; i < kSums; ++i) s[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512i x = _mm512_set1_epi32(0x3f803f80), y = _mm512_set1_epi32(0x3c003c00);
  for (int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) s[i] = multiply_pairs(s[i], x, y);
  }
  __m512 total = s[0];
  for (int i = 1; i < kSums; ++i) total = _mm512_add_ps(total, s[i]);
  volatile float sink = _mm512_cvtss_f32(total);
  (void)sink;
  return 4.0 * kSums * kLanes * static_cast<double>(iterations);
}

template <size_t... R>
void fill_micro(DotUnit* t, std::index_sequence<R...>) {
  ((t->micro[R + 1] = micro<static_cast<int>(R) + 1>), ...);
}
template <size_t... R>
void fill_stream(DotUnit* t, std::index_sequence<R...>) {
  ((t->stream[R + 1] = stream<static_cast<int>(R) + 1>), ...);
}
template <size_t... R>
void fill_dot(DotUnit* t, std::index_sequence<R...>) {
  ((t->dot[R + 1] = dot<static_cast<int>(R) + 1>), ...);
}

DotUnit make() {
  DotUnit t = {};
  fill_micro(&t, std::make_index_sequence<kMaxRows>());
  fill_dot(&t, std::make_index_sequence<kMaxDotRows>());
  fill_stream(&t, std::make_index_sequence<kMaxStreamRows>());
  t.peak_loop = peak_loop;
  return t;
}

}  // namespace

const DotUnit* bf16_dot_unit() {
  static const DotUnit unit = make();
  return has_bf16_dot() ? &unit : nullptr;
}

}  // namespace dgpu::cpu::gemm
#else
namespace dgpu::cpu::gemm {
const DotUnit* bf16_dot_unit() { return nullptr; }
}  // namespace dgpu::cpu::gemm
#endif
