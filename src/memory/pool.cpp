#include "memory/pool.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "runtime/runtime.h"

namespace dgpu::memory {

namespace {
// Requests from here on get a segment of their own; smaller ones share segments that grow with the pool.
constexpr uint64_t kLarge = uint64_t{8} << 20;
constexpr uint64_t kSmallSegment = uint64_t{2} << 20;
constexpr uint64_t kLargestShared = uint64_t{32} << 20;
constexpr int kPatience = 50;  // times 200 microseconds
}  // namespace

void FreeSet::insert(Block* block) {
  block->set = this;
  index_[block->segment->large].insert(block);
  block->age_next = nullptr;
  block->age_prev = newest_;
  (newest_ ? newest_->age_next : oldest_) = block;
  newest_ = block;
  bytes_ += block->size;
}

void FreeSet::remove(Block* block) {
  index_[block->segment->large].remove(block);
  (block->age_prev ? block->age_prev->age_next : oldest_) = block->age_next;
  (block->age_next ? block->age_next->age_prev : newest_) = block->age_prev;
  block->set = nullptr;
  bytes_ -= block->size;
}

Pool::Pool(Context& context, AddressTable& addresses, std::unique_ptr<SegmentSource> source)
    : context_(context), addresses_(addresses), source_(std::move(source)) {
  stream_sets_.reserve(kSpares);
  spare_sets_.reserve(kSpares);
  spare_blocks_.reserve(256);
  spare_sets_.push_back(std::make_unique<FreeSet>(nullptr));
}

Pool::~Pool() {
  for (PoolSegment* segment = segments_; segment; segment = segment->next) {
    for (Block* block = segment->first; block; block = block->after) {
      Location location;
      if (block->address) addresses_.retire(&context_, block->address, location);
    }
    source_->release(*segment);
  }
}

Block* Pool::new_block() {
  if (spare_blocks_.empty()) return &block_store_.emplace_back();
  Block* block = spare_blocks_.back();
  spare_blocks_.pop_back();
  *block = Block{};
  return block;
}

void Pool::forget(Block* block) {
  if (block->before) block->before->after = block->after;
  if (block->after) block->after->before = block->before;
  if (block->segment->first == block) block->segment->first = block->after;
  spare_blocks_.push_back(block);
}

FreeSet* Pool::find_set(Timeline* timeline) const {
  for (const auto& set : stream_sets_) {
    if (set->timeline() == timeline) return set.get();
  }
  return nullptr;
}

FreeSet& Pool::stream_set(Timeline* timeline) {
  if (FreeSet* set = find_set(timeline)) return *set;
  if (spare_sets_.empty()) {
    stream_sets_.push_back(std::make_unique<FreeSet>(Ref<Timeline>::retain(timeline)));
  } else {
    stream_sets_.push_back(std::move(spare_sets_.back()));
    spare_sets_.pop_back();
    stream_sets_.back()->bind(Ref<Timeline>::retain(timeline));
  }
  return *stream_sets_.back();
}

void Pool::insert_merged(Block* block, FreeSet& set, uint64_t value) {
  Block* before = block->before;
  if (before && before->set == &set) {
    set.remove(before);
    block->offset = before->offset;
    block->size += before->size;
    value = std::max(value, before->value);
    forget(before);
  }
  Block* after = block->after;
  if (after && after->set == &set) {
    set.remove(after);
    block->size += after->size;
    value = std::max(value, after->value);
    forget(after);
  }
  block->value = value;
  set.insert(block);
}

// Moves what has retired to the general set.
void Pool::poll() {
  for (size_t i = 0; i < stream_sets_.size();) {
    FreeSet& set = *stream_sets_[i];
    const uint64_t retired = set.timeline()->retired();
    while (Block* block = set.oldest()) {
      if (block->value > retired) break;
      set.remove(block);
      insert_merged(block, general_, 0);
    }
    if (set.oldest()) {
      ++i;
    } else {
      std::unique_ptr<FreeSet> empty = std::move(stream_sets_[i]);
      if (i + 1 < stream_sets_.size()) stream_sets_[i] = std::move(stream_sets_.back());
      stream_sets_.pop_back();
      empty->bind(nullptr);
      if (spare_sets_.size() < kSpares) spare_sets_.push_back(std::move(empty));
    }
  }
  for (size_t i = 0; i < quarantine_.size();) {
    auto& points = quarantine_[i].points;
    std::erase_if(points, [](const Context::Point& point) { return point.timeline->retired() >= point.value; });
    if (!points.empty()) {
      ++i;
      continue;
    }
    insert_merged(quarantine_[i].block, general_, 0);
    quarantine_[i] = std::move(quarantine_.back());
    quarantine_.pop_back();
  }
}

Block* Pool::find_block(uint64_t size, Timeline* stream) {
  const bool large = size >= kLarge;
  if (FreeSet* own = stream ? find_set(stream) : nullptr) {
    if (Block* block = own->find(size, large)) return block;
  }
  poll();
  return general_.find(size, large);
}

// Cuts what is not needed off a block that was taken out of its set, and gives it back to that set.
void Pool::carve(Block* block, uint64_t size) {
  FreeSet* const set = block->set;
  if (set) set->remove(block);
  if (block->size == size) return;
  Block* rest = new_block();
  rest->segment = block->segment;
  rest->offset = block->offset + size;
  rest->size = block->size - size;
  rest->before = block;
  rest->after = block->after;
  if (rest->after) rest->after->before = rest;
  block->after = rest;
  block->size = size;
  if (set && set != &general_) {
    insert_merged(rest, *set, block->value);
  } else {
    insert_merged(rest, general_, 0);
  }
}

Block* Pool::take_segment(uint64_t size, bool large, Status& status) {
  if (spare_segments_.empty()) spare_segments_.push_back(&segment_store_.emplace_back());
  PoolSegment* segment = spare_segments_.back();
  segment->context = &context_;
  status = source_->allocate(size, *segment);
  if (status < 0) return nullptr;
  spare_segments_.pop_back();
  segment->large = large;
  segment->prev = nullptr;
  segment->next = segments_;
  if (segments_) segments_->prev = segment;
  segments_ = segment;
  reserved_ += size;
  Block* block = new_block();
  block->segment = segment;
  block->size = size;
  segment->first = block;
  return block;
}

Block* Pool::grow(uint64_t size, Status& status) {
  const bool large = size >= kLarge;
  if (!large) {
    uint64_t wanted = std::clamp(reserved_, kSmallSegment, kLargestShared);
    if (Block* block = take_segment(std::max(wanted, size), false, status)) return block;
    if (status != source_->exhausted()) return nullptr;
  }
  if (Block* block = take_segment(size, large, status)) return block;
  if (status != source_->exhausted()) return nullptr;
  // Cached blocks of the other kind, then what can be given back to make room.
  poll();
  if (Block* block = general_.find(size, large)) return block;
  if (Block* block = general_.find(size, !large)) return block;
  release_free_segments(0);
  return take_segment(size, large, status);
}

// A block that another stream has freed and may still use: the caller waits on its own stream.
Block* Pool::borrow(uint64_t size, Timeline* stream, Context::Point& wait) {
  for (const auto& set : stream_sets_) {
    for (const bool large : {false, true}) {
      Block* block = set->find(size, large);
      if (!block) continue;
      if (set->timeline() != stream) wait = {Ref<Timeline>::retain(set->timeline()), block->value};
      return block;
    }
  }
  return nullptr;
}

Status Pool::allocate(uint64_t size, Timeline* stream, dgpuAddr_t& out, Context::Point* wait) {
  out = 0;
  DGPU_TRY(source_->check_usable());
  if (size > UINT64_MAX / 4) return out_of_memory(size, source_->exhausted());
  Status status = try_allocate(size, stream, out, wait);
  // Memory of contexts that were destroyed may be on its way back to the device: worth some milliseconds before giving
  // up. Without the lock, for the streams that go ask for it.
  bool leaving = true;
  for (int tries = 0; status == source_->exhausted() && leaving && tries < kPatience; ++tries) {
    context_.runtime().flush_reaper();
    leaving = context_.runtime().has_leaving_context();
    if (leaving) std::this_thread::sleep_for(std::chrono::microseconds(200));
    status = try_allocate(size, stream, out, wait);
  }
  if (status == source_->exhausted()) {
    // What other contexts of the process have freed goes to who needs it.
    source_->reclaim_elsewhere();
    status = try_allocate(size, stream, out, wait);
  }
  return status == source_->exhausted() ? out_of_memory(size, status) : status;
}

Status Pool::try_allocate(uint64_t size, Timeline* stream, dgpuAddr_t& out, Context::Point* wait) {
  const uint64_t rounded = std::max<uint64_t>(kGranule, (size + kGranule - 1) / kGranule * kGranule);
  std::lock_guard lock(mutex_);
  Status status = DGPU_STATUS_SUCCESS;
  Block* block = find_block(rounded, stream);
  if (!block) block = grow(rounded, status);
  if (!block && stream && wait && status == source_->exhausted()) block = borrow(rounded, stream, *wait);
  if (!block) return status;
  carve(block, rounded);
  block->born = context_.losses();
  const dgpuAddr_t address = addresses_.publish(block->segment, block->offset, size, block);
  if (!address) {
    insert_merged(block, general_, 0);
    return fail(DGPU_STATUS_INTERNAL, "size", "no host memory is left for the record of an allocation");
  }
  block->asked = size;
  block->address = address;
  used_ += size;
  peak_ = std::max(peak_, used_);
  ++live_;
  out = address;
  return DGPU_STATUS_SUCCESS;
}

Status Pool::out_of_memory(uint64_t size, Status status) {
  dgpuMemStats now{};
  stats(now);
  if (!now.capacity_bytes) {
    return fail(status, "size", "{}: {} bytes asked for; {} are used by {} allocations", source_->label(), size,
                now.used_bytes, now.allocations);
  }
  const uint64_t taken = std::max(now.reserved_bytes, now.used_bytes), elsewhere = source_->held_elsewhere();
  return fail(status, "size",
              "{}: {} bytes asked for; of {} bytes {} are used by {} allocations of this context, {} wait for running "
              "work, {} are free in its pool, {} are held by other contexts of this process, at most {} are outside",
              source_->label(), size, now.capacity_bytes, now.used_bytes, now.allocations, now.pending_bytes,
              now.reserved_bytes - std::min(now.reserved_bytes, now.used_bytes + now.pending_bytes), elsewhere,
              now.capacity_bytes - std::min(now.capacity_bytes, taken + elsewhere));
}

void Pool::free_on_stream(Block* block, Timeline* stream, uint64_t value) {
  std::lock_guard lock(mutex_);
  used_ -= block->asked;
  --live_;
  block->address = 0;
  FreeSet& set = stream->retired() >= value ? general_ : stream_set(stream);
  insert_merged(block, set, value);
}

void Pool::free_after(Block* block, std::vector<Context::Point> points) {
  std::lock_guard lock(mutex_);
  used_ -= block->asked;
  --live_;
  block->address = 0;
  // Again under the lock: a stream that is gone since then does not call settle() any more.
  std::erase_if(points, [](const Context::Point& point) { return point.timeline->retired() >= point.value; });
  if (points.empty()) {
    insert_merged(block, general_, 0);
  } else {
    quarantine_.push_back({block, std::move(points)});
  }
}

void Pool::settle() {
  std::lock_guard lock(mutex_);
  poll();
}

void Pool::stats(dgpuMemStats& out) {
  std::lock_guard lock(mutex_);
  poll();
  uint64_t pending = 0;
  for (const auto& set : stream_sets_) pending += set->bytes();
  for (const auto& entry : quarantine_) pending += entry.block->size;
  out.used_bytes = used_;
  out.reserved_bytes = reserved_;
  out.peak_used_bytes = peak_;
  out.capacity_bytes = source_->capacity();
  out.allocations = live_;
  out.pending_bytes = pending;
}

void Pool::release_free_segments(uint64_t keep_bytes) {
  for (PoolSegment* segment = segments_; segment && reserved_ > keep_bytes;) {
    PoolSegment* const next = segment->next;
    Block* const block = segment->first;
    if (block->set == &general_ && block->size == segment->size) {
      general_.remove(block);
      forget(block);
      (segment->prev ? segment->prev->next : segments_) = next;
      if (next) next->prev = segment->prev;
      reserved_ -= segment->size;
      source_->release(*segment);
      spare_segments_.push_back(segment);
    }
    segment = next;
  }
}

void Pool::trim(uint64_t keep_bytes) {
  std::lock_guard lock(mutex_);
  poll();
  release_free_segments(keep_bytes);
}

}  // namespace dgpu::memory
