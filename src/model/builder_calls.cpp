// What dataflow can call: blocks, operators of the library, extern operators, and a few functions that bind what every
// template would otherwise repeat.
#include <algorithm>
#include <cmath>

#include "dgpu/backend.h"
#include "model/builder.h"
#include "model/expr_text.h"

namespace dgpu::model {

using graph::InputKind;
using graph::kNone;
using graph::Origin;
using graph::Shape;
using graph::TypeRule;
using graph::Value;

const std::vector<std::string>& flow_functions() {
  static const std::vector<std::string> names = {
      "linear",     "heads",       "merge",       "split",         "part",      "pick",     "reshape",
      "permute",    "expand",      "append",      "entries",       "state",     "source",   "attention",
      "rope",       "rope_freqs",  "neg",         "log",           "rsqrt",     "tanh",     "sigmoid",
      "silu",       "gelu_erf",    "gelu_tanh",   "relu",          "softplus",  "sin",      "cos",
      "reciprocal", "square",      "maximum",     "minimum",       "cast_to",   "constant", "cache_positions",
      "cache_rows", "cache_slots", "cache_table", "cache_lengths", "contiguous"};
  return names;
}

bool Builder::callable(std::string_view name) const {
  if (t_.block(name) || t_.find_extern(name) || ops::find(name)) return true;
  const auto& fs = flow_functions();
  return std::find(fs.begin(), fs.end(), name) != fs.end();
}

Val Builder::call(const std::string& name, const Args& args, const Expr& at) {
  if (const Block* b = t_.block(name)) return call_block(*b, args, at);
  bool found = true;
  Val v = flow_call(name, args, at, found);
  if (found) return v;
  if (const ExternDef* x = t_.find_extern(name)) return call_extern(*x, args, at);
  return call_operator(name, args, at);
}

Val Builder::call_block(const Block& b, const Args& args, const Expr& at) {
  const std::string* prefix = nullptr;
  for (const auto& [name, v] : args.named) {
    if (name != "at" || !v.get<std::string>())
      fault(at, fmt::format("a block takes only the named argument at (a prefix), got {}", name));
    prefix = v.get<std::string>();
  }
  const std::string taps = frame().taps;
  std::vector<Val> result = run_block(b, args.positional, prefix, taps, frame().layer, &at);
  if (result.empty()) return Val();
  return result.size() == 1 ? result[0] : Val(List(result.begin(), result.end()));
}

// ---- Emitting nodes ------------------------------------------------------------------------------------------------

static dgpuDtype_t fixed_type(const ops::PortSchema& row) {
  // A port that takes only f32 (or f64 in the reference), or only integers, decides the type.
  dgpuDtype_t only = 0;
  for (dgpuDtype_t d : row.dtypes) {
    if (d == DGPU_DTYPE_BF16 || d == DGPU_DTYPE_F16) return 0;
    if (d == DGPU_DTYPE_F32 || (d == DGPU_DTYPE_I32 && !only)) only = d;
  }
  return only;
}

// An extent that the session fixes went through inference as its nominal number.
graph::Dim Builder::restored(const OpCall& call, graph::Dim d) const {
  if (d.symbol) return d;
  for (const Bound& b : call.inputs)
    for (const graph::Dim& in : program_.values[b.value].shape)
      if (in.symbol && in.value == d.value) return in;
  return d;
}

void Builder::infer(OpCall& call, std::vector<std::pair<Shape, dgpuDtype_t>>& shapes, const Expr& at) {
  if (call.is_extern) {
    for (const auto& [shape, dtype] : call.extern_outputs) shapes.emplace_back(shape, dtype_named(dtype));
    return;
  }
  const auto refuse = [&](Status status) {
    const std::string message(last_error().message);
    fault(at, message, status);
  };
  ops::OpSpec spec;
  spec.name = call.op;
  for (const auto& [name, v] : call.attrs)
    if (const Status s = ops::set_attr(spec, name, v); s < 0) refuse(s);
  for (const Bound& b : call.inputs)
    if (const Status s = ops::set_port(
            spec, b.port,
            nominal(value(b.value).shape, value(b.value).rule == TypeRule::Fixed ? value(b.value).dtype : 0));
        s < 0)
      refuse(s);
  const ops::Schema& schema = *ops::find(call.op);
  const bool first_f32 = !call.inputs.empty() && value(call.inputs[0].value).rule == TypeRule::Fixed &&
                         value(call.inputs[0].value).origin != Origin::Weight;
  for (const std::string& port : call.outputs) {
    dgpuTensorDesc d = DGPU_TENSOR_DESC_INIT;
    if (const Status s = ops::infer(spec, port, d); s < 0) refuse(s);
    Shape shape;
    for (uint32_t i = 0; i < d.rank; ++i) shape.push_back(restored(call, {d.shape[i], d.symbols[i]}));
    dgpuDtype_t type = fixed_type(*ops::port_schema(schema, port));
    const bool floating = d.dtype == DGPU_DTYPE_BF16 || d.dtype == DGPU_DTYPE_F32 || d.dtype == DGPU_DTYPE_F16;
    if (!type && !floating) type = d.dtype;
    if (!type && (call.keep == "f32" || (first_f32 && call.keep.empty()))) type = DGPU_DTYPE_F32;
    if (call.op == "cast") type = call.keep.empty() && !floating ? d.dtype : dtype_named(call.keep);
    shapes.emplace_back(std::move(shape), type);
  }
  // Whatever is wrong with the whole (a missing port or attribute) shows here, with outputs bound.
  for (size_t i = 0; i < shapes.size(); ++i) {
    const dgpuTensorDesc d = nominal(shapes[i].first, shapes[i].second);
    if (const Status s = ops::set_port(spec, call.outputs[i], d); s < 0) refuse(s);
  }
  if (call.op == "cast") return;
  if (const Status s = ops::validate(spec); s < 0) refuse(s);
}

Val Builder::emit(OpCall call, const Expr& at) {
  evaluator_.step(at);
  std::vector<std::pair<Shape, dgpuDtype_t>> shapes;
  infer(call, shapes, at);
  const Id node_id = static_cast<Id>(program_.nodes.size());
  graph::Node node;
  node.op = call.op, node.attrs = std::move(call.attrs), node.is_extern = call.is_extern;
  const std::string& path = frame().path;
  node.name = unique(path.empty() ? call.op : path + "." + call.op, node_names_);
  List results;
  for (const Bound& b : call.inputs) {
    node.inputs.push_back({b.port, b.value});
    if (!b.inout) continue;
    // The state after this write.
    Value after;
    after.origin = Origin::View, after.rule = value(b.value).rule, after.dtype = value(b.value).dtype;
    after.shape = value(b.value).shape, after.base = program_.root(b.value), after.effect = node_id;
    after.strides = strides_of(after.base);
    const std::string name = value(after.base).name + ".after";
    const Id id = add_value(name, std::move(after));
    node.outputs.push_back({b.port, id});
    for (StateGroup& g : groups_)
      for (size_t c = 0; c < g.states.size(); ++c)
        if (program_.states[g.states[c]].value == program_.root(id)) g.current[c] = id;
    if (call.outputs.empty()) results.push_back(Val(TensorRef{id}));
  }
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    Value v;
    v.index = node_id, v.port = call.outputs[i], v.shape = std::move(shapes[i].first);
    if (shapes[i].second) v.rule = TypeRule::Fixed, v.dtype = shapes[i].second;
    std::string name = call.outputs.size() == 1 ? node.name : node.name + "." + call.outputs[i];
    const Id id = add_value(name, std::move(v));
    node.outputs.push_back({call.outputs[i], id});
    results.push_back(Val(TensorRef{id}));
  }
  program_.nodes.push_back(std::move(node));
  return results.size() == 1 ? results[0] : Val(std::move(results));
}

