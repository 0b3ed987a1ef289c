#include "model/builder.h"

#include <algorithm>

#include "graph/passes/passes.h"

namespace dgpu::model {

using graph::InputKind;
using graph::kNone;
using graph::Origin;

static constexpr int64_t kMaxLayers = 1024;

Builder::Builder(const Template& t, const JsonNode& config, const std::string& file)
    : t_(t), file_(file), scalars_(t, config, file), evaluator_(*this) {
  scalars_.set_eval([this](const Expr& e, int64_t layer) { return global_eval(e, layer); });
  program_.symbol(graph::Base::Tokens);
  program_.symbol(graph::Base::Sequences);
  program_.symbol(graph::Base::LogitRows);
}

void Builder::bad_block(const Block& b, const std::string& message) const {
  throw Fault{DGPU_STATUS_INVALID_ARGUMENT, t_.file, fmt::format("{}: blocks.{}: {}", t_.file, b.name, message)};
}

// ---- Names ---------------------------------------------------------------------------------------------------------

// Scalars of the template see neither the block that asks for them nor its variables.
Val Builder::global_eval(const Expr& expr, int64_t layer) {
  const Evaluator::Isolation isolated(evaluator_);
  Frame f;
  f.layer = layer;
  frames_.push_back(std::move(f));
  Val v = evaluator_.eval(expr);
  frames_.pop_back();
  return v;
}

bool Builder::lookup(std::string_view name, const Expr& at, Val& out) {
  Frame& f = frame();
  if (const auto it = f.names.find(name); it != f.names.end()) return out = it->second, true;
  if (name == "i" && f.layer >= 0) return out = Val(f.layer), true;
  if (scalars_.lookup(name, f.layer, at, out)) return true;
  if (name == "root") return out = Val(scalars_.root_name()), true;
  static const std::pair<const char*, InputKind> inputs[] = {{"tokens", InputKind::Tokens},
                                                             {"positions", InputKind::Positions},
                                                             {"offsets", InputKind::Offsets},
                                                             {"token_rows", InputKind::Rows},
                                                             {"total_lengths", InputKind::TotalLengths},
                                                             {"sequence_slots", InputKind::SequenceSlots}};
  for (const auto& [text, kind] : inputs)
    if (name == text) return out = Val(TensorRef{add_input(kind)}), true;
  static const std::pair<const char*, graph::Base> dims[] = {
      {"T", graph::Base::Tokens}, {"B", graph::Base::Sequences}, {"R", graph::Base::LogitRows}};
  for (const auto& [text, base] : dims)
    if (name == text) return out = Val(DimRef{program_.symbol(base)}), true;
  return false;
}

const std::vector<std::string>& flow_values() {
  static const std::vector<std::string> names = {
      "tokens", "positions", "offsets", "token_rows", "total_lengths", "sequence_slots", "root", "T", "B", "R"};
  return names;
}

// ---- Blocks --------------------------------------------------------------------------------------------------------

static std::string without_dots(std::string s) {
  while (!s.empty() && s.back() == '.') s.pop_back();
  while (!s.empty() && s.front() == '/') s.erase(0, 1);
  return s;
}
static std::string join(const std::string& path, const std::string& name) {
  return path.empty() ? name : name.empty() ? path : path + "." + name;
}

std::vector<Val> Builder::run_block(const Block& b, const std::vector<Val>& args, const std::string* at,
                                    const std::string& taps, int64_t layer, const Expr* where) {
  if (args.size() != b.args.size()) {
    const std::string message = fmt::format("{} takes {} arguments, got {}", b.name, b.args.size(), args.size());
    if (where) fault(*where, message);
    bad_block(b, message);
  }
  if (++blocks_open_ > 32) bad_block(b, "blocks call each other more than 32 deep");
  const Evaluator::Isolation isolated(evaluator_);
  Frame f;
  const std::string parent = frames_.empty() ? "" : frame().prefix;
  const std::string path = frames_.empty() ? "" : frame().path;
  f.block = &b, f.taps = taps, f.layer = layer, f.prefix = parent, f.path = path;
  for (size_t i = 0; i < args.size(); ++i) f.names[b.args[i]] = args[i];
  frames_.push_back(std::move(f));
  const std::string own = at ? *at : evaluator_.interpolate(b.prefix);
  const bool absolute = !own.empty() && own[0] == '/';
  frame().prefix = absolute ? own.substr(1) : parent + own;
  frame().path = join(absolute ? "" : path, without_dots(own));
  for (const WeightDecl& w : b.weights) frame().names[w.name] = add_weight(w);
  for (const Named& s : b.states) add_state(s);
  std::vector<Val> result;
  run_flow(b.flow, result);
  frames_.pop_back();
  --blocks_open_;
  return result;
}

// True after a return.
bool Builder::run_flow(const std::vector<Step>& steps, std::vector<Val>& result) {
  for (const Step& step : steps) {
    if (step.group_if) {
      if (run_flow(evaluator_.truth(*step.group_if) ? step.then : step.otherwise, result)) return true;
      continue;
    }
    const Statement& s = step.statement;
    if (s.condition && !evaluator_.truth(*s.condition)) continue;
    if (s.is_return) {
      for (const ExprPtr& e : s.values) result.push_back(evaluator_.eval(*e));
      return true;
    }
    const Id first_new = static_cast<Id>(program_.values.size());
    const Val v = evaluator_.eval(*s.values[0]);
    assign(s, v, first_new, *step.source);
  }
  return false;
}

void Builder::assign(const Statement& s, const Val& v, Id first_new, const Source& source) {
  const List* items = v.list();
  if (s.targets.size() > 1 && (!items || items->size() != s.targets.size()))
    fault(source, 1, fmt::format("expected {} values, got {}", s.targets.size(), text_of(v)));
  for (size_t i = 0; i < s.targets.size(); ++i) {
    const Val& item = s.targets.size() > 1 ? (*items)[i] : v;
    frame().names[s.targets[i]] = item;
    // A value made by this statement takes the name that the template gives it.
    const TensorRef* t = item.get<TensorRef>();
    if (t && t->id >= first_new && value(t->id).effect == kNone && value(t->id).origin != Origin::Input)
      value(t->id).name = unique(join(frame().path, s.targets[i]));
  }
}

// ---- The whole -----------------------------------------------------------------------------------------------------

void Builder::meta() {
  program_.family = t_.name, program_.scope = t_.scope;
  program_.checkpoint_dtype = scalars_.checkpoint_dtype();
  for (const Named& n : t_.model) {
    const Val v = global_eval(*n.expr, -1);
    if (n.name == "max_positions" && v.null()) continue;
    const int64_t* number = v.get<int64_t>();
    if (!number || *number < 1)
      fault(*n.expr, fmt::format("{} must be a positive integer, got {}", n.name, text_of(v)));
    (n.name == "layers"   ? program_.layers
     : n.name == "hidden" ? program_.hidden
     : n.name == "vocab"  ? program_.vocab
                          : program_.max_positions) = *number;
  }
  if (program_.layers > kMaxLayers)
    throw Fault{DGPU_STATUS_INVALID_ARGUMENT, "layers",
                fmt::format("{}: {} layers, expected at most {}", file_, program_.layers, kMaxLayers)};
  for (const auto& [key, limit] : scalars_.limits()) program_.limits.push_back({key, "limit", limit});
  for (const SkipEntry& s : t_.skips) {
    if (s.condition) {
      const Val on = global_eval(*s.condition, -1);
      if (!on.get<bool>()) fault(*s.condition, fmt::format("expected true or false, got {}", text_of(on)));
      if (!*on.get<bool>()) continue;
    }
    program_.skipped.push_back({s.pattern, s.reason});
  }
}

// Logits are wanted for some rows only: what the last block reads is gathered to these.
void Builder::carry_rows(std::vector<Val>& carried) {
  Expr at;
  const Source source{t_.file, "blocks.finish", ""};
  at.source = &source;
  for (Val& v : carried) {
    const TensorRef* t = v.get<TensorRef>();
    if (!t || value(t->id).shape.empty() || value(t->id).shape[0].symbol != 1) continue;
    OpCall gather;
    gather.op = "embedding";
    if (value(t->id).rule == graph::TypeRule::Fixed && value(t->id).dtype == DGPU_DTYPE_F32) gather.keep = "f32";
    gather.inputs = {{"table", t->id}, {"ids", add_input(InputKind::LogitRows)}};
    gather.outputs = {"out"};
    v = emit(std::move(gather), at);
  }
}

void Builder::finish(const std::vector<Val>& results, const Block& block) {
  const TensorRef* logits = results.size() == 1 ? results[0].get<TensorRef>() : nullptr;
  if (!logits) bad_block(block, "must return one tensor, the logits");
  const graph::Shape want = {program_.dim(3), {program_.vocab, 0}};
  if (value(logits->id).shape != want)
    bad_block(block, fmt::format("logits have the shape {}, expected {}", shape_text(value(logits->id).shape),
                                 shape_text(want)));
  program_.logits = logits->id;
}

graph::Program Builder::build() {
  scalars_.check_world();
  Frame top;
  frames_.push_back(std::move(top));
  scalars_.read_all();
  scalars_.check_rules(evaluator_);
  meta();
  frame().prefix = evaluator_.interpolate(t_.prefix);
  const Expr* nowhere = nullptr;
  std::vector<Val> carried = run_block(*t_.block("start"), {}, nullptr, "", -1, nowhere);
  Expr at;
  const Source source{t_.file, "blocks.start", ""};
  at.source = &source;
  if (carried.empty()) bad_block(*t_.block("start"), "returns nothing");
  tap(carried[0], "embedding", at);
  for (int64_t i = 0; i < program_.layers; ++i) {
    std::string name = "layer";
    if (t_.layer_block) {
      const Val v = global_eval(*t_.layer_block, i);
      if (!v.get<std::string>() || !t_.block(*v.get<std::string>()))
        fault(*t_.layer_block, fmt::format("layer {}: no block {}", i, text_of(v)));
      name = *v.get<std::string>();
    }
    const Block& block = *t_.block(name);
    const size_t count = carried.size();
    carried = run_block(block, carried, nullptr, fmt::format("layers.{}.", i), i, nowhere);
    if (carried.size() != count)
      bad_block(block, fmt::format("must return {} values, as it takes, got {}", count, carried.size()));
    tap(carried[0], fmt::format("layers.{}.output", i), at);
  }
  const Block& last = *t_.block("finish");
  carry_rows(carried);
  finish(run_block(last, carried, nullptr, "", -1, nowhere), last);
  mark_once();
  graph::remove_dead(program_);
  check_weights_used();
  return std::move(program_);
}

void Builder::mark_once() {
  std::vector<bool> changes(program_.values.size());
  for (size_t i = 0; i < program_.values.size(); ++i) {
    const Origin o = program_.values[i].origin;
    changes[i] = o == Origin::Input || o == Origin::State;
  }
  for (graph::Node& n : program_.nodes) {
    n.once = true;
    for (const graph::Binding& b : n.inputs) n.once &= !changes[program_.root(b.value)] && !changes[b.value];
    for (const graph::Binding& b : n.outputs) changes[b.value] = !n.once;
  }
}

// A weight that nothing reads: the template forgot it, or the flow's conditions disagree with the weight's.
void Builder::check_weights_used() {
  std::vector<bool> used(program_.tensors.size());
  for (const graph::Weight& w : program_.weights)
    for (const graph::Block& b : w.blocks) used[b.tensor] = true;
  for (size_t i = 0; i < used.size(); ++i)
    if (!used[i])
      throw Fault{
          DGPU_STATUS_INVALID_ARGUMENT, program_.tensors[i].name,
          fmt::format("{}: weight {} is declared, but the flow does not use it", t_.file, program_.tensors[i].name)};
}

Status build_program(const Template& t, const JsonNode& config, const std::string& file, graph::Program& out) {
  try {
    out = Builder(t, config, file).build();
  } catch (const Fault& f) {
    return fail_text(f.status, f.object, f.message);
  }
  return graph::verify(out);
}

}  // namespace dgpu::model
