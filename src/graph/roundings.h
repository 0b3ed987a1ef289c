// How many times a value's path was rounded to the compute type: the basis of tolerances for bf16 and f16 runs.
#pragma once
#include <vector>

#include "graph/program.h"

namespace dgpu::graph {

// Per value: the number of stores in the compute type on the longest path from the inputs to it. Each store adds an
// independent relative error of about unit roundoff / sqrt(3); over n of them the error grows with sqrt(n).
std::vector<uint32_t> count_roundings(const Program& program);

}  // namespace dgpu::graph
