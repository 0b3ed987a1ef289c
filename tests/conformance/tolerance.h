// How far a backend may be from the f64 reference, derived from the formats and the length of sums.
//
// A result of a backend is a sum of n products in f32, rounded once to the output's type. With unit roundoffs u_out and
// u = 2^-24:
//   |got - want| <= u_out |want|              the last rounding
//                 + c u M                     the arithmetic before
// M is the sum of the magnitudes of the terms (the reference run on absolute values). A worst case has c = n; with
// rounding errors of random sign, c <= kLambda sqrt(n) except with probability 2 exp(-kLambda^2 / 2) per element
// (Higham and Mary, "A new approach to probabilistic rounding error analysis", SIAM J. Sci. Comput. 41, 2019). The
// seeds are fixed, so that a pass is a pass. Vendor functions (exp, tanh, ...) may be off by kUlps units in the last
// place.
#pragma once
#include <cmath>
#include <cstdint>

#include "dgpu/types.h"

namespace conformance {

constexpr double kLambda = 6;  // 2 exp(-18) = 3e-8 per element
constexpr double kUlps = 8;    // of an elementary function in f32, in units of u
constexpr double kU32 = 0x1p-24;

// Half the distance between neighbours, relative to the value: 2^-p for p significant bits.
inline double unit_roundoff(dgpuDtype_t dtype) {
  switch (dtype) {
    case DGPU_DTYPE_F64:
      return 0x1p-53;
    case DGPU_DTYPE_F16:
      return 0x1p-11;
    case DGPU_DTYPE_BF16:
      return 0x1p-8;
    default:
      return kU32;
  }
}

// Below the normal numbers the distance is absolute; hardware may flush subnormal f32 and bf16 to zero.
inline double tiny(dgpuDtype_t dtype) { return dtype == DGPU_DTYPE_F16 ? 0x1p-25 : 0x1p-126; }

// Sum of n terms in f32.
inline double sum_factor(double n) { return kLambda * std::sqrt(n + 1); }

inline double allowed(dgpuDtype_t out, double want, double factor, double magnitude) {
  return unit_roundoff(out) * std::fabs(want) + factor * kU32 * magnitude + tiny(out);
}

}  // namespace conformance
