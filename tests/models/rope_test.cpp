// Every rope type end to end: the f64 execution of the same program is the truth, and prompts in chunks must give what
// one step gives, also where the frequencies depend on the length of the sequence.
#include <fstream>
#include <nlohmann/json.hpp>

#include "fixture.h"

namespace dgpu::test {
namespace {
namespace fs = std::filesystem;
using nlohmann::json;

class Rope : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    dir_ = fs::temp_directory_path() /
           fmt::format("rope_test.{}.{}", getpid(), std::string(info->name()).substr(0, 3) + GetParam());
    fs::remove_all(dir_);
    fs::create_directories(dir_);
    const fs::path from = model_dir("llama3-scaled-tied");
    fs::create_symlink(from / "model.safetensors", dir_ / "model.safetensors");
    std::ifstream in(from / "config.json");
    auto config = json::parse(in);
    config["rope_parameters"] = parameters(config);
    std::ofstream(dir_ / "config.json") << config;
    tokens_ = ids((from / "baseline.safetensors").string(), "input_ids");
  }
  void TearDown() override { fs::remove_all(dir_); }

  static json parameters(json& config) {
    const std::string type = GetParam();
    json p = {{"rope_type", type}, {"rope_theta", 10000.0}};
    if (type == "linear") p["factor"] = 4.0;
    if (type == "dynamic") {
      p["factor"] = 2.0;
      config["max_position_embeddings"] = 16;  // shorter than the prompts, so that the frequencies move with the length
    }
    if (type == "yarn") {
      p["factor"] = 4.0;
      p["original_max_position_embeddings"] = 32;
    }
    if (type == "llama3") {
      p["factor"] = 8.0;
      p["low_freq_factor"] = 1.0;
      p["high_freq_factor"] = 4.0;
      p["original_max_position_embeddings"] = 64;
    }
    return p;
  }

  // Logits of the last token after the prompt came in steps of `chunk` tokens.
  std::vector<float> logits(Loaded& l, size_t chunk) {
    dgpuSessionOptions o = DGPU_SESSION_OPTIONS_INIT;
    o.max_sequences = 2;
    o.max_tokens = 64;
    o.max_batch_tokens = 64;
    dgpuSession_t session = nullptr;
    EXPECT_EQ(dgpuSessionCreate(l.model, &o, &session), 0) << error_text();
    dgpuSequence_t s = nullptr;
    EXPECT_EQ(dgpuSequenceCreate(session, &s), 0);
    const size_t count = o.max_tokens - 1;
    for (size_t at = 0; at < count; at += chunk) {
      const uint32_t offsets[2] = {0, static_cast<uint32_t>(std::min(chunk, count - at))};
      dgpuStep st = DGPU_STEP_INIT;
      st.tokens = tokens_.data() + at;
      st.token_count = offsets[1];
      st.offsets = offsets;
      st.sequences = &s;
      st.sequence_count = 1;
      EXPECT_EQ(dgpuSessionStep(session, l.stream, &st), 0) << error_text();
    }
    dgpuTensorDesc d = DGPU_TENSOR_DESC_INIT;
    dgpuAddr_t at = 0;
    EXPECT_EQ(dgpuSessionGetLogits(session, &d, &at), 0) << error_text();
    std::vector<float> out(static_cast<size_t>(d.shape[0] * d.shape[1]));
    EXPECT_EQ(dgpuMemCopyToHostAsync(l.stream, out.data(), at, out.size() * 4), 0);
    EXPECT_EQ(dgpuStreamSynchronize(l.stream, DGPU_TIMEOUT_INFINITE), 0) << error_text();
    dgpuSequenceDestroy(s);
    dgpuSessionDestroy(session);
    return out;
  }

  fs::path dir_;
  std::vector<int32_t> tokens_;
};

TEST_P(Rope, MeetsTheF64Execution) {
  Loaded l;
  l.open(dir_.string());
  const auto file = (dir_ / "baseline").string();
  const uint32_t count = 60;
  dgpuReport_t report = nullptr;
  OK(dgpuDay0Baseline(l.model, tokens_.data(), count, file.c_str(), nullptr, &report));
  dgpuReportDestroy(report);
  OK(dgpuDay0Compare(l.model, l.context, l.device, DGPU_DTYPE_F32, file.c_str(), &report));
  uint32_t good = 0;
  const char* text = nullptr;
  OK(dgpuReportGetVerdict(report, &good));
  OK(dgpuReportGetJson(report, &text));
  EXPECT_EQ(good, 1u) << text;
  dgpuReportDestroy(report);
}

TEST_P(Rope, ChunksAgreeWithOneStep) {
  Loaded l;
  l.open(dir_.string());
  const auto whole = logits(l, 64);
  double norm = 0;
  for (const float v : whole) norm += double(v) * v;
  for (const size_t chunk : {size_t{1}, size_t{7}}) {
    const auto parts = logits(l, chunk);
    ASSERT_EQ(parts.size(), whole.size());
    double diff = 0;
    for (size_t i = 0; i < whole.size(); ++i) diff += (double(parts[i]) - whole[i]) * (double(parts[i]) - whole[i]);
    EXPECT_LT(std::sqrt(diff / norm), 1e-5) << "chunks of " << chunk;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Rope, ::testing::Values("default", "linear", "dynamic", "llama3", "yarn"),
                         [](const auto& parameter) { return std::string(parameter.param); });

}  // namespace
}  // namespace dgpu::test
