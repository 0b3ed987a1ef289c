// Free blocks by size: two-level segregated fit (Masmano et al., "TLSF: a new dynamic memory allocator for real-time
// systems", ECRTS 2004), with the bookkeeping outside of the memory that it manages.
#pragma once
#include <cstdint>

#include "runtime/address_table.h"

namespace dgpu::memory {

constexpr uint64_t kGranule = 256;  // alignment and unit of all blocks, bytes

struct PoolSegment;
class FreeSet;

// A part of a segment: used, free, or quarantined.
struct Block {
  PoolSegment* segment = nullptr;
  uint64_t offset = 0;
  uint64_t size = 0;  // a multiple of kGranule
  uint64_t asked = 0;
  dgpuAddr_t address = 0;   // while used
  uint32_t born = 0;        // while used: Context::losses() before the address was given out
  Block* before = nullptr;  // neighbours in the segment
  Block* after = nullptr;
  FreeSet* set = nullptr;     // the set that it is free in
  uint64_t value = 0;         // in a stream's set: reusable elsewhere when this value has retired
  Block* bin_next = nullptr;  // in the set's bin
  Block* bin_prev = nullptr;
  Block* age_next = nullptr;  // in the set's list by age
  Block* age_prev = nullptr;
};

class FreeIndex {
 public:
  void insert(Block* block);
  void remove(Block* block);
  // A block of at least `size` bytes, not removed; null if there is none.
  Block* find(uint64_t size) const;
  bool empty() const { return levels_ == 0; }

 private:
  static constexpr unsigned kFineBits = 3;
  static constexpr unsigned kFine = 1u << kFineBits;
  static constexpr unsigned kLevels = 48;
  struct Bin {
    unsigned level;
    unsigned fine;
  };
  static Bin bin_of(uint64_t size);
  Block* scan(const Bin& bin, uint64_t size, unsigned limit) const;

  uint64_t levels_ = 0;  // bit: the level has a block
  uint8_t fines_[kLevels] = {};
  Block* heads_[kLevels][kFine] = {};
};

}  // namespace dgpu::memory
