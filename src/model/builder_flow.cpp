// Functions of dataflow that are not operators: states, and operators with the step's inputs filled in.
#include <algorithm>

#include "model/builder.h"
#include "model/flow_args.h"

namespace dgpu::model {

using graph::InputKind;
using graph::kNone;
using graph::Shape;

static const char* const kSourceAttrs[] = {"window", "chunk", "every", "ring"};

Val Builder::linear(const Args& args, const Expr& at) {
  static const std::string fn = "linear";
  const FlowArgs a(args, {"x", "weight", "bias", "layout", "activation", "keep"}, at, fn);
  const Val* layout = a.find("layout");
  const std::string order = layout && layout->get<std::string>() ? *layout->get<std::string>() : "nk";
  if (order != "nk" && order != "kn") fault(at, "linear: layout must be 'nk' (rows are outputs) or 'kn'");
  OpCall call;
  call.op = "matmul", call.outputs = {"out"};
  call.attrs["transpose_b"] = order == "nk";
  call.inputs = {{"a", tensor(a.need("x"), at, "x")}, {"b", tensor(a.need("weight"), at, "weight")}};
  if (const Val* bias = a.find("bias")) call.inputs.push_back({"bias", tensor(*bias, at, "bias")});
  if (const Val* act = a.find("activation"))
    call.attrs["activation"] = text_of(*act).substr(1, text_of(*act).size() - 2);
  if (const Val* keep = a.find("keep"); keep && !keep->null()) {
    if (!keep->get<std::string>() || *keep->get<std::string>() != "f32") fault(at, "keep must be 'f32'");
    call.keep = "f32";
  }
  return emit(std::move(call), at);
}

Val Builder::append(const Args& args, const Expr& at) {
  if (args.positional.empty() || !args.named.empty()) fault(at, "append takes a state and one tensor per component");
  StateGroup& g = group(args.positional[0], at);
  if (g.cache == kNone) fault(at, fmt::format("{} has no entries per token", g.name));
  if (args.positional.size() != g.states.size() + 1)
    fault(at, fmt::format("{} has {} components, got {} tensors", g.name, g.states.size(), args.positional.size() - 1));
  const Id slots = add_input(InputKind::CacheSlots, g.cache);
  List out;
  for (size_t c = 0; c < g.states.size(); ++c) {
    const Id x = tensor(args.positional[c + 1], at, g.components[c]);
    const Shape& shape = value(x).shape;
    const std::vector<int64_t>& entry = program_.states[g.states[c]].entry;
    bool fits = shape.size() == entry.size() + 1;
    for (size_t d = 0; fits && d < entry.size(); ++d) fits = !shape[d + 1].symbol && shape[d + 1].value == entry[d];
    if (!fits)
      fault(at, fmt::format("{}.{} has entries of other extents than {}", g.name, g.components[c], shape_text(shape)),
            DGPU_STATUS_INVALID_SHAPE);
    OpCall call;
    call.op = "cache_append";
    call.inputs = {{"x", x}, {"slots", slots}, {"cache", g.current[c], true}};
    out.push_back(emit(std::move(call), at));
  }
  return out.size() == 1 ? out[0] : Val(std::move(out));
}

// The cache whose pages a value has, from its first extent.
Builder::Id Builder::cache_of_entries(Id id) const {
  const Shape& s = program_.values[id].shape;
  if (s.size() < 2 || !s[0].symbol) return kNone;
  const graph::Symbol& sym = program_.symbols[s[0].symbol - 1];
  return sym.base == graph::Base::Pages ? sym.cache : kNone;
}

// Ports and attributes of one key source.
void Builder::add_source(OpCall& call, const Val& src, int64_t number, std::vector<int64_t> (&attrs)[4],
                         const Expr& at) {
  if (!src.field("source_k")) fault(at, fmt::format("attention: expected source(k, v, ..), got {}", text_of(src)));
  const Id k = tensor(*src.field("source_k"), at, "k"), v = tensor(*src.field("source_v"), at, "v");
  const Id cache = cache_of_entries(k);
  if (cache == kNone || cache_of_entries(v) != cache)
    fault(at, "keys and values of a source must be entries of one state");
  const auto port = [&](const char* name) { return fmt::format("{}{}", name, number); };
  call.inputs.push_back({port("k"), k});
  call.inputs.push_back({port("v"), v});
  call.inputs.push_back({port("table"), add_input(InputKind::CacheTable, cache)});
  call.inputs.push_back({port("lengths"), add_input(InputKind::CacheLengths, cache)});
  const graph::Cache& rows = program_.caches[cache];
  if (rows.cap > 0 && !rows.ring())
    call.inputs.push_back({port("k_positions"), add_input(InputKind::CachePositions, cache)});
  if (!src.field("pick")->null()) call.inputs.push_back({port("pick"), tensor(*src.field("pick"), at, "pick")});
  for (size_t a = 0; a < 3; ++a) {
    const Val& n = *src.field(kSourceAttrs[a]);
    if (!n.null() && (!n.get<int64_t>() || *n.get<int64_t>() < 0))
      fault(at, fmt::format("{} must be an integer from 0 on", kSourceAttrs[a]));
    attrs[a].push_back(n.null() ? 0 : *n.get<int64_t>());
  }
  attrs[3].push_back(rows.ring());
  const auto within = [&](int64_t rule) { return rule > 0 && rule <= rows.cap; };
  if (rows.ring() && !within(attrs[0].back()) && !within(attrs[1].back()))
    fault(at,
          fmt::format("attention: the state keeps a window of {} tokens, its source needs window or chunk of 1 to {}",
                      rows.cap, rows.cap));
}

Val Builder::attention(const Args& args, const Expr& at) {
  OpCall call;
  call.op = "attention", call.outputs = {"out"};
  if (args.positional.size() < 2) fault(at, "attention takes q and at least one source(k, v, ..)");
  call.inputs.push_back({"q", tensor(args.positional[0], at, "q")});
  const int64_t sources = static_cast<int64_t>(args.positional.size()) - 1;
  std::vector<int64_t> attrs[4];
  for (int64_t s = 0; s < sources; ++s) add_source(call, args.positional[static_cast<size_t>(s) + 1], s, attrs, at);
  if (sources > 1) call.attrs["sources"] = sources;
  for (size_t a = 0; a < 4; ++a)
    if (std::any_of(attrs[a].begin(), attrs[a].end(), [](int64_t n) { return n != 0; }))
      call.attrs[kSourceAttrs[a]] = attrs[a];
  call.inputs.push_back({"offsets", add_input(InputKind::Offsets)});
  call.inputs.push_back({"positions", add_input(InputKind::Positions)});
  call.attrs["causal"] = true;
  for (const auto& [name, v] : args.named) {
    if (v.null()) continue;
    if (name == "sinks" || name == "bias")
      call.inputs.push_back({name, tensor(v, at, name)});
    else if (name == "scale" || name == "softcap")
      call.attrs[name] = attribute(v, DGPU_ATTR_FLOAT, name, at);
    else if (name == "causal")
      call.attrs[name] = attribute(v, DGPU_ATTR_BOOL, name, at);
    else
      fault(at, fmt::format("attention has no argument {}", name));
  }
  return emit(std::move(call), at);
}

Val Builder::rope(const Args& args, const Expr& at) {
  static const std::string fn = "rope";
  const FlowArgs a(args, {"x", "freqs", "pairing", "at", "angle", "inverse", "positions", "rows", "scale"}, at, fn);
  OpCall call;
  call.op = "rope", call.outputs = {"out"};
  const Id freqs = tensor(a.need("freqs"), at, "freqs");
  const Val* positions = a.find("positions");
  call.inputs = {{"x", tensor(a.need("x"), at, "x")},
                 {"positions", positions ? tensor(*positions, at, "positions") : add_input(InputKind::Positions)},
                 {"freqs", freqs}};
  if (const Val* rows = a.find("rows"))
    call.inputs.push_back({"rows", tensor(*rows, at, "rows")});
  else if (value(freqs).shape.size() == 2)
    call.inputs.push_back({"rows", add_input(InputKind::Rows)});
  if (const Val* scale = a.find("scale")) call.inputs.push_back({"scale", tensor(*scale, at, "scale")});
  for (const char* name : {"pairing", "at", "angle"})
    call.attrs[name] = attribute(a.need(name), DGPU_ATTR_STRING, name, at);
  if (const Val* inverse = a.find("inverse"))
    call.attrs["inverse"] = attribute(*inverse, DGPU_ATTR_BOOL, "inverse", at);
  return emit(std::move(call), at);
}

Val Builder::constant(const Args& args, const Expr& at) {
  static const std::string fn = "constant";
  const FlowArgs a(args, {"values", "type"}, at, fn);
  const List* items = a.need("values").list();
  const std::string type = a.need("type").get<std::string>() ? *a.need("type").get<std::string>() : "";
  if (!items) fault(at, "constant: values must be a list of numbers");
  graph::Constant c;
  c.dtype = dtype_named(type);
  if (!c.dtype) fault(at, "constant: type must be 'f32', 'i32' or 'i64'");
  c.shape = {static_cast<int64_t>(items->size())};
  for (const Val& v : *items) {
    if (!v.number()) fault(at, fmt::format("constant: expected numbers, got {}", text_of(v)));
    c.data.push_back(v.as_double());
  }
  graph::Value v;
  v.origin = graph::Origin::Constant, v.index = static_cast<Id>(program_.constants.size());
  v.rule = graph::TypeRule::Fixed, v.dtype = c.dtype, v.shape = {{c.shape[0], 0}};
  c.name = frame().path.empty() ? "constant" : frame().path + ".constant";
  c.value = add_value(c.name, std::move(v));
  program_.constants.push_back(std::move(c));
  return Val(TensorRef{program_.constants.back().value});
}

Val Builder::maximum(const Args& args, const Expr& at) { return extreme("max", args, at); }
Val Builder::minimum(const Args& args, const Expr& at) { return extreme("min", args, at); }
Val Builder::extreme(const std::string& fn, const Args& args, const Expr& at) {
  const FlowArgs a(args, {"a", "b"}, at, fn);
  return emit_binary(fn, a.need("a"), a.need("b"), at);
}

// Dynamic frequencies depend on the sequences' lengths.
Val Builder::rope_freqs(const Args& args, const Expr& at) {
  Args with = args;
  const Val* type = args.find("type");
  if (type && type->get<std::string>() && *type->get<std::string>() == "dynamic")
    with.named.emplace_back("lengths", Val(TensorRef{add_input(InputKind::TotalLengths)}));
  return call_operator("rope_freqs", with, at);
}

Val Builder::source(const Args& args, const Expr& at) {
  static const std::string fn = "source";
  const FlowArgs a(args, {"k", "v", "window", "chunk", "every", "pick"}, at, fn);
  Map out;
  out.emplace_back("source_k", a.need("k"));
  out.emplace_back("source_v", a.find("v") ? a.need("v") : a.need("k"));
  for (const char* name : {"window", "chunk", "every", "pick"}) {
    out.emplace_back(name, Val());
    if (const Val* given = a.find(name)) out.back().second = *given;
  }
  return Val(std::move(out));
}

Val Builder::state(const Args& args, const Expr& at) {
  static const std::string fn = "state";
  const FlowArgs a(args, {"name"}, at, fn);
  const std::string* name = a.need("name").get<std::string>();
  const auto it = name ? group_names_.find(*name) : group_names_.end();
  if (it == group_names_.end()) fault(at, fmt::format("no state {} so far", text_of(a.need("name"))));
  return Val(StateRef{it->second});
}

Val Builder::entries(const Args& args, const Expr& at) {
  static const std::string fn = "entries";
  const StateGroup& g = group(FlowArgs(args, {"state"}, at, fn).need("state"), at);
  List out;
  for (const Id id : g.current) out.push_back(Val(TensorRef{id}));
  return out.size() == 1 ? out[0] : Val(std::move(out));
}

Val Builder::cast_to(const Args& args, const Expr& at) {
  static const std::string fn = "cast_to";
  const FlowArgs a(args, {"x", "type"}, at, fn);
  const std::string type = a.need("type").get<std::string>() ? *a.need("type").get<std::string>() : "";
  if (!dtype_named(type) && type != "activation")
    fault(at, "cast_to: type must be 'f32', 'i32', 'i64' or 'activation'");
  OpCall call;
  call.op = "cast", call.outputs = {"out"}, call.keep = type;
  call.inputs = {{"x", tensor(a.need("x"), at, "x")}};
  return emit(std::move(call), at);
}

// The step's data about a paged state.
bool Builder::cache_call(const std::string& fn, const Args& args, const Expr& at, Val& out) {
  static const std::pair<const char*, InputKind> kinds[] = {{"cache_positions", InputKind::CachePositions},
                                                            {"cache_rows", InputKind::CacheRows},
                                                            {"cache_slots", InputKind::CacheSlots},
                                                            {"cache_table", InputKind::CacheTable},
                                                            {"cache_lengths", InputKind::CacheLengths}};
  for (const auto& [name, kind] : kinds) {
    if (fn != name) continue;
    const StateGroup& g = group(FlowArgs(args, {"state"}, at, fn).need("state"), at);
    if (g.cache == kNone) fault(at, fmt::format("{} has no entries per token", g.name));
    out = Val(TensorRef{add_input(kind, g.cache)});
    return true;
  }
  return false;
}

Val Builder::flow_call(const std::string& fn, const Args& args, const Expr& at, bool& found) {
  using Method = Val (Builder::*)(const Args&, const Expr&);
  static const std::pair<const char*, Method> methods[] = {
      {"linear", &Builder::linear},         {"append", &Builder::append},
      {"attention", &Builder::attention},   {"rope", &Builder::rope},
      {"rope_freqs", &Builder::rope_freqs}, {"source", &Builder::source},
      {"state", &Builder::state},           {"entries", &Builder::entries},
      {"cast_to", &Builder::cast_to},       {"constant", &Builder::constant},
      {"maximum", &Builder::maximum},       {"minimum", &Builder::minimum},
      {"heads", &Builder::view_heads},      {"merge", &Builder::view_merge},
      {"split", &Builder::view_split},      {"part", &Builder::view_part},
      {"pick", &Builder::view_pick},        {"reshape", &Builder::view_reshape},
      {"permute", &Builder::view_permute},  {"expand", &Builder::view_expand},
      {"contiguous", &Builder::dense_copy}};
  for (const auto& [name, method] : methods)
    if (fn == name) return (this->*method)(args, at);
  static const char* const unary_fns[] = {"neg",     "exp",  "log",        "sqrt",      "rsqrt", "tanh",
                                          "sigmoid", "silu", "gelu_erf",   "gelu_tanh", "relu",  "softplus",
                                          "sin",     "cos",  "reciprocal", "square",    "abs"};
  for (const char* u : unary_fns)
    if (fn == u) return emit_unary(fn, FlowArgs(args, {"x"}, at, fn).need("x"), at);
  Val out;
  found = cache_call(fn, args, at, out);
  return out;
}

}  // namespace dgpu::model
