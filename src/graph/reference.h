// Runs a program on the host in f64, operator by operator, with the operators' references: the oracle of layer-by-layer
// comparison. One sequence, all tokens in one step.
#pragma once
#include <functional>

#include "graph/program.h"
#include "ops/op.h"

namespace dgpu::graph {

struct ReferenceRun {
  std::vector<int32_t> tokens;
  // Fills one weight, row-major, as f64 or i64. Called once per weight and use, so that weights need not stay in memory.
  std::function<Status(Id weight, ops::RefTensor& out)> load;
  // Called for each tap, and for "logits" ([tokens, vocab]), in execution order.
  std::function<Status(const std::string& name, const ops::RefTensor& value)> tap;
  // Called after each node; non-zero cancels.
  std::function<uint32_t(uint64_t done, uint64_t total, const std::string& name)> progress;
};

// Blocks. Holds no more values in memory than the program's lifetimes need, and the weights of one operator.
Status run_reference(const Program& program, const ReferenceRun& run);

}  // namespace dgpu::graph
