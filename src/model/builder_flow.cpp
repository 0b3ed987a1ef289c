// Functions of dataflow that are not operators: views, states, and operators with the step's inputs filled in.
#include <algorithm>

#include "model/builder.h"

namespace dgpu::model {

using graph::Dim;
using graph::InputKind;
using graph::kNone;
using graph::Shape;

// Arguments of a function by position or name, each at most once.
class FlowArgs {
 public:
  FlowArgs(const Args& args, std::vector<const char*> names, const Expr& at, const std::string& fn)
      : args_(args), names_(std::move(names)), at_(at), fn_(fn) {
    if (args.positional.size() > names_.size())
      fault(at, fmt::format("{} takes at most {} arguments", fn, names_.size()));
    for (const auto& [key, v] : args.named) {
      const auto it = std::find(names_.begin(), names_.end(), key);
      if (it == names_.end()) fault(at, fmt::format("{} has no argument {}", fn, key));
      if (static_cast<size_t>(it - names_.begin()) < args.positional.size())
        fault(at, fmt::format("{}: argument {} is given twice", fn, key));
    }
  }
  const Val* find(const char* name) const {
    const size_t i =
        std::find_if(names_.begin(), names_.end(), [&](const char* n) { return std::string_view(n) == name; }) -
        names_.begin();
    const Val* v = i < args_.positional.size() ? &args_.positional[i] : args_.find(name);
    return v && !v->null() ? v : nullptr;
  }
  const Val& need(const char* name) const {
    const Val* v = find(name);
    if (!v) fault(at_, fmt::format("{} needs {}", fn_, name));
    return *v;
  }
  int64_t integer(const char* name) const {
    const int64_t* i = need(name).get<int64_t>();
    if (!i) fault(at_, fmt::format("{}: {} must be an integer, got {}", fn_, name, text_of(need(name))));
    return *i;
  }
  int64_t integer(const char* name, int64_t otherwise) const { return find(name) ? integer(name) : otherwise; }

