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
    const auto prompt = std::span(tokens_).first(o.max_tokens - 1);
    for (size_t at = 0; at < prompt.size(); at += chunk) {
      const auto part = prompt.subspan(at, std::min(chunk, prompt.size() - at));
      EXPECT_EQ(submit_step(session, l.stream, s, part), 0) << error_text();
    }
    auto out = logits_of_last_step(session, l.stream);
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
  expect_f32_meets_f64(l, std::span(tokens_).first(60), (dir_ / "baseline").string());
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
