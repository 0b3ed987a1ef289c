#include "cpu_kernel_runner.h"

namespace dgpu::cpu::test {
namespace {

const std::vector<std::vector<int64_t>> kShapes = {{}, {0}, {1}, {7}, {3, 0, 5}, {33, 17}, {2, 3, 1000}, {70000}};

// Arguments that a function is defined for, with the hard ones among them.
double argument(const std::string& fn, int64_t i) {
  static const double kHard[] = {0.0, -0.0, 1, -1, 1e-30, -1e-30, 20, -20, 88, -87.5, 100, -100, 1e4, -1e4};
  const double v =
      i < 14 ? kHard[i]
             : 6 * std::sin(0.37 * static_cast<double>(i)) * std::exp(std::sin(0.011 * static_cast<double>(i)));
  if (fn == "log" || fn == "sqrt" || fn == "rsqrt") return std::fabs(v);
  if (fn == "reciprocal") return v == 0 ? 1 : v;
  return v;
}

// Error of the function in units of f32 roundoff relative to the result.
double units(const std::string& fn) {
  if (fn == "neg" || fn == "abs" || fn == "relu") return 0;
  if (fn == "sqrt" || fn == "square" || fn == "reciprocal") return 1;
  if (fn == "rsqrt" || fn == "sin" || fn == "cos") return 2;
  // In the left tail the exponent's argument, x^2 / 2 or 2u, is large and its rounding counts.
  if (fn == "gelu_erf") return 110;
  if (fn == "gelu_tanh") return 100;
  return 8;
}
// The f64 reference of gelu_tanh loses its left tail to 1 + tanh(u).
double floor_of(const std::string& fn) { return fn == "gelu_tanh" ? 1e-15 : 0; }

TEST(CpuUnary, EveryFunctionTypeAndInstructionSet) {
  for_each_isa([] {
    for (const auto& fn : {"neg", "abs", "exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "silu", "gelu_erf",
                           "gelu_tanh", "relu", "softplus", "sin", "cos", "reciprocal", "square"})
      for (const dgpuDtype_t from : kFloats)
        for (const dgpuDtype_t to : kFloats) {
          SCOPED_TRACE(std::string(fn) + " " + std::to_string(from) + " " + std::to_string(to));
          Case c("unary");
          c.attr("fn", std::string(fn)).port("x", packed(from, {3001}), [&](int64_t i) { return argument(fn, i); });
          c.out("out", to);
          check(c, "out", units(fn), floor_of(fn));
          if (HasFatalFailure()) return;
        }
  });
}

TEST(CpuUnary, LimitsAtInfinityAndNan) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  struct Row {
    const char* fn;
    double at_minus_inf, at_inf;
  };
  for_each_isa([&] {
    for (const Row& row : {Row{"exp", 0, inf},
                           {"log", nan, inf},
                           {"tanh", -1, 1},
                           {"sigmoid", 0, 1},
                           {"silu", 0, inf},
                           {"gelu_erf", 0, inf},
                           {"gelu_tanh", 0, inf},
                           {"relu", 0, inf},
                           {"softplus", 0, inf}}) {
      SCOPED_TRACE(row.fn);
      Case c("unary");
      const double in[] = {-inf, inf, nan};
      c.attr("fn", std::string(row.fn)).port("x", packed(DGPU_DTYPE_F32, {3}), [&](int64_t i) { return in[i]; });
      c.out("out", DGPU_DTYPE_F32);
      ASSERT_EQ(c.run(), 0);
      expect_close(c, "out", {row.at_minus_inf, row.at_inf, nan}, 0, 0);
      if (HasFatalFailure()) return;
    }
  });
}

TEST(CpuUnary, SineOfLargeAngles) {
  for_each_isa([] {
    for (const char* fn : {"sin", "cos"}) {
      Case c("unary");
      c.attr("fn", std::string(fn)).port("x", packed(DGPU_DTYPE_F32, {4000}), [](int64_t i) {
        return i % 4 == 3 ? std::ldexp(1.37, static_cast<int>(i % 120)) : 1e6 * std::sin(static_cast<double>(i));
      });
      c.out("out", DGPU_DTYPE_F32);
      check(c, "out", 2, 1e-14);
      if (HasFatalFailure()) return;
    }
  });
}

TEST(CpuUnary, ShapesAndStrides) {
  for (const auto& shape : kShapes)
    for (const dgpuDtype_t type : kFloats) {
      Case c("unary");
      c.attr("fn", std::string("silu")).port("x", packed(type, shape), normal(1));
      c.out("out", type);
      check(c, "out", 8);
      if (HasFatalFailure()) return;
    }
  for (const dgpuDtype_t type : kFloats) {
    Case c("unary");
    c.attr("fn", std::string("exp")).port("x", strided(type, {5, 6, 300}, {2, 0, 1}, 3), normal(2));
    c.port("out", strided(type, {5, 6, 300}, {1, 2, 0}, 2));
    check(c, "out", 8);
  }
}

TEST(CpuBinary, FunctionsAndBroadcast) {
  for_each_isa([] {
    for (const char* fn : {"add", "sub", "mul", "div", "max", "min", "pow"})
      for (const dgpuDtype_t a : kFloats)
        for (const dgpuDtype_t b : kFloats) {
          SCOPED_TRACE(fn);
          const bool pow = std::string(fn) == "pow";
          Case c("binary");
          c.attr("fn", std::string(fn));
          c.port("a", packed(a, {4, 1, 65}), [&, f = normal(3)](int64_t i) { return pow ? std::fabs(f(i)) : f(i); });
          c.port("b", packed(b, {7, 1}), normal(4));
          c.out("out", a);
          check(c, "out", 2);
          if (HasFatalFailure()) return;
        }
  });
  for (const auto& shape : kShapes) {
    Case c("binary");
    c.attr("fn", std::string("mul")).attr("scalar", 0.3).port("a", packed(DGPU_DTYPE_F32, shape), normal(5));
    c.out("out", DGPU_DTYPE_BF16);
    check(c, "out", 2);
  }
}

TEST(CpuBinary, NanWinsMaxAndMin) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for_each_isa([&] {
    for (const char* fn : {"max", "min"}) {
      Case c("binary");
      c.attr("fn", std::string(fn));
      c.port("a", packed(DGPU_DTYPE_F32, {40}), [&](int64_t i) { return i % 3 == 0 ? nan : 1.0; });
      c.port("b", packed(DGPU_DTYPE_F32, {40}), [&](int64_t i) { return i % 5 == 0 ? nan : 2.0; });
      c.out("out", DGPU_DTYPE_F32);
      check(c, "out", 0);
    }
  });
}

