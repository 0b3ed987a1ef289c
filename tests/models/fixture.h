// Models with published reference outputs: those in the repository, and the others where ../shared is there.
#pragma once
#include <dgpu.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "model/safetensors.h"

namespace dgpu::test {

inline std::string source_dir() {
  const char* s = std::getenv("DGPU_SOURCE");
  return s ? s : ".";
}

// Directory of a model, "" if it is not on this machine.
inline std::string model_dir(const std::string& name) {
  const char* shared = std::getenv("DGPU_SHARED");
  for (const auto& root :
       {source_dir() + "/tests/data/models/", std::string(shared ? shared : "../shared") + "/models/"})
    if (std::filesystem::exists(root + name + "/config.json")) return root + name;
  return "";
}

inline const std::vector<std::string>& first_wave() {
  static const std::vector<std::string> names = {"adder",      "llama2", "llama3-scaled-tied", "mistral-window",
                                                 "qwen2-bias", "qwen3",  "qwen3-moe",          "mixtral"};
  return names;
}

inline std::string error_text() {
  dgpuErrorInfo e = DGPU_ERROR_INFO_INIT;
  dgpuGetLastError(&e);
  return std::string(dgpuStatusName(e.status)) + ": " + e.message + " [" + e.object + "]";
}

#define OK(call) ASSERT_EQ((call), DGPU_STATUS_SUCCESS) << ::dgpu::test::error_text()

inline std::vector<int32_t> ids(const std::string& baseline, const char* tensor) {
  std::shared_ptr<model::SafetensorsFile> f;
  if (model::SafetensorsFile::open(baseline, f) != 0 || !f->tensors().count(tensor)) return {};
  const auto& t = f->tensors().at(tensor);
  std::vector<int64_t> wide(static_cast<size_t>(t.elements()));
  if (f->read(t, 0, t.bytes, wide.data()) != 0) return {};
  return {wide.begin(), wide.end()};
}

// A loaded model on device 0 with a stream; everything through the public API.
struct Loaded {
  dgpuDevice_t device = nullptr;
  dgpuContext_t context = nullptr;
  dgpuModel_t model = nullptr;
  dgpuStream_t stream = nullptr;

  void open(const std::string& dir, dgpuDtype_t dtype = DGPU_DTYPE_F32) {
    OK(dgpuInit(nullptr));
    initialised = true;
    OK(dgpuDeviceGet(0, &device));
    OK(dgpuContextCreate(&device, 1, nullptr, &context));
    OK(dgpuStreamCreate(context, device, nullptr, &stream));
    OK(dgpuModelOpen(dir.c_str(), nullptr, &model));
    dgpuLoadOptions o = DGPU_LOAD_OPTIONS_INIT;
    o.dtype = dtype;
    OK(dgpuModelLoad(model, context, device, &o));
  }
  ~Loaded() {
    if (model) dgpuModelDestroy(model);
    if (stream) dgpuStreamDestroy(stream);
    if (context) dgpuContextDestroy(context);
    if (initialised) dgpuShutdown();
  }
  bool initialised = false;
};

// Submits one step of one sequence.
inline dgpuStatus_t submit_step(dgpuSession_t session, dgpuStream_t stream, dgpuSequence_t sequence,
                                std::span<const int32_t> tokens) {
  const uint32_t offsets[2] = {0, static_cast<uint32_t>(tokens.size())};
  dgpuStep st = DGPU_STEP_INIT;
  st.tokens = tokens.data();
  st.token_count = offsets[1];
  st.offsets = offsets;
  st.sequences = &sequence;
  st.sequence_count = 1;
  return dgpuSessionStep(session, stream, &st);
}

// The logits of the last step, which has run then.
inline std::vector<float> logits_of_last_step(dgpuSession_t session, dgpuStream_t stream) {
  dgpuTensorDesc d = DGPU_TENSOR_DESC_INIT;
  dgpuAddr_t at = 0;
  EXPECT_EQ(dgpuSessionGetLogits(session, &d, &at), 0) << error_text();
  EXPECT_EQ(d.dtype, static_cast<dgpuDtype_t>(DGPU_DTYPE_F32));
  std::vector<float> out(static_cast<size_t>(d.shape[0] * d.shape[1]));
  EXPECT_EQ(dgpuMemCopyToHostAsync(stream, out.data(), at, out.size() * sizeof(float)), 0) << error_text();
  EXPECT_EQ(dgpuStreamSynchronize(stream, DGPU_TIMEOUT_INFINITE), 0) << error_text();
  return out;
}

// The f64 execution of the same program is the truth, for configurations without a published baseline; it is written
// to `file`.
inline void expect_f32_meets_f64(const Loaded& l, std::span<const int32_t> tokens, const std::string& file) {
  dgpuReport_t report = nullptr;
  OK(dgpuDay0Baseline(l.model, tokens.data(), static_cast<uint32_t>(tokens.size()), file.c_str(), nullptr, &report));
  dgpuReportDestroy(report);
  OK(dgpuDay0Compare(l.model, l.context, l.device, DGPU_DTYPE_F32, file.c_str(), &report));
  uint32_t good = 0;
  const char* text = nullptr;
  OK(dgpuReportGetVerdict(report, &good));
  OK(dgpuReportGetJson(report, &text));
  EXPECT_EQ(good, 1u) << text;
  dgpuReportDestroy(report);
}

}  // namespace dgpu::test
