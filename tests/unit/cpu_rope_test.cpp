#include "cpu_kernel_runner.h"

namespace dgpu::cpu::test {
namespace {

struct Shape {
  int64_t tokens, heads, width, half;
};

Case rope(const Shape& s, dgpuDtype_t type, dgpuDtype_t out, const char* pairing, const char* at, const char* angle) {
  Case c("rope");
  c.attr("pairing", std::string(pairing)).attr("at", std::string(at)).attr("angle", std::string(angle));
  c.port("x", packed(type, {s.tokens, s.heads, s.width}), normal(1));
  c.port("positions", packed(DGPU_DTYPE_I32, {s.tokens}), [](int64_t i) { return i * 7919 % 1000003; });
  c.port("freqs", packed(DGPU_DTYPE_F32, {s.half}),
         [&](int64_t i) { return std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(s.half)); });
  c.out("out", out);
  return c;
}

// cos and sin are right to half an f32 unit, at any angle; the two products cancel up to |a| + |b|, about 5.
constexpr double kFloor = 5 * 4 * 0x1p-24;

TEST(CpuRope, PairingsEndsTypesAndInstructionSets) {
  for_each_isa([] {
    for (const char* pairing : {"half", "interleave"})
      for (const char* at : {"head", "tail"})
        for (const char* angle : {"f32", "f64"})
          for (const dgpuDtype_t type : kFloats)
            for (const Shape& s : {Shape{40, 3, 64, 32}, {3, 1, 50, 7}, {1, 16, 128, 64}, {2, 2, 6, 1}}) {
              SCOPED_TRACE(std::string(pairing) + " " + at + " " + angle);
              Case c = rope(s, type, type, pairing, at, angle);
              check(c, "out", 2, kFloor);
              if (HasFatalFailure()) return;
            }
  });
}

TEST(CpuRope, PositionsOfAMillionAndBeyond) {
  for_each_isa([] {
    for (const char* angle : {"f32", "f64"}) {
      Case c("rope");
      c.attr("pairing", std::string("half")).attr("at", std::string("head")).attr("angle", std::string(angle));
      c.port("x", packed(DGPU_DTYPE_F32, {50, 1, 16}), [](int64_t) { return 1.0; });
      c.port("positions", packed(DGPU_DTYPE_I64, {50}), [](int64_t i) {
        return i < 40 ? 1000000.0 - 7 * static_cast<double>(i) : std::ldexp(1.0, static_cast<int>(i));
      });
      c.port("freqs", packed(DGPU_DTYPE_F32, {8}), [](int64_t i) { return std::pow(0.1, static_cast<double>(i)); });
      c.out("out", DGPU_DTYPE_F32);
      check(c, "out", 2, kFloor);
    }
  });
}

TEST(CpuRope, InverseUndoes) {
  for (const char* pairing : {"half", "interleave"}) {
    const Shape s{30, 2, 32, 16};
    Case c = rope(s, DGPU_DTYPE_F32, DGPU_DTYPE_F32, pairing, "head", "f32");
    ASSERT_EQ(c.run(), 0);
    const auto x = c.result("x"), y = c.result("out");
    Case d = rope(s, DGPU_DTYPE_F32, DGPU_DTYPE_F32, pairing, "head", "f32");
    d.attr("inverse", true).port("x", packed(DGPU_DTYPE_F32, {30, 2, 32}), [&](int64_t i) {
      return y[static_cast<size_t>(i)];
    });
    ASSERT_EQ(d.run(), 0);
    const auto z = d.result("out");
    for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(z[i], x[i], 4e-6);
  }
}

TEST(CpuRope, RowsScaleAndStrides) {
  for_each_isa([] {
    for (const char* pairing : {"half", "interleave"})
      for (const char* at : {"head", "tail"}) {
        Case c("rope");
        c.attr("pairing", std::string(pairing)).attr("at", std::string(at)).attr("angle", std::string("f32"));
        c.port("x", strided(DGPU_DTYPE_BF16, {4, 5, 3, 20}, {3, 1, 0, 2}, 1), normal(2));
        c.port("positions", strided(DGPU_DTYPE_I64, {4, 5}, {1, 0}, 2), [](int64_t i) { return i * 3; });
        c.port("rows", packed(DGPU_DTYPE_I32, {4, 5}), [](int64_t i) { return i % 3; });
        c.port("freqs", strided(DGPU_DTYPE_F32, {3, 8}, {1, 0}, 1),
               [f = normal(3)](int64_t i) { return std::fabs(f(i)); });
        c.port("scale", packed(DGPU_DTYPE_F32, {1}), [](int64_t) { return 1.25; });
        c.port("out", strided(DGPU_DTYPE_F32, {4, 5, 3, 20}, {0, 2, 1, 3}, 4));
        check(c, "out", 3, 2 * kFloor);
        if (HasFatalFailure()) return;
      }
  });
}

TEST(CpuRope, InPlaceAndManyChunks) {
  for (const char* pairing : {"half", "interleave"})
    for (const dgpuDtype_t type : kFloats) {
      Case c = rope({200, 8, 64, 20}, type, type, pairing, "head", "f32");
      c.share("out", "x");
      const auto want = c.reference("out");
      ASSERT_EQ(c.run(3), 0);
      EXPECT_GT(c.chunk_count(), 1u);
      expect_close(c, "x", want, 2, kFloor);
    }
}

TEST(CpuRope, RowOutOfRangeFails) {
  Case c("rope");
  c.attr("pairing", std::string("half")).attr("at", std::string("head")).attr("angle", std::string("f32"));
  c.port("x", packed(DGPU_DTYPE_F32, {2, 1, 4}), normal(4));
  c.port("positions", packed(DGPU_DTYPE_I32, {2}), [](int64_t) { return 0; });
  c.port("rows", packed(DGPU_DTYPE_I32, {2}), [](int64_t i) { return i * 3; });
  c.port("freqs", packed(DGPU_DTYPE_F32, {3, 2}), normal(5)).out("out", DGPU_DTYPE_F32);
  EXPECT_EQ(c.run(), DGPU_STATUS_DATA_OUT_OF_RANGE);
  EXPECT_NE(kit::failure().find("rope: rows holds 3: expected 0 to 2"), std::string::npos) << kit::failure();
}

Case freqs(const std::string& type, int64_t dim, double theta) {
  Case c("rope_freqs");
  c.attr("type", type).attr("dim", dim).attr("theta", theta);
  return c;
}

void exact(Case& c) {
  c.out("freqs", DGPU_DTYPE_F32).out("scale", DGPU_DTYPE_F32);
  const auto want = c.reference("freqs"), scale = c.reference("scale");
  ASSERT_EQ(c.run(), 0);
  EXPECT_EQ(c.result("freqs"), want);
  EXPECT_EQ(c.result("scale"), scale);
}

// The reference follows the published f32 operations one by one, so that equality is exact.
TEST(CpuRopeFreqs, AllTypes) {
  Case a = freqs("default", 128, 1e6);
  exact(a);
  Case b = freqs("linear", 64, 1e4);
  exact(b.attr("factor", 8.0));
  Case l = freqs("llama3", 128, 5e5);
  exact(l.attr("factor", 8.0)
            .attr("low_freq_factor", 1.0)
            .attr("high_freq_factor", 4.0)
            .attr("original_max_position", int64_t{8192}));
  for (const bool truncate : {true, false}) {
    Case y = freqs("yarn", 64, 1.5e5);
    exact(y.attr("factor", 32.0).attr("original_max_position", int64_t{4096}).attr("truncate", truncate));
  }
  Case m = freqs("yarn", 64, 1e4);
  exact(m.attr("factor", 40.0)
            .attr("original_max_position", int64_t{4096})
            .attr("mscale", 1.0)
            .attr("mscale_all_dim", 0.7));
  Case d = freqs("dynamic", 64, 1e4);
  d.attr("factor", 4.0).attr("max_position", int64_t{2048});
  d.port("lengths", packed(DGPU_DTYPE_I32, {40}), [](int64_t i) { return i * 500; });
  exact(d);
  EXPECT_GT(d.chunk_count(), 1u);
  // Published: 1 / 10000^(2/64) for the second frequency.
  Case p = freqs("default", 64, 1e4);
  exact(p);
  EXPECT_NEAR(p.result("freqs")[1], std::pow(10000.0, -2.0 / 64), 1e-7);
}

}  // namespace
}  // namespace dgpu::cpu::test
