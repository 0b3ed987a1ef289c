// The ring of argument bytes of a stream.
#include <gtest/gtest.h>

#include <cstring>
#include <utility>
#include <vector>

#include "runtime/slot.h"

namespace dgpu {
namespace {

TEST(ArgumentArena, TheWholeRingIsThereWhateverWasUsedBefore) {
  ArgumentArena arena(4096);
  for (int used = 1; used <= 42; ++used) {
    for (int i = 0; i < used; ++i) ASSERT_NE(arena.allocate(96), nullptr) << "use " << i << " of " << used;
    arena.release(arena.head());
  }
  int fits = 0;
  while (arena.allocate(96)) ++fits;
  EXPECT_EQ(fits, 4096 / 96);
}

TEST(ArgumentArena, ARewoundAllocationIsFreeAgain) {
  ArgumentArena arena(4096);
  for (int round = 0; round < 100; ++round) {
    const uint64_t before = arena.head();
    ASSERT_NE(arena.allocate(4000), nullptr);
    arena.rewind(before);
    ASSERT_NE(arena.allocate(96), nullptr);
    arena.release(arena.head());
  }
}

TEST(ArgumentArena, BlocksInUseDoNotOverlap) {
  ArgumentArena arena(4096);
  std::vector<std::pair<char*, uint64_t>> used;  // block, position after it
  uint32_t seed = 7;
  for (int i = 0; i < 20'000; ++i) {
    seed = seed * 1664525u + 1013904223u;
    const size_t bytes = 16 * (1 + (seed >> 16) % 40);
    auto* block = static_cast<char*>(arena.allocate(bytes));
    if (!block) {
      ASSERT_FALSE(used.empty());
      arena.release(used.front().second);
      used.erase(used.begin());
      continue;
    }
    for (const auto& [other, end] : used) ASSERT_TRUE(block != other);
    std::memset(block, 1, bytes);
    for (size_t b = 0; b < used.size(); ++b) ASSERT_TRUE(block + bytes <= used[b].first || used[b].first < block);
    used.emplace_back(block, arena.head());
    if ((seed & 15) == 0) {
      arena.release(used.back().second);
      used.clear();
    }
  }
}

}  // namespace
}  // namespace dgpu
