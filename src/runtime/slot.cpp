#include "runtime/slot.h"

#include <sys/mman.h>

#include <new>

namespace dgpu {

void* map_pages(size_t bytes) {
  void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) throw std::bad_alloc();
  return pages;
}

void unmap_pages(void* pages, size_t bytes) { munmap(pages, bytes); }

ArgumentArena::ArgumentArena(size_t bytes) : base_(static_cast<std::byte*>(map_pages(bytes))), capacity_(bytes) {}

ArgumentArena::~ArgumentArena() {
  if (base_) unmap_pages(base_, capacity_);
}

void* ArgumentArena::allocate(size_t bytes) {
  bytes = (bytes + 15) & ~size_t{15};
  if (bytes > capacity_) return nullptr;
  const uint64_t tail = tail_.load(std::memory_order_acquire);
  uint64_t start = head_;
  // An empty ring starts over at its beginning, which is still in the cache.
  // The skipped bytes are free: without moving the tail they would count as used until something retires.
  if (tail == head_) {
    start = (head_ + capacity_ - 1) & ~(uint64_t{capacity_} - 1);
    tail_.store(start, std::memory_order_relaxed);  // nothing is out that could be released now
  }
  const uint64_t place = start & (capacity_ - 1);
  if (place + bytes > capacity_) start += capacity_ - place;  // not in two pieces
  if (tail != head_ && start + bytes - tail > capacity_) return nullptr;
  head_ = start + bytes;
  return base_ + (start & (capacity_ - 1));
}

}  // namespace dgpu