 private:
  const Args& args_;
  std::vector<const char*> names_;
  const Expr& at_;
  const std::string& fn_;
};

static int64_t fixed(const Dim& d, const Expr& at) {
  if (d.symbol) fault(at, "this axis must have a fixed extent");
  return d.value;
}

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
  if (a.find("keep")) call.keep = "f32";
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

Val Builder::attention(const Args& args, const Expr& at) {
  OpCall call;
  call.op = "attention", call.outputs = {"out"};
  if (args.positional.size() < 2) fault(at, "attention takes q and at least one source(k, v, ..)");
  call.inputs.push_back({"q", tensor(args.positional[0], at, "q")});
  const int64_t sources = static_cast<int64_t>(args.positional.size()) - 1;
  std::vector<int64_t> window, chunk, every;
  for (int64_t s = 0; s < sources; ++s) {
    const Val& src = args.positional[static_cast<size_t>(s) + 1];
    if (!src.field("source_k")) fault(at, fmt::format("attention: expected source(k, v, ..), got {}", text_of(src)));
    const Id k = tensor(*src.field("source_k"), at, "k"), v = tensor(*src.field("source_v"), at, "v");
    const Id cache = cache_of_entries(k);
    if (cache == kNone || cache_of_entries(v) != cache)
      fault(at, "keys and values of a source must be entries of one state");
    const auto port = [&](const char* name) { return fmt::format("{}{}", name, s); };
    call.inputs.push_back({port("k"), k});
    call.inputs.push_back({port("v"), v});
    call.inputs.push_back({port("table"), add_input(InputKind::CacheTable, cache)});
    call.inputs.push_back({port("lengths"), add_input(InputKind::CacheLengths, cache)});
    if (program_.caches[cache].cap > 0)
      call.inputs.push_back({port("k_positions"), add_input(InputKind::CachePositions, cache)});
    if (!src.field("pick")->null()) call.inputs.push_back({port("pick"), tensor(*src.field("pick"), at, "pick")});
    for (auto [name, list] : {std::pair{"window", &window}, {"chunk", &chunk}, {"every", &every}}) {
      const Val& n = *src.field(name);
      if (!n.null() && (!n.get<int64_t>() || *n.get<int64_t>() < 0))
        fault(at, fmt::format("{} must be an integer from 0 on", name));
      list->push_back(n.null() ? 0 : *n.get<int64_t>());
    }
  }
  if (sources > 1) call.attrs["sources"] = sources;
  for (auto [name, list] : {std::pair{"window", &window}, {"chunk", &chunk}, {"every", &every}})
    if (std::any_of(list->begin(), list->end(), [](int64_t n) { return n != 0; })) call.attrs[name] = *list;
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

Val Builder::flow_call(const std::string& fn, const Args& args, const Expr& at, bool& found) {
  if (fn == "linear") return linear(args, at);
  if (fn == "append") return append(args, at);
  if (fn == "attention") return attention(args, at);
  if (fn == "rope") return rope(args, at);
  static const char* const unary_fns[] = {"neg",     "exp",  "log",        "sqrt",      "rsqrt", "tanh",
                                          "sigmoid", "silu", "gelu_erf",   "gelu_tanh", "relu",  "softplus",
                                          "sin",     "cos",  "reciprocal", "square",    "abs"};
  for (const char* u : unary_fns)
    if (fn == u) return emit_unary(fn, FlowArgs(args, {"x"}, at, fn).need("x"), at);
  if (fn == "maximum" || fn == "minimum") {
    const FlowArgs a(args, {"a", "b"}, at, fn);
    return emit_binary(fn.substr(0, 3), a.need("a"), a.need("b"), at);
  }
  if (fn == "rope_freqs") {  // dynamic frequencies depend on the sequences' lengths
    Args with = args;
    const Val* type = args.find("type");
    if (type && type->get<std::string>() && *type->get<std::string>() == "dynamic")
      with.named.emplace_back("lengths", Val(TensorRef{add_input(InputKind::TotalLengths)}));
    return call_operator(fn, with, at);
  }
  if (fn == "source") {
    const FlowArgs a(args, {"k", "v", "window", "chunk", "every", "pick"}, at, fn);
    const auto get = [&](const char* name) { return a.find(name) ? *a.find(name) : Val(); };
    return Val(Map{{"source_k", a.need("k")},
                   {"source_v", a.find("v") ? get("v") : a.need("k")},
                   {"window", get("window")},
                   {"chunk", get("chunk")},
                   {"every", get("every")},
                   {"pick", get("pick")}});
  }
  if (fn == "state") {
    const Val& name = FlowArgs(args, {"name"}, at, fn).need("name");
    const std::string text = name.get<std::string>() ? *name.get<std::string>() : text_of(name);
    const auto it = group_names_.find(text);
    if (it == group_names_.end()) fault(at, fmt::format("no state {} so far", text));
    return Val(StateRef{it->second});
  }
  if (fn == "entries") {
    const StateGroup& g = group(FlowArgs(args, {"state"}, at, fn).need("state"), at);
    List out;
    for (const Id id : g.current) out.push_back(Val(TensorRef{id}));
    return out.size() == 1 ? out[0] : Val(std::move(out));
  }
  static const std::pair<const char*, InputKind> per_cache[] = {{"cache_positions", InputKind::CachePositions},
                                                                {"cache_rows", InputKind::CacheRows},
                                                                {"cache_slots", InputKind::CacheSlots},
                                                                {"cache_table", InputKind::CacheTable},
                                                                {"cache_lengths", InputKind::CacheLengths}};
  for (const auto& [name, kind] : per_cache) {
    if (fn != name) continue;
    const StateGroup& g = group(FlowArgs(args, {"state"}, at, fn).need("state"), at);
    if (g.cache == kNone) fault(at, fmt::format("{} has no entries per token", g.name));
    return Val(TensorRef{add_input(kind, g.cache)});
  }
  if (fn == "cast_to") {
    const FlowArgs a(args, {"x", "type"}, at, fn);
    const std::string type = a.need("type").get<std::string>() ? *a.need("type").get<std::string>() : "";
    if (type != "f32" && type != "i32" && type != "i64" && type != "activation")
      fault(at, "cast_to: type must be 'f32', 'i32', 'i64' or 'activation'");
    OpCall call;
    call.op = "cast", call.outputs = {"out"}, call.keep = type;
    call.inputs = {{"x", tensor(a.need("x"), at, "x")}};
    return emit(std::move(call), at);
  }
  if (fn == "constant") return constant(args, at);
  return view_call(fn, args, at, found);
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

// ---- Views
// -----------------------------------------------------------------------------------------------------------

Val Builder::view_call(const std::string& fn, const Args& args, const Expr& at, bool& found) {
  const auto ref = [](Id id) { return Val(TensorRef{id}); };
  if (fn == "heads") {  // [.., n * d] -> [.., n, d]
    const FlowArgs a(args, {"x", "count"}, at, fn);
    const Id x = tensor(a.need("x"), at, "x");
    const int64_t n = a.integer("count");
    Shape shape = value(x).shape;
    if (shape.empty() || n < 1 || fixed(shape.back(), at) % n)
      fault(at, fmt::format("heads: {} does not divide into {}", shape_text(shape), n));
    const int64_t d = shape.back().value / n;
    shape.back() = {n, 0};
    shape.push_back({d, 0});
    return ref(reshape(x, shape, at));
  }
  if (fn == "merge") {  // [.., n, d] -> [.., n * d]
    const Id x = tensor(FlowArgs(args, {"x"}, at, fn).need("x"), at, "x");
    Shape shape = value(x).shape;
    if (shape.size() < 2) fault(at, "merge needs two extents");
    const int64_t d = fixed(shape.back(), at);
    shape.pop_back();
    shape.back() = {fixed(shape.back(), at) * d, 0};
    return ref(reshape(x, shape, at));
  }
  if (fn == "reshape") {  // the extents after the first
    const FlowArgs a(args, {"x", "shape"}, at, fn);
    const Id x = tensor(a.need("x"), at, "x");
    return ref(reshape(x, shape_of(a.need("shape"), at), at));
  }
  if (fn == "split") {
    const FlowArgs a(args, {"x", "sizes", "axis"}, at, fn);
    const Id x = tensor(a.need("x"), at, "x");
    const int64_t axis =
        a.find("axis") ? axis_of(x, *a.find("axis"), at) : static_cast<int64_t>(value(x).shape.size()) - 1;
    if (axis < 0 || !a.need("sizes").list()) fault(at, "split takes a tensor and a list of sizes");
    int64_t from = 0;
    List out;
    const int64_t whole = fixed(value(x).shape[axis], at);
    for (const Val& size : *a.need("sizes").list()) {
      const int64_t n = size.get<int64_t>() ? *size.get<int64_t>() : -1;
      if (n < 0 || n > whole - from)
        fault(at, fmt::format("split: sizes {} of an extent of {}", text_of(a.need("sizes")), whole));
      out.push_back(ref(slice(x, axis, from, from + n, 1, at)));
      from += n;
    }
    if (from != whole) fault(at, fmt::format("split: sizes {} of an extent of {}", text_of(a.need("sizes")), whole));
    return Val(std::move(out));
  }
  if (fn == "part") {
    const FlowArgs a(args, {"x", "axis", "from", "to", "step"}, at, fn);
    const Id x = tensor(a.need("x"), at, "x");
    return ref(slice(x, axis_of(x, a.need("axis"), at), a.integer("from"), a.integer("to"), a.integer("step", 1), at));
  }
  if (fn == "pick") {  // one index of an axis, which goes away
    const FlowArgs a(args, {"x", "axis", "index"}, at, fn);
    const Id x = tensor(a.need("x"), at, "x");
    const int64_t axis = axis_of(x, a.need("axis"), at), index = a.integer("index");
    const Id one = slice(x, axis, index, index + 1, 1, at);
    Shape shape = value(one).shape;
    std::vector<int64_t> strides = strides_of(one);
    shape.erase(shape.begin() + axis), strides.erase(strides.begin() + axis);
    for (size_t k = static_cast<size_t>(axis); k < strides.size(); ++k)
      if (strides[k] == graph::kDense) fault(at, "pick: a cache's pages stay in front");
    return ref(add_view(one, std::move(shape), std::move(strides), 0, value(one).name));
  }
  if (fn == "permute") {
    const FlowArgs a(args, {"x", "order"}, at, fn);
    const Id x = tensor(a.need("x"), at, "x");
    std::vector<int64_t> order;
    if (!a.need("order").list()) fault(at, "permute takes a tensor and a list of axes");
    for (const Val& o : *a.need("order").list()) order.push_back(axis_of(x, o, at));
    return ref(permute(x, order, at));
  }
  if (fn == "expand") {  // a new axis of `count` equal parts
    const FlowArgs a(args, {"x", "axis", "count"}, at, fn);
    const Id x = tensor(a.need("x"), at, "x");
    const int64_t axis = a.integer("axis"), n = a.integer("count");
    Shape shape = value(x).shape;
    std::vector<int64_t> strides = strides_of(x);
    if (axis < 0 || axis > static_cast<int64_t>(shape.size()) || n < 1) fault(at, "expand: axis or count out of range");
    for (size_t k = static_cast<size_t>(axis); k < strides.size(); ++k)
      if (strides[k] == graph::kDense) fault(at, "expand: a cache's pages stay in front");
    shape.insert(shape.begin() + axis, {n, 0}), strides.insert(strides.begin() + axis, 0);
    return ref(add_view(x, std::move(shape), std::move(strides), 0, value(x).name + ".expanded"));
  }
  if (fn == "contiguous") return ref(contiguous(tensor(FlowArgs(args, {"x"}, at, fn).need("x"), at, "x"), at));
  found = false;
  return Val();
}

}  // namespace dgpu::model
