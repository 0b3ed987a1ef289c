// Loading: what stays true when files change under a model, and weights that are used in the mapped file.
#include <cstring>
#include <filesystem>
#include <fstream>

#include "fixture.h"

namespace dgpu::test {
namespace {
namespace fs = std::filesystem;

class Loading : public ::testing::Test {
 protected:
  void SetUp() override {
    OK(dgpuInit(nullptr));
    OK(dgpuDeviceGet(0, &device_));
    OK(dgpuContextCreate(&device_, 1, nullptr, &context_));
    OK(dgpuStreamCreate(context_, device_, nullptr, &stream_));
    dir_ = fs::temp_directory_path() / ("loading_test." + std::to_string(getpid()));
    fs::remove_all(dir_);
  }
  void TearDown() override {
    close();
    if (stream_) dgpuStreamDestroy(stream_);
    if (context_) dgpuContextDestroy(context_);
    dgpuShutdown();
    fs::remove_all(dir_);
  }
  // A copy of a model of the repository that the test may damage.
  void copy(const std::string& name) {
    fs::copy(model_dir(name), dir_);
    fs::permissions(dir_ / "model.safetensors", fs::perms::owner_write, fs::perm_options::add);
    OK(dgpuModelOpen(dir_.c_str(), nullptr, &model_));
  }
  dgpuStatus_t load(uint32_t flags) {
    dgpuLoadOptions o = DGPU_LOAD_OPTIONS_INIT;
    o.flags = flags;
    return dgpuModelLoad(model_, context_, device_, &o);
  }
  void start(std::vector<float>& logits) {
    if (!session_) {
      dgpuSessionOptions o = DGPU_SESSION_OPTIONS_INIT;
      o.max_tokens = 16;
      o.max_batch_tokens = 8;
      OK(dgpuSessionCreate(model_, &o, &session_));
      OK(dgpuSequenceCreate(session_, &sequence_));
    }
    OK(dgpuSequenceTruncate(sequence_, 0));
    OK(submit_step(session_, stream_, sequence_, std::vector<int32_t>{1, 2, 3, 4, 5}));
    dgpuTensorDesc d = DGPU_TENSOR_DESC_INIT;
    dgpuAddr_t at = 0;
    OK(dgpuSessionGetLogits(session_, &d, &at));
    logits.resize(static_cast<size_t>(d.shape[0] * d.shape[1]));
    OK(dgpuMemCopyToHostAsync(stream_, logits.data(), at, logits.size() * 4));
  }
  std::vector<float> logits() {
    std::vector<float> out;
    start(out);
    EXPECT_EQ(dgpuStreamSynchronize(stream_, DGPU_TIMEOUT_INFINITE), 0) << error_text();
    return out;
  }
  uint64_t used() {
    dgpuMemStats s = DGPU_MEM_STATS_INIT;
    EXPECT_EQ(dgpuMemGetStats(context_, device_, &s), 0);
    return s.used_bytes;
  }
  void close() {
    if (session_) dgpuSequenceDestroy(sequence_), dgpuSessionDestroy(session_);
    if (model_) dgpuModelDestroy(model_);
    session_ = nullptr;
    model_ = nullptr;
  }

  fs::path dir_;
  dgpuDevice_t device_ = nullptr;
  dgpuContext_t context_ = nullptr;
  dgpuStream_t stream_ = nullptr;
  dgpuModel_t model_ = nullptr;
  dgpuSession_t session_ = nullptr;
  dgpuSequence_t sequence_ = nullptr;
};

// qwen3-moe has whole tensors and experts that are assembled of several.
TEST_F(Loading, MappedWeightsGiveTheSameBitsAndTakeNoDeviceMemory) {
  copy("qwen3-moe");
  OK(load(0));
  const uint64_t copied = used();
  const auto want = logits();
  close();
  EXPECT_EQ(used(), 0u);
  OK(dgpuModelOpen(dir_.c_str(), nullptr, &model_));
  OK(load(DGPU_LOAD_MAPPED));
  EXPECT_LT(used(), copied);
  EXPECT_EQ(logits(), want);
}

TEST_F(Loading, ALoadedModelNeedsItsFilesNoMore) {
  copy("llama3-scaled-tied");
  OK(load(0));
  const auto want = logits();
  const auto size = fs::file_size(dir_ / "model.safetensors");
  std::ofstream(dir_ / "model.safetensors", std::ios::binary) << std::string(size / 2, 'z');  // cut and overwritten
  EXPECT_EQ(logits(), want);
}

TEST_F(Loading, AFileThatWasCutAfterItWasOpenedIsAnErrorAndLeavesNothing) {
  for (const uint32_t flags : {0u, uint32_t{DGPU_LOAD_MAPPED}}) {
    copy("qwen3-moe");
    fs::resize_file(dir_ / "model.safetensors", fs::file_size(dir_ / "model.safetensors") / 2);
    EXPECT_EQ(load(flags), DGPU_STATUS_IO_ERROR);
    EXPECT_NE(error_text().find("shorter"), std::string::npos) << error_text();
    EXPECT_EQ(used(), 0u);
    close();
    fs::remove_all(dir_);
  }
}

TEST_F(Loading, AMappedModelMayBeDestroyedWhileAStepRuns) {
  copy("qwen3-moe");
  OK(load(DGPU_LOAD_MAPPED));
  const auto want = logits();
  std::vector<float> got[4];
  for (auto& one : got) start(one);
  close();
  OK(dgpuStreamSynchronize(stream_, DGPU_TIMEOUT_INFINITE));
  for (const auto& one : got) EXPECT_EQ(one, want);
}

TEST_F(Loading, UnknownFlagsAreRefused) {
  copy("adder");
  EXPECT_EQ(load(2), DGPU_STATUS_INVALID_ARGUMENT);
  EXPECT_NE(error_text().find("DGPU_LOAD_MAPPED"), std::string::npos);
}

}  // namespace
}  // namespace dgpu::test
