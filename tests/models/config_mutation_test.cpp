// Every key of every fixture's config gets other values, other types, null, and goes missing; the fixture's own weights
// are loaded and run with each. What comes out is an error that names the key (or the tensor of a shape that it gives),
// another output, or what the lists below say, and nothing that they say unnecessarily.
#include "config_mutations.h"
#include "model/template.h"

namespace dgpu::test {
namespace {

using R = MutableModel::Result;

// Outputs that differ by less count as the same: this is what two right f32 implementations may differ by (`compare`).
constexpr double kSame = 1e-5;

// A fixture, or one with some keys changed, so that keys that act only there are mutated, too: these then, and no
// other.
struct Fixture {
  std::string name, model;
  Json changes = Json::object();  // null erases the key
};

const std::vector<Fixture>& fixtures() {
  static const auto* all = [] {
    auto* out = new std::vector<Fixture>;
    for (const auto& name : first_wave()) out->push_back({name, name});
    // Ranges of yarn that end between the pairs of the head, so that none of its keys is rounded away.
    Json yarn = {{"rope_type", "yarn"},
                 {"rope_theta", 10000.0},
                 {"factor", 4.0},
                 {"beta_fast", 2.0},
                 {"beta_slow", 0.25},
                 {"truncate", false},
                 {"original_max_position_embeddings", 64}};
    Json scaled = yarn;
    scaled["attention_factor"] = 1.25;
    yarn["mscale"] = 0.75, yarn["mscale_all_dim"] = 1.25;
    out->push_back({"yarn", "llama3-scaled-tied", {{"rope_parameters", yarn}}});
    out->push_back({"yarn-attention-factor", "llama3-scaled-tied", {{"rope_parameters", scaled}}});
    out->push_back({"linear", "mistral-window", {{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}}});
    out->push_back({"dynamic",
                    "llama3-scaled-tied",
                    {{"rope_parameters", {{"type", "dynamic"}, {"factor", 2.0}, {"rope_theta", 10000.0}}},
                     {"max_position_embeddings", 16}}});
    const Json window = {{"use_sliding_window", true}, {"sliding_window", 5}};
    Json counted = window;
    counted["layer_types"] = nullptr, counted["max_window_layers"] = 1;
    Json listed = window;
    listed["max_window_layers"] = 28;
    listed["layer_types"] = {"full_attention", "sliding_attention", "full_attention"};
    out->push_back({"qwen2-counted-windows", "qwen2-bias", counted});
    out->push_back({"qwen3-counted-windows", "qwen3", counted});
    out->push_back({"qwen3-listed-windows", "qwen3", listed});
    out->push_back({"qwen3-moe-window", "qwen3-moe", window});
    return out;
  }();
  return *all;
}

// ---- Lists with reasons --------------------------------------------------------------------------------------------

// Keys that these fixtures cannot show, and with which other keys they do: `with` is set (null erases) in both runs.
struct Hidden {
  const char* reason;
  Json with;
};
const std::map<std::string, Hidden>& hidden() {
  const Json window = {{"use_sliding_window", true}, {"sliding_window", 5}, {"layer_types", nullptr}};
  Json size = window, use = window, layers = window;
  size.erase("sliding_window"), size["max_window_layers"] = 0;
  use.erase("use_sliding_window"), use["max_window_layers"] = 0;
  layers["max_window_layers"] = 28;
  const char *off = "use_sliding_window is false", *none = "sliding_window is null",
             *given = "no layer has a window: use_sliding_window is false, and layer_types is given";
  static const auto* all = new std::map<std::string, Hidden>{
      {"qwen2-bias/sliding_window", {off, size}},
      {"qwen3/sliding_window", {off, size}},
      {"qwen2-bias/use_sliding_window", {none, use}},
      {"qwen3/use_sliding_window", {none, use}},
      {"qwen2-bias/max_window_layers", {given, layers}},
      {"qwen3/max_window_layers", {given, layers}},
      {"qwen3-moe/sliding_window", {off, {{"use_sliding_window", true}}}},
      {"qwen3-moe/use_sliding_window", {none, {{"sliding_window", 5}}}},
      {"qwen3-listed-windows/max_window_layers", {"layer_types is given", {{"layer_types", nullptr}}}},
  };
  return *all;
}

// Keys that the program reports and does not compute with: `inspect` must differ instead of the output.
const std::map<std::string, const char*> kReported = {
    {"max_position_embeddings", "a limit; tokens beyond it run"},
    {"dtype", "what a checkpoint is synthesised in and expected to be; its tensors say what they are"},
    {"torch_dtype", "what a checkpoint is synthesised in and expected to be; its tensors say what they are"},
};
// ... but not here:
const std::map<std::string, const char*> kActs = {
    {"dynamic/max_position_embeddings", "the frequencies change from this length on"},
};

// Other words for what the fixture says.
const std::map<std::string, const char*> kSynonyms = {
    {"mlp_only_layers = [1,1]", "a layer that is listed twice"},
};

// ---- One fixture ---------------------------------------------------------------------------------------------------

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr size_t kEvery = 16;  // a sample: these builds are there for what a run does to memory, not for what it gives
#else
constexpr size_t kEvery = 1;
#endif

void apply(const Json& changes, Json& config) {
  for (const auto& [key, value] : changes.items())
    if (value.is_null())
      config.erase(key);
    else
      config[key] = value;
}

class ConfigMutation : public ::testing::TestWithParam<Fixture> {
 protected:
  using Path = std::vector<std::string>;
  using Visit = std::function<void(const Path& path, const Json& value)>;