// ---- Attributes ----------------------------------------------------------------------------------------------------

std::string Builder::lambda_text(const Lambda& f, const Expr& at) {
  return to_text(f, [&](const Expr& name) { return evaluator_.eval(name); });
}

ops::AttrValue Builder::attribute(const Val& v, uint32_t type, const std::string& name, const Expr& at) {
  const auto wrong = [&](const char* what) {
    fault(at, fmt::format("{}: expected {}, got {}", name, what, text_of(v)));
  };
  if (v.lambda()) return lambda_text(*v.lambda(), at);
  if (type == DGPU_ATTR_INT && !v.get<int64_t>()) wrong("an integer");
  if (type == DGPU_ATTR_FLOAT && !v.number()) wrong("a number");
  if (type == DGPU_ATTR_BOOL && !v.get<bool>()) wrong("true or false");
  if (type == DGPU_ATTR_STRING && !v.get<std::string>()) wrong("a string");
  if ((type == DGPU_ATTR_INTS || type == DGPU_ATTR_FLOATS) && !v.list()) wrong("a list");
  if (type == DGPU_ATTR_FLOAT) return v.as_double();
  if (const int64_t* i = v.get<int64_t>()) return *i;
  if (const double* d = v.get<double>()) return *d;
  if (const bool* b = v.get<bool>()) return *b;
  if (const std::string* s = v.get<std::string>()) return *s;
  if (!v.list()) wrong("a number, string, boolean or list of numbers");
  std::vector<int64_t> ints;
  std::vector<double> floats;
  bool all_ints = type != DGPU_ATTR_FLOATS;
  for (const Val& item : *v.list()) {
    if (!item.number()) wrong("a list of numbers");
    floats.push_back(item.as_double());
    all_ints &= item.get<int64_t>() != nullptr;
    if (all_ints) ints.push_back(*item.get<int64_t>());
  }
  if (type == DGPU_ATTR_INTS && !all_ints) wrong("a list of integers");
  if (all_ints) return ints;
  return floats;
}

