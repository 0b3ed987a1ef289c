// Rewrites of a program. Each leaves a program that verifies.
#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "graph/program.h"

namespace dgpu::graph {

// Removes nodes whose results nobody reads (writes to states stay), then values, inputs, weights and constants that
// nothing mentions. Ids change.
void remove_dead(Program& program);

struct FuseOptions {
  bool all_taps = false;       // keep every tap
  std::set<std::string> taps;  // else only these; other taps are dropped
};
// Peephole fusion for execution: bias, residual and gate into matmul, residual into rms_norm. A value that a kept tap
// or a second reader needs is not fused away. Never changes which values are rounded less than before, only saves
// roundings: a sum that is added in the epilogue is not rounded in between.
Status fuse(Program& program, const FuseOptions& options);

// By the name of a routing node: the experts of each token, [tokens, top_k].
using Routes = std::map<std::string, std::vector<int32_t>>;
// Makes these nodes use the given experts, weighed as if they had been chosen, in steps of exactly that many tokens.
// Ids change.
void force_routes(Program& program, const Routes& routes);
// Routes by score, not by a table of tokens.
bool chooses_experts(const Node& node);

}  // namespace dgpu::graph
