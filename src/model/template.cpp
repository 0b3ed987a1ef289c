// From JSON to Template: bases are merged entry by entry, then every expression is parsed.
#include "model/template.h"

#include <algorithm>

#include "model/template_lint.h"

namespace dgpu::model {

template <typename T>
static const T* by_name(const std::vector<T>& list, std::string_view name) {
  for (const T& item : list)
    if (item.name == name) return &item;
  return nullptr;
}
const Block* Template::block(std::string_view n) const { return by_name(blocks, n); }
const ExternDef* Template::find_extern(std::string_view n) const { return by_name(externs, n); }
const StructDef* Template::find_struct(std::string_view n) const { return by_name(structs, n); }
const std::string* Template::inert_reason(std::string_view key) const {
  for (const auto& [inert_key, reason] : inert)
    if (inert_key == key) return &reason;
  return nullptr;
}

namespace {

using T = JsonNode::Type;

// A member of a section, with the file that it comes from.
struct Entry {
  std::string name, file;
  const JsonNode* json;
};
struct Section {
  std::vector<Entry> entries;
};

const char* const kSections[] = {"keys",         "structs", "let",    "layer_let", "inert",
                                 "skip_weights", "extern",  "blocks", "model",     "checks"};
const char* const kSingles[] = {"root", "prefix", "scope", "layer_block"};
const char* const kOwn[] = {"template", "name", "base", "abstract", "match", "about"};

[[noreturn]] void bad(const std::string& file, const JsonNode& at, const std::string& place,
                      const std::string& message) {
  throw Fault{DGPU_STATUS_PARSE_ERROR, file, fmt::format("{}:{}:{}: {}: {}", file, at.line, at.column, place, message)};
}

class Loader {
 public:
  Loader(const TemplateSet& set, Template& out) : set_(set), t_(out) {}

  void load(const TemplateFile& file) {
    t_.name = file.name, t_.file = file.file;
    merge(file, 0);
    singles();
    for (const Entry& e : sections_["structs"].entries) read_struct(e);
    for (const Entry& e : sections_["keys"].entries)
      t_.keys.push_back(read_key(e.name, *e.json, e.file, "keys." + e.name));
    named("let", t_.let);
    named("layer_let", t_.layer_let);
    named("model", t_.model);
    for (const Entry& e : sections_["inert"].entries)
      t_.inert.emplace_back(e.name, text(*e.json, e.file, "inert." + e.name, "the reason"));
    for (const Entry& e : sections_["skip_weights"].entries) read_skip(e);
    for (const Entry& e : sections_["extern"].entries) read_extern(e);
    for (const Entry& e : sections_["blocks"].entries) read_block(e);
    for (const Entry& e : sections_["checks"].entries) read_check(e);
  }

 private:
  // ---- Merging

  void merge(const TemplateFile& file, int depth) {
    if (depth > 8)
      throw Fault{DGPU_STATUS_PARSE_ERROR, file.file,
                  fmt::format("{}: more than 8 bases, or a circle of them", file.file)};
    if (!file.json.is(T::Object)) bad(file.file, file.json, "file", "expected an object");
    if (const JsonNode* base = file.json.find("base")) {
      const std::string name = text(*base, file.file, "base", "the name of a template");
      const TemplateFile* found = set_.find(name);
      if (!found) bad(file.file, *base, "base", fmt::format("no template {}", name));
      merge(*found, depth + 1);
    }
    for (const auto& [key, value] : file.json.members) member(file, key, value);
  }
  void member(const TemplateFile& file, const std::string& key, const JsonNode& value) {
    for (const char* s : kSections)
      if (key == s) return section(file, sections_[key], key, value);
    for (const char* s : kSingles)
      if (key == s) return void(singles_[key] = {key, file.file, &value});
    if (key == "match") check_match(file, value);
    for (const char* s : kOwn)
      if (key == s) return;
    bad(file.file, value, key, "unknown member of a template");
  }
  // A misspelt member would make the template match nothing, or more than it says.
  static void check_match(const TemplateFile& file, const JsonNode& value) {
    if (!value.is(T::Object)) bad(file.file, value, "match", "expected an object");
    for (const auto& [key, names] : value.members) {
      if (key != "model_type" && key != "architectures")
        bad(file.file, names, "match." + key, "unknown member; known are: model_type architectures");
      const bool texts = names.is(T::Array) && std::all_of(names.items.begin(), names.items.end(),
                                                           [](const JsonNode& n) { return n.is(T::String); });
      if (!texts) bad(file.file, names, "match." + key, "expected a list of strings");
    }
  }
  static void section(const TemplateFile& file, Section& into, const std::string& place, const JsonNode& value) {
    if (!value.is(T::Object)) bad(file.file, value, place, "expected an object");
    for (const auto& [name, json] : value.members) {
      auto it = std::find_if(into.entries.begin(), into.entries.end(),
                             [&, &n = name](const Entry& e) { return e.name == n; });
      if (json.is(T::Null)) {
        if (it == into.entries.end())
          bad(file.file, json, place + "." + name, "null removes an entry of the base, and there is none");
        into.entries.erase(it);
      } else if (it != into.entries.end()) {
        *it = {name, file.file, &json};
      } else {
        into.entries.push_back({name, file.file, &json});
      }
    }
  }

