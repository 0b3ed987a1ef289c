// The AVX512_BF16 pair instruction, which Highway 1.0.3 has no target for.
#include <utility>

#include "backends/cpu/gemm/kernels.h"

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

template <int R>
DGPU_BF16 void dot(const void* const* av, const void* const* bv, int64_t count, int64_t k, float* c, int64_t ldc,
                   bool accumulate) {
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
    __m512 s[R][C];
#pragma GCC unroll 4
    for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
      for (int j = 0; j < C; ++j) s[i][j] = _mm512_setzero_ps();
    }
    for (int64_t p = 0; p < whole; p += kStep) {
      __m512i x[R];
#pragma GCC unroll 4
      for (int i = 0; i < R; ++i) x[i] = _mm512_loadu_si512(a[i] + p);
#pragma GCC unroll 8
      for (int j = 0; j < C; ++j) {
        const __m512i y = _mm512_loadu_si512(b[j] + p);
#pragma GCC unroll 4
        for (int i = 0; i < R; ++i) s[i][j] = multiply_pairs(s[i][j], x[i], y);
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
        for (int i = 0; i < R; ++i) s[i][j] = multiply_pairs(s[i][j], x[i], y);
      }
    }
    float sums[R][C];
#pragma GCC unroll 4
    for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
      for (int j = 0; j < C; ++j) sums[i][j] = _mm512_reduce_add_ps(s[i][j]);
    }
    for (int i = 0; i < R; ++i) {
      float* row = c + i * ldc + j0;
      for (int j = 0; j < valid; ++j) row[j] = sums[i][j] + (accumulate ? row[j] : 0.0f);
    }
  }
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
void fill_dot(DotUnit* t, std::index_sequence<R...>) {
  ((t->dot[R + 1] = dot<static_cast<int>(R) + 1>), ...);
}

DotUnit make() {
  DotUnit t = {};
  fill_micro(&t, std::make_index_sequence<kMaxRows>());
  fill_dot(&t, std::make_index_sequence<kMaxDotRows>());
  t.peak_loop = peak_loop;
  return t;
}

}  // namespace

const DotUnit* bf16_dot_unit() {
  static const DotUnit unit = make();
  static const bool supported = __builtin_cpu_supports("avx512bf16") != 0 && kernels(Isa::avx512) != nullptr;
  return supported ? &unit : nullptr;
}

}  // namespace dgpu::cpu::gemm
#else
namespace dgpu::cpu::gemm {
const DotUnit* bf16_dot_unit() { return nullptr; }
}  // namespace dgpu::cpu::gemm
#endif