// ---- Operators -----------------------------------------------------------------------------------------------------

static const Val* option(const Args& args, std::string_view name, std::string_view alias = "") {
  const Val* v = args.find(name);
  return v || alias.empty() ? v : args.find(alias);
}

Val Builder::call_operator(const std::string& name, const Args& args, const Expr& at) {
  const ops::Schema* schema = ops::find(name);
  if (!schema) fault(at, fmt::format("{} is no operator, block or function", name));
  OpCall call;
  call.op = name;
  size_t next = 0;
  for (const Val& v : args.positional) {
    while (next < schema->ports.size() &&
           (schema->ports[next].direction == DGPU_PORT_OUT || schema->ports[next].repeated))
      ++next;
    if (next >= schema->ports.size()) fault(at, fmt::format("{} takes fewer arguments without name", name));
    const ops::PortSchema& port = schema->ports[next++];
    if (!v.null()) call.inputs.push_back({port.name, tensor(v, at, port.name), port.direction == DGPU_PORT_INOUT});
  }
  for (const auto& [key, v] : args.named) {
    if (v.null()) continue;
    if (key == "keep" || key == "outputs") continue;
    const ops::PortSchema* port = ops::port_schema(*schema, key);
    if (port) {
      if (port->direction == DGPU_PORT_OUT)
        fault(at, fmt::format("{} is an output: ask for it with outputs=['{}']", key, key));
      for (const Bound& b : call.inputs)
        if (b.port == key) fault(at, fmt::format("port {} is given twice", key));
      call.inputs.push_back({key, tensor(v, at, key), port->direction == DGPU_PORT_INOUT});
      continue;
    }
    uint32_t type = 0;
    for (const ops::AttrSchema& a : schema->attrs)
      if (a.name == key) type = a.type;
    if (!type) fault(at, fmt::format("{} has no port or attribute {}", name, key));
    call.attrs[key] = attribute(v, type, key, at);
  }
  if (const Val* keep = option(args, "keep"); keep && !keep->null()) {
    if (!keep->get<std::string>() || *keep->get<std::string>() != "f32") fault(at, "keep must be 'f32'");
    call.keep = "f32";
  }
  if (const Val* outs = option(args, "outputs"); outs && !outs->null()) {
    if (!outs->list()) fault(at, "outputs must be a list of port names");
    for (const Val& o : *outs->list()) {
      const ops::PortSchema* port = o.get<std::string>() ? ops::port_schema(*schema, *o.get<std::string>()) : nullptr;
      if (!port || port->direction != DGPU_PORT_OUT) fault(at, fmt::format("{} has no output {}", name, text_of(o)));
      call.outputs.push_back(*o.get<std::string>());
    }
  } else {
    for (const ops::PortSchema& p : schema->ports)
      if (p.direction == DGPU_PORT_OUT && p.required) call.outputs.push_back(p.name);
  }
  return emit(std::move(call), at);
}

