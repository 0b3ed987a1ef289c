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

// ---- Weights --------------------------------------------------------------------------------------------------------

// A weight on its way: the parts with their shapes, and what tells it from others.
struct Builder::WeightDraft {
  const WeightDecl& decl;
  const Expr& at;
  graph::Weight weight;
  std::string signature;
  std::vector<std::pair<std::vector<int64_t>, std::vector<graph::Block>>> parts;
};

Builder::Id Builder::checkpoint_tensor(const WeightDraft& d, const std::string& name,
                                       const std::vector<int64_t>& shape) {
  const auto [it, fresh] = tensors_.emplace(name, static_cast<Id>(program_.tensors.size()));
  if (!fresh) {
    const graph::Tensor& known = program_.tensors[it->second];
    if (known.shape != shape || known.cls != d.weight.cls)
      fault(d.at, fmt::format("tensor {} has the shape [{}] elsewhere, [{}] here", name, fmt::join(known.shape, ","),
                              fmt::join(shape, ",")));
    return it->second;
  }
  if (program_.tensors.size() >= kMaxTensors)
    throw Fault{DGPU_STATUS_INVALID_ARGUMENT, name,
                fmt::format("{}: more than {} checkpoint tensors", file_, kMaxTensors)};
  program_.tensors.push_back({name, shape, d.weight.cls, dtype_named(d.decl.dtype)});
  return it->second;
}

std::vector<int64_t> Builder::weight_shape(const Expr& expr) {
  const Val list = evaluator_.eval(expr);
  std::vector<int64_t> shape;
  for (const Val& v : *list.list()) {
    const int64_t* n = v.get<int64_t>();
    if (!n || *n < 1) fault(expr, fmt::format("an extent of a weight must be a positive integer, got {}", text_of(v)));
    shape.push_back(*n);
  }
  if (shape.size() > DGPU_MAX_RANK - 1) fault(expr, "a weight of rank above 7");
  count(shape, expr);
  return shape;
}

// One checkpoint tensor, or a stack of them.
void Builder::draft_part(WeightDraft& d, const WeightPart& part) {
  const WeightText& text = part.text;
  const std::vector<int64_t> shape = weight_shape(*text.shape);
  Region region{shape, dense(shape), shape, 0, false};
  Steps(evaluator_, region, *text.shape).run(text.steps);
  const bool stacked = !text.each.empty();
  const int64_t copies = stacked ? evaluator_.integer(*text.each_count) : 1;
  if (copies < 1 || copies > (1 << 20)) fault(*text.shape, fmt::format("each: a stack of {}", copies));
  std::vector<int64_t> logical = region.logical;
  if (stacked) logical.insert(logical.begin(), copies);
  count(logical, *text.shape);
  std::vector<graph::Block> blocks;
  for (int64_t e = 0; e < copies; ++e) {
    if (stacked) evaluator_.push(text.each, Val(e));
    const std::string own = evaluator_.interpolate(part.name);
    if (stacked) evaluator_.pop();
    evaluator_.charge(1, *text.shape);
    const std::string name = own[0] == '/' ? own.substr(1) : frame().prefix + own;
    graph::Block b;
    b.tensor = checkpoint_tensor(d, name, shape);
    b.shape = region.shape, b.src_strides = region.strides, b.src_offset = region.offset;
    b.dst_strides = dense(region.shape), b.dst_offset = e * count(region.shape, *text.shape);
    blocks.push_back(std::move(b));
    if (e > 0) continue;
    d.weight.name += (d.weight.name.empty() ? "" : "+") + name;
    d.signature += fmt::format("|{}|{}|{}|{}|{}", name, fmt::join(shape, ","), fmt::join(region.strides, ","),
                               region.offset, fmt::join(logical, ","));
  }
  d.parts.emplace_back(std::move(logical), std::move(blocks));
}