  // ---- Small pieces

  static std::string text(const JsonNode& j, const std::string& file, const std::string& place, std::string_view what) {
    if (!j.is(T::String)) bad(file, j, place, fmt::format("expected {} as a string, got {}", what, brief(j)));
    return j.string;
  }
  const Source& source(const JsonNode& j, const std::string& file, const std::string& place) {
    t_.sources.push_back({file + ":" + std::to_string(j.line), place, text(j, file, place, "an expression")});
    return t_.sources.back();
  }
  ExprPtr expr(const JsonNode& j, const std::string& file, const std::string& place) {
    if (j.is(T::String)) return parse_expr(source(j, file, place));
    // Numbers, booleans and null stand for themselves.
    JsonNode as_text = j;
    as_text.type = T::String;
    as_text.string = j.is(T::Null) ? "null" : j.is(T::Bool) ? (j.boolean ? "true" : "false") : brief(j);
    if (j.is(T::Array) || j.is(T::Object)) bad(file, j, place, "expected an expression as a string");
    return parse_expr(source(as_text, file, place));
  }
  Interpolated interpolated(const JsonNode& j, const std::string& file, const std::string& place) {
    return parse_interpolated(source(j, file, place));
  }
  static void only(const JsonNode& j, const std::string& file, const std::string& place,
                   std::initializer_list<const char*> allowed) {
    if (!j.is(T::Object)) bad(file, j, place, fmt::format("expected an object, got {}", brief(j)));
    for (const auto& [key, value] : j.members) {
      bool known = false;
      for (const char* a : allowed) known |= key == a;
      if (known) continue;
      std::string list;
      for (const char* a : allowed) list += fmt::format(" {}", a);
      bad(file, value, place + "." + key, "unknown member; known are:" + list);
    }
  }
  static std::vector<std::string> texts(const JsonNode& j, const std::string& file, const std::string& place) {
    if (!j.is(T::Array)) bad(file, j, place, fmt::format("expected a list of strings, got {}", brief(j)));
    std::vector<std::string> out;
    for (const JsonNode& item : j.items) out.push_back(text(item, file, place, "an element"));
    return out;
  }

  void singles() {
    t_.roots = {""};
    t_.prefix.text = {""};
    for (const auto& [key, e] : singles_) {
      if (key == "root") t_.roots = texts(*e.json, e.file, key);
      if (key == "prefix") t_.prefix = interpolated(*e.json, e.file, key);
      if (key == "layer_block") t_.layer_block = expr(*e.json, e.file, key);
      if (key != "scope") continue;
      t_.scope = text(*e.json, e.file, key, "causal or whole");
      if (t_.scope != "causal" && t_.scope != "whole") bad(e.file, *e.json, key, "expected causal or whole");
    }
  }
  void named(const std::string& section, std::vector<Named>& out) {
    for (const Entry& e : sections_[section].entries) {
      out.push_back({e.name, expr(*e.json, e.file, section + "." + e.name)});
    }
  }

  // ---- Keys

  std::vector<std::vector<std::string>> paths(const std::string& text, const JsonNode& j, const std::string& file,
                                              const std::string& place) {
    std::vector<std::vector<std::string>> out;
    size_t at = 0;
    while (at <= text.size()) {
      const size_t bar = std::min(text.find('|', at), text.size());
      std::string alias = text.substr(at, bar - at);
      std::vector<std::string> path;
      if (!alias.empty() && alias[0] == '/') path.push_back("/"), alias.erase(0, 1);
      for (size_t from = 0; from <= alias.size();) {
        const size_t dot = std::min(alias.find('.', from), alias.size());
        if (dot == from) bad(file, j, place, fmt::format("empty key in \"{}\"", text));
        path.push_back(alias.substr(from, dot - from));
        from = dot + 1;
      }
      out.push_back(std::move(path));
      at = bar + 1;
    }
    return out;
  }
  void number(const JsonNode& j, const char* name, std::optional<double>& out, const std::string& file,
              const std::string& place) {
    const JsonNode* n = j.find(name);
    if (!n) return;
    if (!n->is(T::Int) && !n->is(T::Float)) bad(file, *n, place, fmt::format("{} must be a number", name));
    out = n->number;
  }

