// Keys that no template knows, and the rope types. What each key does: tests/models/config_mutation_test.cpp.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>

#include "graph/passes/passes.h"
#include "graph/reference.h"
#include "model/day0/documents.h"
#include "model/model.h"

namespace dgpu::model {
namespace {

using T = JsonNode::Type;

std::string shared() {
  const char* dir = std::getenv("DGPU_SHARED");
  return dir ? std::string(dir) + "/models/" : "";
}

JsonNode number(int64_t v) {
  JsonNode j;
  j.type = T::Int, j.integer = v, j.number = static_cast<double>(v);
  return j;
}
// A bogus key next to the others, at every level, is refused by name.
TEST(ConfigKeys, ExtraKeysAreRefused) {
  if (shared().empty()) GTEST_SKIP() << "DGPU_SHARED is not set: no fixture models";
  for (const std::string name : {"llama3-scaled-tied", "qwen3-moe", "deepseek-v4", "qwen3-next"}) {
    JsonNode config;
    ASSERT_EQ(read_json(shared() + name + "/config.json", config), 0);
    const std::function<void(JsonNode&, const std::string&)> at_level = [&](JsonNode& object,
                                                                            const std::string& prefix) {
      object.members.emplace_back("bogus_key", number(1));
      std::shared_ptr<const Model> model;
      EXPECT_EQ(Model::from_config(config, "config.json", "", model), DGPU_STATUS_INVALID_ARGUMENT)
          << name << " " << prefix;
      EXPECT_EQ(std::string(last_error().object), prefix + "bogus_key") << last_error().message;
      object.members.pop_back();
      for (auto& [key, value] : object.members)
        if (value.is(T::Object)) at_level(value, prefix + key + ".");
    };
    at_level(config, "");
  }
}

// ---- Rope ----------------------------------------------------------------------------------------------------------

// Logits of llama2's weights with another config.
std::vector<double> logits(const std::function<void(JsonNode&)>& change, int64_t length = 12) {
  JsonNode config;
  EXPECT_EQ(read_json(shared() + "llama2/config.json", config), 0);
  change(config);
  std::shared_ptr<const Model> model;
  EXPECT_EQ(Model::from_config(config, "config.json", "", model), 0) << last_error().message;
  Checkpoint checkpoint;
  EXPECT_EQ(Checkpoint::open(shared() + "llama2", checkpoint), 0);
  std::vector<double> out;
  graph::ReferenceRun run;
  for (int64_t t = 0; t < length; ++t) run.tokens.push_back(static_cast<int32_t>(3 + t * 7 % 100));
  run.load = [&](graph::Id id, ops::RefTensor& t) {
    return load_reference_weight(model->program(), checkpoint, id, t);
  };
  run.tap = [&](const std::string& name, const ops::RefTensor& t) -> Status {
    if (name == "logits") out = t.f;
    return 0;
  };
  EXPECT_EQ(graph::run_reference(model->program(), run), 0) << last_error().message;
  return out;
}
double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double d = 0, n = 0;
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) d += (a[i] - b[i]) * (a[i] - b[i]), n += b[i] * b[i];
  return std::sqrt(d / n);
}
void set(JsonNode& config, const std::string& key, const std::string& json) {
  JsonNode value;
  ASSERT_EQ(parse_json(json, "test", value), 0);
  for (auto& [name, old] : config.members)
    if (name == key) old = value;
}

TEST(ConfigRope, EachTypeActs) {
  if (shared().empty()) GTEST_SKIP() << "DGPU_SHARED is not set: no fixture models";
  const auto plain = logits([](JsonNode&) {});
  const auto scaled = [&](const std::string& rope, const std::string& max = "512") {
    return logits([&](JsonNode& c) {
      set(c, "rope_scaling", rope);
      set(c, "max_position_embeddings", max);
    });
  };
  EXPECT_LT(distance(scaled(R"({"type":"linear","factor":1.0})"), plain), 1e-12);
  EXPECT_GT(distance(scaled(R"({"type":"linear","factor":2.0})"), plain), 1e-3);
  // Below its limit dynamic rope is the plain one, though keys are cached unrotated and rotated when they are used.
  EXPECT_LT(distance(scaled(R"({"rope_type":"dynamic","factor":2.0})"), plain), 1e-6);
  EXPECT_GT(distance(scaled(R"({"rope_type":"dynamic","factor":2.0})", "6"), plain), 1e-3);
  EXPECT_GT(distance(scaled(R"({"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":8})"), plain), 1e-3);
  EXPECT_GT(distance(scaled(R"({"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,
      "original_max_position_embeddings":16})"),
                     plain),
            1e-3);
}

}  // namespace
}  // namespace dgpu::model
