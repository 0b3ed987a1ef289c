#include <algorithm>

#include "graph/passes/passes.h"

namespace dgpu::graph {
namespace {

bool writes_state(const Program& p, const Node& n) {
  return std::any_of(n.outputs.begin(), n.outputs.end(),
                     [&](const Binding& b) { return p.values[b.value].effect != kNone; });
}

class Remover {
 public:
  explicit Remover(Program& program) : p_(program), keep_node_(p_.nodes.size()), keep_value_(p_.values.size()) {}

  void run() {
    if (p_.logits != kNone) need(p_.logits);
    for (const Tap& t : p_.taps) need(t.value);
    for (Id n = static_cast<Id>(p_.nodes.size()); n-- > 0;) {
      if (!keep_node_[n] && !writes_state(p_, p_.nodes[n])) continue;
      keep_node_[n] = true;
      for (const Binding& b : p_.nodes[n].inputs) need(b.value);
      for (const Binding& b : p_.nodes[n].outputs) keep_value_[b.value] = true, keep_value_[p_.root(b.value)] = true;
    }
    for (const State& s : p_.states) keep_value_[s.value] = true;
    renumber();
  }

 private:
  // Nodes are visited backwards, so what a node needs is marked before its producer is looked at.
  void need(Id value) {
    const Value& v = p_.values[value];
    keep_value_[value] = true;
    if (v.is_view()) {
      if (v.effect != kNone) keep_node_[v.effect] = true;
      keep_value_[v.base] = true;
    }
    const Value& root = p_.values[p_.root(value)];
    if (root.origin == Origin::Node) keep_node_[root.index] = true;
  }

  static std::vector<Id> compact(const std::vector<bool>& keep) {
    std::vector<Id> to(keep.size(), kNone);
    Id next = 0;
    for (size_t i = 0; i < keep.size(); ++i)
      if (keep[i]) to[i] = next++;
    return to;
  }
  template <typename T, typename Keep>
  std::vector<Id> filter(std::vector<T>& list, Keep&& keep) {
    std::vector<bool> mask(list.size());
    for (size_t i = 0; i < list.size(); ++i) mask[i] = keep(list[i]);
    const std::vector<Id> to = compact(mask);
    size_t next = 0;
    for (size_t i = 0; i < list.size(); ++i) {
      if (!mask[i]) continue;
      if (next != i) list[next] = std::move(list[i]);
      ++next;
    }
    list.resize(next);
    return to;
  }

  void renumber() {
    const auto used = [this](const auto& item) { return static_cast<bool>(keep_value_[item.value]); };
    const std::vector<Id> node_to = compact(keep_node_), value_to = compact(keep_value_);
    const std::vector<Id> input_to = filter(p_.inputs, used), weight_to = filter(p_.weights, used),
                          constant_to = filter(p_.constants, used);
    size_t next = 0;
    for (size_t i = 0; i < keep_node_.size(); ++i)
      if (keep_node_[i]) {
        if (next != i) p_.nodes[next] = std::move(p_.nodes[i]);
        ++next;
      }
    p_.nodes.resize(next);
    next = 0;
    for (size_t i = 0; i < keep_value_.size(); ++i) {
      if (!keep_value_[i]) continue;
      if (next != i) p_.values[next] = std::move(p_.values[i]);
      Value& v = p_.values[next++];
      if (v.effect != kNone) v.effect = node_to[v.effect];
      if (v.base != kNone) v.base = value_to[v.base];
      if (v.origin == Origin::Node) v.index = node_to[v.index];
      if (v.origin == Origin::Input) v.index = input_to[v.index];
      if (v.origin == Origin::Weight) v.index = weight_to[v.index];
      if (v.origin == Origin::Constant) v.index = constant_to[v.index];
    }
    p_.values.resize(next);
    const auto move = [&](Id& id) { id = value_to[id]; };
    for (Node& n : p_.nodes) {
      for (Binding& b : n.inputs) move(b.value);
      for (Binding& b : n.outputs) move(b.value);
    }
    for (Input& i : p_.inputs) move(i.value);
    for (Weight& w : p_.weights) move(w.value);
    for (Constant& c : p_.constants) move(c.value);
    for (State& s : p_.states) move(s.value);
    for (Tap& t : p_.taps) move(t.value);
    if (p_.logits != kNone) move(p_.logits);
  }

  Program& p_;
  std::vector<bool> keep_node_, keep_value_;
};

}  // namespace

void remove_dead(Program& program) { Remover(program).run(); }

}  // namespace dgpu::graph
