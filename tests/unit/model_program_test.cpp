// Programs of the fixture models.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <set>

#include "graph/reference.h"
#include "model/day0/documents.h"
#include "model/model.h"
#include "model/weights.h"

namespace dgpu::model {
namespace {

const char* const kFirstWave[] = {"llama2", "llama3-scaled-tied", "mistral-window", "qwen2-bias",
                                  "qwen3",  "qwen3-moe",          "mixtral",        "adder"};

std::string shared() {
  const char* dir = std::getenv("DGPU_SHARED");
  return dir ? std::string(dir) + "/models/" : "";
}

std::shared_ptr<const Model> open_fixture(const std::string& name) {
  std::shared_ptr<const Model> model;
  EXPECT_EQ(Model::open(shared() + name, "", false, model), 0) << name << ": " << last_error().message;
  if (model && std::getenv("DGPU_PRINT_PROGRAM")) printf("%s\n", graph::to_text(model->program()).c_str());
  return model;
}

TEST(ModelProgram, NeedsExactlyTheTensorsOfTheCheckpoint) {
  if (shared().empty()) GTEST_SKIP() << "DGPU_SHARED is not set: no fixture models";
  std::vector<std::string> names(std::begin(kFirstWave), std::end(kFirstWave));
  names.insert(names.end(), {"qwen3-next", "deepseek-v4"});
  for (const std::string& name : names) {
    const auto model = open_fixture(name);
    ASSERT_TRUE(model);
    EXPECT_EQ(check_tensors(model->program(), model->checkpoint()), 0) << name << ": " << last_error().message;
    for (const auto& [tensor, info] : model->checkpoint().tensors())
      EXPECT_TRUE(model->program().find_tensor(tensor)) << name << ": " << tensor;
  }
}

// Also for families that cannot run yet: every tensor of the published outputs has a tap of its shape.
TEST(ModelProgram, TapsHaveThePublishedNamesAndShapes) {
  if (shared().empty()) GTEST_SKIP() << "DGPU_SHARED is not set: no fixture models";
  for (const std::string name : {"qwen3-next", "deepseek-v4", "llama2", "mixtral"}) {
    const auto model = open_fixture(name);
    ASSERT_TRUE(model);
    std::shared_ptr<SafetensorsFile> truth;
    ASSERT_EQ(SafetensorsFile::open(shared() + name + "/baseline.safetensors", truth), 0);
    std::map<std::string, std::vector<int64_t>> taps;
    for (const graph::Tap& t : model->program().taps) {
      taps[t.name] = {1, truth->tensors().at("input_ids").elements()};
      const graph::Shape& shape = model->program().value(t.value).shape;
      ASSERT_EQ(shape[0].symbol, 1u) << name << ": " << t.name;
      for (size_t d = 1; d < shape.size(); ++d) taps[t.name].push_back(shape[d].value);
    }
    for (const auto& [tensor, info] : truth->tensors()) {
      if (info.dtype != DGPU_DTYPE_F32 || tensor == "logits") continue;
      ASSERT_TRUE(taps.count(tensor)) << name << ": no tap " << tensor;
      EXPECT_EQ(taps[tensor], info.shape) << name << ": " << tensor;
    }
  }
}

// Relative L2 of each tap of the f64 reference against the published implementation's f32 output.
TEST(ModelProgram, ReferenceAgreesWithPublishedOutputs) {
  if (shared().empty()) GTEST_SKIP() << "DGPU_SHARED is not set: no fixture models";
  for (const char* name : kFirstWave) {
    const auto model = open_fixture(name);
    ASSERT_TRUE(model);
    std::shared_ptr<SafetensorsFile> truth;
    ASSERT_EQ(SafetensorsFile::open(shared() + name + "/baseline.safetensors", truth), 0);
    const TensorInfo& ids = truth->tensors().at("input_ids");
    const auto* data = reinterpret_cast<const int64_t*>(truth->map() + ids.offset);
    graph::ReferenceRun run;
    run.tokens.assign(data, data + ids.elements());
    run.load = [&](graph::Id id, ops::RefTensor& t) {
      return load_reference_weight(model->program(), model->checkpoint(), id, t);
    };
    std::set<std::string> met;
    run.tap = [&](const std::string& tap, const ops::RefTensor& ours) -> Status {
      const auto it = truth->tensors().find(tap);
      if (it == truth->tensors().end()) return ADD_FAILURE() << name << ": tap " << tap << " is not in the baseline", 0;
      met.insert(tap);
      const auto* theirs = reinterpret_cast<const float*>(truth->map() + it->second.offset);
      EXPECT_EQ(static_cast<int64_t>(ours.f.size()), it->second.elements()) << name << ": " << tap;
      double diff = 0, norm = 0;
      for (size_t i = 0; i < ours.f.size(); ++i) {
        const double d = ours.f[i] - static_cast<double>(theirs[i]);
        diff += d * d, norm += static_cast<double>(theirs[i]) * static_cast<double>(theirs[i]);
      }
      EXPECT_LT(std::sqrt(diff / norm), 3e-6) << name << ": " << tap;
      return 0;
    };
    ASSERT_EQ(graph::run_reference(model->program(), run), 0) << name << ": " << last_error().message;
    for (const auto& [tensor, info] : truth->tensors()) {
      const bool expected = info.dtype == DGPU_DTYPE_F32;
      EXPECT_TRUE(!expected || met.count(tensor)) << name << ": no tap " << tensor;
    }
  }
}

}  // namespace
}  // namespace dgpu::model
