#include "cpu_kernel_runner.h"

namespace dgpu::cpu::test {
namespace {

struct Row {
  double temperature;
  int64_t top_k;
  double top_p;
};

Case sample(int64_t vocabulary, dgpuDtype_t type, const std::vector<Row>& rows,
            const std::function<double(int64_t)>& logits) {
  const auto n = static_cast<int64_t>(rows.size());
  Case c("sample");
  c.port("logits", packed(type, {n, vocabulary}), logits);
  c.port("temperature", packed(DGPU_DTYPE_F32, {n}), [&](int64_t i) { return rows[i].temperature; });
  c.port("top_k", packed(DGPU_DTYPE_I32, {n}), [&](int64_t i) { return rows[i].top_k; });
  c.port("top_p", packed(DGPU_DTYPE_F32, {n}), [&](int64_t i) { return rows[i].top_p; });
  c.port("seeds", packed(DGPU_DTYPE_I64, {n}), [](int64_t i) { return 12345678901.0 * static_cast<double>(i + 1); });
  c.port("positions", packed(DGPU_DTYPE_I64, {n}), [](int64_t i) { return i * 3; });
  c.out("out", DGPU_DTYPE_I32);
  return c;
}

std::vector<Row> all_rows(int64_t vocabulary) {
  std::vector<Row> rows;
  for (const double t : {0.0, 0.1, 1.0, 3.0})
    for (const int64_t k : {int64_t{0}, int64_t{1}, int64_t{50}, int64_t{1500}, vocabulary})
      for (const double p : {0.0, 0.3, 0.95, 1.0}) rows.push_back({t, k, p});
  return rows;
}

// The reference sorts the vocabulary and sums in f64; ours must take the same token every time.
TEST(CpuSample, EqualsTheReference) {
  for_each_isa([] {
    for (const dgpuDtype_t type : kFloats)
      for (const int64_t vocabulary : {1, 7, 300, 5000}) {
        SCOPED_TRACE(vocabulary);
        Case c = sample(vocabulary, type, all_rows(vocabulary), normal(1, 3));
        check(c, "out", 0);
        if (HasFatalFailure()) return;
      }
  });
}

TEST(CpuSample, LargeVocabularyIsSplit) {
  Case c = sample(151936, DGPU_DTYPE_BF16,
                  {{0, 0, 0}, {1, 0, 1}, {1, 0, 0.9}, {0.7, 40, 0.9}, {2, 5000, 0.99}, {1, 0, 0}}, normal(2, 2));
  check(c, "out", 0);
  EXPECT_GT(c.chunk_count(), 30u);
}

TEST(CpuSample, TiesInfinitiesAndOneBucket) {
  std::vector<Row> rows = all_rows(4000);
  Case flat = sample(4000, DGPU_DTYPE_F32, rows, [](int64_t) { return 1.0; });
  check(flat, "out", 0);
  Case steps = sample(4000, DGPU_DTYPE_F32, rows, [](int64_t i) {
    return i % 7 == 0 ? -std::numeric_limits<double>::infinity() : static_cast<double>(i % 3) * 0.01;
  });
  check(steps, "out", 0);
}

// Frequencies of 20000 draws from a known distribution: chi-squared below its 0.999 quantile.
TEST(CpuSample, DrawsFollowTheDistribution) {
  const double p[] = {0.4, 0.3, 0.15, 0.1, 0.05};
  const int64_t n = 20000;
  Case c("sample");
  c.port("logits", packed(DGPU_DTYPE_F32, {n, 5}), [&](int64_t i) { return std::log(p[i % 5]); });
  c.port("temperature", packed(DGPU_DTYPE_F32, {n}), [](int64_t) { return 1; });
  c.port("top_k", packed(DGPU_DTYPE_I32, {n}), [](int64_t) { return 0; });
  c.port("top_p", packed(DGPU_DTYPE_F32, {n}), [](int64_t) { return 0; });
  c.port("seeds", packed(DGPU_DTYPE_I64, {n}), [](int64_t) { return 42; });
  c.port("positions", packed(DGPU_DTYPE_I64, {n}), [](int64_t i) { return i; });
  c.out("out", DGPU_DTYPE_I32);
  ASSERT_EQ(c.run(), 0);
  int count[5] = {};
  for (const double token : c.result("out")) ++count[static_cast<int>(token)];
  double chi = 0;
  for (int i = 0; i < 5; ++i) chi += (count[i] - n * p[i]) * (count[i] - n * p[i]) / (n * p[i]);
  EXPECT_LT(chi, 18.47);
}

TEST(CpuSample, ParametersOutOfRangeFail) {
  for (const Row& bad :
       {Row{-1, 0, 0}, Row{1, -3, 0}, Row{1, 0, 1.5}, Row{std::numeric_limits<double>::quiet_NaN(), 0, 0}}) {
    Case c = sample(10, DGPU_DTYPE_F32, {{1, 0, 0}, bad}, normal(3));
    EXPECT_EQ(c.run(), DGPU_STATUS_DATA_OUT_OF_RANGE);
    EXPECT_NE(kit::failure().find("[1]"), std::string::npos) << kit::failure();
  }
}

}  // namespace
}  // namespace dgpu::cpu::test
