// Every model of the first wave against the outputs of an independent implementation, through the public API.
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "fixture.h"

namespace dgpu::test {
namespace {
namespace fs = std::filesystem;
using nlohmann::json;

class Models : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    dir_ = model_dir(GetParam());
    if (dir_.empty()) GTEST_SKIP() << "model " << GetParam() << " is only in ../shared, which is not here";
    baseline_ = dir_ + "/baseline.safetensors";
  }
  json compare(dgpuDtype_t dtype, const std::string& baseline) {
    Loaded l;
    l.open(dir_, dtype);
    dgpuReport_t report = nullptr;
    EXPECT_EQ(dgpuDay0Compare(l.model, l.context, l.device, dtype, baseline.c_str(), &report), 0) << error_text();
    if (!report) return {};
    const char* text = nullptr;
    dgpuReportGetJson(report, &text);
    auto doc = json::parse(text);
    dgpuReportDestroy(report);
    return doc;
  }
  std::string dir_, baseline_;
};

std::string summary(const json& doc) {
  return doc.value("findings", json()).dump() + " first: " + doc.value("first_out_of_tolerance", json()).dump();
}

TEST_P(Models, F32MeetsTheBaselineOnEveryTensor) {
  const auto doc = compare(DGPU_DTYPE_F32, baseline_);
  ASSERT_EQ(doc.value("verdict", ""), "good") << summary(doc);
  std::shared_ptr<model::SafetensorsFile> f;
  ASSERT_EQ(model::SafetensorsFile::open(baseline_, f), 0);
  size_t tensors = 0;
  for (const auto& [name, t] : f->tensors())
    tensors += name != "input_ids" && name != "prompt_ids" && name != "generated_ids";
  EXPECT_EQ(doc["tensors"].size(), tensors);
  for (const auto& row : doc["tensors"]) EXPECT_LT(row["rel_l2"].get<double>(), 1e-5) << row["tensor"];
  EXPECT_EQ(doc["argmax"]["agree"], doc["argmax"]["positions"]);
}

TEST_P(Models, LowPrecisionStaysWithinCountedRoundings) {
  for (const auto dtype : {DGPU_DTYPE_BF16, DGPU_DTYPE_F16}) {
    const auto doc = compare(dtype, baseline_);
    EXPECT_EQ(doc.value("verdict", ""), "good") << dgpuDtypeName(dtype) << " " << summary(doc);
    // The run really was in low precision: f32 would agree far better.
    EXPECT_GT(doc["tensors"].back()["rel_l2"].get<double>(), 1e-5);
  }
}

TEST_P(Models, CompareSeesADamagedBaseline) {
  const auto path = fs::temp_directory_path() / ("damaged." + GetParam() + "." + std::to_string(getpid()));
  fs::copy_file(baseline_, path, fs::copy_options::overwrite_existing);
  fs::permissions(path, fs::perms::owner_write, fs::perm_options::add);
  std::shared_ptr<model::SafetensorsFile> f;
  ASSERT_EQ(model::SafetensorsFile::open(baseline_, f), 0);
  const auto& t = f->tensors().at("layers.1.output");
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(t.offset));
  const float wrong = 100;
  file.write(reinterpret_cast<const char*>(&wrong), 4);
  file.close();
  const auto doc = compare(DGPU_DTYPE_F32, path.string());
  fs::remove(path);
  EXPECT_EQ(doc.value("verdict", ""), "negative");
  EXPECT_EQ(doc.value("first_out_of_tolerance", ""), "layers.1.output");
}

TEST_P(Models, OurF64BaselineMeetsThePublishedOne) {
  OK(dgpuInit(nullptr));
  dgpuModel_t m = nullptr;
  OK(dgpuModelOpen(dir_.c_str(), nullptr, &m));
  const auto tokens = ids(baseline_, "input_ids");
  const auto path = fs::temp_directory_path() / ("ours." + GetParam() + "." + std::to_string(getpid()));
  dgpuReport_t report = nullptr;
  OK(dgpuDay0Baseline(m, tokens.data(), static_cast<uint32_t>(tokens.size()), path.c_str(), nullptr, &report));
  dgpuReportDestroy(report);
  dgpuModelDestroy(m);
  std::shared_ptr<model::SafetensorsFile> ours, published;
  ASSERT_EQ(model::SafetensorsFile::open(path.string(), ours), 0);
  ASSERT_EQ(model::SafetensorsFile::open(baseline_, published), 0);
  for (const auto& [name, t] : published->tensors()) {
    if (name == "prompt_ids" || name == "generated_ids") continue;
    ASSERT_TRUE(ours->tensors().count(name)) << name;
    if (name == "input_ids") continue;
    const auto* a = reinterpret_cast<const float*>(ours->map() + ours->tensors().at(name).offset);
    const auto* b = reinterpret_cast<const float*>(published->map() + t.offset);
    ASSERT_EQ(ours->tensors().at(name).elements(), t.elements());
    double diff = 0, norm = 0;
    for (int64_t i = 0; i < t.elements(); ++i) {
      float x, y;
      std::memcpy(&x, a + i, 4);
      std::memcpy(&y, b + i, 4);
      diff += (double(x) - y) * (double(x) - y);
      norm += double(y) * y;
    }
    EXPECT_LT(std::sqrt(diff / norm), 3e-6) << name;  // the published f32 run is up to 1e-6 off its own f64 run
  }
  fs::remove(path);
  dgpuShutdown();
}

