#include "model/config.h"

#include <algorithm>
#include <cmath>

namespace dgpu::model {

using T = JsonNode::Type;

static constexpr double kMaxDim = 1 << 24;           // extents: no model is near it, and products stay in 64 bits
static constexpr double kMaxInt = 9007199254740992;  // 2^53: exact as a double
static constexpr size_t kMaxList = 1 << 16;

Scalars::Scalars(const Template& t, const JsonNode& config, std::string file)
    : t_(t), top_(config), file_(std::move(file)) {
  if (!config.is(T::Object)) throw Fault{DGPU_STATUS_PARSE_ERROR, file_, fmt::format("{}: expected an object", file_)};
  for (const std::string& root : t.roots) {
    if (root.empty()) {
      root_ = &top_;
      break;
    }
    const JsonNode* found = config.find(root);
    if (found && found->is(T::Object)) {
      root_ = found, root_name_ = root;
      break;
    }
  }
  if (!root_) bad(t.roots[0], "the object is missing");
  for (const KeyEntry& k : t.keys) cells_[k.name].key = &k;
  for (const Named& n : t.let) cells_[n.name].expr = n.expr.get();
  for (const Named& n : t.layer_let) cells_[n.name] = {nullptr, n.expr.get(), true};
}

void Scalars::bad(const std::string& key, const std::string& message) const {
  throw Fault{DGPU_STATUS_INVALID_ARGUMENT, key,
              fmt::format("{}: key {}: {} (template {})", file_, key, message, t_.name)};
}

// ---- Closed world --------------------------------------------------------------------------------------------------

void Scalars::check_world() const {
  check_object(*root_, root_name_.empty() ? "" : root_name_ + ".", 0, root_ == &top_);
  if (root_ != &top_) check_object(top_, "", 0, true);
}

static bool always_read(const std::string& key) { return key == "architectures" || key == "model_type"; }

// Members of `object`, reached through `prefix`, must be the next step of some key's path, or inert.
void Scalars::check_object(const JsonNode& object, const std::string& prefix, size_t depth, bool top) const {
  const bool nested = root_ != &top_;
  for (const auto& [name, value] : object.members) {
    if (depth == 0 && top && always_read(name)) continue;
    if (depth == 0 && top && nested && name == root_name_) continue;
    if (depth == 0 && t_.inert_reason(name)) continue;
    const std::string full = prefix + name;
    bool known = false, whole = false;
    for (const KeyEntry& k : t_.keys) {
      for (const auto& path : k.paths) {
        const bool from_top = path[0] == "/";
        std::string text = from_top || !nested ? "" : root_name_ + ".";
        for (size_t i = from_top; i < path.size(); ++i) {
          text += (i > static_cast<size_t>(from_top) ? "." : "") + path[i];
          if (text != full) continue;
          known = true;
          whole |= i + 1 == path.size();
        }
      }
    }
    if (!known)
      bad(full, "unknown key: the template neither reads it nor lists it as inert, so the result might be wrong");
    if (!whole && value.is(T::Object)) check_object(value, full + ".", depth + 1, top);
  }
}

// ---- Named scalars -------------------------------------------------------------------------------------------------

bool Scalars::lookup(std::string_view name, int64_t layer, const Expr& at, Val& out) {
  const auto it = cells_.find(std::string(name));
  if (it == cells_.end()) return false;
  const Cell& cell = it->second;
  if (cell.per_layer && layer < 0)
    fault(at, fmt::format("{} is a scalar per layer, and this is outside the layers", name));
  Slot& slot = slots_[{it->first, cell.per_layer ? layer : -1}];
  if (slot.busy) {
    std::string chain;
    for (const std::string& b : busy_) chain += b + " -> ";
    fault(at, fmt::format("{} depends on itself: {}{}", name, chain, name));
  }
  if (!slot.done) {
    slot.busy = true;
    busy_.push_back(it->first);
    slot.value = value_of(cell, cell.per_layer ? layer : -1);
    busy_.pop_back();
    slot.busy = false, slot.done = true;
  }
  out = slot.value;
  return true;
}

Val Scalars::value_of(const Cell& cell, int64_t layer) {
  return cell.key ? read_key(*cell.key) : eval_(*cell.expr, layer);
}

void Scalars::read_all() {
  Expr nowhere;
  const Source source{t_.file, "keys", ""};
  nowhere.source = &source;
  Val ignored;
  for (const KeyEntry& k : t_.keys) lookup(k.name, -1, nowhere, ignored);
}

void Scalars::check_rules(Evaluator& evaluator) {
  for (const CheckEntry& c : t_.checks) {
    const Val ok = eval_(*c.that, -1);
    if (!ok.get<bool>()) fault(*c.that, fmt::format("expected true or false, got {}", text_of(ok)));
    if (!*ok.get<bool>()) bad(c.key, evaluator.interpolate(c.text));
  }
}

// ---- Keys ----------------------------------------------------------------------------------------------------------

std::vector<Scalars::Found> Scalars::find(const KeyEntry& k) const {
  std::vector<Found> out;
  for (const auto& path : k.paths) {
    const bool from_top = path[0] == "/";
    const JsonNode* at = from_top ? &top_ : root_;
    std::string text = from_top || root_name_.empty() ? "" : root_name_ + ".";
    for (size_t i = from_top; i < path.size() && at; ++i) {
      text += (i > static_cast<size_t>(from_top) ? "." : "") + path[i];
      at = at->find(path[i]);
    }
    if (at) out.push_back({text, at});
  }
  // In a key with a struct, null says nothing if another alias says something.
  if (k.type == "struct" && out.size() > 1) {
    const auto nulls = [](const Found& f) { return f.json->is(T::Null); };
    if (!std::all_of(out.begin(), out.end(), nulls))
      out.erase(std::remove_if(out.begin(), out.end(), nulls), out.end());
  }
  return out;
}

Val Scalars::read_key(const KeyEntry& k) {
  const std::vector<Found> found = find(k);
  for (size_t i = 1; i < found.size(); ++i)
    if (!same(*found[0].json, *found[i].json))
      bad(found[i].path, fmt::format("{} contradicts {} = {}; they mean the same", brief(*found[i].json), found[0].path,
                                     brief(*found[0].json)));
  std::string first = k.paths[0][0] == "/" ? "" : root_name_.empty() ? "" : root_name_ + ".";
  for (size_t i = k.paths[0][0] == "/"; i < k.paths[0].size(); ++i)
    first += (first.empty() || first.back() == '.' ? "" : ".") + k.paths[0][i];
  Val v = found.empty() ? missing(k, first) : convert(k, *found[0].json, found[0].path);
  role(k, v);
  return v;
}

Val Scalars::missing(const KeyEntry& k, const std::string& path) {
  if (!k.absent) bad(path, "the key is missing, and the template has no default for it");
  Val v = eval_(*k.absent, -1);
  // An absent struct is an empty one.
  if (k.type == "struct" && v.map() && v.map()->empty()) {
    JsonNode empty;
    empty.type = T::Object;
    return k.kinds.empty() ? read_struct(*t_.find_struct(k.struct_name), empty, path)
                           : read_kinds(k, *t_.find_struct(k.struct_name), empty, path);
  }
  return v;
}

Val Scalars::convert(const KeyEntry& k, const JsonNode& j, const std::string& path) {
  if (j.is(T::Null)) {
    if (k.null_is_absent) return missing(k, path);
    if (k.null) return eval_(*k.null, -1);
    bool listed = k.type == "any" && k.in.empty();
    for (const JsonNode& v : k.in) listed |= v.is(T::Null);
    if (!listed) bad(path, "null has no meaning here");
    return Val();
  }
  Val v = typed(k, j, path);
  accept(k, j, path);
  return v;
}

void Scalars::accept(const KeyEntry& k, const JsonNode& j, const std::string& path) const {
  if (k.in.empty()) return;
  std::string list;
  for (const JsonNode& v : k.in) {
    if (same(v, j)) return;
    list += (list.empty() ? "" : ", ") + brief(v);
  }
  bad(path, fmt::format("{} is not supported; supported: {}", brief(j), list));
}

static Val plain(const JsonNode& j) {
  switch (j.type) {
    case T::Null:
      return Val();
    case T::Bool:
      return Val(j.boolean);
    case T::Int:
      return Val(j.integer);
    case T::Float:
      return Val(j.number);
    case T::String:
      return Val(j.string);
    case T::Array: {
      List out;
      for (const JsonNode& item : j.items) out.push_back(plain(item));
      return Val(std::move(out));
    }
    default: {
      Map out;
      for (const auto& [key, value] : j.members) out.emplace_back(key, plain(value));
      return Val(std::move(out));
    }
  }
}

Val Scalars::typed(const KeyEntry& k, const JsonNode& j, const std::string& path) {
  auto wrong = [&](std::string_view what) { bad(path, fmt::format("expected {}, got {}", what, brief(j))); };
  if (k.type == "dim" || k.type == "int") {
    const double low = k.min.value_or(k.type == "dim" ? 1 : -kMaxInt),
                 high = k.max.value_or(k.type == "dim" ? kMaxDim : kMaxInt);
    if (!j.is(T::Int) || j.number < low || j.number > high) wrong(fmt::format("an integer from {} to {}", low, high));
    return Val(j.integer);
  }
  if (k.type == "number") {
    if (!j.is(T::Int) && !j.is(T::Float)) wrong("a number");
    if (std::isnan(j.number) || (std::isinf(j.number) && !k.infinite)) wrong("a finite number");
    if (k.above && !(j.number > *k.above)) wrong(fmt::format("a number above {}", *k.above));
    if (k.min && j.number < *k.min) wrong(fmt::format("a number of at least {}", *k.min));
    if (k.max && j.number > *k.max) wrong(fmt::format("a number of at most {}", *k.max));
    return Val(j.number);
  }
  if (k.type == "bool") {
    if (!j.is(T::Bool)) wrong("true or false");
    return Val(j.boolean);
  }
  if (k.type == "string") {
    if (!j.is(T::String)) wrong("a string");
    if (k.values.empty()) return Val(j.string);
    std::string list;
    for (const auto& [from, to] : k.values) {
      if (from == j.string) return Val(to);
      list += (list.empty() ? "" : ", ") + from;
    }
    bad(path, fmt::format("{} is not supported; supported: {}", brief(j), list));
  }
  if (k.type == "list") return list(k, j, path);
  if (k.type == "struct") {
    const StructDef& s = *t_.find_struct(k.struct_name);
    if (!j.is(T::Object)) wrong("an object");
    return k.kinds.empty() ? read_struct(s, j, path) : read_kinds(k, s, j, path);
  }
  return plain(j);
}

// How the config spells a key that an expression names; the expression's text for anything else.
std::string Scalars::key_text(const Expr& e) const {
  const auto cell = e.op == Op::Name ? cells_.find(e.name) : cells_.end();
  if (cell != cells_.end() && cell->second.key) return cell->second.key->key_text;
  return e.source ? e.source->text : "";
}

Val Scalars::list(const KeyEntry& k, const JsonNode& j, const std::string& path) {
  if (!j.is(T::Array)) bad(path, fmt::format("expected a list, got {}", brief(j)));
  if (j.items.size() > kMaxList)
    bad(path, fmt::format("a list of {}, expected at most {} elements", j.items.size(), kMaxList));
  if (k.length) {
    const Val n = eval_(*k.length, -1);
    if (!n.get<int64_t>() || *n.get<int64_t>() != static_cast<int64_t>(j.items.size()))
      bad(path,
          fmt::format("a list of {}, expected {} elements ({})", j.items.size(), text_of(n), key_text(*k.length)));
  }
  List out;
  for (size_t i = 0; i < j.items.size(); ++i)
    out.push_back(k.each ? convert(*k.each, j.items[i], fmt::format("{}[{}]", path, i)) : plain(j.items[i]));
  return Val(std::move(out));
}

void Scalars::role(const KeyEntry& k, const Val& v) {
  if (k.role == "limit" && v.get<int64_t>()) limits_.emplace_back(k.key_text, *v.get<int64_t>());
  if (k.role != "dtype" || !v.get<std::string>()) return;
  const std::string& s = *v.get<std::string>();
  dtype_ = s == "bfloat16" ? DGPU_DTYPE_BF16 : s == "float16" ? DGPU_DTYPE_F16 : s == "float32" ? DGPU_DTYPE_F32 : 0;
}

// ---- Structs -------------------------------------------------------------------------------------------------------

// One struct for every kind, or an object with one per kind.
Val Scalars::read_kinds(const KeyEntry& k, const StructDef& s, const JsonNode& j, const std::string& path) {
  const auto is_kind = [&](const std::string& name) {
    return std::find(k.kinds.begin(), k.kinds.end(), name) != k.kinds.end();
  };
  const bool per_kind =
      std::any_of(j.members.begin(), j.members.end(), [&](const auto& m) { return is_kind(m.first); });
  for (const auto& [name, value] : j.members) {
    if (!per_kind) break;
    if (!is_kind(name))
      bad(path + "." + name,
          "unknown key: the template neither reads it nor lists it as inert, so the result might be wrong");
    if (!value.is(T::Object)) bad(path + "." + name, fmt::format("expected an object, got {}", brief(value)));
  }
  Map out;
  for (const std::string& kind : k.kinds) {
    const JsonNode* own = per_kind ? j.find(kind) : &j;
    if (!own) bad(path + "." + kind, "the key is missing, and the template has no default for it");
    out.emplace_back(kind, read_struct(s, *own, per_kind ? path + "." + kind : path));
  }
  return Val(std::move(out));
}

Val Scalars::field(const KeyEntry& k, const JsonNode& object, const std::string& path) {
  const JsonNode* first = nullptr;
  std::string first_path;
  for (const auto& alias : k.paths) {
    const JsonNode* found = object.find(alias[0]);
    if (!found) continue;
    const std::string full = path + "." + alias[0];
    if (first && !same(*first, *found))
      bad(full, fmt::format("{} contradicts {} = {}; they mean the same", brief(*found), first_path, brief(*first)));
    if (!first) first = found, first_path = full;
  }
  if (first) return convert(k, *first, first_path);
  return k.absent ? eval_(*k.absent, -1) : Val();
}

static bool present(const KeyEntry& k, const JsonNode& object) {
  return std::any_of(k.paths.begin(), k.paths.end(),
                     [&](const auto& alias) { return object.find(alias[0]) != nullptr; });
}

Val Scalars::read_struct(const StructDef& s, const JsonNode& j, const std::string& path) {
  for (const auto& [name, value] : j.members) {
    bool known = false;
    for (const KeyEntry& k : s.keys)
      for (const auto& alias : k.paths) known |= alias[0] == name;
    if (!known)
      bad(path + "." + name,
          "unknown key: the template neither reads it nor lists it as inert, so the result might be wrong");
  }
  const StructCase* chosen = nullptr;
  std::string tag, tag_key;  // the key that chooses, as this config spells it
  if (!s.by.empty()) {
    const auto by = std::find_if(s.keys.begin(), s.keys.end(), [&](const KeyEntry& k) { return k.name == s.by; });
    const Val v = field(*by, j, path);
    const auto spelled =
        std::find_if(by->paths.begin(), by->paths.end(), [&](const auto& alias) { return j.find(alias[0]); });
    tag_key = spelled == by->paths.end() ? by->paths[0][0] : (*spelled)[0];
    tag = v.get<std::string>() ? *v.get<std::string>() : text_of(v);
    std::string list;
    for (const StructCase& c : s.cases) {
      if (c.name == tag) chosen = &c;
      list += (list.empty() ? "" : ", ") + c.name;
    }
    if (!chosen) bad(path + "." + tag_key, fmt::format("{} is not supported; supported: {}", tag, list));
  }
  Map out;
  for (const KeyEntry& k : s.keys) {
    const std::string full = path + "." + k.paths[0][0];
    if (!chosen || k.name == s.by) {
      out.emplace_back(k.name, field(k, j, path));
      continue;
    }
    const auto f =
        std::find_if(chosen->fields.begin(), chosen->fields.end(), [&](const auto& x) { return x.first == k.name; });
    if (f == chosen->fields.end() && present(k, j))
      bad(full, fmt::format("the key has no meaning with {} {}", tag_key, tag));
    if (f == chosen->fields.end()) {
      out.emplace_back(k.name, Val());
      continue;
    }
    if (f->second && !present(k, j)) bad(full, fmt::format("the key is missing, and {} {} needs it", tag_key, tag));
    out.emplace_back(k.name, field(k, j, path));
  }
  return Val(std::move(out));
}

}  // namespace dgpu::model
