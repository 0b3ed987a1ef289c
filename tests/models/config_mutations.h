// Other values for a key of a config, and the model that runs with them.
#pragma once
#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "fixture.h"

namespace dgpu::test {

using Json = nlohmann::ordered_json;

struct Mutation {
  enum Kind {
    Other,  // a value of the same type, or of the type that a null stands for
    Type,   // a value of another type
    Gone    // null, or no such key
  };
  Kind kind;
  Json value;
  bool absent = false;
  std::string text() const { return absent ? "absent" : value.dump(); }
};

// Values that no rule by type arrives at: words, and what a null may stand for.
inline std::vector<Json> other_words(const std::string& key) {
  const Json linear = {{"rope_type", "linear"}, {"factor", 3.0}}, old_linear = {{"type", "linear"}, {"factor", 1.5}};
  if (key == "hidden_act") return {"gelu", "relu", "gelu_pytorch_tanh", "tanh", ""};
  if (key == "dtype" || key == "torch_dtype") return {"float32", "float16", "bfloat16", "int8"};
  if (key == "rope_type" || key == "type")
    return {"default", "linear", "llama3", "yarn", "dynamic", "longrope", "other"};
  if (key == "model_type") return {"llama", "mistral", "qwen2", "qwen3", "mixtral", "other", ""};
  if (key == "architectures")
    return {Json::array({"LlamaForCausalLM"}), Json::array({"Qwen2ForCausalLM"}), Json::array({"Other"}),
            Json::array()};
  if (key == "layer_types")
    return {Json::array({"sliding_attention", "full_attention", "full_attention"}), Json::array({"full_attention"}),
            Json::array()};
  if (key == "mlp_only_layers") return {Json::array(), Json::array({0}), Json::array({0, 1, 2}), Json::array({7})};
  if (key == "rope_scaling" || key == "rope_parameters") return {linear, old_linear};
  if (key == "sliding_window") return {4, 1, 0};
  if (key == "head_dim") return {8, 32};
  if (key == "eos_token_id") return {Json::array({1, 2}), 3};
  return {};
}

// Equal as a config reads it: 1 and true are not, 1 and 1.0 are.
inline bool same(const Json& a, const Json& b) { return a == b && a.is_boolean() == b.is_boolean(); }

inline std::vector<Mutation> mutations(const std::string& key, const Json& v) {
  std::vector<Mutation> out;
  const auto add = [&](Mutation::Kind kind, const Json& value) {
    for (const auto& m : out)
      if (same(m.value, value)) return;
    if (!same(v, value)) out.push_back({kind, value, false});
  };
  for (const Json& w : other_words(key)) add(Mutation::Other, w);
  const Json number = 3, text = "text", list = Json::array({1}), object = {{"a", 1}};
  if (v.is_boolean()) {
    add(Mutation::Other, !v.get<bool>());
  } else if (v.is_number_integer()) {
    const auto i = v.get<int64_t>();
    for (const int64_t n : {i + 1, i * 2, i / 2, i - 1, int64_t{1}, int64_t{0}, int64_t{-1}, int64_t{1} << 40})
      add(Mutation::Other, n);
  } else if (v.is_number_float()) {
    const auto f = v.get<double>();
    for (const double n : {f * 2, f / 2, f + 0.5, f * 1e4, 0.0, -1.0, 1e300}) add(Mutation::Other, n);
    add(Mutation::Other, static_cast<int64_t>(f) + 1);  // JSON writers drop ".0"
  } else if (v.is_string()) {
    add(Mutation::Other, v.get<std::string>() + "x");
  } else if (v.is_array() && !v.empty()) {
    Json more = v, less = v;
    more.push_back(v.back());
    less.erase(less.size() - 1);
    add(Mutation::Other, more);
    add(Mutation::Other, less);
    for (size_t i = 0; i < v.size(); ++i)
      for (const Mutation& m : mutations("", v[i])) {
        Json changed = v;
        if (m.absent) continue;
        changed[i] = m.value;
        add(m.kind, changed);
      }
  }
  if (!v.is_null()) {
    for (const Json& w : {Json(true), number, text, list, object, Json(1.5)}) {
      const bool same_kind = (w.is_number() && v.is_number()) || w.type() == v.type();
      if (!same_kind) add(Mutation::Type, w);
    }
    out.push_back({Mutation::Gone, nullptr, false});
  }
  out.push_back({Mutation::Gone, nullptr, true});
  return out;
}

// The same weights opened, loaded and run with any config, on the cpu.
class MutableModel {
 public:
  struct Result {
    enum State { Refused, NotLoaded, NotRun, Ran } state = Refused;
    std::string object, message, inspect;
    std::vector<float> logits;  // all positions
  };

