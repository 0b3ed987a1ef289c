// Weights as strided blocks of checkpoint tensors, and states.
#include <fmt/ranges.h>

#include <algorithm>

#include "model/builder.h"

namespace dgpu::model {

using graph::kNone;
using graph::Origin;
using graph::TypeRule;
using graph::Value;

static constexpr size_t kMaxTensors = 1 << 19;
static constexpr int64_t kMaxElements = int64_t{1} << 46;

namespace {

// A strided region of one checkpoint tensor. `logical` is the shape that it stands for: other than `shape` only after a
// reshape that no strides can tell, which must be the last step.
struct Region {
  std::vector<int64_t> shape, strides, logical;
  int64_t offset = 0;
  bool final_shape = false;
};

std::vector<int64_t> dense(const std::vector<int64_t>& shape) {
  std::vector<int64_t> out(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0; stride *= shape[i]) out[i] = stride;
  return out;
}

int64_t count(const std::vector<int64_t>& shape, const Expr& at) {
  int64_t n = 1;
  for (int64_t d : shape)
    if (d < 0 || __builtin_mul_overflow(n, d, &n) || n > kMaxElements)
      fault(at, fmt::format("a weight of the shape [{}] is too large", fmt::join(shape, ",")));
  return n;
}

class Steps {
 public:
  Steps(Evaluator& evaluator, Region& region, const Expr& at) : eval_(evaluator), r_(region), at_(at) {}

  void run(const std::vector<WeightText::Step>& steps) {
    for (const WeightText::Step& s : steps) {
      if (r_.final_shape) fault(at_, "a step after a reshape that moves elements");
      std::vector<int64_t> args;
      for (const ExprPtr& e : s.args) args.push_back(eval_.integer(*e));
      if (s.fn == "slice")
        slice(args);
      else if (s.fn == "transpose")
        transpose(args);
      else
        reshape(args);
      if (!r_.final_shape) r_.logical = r_.shape;
    }
  }

 private:
  void slice(const std::vector<int64_t>& a) {
    if (a.size() < 3 || a.size() > 4) fault(at_, "slice takes axis, from, to and perhaps step");
    const int64_t axis = a[0], step = a.size() == 4 ? a[3] : 1;
    if (axis < 0 || axis >= static_cast<int64_t>(r_.shape.size())) fault(at_, fmt::format("slice: axis {}", axis));
    if (a[1] < 0 || a[2] < a[1] || a[2] > r_.shape[axis] || step < 1)
      fault(at_, fmt::format("slice {}:{}:{} of an extent of {}", a[1], a[2], step, r_.shape[axis]));
    r_.offset += a[1] * r_.strides[axis];
    r_.shape[axis] = (a[2] - a[1] + step - 1) / step;
    r_.strides[axis] *= step;
  }
  void transpose(const std::vector<int64_t>& order) {
    std::vector<bool> seen(r_.shape.size());
    std::vector<int64_t> shape, strides;
    for (int64_t o : order) {
      if (o < 0 || o >= static_cast<int64_t>(seen.size()) || seen[o]) fault(at_, "transpose needs every axis once");
      seen[o] = true;
      shape.push_back(r_.shape[o]), strides.push_back(r_.strides[o]);
    }
    if (order.size() != seen.size()) fault(at_, "transpose needs every axis once");
    r_.shape = shape, r_.strides = strides;
  }
  void reshape(const std::vector<int64_t>& to) {
    if (count(to, at_) != count(r_.shape, at_))
      fault(at_, fmt::format("reshape of [{}] to [{}]", fmt::join(r_.shape, ","), fmt::join(to, ",")));
    std::vector<int64_t> strides;
    if (restride(to, strides))
      r_.shape = to, r_.strides = strides;
    else
      r_.logical = to, r_.final_shape = true;
  }
  bool restride(const std::vector<int64_t>& to, std::vector<int64_t>& out) const {
    out.assign(to.size(), 0);
    std::vector<int64_t> from, strides;
    for (size_t i = 0; i < r_.shape.size(); ++i)
      if (r_.shape[i] != 1) from.push_back(r_.shape[i]), strides.push_back(r_.strides[i]);
    size_t i = 0, j = 0;
    while (i < from.size() || j < to.size()) {
      if (j < to.size() && to[j] == 1) {
        out[j++] = 1;
        continue;
      }
      if (i >= from.size() || j >= to.size()) return false;
      const size_t i0 = i, j0 = j;
      int64_t a = from[i++], b = to[j++];
      while (a != b) {
        if (a < b ? i >= from.size() : j >= to.size()) return false;
        if (a < b)
          a *= from[i++];
        else
          b *= to[j++];
      }
      for (size_t k = i0; k + 1 < i; ++k)
        if (strides[k] != strides[k + 1] * from[k + 1]) return false;
      int64_t s = strides[i - 1];
      for (size_t k = j; k-- > j0; s *= to[k]) out[k] = s;
    }
    return true;
  }

