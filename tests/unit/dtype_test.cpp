// Conversions against independent truth: exhaustive over 16-bit values, and rounding decided by exact comparison in f64
// with the two neighbours.
#include "base/dtype.h"

#include <gtest/gtest.h>

#include <random>

namespace dgpu {
namespace {

double value_of(uint16_t bits, bool bf16) { return bf16 ? bf16_to_f32(bits) : f16_to_f32(bits); }

// The nearest finite or infinite 16-bit value of |x|, ties to even, found by bisection over the ordered bit patterns.
uint16_t nearest(double x, bool bf16) {
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const double m = std::fabs(x);
  const uint16_t infinity = bf16 ? 0x7f80 : 0x7c00;
  uint16_t low = 0;
  uint16_t high = infinity;
  while (high - low > 1) {
    const uint16_t middle = static_cast<uint16_t>((low + high) / 2);
    (value_of(middle, bf16) <= m ? low : high) = middle;
  }
  // Infinity counts as the next power of two for rounding (IEEE 754-2019, 4.3.1).
  const double above = high == infinity ? (bf16 ? 0x1p128 : 0x1p16) : value_of(high, bf16);
  const double down = m - value_of(low, bf16);
  const double up = above - m;
  if (std::isinf(m)) return static_cast<uint16_t>(sign | infinity);
  const uint16_t pick = down < up ? low : up < down ? high : (low & 1) ? high : low;
  return static_cast<uint16_t>(sign | pick);
}

TEST(DtypeTest, EverySixteenBitValueSurvivesTheRoundTrip) {
  for (uint32_t i = 0; i < 0x10000; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    const float b = bf16_to_f32(bits);
    const float h = f16_to_f32(bits);
    if (std::isnan(b)) {
      EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(b))));
    } else {
      ASSERT_EQ(f32_to_bf16(b), bits);
      ASSERT_EQ(f64_to_bf16(b), bits);
    }
    if (std::isnan(h)) {
      EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(h))));
    } else {
      ASSERT_EQ(f32_to_f16(h), bits);
      ASSERT_EQ(f64_to_f16(h), bits);
    }
  }
}

TEST(DtypeTest, HalfValuesAreTheStandardOnes) {
  EXPECT_EQ(f16_to_f32(0x3c00), 1.0f);
  EXPECT_EQ(f16_to_f32(0x7bff), 65504.0f);
  EXPECT_EQ(f16_to_f32(0x0001), 0x1p-24f);
  EXPECT_EQ(f16_to_f32(0x0400), 0x1p-14f);
  EXPECT_EQ(f16_to_f32(0xfc00), -INFINITY);
  EXPECT_EQ(f32_to_f16(65519.996f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(f32_to_f16(0x1p-25f), 0x0000);  // a tie, to even
  EXPECT_EQ(f32_to_f16(0x1.000002p-25f), 0x0001);
  EXPECT_EQ(f32_to_bf16(1.00390625f), 0x3f80);  // 1 + 2^-8: a tie, to even
  EXPECT_EQ(f32_to_bf16(3.4e38f), 0x7f80);
}

TEST(DtypeTest, RoundingFromF32IsToNearestEven) {
  std::mt19937 random(1);
  for (int i = 0; i < 300000; ++i) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (std::isnan(x)) continue;
    ASSERT_EQ(f32_to_bf16(x), nearest(x, true)) << x;
    ASSERT_EQ(f32_to_f16(x), nearest(x, false)) << x;
    const float small = std::ldexp(x, -static_cast<int>(std::logb(x == 0 || std::isinf(x) ? 1 : x)) - 16);
    ASSERT_EQ(f32_to_f16(small), nearest(small, false)) << small;
  }
}

TEST(DtypeTest, F64IsRoundedOnce) {
  // Just above the middle between two bf16 values: through f32 it would first become the tie, then round to even.
  const double x = 1.0 + 0x1p-8 + 0x1p-40;
  EXPECT_EQ(f32_to_bf16(static_cast<float>(x)), 0x3f80);
  EXPECT_EQ(f64_to_bf16(x), 0x3f81);
  std::mt19937_64 random(2);
  for (int i = 0; i < 300000; ++i) {
    const uint16_t base = static_cast<uint16_t>(random() & 0x7fff);
    for (bool bf16 : {true, false}) {
      const double low = value_of(base, bf16);
      const double high = value_of(static_cast<uint16_t>(base + 1), bf16);
      if (!std::isfinite(low) || !std::isfinite(high)) continue;
      const double middle = low + (high - low) / 2;
      for (double y :
           {middle, std::nextafter(middle, 0.0), std::nextafter(middle, high), -std::nextafter(middle, high)}) {
        ASSERT_EQ(bf16 ? f64_to_bf16(y) : f64_to_f16(y), nearest(y, bf16)) << y;
      }
    }
  }
  EXPECT_EQ(f64_to_bf16(1e300), 0x7f80);
  EXPECT_EQ(f64_to_bf16(-1e300), 0xff80);
  EXPECT_EQ(f64_to_bf16(3.4e38), nearest(3.4e38, true));
  EXPECT_EQ(f64_to_f16(1e-300), 0);
  EXPECT_EQ(f64_to_bf16(1e-300), 0);
  EXPECT_TRUE(std::isnan(bf16_to_f32(f64_to_bf16(NAN))));
}

}  // namespace
}  // namespace dgpu
