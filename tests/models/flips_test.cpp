// Low precision sends tokens to other experts where scores are nearly tied: such flips are counted and judged by their
// margin, and neither hide nor spoil what is compared after them.
#include <fstream>
#include <nlohmann/json.hpp>

#include "fixture.h"
#include "model/day0/flips.h"

namespace dgpu::test {
namespace {
namespace fs = std::filesystem;
using nlohmann::json;

// Random checkpoints with the shapes of qwen3-moe: among so many tokens some scores are tied as far as bf16 can tell.
class RandomExperts : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::temp_directory_path() / fmt::format("flips_test.{}", getpid());
    OK(dgpuInit(nullptr));
    for (int32_t t = 0; t < 160; ++t) tokens_.push_back((t * t + 3 * t) % 160);
  }
  void TearDown() override {
    fs::remove_all(dir_);
    dgpuShutdown();
  }

  void synthesize(uint64_t seed) {
    fs::remove_all(dir_);
    dgpuModelOptions o = DGPU_MODEL_OPTIONS_INIT;
    o.flags = DGPU_MODEL_CONFIG_ONLY;
    dgpuModel_t model = nullptr;
    dgpuReport_t report = nullptr;
    dgpuSynthOptions synth = DGPU_SYNTH_OPTIONS_INIT;
    synth.seed = seed;
    OK(dgpuModelOpen(model_dir("qwen3-moe").c_str(), &o, &model));
    OK(dgpuDay0Synth(model, dir_.c_str(), &synth, &report));
    dgpuReportDestroy(report);
    dgpuModelDestroy(model);
  }

  json compare(dgpuDtype_t dtype) {
    Loaded l;
    l.open(dir_.string(), dtype);
    const auto file = (dir_ / "baseline").string();
    dgpuReport_t report = nullptr;
    const char* text = nullptr;
    const auto count = static_cast<uint32_t>(tokens_.size());
    EXPECT_EQ(dgpuDay0Baseline(l.model, tokens_.data(), count, file.c_str(), nullptr, &report), 0) << error_text();
    dgpuReportDestroy(report);
    EXPECT_EQ(dgpuDay0Compare(l.model, l.context, l.device, dtype, file.c_str(), &report), 0) << error_text();
    EXPECT_EQ(dgpuReportGetJson(report, &text), 0);
    auto doc = json::parse(text ? text : "{}");
    dgpuReportDestroy(report);
    return doc;
  }

  fs::path dir_;
  std::vector<int32_t> tokens_;
};

TEST_F(RandomExperts, FlipsAreCountedAndExcusedAndEveryTokenIsCompared) {
  int total = 0;
  for (const uint64_t seed : {1, 3, 6, 14}) {
    SCOPED_TRACE(seed);
    ASSERT_NO_FATAL_FAILURE(synthesize(seed));
    EXPECT_EQ(compare(DGPU_DTYPE_F32).value("verdict", ""), "good");
    const auto doc = compare(DGPU_DTYPE_BF16);
    EXPECT_EQ(doc.value("verdict", ""), "good") << doc["findings"].dump();
    const size_t counted = doc["flips"]["counted"];
    EXPECT_EQ(doc["flips"]["excused"], counted);
    EXPECT_EQ(doc.value("flipped_tokens", json::array()).size(), counted);
    total += static_cast<int>(counted);
    // Tokens after a flip attend to it: they would be off by far more than this if it had been taken.
    for (const auto& row : doc["tensors"])
      EXPECT_LE(row["worst_token_rel_l2"].get<double>(), row["bound"].get<double>()) << row["tensor"];
  }
  EXPECT_GT(total, 3) << "hardly any scores are tied: other seeds have to be found";
}

// One router, one token, two of four experts.
model::Capture chose(std::vector<float> experts, std::vector<float> logits) {
  model::Capture c;
  graph::Value v;
  v.name = "logits";
  v.origin = graph::Origin::Input;
  c.program.values = {v};
  graph::Node n;
  n.op = "moe_route", n.name = "r";
  n.attrs["scoring"] = std::string("softmax");
  n.inputs = {{"logits", 0}};
  c.program.nodes = {n};
  c.routing["r:indices"] = {{1, 2}, std::move(experts), 0};
  c.routing["r:logits"] = {{1, 4}, std::move(logits), 0};
  return c;
}

TEST(Flips, AreExcusedOnlyBelowTheErrorOfTheScore) {
  constexpr double kOne = 1.66e-3;  // bf16
  const auto flips = [&](const model::Capture& low, const model::Capture& f32) {
    return model::find_flips(low, f32, kOne);
  };
  EXPECT_TRUE(flips(chose({1, 0}, {}), chose({0, 1}, {4, 3, 2, 1})).empty()) << "the order does not matter";
  const auto wide = flips(chose({0, 2}, {}), chose({0, 1}, {4, 3, 2, 1}));
  ASSERT_EQ(wide.size(), 1u);
  EXPECT_FALSE(wide[0].excused);
  EXPECT_DOUBLE_EQ(wide[0].margin, 1);
  // 2 * 4 * 1.66e-3 times the root mean square 2.74 of the logits.
  EXPECT_NEAR(wide[0].error, 0.0364, 1e-3);
  const auto narrow = flips(chose({0, 2}, {}), chose({0, 1}, {4, 3, 2.99f, 1}));
  ASSERT_EQ(narrow.size(), 1u);
  EXPECT_TRUE(narrow[0].excused);
  // Expert 3 instead of 1 is no matter of the last place.
  EXPECT_FALSE(flips(chose({0, 3}, {}), chose({0, 1}, {4, 3, 2.99f, 1}))[0].excused);
}

}  // namespace
}  // namespace dgpu::test
