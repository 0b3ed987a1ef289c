// Models on devices that fail: load, session and step against injected faults, all through the public API. Whatever
// fails, the error is told, nothing stays allocated, and what is tried again gives the same logits as a run without
// faults.
#include <fstream>

#include "fixture.h"

namespace dgpu::test {
namespace {

constexpr uint64_t kLongTime = 120'000'000'000;  // ns; ends a broken test

struct Outcome {
  dgpuStatus_t status = DGPU_STATUS_SUCCESS;
  std::string text;
  bool ok() const { return status == DGPU_STATUS_SUCCESS; }
};
Outcome told(dgpuStatus_t status) { return {status, status < 0 ? error_text() : ""}; }

// A library with two virtual devices and these faults, a context over both, and a model on device 0.
class Rig {
 public:
  explicit Rig(const std::string& faults, const char* name = "qwen3-moe") : dir_(model_dir(name)) {
    file_ = (std::filesystem::temp_directory_path() / ("dgpu-model-fault-" + std::to_string(getpid()))).string();
    std::ofstream(file_) << "{\"version\": 1, \"faults\": [" << faults << "]}";
    EXPECT_EQ(dgpuConfigSet("DGPU_CPU_TOPOLOGY", file_.c_str()), 0);
    EXPECT_EQ(dgpuConfigSet("DGPU_CPU_DEVICES", "2"), 0);
    EXPECT_EQ(dgpuInit(nullptr), 0) << error_text();
    for (uint32_t i = 0; i < 2; ++i) EXPECT_EQ(dgpuDeviceGet(i, &devices[i]), 0) << error_text();
    EXPECT_EQ(dgpuContextCreate(devices, 2, nullptr, &context), 0) << error_text();
    tokens_ = ids(dir_ + "/baseline.safetensors", "input_ids");
    EXPECT_GE(tokens_.size(), 16u);
  }
  ~Rig() {
    drop_model();
    if (context) {
      EXPECT_EQ(dgpuContextDestroy(context), 0);
    }
    EXPECT_EQ(dgpuShutdown(), 0);
    EXPECT_EQ(dgpuConfigSet("DGPU_CPU_TOPOLOGY", nullptr), 0);
    EXPECT_EQ(dgpuConfigSet("DGPU_CPU_DEVICES", nullptr), 0);
    std::filesystem::remove(file_);
  }

  Outcome open() { return told(dgpuModelOpen(dir_.c_str(), nullptr, &model)); }
  Outcome load(uint32_t device = 0) { return told(dgpuModelLoad(model, context, devices[device], nullptr)); }
  Outcome make_session() {
    dgpuSessionOptions o = DGPU_SESSION_OPTIONS_INIT;
    o.max_sequences = big ? 64 : 2;
    o.max_tokens = big ? 2048 : 24;
    o.max_batch_tokens = big ? 2048 : 16;
    return told(dgpuSessionCreate(model, &o, &session));
  }
  Outcome make_stream(uint32_t device = 0) {
    return told(dgpuStreamCreate(context, devices[device], nullptr, &stream));
  }
  // Destroyed with the session.
  Outcome make_sequence(dgpuSequence_t& out) {
    const Outcome o = told(dgpuSequenceCreate(session, &out));
    if (o.ok()) sequences_.push_back(out);
    return o;
  }
  Outcome step(dgpuSequence_t sequence, size_t from, size_t to) { return step(sequence, from, to, stream); }
  Outcome step(dgpuSequence_t sequence, size_t from, size_t to, dgpuStream_t on) {
    return told(submit_step(session, on, sequence, {tokens_.data() + from, to - from}));
  }
  // Of the last step; empty with `out` set where that failed.
  std::vector<float> logits(Outcome& out, dgpuStream_t on = nullptr) {
    dgpuTensorDesc d = DGPU_TENSOR_DESC_INIT;
    dgpuAddr_t at = 0;
    if (!(out = told(dgpuSessionGetLogits(session, &d, &at))).ok()) return {};
    std::vector<float> values(static_cast<size_t>(d.shape[0] * d.shape[1]));
    if (!(out = told(dgpuMemCopyToHostAsync(on ? on : stream, values.data(), at, values.size() * 4))).ok()) return {};
    if (!(out = told(dgpuStreamSynchronize(on ? on : stream, kLongTime))).ok()) return {};
    return values;
  }
  std::vector<float> good_logits(dgpuStream_t on = nullptr) {
    Outcome out;
    auto values = logits(out, on);
    EXPECT_TRUE(out.ok()) << out.text;
    return values;
  }

