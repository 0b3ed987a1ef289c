#include "model/template_lint.h"

#include <algorithm>
#include <map>
#include <set>

#include "ops/op.h"

namespace dgpu::model {
namespace {

class Linter {
 public:
  explicit Linter(const Template& t) : t_(t) {}

  void run() {
    global_names();
    structure();
    for (const KeyEntry& k : t_.keys) key(k);
    for (const StructDef& s : t_.structs)
      for (const KeyEntry& k : s.keys) key(k);
    for (const Named& n : t_.let) check(*n.expr, {});
    for (const Named& n : t_.layer_let) check(*n.expr, {"i"});
    for (const Named& n : t_.model) check(*n.expr, {});
    for (const CheckEntry& c : t_.checks) {
      check(*c.that, {});
      check(c.text, {});
    }
    for (const SkipEntry& s : t_.skips)
      if (s.condition) check(*s.condition, {});
    check(t_.prefix, {});
    if (t_.layer_block) check(*t_.layer_block, {"i"});
    for (const ExternDef& x : t_.externs) extern_def(x);
    for (const Block& b : t_.blocks) block(b);
    unused();
  }

 private:
  using Names = std::set<std::string>;

  [[noreturn]] void bad(const std::string& place, const std::string& message) const {
    throw Fault{DGPU_STATUS_INVALID_ARGUMENT, t_.file, fmt::format("{}: {}: {}", t_.file, place, message)};
  }
  void define(const std::string& name, const std::string& what) {
    const auto [it, fresh] = globals_.emplace(name, what);
    if (!fresh) bad(name, fmt::format("the name is both {} and {}", it->second, what));
  }
  void global_names() {
    for (const std::string& v : flow_values()) define(v, "a built-in value");
    for (const std::string& f : builtin_functions()) define(f, "a built-in function");
    for (const std::string& f : flow_functions())
      if (!globals_.count(f)) define(f, "a built-in function");
    for (const KeyEntry& k : t_.keys) define(k.name, "a config key");
    for (const Named& n : t_.let) define(n.name, "a named scalar");
    for (const Named& n : t_.layer_let) define(n.name, "a scalar per layer");
    for (const Block& b : t_.blocks) define(b.name, "a block");
    for (const ExternDef& x : t_.externs) {
      define(x.name, "an extern operator");
      if (ops::find(x.name)) bad("extern." + x.name, "the library has this operator: remove the declaration");
    }
  }
  void structure() {
    for (const char* need : {"start", "finish"})
      if (!t_.block(need)) bad("blocks", fmt::format("block {} is missing", need));
    if (!t_.layer_block && !t_.block("layer")) bad("blocks", "block layer (or layer_block) is missing");
    for (const char* need : {"layers", "hidden", "vocab"}) {
      const bool found = std::any_of(t_.model.begin(), t_.model.end(), [&](const Named& n) { return n.name == need; });
      if (!found) bad("model", fmt::format("{} is missing", need));
    }
    for (const Named& n : t_.model)
      if (n.name != "layers" && n.name != "hidden" && n.name != "vocab" && n.name != "max_positions")
        bad("model." + n.name, "unknown; known are layers, hidden, vocab, max_positions");
    for (const KeyEntry& k : t_.keys)
      for (const auto& path : k.paths)
        if (t_.inert_reason(path[0]) && path.size() == 1)
          bad("keys." + k.name,
              fmt::format("config key {} is read and also inert; set the inert entry to null", path[0]));
  }
  void key(const KeyEntry& k) {
    if (k.absent) check(*k.absent, {});
    if (k.null) check(*k.null, {});
    if (k.length) check(*k.length, {});
    if (!k.struct_name.empty() && !t_.find_struct(k.struct_name)) bad("keys." + k.name, "no struct " + k.struct_name);
  }
  void extern_def(const ExternDef& x) {
    Names ports;
    for (const ExternPort& p : x.ports) ports.insert(p.name);
    for (const std::string& a : x.attrs) ports.insert(a);
    for (const auto& out : x.outs) check(*out.shape, ports);
  }

