// Which instruction sets the SIMD sources are compiled for. Include before any Highway header.
//
// x86-64: SSE4 (the baseline's step), AVX2, AVX-512; ARM: NEON. Left out: sets that add nothing to these, and those
// without a fixed vector length (register tiles are arrays of vectors).
#pragma once

#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | HWY_PPC8)
