// Sliding windows keep a ring of window + largest step entries: the results are those of a cache that keeps everything,
// and fork, truncate, save and restore know what the ring still holds.
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "fixture.h"

namespace dgpu::test {
namespace {
namespace fs = std::filesystem;
using nlohmann::json;
using Logits = std::vector<float>;

constexpr uint32_t kWindow = 9, kStep = 5, kRing = kWindow + kStep, kTokens = 96;

// A session of its own limits, with sequences that end with it.
class Steps {
 public:
  Steps(const Loaded& l, uint32_t step_tokens, uint32_t max_tokens = kTokens) : l_(l) {
    dgpuSessionOptions o = DGPU_SESSION_OPTIONS_INIT;
    o.max_sequences = 4;
    o.max_tokens = max_tokens;
    o.max_batch_tokens = step_tokens;
    EXPECT_EQ(dgpuSessionCreate(l.model, &o, &session), 0) << error_text();
  }
  ~Steps() {
    for (auto s : sequences_) dgpuSequenceDestroy(s);
    dgpuSessionDestroy(session);
  }
  dgpuSequence_t sequence() {
    dgpuSequence_t s = nullptr;
    EXPECT_EQ(dgpuSequenceCreate(session, &s), 0) << error_text();
    sequences_.push_back(s);
    return s;
  }
  dgpuSequence_t fork(dgpuSequence_t from) {
    dgpuSequence_t s = nullptr;
    EXPECT_EQ(dgpuSequenceFork(from, l_.stream, &s), 0) << error_text();
    sequences_.push_back(s);
    return s;
  }
  // Logits of the last token of each part of one step.
  Logits step(const std::vector<std::pair<dgpuSequence_t, std::vector<int32_t>>>& parts) {
    std::vector<dgpuSequence_t> who;
    std::vector<uint32_t> offsets{0};
    std::vector<int32_t> tokens;
    for (const auto& [s, t] : parts) {
      who.push_back(s);
      tokens.insert(tokens.end(), t.begin(), t.end());
      offsets.push_back(static_cast<uint32_t>(tokens.size()));
    }
    dgpuStep st = DGPU_STEP_INIT;
    st.tokens = tokens.data();
    st.token_count = offsets.back();
    st.offsets = offsets.data();
    st.sequences = who.data();
    st.sequence_count = static_cast<uint32_t>(who.size());
    EXPECT_EQ(dgpuSessionStep(session, l_.stream, &st), 0) << error_text();
    return logits_of_last_step(session, l_.stream);
  }
  // Steps of at most `chunk` tokens; logits of all of them, one after the other.
  Logits feed(dgpuSequence_t s, const std::vector<int32_t>& tokens, size_t chunk) {
    Logits all;
    for (size_t at = 0; at < tokens.size(); at += chunk) {
      const auto end = std::min(tokens.size(), at + chunk);
      const auto some = step({{s, {tokens.begin() + static_cast<long>(at), tokens.begin() + static_cast<long>(end)}}});
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }
  std::vector<uint8_t> save(dgpuSequence_t s) {
    size_t needed = 0;
    EXPECT_EQ(dgpuSequenceSave(s, l_.stream, nullptr, 0, &needed), 0) << error_text();
    std::vector<uint8_t> bytes(needed);
    EXPECT_EQ(dgpuSequenceSave(s, l_.stream, bytes.data(), bytes.size(), &needed), 0) << error_text();
    return bytes;
  }
  dgpuStatus_t restore(dgpuSequence_t s, const std::vector<uint8_t>& bytes) {
    return dgpuSequenceRestore(s, l_.stream, bytes.data(), bytes.size());
  }
  json describe(dgpuSequence_t s) {
    char text[4096];
    size_t needed = 0;
    EXPECT_EQ(dgpuSequenceDescribe(s, text, sizeof text, &needed), 0) << error_text();
    return json::parse(text);
  }
  dgpuSession_t session = nullptr;

 private:
  const Loaded& l_;
  std::vector<dgpuSequence_t> sequences_;
};

// Relative L2 of the last logits of a run that gave those of more tokens.
double distance(const Logits& run, const Logits& want) {
  double diff = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double d = run[run.size() - want.size() + i] - want[i];
    diff += d * d;
    norm += double(want[i]) * want[i];
  }
  return std::sqrt(diff / norm);
}

uint64_t used_bytes(const Loaded& l) {
  dgpuMemStats stats = DGPU_MEM_STATS_INIT;
  EXPECT_EQ(dgpuMemGetStats(l.context, l.device, &stats), 0) << error_text();
  return stats.used_bytes;
}

class Rings : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto dir = model_dir("mistral-window");  // window 9 in all layers
    ASSERT_FALSE(dir.empty());
    l_.open(dir);
    tokens_ = ids(dir + "/baseline.safetensors", "input_ids");
    ASSERT_EQ(tokens_.size(), 48u);
    tokens_.insert(tokens_.end(), tokens_.rbegin(), tokens_.rend());
  }
  std::vector<int32_t> cut(size_t from, size_t to) const {
    return {tokens_.begin() + static_cast<long>(from), tokens_.begin() + static_cast<long>(to)};
  }
  Loaded l_;
  std::vector<int32_t> tokens_;
};

