// embedding, cache_append, top_k, argmax: nothing to round but the output's type.
#include "grid_util.h"

namespace conformance {

namespace {

void embedding(Grid& grid, bool full) {
  for (const auto& types : type_pairs(full))
    for (const auto ids : {DGPU_DTYPE_I32, DGPU_DTYPE_I64})
      for (const int64_t width : {1, 33, 256})
        for (const Shape& shape : {Shape{}, Shape{0}, Shape{5}, Shape{2, 3}}) {
          int64_t n = 1;
          for (const int64_t d : shape) n *= d;
          Shape out = shape;
          out.push_back(width);
          Case test{.op = "embedding"};
          test.in("table", types.in, {11, width})
              .data("ids", ids, shape, integers(n, 11, 5))
              .out("out", types.out, out);
          if (width == 33) test.port("table").layout = Layout::padded;
          if (width == 256 && shape.size() == 1) test.port("out").layout = Layout::transposed;
          if (shape.size() == 1) test.port("ids").symbol_dim = test.port("out").symbol_dim = 0;
          grid.push_back(test);
        }
  Case integers_table{.op = "embedding"};
  integers_table.in("table", DGPU_DTYPE_I64, {7, 3}, -1000, 1000)
      .data("ids", DGPU_DTYPE_I32, {4}, {6, 0, 0, 3})
      .out("out", DGPU_DTYPE_I64, {4, 3});
  grid.push_back(integers_table);
}

void cache_append(Grid& grid, bool full) {
  for (const auto& types : type_pairs(full))
    for (const Shape& row : {Shape{}, Shape{3}, Shape{2, 17}}) {
      const int64_t tokens = 5;
      Shape x{tokens}, cache{4, 3};
      x.insert(x.end(), row.begin(), row.end());
      cache.insert(cache.end(), row.begin(), row.end());
      Case test{.op = "cache_append"};
      test.in("x", types.in, x)
          .data("slots", DGPU_DTYPE_I64, {tokens}, {7, -1, 0, 11, 4})
          .inout("cache", types.out, cache);
      if (row.size() == 2) test.port("x").layout = Layout::transposed, test.port("cache").layout = Layout::padded;
      grid.push_back(test);
    }
}

void top_k(Grid& grid, bool full) {
  for (const auto dtype : kFloats)
    for (const int64_t n : full ? std::vector<int64_t>{1, 7, 64, 1000} : std::vector<int64_t>{1, 33})
      for (const int64_t k : {int64_t{1}, int64_t{4}, n})
        for (const bool largest : {true, false}) {
          if (k > n) continue;
          Case test{.op = "top_k"};
          test.attr("k", k).attr("largest", largest).in("x", dtype, {3, n});
          if (n == 64) test.port("x").given = integers(3 * n, 9, 3);  // many ties
          test.out("values", dtype, {3, k}).out("indices", k % 2 ? DGPU_DTYPE_I32 : DGPU_DTYPE_I64, {3, k});
          if (n == 7) test.port("x").layout = Layout::transposed;
          grid.push_back(test);
        }
}

void argmax(Grid& grid, bool full) {
  for (const auto dtype : kFloats)
    for (const Shape& shape : {Shape{1}, Shape{5, 33}, Shape{0, 3}, Shape{2, 3, 1000}})
      for (const bool ties : {false, true}) {
        Case test{.op = "argmax"};
        Shape out(shape.begin(), shape.end() - 1);
        int64_t n = 1;
        for (const int64_t d : shape) n *= d;
        test.in("x", dtype, shape);
        if (ties && n) test.port("x").given = integers(n, 4, 8);
        test.out("out", ties ? DGPU_DTYPE_I64 : DGPU_DTYPE_I32, out);
        if (shape.size() == 2) test.port("x").layout = Layout::spread;
        grid.push_back(test);
      }
  Case nan{.op = "argmax"};
  nan.data("x", DGPU_DTYPE_F32, {3, 4},
           {1, NAN, 3, NAN, -INFINITY, -INFINITY, -INFINITY, -INFINITY, 0, INFINITY, NAN, 1})
      .out("out", DGPU_DTYPE_I32, {3});
  grid.push_back(nan);
}

}  // namespace

void select_grid(Grid& grid, bool full) {
  embedding(grid, full);
  cache_append(grid, full);
  top_k(grid, full);
  argmax(grid, full);
}

}  // namespace conformance
