// Sequences and steps: fork, truncate, save, restore, capacity, errors. On one small model.
#include <cstring>

#include "fixture.h"

namespace dgpu::test {
namespace {

class Sequences : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = model_dir("qwen3-moe");
    ASSERT_FALSE(dir_.empty());
    l_.open(dir_);
    dgpuSessionOptions o = DGPU_SESSION_OPTIONS_INIT;
    o.max_sequences = 3;
    o.max_tokens = 24;
    o.max_batch_tokens = 32;
    OK(dgpuSessionCreate(l_.model, &o, &session_));
    OK(dgpuSequenceCreate(session_, &a_));
    tokens_ = ids(dir_ + "/baseline.safetensors", "input_ids");
  }
  void TearDown() override {
    if (session_) {
      EXPECT_EQ(dgpuSessionDestroy(session_), 0);
    }
  }
  dgpuStatus_t step(dgpuSequence_t s, size_t from, size_t to) {
    return submit_step(session_, l_.stream, s, {tokens_.data() + from, to - from});
  }
  // Logits of the last token of the last step.
  std::vector<float> logits() { return logits_of_last_step(session_, l_.stream); }
  uint64_t length(dgpuSequence_t s) {
    uint64_t n = 99;
    EXPECT_EQ(dgpuSequenceGetLength(s, &n), 0);
    return n;
  }
  std::string dir_;
  Loaded l_;
  dgpuSession_t session_ = nullptr;
  dgpuSequence_t a_ = nullptr;
  std::vector<int32_t> tokens_;
};

TEST_F(Sequences, ForkContinuesLikeItsOrigin) {
  OK(step(a_, 0, 10));
  dgpuSequence_t b = nullptr;
  OK(dgpuSequenceFork(a_, l_.stream, &b));
  EXPECT_EQ(length(b), 10u);
  OK(step(a_, 10, 14));
  const auto from_a = logits();
  OK(step(b, 10, 14));
  EXPECT_EQ(logits(), from_a);
}

TEST_F(Sequences, TruncateForgets) {
  OK(step(a_, 0, 12));
  OK(dgpuSequenceTruncate(a_, 8));
  EXPECT_EQ(length(a_), 8u);
  OK(step(a_, 20, 23));  // other tokens now
  const auto rewound = logits();
  dgpuSequence_t b = nullptr;
  OK(dgpuSequenceCreate(session_, &b));
  OK(step(b, 0, 8));
  OK(step(b, 20, 23));
  // The first eight keys came from a step of twelve tokens there and of eight here: products of other widths may add in
  // another order, so equal up to f32 roundoff.
  const auto direct = logits();
  for (size_t i = 0; i < direct.size(); ++i) EXPECT_NEAR(direct[i], rewound[i], 1e-4);
  EXPECT_EQ(dgpuSequenceTruncate(a_, 100), DGPU_STATUS_INVALID_ARGUMENT);
}

TEST_F(Sequences, SaveAndRestoreContinue) {
  OK(step(a_, 0, 9));
  size_t needed = 0;
  OK(dgpuSequenceSave(a_, l_.stream, nullptr, 0, &needed));
  std::vector<uint8_t> bytes(needed);
  OK(dgpuSequenceSave(a_, l_.stream, bytes.data(), bytes.size(), &needed));
  OK(step(a_, 9, 11));
  const auto want = logits();
  dgpuSequence_t b = nullptr;
  OK(dgpuSequenceCreate(session_, &b));
  OK(dgpuSequenceRestore(b, l_.stream, bytes.data(), bytes.size()));
  EXPECT_EQ(length(b), 9u);
  OK(step(b, 9, 11));
  EXPECT_EQ(logits(), want);
  // Misuse: too small, not empty, truncated, not a saved sequence.
  EXPECT_EQ(dgpuSequenceSave(a_, l_.stream, bytes.data(), 10, &needed), DGPU_STATUS_BUFFER_TOO_SMALL);
  EXPECT_EQ(dgpuSequenceRestore(b, l_.stream, bytes.data(), bytes.size()), DGPU_STATUS_INVALID_STATE);
  dgpuSequence_t c = nullptr;
  OK(dgpuSequenceCreate(session_, &c));
  for (size_t cut = 0; cut < bytes.size(); cut += bytes.size() / 17 + 1)
    EXPECT_EQ(dgpuSequenceRestore(c, l_.stream, bytes.data(), cut), DGPU_STATUS_PARSE_ERROR) << cut;
  bytes[0] = 'x';
  EXPECT_EQ(dgpuSequenceRestore(c, l_.stream, bytes.data(), bytes.size()), DGPU_STATUS_PARSE_ERROR);
  EXPECT_EQ(length(c), 0u);
}

