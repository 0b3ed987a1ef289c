// Templates as files: closed world, errors, hostile input, a family of one's own.
#include "model/template.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/config.h"
#include "model/model.h"

namespace dgpu::model {
namespace {

namespace fs = std::filesystem;

const char* const kSmall = R"({"model_type":"llama","architectures":["LlamaForCausalLM"],"hidden_size":16,
  "num_hidden_layers":2,"num_attention_heads":2,"num_key_value_heads":1,"intermediate_size":24,"vocab_size":32,
  "rms_norm_eps":1e-5,"max_position_embeddings":64,"tie_word_embeddings":false})";

JsonNode config(const std::string& text) {
  JsonNode out;
  EXPECT_EQ(parse_json(text, "config.json", out), 0) << last_error().message;
  return out;
}
// `text` with one member replaced or added.
std::string with(std::string text, const std::string& key, const std::string& value) {
  const size_t at = text.find("\"" + key + "\":");
  if (at == std::string::npos) return text.insert(1, "\"" + key + "\":" + value + ",");
  const size_t from = at + key.size() + 3;
  size_t to = from;
  for (int depth = 0; to < text.size() && (depth > 0 || (text[to] != ',' && text[to] != '}')); ++to)
    depth += (text[to] == '[') - (text[to] == ']');
  return text.replace(from, to - from, value);
}

class Directory {
 public:
  Directory() : path_(fs::temp_directory_path() / fmt::format("dgpu_template_test.{}.{}", getpid(), count_++)) {
    fs::create_directories(path_);
  }
  ~Directory() { fs::remove_all(path_); }
  std::string path() const { return path_.string(); }
  void write(const std::string& name, const std::string& text) { std::ofstream(path_ / name) << text; }

 private:
  static inline int count_ = 0;
  fs::path path_;
};

Status build(const std::string& text, const std::string& path = "", std::shared_ptr<const Model>* out = nullptr) {
  std::shared_ptr<const Model> model;
  const Status s = Model::from_config(config(text), "config.json", path, model);
  if (out) *out = model;
  return s;
}
#define EXPECT_REFUSED(text, key, part)                                                                 \
  do {                                                                                                  \
    EXPECT_LT(build(text), 0) << text;                                                                  \
    EXPECT_STREQ(last_error().object, key) << last_error().message;                                     \
    EXPECT_NE(std::string(last_error().message).find(part), std::string::npos) << last_error().message; \
  } while (0)

TEST(Template, BuiltInOnesParse) {
  TemplateSet set;
  ASSERT_EQ(set.load(""), 0) << last_error().message;
  size_t families = 0;
  for (const TemplateFile& f : set.files()) {
    if (!f.json.find("match")) continue;
    std::unique_ptr<Template> t;
    EXPECT_EQ(parse_template(set, f, t), 0) << last_error().message;
    ++families;
  }
  EXPECT_GE(families, 8u);
  EXPECT_EQ(build(kSmall), 0) << last_error().message;
}

TEST(Template, UnknownKeysAreRefused) {
  EXPECT_REFUSED(with(kSmall, "logit_scale", "2"), "logit_scale", "template llama");
  EXPECT_REFUSED(with(kSmall, "rope_scaling", R"({"rope_type":"default","gamma":1})"), "rope_scaling.gamma",
                 "unknown key");
  EXPECT_REFUSED(with(kSmall, "rope_scaling", R"({"rope_type":"default","factor":2.0})"), "rope_scaling.factor",
                 "no meaning");
  EXPECT_REFUSED(with(kSmall, "rope_scaling", R"({"rope_type":"linear"})"), "rope_scaling.factor", "needs it");
  EXPECT_REFUSED(with(kSmall, "rope_scaling", R"({"rope_type":"warp","factor":2})"), "rope_scaling.rope_type", "warp");
  EXPECT_REFUSED(with(kSmall, "quantization_config", "{}"), "quantization_config", "unknown key");
}

TEST(Template, AbsurdValuesAreRefused) {
  for (const char* key : {"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"})
    for (const char* value : {"0", "-4", "1e30", "99999999999", "\"8\"", "2.5", "null", "[1]", "true"})
      EXPECT_REFUSED(with(kSmall, key, value), key, key);
  EXPECT_REFUSED(with(kSmall, "num_key_value_heads", "3"), "num_key_value_heads", "divide");
  EXPECT_REFUSED(with(kSmall, "head_dim", "0"), "head_dim", "from 1");
  EXPECT_REFUSED(with(kSmall, "head_dim", "5"), "head_dim", "odd");
  EXPECT_REFUSED(with(kSmall, "hidden_size", "1"), "hidden_size", "smaller");
  EXPECT_REFUSED(with(kSmall, "num_hidden_layers", "1025"), "num_hidden_layers", "1024");
  EXPECT_REFUSED(with(kSmall, "rms_norm_eps", "Infinity"), "rms_norm_eps", "finite");
  EXPECT_REFUSED(with(kSmall, "rms_norm_eps", "NaN"), "rms_norm_eps", "finite");
  EXPECT_REFUSED(with(kSmall, "rms_norm_eps", R"({"__float__":"Infinity"})"), "rms_norm_eps", "finite");
  EXPECT_REFUSED(with(kSmall, "hidden_act", "\"tanhshrink\""), "hidden_act", "supported: silu");
  EXPECT_REFUSED(with(with(kSmall, "rope_theta", "5.0"), "rope_parameters", R"({"rope_theta":6.0})"),
                 "rope_parameters.rope_theta", "contradicts rope_theta");
  EXPECT_REFUSED("{}", "model_type", "neither");
  EXPECT_REFUSED(with(kSmall, "architectures", "[\"QwenForCausalLM\"]"), "architectures", "known families:");
  EXPECT_REFUSED(with(kSmall, "model_type", "\"mixtral\""), "model_type", "contradicts architectures");
}

