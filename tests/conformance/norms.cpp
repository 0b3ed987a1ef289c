// rms_norm, layer_norm, softmax, reduce.
#include "grid_util.h"

namespace conformance {

namespace {

std::vector<Shape> rows(bool full) {
  if (!full) return {{1, 1}, {3, 33}, {0, 5}, {2, 2, 64}};
  return {{1}, {1, 1}, {3, 33}, {0, 5}, {3, 0}, {2, 2, 64}, {5, 127}, {2, 1024}, {7, 4100}};
}

// (|y| (|weight| + |offset|)): the product with the weight may cancel against the offset.
void rms_norm(Grid& grid, bool full) {
  for (const auto& types : type_pairs(full))
    for (const auto& shape : rows(full))
      for (int variant = 0; variant < 6; ++variant) {
        Case test{.op = "rms_norm"};
        const bool weight = variant > 0, before = variant % 2, residual = variant >= 3, sum = variant >= 4;
        const double width = static_cast<double>(shape.back());
        test.attr("eps", 1e-5).in("x", types.in, shape, -3, 3);
        if (weight) {
          test.attr("weight_offset", variant == 2 ? 1.0 : 0.0);
          test.attr("cast", std::string(before ? "before_weight" : "after_weight"));
          test.in("weight", variant == 5 ? dgpuDtype_t{DGPU_DTYPE_F32} : types.in, {shape.back()}, -1, 1);
        }
        if (residual) test.in("residual", types.in, shape, -3, 3);
        test.out("out", types.out, shape);
        if (sum) test.out("sum", variant == 5 ? dgpuDtype_t{DGPU_DTYPE_F32} : types.in, shape);
        if (variant == 4 && shape.size() == 2) test.alias_out = "sum", test.alias_in = "residual";
        if (variant == 2) test.port("x").layout = Layout::padded;
        if (variant == 3 && shape.size() == 3)
          test.port("residual").layout = Layout::transposed, test.port("out").layout = Layout::padded;
        if (shape.size() == 2 && variant == 1) test.port("x").symbol_dim = test.port("out").symbol_dim = 0;
        const double in_roundoff = unit_roundoff(types.in);
        const auto in = types.in;
        test.bound = [=](const Run& run, const Port& p, int64_t i) {
          const double want = run.want.at(p.name).v[i];
          if (p.name == "sum") return allowed(p.dtype, want, 1, std::fabs(want));
          double magnitude = std::fabs(want), grown = 1;
          if (weight) {
            const double w = run.in.at("weight").v[i % run.in.at("weight").shape[0]], offset = variant == 2 ? 1 : 0;
            grown = std::fabs(w) + offset;
            magnitude = w + offset == 0 ? grown : std::fabs(want / (w + offset)) * grown;
          }
          // y next to the middle of two numbers of x's type may round to either; so may x + residual.
          const double flip = (weight && before ? 2 : 0) + (residual ? 2 : 0);
          const double y = magnitude + (residual ? 2 * in_roundoff * grown * std::sqrt(width) : 0);
          return allowed(p.dtype, want, sum_factor(width) / 2 + 4, magnitude) +
                 (in == DGPU_DTYPE_F32 ? 2 * kU32 * flip : flip * in_roundoff) * y;
        };
        grid.push_back(test);
      }
}

void layer_norm(Grid& grid, bool full) {
  for (const auto& types : type_pairs(full))
    for (const auto& shape : rows(full))
      for (int variant = 0; variant < 3; ++variant) {
        Case test{.op = "layer_norm"};
        const double width = static_cast<double>(shape.back());
        test.attr("eps", 1e-3).in("x", types.in, shape, -1, 5);
        if (variant > 0) test.in("weight", types.in, {shape.back()}, -2, 2);
        if (variant > 1) test.in("bias", DGPU_DTYPE_F32, {shape.back()}, -2, 2);
        test.out("out", types.out, shape);
        if (variant == 1) test.port("x").layout = Layout::padded;
        // x and the mean are at most 5; the deviation is at least sqrt(eps) for one element and about 1.7 for several.
        const double inverse = width > 4 ? 1.0 : 1 / std::sqrt(1e-3);
        test.bound = [=](const Run& run, const Port& p, int64_t i) {
          const double want = run.want.at(p.name).v[i];
          const double w = variant > 0 ? std::fabs(run.in.at("weight").v[i % run.in.at("weight").shape[0]]) : 1;
          return allowed(p.dtype, want, sum_factor(width) + 8,
                         10 * inverse * w + std::fabs(want) + (variant > 1 ? 2 : 0));
        };
        grid.push_back(test);
      }
}

void softmax(Grid& grid, bool full) {
  for (const auto& types : type_pairs(full))
    for (const auto& shape : rows(full))
      for (int64_t axis = -1; axis < static_cast<int64_t>(shape.size()) - 1; ++axis) {
        const double n = static_cast<double>(axis < 0 ? shape.back() : shape[axis]);
        Case test{.op = "softmax"};
        test.attr("axis", axis).in("x", types.in, shape, -10, 10).out("out", types.out, shape);
        if (shape.size() == 3) test.port("x").layout = Layout::transposed;
        if (shape.size() == 2 && axis < 0) test.port("x").symbol_dim = test.port("out").symbol_dim = 0;
        // exp(x - max): the difference, up to 20, is rounded; then the sum and the division.
        test.bound = relative(20 + 2 * kUlps + sum_factor(n));
        grid.push_back(test);
      }
  Case masked{.op = "softmax"};
  std::vector<double> values(4 * 9, -INFINITY);
  for (int i = 9; i < 27; ++i) values[i] = i % 3 ? i * 0.25 : -INFINITY;
  values[30] = 1e30;
  masked.data("x", DGPU_DTYPE_F32, {4, 9}, values).out("out", DGPU_DTYPE_F32, {4, 9});
  masked.bound = relative(32);
  grid.push_back(masked);
}

void reduce(Grid& grid, bool full) {
  struct Row {
    Shape shape, axes;
    Shape out;
  };
  std::vector<Row> table = {{{3, 33}, {1}, {3}}, {{3, 33}, {0}, {33}}, {{2, 5, 7}, {0, 2}, {5}}, {{1}, {-1}, {}}};
  if (full)
    table.insert(table.end(),
                 {{{2, 5, 7}, {1}, {2, 7}}, {{0, 4}, {1}, {0}}, {{4, 4100}, {-1}, {4}}, {{3, 129, 5}, {0, 1, 2}, {}}});
  for (const char* fn : {"sum", "mean", "max", "min", "sum_sq"})
    for (const auto& types : type_pairs(full))
      for (const auto& row : table)
        for (const bool keep : {false, true}) {
          Shape kept = row.shape;
          double n = 1;
          for (int64_t a : row.axes) {
            const size_t axis = static_cast<size_t>(a < 0 ? a + static_cast<int64_t>(row.shape.size()) : a);
            n *= static_cast<double>(kept[axis]);
            kept[axis] = 1;
          }
          Case test{.op = "reduce"};
          test.attr("fn", std::string(fn)).attr("axes", row.axes).attr("keepdims", keep);
          test.in("x", types.in, row.shape, -2, 2).out("out", types.out, keep ? kept : row.out);
          if (row.shape.size() == 2 && keep) test.port("x").layout = Layout::transposed;
          test.prepare = absolute_run();
          test.bound = by_magnitude(sum_factor(n));
          grid.push_back(test);
        }
  Case empty{.op = "reduce"};
  empty.attr("fn", std::string("sum"))
      .attr("axes", std::vector<int64_t>{1})
      .in("x", DGPU_DTYPE_F32, {3, 0})
      .out("out", DGPU_DTYPE_F32, {3});
  grid.push_back(empty);
}

}  // namespace

void norm_grid(Grid& grid, bool full) {
  rms_norm(grid, full);
  layer_norm(grid, full);
  softmax(grid, full);
  reduce(grid, full);
}

}  // namespace conformance
