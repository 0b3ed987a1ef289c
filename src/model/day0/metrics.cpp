#include "model/day0/metrics.h"

#include <algorithm>
#include <cmath>

namespace dgpu::model {

Difference difference(const std::vector<float>& a, const std::vector<float>& b, int64_t tokens, double floor) {
  Difference d;
  const int64_t width = tokens ? static_cast<int64_t>(b.size()) / tokens : 0;
  double diff = 0, bb = 0, aa = 0, ab = 0, all = 0;
  for (const float v : b) all += double(v) * v;
  const double rms = tokens ? std::sqrt(all / static_cast<double>(tokens)) : 0;
  for (int64_t t = 0; t < tokens; ++t) {
    double dt = 0, bt = 0;
    for (int64_t i = t * width; i < (t + 1) * width; ++i) {
      const double x = a[i], y = b[i], e = x - y;
      if (!std::isfinite(e)) d.finite &= std::isfinite(x), d.comparable = false;
      d.max_abs = std::max(d.max_abs, std::abs(e));
      dt += e * e;
      bt += y * y;
      aa += x * x;
      ab += x * y;
    }
    diff += dt;
    bb += bt;
    const double scale = std::max(std::sqrt(bt), floor * rms);
    const double token = dt == 0 ? 0 : scale > 0 ? std::sqrt(dt) / scale : INFINITY;
    if (!(token <= d.worst_token_rel_l2)) {
      d.worst_token_rel_l2 = token;
      d.worst_token = t;
    }
  }
  d.rel_l2 = diff == 0 ? 0 : bb > 0 ? std::sqrt(diff / bb) : INFINITY;
  d.cosine = aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : (aa == bb ? 1 : 0);
  return d;
}

std::vector<int64_t> squeeze(const std::vector<int64_t>& shape) {
  std::vector<int64_t> out;
  for (const auto d : shape)
    if (d != 1) out.push_back(d);
  return out;
}

}  // namespace dgpu::model