  void drop_session() {
    for (dgpuSequence_t s : sequences_) EXPECT_EQ(dgpuSequenceDestroy(s), 0);
    sequences_.clear();
    if (stream) {
      EXPECT_EQ(dgpuStreamDestroy(stream), 0);
    }
    if (session) {
      EXPECT_EQ(dgpuSessionDestroy(session), 0);
    }
    stream = nullptr;
    session = nullptr;
  }
  void drop_model() {
    drop_session();
    if (model) {
      EXPECT_EQ(dgpuModelDestroy(model), 0);
    }
    model = nullptr;
  }
  // Everything of the model is destroyed: nothing of it may be left in the context's pools. Objects go when the last
  // command that holds them has, which is in time.
  void expect_no_memory(const std::string& after) {
    for (dgpuDevice_t device : {devices[0], devices[1], static_cast<dgpuDevice_t>(nullptr)}) {
      dgpuMemStats stats = DGPU_MEM_STATS_INIT;
      for (int ms = 0; ms < 60000; ++ms) {
        ASSERT_EQ(dgpuMemGetStats(context, device, &stats), 0) << error_text();
        if (stats.allocations == 0) break;
        usleep(1000);
      }
      EXPECT_EQ(stats.allocations, 0u) << after;
      EXPECT_EQ(stats.used_bytes, 0u) << after;
    }
  }
  const std::vector<int32_t>& tokens() const { return tokens_; }

  bool big = false;  // sessions whose blocks have segments of their own
  dgpuDevice_t devices[2] = {};
  dgpuContext_t context = nullptr;
  dgpuModel_t model = nullptr;
  dgpuSession_t session = nullptr;
  dgpuStream_t stream = nullptr;

