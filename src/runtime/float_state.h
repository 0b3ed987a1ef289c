// Floating-point control state of a thread that the embedder owns: saved and set to the default while it runs pieces of
// device work, so that neither side sees the other's rounding mode, exception masks or flush-to-zero.
#pragma once
#if defined(__x86_64__)
#include <immintrin.h>
#else
#include <cfenv>
#endif

namespace dgpu {

class FloatStateScope {
 public:
#if defined(__x86_64__)
  FloatStateScope() : saved_(_mm_getcsr()) {
    if (saved_ != kDefault) _mm_setcsr(kDefault);
  }
  ~FloatStateScope() { _mm_setcsr(saved_); }
#else
  FloatStateScope() { feholdexcept(&saved_); }
  ~FloatStateScope() { fesetenv(&saved_); }
#endif
  FloatStateScope(const FloatStateScope&) = delete;
  FloatStateScope& operator=(const FloatStateScope&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr unsigned kDefault = 0x1f80;  // MXCSR: all exceptions masked, to nearest, denormals kept
  const unsigned saved_;
#else
  std::fenv_t saved_;
#endif
};

}  // namespace dgpu
