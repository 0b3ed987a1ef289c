// Offsets for tensors with known lifetimes in one block of memory.
#pragma once
#include <cstdint>
#include <vector>

namespace dgpu::graph {

struct Lifetime {
  uint64_t size = 0;   // bytes
  uint32_t first = 0;  // first and last step, inclusive, during which the bytes are in use
  uint32_t last = 0;
  uint64_t offset = 0;  // out
};

// Greedy by size: the largest tensor first, each at the lowest gap among those that live at the same time. Offsets are
// multiples of `alignment`. Returns the bytes needed in all. (Pisarchyk and Lee, "Efficient memory management for deep
// neural net inference", 2020, section 5.)
uint64_t plan_memory(std::vector<Lifetime>& tensors, uint64_t alignment);

}  // namespace dgpu::graph