// Generates with one session; returns the tokens of each sequence.
std::vector<std::vector<int32_t>> generate(Loaded& l, const std::vector<std::vector<int32_t>>& prompts, uint32_t count,
                                           uint32_t chunk, uint32_t batch_tokens) {
  dgpuSessionOptions so = DGPU_SESSION_OPTIONS_INIT;
  so.max_sequences = static_cast<uint32_t>(prompts.size());
  so.max_tokens = 96;
  so.max_batch_tokens = batch_tokens;
  dgpuSession_t session = nullptr;
  EXPECT_EQ(dgpuSessionCreate(l.model, &so, &session), 0) << error_text();
  std::vector<dgpuSequence_t> sequences(prompts.size());
  for (auto& s : sequences) EXPECT_EQ(dgpuSequenceCreate(session, &s), 0);
  std::vector<int32_t> flat, out(prompts.size() * count);
  std::vector<uint32_t> offsets{0}, counts(prompts.size());
  for (const auto& p : prompts) {
    flat.insert(flat.end(), p.begin(), p.end());
    offsets.push_back(static_cast<uint32_t>(flat.size()));
  }
  dgpuGenerate g = DGPU_GENERATE_INIT;
  g.sequences = sequences.data();
  g.sequence_count = static_cast<uint32_t>(prompts.size());
  g.prompt_tokens = flat.data();
  g.prompt_offsets = offsets.data();
  g.out_tokens = out.data();
  g.out_counts = counts.data();
  g.max_new_tokens = count;
  g.chunk_tokens = chunk;
  EXPECT_EQ(dgpuSessionGenerate(session, l.stream, &g), 0) << error_text();
  std::vector<std::vector<int32_t>> result;
  for (size_t i = 0; i < prompts.size(); ++i)
    result.emplace_back(out.begin() + static_cast<long>(i * count),
                        out.begin() + static_cast<long>(i * count + counts[i]));
  for (auto s : sequences) EXPECT_EQ(dgpuSequenceDestroy(s), 0);
  EXPECT_EQ(dgpuSessionDestroy(session), 0);
  return result;
}

TEST_P(Models, GreedyTokensAreTheReferencesAloneInChunksAndInABatch) {
  const auto prompt = ids(baseline_, "prompt_ids"), want = ids(baseline_, "generated_ids");
  const auto count = static_cast<uint32_t>(want.size());
  Loaded l;
  l.open(dir_);
  EXPECT_EQ(generate(l, {prompt}, count, 0, 64)[0], want);
  EXPECT_EQ(generate(l, {prompt}, count, 1, 64)[0], want) << "one token at a time";
  EXPECT_EQ(generate(l, {prompt}, count, 5, 64)[0], want) << "chunks of five";
  EXPECT_EQ(generate(l, {prompt}, count, 5, 5)[0], want) << "steps of at most five: windows are short rings";
  // Together with other sequences: the prompt cut to other lengths, and pieces of the baseline's input.
  const auto other = ids(baseline_, "input_ids");
  std::vector<std::vector<int32_t>> prompts = {std::vector<int32_t>(prompt.begin(), prompt.begin() + 3),
                                               prompt,
                                               std::vector<int32_t>(other.begin(), other.begin() + 17),
                                               std::vector<int32_t>(prompt.begin(), prompt.end() - 1),
                                               {other[5]}};
  const auto together = generate(l, prompts, count, 0, 16);
  EXPECT_EQ(together[1], want) << "in a batch";
  for (size_t i = 0; i < prompts.size(); ++i)
    EXPECT_EQ(together[i], generate(l, {prompts[i]}, count, 0, 64)[0]) << "sequence " << i << " alone and in the batch";
}

INSTANTIATE_TEST_SUITE_P(FirstWave, Models, ::testing::ValuesIn(first_wave()), [](const auto& parameter) {
  std::string name = parameter.param;
  for (auto& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
});

}  // namespace
}  // namespace dgpu::test
