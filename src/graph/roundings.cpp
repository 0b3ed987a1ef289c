#include "graph/roundings.h"

#include <algorithm>

namespace dgpu::graph {

std::vector<uint32_t> count_roundings(const Program& program) {
  std::vector<uint32_t> at(program.values.size(), 0);  // by root value
  for (const auto& node : program.nodes) {
    uint32_t in = 0;
    for (const auto& b : node.inputs) in = std::max(in, at[program.root(b.value)]);
    // A norm with `cast = before_weight` rounds once more inside.
    const auto cast = node.attrs.find("cast");
    const bool twice = cast != node.attrs.end() && std::get<std::string>(cast->second) == "before_weight";
    for (const auto& b : node.outputs) {
      const Id root = program.root(b.value);
      const bool stored = program.values[root].rule == TypeRule::Activation;
      at[root] = std::max(at[root], in + (stored ? 1 + (twice ? 1 : 0) : 0));
    }
  }
  for (Id v = 0; v < program.values.size(); ++v) at[v] = at[program.root(v)];
  return at;
}

}  // namespace dgpu::graph
