// Walks a broadcast operand in step with a row-major output.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "dgpu/types.h"

namespace dgpu::ops {

class BroadcastIndex {
 public:
  // `shape` is aligned at the right; its missing dimensions and those of extent 1 are repeated.
  BroadcastIndex(const std::vector<int64_t>& shape, const std::vector<int64_t>& out) : rank_(out.size()) {
    int64_t stride = 1;
    for (size_t i = 0; i < rank_; ++i) {
      extent_[rank_ - 1 - i] = out[rank_ - 1 - i];
      if (i >= shape.size()) continue;
      const int64_t n = shape[shape.size() - 1 - i];
      if (n != 1) stride_[rank_ - 1 - i] = stride;
      stride *= n;
    }
  }
  int64_t offset() const { return offset_; }
  void next() {
    for (size_t i = rank_; i-- > 0;) {
      offset_ += stride_[i];
      if (++at_[i] < extent_[i]) return;
      offset_ -= stride_[i] * at_[i];
      at_[i] = 0;
    }
  }

 private:
  size_t rank_;
  int64_t offset_ = 0;
  std::array<int64_t, DGPU_MAX_RANK> extent_{}, stride_{}, at_{};
};

}  // namespace dgpu::ops
