// Differences of two tensors, as a whole and per token.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace dgpu::model {

struct Difference {
  double rel_l2 = 0;  // |a - b| / |b|, over all tokens
  double max_abs = 0;
  double cosine = 1;
  bool finite = true;      // neither NaN nor infinity in ours
  bool comparable = true;  // nor in the truth: otherwise max_abs and cosine say nothing
  double worst_token_rel_l2 = 0;
  int64_t worst_token = -1;
};

// a (ours) and b (truth) are [tokens, width].
// A token's error is |a_t - b_t| over the larger of |b_t| and the root mean square of all tokens' norms times `floor`.
Difference difference(const std::vector<float>& a, const std::vector<float>& b, int64_t tokens, double floor);

// Shape without dimensions of size 1.
std::vector<int64_t> squeeze(const std::vector<int64_t>& shape);

}  // namespace dgpu::model