  // Names used in `e` must be global, or among `local`, or bound by the expression itself.
  void check(const Expr& e, const Names& local) {
    std::vector<std::string> used, bound;
    collect_names(e, used, bound);
    for (const std::string& b : bound)
      if (globals_.count(b) || local.count(b))
        fault(e, fmt::format("variable {} hides {}", b, globals_.count(b) ? globals_[b] : "another name"));
    for (const std::string& u : used) {
      used_.insert(u);
      const bool layer_index = u == "i" && local.count("i");
      if (layer_index || local.count(u) || globals_.count(u) || ops::find(u)) continue;
      if (std::find(bound.begin(), bound.end(), u) != bound.end()) continue;
      fault(e, fmt::format("unknown name {}", u));
    }
  }
  void check(const Interpolated& t, const Names& local) {
    for (const ExprPtr& e : t.exprs) check(*e, local);
  }

  void block(const Block& b) {
    const std::string place = "blocks." + b.name;
    Names local = {"i"};
    auto add = [&](const std::string& name, const char* what) {
      if (globals_.count(name)) bad(place, fmt::format("{} {} hides {}", what, name, globals_[name]));
      if (!local.insert(name).second) bad(place, fmt::format("{} {} hides another name of the block", what, name));
    };
    for (const std::string& a : b.args) add(a, "argument");
    check(b.prefix, local);
    for (const WeightDecl& w : b.weights) weight(w, local);
    for (const Named& s : b.states) state(s, local);
    for (const WeightDecl& w : b.weights) add(w.name, "weight");
    for (const Named& s : b.states) add(s.name, "state");
    const Names fixed = local;
    flow(b.flow, fixed, local, place);
  }
  void state(const Named& s, const Names& local) {
    const bool conditional = s.expr->op == Op::If;
    const Expr& e = conditional ? *s.expr->kids[0] : *s.expr;
    const bool otherwise_null = !conditional || (s.expr->kids[2]->op == Op::Literal && s.expr->kids[2]->literal.null());
    if (e.op != Op::Call || e.kids[0]->op != Op::Name || !otherwise_null)
      fault(e, "expected kind(component=[extents], ...), perhaps with: if condition else null");
    if (conditional) check(*s.expr->kids[1], local);
    for (size_t k = 1; k < e.kids.size(); ++k) check(*e.kids[k], local);
  }
  void weight(const WeightDecl& w, const Names& local) {
    if (w.condition) check(*w.condition, local);
    for (const WeightPart& p : w.parts) {
      Names inner = local;
      if (!p.text.each.empty()) {
        if (globals_.count(p.text.each) || local.count(p.text.each))
          fault(*p.text.shape, fmt::format("variable {} hides another name", p.text.each));
        check(*p.text.each_count, local);
        inner.insert(p.text.each);
      }
      check(p.name, inner);
      check(*p.text.shape, local);
      for (const auto& step : p.text.steps)
        for (const ExprPtr& e : step.args) check(*e, local);
    }
    for (const auto& step : w.then)
      for (const ExprPtr& e : step.args) check(*e, local);
  }
  void flow(const std::vector<Step>& steps, const Names& fixed, Names& local, const std::string& place) {
    for (const Step& s : steps) {
      if (s.group_if) {
        check(*s.group_if, local);
        flow(s.then, fixed, local, place);
        flow(s.otherwise, fixed, local, place);
        continue;
      }
      if (s.statement.condition) check(*s.statement.condition, local);
      for (const ExprPtr& e : s.statement.values) check(*e, local);
      for (const std::string& target : s.statement.targets) {
        const bool arg = fixed.count(target) && target != "i";
        if (globals_.count(target) || target == "i")
          fault(*s.source, 1, fmt::format("{} hides {}", target, target == "i" ? "the layer index" : globals_[target]));
        if (arg && !is_arg(target, place))
          fault(*s.source, 1, fmt::format("{} hides a weight or state of the block", target));
        local.insert(target);
      }
    }
  }
  bool is_arg(const std::string& name, const std::string& place) const {
    const Block* b = t_.block(place.substr(7));
    return b && std::find(b->args.begin(), b->args.end(), name) != b->args.end();
  }

  // A config key that nothing uses would be silently ignored.
  void unused() {
    for (const KeyEntry& k : t_.keys) {
      const bool constrained = !k.in.empty() || !k.values.empty();
      if (!used_.count(k.name) && k.role.empty() && !constrained)
        bad("keys." + k.name,
            "nothing uses it: constrain it with \"in\", give it a role, or list the config key as inert");
    }
    for (const Named& n : t_.let)
      if (!used_.count(n.name))
        bad("let." + n.name, "nothing uses it; remove it, or make it null where the base has it");
  }

  const Template& t_;
  std::map<std::string, std::string> globals_;
  Names used_;
};

}  // namespace

void lint(const Template& t) { Linter(t).run(); }

}  // namespace dgpu::model
