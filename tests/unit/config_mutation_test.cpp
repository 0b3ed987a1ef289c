// Every key of every first-wave config is changed: an error, another program, or a reason why not.
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

const std::map<std::string, std::string> kNoEffect = {
    {"attention_dropout", "training only"},
    {"bos_token_id", "tokens of a text, not of the computation"},
    {"eos_token_id", "tokens of a text, not of the computation"},
    {"pad_token_id", "ragged batches have no padding"},
    {"initializer_range", "initialisation before training"},
    {"use_cache", "states are always kept"},
    {"transformers_version", "who wrote the file"},
    {"pretraining_tp", "published weights are merged"},
    {"output_router_logits", "an extra output"},
    {"router_aux_loss_coef", "training only"},
    {"router_jitter_noise", "training only"},
    // These configs cannot show it:
    {"qwen2-bias/max_window_layers", "no layer has a window: use_sliding_window is false and layer_types is given"},
    {"qwen2-bias/sliding_window", "use_sliding_window is false"},
    {"qwen2-bias/use_sliding_window", "sliding_window is null"},
    {"qwen3/max_window_layers", "no layer has a window: use_sliding_window is false and layer_types is given"},
    {"qwen3/sliding_window", "use_sliding_window is false"},
    {"qwen3/use_sliding_window", "sliding_window is null"},
    {"qwen3-moe/sliding_window", "use_sliding_window is false"},
    {"qwen3-moe/use_sliding_window", "sliding_window is null"},
};

std::string shared() {
  const char* dir = std::getenv("DGPU_SHARED");
  return dir ? std::string(dir) + "/models/" : "";
}

JsonNode number(int64_t v) {
  JsonNode j;
  j.type = T::Int, j.integer = v, j.number = static_cast<double>(v);
  return j;
}
JsonNode text(const std::string& s) {
  JsonNode j;
  j.type = T::String, j.string = s;
  return j;
}
JsonNode flag(bool b) {
  JsonNode j;
  j.type = T::Bool, j.boolean = b;
  return j;
}

// Other values for the same key.
std::vector<JsonNode> changes(const JsonNode& v) {
  JsonNode other = v;
  switch (v.type) {
    case T::Null:
      return {number(4)};
    case T::Bool:
      return {flag(!v.boolean)};
    case T::Int:
      return {number(v.integer + 1), number(v.integer * 2), number(v.integer > 1 ? v.integer / 2 : 0)};
    case T::Float:
      other.number = v.number * 2 + 1e-7;
      return {other};
    case T::String:
      return {text(v.string + "x"), text("float16")};
    case T::Array:
      if (v.items.empty())
        other.items.push_back(number(0));
      else
        other.items[0] = changes(v.items[0])[0];
      return {other};
    default:
      return {number(4)};
  }
}

// The program as text, or "error" when it is refused with a message that names `key`.
std::string outcome(const JsonNode& config, const std::string& key, const std::string& where) {
  std::shared_ptr<const Model> model;
  if (Model::from_config(config, "config.json", "", model) >= 0) return graph::to_text(model->program());
  EXPECT_FALSE(std::string(last_error().message).empty()) << where;
  EXPECT_NE(std::string(last_error().object), "") << where << ": " << last_error().message;
  return "error";
}

using Visit = std::function<void(const std::string& path, JsonNode& parent, size_t index)>;
void each_member(JsonNode& object, const std::string& prefix, const Visit& visit) {
  for (size_t i = 0; i < object.members.size(); ++i) {
    visit(prefix + object.members[i].first, object, i);
    if (object.members[i].second.is(T::Object))
      each_member(object.members[i].second, prefix + object.members[i].first + ".", visit);
  }
}

TEST(ConfigMutation, EveryKeyMatters) {
  if (shared().empty()) GTEST_SKIP() << "DGPU_SHARED is not set: no fixture models";
  size_t keys = 0, mutations = 0;
  for (const std::string name :
       {"llama2", "llama3-scaled-tied", "mistral-window", "qwen2-bias", "qwen3", "qwen3-moe", "mixtral", "adder"}) {
    JsonNode config;
    ASSERT_EQ(read_json(shared() + name + "/config.json", config), 0);
    const std::string before = outcome(config, "", name);
    ASSERT_NE(before, "error") << name << ": " << last_error().message;
    each_member(config, "", [&](const std::string& path, JsonNode& parent, size_t index) {
      ++keys;
      const std::string key = parent.members[index].first;
      const JsonNode original = parent.members[index].second;
      bool matters = false;
      const auto attempt = [&](const JsonNode& value) {
        parent.members[index].second = value;
        ++mutations;
        matters |= outcome(config, path, name + "/" + path) != before;
        parent.members[index].second = original;
      };
      for (const JsonNode& value : changes(original)) attempt(value);
      // Null and absence may mean the value that is there: they must only not crash or confuse.
      const bool by_value = matters;
      attempt(JsonNode{});
      const auto member = parent.members[index];
      parent.members.erase(parent.members.begin() + static_cast<std::ptrdiff_t>(index));
      ++mutations;
      outcome(config, path, name + "/" + path);
      parent.members.insert(parent.members.begin() + static_cast<std::ptrdiff_t>(index), member);
      const bool excused = kNoEffect.count(key) || kNoEffect.count(name + "/" + path);
      EXPECT_NE(by_value, excused) << name << ": " << path
                                   << (by_value ? " has an effect, but is listed without one"
                                                : " changes nothing and is not listed");
    });
  }
  printf("%zu keys, %zu mutations\n", keys, mutations);
  EXPECT_GT(keys, 150u);
}

// A bogus key next to the others, at every level, is refused by name.
TEST(ConfigMutation, ExtraKeysAreRefused) {
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
