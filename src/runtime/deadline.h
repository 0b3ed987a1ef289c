// A point in time to stop waiting at, made from a timeout in nanoseconds.
#pragma once
#include <chrono>
#include <cstdint>

#include "base/clock.h"

namespace dgpu {

class Deadline {
 public:
  explicit Deadline(uint64_t timeout_ns) : at_ns_(deadline_ns(timeout_ns)) {}
  bool infinite() const { return at_ns_ == UINT64_MAX; }
  bool passed() const { return !infinite() && now_ns() >= at_ns_; }
  uint64_t remaining_ns() const {
    if (infinite()) return UINT64_MAX;
    const uint64_t now = now_ns();
    return at_ns_ > now ? at_ns_ - now : 0;
  }
  // For condition variables; only if not infinite.
  std::chrono::steady_clock::time_point at() const {
    constexpr uint64_t kLimit = INT64_MAX;
    return std::chrono::steady_clock::time_point(
        std::chrono::nanoseconds(static_cast<int64_t>(at_ns_ < kLimit ? at_ns_ : kLimit)));
  }

 private:
  uint64_t at_ns_;  // CLOCK_MONOTONIC, which is steady_clock's
};

}  // namespace dgpu
