// Experts that are given instead of chosen, for runs that are compared with another run.
#include "graph/passes/passes.h"

namespace dgpu::graph {
namespace {

class Forcer {
 public:
  Forcer(Program& program, Id node) : p_(program), node_(node) {}

  // A second routing node behind the first weighs the given experts, and everybody reads that one. The first still
  // chooses, for whoever looks at its outputs.
  void run(const std::vector<int32_t>& experts) {
    Node forced = p_.nodes[node_];
    const std::string name = forced.name + ".forced";
    const Id ids = add_constant(name + ":ids", forced.output("indices"), experts);
    make_room();
    forced.name = name;
    forced.inputs.push_back({"ids", ids});
    for (Binding& b : forced.outputs) {
      Value v = p_.values[b.value];
      v.name = name + ":" + b.port;
      v.index = node_ + 1;
      const Id id = static_cast<Id>(p_.values.size());
      p_.values.push_back(std::move(v));
      redirect(b.value, id);
      b.value = id;
    }
    p_.nodes[node_ + 1] = std::move(forced);
  }

 private:
  Id add_constant(std::string name, Id like, const std::vector<int32_t>& experts) {
    const int64_t k = p_.values[like].shape.back().value;
    Value v;
    v.name = name;
    v.origin = Origin::Constant;
    v.index = static_cast<Id>(p_.constants.size());
    v.rule = TypeRule::Fixed;
    v.dtype = DGPU_DTYPE_I32;
    v.shape = p_.values[like].shape;
    const Id id = static_cast<Id>(p_.values.size());
    p_.constants.push_back({std::move(name),
                            DGPU_DTYPE_I32,
                            {static_cast<int64_t>(experts.size()) / k, k},
                            {experts.begin(), experts.end()},
                            id});
    p_.values.push_back(std::move(v));
    return id;
  }

  void make_room() {
    p_.nodes.insert(p_.nodes.begin() + node_ + 1, Node());
    for (Value& v : p_.values) {
      if (v.origin == Origin::Node && v.index > node_) ++v.index;
      if (v.effect != kNone && v.effect > node_) ++v.effect;
    }
  }

  void redirect(Id from, Id to) {
    for (Id n = node_ + 2; n < p_.nodes.size(); ++n)
      for (Binding& b : p_.nodes[n].inputs)
        if (b.value == from) b.value = to;
    for (Value& v : p_.values)
      if (v.is_view() && v.base == from) v.base = to;
  }

  Program& p_;
  Id node_;
};

}  // namespace

void force_routes(Program& program, const Routes& routes) {
  for (Id n = 0; n < program.nodes.size(); ++n) {
    const auto given = routes.find(program.nodes[n].name);
    if (given == routes.end()) continue;
    Forcer(program, n).run(given->second);
    ++n;  // the node that was put in
  }
}

bool chooses_experts(const Node& node) { return node.op == "moe_route" && node.input("ids") == kNone; }

}  // namespace dgpu::graph