  KeyEntry read_key(const std::string& name, const JsonNode& j, const std::string& file, const std::string& place) {
    KeyEntry k;
    k.name = name, k.file = file;
    if (j.is(T::String)) {
      k.key_text = j.string, k.type = "dim";
      k.paths = paths(j.string, j, file, place);
      return k;
    }
    only(j, file, place,
         {"key", "type", "absent", "null", "in", "values", "min", "max", "above", "infinite", "struct", "kinds", "each",
          "length", "role", "about"});
    if (const JsonNode* key = j.find("key"))
      k.key_text = text(*key, file, place, "the key"), k.paths = paths(k.key_text, *key, file, place);
    else
      k.key_text = name, k.paths = {{name}};
    if (const JsonNode* s = j.find("struct")) k.struct_name = text(*s, file, place, "the name of a struct");
    rules(k, j, file, place);
    if (const JsonNode* a = j.find("absent")) k.absent = expr(*a, file, place + ".absent");
    if (const JsonNode* n = j.find("null")) {
      if (n->is(T::Bool) && n->boolean)
        k.null_is_absent = true;
      else
        k.null = expr(*n, file, place + ".null");
    }
    if (const JsonNode* n = j.find("kinds")) k.kinds = texts(*n, file, place + ".kinds");
    if (const JsonNode* n = j.find("length")) k.length = expr(*n, file, place + ".length");
    if (const JsonNode* n = j.find("role")) {
      k.role = text(*n, file, place, "the role");
      if (k.role != "limit" && k.role != "dtype") bad(file, *n, place, "expected the role limit or dtype");
    }
    if (const JsonNode* n = j.find("each")) {
      k.each = std::make_unique<KeyEntry>(read_key(name, *n, file, place + ".each"));
      k.each->key_text = k.key_text;
    }
    return k;
  }
  void rules(KeyEntry& k, const JsonNode& j, const std::string& file, const std::string& place) {
    static const char* const types[] = {"dim", "int", "number", "bool", "string", "list", "any", "struct"};
    if (const JsonNode* in = j.find("in")) {
      if (!in->is(T::Array) || in->items.empty()) bad(file, *in, place, "in must be a list of accepted values");
      k.in = in->items;
    }
    if (const JsonNode* values = j.find("values")) {
      if (!values->is(T::Object)) bad(file, *values, place, "values must be an object of strings");
      for (const auto& [from, to] : values->members) k.values.emplace_back(from, text(to, file, place, "the meaning"));
    }
    number(j, "min", k.min, file, place);
    number(j, "max", k.max, file, place);
    number(j, "above", k.above, file, place);
    if (const JsonNode* n = j.find("infinite")) k.infinite = n->is(T::Bool) && n->boolean;
    if (const JsonNode* type = j.find("type"))
      k.type = text(*type, file, place, "the type");
    else
      k.type = !k.struct_name.empty() ? "struct" : !k.values.empty() ? "string" : !k.in.empty() ? "any" : "";
    if ((k.type == "struct") != !k.struct_name.empty())
      bad(file, j, place, "type struct and the name of a struct go together: add \"struct\": \"NAME\"");
    bool known = false;
    for (const char* t : types) known |= k.type == t;
    if (!known)
      bad(file, j, place, fmt::format("type \"{}\" is none of dim int number bool string list any struct", k.type));
  }