 private:
  const std::string dir_;
  std::string file_;
  std::vector<int32_t> tokens_;
  std::vector<dgpuSequence_t> sequences_;
};

// From nothing to the logits of a prompt and one more token; the first failure ends it.
Outcome run_all(Rig& rig, std::vector<float>& out) {
  Outcome o;
  dgpuSequence_t sequence = nullptr;
  if (!rig.model && !(o = rig.open()).ok()) return o;
  dgpuModelInfo info = DGPU_MODEL_INFO_INIT;
  if (!(o = told(dgpuModelGetInfo(rig.model, &info))).ok()) return o;
  if (!info.loaded && !(o = rig.load()).ok()) return o;
  if (!(o = rig.make_stream()).ok()) return o;
  if (!(o = rig.make_session()).ok()) return o;
  if (!(o = rig.make_sequence(sequence)).ok()) return o;
  if (!(o = rig.step(sequence, 0, 8)).ok()) return o;
  if (!(o = rig.step(sequence, 8, 9)).ok()) return o;
  out = rig.logits(o);
  return o;
}

const std::vector<float>& expected() {
  static const std::vector<float> values = [] {
    Rig rig("");
    std::vector<float> out;
    const Outcome o = run_all(rig, out);
    EXPECT_TRUE(o.ok()) << o.text;
    return out;
  }();
  return values;
}

// Every occurrence of the fault in turn, until one run meets none. After each: no memory, and a second try with the
// same model succeeds.
void every_occurrence(const std::string& fault, dgpuStatus_t status, uint32_t count, unsigned least, bool big = false) {
  ASSERT_FALSE(expected().empty());
  unsigned failures = 0;
  for (unsigned at = 1;; ++at) {
    ASSERT_LT(at, 2000u) << "the fault never ends";
    Rig rig("{\"fail\": \"" + fault + "\", \"device\": 0, \"at\": " + std::to_string(at) +
            ", \"count\": " + std::to_string(count) + "}");
    if (::testing::Test::HasFailure()) return;
    rig.big = big;
    std::vector<float> got;
    const Outcome o = run_all(rig, got);
    if (o.ok()) {
      EXPECT_EQ(got, expected()) << fault << " " << at;
      if (failures >= least) break;
      ASSERT_LT(at, 100u) << "it met only " << failures;
      continue;
    }
    ++failures;
    // A step that is submitted after the failure meets a failed stream, whose text has the failure.
    // Once the failure is known before the next step, that one names the sequence.
    EXPECT_TRUE(o.status == status || o.status == DGPU_STATUS_STREAM_FAILED || o.status == DGPU_STATUS_INVALID_STATE)
        << fault << " " << at << ": " << o.text;
    if (status != DGPU_STATUS_OUT_OF_MEMORY) {
      EXPECT_NE(o.text.find("injected by faults[0]"), std::string::npos) << fault << " " << at << ": " << o.text;
    }
    rig.drop_session();
    dgpuModelInfo info = DGPU_MODEL_INFO_INIT;
    ASSERT_EQ(dgpuModelGetInfo(rig.model, &info), 0);
    if (!info.loaded) rig.expect_no_memory(fault + " " + std::to_string(at));
    const Outcome again = run_all(rig, got);
    EXPECT_TRUE(again.ok()) << fault << " " << at << ": " << again.text;
    EXPECT_EQ(got, expected()) << fault << " " << at;
    rig.drop_model();
    rig.expect_no_memory(fault + " " + std::to_string(at) + " and a second try");
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GE(failures, least);
}

// A pool tries nine times before it gives up, see tests/c_abi/fault_test.c.
TEST(ModelFaults, MemoryRunsOutAtEveryPlace) { every_occurrence("allocation", DGPU_STATUS_OUT_OF_MEMORY, 9, 3, true); }
TEST(ModelFaults, EveryPlanFailsOnce) { every_occurrence("plan", DGPU_STATUS_OUT_OF_HOST_MEMORY, 1, 20); }
TEST(ModelFaults, EveryStreamFailsOnce) { every_occurrence("stream", DGPU_STATUS_OUT_OF_HOST_MEMORY, 1, 1); }
TEST(ModelFaults, EveryCommandFailsOnce) { every_occurrence("command", DGPU_STATUS_COMMAND_FAILED, 1, 60); }

// Memory that is not pinned for the device is copied all the same.
TEST(ModelFaults, PinningThatFailsChangesNothing) {
  ASSERT_FALSE(expected().empty());
  Rig rig("{\"fail\": \"pin\", \"device\": 0, \"count\": 0}");
  std::vector<float> got;
  const Outcome o = run_all(rig, got);
  EXPECT_TRUE(o.ok()) << o.text;
  EXPECT_EQ(got, expected());
}

// Operators that the device refuses are composed or run as the reference: other roundings, the same meaning.
TEST(ModelFaults, PlansThatTheDeviceRefusesRunOtherwise) {
  ASSERT_FALSE(expected().empty());
  Rig rig("{\"fail\": \"plan\", \"device\": 0, \"count\": 0, \"status\": \"UNSUPPORTED\"}");
  std::vector<float> got;
  const Outcome o = run_all(rig, got);
  ASSERT_TRUE(o.ok()) << o.text;
  ASSERT_EQ(got.size(), expected().size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected()[i], 1e-3);
}

// A failed step: its sequences are refused until they are cut back to what they held, others go on. The same stream
// after a reset or another one may be used.
TEST(ModelFaults, ASequenceIsRepairedByTruncatingIt) {
  ASSERT_FALSE(expected().empty());
  for (const bool other_stream : {false, true}) {
    // Commands of the first step, counted on a run without faults.
    double first = 0, all = 0;
    {
      Rig rig("");
      dgpuSequence_t s = nullptr;
      dgpuMetric m = DGPU_METRIC_INIT;
      ASSERT_TRUE(rig.open().ok() && rig.load().ok() && rig.make_stream().ok() && rig.make_session().ok());
      ASSERT_TRUE(rig.make_sequence(s).ok());
      ASSERT_TRUE(rig.step(s, 0, 8).ok());
      OK(dgpuStreamSynchronize(rig.stream, kLongTime));
      OK(dgpuDeviceGetMetric(rig.devices[0], DGPU_METRIC_COMMANDS, &m));
      first = m.value;
      ASSERT_TRUE(rig.step(s, 8, 9).ok());
      OK(dgpuStreamSynchronize(rig.stream, kLongTime));
      OK(dgpuDeviceGetMetric(rig.devices[0], DGPU_METRIC_COMMANDS, &m));
      all = m.value;
    }
    // The second step fails at its first, middle and last command.
    for (const double at : {first + 1, (first + all) / 2, all}) {
      Rig rig("{\"fail\": \"command\", \"device\": 0, \"at\": " + std::to_string(static_cast<int>(at)) + "}");
      dgpuSequence_t hit = nullptr, bystander = nullptr, forked = nullptr;
      ASSERT_TRUE(rig.open().ok() && rig.load().ok() && rig.make_stream().ok() && rig.make_session().ok());
      ASSERT_TRUE(rig.make_sequence(hit).ok());
      ASSERT_TRUE(rig.step(hit, 0, 8).ok());
      // Nothing of the second step runs before all of it is submitted.
      dgpuTimeline_t gate = nullptr;
      OK(dgpuTimelineCreate(rig.context, 0, &gate));
      OK(dgpuStreamWaitTimeline(rig.stream, gate, 1));
      const Outcome submitted = rig.step(hit, 8, 9);
      OK(dgpuTimelineSignal(gate, 1));
      OK(dgpuTimelineDestroy(gate));
      ASSERT_TRUE(submitted.ok()) << submitted.text;
      EXPECT_EQ(dgpuStreamSynchronize(rig.stream, kLongTime), DGPU_STATUS_COMMAND_FAILED);
      dgpuTensorDesc desc = DGPU_TENSOR_DESC_INIT;
      dgpuAddr_t address = 0;
      EXPECT_EQ(dgpuSessionGetLogits(rig.session, &desc, &address), DGPU_STATUS_COMMAND_FAILED) << "of a failed step";
      EXPECT_EQ(rig.step(hit, 9, 10).status, DGPU_STATUS_INVALID_STATE);
      if (other_stream) {
        OK(dgpuStreamDestroy(rig.stream));
        ASSERT_TRUE(rig.make_stream().ok());
      } else {
        OK(dgpuStreamReset(rig.stream, kLongTime));
      }
      const Outcome refused = rig.step(hit, 9, 10);
      EXPECT_EQ(refused.status, DGPU_STATUS_INVALID_STATE);
      EXPECT_NE(refused.text.find("truncate it to at most 8 tokens"), std::string::npos) << refused.text;
      EXPECT_EQ(dgpuSequenceFork(hit, rig.stream, &forked), DGPU_STATUS_INVALID_STATE);
      size_t needed = 0;
      EXPECT_EQ(dgpuSequenceSave(hit, rig.stream, nullptr, 0, &needed), DGPU_STATUS_INVALID_STATE);
      // Another sequence does not care.
      ASSERT_TRUE(rig.make_sequence(bystander).ok());
      ASSERT_TRUE(rig.step(bystander, 0, 8).ok());
      const Outcome second = rig.step(bystander, 8, 9);
      ASSERT_TRUE(second.ok()) << second.text;
      EXPECT_EQ(rig.good_logits(), expected());
      // Back to what it held: not more, then the step again.
      OK(dgpuSequenceTruncate(hit, 9));
      EXPECT_EQ(rig.step(hit, 9, 10).status, DGPU_STATUS_INVALID_STATE);
      OK(dgpuSequenceTruncate(hit, 8));
      const Outcome repaired = rig.step(hit, 8, 9);
      ASSERT_TRUE(repaired.ok()) << repaired.text;
      EXPECT_EQ(rig.good_logits(), expected());
    }
  }
}

// Generation ends with the failure, and works again on fresh sequences.
TEST(ModelFaults, GenerateTellsTheFailureAndWorksAgain) {
  Rig rig("{\"fail\": \"command\", \"device\": 0, \"at\": 400}", "adder");
  ASSERT_TRUE(rig.open().ok() && rig.load().ok() && rig.make_stream().ok() && rig.make_session().ok());
  const int32_t prompt[] = {13, 2, 3, 4, 11, 5, 6, 7, 12};  // "\n123+456="
  const uint32_t offsets[2] = {0, 9};
  int32_t tokens[8];
  uint32_t count = 0, failures = 0;
  for (int round = 0; round < 20; ++round) {
    dgpuSequence_t s = nullptr;
    dgpuGenerate g = DGPU_GENERATE_INIT;
    OK(dgpuSequenceCreate(rig.session, &s));
    g.sequences = &s;
    g.sequence_count = 1;
    g.prompt_tokens = prompt;
    g.prompt_offsets = offsets;
    g.out_tokens = tokens;
    g.out_counts = &count;
    g.max_new_tokens = 4;
    const dgpuStatus_t status = dgpuSessionGenerate(rig.session, rig.stream, &g);
    if (status == DGPU_STATUS_COMMAND_FAILED) {
      ++failures;
      OK(dgpuStreamReset(rig.stream, kLongTime));
    } else {
      ASSERT_EQ(status, DGPU_STATUS_SUCCESS) << error_text();
      EXPECT_EQ((std::vector<int32_t>(tokens, tokens + 4)), (std::vector<int32_t>{6, 8, 10, 13}));
    }
    OK(dgpuSequenceDestroy(s));
  }
  EXPECT_EQ(failures, 1u);
}

// The device goes in the middle of a run: the session says so, its memory is given back, and the model runs on the
// other device of the same context.
void lose_device(bool reports) {
  ASSERT_FALSE(expected().empty());
  for (const int after : reports ? std::vector<int>{0, 1, 30, 75, 100} : std::vector<int>{1, 60}) {
    Rig rig("{\"fail\": \"device\", \"device\": 0, \"after\": " + std::to_string(after) +
            ", \"reports\": " + (reports ? "true" : "false") + "}");
    std::vector<float> got;
    const Outcome o = run_all(rig, got);
    EXPECT_EQ(o.status, DGPU_STATUS_DEVICE_LOST) << after << ": " << o.text;
    EXPECT_NE(o.text.find("is lost after"), std::string::npos) << o.text;
    if (rig.session && rig.stream) {
      dgpuSequence_t s = nullptr;
      if (dgpuSequenceCreate(rig.session, &s) == 0) {
        EXPECT_EQ(rig.step(s, 0, 4).status, DGPU_STATUS_DEVICE_LOST);
        EXPECT_EQ(dgpuSequenceDestroy(s), 0);
      }
    }
    dgpuSession_t none = nullptr;
    EXPECT_EQ(dgpuSessionCreate(rig.model, nullptr, &none), DGPU_STATUS_DEVICE_LOST) << error_text();
    rig.drop_model();
    if (reports) rig.expect_no_memory("losing the device after " + std::to_string(after));
    ASSERT_TRUE(rig.open().ok());
    const Outcome loaded = rig.load(1);
    ASSERT_TRUE(loaded.ok()) << loaded.text;
    ASSERT_TRUE(rig.make_stream(1).ok() && rig.make_session().ok());
    dgpuSequence_t s = nullptr;
    ASSERT_TRUE(rig.make_sequence(s).ok());
    ASSERT_TRUE(rig.step(s, 0, 8).ok());
    ASSERT_TRUE(rig.step(s, 8, 9).ok());
    EXPECT_EQ(rig.good_logits(), expected()) << after;
    rig.drop_model();
    if (reports) rig.expect_no_memory("running on the other device");
  }
}
TEST(ModelFaults, ADeviceThatIsLostLeavesTheOtherUsable) { lose_device(true); }
TEST(ModelFaults, ADeviceThatVanishesLeavesTheOtherUsable) { lose_device(false); }

}  // namespace
}  // namespace dgpu::test
