#include "graph/passes/passes.h"
namespace dgpu::graph {
Status fuse(Program& program, const FuseOptions& options) {
  if (!options.all_taps) {
    std::vector<Tap> kept;
    for (auto& t : program.taps)
      if (options.taps.count(t.name)) kept.push_back(t);
    program.taps = std::move(kept);
  }
  return DGPU_STATUS_SUCCESS;
}
}  // namespace dgpu::graph