Val Builder::call_extern(const ExternDef& x, const Args& args, const Expr& at) {
  OpCall call;
  call.op = x.name, call.is_extern = true;
  const auto bind = [&](const ExternPort& p, const Val& v) {
    if (!v.null()) call.inputs.push_back({p.name, tensor(v, at, p.name), p.inout});
  };
  if (args.positional.size() > x.ports.size()) fault(at, fmt::format("{} takes {} tensors", x.name, x.ports.size()));
  for (size_t i = 0; i < args.positional.size(); ++i) bind(x.ports[i], args.positional[i]);
  for (const auto& [key, v] : args.named) {
    if (v.null()) continue;
    const auto port =
        std::find_if(x.ports.begin(), x.ports.end(), [&, &k = key](const ExternPort& p) { return p.name == k; });
    if (port != x.ports.end())
      bind(*port, v);
    else if (std::find(x.attrs.begin(), x.attrs.end(), key) != x.attrs.end())
      call.attrs[key] = attribute(v, 0, key, at);
    else
      fault(at, fmt::format("extern operator {} has no port or attribute {}", x.name, key));
  }
  for (const ExternPort& p : x.ports) {
    const bool given =
        std::any_of(call.inputs.begin(), call.inputs.end(), [&](const Bound& b) { return b.port == p.name; });
    if (!given && !p.optional) fault(at, fmt::format("extern operator {} needs {}", x.name, p.name));
  }
  // The shape rule sees ports and attributes by name.
  Frame f;
  f.path = frame().path, f.layer = frame().layer;
  for (const ExternPort& p : x.ports) f.names[p.name] = Val();
  for (const std::string& a : x.attrs) f.names[a] = args.find(a) ? *args.find(a) : Val();
  for (const Bound& b : call.inputs) f.names[b.port] = Val(TensorRef{b.value});
  frames_.push_back(std::move(f));
  {
    const Evaluator::Isolation isolated(evaluator_);
    for (const auto& out : x.outs) {
      call.outputs.push_back(out.name);
      call.extern_outputs.emplace_back(shape_of(evaluator_.eval(*out.shape), at), out.dtype);
    }
  }
  frames_.pop_back();
  return emit(std::move(call), at);
}

Val Builder::emit_unary(const std::string& fn, const Val& x, const Expr& at) {
  OpCall call;
  call.op = "unary", call.attrs["fn"] = fn, call.outputs = {"out"};
  call.inputs = {{"x", tensor(x, at, fn)}};
  return emit(std::move(call), at);
}

Val Builder::emit_binary(const std::string& fn, const Val& a, const Val& b, const Expr& at) {
  OpCall call;
  call.op = "binary", call.attrs["fn"] = fn, call.outputs = {"out"};
  if (!a.get<TensorRef>()) fault(at, fmt::format("{}: the left side must be a tensor, got {}", fn, text_of(a)));
  call.inputs = {{"a", a.get<TensorRef>()->id}};
  if (b.number())
    call.attrs["scalar"] = b.as_double();
  else
    call.inputs.push_back({"b", tensor(b, at, fn)});
  return emit(std::move(call), at);
}

