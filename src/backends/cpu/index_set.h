// A lock-free set of small integers: two levels of bits. Order of all operations is sequentially consistent, which
// the executor's sleep protocol relies on.
#pragma once
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>

namespace dgpu::cpu {

class IndexSet {
 public:
  static constexpr uint32_t kCapacity = 64 * 64;
  enum class Take {
    kAbsent,    // was not in the set
    kTaken,     // removed by this call and by no other
    kTakenSeen  // removed, and for a moment any() may have missed another member: tell a sleeper
  };

  void add(uint32_t i) {
    if (leaves_[i / 64].fetch_or(bit(i)) == 0) summary_.fetch_or(bit(i / 64));
  }

  Take take(uint32_t i) {
    auto& leaf = leaves_[i / 64];
    if (!(leaf.load(std::memory_order_relaxed) & bit(i))) return Take::kAbsent;
    const uint64_t old = leaf.fetch_and(~bit(i));
    if (!(old & bit(i))) return Take::kAbsent;
    if (old != bit(i)) return Take::kTaken;
    summary_.fetch_and(~bit(i / 64));
    if (leaf.load() == 0) return Take::kTaken;
    summary_.fetch_or(bit(i / 64));  // a member was added in between
    return Take::kTakenSeen;
  }

  bool contains(uint32_t i) const { return leaves_[i / 64].load() & bit(i); }
  bool any() const { return summary_.load() != 0; }

  // The first member after `start`, cyclically, `start` itself last; -1 if none was seen.
  int32_t next(uint32_t start) const {
    const uint64_t summary = summary_.load();
    if (!summary) return -1;
    const uint32_t from = (start + 1) % kCapacity;
    for (uint32_t step = 0; step <= 64; ++step) {
      const uint32_t word = (from / 64 + step) % 64;
      if (!(summary & bit(word))) continue;
      uint64_t leaf = leaves_[word].load();
      if (step == 0) leaf &= ~uint64_t{0} << (from % 64);
      if (step == 64) leaf &= ~(~uint64_t{0} << (from % 64));
      if (leaf) return static_cast<int32_t>(word * 64 + static_cast<uint32_t>(std::countr_zero(leaf)));
    }
    return -1;
  }

  // A member other than `i` was seen.
  bool any_other(uint32_t i) const {
    const int32_t found = next(i);
    return found >= 0 && found != static_cast<int32_t>(i);
  }

 private:
  static constexpr uint64_t bit(uint32_t i) { return uint64_t{1} << (i % 64); }
  alignas(64) std::atomic<uint64_t> summary_{0};
  std::array<std::atomic<uint64_t>, 64> leaves_{};
};

}  // namespace dgpu::cpu