  Evaluator& eval_;
  Region& r_;
  const Expr& at_;
};

}  // namespace

// ---- Weights
// ---------------------------------------------------------------------------------------------------------

Val Builder::add_weight(const WeightDecl& decl) {
  if (decl.condition && !evaluator_.truth(*decl.condition)) return Val();
  graph::Weight w;
  w.tp = decl.tp;
  const std::string dtype = decl.dtype;
  w.cls = dtype == "i64" || dtype == "i32" ? graph::TensorClass::Integer : graph::TensorClass::Float;
  std::string signature = dtype;
  const Expr& at = *decl.parts[0].text.shape;
  std::vector<std::pair<std::vector<int64_t>, std::vector<graph::Block>>> parts;  // shape and blocks of each part

  const auto tensor_id = [&](const std::string& name, const std::vector<int64_t>& shape) {
    const auto [it, fresh] = tensors_.emplace(name, static_cast<Id>(program_.tensors.size()));
    if (!fresh) {
      const graph::Tensor& known = program_.tensors[it->second];
      if (known.shape != shape || known.cls != w.cls)
        fault(at, fmt::format("tensor {} has the shape [{}] elsewhere, [{}] here", name, fmt::join(known.shape, ","),
                              fmt::join(shape, ",")));
      return it->second;
    }
    if (program_.tensors.size() >= kMaxTensors)
      throw Fault{DGPU_STATUS_INVALID_ARGUMENT, name,
                  fmt::format("{}: more than {} checkpoint tensors", file_, kMaxTensors)};
    const dgpuDtype_t kept = dtype_named(dtype);
    program_.tensors.push_back({name, shape, w.cls, kept});
    return it->second;
  };

  for (const WeightPart& part : decl.parts) {
    const WeightText& text = part.text;
    const Val shape_val = evaluator_.eval(*text.shape);
    std::vector<int64_t> shape;
    for (const Val& v : *shape_val.list()) {
      const int64_t* n = v.get<int64_t>();
      if (!n || *n < 1)
        fault(*text.shape, fmt::format("an extent of a weight must be a positive integer, got {}", text_of(v)));
      shape.push_back(*n);
    }
    if (shape.size() > DGPU_MAX_RANK - 1) fault(*text.shape, "a weight of rank above 7");
    count(shape, *text.shape);
    Region region{shape, dense(shape), shape, 0, false};
    Steps(evaluator_, region, *text.shape).run(text.steps);

    const int64_t copies = text.each.empty() ? 1 : evaluator_.integer(*text.each_count);
    if (copies < 1 || copies > (1 << 20)) fault(*text.shape, fmt::format("each: a stack of {}", copies));
    const int64_t size = count(region.shape, *text.shape);
    std::vector<int64_t> logical = region.logical;
    if (!text.each.empty()) logical.insert(logical.begin(), copies);
    count(logical, *text.shape);
    std::vector<graph::Block> blocks;
    for (int64_t e = 0; e < copies; ++e) {
      if (!text.each.empty()) evaluator_.push(text.each, Val(e));
      const std::string own = evaluator_.interpolate(part.name);
      if (!text.each.empty()) evaluator_.pop();
      evaluator_.charge(1, *text.shape);
      const std::string name = own[0] == '/' ? own.substr(1) : frame().prefix + own;
      graph::Block b;
      b.tensor = tensor_id(name, shape);
      b.shape = region.shape, b.src_strides = region.strides, b.src_offset = region.offset;
      b.dst_strides = dense(region.shape), b.dst_offset = e * size;
      blocks.push_back(std::move(b));
      if (e == 0) {
        w.name += (w.name.empty() ? "" : "+") + name;
        signature += fmt::format("|{}|{}|{}|{}|{}", name, fmt::join(shape, ","), fmt::join(region.strides, ","),
                                 region.offset, fmt::join(logical, ","));
      }
    }
    parts.emplace_back(std::move(logical), std::move(blocks));
  }

  w.shape = parts[0].first;
  if (decl.concat >= 0) {
    const size_t axis = static_cast<size_t>(decl.concat);
    if (axis >= w.shape.size())
      fault(at, fmt::format("concat along axis {} of a weight of rank {}", axis, w.shape.size()));
    w.shape[axis] = 0;
    for (const auto& [shape, blocks] : parts) {
      for (size_t d = 0; d < shape.size(); ++d)
        if (shape.size() != w.shape.size() || (d != axis && shape[d] != w.shape[d]))
          fault(at, "concat of weights whose other extents differ");
      w.shape[axis] += shape[axis];
    }
    count(w.shape, at);
    const std::vector<int64_t> strides = dense(w.shape);
    int64_t start = 0;
    for (auto& [shape, blocks] : parts) {
      for (graph::Block& b : blocks) {
        if (axis == 0) {  // rows follow each other, whatever a part is made of
          b.dst_offset += start * strides[0];
          continue;
        }
        if (blocks.size() != 1 || b.shape != shape)
          fault(at, "concat of stacked or reshaped tensors along another axis than 0");
        b.dst_strides = strides, b.dst_offset = start * strides[axis];
      }
      start += shape[axis];
    }
    signature += fmt::format("|concat {}", axis);
  }
  for (auto& [shape, blocks] : parts)
    for (graph::Block& b : blocks) w.blocks.push_back(std::move(b));
  if (!decl.then.empty()) {
    Region whole{w.shape, dense(w.shape), w.shape, 0, false};
    for (const auto& s : decl.then)
      if (s.fn != "reshape") fault(at, "after a concat only reshape is possible");
    Steps(evaluator_, whole, at).run(decl.then);
    w.shape = whole.logical;
    signature += fmt::format("|then {}", fmt::join(w.shape, ","));
  }

  if (const auto it = weights_.find(signature); it != weights_.end())
    return Val(TensorRef{program_.weights[it->second].value});
  Value v;
  v.origin = Origin::Weight, v.index = static_cast<Id>(program_.weights.size());
  v.rule = TypeRule::Checkpoint;
  if (!dtype.empty()) v.rule = TypeRule::Fixed, v.dtype = dtype_named(dtype);
  for (int64_t d : w.shape) v.shape.push_back({d, 0});
  weights_.emplace(std::move(signature), v.index);
  w.value = add_value(w.name, std::move(v));
  program_.weights.push_back(std::move(w));
  return Val(TensorRef{program_.weights.back().value});
}

// ---- States
// ----------------------------------------------------------------------------------------------------------

Builder::Id Builder::add_cache(int64_t cap, int64_t every) {
  for (Id c = 0; c < program_.caches.size(); ++c)
    if (program_.caches[c].cap == cap && program_.caches[c].every == every) return c;
  if (program_.caches.size() >= 256)
    throw Fault{DGPU_STATUS_INVALID_ARGUMENT, t_.file, fmt::format("{}: more than 256 kinds of caches", file_)};
  graph::Cache c;
  c.name = every > 1 ? fmt::format("every{}", every) : cap > 0 ? fmt::format("window{}", cap) : "tokens";
  if (every > 1 && cap > 0) c.name += fmt::format(".window{}", cap);
  c.cap = cap, c.every = every;
  program_.caches.push_back(std::move(c));
  return static_cast<Id>(program_.caches.size() - 1);
}

// kind(component=[extents], ..., window=, every=, type=, rewinds=)
void Builder::add_state(const Named& decl) {
  static const char* const paged[] = {"kv", "latent", "index", "pool"};
  static const char* const fixed[] = {"conv", "recurrent", "open", "int"};
  const bool conditional = decl.expr->op == Op::If;  // kind(..) if condition else null
  if (conditional && !evaluator_.truth(*decl.expr->kids[1])) {
    frame().names[decl.name] = Val();
    return;
  }
  const Expr& e = conditional ? *decl.expr->kids[0] : *decl.expr;
  const std::string kind = e.kids[0]->name;
  const bool is_paged = std::find(std::begin(paged), std::end(paged), kind) != std::end(paged);
  if (!is_paged && std::find(std::begin(fixed), std::end(fixed), kind) == std::end(fixed))
    fault(e, fmt::format("{} is no kind of state; kinds are kv latent index pool (an entry per token) and conv "
                         "recurrent open int (fixed)",
                         kind));
  int64_t window = 0, every = 1;
  std::string type;
  bool rewinds = is_paged;
  std::vector<std::pair<std::string, std::vector<int64_t>>> components;
  for (size_t i = 1; i < e.kids.size(); ++i) {
    const Expr& arg = *e.kids[i];
    if (arg.op != Op::Named) fault(arg, "a state's components and options have names");
    const Val v = evaluator_.eval(*arg.kids[0]);
    if (arg.name == "window" || arg.name == "every") {
      const int64_t* n = v.get<int64_t>();
      if (v.null()) continue;
      if (!n || *n < (arg.name == "every")) fault(arg, fmt::format("{} must be a positive integer", arg.name));
      (arg.name == "window" ? window : every) = *n;
    } else if (arg.name == "type") {
      type = v.get<std::string>() ? *v.get<std::string>() : "?";
      if (type != "f32" && type != "i32" && type != "i64") fault(arg, "type must be 'f32', 'i32' or 'i64'");
    } else if (arg.name == "rewinds") {
      rewinds = v.get<bool>() && *v.get<bool>();
    } else {
      if (!v.list()) fault(arg, "a component is a list of extents");
      std::vector<int64_t> entry;
      for (const Val& x : *v.list()) {
        if (!x.get<int64_t>() || *x.get<int64_t>() < 1) fault(arg, "an extent of a state must be a positive integer");
        entry.push_back(*x.get<int64_t>());
      }
      if (entry.size() > DGPU_MAX_RANK - 2) fault(arg, "an entry of rank above 6");
      count(entry, arg);
      components.emplace_back(arg.name, std::move(entry));
    }
  }
  StateGroup g;
  g.name = frame().path + "." + decl.name;
  if (!group_names_.emplace(g.name, static_cast<uint32_t>(groups_.size())).second)
    fault(e, fmt::format("state {} exists already: two instances of a block need prefixes of their own", g.name));
  if (is_paged) g.cache = add_cache(window, every);
  for (auto& [component, entry] : components) {
    graph::State s;
    s.name = g.name + "." + component, s.kind = kind, s.owner = frame().path, s.cache = g.cache;
    s.rewinds = rewinds, s.entry = entry;
    if (!type.empty()) s.rule = TypeRule::Fixed, s.dtype = dtype_named(type);
    Value v;
    v.origin = Origin::State, v.index = static_cast<Id>(program_.states.size()), v.rule = s.rule, v.dtype = s.dtype;
    if (is_paged)
      v.shape = {program_.dim(program_.symbol(graph::Base::Pages, 1, 0, g.cache)),
                 program_.dim(program_.symbol(graph::Base::PageSize, 1, 0, g.cache))};
    else
      v.shape = {program_.dim(program_.symbol(graph::Base::Slots))};
    for (int64_t d : entry) v.shape.push_back({d, 0});
    s.value = add_value(s.name, std::move(v));
    g.components.push_back(component);
    g.states.push_back(static_cast<Id>(program_.states.size()));
    g.current.push_back(s.value);
    program_.states.push_back(std::move(s));
  }
  if (g.components.empty()) fault(e, "a state without components");
  frame().names[decl.name] = Val(StateRef{static_cast<uint32_t>(groups_.size())});
  groups_.push_back(std::move(g));
}

}  // namespace dgpu::model
