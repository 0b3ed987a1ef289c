// An architecture template: a JSON file that says how config, weights and dataflow of a model family become a program.
// docs/templates.md describes the format. A Template is parsed and checked; it knows no particular config.
#pragma once
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/expr.h"
#include "model/json_text.h"

namespace dgpu::model {

// ---- Where templates come from -------------------------------------------------------------------------------------

struct TemplateFile {
  std::string name;  // "llama"
  std::string file;  // path, or "built-in llama.json"
  JsonNode json;
};

// Files of the directories in `paths` (':' between, earlier ones first), then of DGPU_TEMPLATE_PATH, then the built-in
// ones; a name found earlier hides later ones.
class TemplateSet {
 public:
  Status load(std::string_view paths);
  const TemplateFile* find(std::string_view name) const;
  // The one template for the model_type and architectures of a config.
  Status match(const JsonNode& config, std::string_view config_file, const TemplateFile*& out) const;
  const std::vector<TemplateFile>& files() const { return files_; }

 private:
  Status add_directory(const std::string& directory);
  Status add(std::string name, std::string file, JsonNode json);
  std::vector<TemplateFile> files_;
};

struct BuiltinTemplate {
  const char* name;
  std::string_view text;
};
const std::vector<BuiltinTemplate>& builtin_templates();  // generated from architectures/*.json

// ---- Parts of a template -------------------------------------------------------------------------------------------

struct KeyEntry {
  std::string name;                             // in expressions
  std::vector<std::vector<std::string>> paths;  // aliases; each a path of keys; a first element "/" starts at the top
  std::string key_text;                         // as written, for messages
  std::string type;                             // dim int number bool string list any struct
  ExprPtr absent, null;                         // value when the key is missing, or null
  bool null_is_absent = false;
  std::vector<JsonNode> in;                                 // accepted values; empty: any
  std::vector<std::pair<std::string, std::string>> values;  // accepted strings and what they mean
  std::optional<double> min, max, above;
  bool infinite = false;  // infinity is accepted
  std::string struct_name;
  std::vector<std::string> kinds;  // a struct per kind, or one for all
  std::unique_ptr<KeyEntry> each;  // elements of a list
  ExprPtr length;                  // of a list
  std::string role;                // "", limit, dtype
  std::string file;
};

struct StructCase {
  std::string name;
  std::vector<std::pair<std::string, bool>> fields;  // name, required
};
struct StructDef {
  std::string name;
  std::vector<KeyEntry> keys;  // their paths are relative to the struct
  std::string by;              // the field that chooses the case; "": one case
  std::vector<StructCase> cases;
};

struct Named {
  std::string name;
  ExprPtr expr;
};

struct CheckEntry {
  ExprPtr that;
  std::string key;
  Interpolated text;
};

struct WeightPart {
  WeightText text;
  Interpolated name;
};
struct WeightDecl {
  std::string name;
  std::vector<WeightPart> parts;
  int64_t concat = -1;  // axis along which the parts follow each other; -1: one part
  std::vector<WeightText::Step> then;
  ExprPtr condition;
  std::string tp, dtype;
  const Source* source = nullptr;
};

struct Step {
  Statement statement;
  const Source* source = nullptr;
  // A group instead of a statement: {"if": .., "then": [..], "else": [..]}
  ExprPtr group_if;
  std::vector<Step> then, otherwise;
};

struct Block {
  std::string name;
  std::vector<std::string> args;
  Interpolated prefix;
  std::vector<WeightDecl> weights;
  std::vector<Named> states;
  std::vector<Step> flow;
};

struct ExternPort {
  std::string name;
  bool optional = false, inout = false;
};
struct ExternDef {
  std::string name;
  std::vector<ExternPort> ports;
  std::vector<std::string> attrs;
  struct Out {
    std::string name;
    ExprPtr shape;      // a list of extents; sees the input ports by name
    std::string dtype;  // "" activation, f32, i32, i64
  };
  std::vector<Out> outs;
};

struct SkipEntry {
  std::string pattern, reason;
  ExprPtr condition;
};

struct Template {
  std::string name, file;
  std::vector<std::string> roots;
  Interpolated prefix;
  std::string scope = "causal";
  std::vector<Named> model;  // layers, hidden, vocab, max_positions
  std::vector<KeyEntry> keys;
  std::vector<StructDef> structs;
  std::vector<Named> let, layer_let;
  std::vector<CheckEntry> checks;
  std::vector<std::pair<std::string, std::string>> inert;
  std::vector<SkipEntry> skips;
  std::vector<ExternDef> externs;
  std::vector<Block> blocks;
  ExprPtr layer_block;
  std::deque<Source> sources;  // referred to by the expressions

  const Block* block(std::string_view name) const;
  const ExternDef* find_extern(std::string_view name) const;
  const StructDef* find_struct(std::string_view name) const;
  const std::string* inert_reason(std::string_view key) const;
};

// Resolves bases, parses everything and checks names. PARSE_ERROR or INVALID_ARGUMENT with file, place and column.
Status parse_template(const TemplateSet& set, const TemplateFile& file, std::unique_ptr<Template>& out);

// Functions that dataflow can call besides operators (builder_calls.cpp), and names of values it starts from.
const std::vector<std::string>& flow_functions();
const std::vector<std::string>& flow_values();

}  // namespace dgpu::model