  void open(const std::string& weights, const std::string& name) {
    dir_ = std::filesystem::temp_directory_path() / ("config_mutation." + name + "." + std::to_string(getpid()));
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
    std::filesystem::create_symlink(std::filesystem::absolute(weights) / "model.safetensors",
                                    dir_ / "model.safetensors");
    tokens_ = ids(weights + "/baseline.safetensors", "input_ids");
    ASSERT_FALSE(tokens_.empty());
    OK(dgpuInit(nullptr));
    initialised_ = true;
    OK(dgpuDeviceGet(0, &device_));
    OK(dgpuContextCreate(&device_, 1, nullptr, &context_));
    OK(dgpuStreamCreate(context_, device_, nullptr, &stream_));
  }
  ~MutableModel() {
    if (stream_) dgpuStreamDestroy(stream_);
    if (context_) dgpuContextDestroy(context_);
    if (initialised_) dgpuShutdown();
    std::filesystem::remove_all(dir_);
  }

  Result run(const Json& config) const {
    std::ofstream(dir_ / "config.json") << config;
    Result r;
    dgpuModel_t model = nullptr;
    dgpuSession_t session = nullptr;
    dgpuStatus_t status = dgpuModelOpen(dir_.c_str(), nullptr, &model);
    if (status == 0) {
      r.state = Result::NotLoaded;
      r.inspect = inspect(model);
      status = dgpuModelLoad(model, context_, device_, nullptr);
    }
    if (status == 0) {
      r.state = Result::NotRun;
      status = step(model, session, r.logits);
    }
    if (status == 0) {
      r.state = Result::Ran;
    } else {
      dgpuErrorInfo e = DGPU_ERROR_INFO_INIT;
      dgpuGetLastError(&e);
      EXPECT_EQ(e.status, status);
      r.object = e.object;
      r.message = e.message;
    }
    if (session) dgpuSessionDestroy(session);
    if (model) dgpuModelDestroy(model);
    return r;
  }

 private:
  static std::string inspect(dgpuModel_t model) {
    dgpuReport_t report = nullptr;
    const char* text = nullptr;
    EXPECT_EQ(dgpuDay0Inspect(model, &report), 0) << error_text();
    EXPECT_EQ(dgpuReportGetJson(report, &text), 0) << error_text();
    const std::string out = text ? text : "";
    dgpuReportDestroy(report);
    return out;
  }

  dgpuStatus_t step(dgpuModel_t model, dgpuSession_t& session, std::vector<float>& logits) const {
    const auto count = static_cast<uint32_t>(tokens_.size());
    dgpuSessionOptions o = DGPU_SESSION_OPTIONS_INIT;
    o.max_sequences = 1;
    o.max_tokens = o.max_batch_tokens = o.max_logit_rows = count;
    if (const auto s = dgpuSessionCreate(model, &o, &session)) return s;
    dgpuSequence_t sequence = nullptr;
    if (const auto s = dgpuSequenceCreate(session, &sequence)) return s;
    std::vector<uint32_t> rows(count), offsets{0, count};
    for (uint32_t i = 0; i < count; ++i) rows[i] = i;
    dgpuStep st = DGPU_STEP_INIT;
    st.tokens = tokens_.data();
    st.offsets = offsets.data();
    st.sequences = &sequence;
    st.logit_rows = rows.data();
    st.token_count = st.logit_row_count = count;
    st.sequence_count = 1;
    dgpuStatus_t status = dgpuSessionStep(session, stream_, &st);
    dgpuTensorDesc d = DGPU_TENSOR_DESC_INIT;
    dgpuAddr_t at = 0;
    if (status == 0) status = dgpuSessionGetLogits(session, &d, &at);
    if (status == 0) {
      logits.resize(static_cast<size_t>(d.shape[0] * d.shape[1]));
      status = dgpuMemCopyToHostAsync(stream_, logits.data(), at, logits.size() * sizeof(float));
    }
    if (status == 0) status = dgpuStreamSynchronize(stream_, DGPU_TIMEOUT_INFINITE);
    dgpuSequenceDestroy(sequence);
    return status;
  }

  std::filesystem::path dir_;
  std::vector<int32_t> tokens_;
  bool initialised_ = false;
  dgpuDevice_t device_ = nullptr;
  dgpuContext_t context_ = nullptr;
  dgpuStream_t stream_ = nullptr;
};

// Relative L2 difference; infinite if the numbers are not all finite or of other count.
inline double distance(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return INFINITY;
  double d = 0, n = 0;
  for (size_t i = 0; i < a.size(); ++i) d += (double(a[i]) - b[i]) * (double(a[i]) - b[i]), n += double(b[i]) * b[i];
  return std::isfinite(d) ? std::sqrt(d / n) : INFINITY;
}

}  // namespace dgpu::test
