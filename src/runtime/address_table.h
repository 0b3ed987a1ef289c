// Device addresses: artificial 64-bit values, unique over all devices of the process, that no pointer has.
//   63..56  0x0d
//   55..50  class c: the allocation is smaller than 2^c bytes, so that running past its end stays recognisable
//   49..c   generation and index of an entry of that class
//   c-1..0  offset
// An entry is read without a lock: its generation is checked before and after.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "base/error.h"
#include "dgpu/backend.h"

namespace dgpu {

class Context;

// Memory taken from a backend or pinned on the host, of which allocations are parts. The descriptor lives as long as
// its context, also when the memory was given back.
struct Segment {
  static constexpr uint32_t kHost = UINT32_MAX;
  Context* context = nullptr;
  uint32_t device = kHost;              // index in the context
  dgpuBackendMemory* memory = nullptr;  // null for host memory
  uint64_t native = 0;
  std::byte* host = nullptr;  // null where the host may not touch it
  uint64_t size = 0;
  bool imported = false;  // host memory that no pool owns
  std::vector<dgpuBackendAllocation>
      registered;  // host memory: per device of the context; memory null if not reachable
};

// What an address stands for.
struct Location {
  const Segment* segment = nullptr;  // null for the null address
  uint64_t offset = 0;               // in the segment
  uint64_t base = 0;                 // start address of the allocation
  uint64_t size = 0;                 // bytes asked for
  void* allocation = nullptr;        // what the pool gave to publish; filled by retire only

  bool on_host() const { return segment && segment->device == Segment::kHost; }
  std::byte* host() const { return segment && segment->host ? segment->host + offset : nullptr; }
};

class AddressTable {
 public:
  AddressTable() = default;
  ~AddressTable();

  // Lock-free. SUCCESS if [address, address + bytes) lies in one live allocation of `context`. INVALID_ADDRESS or
  // CONTEXT_MISMATCH otherwise, naming `argument`, the address, the size and the allocation nearby.
  Status resolve(const Context* context, uint64_t address, uint64_t bytes, const char* argument, Location& out) const {
    if (find(context, address, bytes, out)) [[likely]]
      return DGPU_STATUS_SUCCESS;
    return explain(context, address, bytes, argument);
  }
  bool find(const Context* context, uint64_t address, uint64_t bytes, Location& out) const;

  // Gives an address to [offset, offset + size) of a segment. 0 if host memory for the entry runs out.
  uint64_t publish(const Segment* segment, uint64_t offset, uint64_t size, void* allocation);
  // Invalidates it. False if `address` is not the start of a live allocation of that context.
  bool retire(const Context* context, uint64_t address, Location& out);

 private:
  struct Entry {
    std::atomic<uint64_t> live{0};  // generation + 1 while live, else 0
    std::atomic<uint64_t> size{0};
    std::atomic<uint64_t> offset{0};
    std::atomic<const Segment*> segment{nullptr};
    std::atomic<const Context*> context{nullptr};
    std::atomic<void*> allocation{nullptr};
    uint32_t generation = 0;  // of the next use; under the class's mutex, as the next
    uint32_t next_free = 0;   // index + 1
  };
  static constexpr unsigned kMinClass = 9;
  static constexpr unsigned kMaxClass = 47;
  static constexpr unsigned kFirstChunkBits = 6;
  static constexpr unsigned kChunks = 24;
  struct SizeClass {
    mutable std::mutex mutex;
    std::atomic<Entry*> chunks[kChunks] = {};
    uint32_t used = 0;       // entries that were ever used
    uint32_t free_head = 0;  // index + 1
  };

  static unsigned index_bits(unsigned size_class);
  static Entry* entry_at(const SizeClass& size_class, uint32_t index);
  static uint64_t address_of(unsigned size_class, uint32_t index, uint64_t generation);
  Entry* decode(uint64_t address, uint64_t& wanted, uint64_t& offset) const;
  uint64_t publish_in(unsigned size_class, const Segment* segment, uint64_t offset, uint64_t size, void* allocation);
  Status explain(const Context* context, uint64_t address, uint64_t bytes, const char* argument) const;
  bool nearest(const Context* context, uint64_t address, uint64_t& base, uint64_t& size) const;

  SizeClass classes_[kMaxClass + 1];
};

}  // namespace dgpu