  void SetUp() override {
    const auto dir = model_dir(GetParam().model);
    if (dir.empty()) GTEST_SKIP() << "model " << GetParam().model << " is only in ../shared, which is not here";
    std::ifstream in(dir + "/config.json");
    config_ = Json::parse(in);
    apply(GetParam().changes, config_);
    ASSERT_NO_FATAL_FAILURE(model_.open(dir, GetParam().name));
    base_ = model_.run(config_);
    ASSERT_EQ(base_.state, R::Ran) << base_.message;
    read_template();
    read_tensors(dir);
  }

  void read_template() {
    model::JsonNode config;
    model::TemplateSet set;
    const model::TemplateFile* file = nullptr;
    ASSERT_EQ(model::parse_json(config_.dump(), "config.json", config), 0);
    ASSERT_EQ(set.load(""), 0);
    ASSERT_EQ(set.match(config, "config.json", file), 0);
    ASSERT_EQ(model::parse_template(set, *file, template_), 0);
  }
  void read_tensors(const std::string& dir) {
    std::shared_ptr<model::SafetensorsFile> f;
    ASSERT_EQ(model::SafetensorsFile::open(dir + "/model.safetensors", f), 0);
    for (const auto& [name, info] : f->tensors()) tensors_.insert(name);
  }

  static void each_key(const Json& object, const Path& above, const Visit& visit) {
    for (const auto& [key, value] : object.items()) {
      Path path = above;
      path.push_back(key);
      visit(path, value);
      if (value.is_object()) each_key(value, path, visit);
    }
  }
  static std::string text(const Path& path) {
    std::string out;
    for (const auto& p : path) out += (out.empty() ? "" : ".") + p;
    return out;
  }
  static Json changed(Json config, const Path& path, const Mutation& m) {
    Json* at = &config;
    for (size_t i = 0; i + 1 < path.size(); ++i) at = &(*at)[path[i]];
    if (m.absent)
      at->erase(path.back());
    else
      (*at)[path.back()] = m.value;
    return config;
  }

  // A refusal names the key; one by shape names a tensor that the checkpoint has or should have.
  void expect_named(const R& r, const std::string& key, const std::string& where) const {
    EXPECT_FALSE(r.object.empty()) << where << ": " << r.message;
    const bool named = r.object == key || r.message.find(key) != std::string::npos;
    const bool tensor =
        r.state == R::NotLoaded && (tensors_.count(r.object) || r.object.find(".weight") != std::string::npos ||
                                    r.object.find(".bias") != std::string::npos);
    EXPECT_TRUE(named || tensor) << where << ": the message names neither the key nor a tensor: [" << r.object << "] "
                                 << r.message;
    EXPECT_NE(r.state, R::NotRun) << where << ": loaded, but cannot run: " << r.message;
  }

  bool differs(const R& r) const { return distance(r.logits, base_.logits) > kSame; }

  void mutate(const Path& path, const Json& value);
  void expect_shown_with(const Path& path, const Hidden& h);

