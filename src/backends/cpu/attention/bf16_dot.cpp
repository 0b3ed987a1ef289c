// The AVX512_BF16 pair instruction, which Highway 1.0.3 has no target for.
#include "backends/cpu/attention/kernels.h"

#if (defined(__x86_64__) || defined(_M_X64)) && defined(__GNUC__)
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC bug 105593, in its own headers
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#define DGPU_BF16 __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,avx512bf16,avx,avx2,fma,f16c,bmi,bmi2")))
#define DGPU_BF16_INLINE DGPU_BF16 inline __attribute__((always_inline))

namespace dgpu::cpu::attention {
namespace {

DGPU_BF16_INLINE __m512 multiply_pairs(__m512 sum, __m512i x, __m512i y) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(y));
}

// Sums over the lanes of four vectors.
DGPU_BF16_INLINE __m128 sums4(const __m512* v) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
  const __m512d x = _mm512_castps_pd(ab), y = _mm512_castps_pd(cd);
  const __m512 s =
      _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
  const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(s), _mm512_extractf32x8_ps(s, 1));
  return _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
}

template <int R>
DGPU_BF16 void scores(const void* qv, int64_t ldq, const void* const* kv, int64_t count, int64_t d, float* s,
                      int64_t lds) {
  constexpr int C = 4, kStep = 32;
  const auto* q = static_cast<const uint16_t*>(qv);
  const int64_t whole = d / kStep * kStep;
  const auto rest = static_cast<__mmask32>((uint64_t{1} << (d - whole)) - 1);
  for (int64_t j0 = 0; j0 < count; j0 += C) {
    const uint16_t* k[C];
    for (int j = 0; j < C; ++j) k[j] = static_cast<const uint16_t*>(kv[j0 + j < count ? j0 + j : count - 1]);
    __m512 sum[R][C];
#pragma GCC unroll 4
    for (int i = 0; i < R; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < C; ++j) sum[i][j] = _mm512_setzero_ps();
    }
    for (int64_t p = 0; p < whole; p += kStep) {
      __m512i x[C];
#pragma GCC unroll 4
      for (int j = 0; j < C; ++j) x[j] = _mm512_loadu_si512(k[j] + p);
#pragma GCC unroll 4
      for (int i = 0; i < R; ++i) {
        const __m512i y = _mm512_loadu_si512(q + i * ldq + p);
#pragma GCC unroll 4
        for (int j = 0; j < C; ++j) sum[i][j] = multiply_pairs(sum[i][j], y, x[j]);
      }
    }
    if (rest != 0) {
#pragma GCC unroll 4
      for (int j = 0; j < C; ++j) {
        const __m512i x = _mm512_maskz_loadu_epi16(rest, k[j] + whole);
#pragma GCC unroll 4
        for (int i = 0; i < R; ++i) {
          sum[i][j] = multiply_pairs(sum[i][j], _mm512_maskz_loadu_epi16(rest, q + i * ldq + whole), x);
        }
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < R; ++i) _mm_storeu_ps(s + i * lds + j0, sums4(sum[i]));
  }
}

constexpr PairScores kScores[kMaxNarrowRows + 1] = {nullptr, scores<1>, scores<2>, scores<3>, scores<4>};

}  // namespace

const PairScores* pair_scores() { return gemm::bf16_dot_unit() != nullptr ? kScores : nullptr; }

}  // namespace dgpu::cpu::attention
#else
namespace dgpu::cpu::attention {
const PairScores* pair_scores() { return nullptr; }
}  // namespace dgpu::cpu::attention
#endif
