// Philox4x32-10, a counter-based random number generator.
// Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once
#include <array>
#include <cstdint>

namespace dgpu::ops {

inline std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * counter[0], p1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// A number in [0, 1) from a seed and a position: the first word times 2^-32.
inline double philox_uniform(int64_t seed, int64_t position) {
  const auto s = static_cast<uint64_t>(seed), p = static_cast<uint64_t>(position);
  const auto words = philox4x32({static_cast<uint32_t>(p), static_cast<uint32_t>(p >> 32), 0, 0},
                                {static_cast<uint32_t>(s), static_cast<uint32_t>(s >> 32)});
  return words[0] * 0x1p-32;
}

}  // namespace dgpu::ops