// Places the parts one after the other along an axis.
void Builder::join_parts(WeightDraft& d) {
  const size_t axis = static_cast<size_t>(d.decl.concat);
  std::vector<int64_t>& whole = d.weight.shape;
  if (axis >= whole.size()) fault(d.at, fmt::format("concat along axis {} of a weight of rank {}", axis, whole.size()));
  whole[axis] = 0;
  for (const auto& [shape, blocks] : d.parts) {
    for (size_t k = 0; k < shape.size(); ++k)
      if (shape.size() != whole.size() || (k != axis && shape[k] != whole[k]))
        fault(d.at, "concat of weights whose other extents differ");
    whole[axis] += shape[axis];
  }
  count(whole, d.at);
  const std::vector<int64_t> strides = dense(whole);
  int64_t start = 0;
  for (auto& [shape, blocks] : d.parts) {
    for (graph::Block& b : blocks) {
      b.dst_offset += start * strides[axis];
      if (axis == 0) continue;  // rows follow each other, whatever a part is made of
      if (blocks.size() != 1 || b.shape != shape)
        fault(d.at, "concat of stacked or reshaped tensors along another axis than 0");
      b.dst_strides = strides;
    }
    start += shape[axis];
  }
  d.signature += fmt::format("|concat {}", axis);
}

Val Builder::publish_weight(WeightDraft& d) {
  graph::Weight& w = d.weight;
  // The same tensors seen in the same way are one weight: a tied head.
  if (const auto it = weights_.find(d.signature); it != weights_.end())
    return Val(TensorRef{program_.weights[it->second].value});
  for (auto& [shape, blocks] : d.parts)
    for (graph::Block& b : blocks) w.blocks.push_back(std::move(b));
  Value v;
  v.origin = Origin::Weight, v.index = static_cast<Id>(program_.weights.size());
  v.rule = d.decl.dtype.empty() ? TypeRule::Checkpoint : TypeRule::Fixed;
  v.dtype = dtype_named(d.decl.dtype);
  for (int64_t n : w.shape) v.shape.push_back({n, 0});
  weights_.emplace(std::move(d.signature), v.index);
  w.value = add_value(w.name, std::move(v));
  program_.weights.push_back(std::move(w));
  return Val(TensorRef{program_.weights.back().value});
}

Val Builder::add_weight(const WeightDecl& decl) {
  if (decl.condition && !evaluator_.truth(*decl.condition)) return Val();
  const bool integer = decl.dtype == "i64" || decl.dtype == "i32";
  WeightDraft d{decl, *decl.parts[0].text.shape, {}, decl.dtype, {}};
  d.weight.tp = decl.tp;
  d.weight.cls = integer ? graph::TensorClass::Integer : graph::TensorClass::Float;
  for (const WeightPart& part : decl.parts) draft_part(d, part);
  d.weight.shape = d.parts[0].first;
  if (decl.concat >= 0) join_parts(d);
  if (!decl.then.empty()) {
    Region whole{d.weight.shape, dense(d.weight.shape), d.weight.shape, 0, false};
    for (const auto& s : decl.then)
      if (s.fn != "reshape") fault(d.at, "after a concat only reshape is possible");
    Steps(evaluator_, whole, d.at).run(decl.then);
    d.weight.shape = whole.logical;
    d.signature += fmt::format("|then {}", fmt::join(d.weight.shape, ","));
  }
  return publish_weight(d);
}

// ---- States --------------------------------------------------------------------------------------------------------

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

// Arguments of kind(component=[extents], ..., window=, every=, type=, rewinds=).
struct Builder::StateDraft {
  std::string kind, type;
  bool paged = false, rewinds = false;
  int64_t window = 0, every = 1;
  std::vector<std::pair<std::string, std::vector<int64_t>>> components;
};

