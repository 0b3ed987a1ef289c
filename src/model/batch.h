// The integer inputs of one ragged step, packed into one block that is copied to the device at once.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "graph/program.h"

namespace dgpu::model {

// One sequence's part of a step.
struct BatchSequence {
  uint32_t slot = 0;    // session slot
  uint64_t length = 0;  // tokens before the step
  uint32_t first = 0;   // tokens [first, first + count) of the step
  uint32_t count = 0;
  uint64_t total = 0;  // length of the sequence when the step's tokens are in; more while earlier tokens are replayed
};

// Where each program input lies in the block, sized for the session's maxima. Offsets are multiples of 256 bytes.
class BatchLayout {
 public:
  BatchLayout(const graph::Program& program, const graph::Extents& maxima);
  uint64_t bytes() const { return bytes_; }
  uint64_t offset(graph::Id input) const { return offsets_[input]; }  // index into Program::inputs
  // Writes the inputs of one step into `block`. Contiguous caches: page = slot, one page per sequence.
  void fill(void* block, const graph::Extents& step, const int32_t* tokens, const std::vector<BatchSequence>& sequences,
            const std::vector<uint32_t>& logit_rows) const;

 private:
  void fill_input(const graph::Input& in, int32_t* out, const graph::Extents& step, const int32_t* tokens,
                  const std::vector<BatchSequence>& sequences, const std::vector<uint32_t>& logit_rows) const;
  const graph::Program& program_;
  graph::Extents maxima_;
  std::vector<uint64_t> offsets_;
  uint64_t bytes_ = 0;
};

// Entries of a sequence of `tokens` tokens, those that a ring has overwritten included.
inline int64_t cache_entries(const graph::Cache& cache, uint64_t tokens) {
  return static_cast<int64_t>(tokens) / cache.every;
}

// Places for the entries of one sequence: for all of them, or for a window and the largest step.
inline int64_t cache_places(const graph::Cache& cache, uint64_t max_tokens, uint64_t step_tokens) {
  const int64_t all = std::max<int64_t>(1, cache_entries(cache, max_tokens));
  return cache.ring() && cache.cap < all ? std::min(all, cache.cap + static_cast<int64_t>(step_tokens)) : all;
}

// First entry of a ring that the token after `length` others sees.
inline uint64_t first_visible(const graph::Cache& cache, uint64_t length) {
  const auto window = static_cast<uint64_t>(cache.cap);
  return length < window ? 0 : length - window + 1;
}

}  // namespace dgpu::model
