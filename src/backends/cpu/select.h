// Picking the best elements of a row.
#pragma once
#include "backends/cpu/rows.h"

namespace dgpu::cpu {

// A candidate: its order key (vec::order_keys) above its inverted index, so that the larger code is the better element,
// and of equal elements the one with the lower index.
inline uint64_t select_code(int32_t key, int64_t index) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(key) ^ 0x80000000u) << 32) |
         (0xffffffffu - static_cast<uint64_t>(index));
}
inline int32_t select_key(uint64_t code) {
  return static_cast<int32_t>(static_cast<uint32_t>(code >> 32) ^ 0x80000000u);
}
inline int64_t select_index(uint64_t code) { return static_cast<int64_t>(0xffffffffu - (code & 0xffffffffu)); }

// Elements [begin, end) of the row of x that starts at `offset` elements.
// The best code; end > begin.
uint64_t best_code(const Port& x, const Args& a, int64_t offset, int64_t begin, int64_t end);
// The k best codes (fewer if the range is shorter), best first, into `out`; returns how many. Uses scratch slot 5.
int64_t best_codes(const Port& x, const Args& a, int64_t offset, int64_t begin, int64_t end, int64_t k, bool ascending,
                   uint64_t* out);

}  // namespace dgpu::cpu
