// unary, binary, cast, glu.
#include "grid_util.h"

namespace conformance {

namespace {

std::vector<Shape> shapes(bool full) {
  if (!full) return {{}, {0}, {1}, {3, 17}, {2, 0, 5}};
  return {{}, {0}, {1}, {7}, {64}, {1000}, {3, 17}, {5, 1, 33}, {2, 0, 5}, {2, 3, 4, 5}, {129, 255}};
}

// Where a function subtracts nearly equal numbers its error is relative to this, not to the result.
double cancellation(const std::string& fn) {
  if (fn == "gelu_erf" || fn == "gelu_tanh") return 8;  // 0.5 x (1 + erf) for x near -8
  return fn == "sin" || fn == "cos" || fn == "log" || fn == "softplus" ? 1 : 0;
}

void unary(Grid& grid, bool full) {
  const char* fns[] = {"neg",      "abs",       "exp",  "log",      "sqrt", "rsqrt", "tanh",       "sigmoid", "silu",
                       "gelu_erf", "gelu_tanh", "relu", "softplus", "sin",  "cos",   "reciprocal", "square"};
  for (const char* fn : fns) {
    const std::string name = fn;
    const bool positive = name == "log" || name == "sqrt" || name == "rsqrt";
    for (const auto& types : type_pairs(full))
      for (const auto& shape : full&& name != "silu" ? std::vector<Shape>{{1}, {3, 17}, {129, 65}} : shapes(full)) {
        Case test{.op = "unary"};
        test.attr("fn", name).in("x", types.in, shape, positive ? 0.01 : -8, 8).out("out", types.out, shape);
        test.bound = relative(2 * kUlps, cancellation(name));
        grid.push_back(test);
      }
    Case test{.op = "unary"};  // in place, columns of wider rows
    test.attr("fn", name).in("x", DGPU_DTYPE_F32, {5, 19}, positive ? 0.01 : -8, 8).out("out", DGPU_DTYPE_F32, {5, 19});
    test.port("x").layout = test.port("out").layout = Layout::padded;
    test.alias_out = "out", test.alias_in = "x";
    test.bound = relative(2 * kUlps, cancellation(name));
    grid.push_back(test);
  }
  for (const Layout layout : {Layout::transposed, Layout::spread, Layout::broadcast}) {
    Case test{.op = "unary"};
    test.attr("fn", std::string("exp"))
        .in("x", DGPU_DTYPE_BF16, {4, 6, 21}, -8, 8)
        .out("out", DGPU_DTYPE_F32, {4, 6, 21});
    test.port("x").layout = layout;
    test.port("out").layout = layout == Layout::broadcast ? Layout::padded : layout;
    test.bound = relative(2 * kUlps);
    grid.push_back(test);
  }
}

void binary(Grid& grid, bool full) {
  const std::vector<std::pair<Shape, Shape>> pairs =
      full ? std::vector<std::pair<Shape, Shape>>{{{4, 33}, {4, 33}},    {{4, 33}, {33}}, {{4, 1}, {1, 33}},
                                                  {{2, 3, 5}, {3, 1}},   {{0, 3}, {3}},   {{7}, {}},
                                                  {{3, 1025}, {3, 1025}}}
           : std::vector<std::pair<Shape, Shape>>{{{4, 33}, {4, 33}}, {{4, 1}, {1, 33}}, {{0, 3}, {3}}};
  const auto result = [](const Shape& a, const Shape& b) {
    Shape out = a.size() > b.size() ? a : b;
    for (size_t i = 0; i < out.size(); ++i) {
      const int64_t da = i < a.size() ? a[a.size() - 1 - i] : 1, db = i < b.size() ? b[b.size() - 1 - i] : 1;
      out[out.size() - 1 - i] = da == 1 ? db : da;
    }
    return out;
  };
  for (const char* fn : {"add", "sub", "mul", "div", "max", "min", "pow"}) {
    const std::string name = fn;
    const double low = name == "pow" ? 0.1 : -4;
    for (const auto& types : type_pairs(full))
      for (const auto& [a, b] : pairs) {
        Case test{.op = "binary"};
        test.attr("fn", name)
            .in("a", types.in, a, low, 4)
            .in("b", types.out, b, -4, 4)
            .out("out", types.out, result(a, b));
        // One operation of exact numbers; pow multiplies the error of the logarithm by the exponent.
        test.bound = relative(name == "pow" ? 16 * kUlps : 2);
        grid.push_back(test);
      }
    for (const double scalar : {2.0, -0.5}) {
      Case test{.op = "binary"};
      test.attr("fn", name)
          .attr("scalar", scalar)
          .in("a", DGPU_DTYPE_BF16, {3, 37}, low, 4)
          .out("out", DGPU_DTYPE_BF16, {3, 37});
      test.alias_out = "out", test.alias_in = "a";
      test.bound = relative(name == "pow" ? 16 * kUlps : 2);
      grid.push_back(test);
    }
    // out is b, and rows longer than any vector with an odd end.
    Case test{.op = "binary"};
    test.attr("fn", name)
        .in("a", DGPU_DTYPE_F32, {3, 71}, low, 4)
        .in("b", DGPU_DTYPE_F32, {3, 71})
        .out("out", DGPU_DTYPE_F32, {3, 71});
    test.alias_out = "out", test.alias_in = "b";
    test.bound = relative(name == "pow" ? 16 * kUlps : 2);
    grid.push_back(test);
  }
  for (const char* fn : {"add", "sub", "mul", "max", "min", "floordiv", "mod"})
    for (const auto dtype : {DGPU_DTYPE_I32, DGPU_DTYPE_I64})
      for (const auto& [a, b] : pairs) {
        Case test{.op = "binary"};
        test.attr("fn", std::string(fn))
            .in("a", dtype, a, -100, 100)
            .in("b", dtype, b, 1, 9)
            .out("out", dtype, result(a, b));
        if (hash(a.size() + b.size()) % 2) test.port("b").low = -9, test.port("b").high = -1;
        grid.push_back(test);
      }
}

void cast(Grid& grid, bool full) {
  const dgpuDtype_t all[] = {DGPU_DTYPE_F32, DGPU_DTYPE_BF16, DGPU_DTYPE_F16, DGPU_DTYPE_I8,
                             DGPU_DTYPE_U8,  DGPU_DTYPE_I32,  DGPU_DTYPE_I64};
  for (const auto from : all)
    for (const auto to : all)
      for (const Layout layout : {Layout::packed, Layout::transposed, Layout::spread}) {
        if (!full && layout == Layout::spread) continue;
        Case test{.op = "cast"};
        const double low = from == DGPU_DTYPE_U8 ? 0 : -127, high = from == DGPU_DTYPE_U8 ? 255 : 127;
        test.in("x", from, {3, 5, 23}, low * (is_int(from) ? 1 : 3), high * (is_int(from) ? 1 : 3))
            .out("out", to, {3, 5, 23});
        test.port("x").layout = layout;
        if (layout == Layout::spread) test.port("out").layout = Layout::padded;
        grid.push_back(test);
      }
  for (const auto from : kFloats)
    for (const auto to : kFloats) {
      Case test{.op = "cast"};  // rounding of numbers near ties, small ones and infinities
      std::vector<double> values;
      for (int i = 0; i < 4096; ++i)
        values.push_back(std::ldexp(1 + uniform(i), static_cast<int>(hash(i) % 60) - 30) * (i % 2 ? -1 : 1));
      for (int i = 0; i < 256; ++i)
        values.push_back(1 + std::ldexp(2 * i + 1, -9)), values.push_back(1 + std::ldexp(2 * i + 1, -12));
      values.insert(values.end(), {0, -0.0, INFINITY, -INFINITY, 65504, 65519, 65520, 1e30});
      const auto n = static_cast<int64_t>(values.size());
      test.data("x", from, {n}, values).out("out", to, {n});
      grid.push_back(test);
    }
}

void glu(Grid& grid, bool full) {
  for (const char* activation : {"silu", "gelu_erf", "gelu_tanh", "relu", "sigmoid", "none"})
    for (const char* layout : {"separate", "contiguous", "interleaved"})
      for (const auto& types : type_pairs(full))
        for (const Shape& shape : full ? std::vector<Shape>{{1, 1}, {3, 40}, {5, 129}, {0, 8}, {2, 3, 64}}
                                       : std::vector<Shape>{{3, 40}, {2, 17}}) {
          const bool separate = std::string(layout) == "separate";
          Shape both = shape;
          if (!separate) both.back() *= 2;
          Case test{.op = "glu"};
          test.attr("activation", std::string(activation)).attr("layout", std::string(layout));
          test.in("x", types.in, both, -6, 6);
          if (separate) test.in("up", types.in, shape, -3, 3);
          test.out("out", types.out, shape);
          if (hash(shape.size() + shape[0]) % 2) {
            test.attr("gate_max", 2.5).attr("up_clamp", 1.75).attr("up_offset", 1.0);
            if (std::string(activation) == "silu") test.attr("alpha", 1.702);
          }
          if (shape.size() == 2 && shape[0] == 5) test.port("x").layout = test.port("out").layout = Layout::padded;
          test.bound = relative(3 * kUlps, 6 * 7);  // |gate| |up + offset|: gelu cancels
          grid.push_back(test);
        }
  Case test{.op = "glu"};
  test.attr("activation", std::string("silu")).attr("layout", std::string("separate"));
  test.in("x", DGPU_DTYPE_BF16, {4, 71}, -6, 6).in("up", DGPU_DTYPE_BF16, {4, 71}).out("out", DGPU_DTYPE_BF16, {4, 71});
  test.alias_out = "out", test.alias_in = "up";
  test.bound = relative(3 * kUlps, 6);
  grid.push_back(test);
}

}  // namespace

void elementwise_grid(Grid& grid, bool full) {
  unary(grid, full);
  binary(grid, full);
  cast(grid, full);
  glu(grid, full);
}

}  // namespace conformance