void Builder::state_argument(StateDraft& d, const Expr& arg) {
  if (arg.op != Op::Named) fault(arg, "a state's components and options have names");
  const Val v = evaluator_.eval(*arg.kids[0]);
  if (arg.name == "window" || arg.name == "every") {
    const int64_t* n = v.get<int64_t>();
    if (v.null()) return;
    if (!n || *n < (arg.name == "every")) fault(arg, fmt::format("{} must be a positive integer", arg.name));
    (arg.name == "window" ? d.window : d.every) = *n;
  } else if (arg.name == "type") {
    d.type = v.get<std::string>() ? *v.get<std::string>() : "";
    if (!dtype_named(d.type)) fault(arg, "type must be 'f32', 'i32' or 'i64'");
  } else if (arg.name == "rewinds") {
    d.rewinds = v.get<bool>() && *v.get<bool>();
  } else {
    if (!v.list()) fault(arg, "a component is a list of extents");
    std::vector<int64_t> entry;
    for (const Val& x : *v.list()) {
      if (!x.get<int64_t>() || *x.get<int64_t>() < 1) fault(arg, "an extent of a state must be a positive integer");
      entry.push_back(*x.get<int64_t>());
    }
    if (entry.size() > DGPU_MAX_RANK - 2) fault(arg, "an entry of rank above 6");
    count(entry, arg);
    d.components.emplace_back(arg.name, std::move(entry));
  }
}

Builder::StateDraft Builder::draft_state(const Expr& e) {
  static const char* const paged[] = {"kv", "latent", "index", "pool"};
  static const char* const fixed[] = {"conv", "recurrent", "open", "int"};
  StateDraft d;
  d.kind = e.kids[0]->name;
  d.paged = d.rewinds = std::find(std::begin(paged), std::end(paged), d.kind) != std::end(paged);
  if (!d.paged && std::find(std::begin(fixed), std::end(fixed), d.kind) == std::end(fixed))
    fault(e, fmt::format("{} is no kind of state; kinds are kv latent index pool (an entry per token) and conv "
                         "recurrent open int (fixed)",
                         d.kind));
  for (size_t i = 1; i < e.kids.size(); ++i) state_argument(d, *e.kids[i]);
  if (d.components.empty()) fault(e, "a state without components");
  return d;
}

void Builder::add_component(StateGroup& g, const StateDraft& d, const std::string& name, std::vector<int64_t> entry) {
  using graph::Base;
  graph::State s;
  s.name = g.name + "." + name, s.kind = d.kind, s.owner = frame().path, s.cache = g.cache, s.rewinds = d.rewinds;
  if (!d.type.empty()) s.rule = TypeRule::Fixed, s.dtype = dtype_named(d.type);
  Value v;
  v.origin = Origin::State, v.index = static_cast<Id>(program_.states.size()), v.rule = s.rule, v.dtype = s.dtype;
  if (d.paged)
    v.shape = {program_.dim(program_.symbol(Base::Pages, 1, 0, g.cache)),
               program_.dim(program_.symbol(Base::PageSize, 1, 0, g.cache))};
  else
    v.shape = {program_.dim(program_.symbol(Base::Slots))};
  for (int64_t n : entry) v.shape.push_back({n, 0});
  s.entry = std::move(entry);
  s.value = add_value(s.name, std::move(v));
  g.components.push_back(name);
  g.states.push_back(static_cast<Id>(program_.states.size()));
  g.current.push_back(s.value);
  program_.states.push_back(std::move(s));
}

void Builder::add_state(const Named& decl) {
  const bool conditional = decl.expr->op == Op::If;  // kind(..) if condition else null
  if (conditional && !evaluator_.truth(*decl.expr->kids[1])) {
    frame().names[decl.name] = Val();
    return;
  }
  const Expr& e = conditional ? *decl.expr->kids[0] : *decl.expr;
  StateDraft d = draft_state(e);
  StateGroup g;
  g.name = frame().path + "." + decl.name;
  if (!group_names_.emplace(g.name, static_cast<uint32_t>(groups_.size())).second)
    fault(e, fmt::format("state {} exists already: two instances of a block need prefixes of their own", g.name));
  if (d.paged) g.cache = add_cache(d.window, d.every);
  for (auto& [name, entry] : d.components) add_component(g, d, name, std::move(entry));
  frame().names[decl.name] = Val(StateRef{static_cast<uint32_t>(groups_.size())});
  groups_.push_back(std::move(g));
}

}  // namespace dgpu::model
