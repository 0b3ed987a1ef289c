#include "graph/memory_plan.h"

#include <algorithm>
#include <numeric>

namespace dgpu::graph {

uint64_t plan_memory(std::vector<Lifetime>& tensors, uint64_t alignment) {
  const auto round_up = [&](uint64_t n) { return (n + alignment - 1) / alignment * alignment; };
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return tensors[a].size > tensors[b].size; });
  std::vector<size_t> placed;  // by offset
  uint64_t total = 0;
  for (const size_t i : order) {
    auto& t = tensors[i];
    uint64_t at = 0;
    for (const size_t j : placed) {
      const auto& o = tensors[j];
      if (o.last < t.first || t.last < o.first) continue;
      if (o.offset >= at + round_up(t.size)) break;
      at = std::max(at, o.offset + round_up(o.size));
    }
    t.offset = at;
    total = std::max(total, at + round_up(t.size));
    placed.insert(std::upper_bound(placed.begin(), placed.end(), i,
                                   [&](size_t a, size_t b) { return tensors[a].offset < tensors[b].offset; }),
                  i);
  }
  return total;
}

}  // namespace dgpu::graph