TEST_F(Rings, GiveTheBitsOfACacheThatKeepsAll) {
  for (const size_t chunk : {size_t{1}, size_t{3}, size_t{kStep}}) {
    Steps whole(l_, kTokens), ring(l_, kStep);
    EXPECT_EQ(ring.feed(ring.sequence(), cut(0, 60), chunk), whole.feed(whole.sequence(), cut(0, 60), chunk)) << chunk;
  }
}

TEST_F(Rings, ChunksAgreeWithOneStep) {
  Steps whole(l_, kTokens);
  const auto want = whole.step({{whole.sequence(), cut(0, 60)}});
  for (const size_t chunk : {size_t{1}, size_t{4}, size_t{kStep}}) {
    Steps ring(l_, kStep);
    EXPECT_LT(distance(ring.feed(ring.sequence(), cut(0, 60), chunk), want), 1e-5) << "chunks of " << chunk;
  }
}

TEST_F(Rings, MixedBatchesOfSequencesInDifferentPhases) {
  Steps whole(l_, kTokens), ring(l_, kStep);
  const auto drive = [&](Steps& run) {
    dgpuSequence_t s[3] = {run.sequence(), run.sequence(), run.sequence()};
    size_t at[3] = {0, 0, 0};
    Logits all = run.feed(s[2], cut(0, at[2] = 31), kStep);
    for (int round = 0; round < 20; ++round) {
      std::vector<std::pair<dgpuSequence_t, std::vector<int32_t>>> parts;
      for (size_t i = 0; i < 3; ++i) {
        const size_t n = (static_cast<size_t>(round) + i) % 3;  // 0, 1 and 2 tokens in turn
        parts.push_back({s[i], cut(at[i], at[i] + n)});
        at[i] += n;
      }
      const auto some = run.step(parts);
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  };
  EXPECT_EQ(drive(ring), drive(whole));
}

TEST_F(Rings, ForgetOnlyWhatTheyHold) {
  Steps run(l_, kStep);
  const auto a = run.sequence();
  run.feed(a, cut(0, 12), kStep);
  EXPECT_EQ(dgpuSequenceTruncate(a, 2), 0) << "nothing is overwritten yet: " << error_text();
  run.feed(a, cut(2, 40), kStep);
  // The ring holds tokens 26 to 39; token n sees 9 with itself, so that n >= 34 can be computed.
  EXPECT_EQ(dgpuSequenceTruncate(a, 33), DGPU_STATUS_UNSUPPORTED);
  EXPECT_NE(error_text().find("of 40 tokens at most 6 can be forgotten, or all; 7 are asked for"), std::string::npos)
      << error_text();
  uint64_t length = 0;
  OK(dgpuSequenceGetLength(a, &length));
  EXPECT_EQ(length, 40u);
  Steps other(l_, kTokens);
  const auto b = other.sequence();
  other.feed(b, cut(0, 40), kStep);
  OK(dgpuSequenceTruncate(a, 34));
  OK(dgpuSequenceTruncate(b, 34));
  EXPECT_EQ(run.feed(a, cut(50, 52), 2), other.feed(b, cut(50, 52), 2));
  // What was overwritten before stays so: token 34 is the least still.
  EXPECT_EQ(dgpuSequenceTruncate(a, 33), DGPU_STATUS_UNSUPPORTED);
  EXPECT_NE(error_text().find("of 36 tokens at most 2"), std::string::npos) << error_text();
  EXPECT_EQ(run.feed(a, cut(20, 45), kStep), other.feed(b, cut(20, 45), kStep));
  OK(dgpuSequenceTruncate(a, 0));
  Steps fresh(l_, kStep);
  EXPECT_EQ(run.feed(a, cut(0, 20), kStep), fresh.feed(fresh.sequence(), cut(0, 20), kStep));
}

TEST_F(Rings, ForksHoldWhatTheirOriginHolds) {
  Steps run(l_, kStep);
  const auto a = run.sequence();
  run.feed(a, cut(0, 38), kStep);
  const auto b = run.fork(a), c = run.fork(a);
  const auto want = run.feed(a, cut(38, 60), kStep);
  EXPECT_EQ(run.feed(b, cut(38, 60), kStep), want);
  EXPECT_EQ(dgpuSequenceTruncate(c, 31), DGPU_STATUS_UNSUPPORTED);
  OK(dgpuSequenceTruncate(c, 32));
  EXPECT_EQ(dgpuSequenceTruncate(a, 53), DGPU_STATUS_UNSUPPORTED);
  Steps fresh(l_, kTokens);
  const auto d = fresh.sequence();
  fresh.feed(d, cut(0, 38), kStep);
  OK(dgpuSequenceTruncate(d, 32));
  EXPECT_EQ(run.feed(c, cut(0, 20), kStep), fresh.feed(d, cut(0, 20), kStep));
}

// Between sessions with rings of other sizes, and with none; the bytes tell nothing of where entries lay.
TEST_F(Rings, AreSavedInOrderAndRestoredInAnyPhase) {
  for (const uint32_t from : {kStep, kStep + 3, kTokens})
    for (const uint32_t to : {kStep, kStep + 3, kTokens}) {
      Steps run(l_, from), target(l_, to);
      const auto a = run.sequence(), b = target.sequence();
      run.feed(a, cut(0, 33), kStep);
      const auto bytes = run.save(a);
      ASSERT_EQ(target.restore(b, bytes), 0) << error_text();
      EXPECT_EQ(dgpuSequenceTruncate(b, std::min(from, to) == kTokens ? 1 : 33 - std::min(from, to) - 1), 0)
          << "what both rings hold: " << from << " to " << to << " " << error_text();
      const auto c = target.sequence();
      ASSERT_EQ(target.restore(c, bytes), 0) << error_text();
      if (to >= from) {
        EXPECT_EQ(target.save(c), bytes) << from << " to " << to;
      }
      EXPECT_EQ(target.feed(c, cut(33, 60), kStep), run.feed(a, cut(33, 60), kStep)) << from << " to " << to;
    }
}

TEST_F(Rings, RefuseWhatIsNoSavedRing) {
  Steps run(l_, kStep);
  const auto a = run.sequence(), b = run.sequence();
  run.feed(a, cut(0, 33), kStep);
  const auto bytes = run.save(a);
  // Bytes of the ring alone: 14 entries of keys and values in each layer.
  const auto state = run.describe(a)["states"][0];
  EXPECT_GE(bytes.size(), state["allocated_bytes"].get<size_t>());
  EXPECT_LT(bytes.size(), state["allocated_bytes"].get<size_t>() + 256);
  for (size_t n = 1; n < bytes.size(); n += bytes.size() / 13 + 1)
    EXPECT_EQ(run.restore(b, {bytes.begin(), bytes.begin() + static_cast<long>(n)}), DGPU_STATUS_PARSE_ERROR) << n;
  // The first entry that is there follows the header of 40 bytes.
  uint64_t oldest = 0;
  std::memcpy(&oldest, bytes.data() + 40, 8);
  EXPECT_EQ(oldest, 33u - kRing);
  for (const uint64_t wrong : {uint64_t{0}, uint64_t{18}, uint64_t{26}, uint64_t{33}, uint64_t{34}, UINT64_MAX}) {
    auto bad = bytes;
    std::memcpy(bad.data() + 40, &wrong, 8);
    EXPECT_EQ(run.restore(b, bad), DGPU_STATUS_PARSE_ERROR) << wrong;
  }
  EXPECT_EQ(run.restore(b, bytes), 0) << error_text();
}

TEST_F(Rings, DoNotGrowWithTheLongestSequence) {
  const auto session_bytes = [](Loaded& l, uint32_t max_tokens) {
    const uint64_t before = used_bytes(l);
    Steps run(l, kStep, max_tokens);
    return used_bytes(l) - before;
  };
  EXPECT_EQ(session_bytes(l_, 1 << 20), session_bytes(l_, 1 << 10));
  EXPECT_LT(session_bytes(l_, kRing / 2), session_bytes(l_, 1 << 10)) << "shorter sequences need no more than theirs";
  Loaded full;
  full.open(model_dir("qwen3-moe"));
  EXPECT_GT(session_bytes(full, 1 << 11), session_bytes(full, 1 << 10) + (1 << 10) * 4) << "no window, no ring";
}

TEST_F(Rings, DescribeWhatIsAllocated) {
  Steps run(l_, kStep, 1 << 20), small(l_, kTokens);
  const auto states = run.describe(run.sequence())["states"];
  ASSERT_EQ(states.size(), 1u) << states;
  EXPECT_EQ(states[0]["kind"], "kv");
  EXPECT_EQ(states[0]["cap_tokens"], kRing);
  EXPECT_EQ(states[0]["allocated_bytes"].get<uint64_t>(), states[0]["bytes_per_token"].get<uint64_t>() * kRing);
  const auto whole = small.describe(small.sequence())["states"];
  EXPECT_EQ(whole[0]["cap_tokens"], kTokens);
  EXPECT_EQ(whole[0]["allocated_bytes"].get<uint64_t>(), whole[0]["bytes_per_token"].get<uint64_t>() * kTokens);
}

// ---- Configurations without a published baseline ------------------------------------------------------------------

class RingConfigs : public ::testing::Test {
 protected:
  void TearDown() override {
    if (!dir_.empty()) fs::remove_all(dir_);
  }
  // A model of the repository with another config.
  void make(const std::string& name, const json& changes) {
    const fs::path from = model_dir(name);
    if (from.empty()) GTEST_SKIP() << "model " << name << " is only in ../shared, which is not here";
    dir_ = fs::temp_directory_path() / ("ring_test." + name + "." + std::to_string(getpid()));
    fs::remove_all(dir_);
    fs::create_directories(dir_);
    fs::create_symlink(fs::absolute(from / "model.safetensors"), dir_ / "model.safetensors");
    std::ifstream in(from / "config.json");
    auto config = json::parse(in);
    config.update(changes);
    std::ofstream(dir_ / "config.json") << config;
    tokens_ = ids((from / "baseline.safetensors").string(), "input_ids");
    tokens_.resize(std::min<size_t>(tokens_.size(), 60));
    l_.open(dir_.string());
  }
  void meets_f64() { expect_f32_meets_f64(l_, tokens_, (dir_ / "baseline").string()); }
  fs::path dir_;
  Loaded l_;
  std::vector<int32_t> tokens_;
};

TEST_F(RingConfigs, WindowedAndFullLayers) {
  make("qwen2-bias", {{"use_sliding_window", true},
                      {"sliding_window", kWindow},
                      {"layer_types", {"full_attention", "sliding_attention", "full_attention"}}});
  if (dir_.empty()) return;
  meets_f64();
  for (const size_t chunk : {size_t{1}, size_t{kStep}}) {
    Steps whole(l_, kTokens), ring(l_, kStep);
    EXPECT_EQ(ring.feed(ring.sequence(), tokens_, chunk), whole.feed(whole.sequence(), tokens_, chunk)) << chunk;
  }
  Steps run(l_, kStep);
  const auto a = run.sequence();
  const auto states = run.describe(a)["states"];
  ASSERT_EQ(states.size(), 2u) << states;
  for (const auto& s : states) {
    const bool ring = !s["cap_tokens"].is_null();
    EXPECT_EQ(s["count"], ring ? 2 : 4);
    EXPECT_EQ(s["allocated_bytes"].get<uint64_t>(), s["bytes_per_token"].get<uint64_t>() * (ring ? kRing : kTokens));
  }
  run.feed(a, tokens_, kStep);
  const auto b = run.sequence();
  OK(run.restore(b, run.save(a)));
  EXPECT_EQ(run.step({{b, {1, 2}}}), run.step({{a, {1, 2}}}));
}

// Keys are rotated when they are used, by positions that the ring gives, and earlier tokens are replayed when the
// length changes, in steps as large as the session takes: hence equal up to roundoff.
TEST_F(RingConfigs, KeysRotatedLate) {
  make("mistral-window", {{"max_position_embeddings", 32},
                          {"rope_parameters", {{"rope_type", "dynamic"}, {"rope_theta", 10000.0}, {"factor", 2.0}}}});
  if (dir_.empty()) return;
  meets_f64();
  Steps whole(l_, kTokens);
  const auto want = whole.step({{whole.sequence(), tokens_}});
  for (const size_t chunk : {size_t{1}, size_t{kStep}}) {
    Steps ring(l_, kStep);
    EXPECT_LT(distance(ring.feed(ring.sequence(), tokens_, chunk), want), 1e-5) << chunk;
  }
}

}  // namespace
}  // namespace dgpu::test