TEST_F(Sequences, LimitsNameTheMissingAmountAndOthersProceed) {
  dgpuSequence_t b = nullptr, c = nullptr, d = nullptr;
  OK(dgpuSequenceCreate(session_, &b));
  OK(dgpuSequenceCreate(session_, &c));
  EXPECT_EQ(dgpuSequenceCreate(session_, &d), DGPU_STATUS_CAPACITY);
  OK(step(a_, 0, 20));
  EXPECT_EQ(step(a_, 20, 27), DGPU_STATUS_CAPACITY);
  EXPECT_NE(error_text().find("lacks 3"), std::string::npos) << error_text();
  EXPECT_EQ(length(a_), 20u);

  const dgpuSequence_t both[3] = {a_, b, c};
  const uint32_t offsets[4] = {0, 7, 12, 13};
  std::vector<int32_t> batch(tokens_.begin(), tokens_.begin() + 13);
  batch[12] = 1 << 20;  // not in the vocabulary
  dgpuStatus_t statuses[3] = {99, 99, 99};
  dgpuStep st = DGPU_STEP_INIT;
  st.tokens = batch.data();
  st.token_count = 13;
  st.offsets = offsets;
  st.sequences = both;
  st.sequence_count = 3;
  st.statuses = statuses;
  OK(dgpuSessionStep(session_, l_.stream, &st));
  EXPECT_EQ(statuses[0], DGPU_STATUS_CAPACITY);
  EXPECT_EQ(statuses[1], DGPU_STATUS_SUCCESS);
  EXPECT_EQ(statuses[2], DGPU_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(length(a_), 20u);
  EXPECT_EQ(length(b), 5u);
  EXPECT_EQ(length(c), 0u);
  EXPECT_EQ(logits().size() % 160, 0u);
  EXPECT_EQ(logits().size(), 160u) << "rows of left-out sequences are left out";
  const auto in_batch = logits();
  OK(dgpuSequenceDestroy(c));
  OK(dgpuSequenceCreate(session_, &c));
  tokens_.assign(batch.begin() + 7, batch.begin() + 12);
  OK(step(c, 0, 5));
  EXPECT_EQ(logits(), in_batch);
}

TEST_F(Sequences, StepChecksItsArrays) {
  const dgpuSequence_t twice[2] = {a_, a_};
  uint32_t offsets[3] = {0, 2, 4};
  dgpuStep st = DGPU_STEP_INIT;
  st.tokens = tokens_.data();
  st.token_count = 4;
  st.offsets = offsets;
  st.sequences = twice;
  st.sequence_count = 2;
  EXPECT_EQ(dgpuSessionStep(session_, l_.stream, &st), DGPU_STATUS_INVALID_ARGUMENT);
  st.sequence_count = 1;
  EXPECT_EQ(dgpuSessionStep(session_, l_.stream, &st), DGPU_STATUS_INVALID_ARGUMENT)
      << "token_count and offsets disagree";
  offsets[0] = 1;
  offsets[1] = 4;
  EXPECT_EQ(dgpuSessionStep(session_, l_.stream, &st), DGPU_STATUS_INVALID_ARGUMENT) << "offsets[0]";
  offsets[0] = 0;
  const uint32_t rows[2] = {3, 1};
  st.logit_rows = rows;
  st.logit_row_count = 2;
  EXPECT_EQ(dgpuSessionStep(session_, l_.stream, &st), DGPU_STATUS_INVALID_ARGUMENT) << "rows not ascending";
  st.tokens = nullptr;
  EXPECT_EQ(dgpuSessionStep(session_, l_.stream, &st), DGPU_STATUS_INVALID_ARGUMENT);
  dgpuTensorDesc d = DGPU_TENSOR_DESC_INIT;
  dgpuAddr_t at = 1;
  EXPECT_EQ(dgpuSessionGetLogits(session_, &d, &at), DGPU_STATUS_INVALID_STATE);
  EXPECT_EQ(at, 0u);
  EXPECT_EQ(length(a_), 0u);
  st = DGPU_STEP_INIT;
  st.reserved = 1;
  EXPECT_EQ(dgpuSessionStep(session_, l_.stream, &st), DGPU_STATUS_INVALID_ARGUMENT) << "reserved";
  OK(dgpuSequenceDestroy(a_));
  EXPECT_EQ(dgpuSequenceDestroy(a_), DGPU_STATUS_INVALID_HANDLE);
  EXPECT_EQ(step(a_, 0, 1), DGPU_STATUS_INVALID_HANDLE);
  EXPECT_NE(error_text().find("[sequences[0]]"), std::string::npos) << error_text();
}

TEST_F(Sequences, LimitsOfASessionAreNamed) {
  dgpuSessionOptions o = DGPU_SESSION_OPTIONS_INIT;
  dgpuSession_t session = nullptr;
  o.max_tokens = UINT32_MAX;
  EXPECT_EQ(dgpuSessionCreate(l_.model, &o, &session), DGPU_STATUS_INVALID_ARGUMENT);
  EXPECT_NE(error_text().find("[max_tokens]"), std::string::npos) << error_text();
  o.max_tokens = 0;
  o.max_sequences = 65537;
  EXPECT_EQ(dgpuSessionCreate(l_.model, &o, &session), DGPU_STATUS_INVALID_ARGUMENT);
  EXPECT_NE(error_text().find("[max_sequences]"), std::string::npos) << error_text();
}

TEST_F(Sequences, OpenRefusesUnknownFlagsAndAnEmptyName) {
  dgpuModelOptions o = DGPU_MODEL_OPTIONS_INIT;
  dgpuModel_t model = nullptr;
  o.flags = 8;
  EXPECT_EQ(dgpuModelOpen(dir_.c_str(), &o, &model), DGPU_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(dgpuModelOpen("", nullptr, &model), DGPU_STATUS_INVALID_ARGUMENT) << "not the root directory";
}

// Fed in chunks, so that the bad token lies behind some that are good.
TEST_F(Sequences, ARefusedPromptLeavesTheSequenceAsItWas) {
  int32_t out[2];
  uint32_t count = 0;
  std::vector<int32_t> prompt(tokens_.begin(), tokens_.begin() + 6);
  prompt[4] = 1 << 30;
  const uint32_t offsets[2] = {0, 6};
  dgpuGenerate g = DGPU_GENERATE_INIT;
  g.sequences = &a_;
  g.sequence_count = 1;
  g.prompt_tokens = prompt.data();
  g.prompt_offsets = offsets;
  g.out_tokens = out;
  g.out_counts = &count;
  g.max_new_tokens = 2;
  g.chunk_tokens = 2;
  EXPECT_EQ(dgpuSessionGenerate(session_, l_.stream, &g), DGPU_STATUS_INVALID_ARGUMENT);
  EXPECT_NE(error_text().find("token 4 of prompt 0"), std::string::npos) << error_text();
  EXPECT_EQ(length(a_), 0u);
}

TEST_F(Sequences, AHugeTopKTakesAllTokens) {
  int32_t out[2];
  uint32_t count = 0;
  const uint32_t offsets[2] = {0, 4};
  dgpuSampling sampling = DGPU_SAMPLING_INIT;
  sampling.temperature = 1;
  sampling.top_k = UINT32_MAX;
  const dgpuSampling* each = &sampling;
  dgpuGenerate g = DGPU_GENERATE_INIT;
  g.sequences = &a_;
  g.sequence_count = 1;
  g.prompt_tokens = tokens_.data();
  g.prompt_offsets = offsets;
  g.sampling = &each;
  g.out_tokens = out;
  g.out_counts = &count;
  g.max_new_tokens = 2;
  OK(dgpuSessionGenerate(session_, l_.stream, &g));
  EXPECT_EQ(count, 2u);
}

TEST_F(Sequences, SamplingDependsOnSeedAndPositionAlone) {
  const auto run = [&](uint64_t seed, uint32_t others) {
    std::vector<dgpuSequence_t> s;
    for (uint32_t i = 0; i <= others; ++i) {
      dgpuSequence_t q = nullptr;
      EXPECT_EQ(dgpuSequenceCreate(session_, &q), 0) << error_text();
      s.push_back(q);
    }
    std::vector<int32_t> prompts;
    std::vector<uint32_t> offsets{0}, counts(s.size());
    for (size_t i = 0; i < s.size(); ++i) {
      prompts.insert(prompts.end(), tokens_.begin() + static_cast<long>(i * 3),
                     tokens_.begin() + static_cast<long>(i * 3 + 4));
      offsets.push_back(static_cast<uint32_t>(prompts.size()));
    }
    dgpuSampling sampling = DGPU_SAMPLING_INIT;
    sampling.temperature = 1.5;
    sampling.top_k = 50;
    sampling.top_p = 0.95;
    sampling.seed = seed;
    std::vector<const dgpuSampling*> each(s.size(), &sampling);
    std::vector<int32_t> out(s.size() * 8);
    dgpuGenerate g = DGPU_GENERATE_INIT;
    g.sequences = s.data();
    g.sequence_count = static_cast<uint32_t>(s.size());
    g.prompt_tokens = prompts.data();
    g.prompt_offsets = offsets.data();
    g.sampling = each.data();
    g.out_tokens = out.data();
    g.out_counts = counts.data();
    g.max_new_tokens = 8;
    EXPECT_EQ(dgpuSessionGenerate(session_, l_.stream, &g), 0) << error_text();
    for (auto q : s) dgpuSequenceDestroy(q);
    return std::vector<int32_t>(out.begin(), out.begin() + 8);
  };
  const auto one = run(7, 0);
  EXPECT_EQ(run(7, 0), one);
  EXPECT_EQ(run(7, 1), one) << "in a batch";
  EXPECT_NE(run(8, 0), one);
}

}  // namespace
}  // namespace dgpu::test
