#include "cpu_kernel_runner.h"

namespace dgpu::cpu::test {
namespace {

Case rms(dgpuDtype_t x, dgpuDtype_t w, dgpuDtype_t out, int64_t rows, int64_t width, const std::string& cast,
         double offset) {
  Case c("rms_norm");
  c.attr("eps", 1e-6).attr("cast", cast).attr("weight_offset", offset);
  c.port("x", packed(x, {rows, width}), normal(1, 3)).port("weight", packed(w, {width}), normal(2));
  c.out("out", out);
  return c;
}

// Relative error of a row's factor: half of the sum's, whose lanes add at most 64 terms each; and the products.
constexpr double kUnits = 40;

TEST(CpuRmsNorm, TypesCastOrdersAndInstructionSets) {
  for_each_isa([] {
    for (const dgpuDtype_t x : kFloats)
      for (const dgpuDtype_t w : kFloats)
        for (const dgpuDtype_t out : kFloats)
          for (const char* cast : {"after_weight", "before_weight"}) {
            SCOPED_TRACE(cast);
            Case c = rms(x, w, out, 5, 131, cast, 1);
            if (x != DGPU_DTYPE_F32 && std::string(cast) == "before_weight") {
              // One step of x's type where our f32 and the f64 value round to different sides.
              const auto want = c.reference("out");
              ASSERT_EQ(c.run(), 0);
              expect_close(c, "out", want, 2 * roundoff(x) / 0x1p-24, 0);
            } else {
              check(c, "out", kUnits);
            }
            if (HasFatalFailure()) return;
          }
  });
}

// Exact numbers tell the cast orders apart: y = 1 + 2^-7 rounds to bf16 exactly or not, before the product.
TEST(CpuRmsNorm, BeforeWeightRoundsToTypeOfX) {
  for_each_isa([] {
    for (const char* cast : {"after_weight", "before_weight"}) {
      Case c("rms_norm");
      c.attr("eps", 0.0).attr("cast", std::string(cast)).attr("weight_offset", 0.0);
      c.port("x", packed(DGPU_DTYPE_BF16, {3}), [](int64_t i) { return i + 1.0; });
      c.port("weight", packed(DGPU_DTYPE_F32, {3}), [](int64_t) { return 3.0; }).out("out", DGPU_DTYPE_F32);
      ASSERT_EQ(c.run(), 0);
      const double inv = 1 / std::sqrt(14.0 / 3);
      for (int i = 0; i < 3; ++i) {
        const double y = (i + 1) * inv;
        const double want = 3 * (std::string(cast) == "before_weight" ? ops::round_to(DGPU_DTYPE_BF16, y) : y);
        EXPECT_NEAR(c.result("out")[i], want, 1e-6);
      }
    }
  });
}

TEST(CpuRmsNorm, ResidualAndSum) {
  for_each_isa([] {
    for (const dgpuDtype_t x : kFloats)
      for (const dgpuDtype_t sum : {DGPU_DTYPE_NONE, DGPU_DTYPE_F32, DGPU_DTYPE_BF16, DGPU_DTYPE_F16}) {
        Case c = rms(x, DGPU_DTYPE_F32, DGPU_DTYPE_F32, 4, 77, "after_weight", 0);
        c.port("residual", packed(x, {4, 77}), normal(3));
        if (sum) c.out("sum", static_cast<dgpuDtype_t>(sum));
        check(c, "out", kUnits);
        if (sum) {
          const auto want = c.reference("sum");
          EXPECT_EQ(c.result("sum"), want);  // one rounding of an exact or f32 sum
        }
        if (HasFatalFailure()) return;
      }
  });
}

TEST(CpuRmsNorm, SumMayBeTheResidual) {
  for (const char* with : {"residual", "x"}) {
    Case c = rms(DGPU_DTYPE_F32, DGPU_DTYPE_F32, DGPU_DTYPE_F32, 6, 50, "after_weight", 0);
    c.port("residual", packed(DGPU_DTYPE_F32, {6, 50}), normal(4)).out("sum", DGPU_DTYPE_F32);
    c.share("sum", with);
    const auto out = c.reference("out"), sum = c.reference("sum");
    ASSERT_EQ(c.run(), 0);
    expect_close(c, "out", out, kUnits, 0);
    expect_close(c, with, sum, 1, 0);
  }
}

TEST(CpuRmsNorm, ShapesStridesAndManyChunks) {
  for (const auto& shape :
       std::vector<std::vector<int64_t>>{{1}, {1024}, {0, 16}, {16, 0}, {2, 3, 1}, {200, 1024}, {3, 50000}}) {
    Case c("rms_norm");
    c.attr("eps", 1e-5).port("x", packed(DGPU_DTYPE_BF16, shape), normal(5)).out("out", DGPU_DTYPE_BF16);
    check(c, "out", kUnits);
  }
  Case c("rms_norm");
  c.attr("eps", 1e-5).attr("cast", std::string("after_weight")).attr("weight_offset", 0.0);
  c.port("x", strided(DGPU_DTYPE_F16, {7, 9, 65}, {2, 1, 0}, 1), normal(6));
  c.port("weight", strided(DGPU_DTYPE_BF16, {65}, {0}, 0), normal(7));
  c.port("residual", strided(DGPU_DTYPE_F16, {7, 9, 65}, {1, 0, 2}, 5), normal(8));
  c.port("out", strided(DGPU_DTYPE_F32, {7, 9, 65}, {1, 2, 0}, 2));
  c.port("sum", strided(DGPU_DTYPE_BF16, {7, 9, 65}, {0, 2, 1}, 3));
  check(c, "out", kUnits);
}

TEST(CpuRmsNorm, OneTokenIsOneChunk) {
  Case c = rms(DGPU_DTYPE_BF16, DGPU_DTYPE_BF16, DGPU_DTYPE_BF16, 1, 1024, "before_weight", 0);
  ASSERT_EQ(c.run(), 0);
  EXPECT_EQ(c.chunk_count(), 1u);
}

TEST(CpuLayerNorm, TypesShapesAndInstructionSets) {
  for_each_isa([] {
    for (const dgpuDtype_t x : kFloats)
      for (const dgpuDtype_t out : kFloats)
        for (const int64_t width : {1, 19, 1024, 5000}) {
          Case c("layer_norm");
          c.attr("eps", 1e-5).port("x", packed(x, {9, width}), [f = normal(9, 2)](int64_t i) { return f(i) + 5; });
          if (width != 19) c.port("weight", packed(DGPU_DTYPE_BF16, {width}), normal(10));
          c.port("bias", packed(DGPU_DTYPE_F32, {width}), normal(11)).out("out", out);
          // Subtracting the mean of about 5 leaves its rounding, relative to values of about 1, and the bias cancels.
          check(c, "out", kUnits, 1e-5);
          if (HasFatalFailure()) return;
        }
  });
}

}  // namespace
}  // namespace dgpu::cpu::test
