// Rewrites of a program. Each leaves a program that verifies.
#pragma once
#include <set>
#include <string>

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

}  // namespace dgpu::graph
