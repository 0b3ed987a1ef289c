// Peephole fusion. A consumer is rewritten where it stands to do its producer's work as well; the producer, then
// unread, is removed at the end.
#include <algorithm>
#include <cmath>

#include "graph/passes/passes.h"

namespace dgpu::graph {
namespace {

template <typename T>
T attr(const Node& n, std::string_view name, T otherwise) {
  const auto it = n.attrs.find(name);
  const T* v = it == n.attrs.end() ? nullptr : std::get_if<T>(&it->second);
  return v ? *v : otherwise;
}

bool matmul_activation(const std::string& fn) {
  return fn == "relu" || fn == "gelu_erf" || fn == "gelu_tanh" || fn == "silu";
}

class Fuser {
 public:
  explicit Fuser(Program& program) : p_(program), readers_(p_.values.size()) {
    for (const Node& n : p_.nodes)
      for (const Binding& b : n.inputs) ++readers_[p_.root(b.value)];
    for (const Tap& t : p_.taps) ++readers_[p_.root(t.value)];
    if (p_.logits != kNone) ++readers_[p_.root(p_.logits)];
  }

  void run() {
    for (Id n = 0; n < p_.nodes.size(); ++n) {
      const std::string& op = p_.nodes[n].op;
      if (op == "unary")
        activation(n);
      else if (op == "glu")
        gate(n);
      else if (op == "binary")
        residual(n);
    }
    for (Id n = 0; n < p_.nodes.size(); ++n)
      if (p_.nodes[n].op == "rms_norm") sum(n);
  }

 private:
  // The matmul that made `value` for this reader alone, if its epilogue still has room after its step `last`.
  const Node* matmul(Id value, bool allow_activation, bool allow_gate) const {
    const Value& v = p_.values[value];
    if (v.is_view() || v.origin != Origin::Node || readers_[value] != 1) return nullptr;
    const Node& n = p_.nodes[v.index];
    if (n.op != "matmul" || n.is_extern || n.input("residual") != kNone) return nullptr;
    if (!allow_activation && attr<std::string>(n, "activation", "none") != "none") return nullptr;
    if (!allow_gate && n.input("gate") != kNone) return nullptr;
    // Moved behind a later write, it would read what that wrote.
    for (const Binding& b : n.inputs)
      if (p_.values[p_.root(b.value)].origin == Origin::State) return nullptr;
    return &n;
  }
  bool same_type(Id a, Id b) const {
    return p_.values[a].rule == p_.values[b].rule && p_.values[a].dtype == p_.values[b].dtype;
  }
  bool same_shape(Id a, Id b) const { return p_.values[a].shape == p_.values[b].shape; }

  // Makes node `n` the producer's matmul with one more epilogue step; its output stays.
  void replace(Id n, const Node& producer, std::string port, Id extra, const std::string& activation_name) {
    Node& node = p_.nodes[n];
    Node fused = producer;
    fused.name = node.name, fused.once = node.once;
    fused.outputs = {{"out", node.outputs[0].value}};
    if (extra != kNone) fused.inputs.push_back({std::move(port), extra});
    if (!activation_name.empty()) fused.attrs["activation"] = activation_name;
    for (const Binding& b : producer.inputs) ++readers_[p_.root(b.value)];
    --readers_[p_.root(producer.outputs[0].value)];
    node = std::move(fused);
    p_.values[node.outputs[0].value].port = "out";
  }

  void activation(Id n) {
    const Node& node = p_.nodes[n];
    const std::string fn = attr<std::string>(node, "fn", "");
    const Id x = node.input("x");
    const Node* producer = matmul_activation(fn) ? matmul(x, false, false) : nullptr;
    if (producer && same_type(x, node.outputs[0].value)) replace(n, Node(*producer), "", kNone, fn);
  }

  // glu(x w_gate, up) with nothing clamped is a matmul with activation and gate.
  void gate(Id n) {
    const Node& node = p_.nodes[n];
    const double inf = INFINITY;
    const std::string fn = attr<std::string>(node, "activation", "");
    if (attr<std::string>(node, "layout", "") != "separate" || !matmul_activation(fn)) return;
    if (attr<double>(node, "alpha", 1) != 1 || attr<double>(node, "gate_max", inf) != inf ||
        attr<double>(node, "up_clamp", inf) != inf || attr<double>(node, "up_offset", 0) != 0)
      return;
    const Id x = node.input("x"), up = node.input("up");
    const Node* producer = matmul(x, false, false);
    if (producer && same_type(x, node.outputs[0].value) && same_shape(x, up))
      replace(n, Node(*producer), "gate", up, fn);
  }

  void residual(Id n) {
    const Node& node = p_.nodes[n];
    if (attr<std::string>(node, "fn", "") != "add" || node.input("b") == kNone) return;
    for (const auto& [product, other] : {std::pair{"b", "a"}, {"a", "b"}}) {
      const Id x = node.input(product), r = node.input(other), out = node.outputs[0].value;
      const Node* producer = matmul(x, true, true);
      if (!producer || !same_shape(x, r) || !same_shape(x, out) || !same_type(x, out)) continue;
      replace(n, Node(*producer), "residual", r, "");
      return;
    }
  }

  // rms_norm(a + b) where the norm is the first to read the sum: the norm adds, and hands the sum out as well.
  void sum(Id n) {
    Node& norm = p_.nodes[n];
    const Id x = norm.input("x");
    const Value& v = p_.values[x];
    if (norm.input("residual") != kNone || norm.output("sum") != kNone || v.is_view() || v.origin != Origin::Node)
      return;
    const Id producer = v.index;
    const Node& add = p_.nodes[producer];
    if (add.op != "binary" || attr<std::string>(add, "fn", "") != "add") return;
    const Id a = add.input("a"), b = add.input("b");
    if (b == kNone || !same_shape(a, x) || !same_shape(b, x) || !same_type(a, x)) return;
    if (first_reader(x, producer) != n) return;
    for (Id side : {a, b})
      if (p_.values[p_.root(side)].origin == Origin::State) return;
    for (Binding& in : norm.inputs)
      if (in.port == "x") in.value = a;
    norm.inputs.push_back({"residual", b});
    norm.outputs.push_back({"sum", x});
    p_.values[x].index = n, p_.values[x].port = "sum";
    p_.nodes[producer].outputs.clear();  // nothing is left to keep it
  }
  Id first_reader(Id value, Id after) const {
    for (Id n = after + 1; n < p_.nodes.size(); ++n)
      for (const Binding& b : p_.nodes[n].inputs)
        if (p_.root(b.value) == value) return n;
    return kNone;
  }

  Program& p_;
  std::vector<uint32_t> readers_;  // by root: node inputs, taps, logits
};

}  // namespace

Status fuse(Program& program, const FuseOptions& options) {
  if (!options.all_taps)
    program.taps.erase(std::remove_if(program.taps.begin(), program.taps.end(),
                                      [&](const Tap& t) { return !options.taps.count(t.name); }),
                       program.taps.end());
  Fuser(program).run();
  remove_dead(program);
  return verify(program);
}

}  // namespace dgpu::graph