TEST(Template, LargestAcceptedConfigStaysSmallInMemory) {
  std::shared_ptr<const Model> model;
  ASSERT_EQ(build(with(kSmall, "num_hidden_layers", "1024"), "", &model), 0) << last_error().message;
  EXPECT_EQ(model->program().layers, 1024);
}

TEST(Template, JsonIsStrict) {
  JsonNode out;
  EXPECT_EQ(parse_json(R"({"a":1,"a":2})", "c", out), DGPU_STATUS_PARSE_ERROR);
  EXPECT_NE(std::string(last_error().message).find("appears twice"), std::string::npos);
  EXPECT_EQ(parse_json("{\"a\":\n 1,}", "c", out), DGPU_STATUS_PARSE_ERROR);
  EXPECT_NE(std::string(last_error().message).find("c:2:4"), std::string::npos) << last_error().message;
  EXPECT_EQ(parse_json(std::string(100000, '['), "c", out), DGPU_STATUS_PARSE_ERROR);
  for (const char* bad : {"", "{", "[1", "01", "1.", "nul", "\"\\x\"", "\"\\ud800\"", "{\"a\" 1}", "1 2", "\"\n\""})
    EXPECT_EQ(parse_json(bad, "c", out), DGPU_STATUS_PARSE_ERROR) << bad;
  ASSERT_EQ(parse_json(R"([0.0, Infinity, -Infinity, NaN, {"__float__":"Infinity"}, "\u00e9\ud83d\ude00"])", "c", out),
            0);
  EXPECT_EQ(out.items[5].string, "\xc3\xa9\xf0\x9f\x98\x80");
  EXPECT_EQ(out.items[4].number, out.items[1].number);
}

// ---- A family of one's own -----------------------------------------------------------------------------------------

const char* const kTiny = R"tmpl({
  "template": 1, "name": "tiny", "base": "common",
  "match": {"model_type": ["tiny"], "architectures": ["TinyForCausalLM"]},
  "model": {"layers": "layers", "hidden": "H", "vocab": "V"},
  "keys": {"layers": {"key": "n_layer", "type": "dim", "max": 8}, "H": "n_embd", "V": "vocab_size", "nh": "n_head"},
  "let": {"hd": "H // nh"},
  "blocks": {
    "start": {"weights": {"e": "wte.weight [V,H]"}, "flow": ["return embedding(e, tokens)"]},
    "layer": {
      "args": ["x"], "prefix": "h.{i}.",
      "states": {"c": "kv(k=[nh,hd], v=[nh,hd])"},
      "weights": {"w": "qkv.weight [H,3*H] | transpose(1, 0)", "o": "proj.weight [H,H]"},
      "flow": [
        "q, k, v = split(linear(rms_norm(x, eps=1e-5), w), [H, H, H])",
        "k, v = append(c, heads(k, nh), heads(v, nh))",
        "return x + (linear(merge(attention(heads(q, nh), source(k, v), scale=hd**-0.5)), o) @attn)"
      ]
    },
    "finish": {"args": ["x"], "weights": {"e": "wte.weight [V,H]"}, "flow": ["return linear(x, e, keep='f32')"]}
  }
})tmpl";
const char* const kTinyConfig =
    R"({"model_type":"tiny","architectures":["TinyForCausalLM"],"n_layer":2,"n_embd":8,"n_head":2,"vocab_size":10})";

// The path is a setting like the others: a call beats the environment.
TEST(Template, PathOfTheSettings) {
  Directory d;
  d.write("tiny.json", kTiny);
  EXPECT_EQ(build(kTinyConfig), DGPU_STATUS_UNSUPPORTED);
  ASSERT_EQ(config_set("DGPU_TEMPLATE_PATH", d.path().c_str()), 0);
  EXPECT_EQ(build(kTinyConfig), 0) << last_error().message;
  ASSERT_EQ(config_set("DGPU_TEMPLATE_PATH", nullptr), 0);
}

