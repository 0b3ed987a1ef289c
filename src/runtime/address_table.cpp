#include "runtime/address_table.h"

#include <algorithm>
#include <new>

namespace dgpu {

namespace {
constexpr uint64_t kTag = 0x0d;
constexpr unsigned kTagShift = 56;
constexpr unsigned kClassShift = 50;
}  // namespace

AddressTable::~AddressTable() {
  for (SizeClass& size_class : classes_) {
    for (auto& chunk : size_class.chunks) delete[] chunk.load(std::memory_order_relaxed);
  }
}

// The rest of the bits between class and offset is the generation. Small allocations are many, large ones few.
unsigned AddressTable::index_bits(unsigned size_class) {
  const unsigned bits = kClassShift - size_class;
  return std::min(24u, (bits * 2 + 2) / 3);
}

AddressTable::Entry* AddressTable::entry_at(const SizeClass& size_class, uint32_t index) {
  const uint64_t biased = uint64_t{index} + (1u << kFirstChunkBits);
  const unsigned top = 63 - static_cast<unsigned>(__builtin_clzll(biased));
  Entry* chunk = size_class.chunks[top - kFirstChunkBits].load(std::memory_order_acquire);
  return chunk ? chunk + (biased - (uint64_t{1} << top)) : nullptr;
}

uint64_t AddressTable::address_of(unsigned size_class, uint32_t index, uint64_t generation) {
  const uint64_t id = generation << index_bits(size_class) | index;
  return kTag << kTagShift | uint64_t{size_class} << kClassShift | id << size_class;
}

AddressTable::Entry* AddressTable::decode(uint64_t address, uint64_t& wanted, uint64_t& offset) const {
  if (address >> kTagShift != kTag) return nullptr;
  const unsigned size_class = (address >> kClassShift) & 63u;
  if (size_class < kMinClass || size_class > kMaxClass) return nullptr;
  const uint64_t id = (address & ((uint64_t{1} << kClassShift) - 1)) >> size_class;
  const unsigned bits = index_bits(size_class);
  wanted = (id >> bits) + 1;
  offset = address & ((uint64_t{1} << size_class) - 1);
  return entry_at(classes_[size_class], static_cast<uint32_t>(id & ((uint64_t{1} << bits) - 1)));
}

bool AddressTable::find(const Context* context, uint64_t address, uint64_t bytes, Location& out) const {
  uint64_t wanted = 0, offset = 0;
  const Entry* entry = decode(address, wanted, offset);
  if (!entry || entry->live.load(std::memory_order_acquire) != wanted) return false;
  const uint64_t size = entry->size.load(std::memory_order_acquire);
  const uint64_t start = entry->offset.load(std::memory_order_acquire);
  const Segment* segment = entry->segment.load(std::memory_order_acquire);
  const Context* owner = entry->context.load(std::memory_order_acquire);
  // Whoever saw a field of a later use (stored with release after `live` was cleared) sees here that it was reused.
  if (entry->live.load(std::memory_order_relaxed) != wanted) return false;
  if (owner != context || offset > size || bytes > size - offset) return false;
  out = {segment, start + offset, address - offset, size, nullptr};
  return true;
}

uint64_t AddressTable::publish(const Segment* segment, uint64_t offset, uint64_t size, void* allocation) {
  unsigned size_class = std::max<unsigned>(kMinClass, size ? 64 - static_cast<unsigned>(__builtin_clzll(size)) : 0);
  // When all indices of a class are in use, the next larger one serves: addresses are plentiful.
  for (; size_class <= kMaxClass; ++size_class) {
    if (const uint64_t address = publish_in(size_class, segment, offset, size, allocation)) return address;
  }
  return 0;
}

uint64_t AddressTable::publish_in(unsigned c, const Segment* segment, uint64_t offset, uint64_t size,
                                  void* allocation) {
  SizeClass& size_class = classes_[c];
  std::lock_guard lock(size_class.mutex);
  uint32_t index = 0;
  Entry* entry = nullptr;
  if (size_class.free_head) {
    index = size_class.free_head - 1;
    entry = entry_at(size_class, index);
    size_class.free_head = entry->next_free;
  } else {
    index = size_class.used;
    if (uint64_t{index} >> index_bits(c)) return 0;
    entry = entry_at(size_class, index);
    if (!entry) {
      const unsigned k =
          63 - static_cast<unsigned>(__builtin_clzll(uint64_t{index} + (1u << kFirstChunkBits))) - kFirstChunkBits;
      Entry* chunk = new (std::nothrow) Entry[size_t{1} << (kFirstChunkBits + k)];
      if (!chunk) return 0;
      size_class.chunks[k].store(chunk, std::memory_order_release);
      entry = entry_at(size_class, index);
    }
    ++size_class.used;
  }
  const unsigned generation_bits = kClassShift - c - index_bits(c);
  const uint64_t generation = entry->generation++ & ((uint64_t{1} << generation_bits) - 1);
  entry->size.store(size, std::memory_order_release);
  entry->offset.store(offset, std::memory_order_release);
  entry->segment.store(segment, std::memory_order_release);
  entry->allocation.store(allocation, std::memory_order_release);
  entry->context.store(segment->context, std::memory_order_release);
  entry->live.store(generation + 1, std::memory_order_release);
  return address_of(c, index, generation);
}

bool AddressTable::retire(const Context* context, uint64_t address, Location& out) {
  uint64_t wanted = 0, offset = 0;
  Entry* entry = decode(address, wanted, offset);
  if (!entry || offset != 0) return false;
  const unsigned c = (address >> kClassShift) & 63u;
  SizeClass& size_class = classes_[c];
  std::lock_guard lock(size_class.mutex);
  if (entry->live.load(std::memory_order_relaxed) != wanted) return false;
  if (entry->context.load(std::memory_order_relaxed) != context) return false;
  out = {entry->segment.load(std::memory_order_relaxed), entry->offset.load(std::memory_order_relaxed), address,
         entry->size.load(std::memory_order_relaxed), entry->allocation.load(std::memory_order_relaxed)};
  // Ordered before the caller's look at what the streams have submitted: whoever found the entry alive is counted.
  entry->live.store(0, std::memory_order_seq_cst);
  const uint64_t id = (address & ((uint64_t{1} << kClassShift) - 1)) >> c;
  entry->next_free = size_class.free_head;
  size_class.free_head = static_cast<uint32_t>(id & ((uint64_t{1} << index_bits(c)) - 1)) + 1;
  return true;
}

bool AddressTable::nearest(const Context* context, uint64_t address, uint64_t& base, uint64_t& size) const {
  uint64_t best = UINT64_MAX;
  for (unsigned c = kMinClass; c <= kMaxClass; ++c) {
    const SizeClass& size_class = classes_[c];
    std::lock_guard lock(size_class.mutex);
    for (uint32_t i = 0; i < size_class.used; ++i) {
      const Entry* entry = entry_at(size_class, i);
      const uint64_t live = entry->live.load(std::memory_order_relaxed);
      if (!live || entry->context.load(std::memory_order_relaxed) != context) continue;
      const uint64_t start = address_of(c, i, live - 1);
      const uint64_t end = start + entry->size.load(std::memory_order_relaxed);
      const uint64_t distance = address < start ? start - address : address > end ? address - end : 0;
      if (distance < best) {
        best = distance;
        base = start;
        size = end - start;
      }
    }
  }
  return best != UINT64_MAX;
}

Status AddressTable::explain(const Context* context, uint64_t address, uint64_t bytes, const char* argument) const {
  uint64_t wanted = 0, offset = 0;
  const Entry* entry = decode(address, wanted, offset);
  if (!entry) {
    return fail(DGPU_STATUS_INVALID_ADDRESS, argument,
                "{} is {:#x}, which is not a device address ({} bytes asked for); host pointers go through "
                "dgpuMemCopyFromHostAsync and dgpuMemCopyToHostAsync",
                argument, address, bytes);
  }
  if (entry->live.load(std::memory_order_acquire) == wanted) {
    const uint64_t size = entry->size.load(std::memory_order_relaxed);
    if (entry->context.load(std::memory_order_relaxed) != context) {
      return fail(DGPU_STATUS_CONTEXT_MISMATCH, argument, "{} {:#x} was allocated in another context", argument,
                  address);
    }
    return fail(DGPU_STATUS_INVALID_ADDRESS, argument,
                "{} {:#x} + {} bytes ends {} bytes past the allocation of {} bytes at {:#x}", argument, address, bytes,
                bytes > UINT64_MAX - offset ? UINT64_MAX : offset + bytes - size, size, address - offset);
  }
  uint64_t base = 0, size = 0;
  if (!nearest(context, address, base, size)) {
    return fail(DGPU_STATUS_INVALID_ADDRESS, argument,
                "{} {:#x} ({} bytes) was freed or never allocated; the context has no allocation", argument, address,
                bytes);
  }
  return fail(DGPU_STATUS_INVALID_ADDRESS, argument,
              "{} {:#x} ({} bytes) was freed or never allocated; the nearest allocation is {:#x}, {} bytes", argument,
              address, bytes, base, size);
}

}  // namespace dgpu