TEST(CpuBinary, Integers) {
  for (const char* fn : {"add", "sub", "mul", "max", "min", "floordiv", "mod"})
    for (const dgpuDtype_t type : {DGPU_DTYPE_I32, DGPU_DTYPE_I64}) {
      SCOPED_TRACE(fn);
      Case c("binary");
      c.attr("fn", std::string(fn));
      c.port("a", packed(type, {30, 20}), [](int64_t i) { return static_cast<double>(i * 7919 % 1001 - 500); });
      c.port("b", packed(DGPU_DTYPE_I32, {20}), [](int64_t i) { return static_cast<double>(i % 2 ? i + 1 : -i - 1); });
      c.out("out", type);
      check(c, "out", 0);
    }
  Case c("binary");
  c.attr("fn", std::string("mod")).port("a", packed(DGPU_DTYPE_I32, {4}), [](int64_t i) { return i; });
  c.port("b", packed(DGPU_DTYPE_I32, {4}), [](int64_t i) { return i - 2; });
  c.out("out", DGPU_DTYPE_I32);
  EXPECT_EQ(c.run(), DGPU_STATUS_DATA_OUT_OF_RANGE);
  EXPECT_NE(kit::failure().find("binary"), std::string::npos);
}

TEST(CpuGlu, ActivationsAndLayouts) {
  for_each_isa([] {
    for (const char* layout : {"separate", "contiguous", "interleaved"})
      for (const char* act : {"silu", "gelu_erf", "gelu_tanh", "relu", "sigmoid", "none"})
        for (const dgpuDtype_t type : kFloats) {
          SCOPED_TRACE(std::string(layout) + " " + act);
          const bool separate = std::string(layout) == "separate";
          Case c("glu");
          c.attr("activation", std::string(act)).attr("layout", std::string(layout));
          if (std::string(act) == "silu") c.attr("alpha", 1.702);
          c.attr("gate_max", 1.5).attr("up_clamp", 1.25).attr("up_offset", 1.0);
          c.port("x", packed(type, {5, separate ? 77 : 154}), normal(6, 2));
          if (separate) c.port("up", packed(type, {5, 77}), normal(7, 2));
          c.out("out", type);
          check(c, "out", 110, 1e-7);
          if (HasFatalFailure()) return;
        }
  });
}

TEST(CpuGlu, StridesAndLongRows) {
  for (const char* layout : {"contiguous", "interleaved"}) {
    Case c("glu");
    c.attr("activation", std::string("silu")).attr("layout", std::string(layout));
    c.port("x", strided(DGPU_DTYPE_BF16, {40, 3000}, {0, 1}, 8), normal(8));
    c.port("out", strided(DGPU_DTYPE_F32, {40, 1500}, {1, 0}, 1));
    check(c, "out", 20);
    Case d("glu");
    d.attr("activation", std::string("silu")).attr("layout", std::string(layout));
    d.port("x", strided(DGPU_DTYPE_F16, {40, 60}, {1, 0}, 0), normal(9));
    d.out("out", DGPU_DTYPE_F16);
    check(d, "out", 20);
  }
}

TEST(CpuElementwise, SymbolsGiveTheExtent) {
  auto d = packed(DGPU_DTYPE_F32, {64, 33});
  d.symbols[0] = 1;
  for (const int64_t n : {0, 1, 64}) {
    Case c("unary");
    c.attr("fn", std::string("exp")).port("x", d, normal(10));
    c.port("out", d);
    c.symbols = {n};
    check(c, "out", 8);
    EXPECT_EQ(c.result("out").size(), static_cast<size_t>(n) * 33);
    // Rows behind the extent are not touched.
    const auto& bytes = c.bytes("out");
    EXPECT_TRUE(std::all_of(bytes.begin() + 64 + n * 33 * 4, bytes.end(), [](uint8_t b) { return b == 0xa5; }));
  }
}

}  // namespace
}  // namespace dgpu::cpu::test
