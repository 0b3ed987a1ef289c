#include "backends/cpu/scratch.h"

#include <algorithm>
#include <memory>
#include <new>
#include <vector>

namespace dgpu::cpu {
namespace {

constexpr size_t kAlign = 64, kFirstBlock = size_t{1} << 20;

struct Free {
  void operator()(char* p) const { ::operator delete(p, std::align_val_t(kAlign)); }
};
struct Block {
  std::unique_ptr<char, Free> memory;
  size_t size = 0;
};
struct Store {
  std::vector<Block> blocks;
  size_t used = 0;  // of the last block
  void add(size_t size) {
    blocks.push_back(
        {std::unique_ptr<char, Free>(static_cast<char*>(::operator new(size, std::align_val_t(kAlign)))), size});
    used = 0;
  }
};
thread_local Store t_store;

}  // namespace

Scratch::Scratch() {
  auto& s = t_store;
  if (s.blocks.size() > 1) {  // one block as large as all that the last chunk needed
    size_t total = 0;
    for (const auto& b : s.blocks) total += b.size;
    s.blocks.clear();
    s.add(total);
  }
  s.used = 0;
}

Scratch::~Scratch() { t_store.used = 0; }

void* Scratch::bytes(size_t size) {
  auto& s = t_store;
  // An odd number of lines between buffers keeps equal indices of two buffers out of the same cache set.
  size = (size + kAlign - 1) / kAlign * kAlign + kAlign;
  if (s.blocks.empty() || s.blocks.back().size - s.used < size) s.add(std::max(size, kFirstBlock));
  void* p = s.blocks.back().memory.get() + s.used;
  s.used += size;
  return p;
}

}  // namespace dgpu::cpu