  MutableModel model_;
  Json config_;
  R base_;
  std::unique_ptr<model::Template> template_;
  std::set<std::string> tensors_;
  size_t keys_ = 0, tried_ = 0, refused_ = 0, differing_ = 0, count_ = 0;
};

void ConfigMutation::mutate(const Path& path, const Json& value) {
  const std::string key = path.back(), full = text(path), id = GetParam().name + "/" + full;
  const auto* inert = path.size() == 1 ? template_->inert_reason(key) : nullptr;
  const bool excused = inert || hidden().count(id), reported = kReported.count(key) && !kActs.count(id);
  EXPECT_FALSE(inert && inert->empty()) << id << " is inert without a reason";
  ++keys_;
  size_t accepted = 0, acted = 0;  // of the other values
  for (const auto& m : mutations(key, value)) {
    if (count_++ % kEvery) continue;
    const std::string where = id + " = " + m.text();
    const R r = model_.run(changed(config_, path, m));
    ++tried_;
    if (r.state != R::Ran) {
      ++refused_;
      acted += m.kind == Mutation::Other && r.state == R::NotLoaded;
      expect_named(r, key, where);
      EXPECT_FALSE(inert) << where << ": inert keys are not read: " << r.message;
      continue;
    }
    EXPECT_TRUE(inert || m.kind != Mutation::Type) << where << ": another type is accepted";
    differing_ += differs(r);
    accepted += m.kind == Mutation::Other;
    acted += m.kind == Mutation::Other && differs(r);
    if (excused || reported) {
      EXPECT_EQ(r.logits, base_.logits) << where << " has an effect, and is listed as having none";
      const bool same_report = r.inspect == base_.inspect;
      EXPECT_TRUE(!excused || same_report) << where << " is reported differently, though it has no effect";
      EXPECT_FALSE(reported && m.kind == Mutation::Other && same_report) << where << " is not reported";
    } else if (m.kind == Mutation::Other) {
      const bool synonym = kSynonyms.count(key + " = " + m.text()) != 0;
      // Small steps of eps and theta: within kSame, but not nothing.
      EXPECT_NE(r.logits == base_.logits, !synonym)
          << where << (synonym ? " has an effect, and is listed as a synonym" : " changes nothing");
    }
  }
  if (kEvery > 1 || excused || reported) return;
  EXPECT_TRUE(acted || !accepted) << id << ": no value makes a difference beyond " << kSame;
}

// What this fixture cannot show, it shows with other keys changed as well.
void ConfigMutation::expect_shown_with(const Path& path, const Hidden& h) {
  const std::string where = GetParam().name + "/" + text(path);
  Json with = config_;
  apply(h.with, with);
  const R before = model_.run(with);
  ASSERT_EQ(before.state, R::Ran) << where << ": " << before.message;
  double largest = 0;
  for (const auto& m : mutations(path.back(), with.contains(path.back()) ? with[path.back()] : Json())) {
    if (m.kind != Mutation::Other) continue;
    const R r = model_.run(changed(with, path, m));
    if (r.state == R::Ran) largest = std::max(largest, distance(r.logits, before.logits));
  }
  EXPECT_GT(largest, kSame) << where << ": shows nothing with " << h.with.dump() << " either; is it read at all?";
}

TEST_P(ConfigMutation, EveryKeyIsRefusedActsOrIsListed) {
  const Json& changes = GetParam().changes;
  each_key(config_, {}, [&](const Path& path, const Json& value) {
    if (!changes.empty() && !changes.contains(path[0])) return;
    mutate(path, value);
    const auto h = hidden().find(GetParam().name + "/" + text(path));
    if (h != hidden().end() && kEvery == 1) expect_shown_with(path, h->second);
  });
  EXPECT_GT(keys_, changes.empty() ? 20u : 1u);
  printf("%s: %zu keys, %zu other configs: %zu refused, %zu with another output\n", GetParam().name.c_str(), keys_,
         tried_, refused_, differing_);
}

INSTANTIATE_TEST_SUITE_P(All, ConfigMutation, ::testing::ValuesIn(fixtures()), [](const auto& parameter) {
  std::string name = parameter.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

// The lists name fixtures and keys that exist, so that none of their lines outlives its cause.
TEST(ConfigMutationLists, NameWhatExists) {
  std::set<std::string> all;
  bool whole = true;
  for (const auto& f : fixtures()) {
    const auto dir = model_dir(f.model);
    if (dir.empty()) {
      whole = false;
      continue;
    }
    std::ifstream in(dir + "/config.json");
    Json config = Json::parse(in);
    apply(f.changes, config);
    for (const auto& [key, value] : config.items()) all.insert(f.name + "/" + key), all.insert(key);
  }
  if (!whole) GTEST_SKIP() << "some models are only in ../shared, which is not here";
  for (const auto& [id, h] : hidden()) EXPECT_TRUE(all.count(id)) << id;
  for (const auto& [key, reason] : kReported) EXPECT_TRUE(all.count(key)) << key;
  for (const auto& [id, reason] : kActs) EXPECT_TRUE(all.count(id)) << id;
}

}  // namespace
}  // namespace dgpu::test
