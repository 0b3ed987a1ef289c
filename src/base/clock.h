// Monotonic time in nanoseconds; the zero point is arbitrary but the same for the whole process.
#pragma once
#include <time.h>

#include <cstdint>

namespace dgpu {

inline uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}

// The moment `timeout_ns` from now; DGPU_TIMEOUT_INFINITE stays infinite, and so does anything that would overflow.
inline uint64_t deadline_ns(uint64_t timeout_ns) {
  const uint64_t now = now_ns();
  return timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
}

}  // namespace dgpu
