// matmul.
#include "grid_util.h"

namespace conformance {

namespace {

struct Problem {
  int64_t m, n, k;
};

// (|a||b| + |bias|) |gate| + |residual|: activations have |act(z)| <= |z| and slopes up to 1.13.
void finish(Case& test, const Problem& p) {
  test.prepare = absolute_run({{"activation", std::string("none")}});
  test.bound = by_magnitude(1.2 * (sum_factor(static_cast<double>(p.k)) + 2 * kUlps));
}

Case plain(const Problem& p, Types types, bool ta, bool tb) {
  Case test{.op = "matmul"};
  test.attr("transpose_a", ta).attr("transpose_b", tb);
  test.in("a", types.in, ta ? Shape{p.k, p.m} : Shape{p.m, p.k});
  test.in("b", types.in, tb ? Shape{p.n, p.k} : Shape{p.k, p.n});
  test.out("out", types.out, {p.m, p.n});
  finish(test, p);
  return test;
}

void add_epilogue(Case& test, const Problem& p, dgpuDtype_t dtype, int bits) {
  if (bits & 1) test.in("bias", dtype, {p.n});
  if (bits & 2) test.in("gate", dtype, {p.m, p.n});
  if (bits & 4) test.in("residual", dtype, {p.m, p.n});
}

void shapes(Grid& grid, bool full) {
  std::vector<Problem> problems = {{1, 1, 1}, {3, 5, 7}, {1, 65, 129}, {17, 33, 64}, {0, 4, 4}, {4, 0, 4}, {4, 4, 0}};
  if (full)
    problems.insert(problems.end(), {{1, 512, 300},
                                     {2, 100, 1023},
                                     {5, 64, 64},
                                     {16, 16, 16},
                                     {33, 47, 211},
                                     {64, 128, 256},
                                     {129, 130, 131},
                                     {200, 72, 520},
                                     {7, 300, 2049}});
  for (const auto& p : problems)
    for (const auto& types : type_pairs(full))
      for (int t = 0; t < 4; ++t) grid.push_back(plain(p, types, t & 1, t & 2));
}

void epilogues(Grid& grid, bool full) {
  for (const auto& p :
       full ? std::vector<Problem>{{1, 67, 40}, {9, 35, 70}, {40, 64, 96}} : std::vector<Problem>{{9, 35, 70}})
    for (const auto& types : type_pairs(full))
      for (const char* activation : {"none", "relu", "gelu_erf", "gelu_tanh", "silu"})
        for (int bits = 0; bits < 8; ++bits) {
          if (!full && bits != 0 && bits != 1 && bits != 7) continue;
          Case test = plain(p, types, false, true);
          test.attr("activation", std::string(activation));
          add_epilogue(test, p, bits == 7 ? dgpuDtype_t{DGPU_DTYPE_F32} : types.in, bits);
          if (bits == 4 && types.in == types.out) test.alias_out = "out", test.alias_in = "residual";
          if (bits == 2 && types.in == types.out) test.alias_out = "out", test.alias_in = "gate";
          grid.push_back(test);
        }
}

void layouts(Grid& grid, bool full) {
  const Problem p{12, 40, 50};
  for (const auto dtype : {DGPU_DTYPE_F32, DGPU_DTYPE_BF16})
    for (const Layout layout : {Layout::padded, Layout::transposed, Layout::spread, Layout::broadcast})
      for (const char* port : {"a", "b", "out", "bias", "residual"}) {
        const bool is_out = std::string(port) == "out";
        if (layout == Layout::broadcast && is_out) continue;
        if (!full && layout == Layout::broadcast) continue;
        Case test = plain(p, {dtype, dtype}, false, true);
        add_epilogue(test, p, dtype, 5);
        test.port(port).layout = layout;
        grid.push_back(test);
      }
  for (const bool vector : {true, false}) {  // symbolic rows
    const Problem s{vector ? 1 : 21, 48, 64};
    Case test = plain(s, {DGPU_DTYPE_F32, DGPU_DTYPE_F32}, false, true);
    test.port("a").symbol_dim = test.port("out").symbol_dim = 0;
    grid.push_back(test);
  }
}

void batches(Grid& grid, bool full) {
  const Problem p{5, 9, 11};
  struct Row {
    Shape a, b, out;
  };
  for (const auto& row :
       {Row{{3}, {3}, {3}}, Row{{2, 3}, {}, {2, 3}}, Row{{}, {4}, {4}}, Row{{2, 1}, {3}, {2, 3}}, Row{{0}, {0}, {0}}})
    for (const auto& types : type_pairs(full)) {
      const auto join = [](Shape s, int64_t r, int64_t c) {
        s.push_back(r);
        s.push_back(c);
        return s;
      };
      Case test{.op = "matmul"};
      test.in("a", types.in, join(row.a, p.m, p.k))
          .in("b", types.in, join(row.b, p.k, p.n))
          .out("out", types.out, join(row.out, p.m, p.n));
      if (full) test.in("bias", types.in, {p.n});
      finish(test, p);
      grid.push_back(test);
    }
}

}  // namespace

void matmul_grid(Grid& grid, bool full) {
  shapes(grid, full);
  epilogues(grid, full);
  layouts(grid, full);
  batches(grid, full);
}

}  // namespace conformance
