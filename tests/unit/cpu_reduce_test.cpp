#include "cpu_kernel_runner.h"

namespace dgpu::cpu::test {
namespace {

const double kInfinity = std::numeric_limits<double>::infinity();

// Sums of n terms of about 1: lanes add at most 64 f32 terms, the rest is f64.
double floor_of(const std::string& fn, double n) {
  return fn == "sum" || fn == "mean" ? (fn == "sum" ? n : 1) * 64 * 0x1p-24 : 0;
}

TEST(CpuReduce, FunctionsAxesTypesAndInstructionSets) {
  for_each_isa([] {
    for (const char* fn : {"sum", "mean", "max", "min", "sum_sq"})
      for (const dgpuDtype_t type : kFloats)
        for (const auto& axes : std::vector<std::vector<int64_t>>{{0}, {1}, {-1}, {0, 2}, {1, 2}, {0, 1}, {0, 1, 2}}) {
          SCOPED_TRACE(fn);
          Case c("reduce");
          c.attr("fn", std::string(fn)).attr("axes", axes).attr("keepdims", axes.size() == 2);
          c.port("x", packed(type, {13, 40, 57}), normal(1)).out("out", type);
          check(c, "out", 64, floor_of(fn, 13 * 40 * 57));
          if (HasFatalFailure()) return;
        }
  });
}

TEST(CpuReduce, LongReductionsAreSplit) {
  for (const char* fn : {"sum", "mean", "max", "min", "sum_sq"}) {
    SCOPED_TRACE(fn);
    struct Row {
      std::vector<int64_t> shape, axes;
    };
    for (const Row& row : {Row{{300000}, {0}}, {{3, 100000}, {1}}, {{20000, 33}, {0}}, {{500, 3, 700}, {0, 2}}}) {
      Case c("reduce");
      c.attr("fn", std::string(fn)).attr("axes", row.axes);
      c.port("x", packed(DGPU_DTYPE_F32, row.shape), normal(2)).out("out", DGPU_DTYPE_F32);
      check(c, "out", 64, floor_of(fn, 300000));
      EXPECT_GT(c.chunk_count(), 1u);
    }
  }
}

TEST(CpuReduce, StridesSymbolsAndNothing) {
  for (const auto& order : std::vector<std::vector<uint32_t>>{{0, 1, 2}, {2, 1, 0}, {1, 2, 0}}) {
    Case c("reduce");
    c.attr("fn", std::string("sum_sq")).attr("axes", std::vector<int64_t>{1});
    c.port("x", strided(DGPU_DTYPE_F16, {9, 65, 70}, order, 3), normal(3));
    c.port("out", strided(DGPU_DTYPE_F32, {9, 70}, {1, 0}, 1));
    check(c, "out", 64);
  }
  auto d = packed(DGPU_DTYPE_F32, {200000, 3});
  d.symbols[0] = 1;
  for (const int64_t n : {0, 1, 100, 200000}) {
    Case c("reduce");
    c.attr("fn", std::string("sum")).attr("axes", std::vector<int64_t>{0}).port("x", d, normal(4));
    c.out("out", DGPU_DTYPE_F32);
    c.symbols = {n};
    check(c, "out", 64, 200000 * 64 * 0x1p-24);
  }
  Case c("reduce");
  c.attr("fn", std::string("sum")).attr("axes", std::vector<int64_t>{1});
  c.port("x", packed(DGPU_DTYPE_F32, {5, 0}), normal(5)).out("out", DGPU_DTYPE_F32);
  check(c, "out", 0);
}

TEST(CpuReduce, NanPassesThroughMaxAndMin) {
  for_each_isa([] {
    for (const char* fn : {"max", "min"})
      for (const int64_t axis : {0, 1}) {
        Case c("reduce");
        c.attr("fn", std::string(fn)).attr("axes", std::vector<int64_t>{axis});
        c.port("x", packed(DGPU_DTYPE_F32, {20, 50}), [](int64_t i) {
          return i == 333  ? std::numeric_limits<double>::quiet_NaN()
                 : i == 17 ? kInfinity
                 : i == 18 ? -kInfinity
                           : 1.0 * i;
        });
        c.out("out", DGPU_DTYPE_F32);
        check(c, "out", 0);
      }
  });
}

TEST(CpuSoftmax, TypesAxesAndInstructionSets) {
  for_each_isa([] {
    for (const dgpuDtype_t type : kFloats)
      for (const dgpuDtype_t out : kFloats)
        for (const int64_t axis : {-1, 0, 1}) {
          Case c("softmax");
          c.attr("axis", axis).port("x", packed(type, {7, 31, 45}), normal(6, 4)).out("out", out);
          // The difference to the largest, up to 30 or so, is rounded before exp.
          check(c, "out", 64);
          if (HasFatalFailure()) return;
        }
  });
}

TEST(CpuSoftmax, RowsOfMinusInfinityAndNan) {
  for_each_isa([] {
    for (const int64_t n : {5, 70000}) {
      Case c("softmax");
      c.port("x", packed(DGPU_DTYPE_F32, {3, n}), [&](int64_t i) {
        if (i < n) return -kInfinity;
        if (i == n + 3) return std::numeric_limits<double>::quiet_NaN();
        return i % 3 == 0 ? -kInfinity : 0.001 * static_cast<double>(i % 1000);
      });
      c.out("out", DGPU_DTYPE_F32);
      check(c, "out", 64);
      EXPECT_EQ(c.result("out")[0], 0);
      EXPECT_TRUE(std::isnan(c.result("out")[static_cast<size_t>(n) + 1]));
    }
  });
}

TEST(CpuSoftmax, OneRowOfAVocabularyIsSplit) {
  for (const dgpuDtype_t type : kFloats) {
    Case c("softmax");
    c.port("x", packed(type, {1, 151936}), normal(7, 5)).out("out", DGPU_DTYPE_F32);
    check(c, "out", 64);
    EXPECT_GT(c.chunk_count(), 4u);
  }
  Case c("softmax");
  c.port("x", strided(DGPU_DTYPE_BF16, {3, 100000}, {1, 0}, 1), normal(8, 5));
  c.port("out", strided(DGPU_DTYPE_F16, {3, 100000}, {1, 0}, 0));
  check(c, "out", 64);
}

TEST(CpuSoftmax, Nothing) {
  for (const auto& shape : std::vector<std::vector<int64_t>>{{0}, {3, 0}, {0, 3}, {1}}) {
    Case c("softmax");
    c.port("x", packed(DGPU_DTYPE_F32, shape), normal(9)).out("out", DGPU_DTYPE_F32);
    check(c, "out", 2);
  }
}

}  // namespace
}  // namespace dgpu::cpu::test
