// sample.
#include <algorithm>
#include <numeric>

#include "grid_util.h"

namespace conformance {

namespace {

// Tokens may differ where the draw is nearer to the boundary of two tokens than the sum in f32 can tell: then the two
// are neighbours in descending order. More than one in a few hundred draws would be no accident.
bool judge(const Run& run, std::string& why) {
  const auto &logits = run.in.at("logits"), &want = run.want.at("out"), &got = run.got.at("out");
  const int64_t n = logits.shape[1];
  int64_t flips = 0;
  for (int64_t b = 0; b < logits.shape[0]; ++b) {
    if (got.v[b] == want.v[b]) continue;
    std::vector<int64_t> order(static_cast<size_t>(n));
    std::iota(order.begin(), order.end(), int64_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t x, int64_t y) { return logits.v[b * n + x] > logits.v[b * n + y]; });
    const auto place = [&](double token) {
      return std::find(order.begin(), order.end(), static_cast<int64_t>(token)) - order.begin();
    };
    const auto distance = place(got.v[b]) - place(want.v[b]);
    if (run.in.at("temperature").v[b] == 0 || std::abs(distance) != 1 || ++flips * 200 > logits.shape[0] + 199) {
      why = "row " + std::to_string(b) + ": got token " + std::to_string(static_cast<int64_t>(got.v[b])) +
            ", expected " + std::to_string(static_cast<int64_t>(want.v[b]));
      return false;
    }
  }
  return true;
}

}  // namespace

void sample_grid(Grid& grid, bool full) {
  for (const auto dtype : kFloats)
    for (const int64_t vocabulary : full ? std::vector<int64_t>{1, 5, 100, 5000} : std::vector<int64_t>{1, 100})
      for (int variant = 0; variant < 4; ++variant) {
        const int64_t rows = 64;
        Case test{.op = "sample"};
        test.in("logits", dtype, {rows, vocabulary}, -6, 6);
        std::vector<double> temperature, top_k, top_p, seeds, positions;
        for (int64_t b = 0; b < rows; ++b) {
          temperature.push_back(b % 8 == 0 ? 0 : 0.5 + uniform(b));
          top_k.push_back(variant & 1 ? 1 + static_cast<double>(b % 7) : 0);
          top_p.push_back(variant & 2 ? 0.25 + 0.7 * uniform(b + 99) : b % 2);
          seeds.push_back(static_cast<double>(hash(b) >> 12) * (b % 3 ? 1 : -1));
          positions.push_back(static_cast<double>(b * 1000));
        }
        test.data("temperature", DGPU_DTYPE_F32, {rows}, temperature).data("top_k", DGPU_DTYPE_I32, {rows}, top_k);
        test.data("top_p", DGPU_DTYPE_F32, {rows}, top_p).data("seeds", DGPU_DTYPE_I64, {rows}, seeds);
        test.data("positions", DGPU_DTYPE_I64, {rows}, positions).out("out", DGPU_DTYPE_I32, {rows});
        test.judge = judge;
        grid.push_back(test);
      }
  Case none{.op = "sample"};
  none.in("logits", DGPU_DTYPE_F32, {0, 9});
  for (const char* port : {"temperature", "top_p"}) none.data(port, DGPU_DTYPE_F32, {0}, {});
  none.data("top_k", DGPU_DTYPE_I32, {0}, {})
      .data("seeds", DGPU_DTYPE_I64, {0}, {})
      .data("positions", DGPU_DTYPE_I64, {0}, {})
      .out("out", DGPU_DTYPE_I32, {0});
  grid.push_back(none);
}

}  // namespace conformance