  void read_struct(const Entry& e) {
    const std::string place = "structs." + e.name;
    only(*e.json, e.file, place, {"keys", "by", "cases", "about"});
    StructDef s;
    s.name = e.name;
    const JsonNode* keys = e.json->find("keys");
    if (!keys || !keys->is(T::Object)) bad(e.file, *e.json, place, "a struct needs keys");
    for (const auto& [name, json] : keys->members) s.keys.push_back(read_key(name, json, e.file, place + "." + name));
    if (const JsonNode* by = e.json->find("by")) {
      s.by = text(*by, e.file, place, "the name of a field");
      if (!by_name(s.keys, s.by)) bad(e.file, *by, place, fmt::format("the struct has no field {}", s.by));
    }
    if (const JsonNode* cases = e.json->find("cases")) {
      if (!cases->is(T::Object) || s.by.empty()) bad(e.file, *cases, place, "cases need \"by\" and must be an object");
      for (const auto& [name, json] : cases->members) s.cases.push_back(read_case(name, json, s, e.file, place));
    }
    t_.structs.push_back(std::move(s));
  }
  static StructCase read_case(const std::string& name, const JsonNode& j, const StructDef& s, const std::string& file,
                              const std::string& place) {
    StructCase c;
    c.name = name;
    std::string word, list = text(j, file, place, "field names") + " ";
    for (char ch : list) {
      if (ch != ' ') {
        word += ch;
        continue;
      }
      if (word.empty()) continue;
      const bool optional = word.back() == '?';
      if (optional) word.pop_back();
      if (!by_name(s.keys, word)) bad(file, j, place + "." + name, fmt::format("the struct has no field {}", word));
      c.fields.emplace_back(std::move(word), !optional);
      word.clear();
    }
    return c;
  }

  void read_check(const Entry& e) {
    const std::string place = "checks." + e.name;
    only(*e.json, e.file, place, {"that", "key", "text"});
    const JsonNode *that = e.json->find("that"), *key = e.json->find("key"), *say = e.json->find("text");
    if (!that || !key || !say) bad(e.file, *e.json, place, "a check needs that, key and text");
    CheckEntry c;
    c.that = expr(*that, e.file, place);
    c.key = text(*key, e.file, place, "the key");
    c.text = interpolated(*say, e.file, place);
    t_.checks.push_back(std::move(c));
  }

  // ---- Weights, blocks, operators

  void read_skip(const Entry& e) {
    const std::string place = "skip_weights." + e.name;
    SkipEntry s;
    s.pattern = e.name;
    if (e.json->is(T::String)) {
      s.reason = e.json->string;
    } else {
      only(*e.json, e.file, place, {"if", "reason"});
      const JsonNode *condition = e.json->find("if"), *reason = e.json->find("reason");
      if (!condition || !reason) bad(e.file, *e.json, place, "expected if and reason");
      s.condition = expr(*condition, e.file, place);
      s.reason = text(*reason, e.file, place, "the reason");
    }
    t_.skips.push_back(std::move(s));
  }

  void read_extern(const Entry& e) {
    const std::string place = "extern." + e.name;
    only(*e.json, e.file, place, {"ports", "attrs", "out", "about"});
    ExternDef x;
    x.name = e.name;
    const JsonNode *ports = e.json->find("ports"), *outs = e.json->find("out");
    if (!ports || !outs || !outs->is(T::Object)) bad(e.file, *e.json, place, "an extern operator needs ports and out");
    for (std::string p : texts(*ports, e.file, place)) {
      ExternPort port;
      if (p.size() > 6 && p.substr(p.size() - 6) == " inout") port.inout = true, p.resize(p.size() - 6);
      if (!p.empty() && p.back() == '?') port.optional = true, p.pop_back();
      port.name = p;
      x.ports.push_back(port);
    }
    if (const JsonNode* attrs = e.json->find("attrs")) x.attrs = texts(*attrs, e.file, place);
    for (const auto& [name, json] : outs->members) {
      ExternDef::Out out;
      out.name = name;
      std::string shape = text(json, e.file, place, "the shape");
      JsonNode copy = json;
      const size_t space = shape.rfind(' ');
      const std::string last = space == std::string::npos ? "" : shape.substr(space + 1);
      if (last == "f32" || last == "i32" || last == "i64") out.dtype = last, copy.string = shape.substr(0, space);
      out.shape = expr(copy, e.file, place + "." + name);
      x.outs.push_back(std::move(out));
    }
    t_.externs.push_back(std::move(x));
  }

