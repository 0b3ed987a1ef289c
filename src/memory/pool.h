// A pool: memory of one device, or pinned host memory, in stream order. Segments are taken from the source and kept;
// allocations are blocks of them. A freed block is in one of three places:
//   the general set        reusable by anybody
//   a stream's set         reusable at once by allocations on that stream, by anybody when its value has retired
//   quarantine             reusable when a list of {timeline, value} has retired
// Neighbouring free blocks of one set are one block.
#pragma once
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "dgpu/memory.h"
#include "memory/free_index.h"
#include "memory/source.h"
#include "runtime/context.h"

namespace dgpu::memory {

struct PoolSegment : Segment {
  Block* first = nullptr;
  bool large = false;  // taken for one large allocation; small ones use it only when nothing else is left
  PoolSegment* next = nullptr;
  PoolSegment* prev = nullptr;
};

class FreeSet {
 public:
  explicit FreeSet(Ref<Timeline> timeline) : timeline_(std::move(timeline)) {}
  Timeline* timeline() const { return timeline_.get(); }
  void bind(Ref<Timeline> timeline) { timeline_ = std::move(timeline); }  // of an empty set
  void insert(Block* block);
  void remove(Block* block);
  Block* find(uint64_t size, bool large) const { return index_[large].find(size); }
  Block* oldest() const { return oldest_; }
  uint64_t bytes() const { return bytes_; }

 private:
  Ref<Timeline> timeline_;        // null: the general set, or a spare one
  FreeIndex index_[2];            // small and large segments
  Block* oldest_ = nullptr;       // by age of insertion; a young block with an old value only waits longer
  Block* newest_ = nullptr;
  uint64_t bytes_ = 0;
};

class Pool {
 public:
  Pool(Context& context, AddressTable& addresses, std::unique_ptr<SegmentSource> source);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // For a stream's timeline its own freed blocks are tried first, and if nothing else is left, a block that another
  // stream freed may come back with the point to wait for in `wait`. Both may be null.
  Status allocate(uint64_t size, Timeline* stream, dgpuAddr_t& out, Context::Point* wait);
  // The address has been retired; `block` is its Location::allocation.
  void free_on_stream(Block* block, Timeline* stream, uint64_t value);
  void free_after(Block* block, std::vector<Context::Point> points);

  // Moves what has retired to the general set, and drops the timelines of streams that are done.
  void settle();
  void stats(dgpuMemStats& out);
  void trim(uint64_t keep_bytes);

 private:
  struct Quarantined {
    Block* block;
    std::vector<Context::Point> points;
  };
  Status try_allocate(uint64_t size, Timeline* stream, dgpuAddr_t& out, Context::Point* wait);
  Block* find_block(uint64_t size, Timeline* stream);
  Block* grow(uint64_t size, Status& status);
  Block* take_segment(uint64_t size, bool large, Status& status);
  Block* borrow(uint64_t size, Timeline* stream, Context::Point& wait);
  void release_free_segments(uint64_t keep_bytes);
  void carve(Block* block, uint64_t size);
  void insert_merged(Block* block, FreeSet& set, uint64_t value);
  void poll();
  void forget(Block* block);
  Block* new_block();
  FreeSet& stream_set(Timeline* timeline);
  FreeSet* find_set(Timeline* timeline) const;
  Status out_of_memory(uint64_t size, Status status);

  Context& context_;  // owns this
  AddressTable& addresses_;
  const std::unique_ptr<SegmentSource> source_;
  std::mutex mutex_;
  FreeSet general_{nullptr};
  std::vector<std::unique_ptr<FreeSet>> stream_sets_;
  static constexpr size_t kSpares = 8;
  std::vector<std::unique_ptr<FreeSet>> spare_sets_;  // empty ones, so that freeing in a busy stream allocates nothing
  std::vector<Quarantined> quarantine_;
  PoolSegment* segments_ = nullptr;
  std::deque<PoolSegment> segment_store_;
  std::vector<PoolSegment*> spare_segments_;
  std::deque<Block> block_store_;
  std::vector<Block*> spare_blocks_;
  uint64_t used_ = 0, peak_ = 0, reserved_ = 0, live_ = 0;
};

}  // namespace dgpu::memory
