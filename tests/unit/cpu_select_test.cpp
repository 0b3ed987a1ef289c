#include "cpu_kernel_runner.h"

namespace dgpu::cpu::test {
namespace {

const double kNan = std::numeric_limits<double>::quiet_NaN();
const double kInfinity = std::numeric_limits<double>::infinity();

// Few distinct values, so that ties are everywhere; infinities, both zeros, and NaN where asked for.
std::function<double(int64_t)> ties(uint32_t seed, bool nan) {
  auto rng = std::make_shared<std::mt19937>(seed);
  return [rng, nan](int64_t) -> double {
    const uint32_t r = (*rng)() % 1000;
    if (r == 0) return nan ? kNan : 2.5;
    if (r == 1) return nan ? -kNan : 2.5;
    if (r < 4) return r == 2 ? kInfinity : -kInfinity;
    return r % 5 == 0 ? -0.0 : static_cast<double>(r % 5) - 2;
  };
}

TEST(CpuArgmax, TiesNanTypesAndInstructionSets) {
  for_each_isa([] {
    for (const dgpuDtype_t type : kFloats)
      for (const bool nan : {false, true})
        for (const int64_t n : {1, 5, 100, 4000, 70000}) {
          Case c("argmax");
          c.port("x", packed(type, {6, n}), ties(static_cast<uint32_t>(n), nan))
              .out("out", n == 5 ? DGPU_DTYPE_I64 : DGPU_DTYPE_I32);
          check(c, "out", 0);
          Case d("argmax");
          d.port("x", packed(type, {6, n}), normal(static_cast<uint32_t>(n))).out("out", DGPU_DTYPE_I32);
          check(d, "out", 0);
          if (HasFatalFailure()) return;
        }
  });
}

TEST(CpuArgmax, VocabularyIsSplitAndStridesWork) {
  Case c("argmax");
  c.port("x", packed(DGPU_DTYPE_BF16, {1, 151936}), normal(1)).out("out", DGPU_DTYPE_I32);
  check(c, "out", 0);
  EXPECT_GT(c.chunk_count(), 4u);
  Case d("argmax");
  d.port("x", strided(DGPU_DTYPE_F32, {3, 4, 70001}, {2, 0, 1}, 1), normal(2));
  d.port("out", strided(DGPU_DTYPE_I32, {3, 4}, {1, 0}, 2));
  check(d, "out", 0);
  Case e("argmax");
  e.port("x", packed(DGPU_DTYPE_F32, {9}), [](int64_t i) { return i < 4 ? -0.0 : 0.0; }).out("out", DGPU_DTYPE_I32);
  check(e, "out", 0);
}

TEST(CpuTopK, TiesNanBothEndsAndInstructionSets) {
  for_each_isa([] {
    for (const dgpuDtype_t type : kFloats)
      for (const bool largest : {true, false})
        for (const bool nan : {false, true})
          for (const auto& [n, k] : std::vector<std::pair<int64_t, int64_t>>{
                   {1, 1}, {9, 9}, {300, 8}, {5000, 40}, {5000, 5000}, {70000, 50}, {3000, 0}}) {
            SCOPED_TRACE(std::to_string(n) + " " + std::to_string(k));
            for (const bool tied : {true, false}) {
              Case c("top_k");
              c.attr("k", k).attr("largest", largest);
              c.port("x", packed(type, {3, n}), tied ? ties(static_cast<uint32_t>(n), nan) : normal(7));
              c.out("values", type).out("indices", DGPU_DTYPE_I32);
              check(c, "indices", 0);
              check(c, "values", 0);
              if (HasFatalFailure()) return;
            }
          }
  });
}

TEST(CpuTopK, LargeKAndStrides) {
  for (const int64_t k : {1, 2000, 3000, 100000}) {
    Case c("top_k");
    c.attr("k", k).port("x", packed(DGPU_DTYPE_F32, {2, 100000}), normal(3));
    c.out("values", DGPU_DTYPE_BF16).out("indices", DGPU_DTYPE_I64);
    check(c, "indices", 0);
    check(c, "values", 0);
  }
  Case c("top_k");
  c.attr("k", int64_t{6}).port("x", strided(DGPU_DTYPE_F16, {4, 5, 60}, {2, 0, 1}, 1), normal(4));
  c.port("values", strided(DGPU_DTYPE_F32, {4, 5, 6}, {1, 2, 0}, 1));
  c.port("indices", strided(DGPU_DTYPE_I32, {4, 5, 6}, {2, 1, 0}, 2));
  check(c, "indices", 0);
  check(c, "values", 0);
}

}  // namespace
}  // namespace dgpu::cpu::test