  void read_block(const Entry& e) {
    const std::string place = "blocks." + e.name;
    only(*e.json, e.file, place, {"args", "prefix", "weights", "states", "flow", "about"});
    Block b;
    b.name = e.name;
    b.prefix.text = {""};
    if (const JsonNode* args = e.json->find("args")) b.args = texts(*args, e.file, place + ".args");
    if (const JsonNode* prefix = e.json->find("prefix")) b.prefix = interpolated(*prefix, e.file, place + ".prefix");
    if (const JsonNode* weights = e.json->find("weights")) {
      if (!weights->is(T::Object)) bad(e.file, *weights, place, "weights must be an object");
      for (const auto& [name, json] : weights->members)
        b.weights.push_back(read_weight(name, json, e.file, place + ".weights." + name));
    }
    if (const JsonNode* states = e.json->find("states")) {
      if (!states->is(T::Object)) bad(e.file, *states, place, "states must be an object");
      for (const auto& [name, json] : states->members)
        b.states.push_back({name, expr(json, e.file, place + ".states." + name)});
    }
    const JsonNode* flow = e.json->find("flow");
    if (!flow) bad(e.file, *e.json, place, "a block needs a flow");
    b.flow = read_flow(*flow, e.file, place + ".flow");
    t_.blocks.push_back(std::move(b));
  }

  WeightPart read_part(const JsonNode& j, const std::string& file, const std::string& place) {
    WeightPart p;
    p.text = parse_weight(source(j, file, place));
    JsonNode name = j;
    name.string = p.text.name;
    p.name = interpolated(name, file, place);
    return p;
  }
  WeightDecl read_weight(const std::string& name, const JsonNode& j, const std::string& file,
                         const std::string& place) {
    WeightDecl w;
    w.name = name;
    if (j.is(T::String)) {
      w.parts.push_back(read_part(j, file, place));
      WeightText& t = w.parts[0].text;
      w.condition = std::move(t.condition), w.tp = t.tp, w.dtype = t.dtype;
      w.source = t.shape->source;
      return w;
    }
    only(j, file, place, {"concat", "of", "then", "if", "tp", "type", "about"});
    const JsonNode *axis = j.find("concat"), *of = j.find("of");
    if (!axis || !axis->is(T::Int) || axis->integer < 0 || !of || !of->is(T::Array) || of->items.empty())
      bad(file, j, place, "a weight of several tensors needs concat (an axis) and of (a list)");
    w.concat = axis->integer;
    for (const JsonNode& item : of->items) {
      w.parts.push_back(read_part(item, file, place));
      if (w.parts.back().text.condition) bad(file, item, place, "the condition belongs to the whole weight");
    }
    w.source = w.parts[0].text.shape->source;
    if (const JsonNode* then = j.find("then")) {
      JsonNode as_weight = *then;
      as_weight.string = "- [0] " + text(*then, file, place, "steps such as | reshape(..)");
      w.then = std::move(parse_weight(source(as_weight, file, place + ".then")).steps);
    }
    if (const JsonNode* c = j.find("if")) w.condition = expr(*c, file, place + ".if");
    if (const JsonNode* c = j.find("tp")) w.tp = text(*c, file, place, "the hint");
    if (const JsonNode* c = j.find("type")) w.dtype = text(*c, file, place, "f32 or i64");
    return w;
  }

  std::vector<Step> read_flow(const JsonNode& j, const std::string& file, const std::string& place, int depth = 0) {
    if (!j.is(T::Array)) bad(file, j, place, "expected a list of statements");
    if (depth > 8) bad(file, j, place, "groups nested more than 8 deep");
    std::vector<Step> out;
    for (const JsonNode& item : j.items) {
      const std::string at = fmt::format("{}[{}]", place, &item - j.items.data());
      Step step;
      if (item.is(T::String)) {
        step.source = &source(item, file, at);
        step.statement = parse_statement(*step.source);
      } else {
        only(item, file, at, {"if", "then", "else"});
        const JsonNode *c = item.find("if"), *then = item.find("then"), *otherwise = item.find("else");
        if (!c || !then) bad(file, item, at, "a group needs if and then");
        step.group_if = expr(*c, file, at);
        step.then = read_flow(*then, file, at + ".then", depth + 1);
        if (otherwise) step.otherwise = read_flow(*otherwise, file, at + ".else", depth + 1);
      }
      out.push_back(std::move(step));
    }
    return out;
  }

  const TemplateSet& set_;
  Template& t_;
  std::map<std::string, Section> sections_;
  std::map<std::string, Entry> singles_;
};

}  // namespace

Status parse_template(const TemplateSet& set, const TemplateFile& file, std::unique_ptr<Template>& out) {
  auto parsed = std::make_unique<Template>();
  try {
    Loader(set, *parsed).load(file);
    lint(*parsed);
  } catch (const Fault& f) {
    return fail_text(f.status, f.object, f.message);
  }
  out = std::move(parsed);
  return DGPU_STATUS_SUCCESS;
}

}  // namespace dgpu::model
