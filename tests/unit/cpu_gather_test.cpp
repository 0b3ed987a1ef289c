#include "cpu_kernel_runner.h"

namespace dgpu::cpu::test {
namespace {

TEST(CpuEmbedding, TypesShapesAndStrides) {
  for_each_isa([] {
    for (const dgpuDtype_t table : kFloats)
      for (const dgpuDtype_t out : kFloats)
        for (const dgpuDtype_t ids : {DGPU_DTYPE_I32, DGPU_DTYPE_I64}) {
          Case c("embedding");
          c.port("table", packed(table, {50, 33}), normal(1));
          c.port("ids", packed(ids, {3, 7}), [](int64_t i) { return i * 17 % 50; }).out("out", out);
          check(c, "out", 0);
          if (HasFatalFailure()) return;
        }
  });
  Case c("embedding");
  c.port("table", strided(DGPU_DTYPE_F32, {9, 4, 6}, {2, 0, 1}, 1), normal(2));
  c.port("ids", strided(DGPU_DTYPE_I32, {5, 2}, {1, 0}, 3), [](int64_t i) { return i % 9; });
  c.port("out", strided(DGPU_DTYPE_BF16, {5, 2, 4, 6}, {3, 1, 0, 2}, 1));
  check(c, "out", 0);
  Case big("embedding");
  big.port("table", packed(DGPU_DTYPE_BF16, {20, 5000}), normal(3));
  big.port("ids", packed(DGPU_DTYPE_I32, {40}), [](int64_t i) { return i % 20; }).out("out", DGPU_DTYPE_BF16);
  check(big, "out", 0);
  EXPECT_GT(big.chunk_count(), 1u);
}

TEST(CpuEmbedding, GathersIntegersScalarsAndNothing) {
  Case c("embedding");
  c.port("table", packed(DGPU_DTYPE_I64, {6}), [](int64_t i) { return i * 1000; });
  c.port("ids", packed(DGPU_DTYPE_I32, {4}), [](int64_t i) { return 5 - i; }).out("out", DGPU_DTYPE_I64);
  check(c, "out", 0);
  for (const auto& shape : std::vector<std::vector<int64_t>>{{0}, {3, 0}, {}}) {
    Case d("embedding");
    d.port("table", packed(DGPU_DTYPE_F32, {6, 3}), normal(4));
    d.port("ids", packed(DGPU_DTYPE_I32, shape), [](int64_t) { return 2; }).out("out", DGPU_DTYPE_F32);
    check(d, "out", 0);
  }
}

TEST(CpuEmbedding, IdOutOfRangeFailsAndNamesIt) {
  for (const int64_t bad : {-1, 50}) {
    Case c("embedding");
    c.port("table", packed(DGPU_DTYPE_F32, {50, 3}), normal(5));
    c.port("ids", packed(DGPU_DTYPE_I32, {4}), [&](int64_t i) { return i == 2 ? bad : i; }).out("out", DGPU_DTYPE_F32);
    EXPECT_EQ(c.run(), DGPU_STATUS_DATA_OUT_OF_RANGE);
    EXPECT_NE(kit::failure().find("embedding: ids holds " + std::to_string(bad) + ": expected 0 to 49"),
              std::string::npos)
        << kit::failure();
  }
}

TEST(CpuCacheAppend, TypesAndSkippedSlots) {
  for (const dgpuDtype_t x : kFloats)
    for (const dgpuDtype_t cache : kFloats) {
      Case c("cache_append");
      c.port("x", packed(x, {7, 2, 24}), normal(6));
      c.port("slots", packed(DGPU_DTYPE_I32, {7}), [](int64_t i) { return i == 3 ? -1 : i * 5 % 31; });
      c.port("cache", packed(cache, {4, 8, 2, 24}), normal(7));
      const auto want = c.reference("cache");
      ASSERT_EQ(c.run(), 0);
      EXPECT_EQ(c.chunk_count(), 1u);
      expect_close(c, "cache", want, 0, 0);
    }
  Case c("cache_append");
  c.port("x", strided(DGPU_DTYPE_BF16, {300, 4, 40}, {1, 0, 2}, 1), normal(8));
  c.port("slots", packed(DGPU_DTYPE_I64, {300}), [](int64_t i) { return 299 - i; });
  c.port("cache", strided(DGPU_DTYPE_BF16, {10, 32, 4, 40}, {0, 2, 1, 3}, 2), normal(9));
  const auto want = c.reference("cache");
  ASSERT_EQ(c.run(5), 0);
  EXPECT_GT(c.chunk_count(), 2u);
  expect_close(c, "cache", want, 0, 0);
}

TEST(CpuCacheAppend, NothingIsWrittenWhenOneSlotIsOutOfRange) {
  for (const int64_t tokens : {3, 900})
    for (const int64_t bad : {-2, 1000}) {
      Case c("cache_append");
      c.port("x", packed(DGPU_DTYPE_F32, {tokens, 64}), normal(10));
      c.port("slots", packed(DGPU_DTYPE_I32, {tokens}), [&](int64_t i) { return i + 1 == tokens ? bad : i; });
      c.port("cache", packed(DGPU_DTYPE_F32, {10, 100, 64}), normal(11));
      const auto before = c.bytes("cache");
      EXPECT_EQ(c.run(), DGPU_STATUS_DATA_OUT_OF_RANGE);
      EXPECT_EQ(c.bytes("cache"), before);
      const std::string text = "cache_append: slots[" + std::to_string(tokens - 1) + "] = " + std::to_string(bad);
      EXPECT_NE(kit::failure().find(text + ": expected -1 to 999"), std::string::npos) << kit::failure();
    }
}

TEST(CpuCast, EveryPairOfTypes) {
  const dgpuDtype_t types[] = {
#define DGPU_TEST_TYPE(name, value, bits, text) value,
      DGPU_DTYPE_LIST(DGPU_TEST_TYPE)
#undef DGPU_TEST_TYPE
  };
  for_each_isa([&] {
    for (const dgpuDtype_t from : types)
      for (const dgpuDtype_t to : types) {
        SCOPED_TRACE(std::to_string(from) + " to " + std::to_string(to));
        Case c("cast");
        c.port("x", packed(from, {3, 211}), [&](int64_t i) {
          const double inf = std::numeric_limits<double>::infinity();
          const double hard[] = {0,   -0.0, 0.5,  1.5,   -2.5, 300, -300, 70000,
                                 3e9, -3e9, 1e20, -1e20, 1e-7, inf, -inf, 0 * inf};
          const double v =
              i < 16 ? hard[i] : std::sin(static_cast<double>(i)) * std::exp(0.05 * static_cast<double>(i % 200));
          return dtype_is_float(from) ? v : std::isfinite(v) && std::fabs(v) < 9e18 ? v : 3;
        });
        c.out("out", to);
        const auto want = c.reference("out");
        ASSERT_EQ(c.run(), 0);
        const auto got = c.result("out");
        for (size_t i = 0; i < got.size(); ++i) {
          if (to == DGPU_DTYPE_F8E8M0 && std::isinf(want[i])) continue;  // has no infinity and no rule for it
          const double rounded = dtype_is_float(to) ? ops::round_to(to, want[i]) : want[i];
          // Integers wider than the target wrap.
          if (!dtype_is_float(to) && !dtype_is_float(from)) {
            uint64_t cell = 0;
            ops::store_int(to, &cell, 0, static_cast<int64_t>(want[i]));
            ASSERT_EQ(got[i], static_cast<double>(ops::load_int(to, &cell, 0))) << i;
          } else if (std::isnan(rounded)) {
            ASSERT_TRUE(std::isnan(got[i])) << i;
          } else {
            ASSERT_EQ(got[i], rounded) << "element " << i << " = " << want[i];
          }
        }
        if (HasFatalFailure()) return;
      }
  });
}

TEST(CpuCast, AllSixteenBitPatternsSurvive) {
  for_each_isa([] {
    for (const dgpuDtype_t type : {DGPU_DTYPE_BF16, DGPU_DTYPE_F16}) {
      Case c("cast");
      c.port("x", packed(static_cast<dgpuDtype_t>(type), {65536}));
      for (int i = 0; i < 65536; ++i) static_cast<uint16_t*>(c.data("x"))[i] = static_cast<uint16_t>(i);
      c.out("out", DGPU_DTYPE_F32);
      ASSERT_EQ(c.run(), 0);
      Case back("cast");
      back.port("x", packed(DGPU_DTYPE_F32, {65536}));
      std::memcpy(back.data("x"), c.data("out"), 65536 * 4);
      back.out("out", type);
      ASSERT_EQ(back.run(), 0);
      for (int i = 0; i < 65536; ++i) {
        const uint16_t got = static_cast<uint16_t*>(back.data("out"))[i];
        const bool nan = std::isnan(static_cast<float*>(c.data("out"))[i]);
        if (nan)
          ASSERT_TRUE(std::isnan(ops::load_float(type, &got, 0))) << i;
        else
          ASSERT_EQ(got, i);
      }
    }
  });
}

TEST(CpuCast, Transposes) {
  for (const dgpuDtype_t type : {DGPU_DTYPE_F32, DGPU_DTYPE_BF16, DGPU_DTYPE_U8, DGPU_DTYPE_I64}) {
    Case c("cast");
    c.port("x", strided(type, {70, 300}, {1, 0}, 0), [](int64_t i) { return static_cast<double>(i % 200); });
    c.out("out", type);
    check(c, "out", 0);
    Case d("cast");
    d.port("x", strided(type, {70, 300}, {1, 0}, 5), [](int64_t i) { return static_cast<double>(i % 100); });
    d.out("out", DGPU_DTYPE_F16);
    check(d, "out", 0);
  }
}

TEST(CpuCast, NibblesOfOddRowsShareBytes) {
  Case c("cast");
  c.port("x", packed(DGPU_DTYPE_I32, {301, 301}), [](int64_t i) { return static_cast<double>(i % 16 - 8); });
  c.out("out", DGPU_DTYPE_I4);
  check(c, "out", 0);
}

}  // namespace
}  // namespace dgpu::cpu::test
