#include "memory/free_index.h"

#include <climits>

namespace dgpu::memory {

// Sizes in granules: level = floor(log2), fine = the next three bits.
FreeIndex::Bin FreeIndex::bin_of(uint64_t size) {
  const uint64_t units = size / kGranule;
  const unsigned level = 63 - static_cast<unsigned>(__builtin_clzll(units));
  const uint64_t fine = level >= kFineBits ? units >> (level - kFineBits) : units << (kFineBits - level);
  return {level, static_cast<unsigned>(fine & (kFine - 1))};
}

void FreeIndex::insert(Block* block) {
  const Bin bin = bin_of(block->size);
  Block*& head = heads_[bin.level][bin.fine];
  block->bin_prev = nullptr;
  block->bin_next = head;
  if (head) head->bin_prev = block;
  head = block;
  fines_[bin.level] |= static_cast<uint8_t>(1u << bin.fine);
  levels_ |= uint64_t{1} << bin.level;
}

void FreeIndex::remove(Block* block) {
  const Bin bin = bin_of(block->size);
  (block->bin_prev ? block->bin_prev->bin_next : heads_[bin.level][bin.fine]) = block->bin_next;
  if (block->bin_next) block->bin_next->bin_prev = block->bin_prev;
  if (heads_[bin.level][bin.fine]) return;
  fines_[bin.level] &= static_cast<uint8_t>(~(1u << bin.fine));
  if (!fines_[bin.level]) levels_ &= ~(uint64_t{1} << bin.level);
}

Block* FreeIndex::scan(const Bin& bin, uint64_t size, unsigned limit) const {
  for (Block* block = heads_[bin.level][bin.fine]; block && limit; block = block->bin_next, --limit) {
    if (block->size >= size) return block;
  }
  return nullptr;
}

Block* FreeIndex::find(uint64_t size) const {
  const Bin bin = bin_of(size);
  // The block that was just freed with this very size is in the size's own bin, often in front.
  if (Block* block = scan(bin, size, 8)) return block;
  // Any block of a higher bin fits.
  unsigned level = bin.level;
  unsigned fines = fines_[level] & (UINT_MAX << (bin.fine + 1));
  if (!fines) {
    const uint64_t above = level + 1 < 64 ? levels_ & (UINT64_MAX << (level + 1)) : 0;
    if (above) {
      level = static_cast<unsigned>(__builtin_ctzll(above));
      fines = fines_[level];
    }
  }
  if (fines) return heads_[level][__builtin_ctz(fines)];
  return scan(bin, size, UINT_MAX);
}

}  // namespace dgpu::memory