TEST(Template, FamilyInAFileOfItsOwn) {
  Directory d;
  d.write("tiny.json", kTiny);
  d.write("other.json", R"({"not": "a template"})");
  std::shared_ptr<const Model> model;
  ASSERT_EQ(build(kTinyConfig, d.path(), &model), 0) << last_error().message;
  EXPECT_EQ(model->program().family, "tiny");
  EXPECT_EQ(model->parameters(), 10u * 8 + 2 * (8 * 24 + 64));
  EXPECT_EQ(model->program().states.size(), 4u);
  setenv("DGPU_TEMPLATE_PATH", d.path().c_str(), 1);
  EXPECT_EQ(build(kTinyConfig), 0) << last_error().message;
  unsetenv("DGPU_TEMPLATE_PATH");
  EXPECT_EQ(build(kTinyConfig), DGPU_STATUS_UNSUPPORTED);
  EXPECT_NE(std::string(last_error().message).find("docs/templates.md"), std::string::npos);
  EXPECT_EQ(build(kTinyConfig, d.path() + "/nothing"), DGPU_STATUS_NOT_FOUND);
}

// One change of the small family's text that must be refused with a message that contains `part`.
void refused(const std::string& from, const std::string& to, const std::string& part) {
  std::string text = kTiny;
  const size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  Directory d;
  d.write("tiny.json", text);
  EXPECT_LT(build(kTinyConfig, d.path()), 0) << to;
  EXPECT_NE(std::string(last_error().message).find(part), std::string::npos) << to << ": " << last_error().message;
}

TEST(Template, MistakesHaveOneClearMessage) {
  refused("\"let\": {", "\"lets\": {", "unknown member");
  refused("\"hd\": \"H // nh\"", "\"hd\": \"H // \"", "let.hd, column 6: expected a value");
  refused("\"hd\": \"H // nh\"", "\"hd\": \"gone // nh\"", "unknown name gone");
  refused("\"hd\": \"H // nh\"", "\"hd\": \"sub\", \"sub\": \"hd + 1\"", "depends on itself");
  refused("\"hd\": \"H // nh\"", "\"hd\": \"H // nh\", \"idle\": \"3\"", "nothing uses it");
  refused("\"o\": \"proj", "\"H\": \"proj", "hides");
  refused("q, k, v = split", "hd, k, v = split", "hides a named scalar");
  refused("q, k, v = split", "w, k, v = split", "hides a weight");
  refused("proj.weight [H,H]", "proj.weight [H,H+1]", "blocks.layer.flow[2]");
  refused("proj.weight [H,H]", "proj.weight", "expected '[' and the shape");
  refused("transpose(1, 0)", "transpose(1, 1)", "every axis once");
  refused("[H, H, H]", "[H, H]", "split: sizes");
  refused("append(c, heads(k, nh)", "append(c, k", "entries of other extents");
  refused("rms_norm(x, eps=1e-5)", "rms_norm(x)", "eps");
  refused("rms_norm(x, eps=1e-5)", "rms_norm(x, eps=1e-5, rms=2)", "no port or attribute rms");
  refused("rms_norm(x, eps=1e-5)", "group_norm(x)", "unknown name group_norm");
  refused("kv(k=[nh,hd]", "shelf(k=[nh,hd]", "no kind of state");
  refused("v=[nh,hd])", "v=[nh,hd], window=4)", "window or chunk of 1 to 4");
  refused("return x + (linear", "x = x + (linear", "must return 1 values");
  refused("\"H\": \"n_embd\"", "\"H\": \"n_embd\", \"spare\": \"n_spare\"", "nothing uses it");
  refused("\"base\": \"common\"", "\"base\": \"tiny\"", "circle");
  refused("proj.weight [H,H]", "proj.weight [H,H] tp=column", "found column");
  refused("keep='f32'", "keep='f64'", "keep must be 'f32'");
  refused("\"match\": {", "\"match\": {\"modeltype\": [\"x\"], ", "match.modeltype: unknown member");
  refused("@attn)", "@attn) if i > 5", "must return 1 values");
  refused("wte.weight [V,H]\"}, \"flow\": [\"return linear", "wte.weight [H,V]\"}, \"flow\": [\"return linear",
          "elsewhere");
  refused("\"o\": \"proj", "\"spare\": \"spare.weight [H]\", \"o\": \"proj", "does not use it");
}

TEST(Template, HostileTemplatesEnd) {
  refused("\"hd\": \"H // nh\"", "\"hd\": \"len([1 for j in range(100000) if all([k < 0 for k in range(100000)])])\"",
          "more than");
  refused("\"hd\": \"H // nh\"",
          "\"hd\": \"[[[[k for k in range(900)] for l in range(900)] for m in range(900)] for n in range(900)]\"",
          "more than");
  refused("proj.weight [H,H]", "proj.{e}.weight [H,H] each e < 1000000000", "stack of");
  refused("proj.weight [H,H]", "proj.weight [H*1000000000*1000000000*1000000000,H]", "leaves 64 bits");
  refused("proj.weight [H,H]", "proj.weight [H*1000000000,H*1000000000]", "too large");
  refused("return x + (linear", "return layer(x) + (linear", "");
}

}  // namespace
}  // namespace dgpu::model
