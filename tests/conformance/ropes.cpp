// rope and rope_freqs.
#include "grid_util.h"

namespace conformance {

namespace {

std::vector<double> frequencies(int64_t half, double base) {
  std::vector<double> out;
  for (int64_t i = 0; i < half; ++i)
    out.push_back(static_cast<float>(std::pow(base, -static_cast<double>(i) / static_cast<double>(half))));
  return out;
}

void rope(Grid& grid, bool full) {
  for (const auto& types : type_pairs(full))
    for (const char* pairing : {"half", "interleave"})
      for (const char* at : {"head", "tail"})
        for (const char* angle : {"f32", "f64"})
          for (const int64_t r : {int64_t{2}, int64_t{32}, int64_t{64}}) {
            const int64_t tokens = 6, heads = 3, width = 64;
            if (!full && (r == 2 || types.in == DGPU_DTYPE_F16)) continue;
            Case test{.op = "rope"};
            test.attr("pairing", std::string(pairing))
                .attr("at", std::string(at))
                .attr("angle", std::string(angle))
                .attr("inverse", r == 32);
            test.in("x", types.in, {tokens, heads, width});
            test.data("positions", r == 64 ? DGPU_DTYPE_I64 : DGPU_DTYPE_I32, {tokens}, {0, 1, 17, 4095, 131071, 3});
            if (r == 32) {
              auto table = frequencies(r / 2, 1e4);
              const auto second = frequencies(r / 2, 5e5);
              table.insert(table.end(), second.begin(), second.end());
              test.data("freqs", DGPU_DTYPE_F32, {2, r / 2}, table)
                  .data("rows", DGPU_DTYPE_I32, {tokens}, {0, 1, 1, 0, 1, 0});
              test.data("scale", DGPU_DTYPE_F32, {1}, {1.25});
            } else {
              test.data("freqs", DGPU_DTYPE_F32, {r / 2}, frequencies(r / 2, 1e4));
            }
            test.out("out", types.out, {tokens, heads, width});
            if (types.in == types.out && r == 64)
              test.alias_out = "out", test.alias_in = "x",
              test.port("x").layout = test.port("out").layout = Layout::padded;
            if (r == 2) test.port("x").layout = Layout::transposed;
            if (r == 32)
              test.port("x").symbol_dim = test.port("positions").symbol_dim = test.port("rows").symbol_dim =
                  test.port("out").symbol_dim = 0;
            // Two products of numbers up to 1.25; cos and sin in f32 of an angle that is exact by contract.
            test.bound = relative(kUlps, 2.5);
            grid.push_back(test);
          }
}

void rope_freqs(Grid& grid) {
  for (const int64_t dim : {int64_t{4}, int64_t{64}, int64_t{128}})
    for (const char* type : {"default", "linear", "dynamic", "llama3", "yarn"}) {
      const std::string name = type;
      Case test{.op = "rope_freqs"};
      test.attr("type", name).attr("dim", dim).attr("theta", 500000.0);
      if (name != "default") test.attr("factor", 8.0);
      if (name == "dynamic")
        test.attr("max_position", int64_t{512}).data("lengths", DGPU_DTYPE_I32, {3}, {4, 513, 5000});
      if (name == "llama3") test.attr("low_freq_factor", 1.0).attr("high_freq_factor", 4.0);
      if (name == "llama3" || name == "yarn") test.attr("original_max_position", int64_t{1024});
      if (name == "yarn" && dim == 64) test.attr("mscale", 0.707).attr("mscale_all_dim", 1.0).attr("truncate", false);
      if (name == "yarn" && dim == 4) test.attr("attention_factor", 1.5);
      test.out("freqs", DGPU_DTYPE_F32, name == "dynamic" ? Shape{3, dim / 2} : Shape{dim / 2})
          .out("scale", DGPU_DTYPE_F32, {1});
      test.bound = relative(kUlps);
      grid.push_back(test);
    }
}

}  // namespace

void rope_grid(Grid& grid, bool full) {
  rope(grid, full);
  rope_freqs(grid);
}

}  // namespace conformance