Val Builder::unary(Op op, const Val& x, const Expr& at) {
  if (op == Op::Neg && x.get<TensorRef>()) return emit_unary("neg", x, at);
  return Host::unary(op, x, at);
}

Val Builder::binary(Op op, const Val& a, const Val& b, const Expr& at) {
  if (a.get<DimRef>() || b.get<DimRef>()) {  // an extent such as T * 4 or B + 1
    const DimRef* d = a.get<DimRef>() ? a.get<DimRef>() : b.get<DimRef>();
    const int64_t* n = a.get<DimRef>() ? b.get<int64_t>() : a.get<int64_t>();
    const graph::Symbol s = program_.symbols[d->symbol - 1];
    if (!n || (op != Op::Mul && op != Op::Add) || *n < 1 || *n > (1 << 20))
      fault(at, "a symbolic extent can be multiplied by or added to a positive integer");
    const bool times = op == Op::Mul;
    return Val(
        DimRef{program_.symbol(s.base, times ? s.scale * *n : s.scale, times ? s.add * *n : s.add + *n, s.cache)});
  }
  const bool tensors = a.get<TensorRef>() || b.get<TensorRef>();
  static const std::pair<Op, const char*> names[] = {{Op::Add, "add"}, {Op::Sub, "sub"}, {Op::Mul, "mul"},
                                                     {Op::Div, "div"}, {Op::Pow, "pow"}, {Op::FloorDiv, "floordiv"},
                                                     {Op::Mod, "mod"}};
  for (const auto& [o, fn] : names) {
    if (o != op || !tensors) continue;
    if (a.get<TensorRef>()) return emit_binary(fn, a, b, at);
    if (op == Op::Add || op == Op::Mul) return emit_binary(fn, b, a, at);
    if (op == Op::Sub) return emit_binary("add", emit_unary("neg", b, at), a, at);
    if (op == Op::Div) return emit_binary("mul", emit_unary("reciprocal", b, at), a, at);
  }
  return Host::binary(op, a, b, at);
}

// ---- Fields, taps --------------------------------------------------------------------------------------------------

Val Builder::field(const Val& x, const std::string& name, const Expr& at) {
  if (const TensorRef* t = x.get<TensorRef>(); t && (name == "shape" || name == "rank")) {
    List out;
    for (const graph::Dim& d : value(t->id).shape) out.push_back(dim_val(d));
    return name == "shape" ? Val(std::move(out)) : Val(static_cast<int64_t>(out.size()));
  }
  if (x.get<StateRef>()) {
    const StateGroup& g = group(x, at);
    for (size_t c = 0; c < g.components.size(); ++c)
      if (g.components[c] == name) return Val(TensorRef{g.current[c]});
    fault(at, fmt::format("state {} has no component {}", g.name, name));
  }
  return Host::field(x, name, at);
}

Val Builder::index(const Val& x, const std::vector<Val>& indices, const Expr& at) {
  fault(at, "a tensor is not indexed with []: use pick(x, axis, index) or part(x, axis, from, to)");
}

Val Builder::tap(const Val& x, const std::string& name, const Expr& at) {
  const TensorRef* t = x.get<TensorRef>();
  if (const List* l = x.list())
    for (size_t k = 0; k < l->size() && !t; ++k) t = (*l)[k].get<TensorRef>();
  if (!t) fault(at, fmt::format("tap {}: expected a tensor, got {}", name, text_of(x)));
  const std::string full = frame().taps + name;
  if (!tap_names_.insert(full).second) fault(at, fmt::format("tap {} is named twice", full));
  program_.taps.push_back({full, t->id});
  return x;
}

Builder::StateGroup& Builder::group(const Val& v, const Expr& at) {
  const StateRef* s = v.get<StateRef>();
  if (!s) fault(at, fmt::format("expected a state, got {}", text_of(v)));
  return groups_[s->group];
}

}  // namespace dgpu::model
