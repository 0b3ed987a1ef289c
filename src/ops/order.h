// The order in which values are selected: best first, NaN larger than everything, ties by lowest index.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

namespace dgpu::ops {

inline bool larger(double a, double b) { return std::isnan(a) ? !std::isnan(b) : a > b; }

inline std::vector<int64_t> best_indices(const double* values, int64_t n, int64_t k, bool largest = true) {
  std::vector<int64_t> order(n);
  std::iota(order.begin(), order.end(), int64_t{0});
  std::partial_sort(order.begin(), order.begin() + k, order.end(), [&](int64_t a, int64_t b) {
    const double va = values[a], vb = values[b];
    if (largest ? larger(va, vb) : larger(vb, va)) return true;
    if (largest ? larger(vb, va) : larger(va, vb)) return false;
    return a < b;
  });
  order.resize(k);
  return order;
}

}  // namespace dgpu::ops
