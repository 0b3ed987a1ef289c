// Rope frequencies and the defaults of configs against what transformers computes (tests/data/transformers).
#include <fstream>
#include <nlohmann/json.hpp>

#include "cpu_kernel_runner.h"
#include "model/model.h"

namespace dgpu::cpu::test {
namespace {

using nlohmann::json;

json published(const std::string& name) {
  const char* dir = std::getenv("DGPU_SOURCE");
  std::ifstream file(std::string(dir ? dir : ".") + "/tests/data/transformers/" + name);
  return file ? json::parse(file) : json();
}

OpSpec spec_of(const json& attrs) {
  OpSpec spec;
  spec.name = "rope_freqs";
  for (const auto& [key, value] : attrs.items()) {
    ops::AttrValue v;
    if (value.is_string())
      v = value.get<std::string>();
    else if (value.is_boolean())
      v = value.get<bool>();
    else if (key == "dim" || key == "max_position" || key == "original_max_position")
      v = value.get<int64_t>();
    else
      v = value.get<double>();
    EXPECT_EQ(ops::set_attr(spec, key, v), 0) << key << ": " << last_error().message;
  }
  return spec;
}

// Relative difference that f32 arithmetic explains, in units of u = 2^-24. Both sides take the same steps from scalars
// in f64 and differ by the error of torch's vector pow (1 ulp = 2 u; ours is rounded, u), and by how quotients are
// formed (a product with the reciprocal instead of a division: 2 u each).
//   default  f = 1 / p: 3 u from the powers, 2 u from the quotient
//   linear   one more quotient
//   dynamic  the base is itself such a power times theta, and p = base^k with k < 1 hands its error on: 3 + 2 u more
//   yarn     two quotients, and products and a sum of positive terms: 3 u; the ramp comes from equal numbers
//   llama3   t = (o f / 2 pi - low) / (high - low) takes over f's error and 6 u of its own operations, and the result
//            f ((1 - t) / s + t) takes over t's: relative to f by at most a factor of
//            1 + max(low (s - 1), high (1 - 1 / s)) / (high - low), at one of the two ends of the range
double units(const json& attrs) {
  const std::string type = attrs["type"];
  if (type == "default") return 5;
  if (type == "linear") return 7;
  if (type == "dynamic") return 10;
  if (type == "yarn") return 10;
  const double s = attrs["factor"], low = attrs["low_freq_factor"], high = attrs["high_freq_factor"];
  return (5 + 6) * (1 + std::max(low * (s - 1), high * (1 - 1 / s)) / (high - low));
}

struct Freqs {
  std::vector<double> freqs;
  double scale = 0;
};

void expect_published(const json& c, const Freqs& got, const char* what) {
  const std::string where = c["name"].get<std::string>() + ", " + what;
  ASSERT_EQ(got.freqs.size(), c["freqs"].size()) << where;
  const double u = 0x1p-24, bound = units(c["attrs"]) * u;
  for (size_t i = 0; i < got.freqs.size(); ++i) {
    const double want = c["freqs"][i];
    ASSERT_LE(std::fabs(got.freqs[i] - want), bound * want) << where << ": frequency " << i;
  }
  const double scale = c["scale"];  // f64 there; rounded to f32 by us
  EXPECT_LE(std::fabs(got.scale - scale), u * scale) << where;
}

Freqs by_reference(OpSpec spec, const std::vector<int64_t>& lengths) {
  ops::RefTensors t;
  if (!lengths.empty()) {
    ops::RefTensor& l = t["lengths"];
    l.dtype = DGPU_DTYPE_I64, l.shape = {static_cast<int64_t>(lengths.size())}, l.i = lengths;
    EXPECT_EQ(ops::set_port(spec, "lengths", packed(DGPU_DTYPE_I64, l.shape)), 0) << last_error().message;
  }
  for (const char* port : {"freqs", "scale"}) {
    dgpuTensorDesc d = DGPU_TENSOR_DESC_INIT;
    EXPECT_EQ(ops::infer(spec, port, d), 0) << last_error().message;
    spec.ports[port] = d;
  }
  EXPECT_EQ(ops::reference(spec, t), 0) << last_error().message;
  return {t["freqs"].f, t["scale"].f.empty() ? 0 : t["scale"].f[0]};
}

Freqs by_kernel(const OpSpec& spec, const std::vector<int64_t>& lengths) {
  Case c("rope_freqs");
  c.spec.attrs = spec.attrs;
  if (!lengths.empty())
    c.port("lengths", packed(DGPU_DTYPE_I64, {static_cast<int64_t>(lengths.size())}),
           [&](int64_t i) { return static_cast<double>(lengths[static_cast<size_t>(i)]); });
  c.out("freqs", DGPU_DTYPE_F32).out("scale", DGPU_DTYPE_F32);
  EXPECT_EQ(c.run(), 0) << kit::failure();
  return {c.result("freqs"), c.result("scale")[0]};
}

TEST(PublishedRope, ReferenceAndKernelMeetTransformers) {
  const json doc = published("rope.json");
  ASSERT_FALSE(doc.is_null()) << "tests/data/transformers/rope.json is missing";
  std::map<std::string, int> types;
  for (const auto& c : doc["cases"]) {
    const OpSpec spec = spec_of(c["attrs"]);
    const auto lengths = c["lengths"].get<std::vector<int64_t>>();
    expect_published(c, by_reference(spec, lengths), "reference");
    expect_published(c, by_kernel(spec, lengths), "cpu");
    ++types[c["attrs"]["type"]];
  }
  for (const char* type : {"default", "linear", "dynamic", "llama3", "yarn"}) EXPECT_GE(types[type], 9) << type;
}

// The builder gets the operator's attributes from a config as it is published, in the old and in the new style.
TEST(PublishedRope, ConfigsOfBothStylesGiveTheSameFrequencies) {
  const json doc = published("rope.json");
  ASSERT_FALSE(doc.is_null()) << "tests/data/transformers/rope.json is missing";
  int styles[2] = {0, 0};
  for (const auto& c : doc["cases"]) {
    const std::string name = c["name"];
    json config = {{"architectures", {"LlamaForCausalLM"}},
                   {"model_type", "llama"},
                   {"hidden_size", 64},
                   {"num_attention_heads", 4},
                   {"num_hidden_layers", 1},
                   {"intermediate_size", 8},
                   {"vocab_size", 16}};
    config.update(c["config"]);
    if (c["attrs"]["dim"] != config["head_dim"]) continue;  // this family rotates whole heads
    model::JsonNode node;
    ASSERT_EQ(model::parse_json(config.dump(), name, node), 0) << last_error().message;
    std::shared_ptr<const model::Model> model;
    ASSERT_EQ(model::Model::from_config(node, name, "", model), 0) << name << ": " << last_error().message;
    const auto& nodes = model->program().nodes;
    const auto at = std::find_if(nodes.begin(), nodes.end(), [](const auto& n) { return n.op == "rope_freqs"; });
    ASSERT_NE(at, nodes.end()) << name;
    OpSpec spec;
    spec.name = at->op;
    spec.attrs = at->attrs;
    const Freqs got = by_reference(spec, c["lengths"].get<std::vector<int64_t>>());
    expect_published(c, got, "config");
    ++styles[name.find("old") != std::string::npos];
  }
  EXPECT_GE(styles[0], 15);
  EXPECT_GE(styles[1], 15);
}

// A missing key means what the family's config class fills in: writing that value changes nothing, neither the program
// nor an error about other keys.
TEST(PublishedDefaults, MissingKeysMeanWhatTheConfigClassesSay) {
  const json doc = published("defaults.json");
  ASSERT_FALSE(doc.is_null()) << "tests/data/transformers/defaults.json is missing";
  for (const auto& [family, defaults] : doc["families"].items()) {
    const auto program = [&, type = family](const json& more) {
      json config = {{"model_type", type},      {"hidden_size", 512},     {"num_attention_heads", 32},
                     {"intermediate_size", 24}, {"num_hidden_layers", 2}, {"vocab_size", 16}};
      config.update(more);
      model::JsonNode node;
      EXPECT_EQ(model::parse_json(config.dump(), "config.json", node), 0);
      std::shared_ptr<const model::Model> model;
      if (model::Model::from_config(node, "config.json", "", model) != 0) return std::string(last_error().message);
      return graph::to_text(model->program()) + std::to_string(model->program().max_positions);
    };
    for (const auto& [key, value] : defaults.items()) {
      json given = json::object();
      given[key] = value;
      // Where the switch is off by default, the size of the window shows only with it.
      if (key == "sliding_window" && defaults.contains("use_sliding_window")) given["use_sliding_window"] = true;
      json left_out = given;
      left_out.erase(key);
      const auto without = program(left_out), with = program(given);
      EXPECT_TRUE(with == without) << family << ": " << key << " = " << value << " is not what its absence means:\n"
                                   << without.substr(0, 200) << "\n"
                                   << with.substr(0, 200);
    }
  }
}

}  // namespace
}  // namespace dgpu::cpu::test
