// The cpu backend's matrix product against an f64 reference, for every instruction set that this machine has.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>

#include "backends/cpu/gemm/gemm.h"
#include "backends/cpu/isa.h"
#include "backends/cpu/probe.h"
#include "gemm_runner.h"

namespace dgpu::cpu::gemm {
namespace {

constexpr double kU = 0x1p-24;  // unit roundoff of f32

// ---- Scalar conversions, independent of the code under test ---------------------------------------------------

double decode(Type t, uint16_t bits) {
  if (t == Type::bf16) {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float f;
    std::memcpy(&f, &wide, 4);
    return f;
  }
  const int sign = bits >> 15, exponent = bits >> 10 & 31, mantissa = bits & 1023;
  double v = exponent == 0    ? std::ldexp(mantissa, -24)
             : exponent == 31 ? (mantissa != 0 ? NAN : INFINITY)
                              : std::ldexp(1024 + mantissa, exponent - 25);
  return sign != 0 ? -v : v;
}

// Nearest representable, ties to even, by search over the ordered bit patterns.
uint16_t encode(Type t, double x) {
  if (std::isnan(x)) return t == Type::bf16 ? 0x7fc0 : 0x7e00;
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  x = std::fabs(x);
  uint32_t low = 0, high = t == Type::bf16 ? 0x7f80 : 0x7c00;  // decode(low) <= x
  const double top = decode(t, static_cast<uint16_t>(high - 1));
  const double past = 2 * top - decode(t, static_cast<uint16_t>(high - 2));  // what infinity stands for in rounding
  if (x >= (top + past) / 2) return static_cast<uint16_t>(sign | high);
  while (high - low > 1) {
    const uint32_t mid = (low + high) / 2;
    (decode(t, static_cast<uint16_t>(mid)) <= x ? low : high) = mid;
  }
  const double below = x - decode(t, static_cast<uint16_t>(low));
  const double above =
      (high == (t == Type::bf16 ? 0x7f80u : 0x7c00u) ? past : decode(t, static_cast<uint16_t>(high))) - x;
  const bool up = above < below || (above == below && (low & 1) != 0);
  return static_cast<uint16_t>(sign | (up ? high : low));
}

double unit_roundoff(Type t) { return t == Type::f32 ? 0x1p-24 : t == Type::bf16 ? 0x1p-8 : 0x1p-11; }
double smallest(Type t) { return t == Type::f32 ? 0x1p-149 : t == Type::bf16 ? 0x1p-133 : 0x1p-24; }

// ---- Tensors -----------------------------------------------------------------------------------------------------

struct Tensor {
  Type type = Type::f32;
  std::vector<char> bytes;
  double get(int64_t i) const {
    if (type == Type::f32) {
      float f;
      std::memcpy(&f, &bytes[static_cast<size_t>(i) * 4], 4);
      return f;
    }
    uint16_t h;
    std::memcpy(&h, &bytes[static_cast<size_t>(i) * 2], 2);
    return decode(type, h);
  }
  void set(int64_t i, double x) {
    const float f = static_cast<float>(x);
    const uint16_t h = type == Type::f32 ? uint16_t{0} : encode(type, x);
    if (type == Type::f32) {
      std::memcpy(&bytes[static_cast<size_t>(i) * 4], &f, 4);
    } else {
      std::memcpy(&bytes[static_cast<size_t>(i) * 2], &h, 2);
    }
  }
};

using Rng = std::mt19937;
double uniform(Rng& rng) { return std::uniform_real_distribution<double>(-1, 1)(rng); }

enum class Layout { rows, columns, padded, spread };  // innermost col; innermost row; row pitch; both strided

// Strides of a [batch...][rows][cols] view and its storage with random content.
Tensor make(View* v, Layout layout, const Problem& p, int64_t rows, int64_t cols, bool batched, Rng& rng) {
  int64_t pitch;
  switch (layout) {
    case Layout::rows:
      v->col = 1, v->row = cols, pitch = rows * cols;
      break;
    case Layout::columns:
      v->row = 1, v->col = rows, pitch = rows * cols;
      break;
    case Layout::padded:
      v->col = 1, v->row = cols + 3, pitch = rows * (cols + 3) + 5;
      break;
    default:
      v->col = 3, v->row = 3 * cols + 1, pitch = rows * (3 * cols + 1);
      break;
  }
  int64_t size = pitch;
  for (int d = p.batch_rank - 1; d >= 0; --d) {
    v->batch[d] = batched ? size : 0;
    if (batched) size *= p.batch[d];
  }
  Tensor t;
  t.type = v->type;
  t.bytes.resize(static_cast<size_t>(size * size_of(v->type)));
  for (int64_t i = 0; i < size; ++i) t.set(i, uniform(rng));
  return t;
}

double activate(Activation a, double x) {
  switch (a) {
    case Activation::none:
      return x;
    case Activation::relu:
      return x < 0 ? 0 : x;
    case Activation::gelu_erf:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::gelu_tanh:
      return x / (1 + std::exp(-2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::silu:
      return x / (1 + std::exp(-x));
  }
  return 0;
}

struct Case {
  Problem p;
  Options options;
  Layout a = Layout::rows, b = Layout::rows, out = Layout::rows, extra = Layout::rows;
  bool b_batched = true, alias = false;
  int seed = 1;
};

std::string describe(const Case& c, const Plan& plan) {
  const Problem& p = c.p;
  auto n = [](auto x) { return std::to_string(static_cast<int64_t>(x)); };
  return std::string(plan.kernels->name) + " " + plan.algorithm() + " m" + n(p.m) + " n" + n(p.n) + " k" + n(p.k) +
         " batch" + n(p.batch_rank > 0 ? p.batch[0] : 1) + " types " + n(p.a.type) + n(p.b.type) + n(p.out.type) +
         " layouts " + n(c.a) + n(c.b) + n(c.out) + n(c.extra) + " act" + n(p.activation) + " bias" + n(p.has_bias) +
         " gate" + n(p.has_gate) + " residual" + n(p.has_residual) + " alias" + n(c.alias) + " seed" + n(c.seed);
}

int64_t offset(const Problem& p, const View& v, int64_t batch, int64_t row, int64_t col) {
  int64_t o = row * v.row + col * v.col;
  for (int d = p.batch_rank - 1; d >= 0; --d) {
    o += batch % p.batch[d] * v.batch[d];
    batch /= p.batch[d];
  }
  return o;
}

ChunkRunner& runner(int threads) {
  static ChunkRunner one(1), two(2), five(5);
  return threads == 1 ? one : threads == 2 ? two : five;
}

// Tolerance. Sum: each product enters through at most K + 1 roundings, so |error| <= (K + 2) u sum|a b| in any order
// (Higham, section 3.1), for FMA and the pair instruction alike. The pair instruction also flushes subnormals, which
// these data do not reach. Bias: one more rounding. Activation: derivatives stay below 1.13; own error below 16 u |x|
// (ActivationAccuracy tests that tighter). Gate, residual: one rounding each. Output: its unit roundoff.
void check(Case c) {
  Problem& p = c.p;
  Rng rng(static_cast<unsigned>(c.seed));
  Tensor a = make(&p.a, c.a, p, p.m, p.k, true, rng);
  Tensor b = make(&p.b, c.b, p, p.n, p.k, c.b_batched, rng);
  Tensor gate = make(&p.gate, c.extra, p, p.m, p.n, true, rng);
  if (c.alias) p.residual.type = p.out.type;
  Tensor residual = make(&p.residual, c.alias ? c.out : c.extra, p, p.m, p.n, true, rng);
  Tensor out = make(&p.out, c.out, p, p.m, p.n, true, rng);
  View bias_view;
  bias_view.type = p.bias_type;
  Problem flat = p;
  flat.batch_rank = 0;
  Tensor bias = make(&bias_view, c.extra == Layout::spread ? Layout::spread : Layout::rows, flat, 1, p.n, false, rng);
  p.bias_stride = bias_view.col;
  if (c.alias) out = residual;
  const Tensor before = out;

  const Plan x = plan(p, c.options);
  const Limits most = limits(p, c.options);
  ASSERT_LE(x.workspace_bytes(), most.workspace_bytes);
  ASSERT_LE(x.phases(), most.phases);
  Tensor results[3] = {out, out, out};
  const int threads[3] = {1, 2, 5};
  for (int r = 0; r < 3; ++r) {
    Tensor& o = results[r];
    const void* res = c.alias ? o.bytes.data() : residual.bytes.data();
    run_on(runner(threads[r]), x,
           {a.bytes.data(), b.bytes.data(), bias.bytes.data(), gate.bytes.data(), res, o.bytes.data()}, r == 1);
    ASSERT_EQ(o.bytes, results[0].bytes) << threads[r] << " threads: " << describe(c, x);
  }
  out = results[0];

  int64_t batches = 1;
  for (int d = 0; d < p.batch_rank; ++d) batches *= p.batch[d];
  Tensor touched = before;
  for (int64_t e = 0; e < batches; ++e) {
    for (int64_t i = 0; i < p.m; ++i) {
      for (int64_t j = 0; j < p.n; ++j) {
        double sum = 0, magnitude = 0;
        for (int64_t k = 0; k < p.k; ++k) {
          const double product = a.get(offset(p, p.a, e, i, k)) * b.get(offset(p, p.b, e, j, k));
          sum += product;
          magnitude += std::fabs(product);
        }
        double error = static_cast<double>(p.k + 2) * kU * magnitude;
        if (p.has_bias) sum += bias.get(j * p.bias_stride);
        error += kU * std::fabs(sum);
        double want = activate(p.activation, sum);
        if (p.activation != Activation::none) error = 1.13 * error + 16 * kU * std::fabs(sum);
        if (p.has_gate) {
          const double g = gate.get(offset(p, p.gate, e, i, j));
          want *= g;
          error = error * std::fabs(g) + kU * std::fabs(want);
        }
        if (p.has_residual) {
          want += residual.get(offset(p, p.residual, e, i, j));
          error += kU * std::fabs(want);
        }
        const int64_t at = offset(p, p.out, e, i, j);
        const double got = out.get(at);
        error += unit_roundoff(p.out.type) * (std::fabs(want) + error) + smallest(p.out.type);
        ASSERT_NEAR(got, want, error) << "at " << e << "," << i << "," << j << ": " << describe(c, x);
        const auto width = static_cast<size_t>(size_of(p.out.type));
        std::memcpy(&touched.bytes[static_cast<size_t>(at) * width], &out.bytes[static_cast<size_t>(at) * width],
                    width);
      }
    }
  }
  ASSERT_EQ(touched.bytes, out.bytes) << "wrote outside the output: " << describe(c, x);
}

// ---- Every instruction set, unit and path -------------------------------------------------------------------------

std::vector<const Kernels*> instruction_sets() {
  std::vector<const Kernels*> all;
  for (Isa isa : {Isa::scalar, Isa::sse4, Isa::avx2, Isa::avx512, Isa::neon}) {
    if (const Kernels* t = kernels(isa)) all.push_back(t);
  }
  return all;
}

class Gemm : public testing::TestWithParam<const Kernels*> {
 protected:
  Case base(int64_t m, int64_t n, int64_t k) const {
    Case c;
    c.p.m = m;
    c.p.n = n;
    c.p.k = k;
    c.options.kernels = GetParam();
    return c;
  }
};
INSTANTIATE_TEST_SUITE_P(Isa, Gemm, testing::ValuesIn(instruction_sets()),
                         [](const auto& i) { return std::string(i.param->name); });

constexpr Type kAll[] = {Type::f32, Type::bf16, Type::f16};

TEST_P(Gemm, ShapesAndPaths) {
  constexpr int64_t sizes[][3] = {{0, 3, 4},     {3, 0, 4},     {3, 4, 0},    {1, 1, 1},      {1, 1, 2},
                                  {2, 3, 1},     {1, 7, 5},     {1, 70, 67},  {3, 33, 65},    {4, 48, 64},
                                  {5, 31, 130},  {8, 100, 33},  {13, 65, 37}, {14, 32, 16},   {15, 97, 48},
                                  {16, 40, 800}, {17, 129, 50}, {61, 75, 90}, {29, 20, 1700}, {300, 65, 40}};
  for (auto& s : sizes) {
    for (Path path : {Path::packed, Path::dot, Path::stream}) {
      for (Layout b : {Layout::rows, Layout::columns}) {
        Case c = base(s[0], s[1], s[2]);
        c.options.path = path;
        c.b = b;
        c.p.has_bias = true;
        ASSERT_NO_FATAL_FAILURE(check(c));
      }
    }
  }
}

TEST_P(Gemm, TypeMixes) {
  for (Type a : kAll) {
    for (Type b : kAll) {
      for (Type out : kAll) {
        for (Path path : {Path::packed, Path::dot, Path::stream}) {
          for (Unit unit : {Unit::fma, Unit::bf16_dot}) {
            for (Layout layout : {Layout::rows, Layout::columns}) {
              Case c = base(7, 37, 101);
              c.p.a.type = a;
              c.p.b.type = b;
              c.p.out.type = c.p.gate.type = out;
              c.p.residual.type = c.p.bias_type = a;
              c.p.has_bias = c.p.has_gate = c.p.has_residual = true;
              c.options.path = path;
              c.options.unit = unit;
              c.b = layout;
              ASSERT_NO_FATAL_FAILURE(check(c));
            }
          }
        }
      }
    }
  }
}

TEST_P(Gemm, Epilogues) {
  for (int bits = 0; bits < 16; ++bits) {
    for (int act = 0; act < 5; ++act) {
      Case c = base(5, 43, 19);
      c.p.activation = static_cast<Activation>(act);
      c.p.has_bias = (bits & 1) != 0;
      c.p.has_gate = (bits & 2) != 0;
      c.p.has_residual = (bits & 4) != 0;
      c.alias = (bits & 8) != 0 && c.p.has_residual;
      ASSERT_NO_FATAL_FAILURE(check(c));
    }
  }
}

TEST_P(Gemm, RandomCases) {
  Rng rng(7);
  auto pick = [&](int n) { return static_cast<int>(rng() % static_cast<unsigned>(n)); };
  constexpr int64_t sizes[] = {0, 1, 2, 3, 5, 8, 13, 16, 31, 33, 64, 70};
  for (int i = 0; i < 400; ++i) {
    auto size = [&] { return sizes[pick(12)]; };
    Case c = base(size(), size(), size());
    c.seed = i;
    for (Type* t : {&c.p.a.type, &c.p.b.type, &c.p.out.type, &c.p.gate.type, &c.p.residual.type, &c.p.bias_type}) {
      *t = kAll[pick(3)];
    }
    if (pick(3) == 0) c.p.a.type = c.p.b.type = Type::bf16;
    for (Layout* l : {&c.a, &c.b, &c.out, &c.extra}) *l = static_cast<Layout>(pick(4));
    c.p.batch_rank = pick(3);
    for (int d = 0; d < c.p.batch_rank; ++d) c.p.batch[d] = 1 + pick(3);
    c.b_batched = pick(2) != 0;
    c.p.has_bias = pick(2) != 0;
    c.p.has_gate = pick(2) != 0;
    c.p.has_residual = pick(2) != 0;
    c.alias = c.p.has_residual && pick(2) != 0;
    c.p.activation = static_cast<Activation>(pick(5));
    c.options.unit = static_cast<Unit>(pick(2));
    if (pick(2) != 0) c.options.path = static_cast<Path>(pick(3));
    ASSERT_NO_FATAL_FAILURE(check(c));
  }
}

TEST_P(Gemm, ManyChunksAndBlocks) {
  for (Unit unit : {Unit::fma, Unit::bf16_dot}) {
    for (Layout layout : {Layout::rows, Layout::columns}) {
      Case c = base(270, 301, 1601);
      if (GetParam()->isa == Isa::scalar) c = base(70, 301, 801);
      c.p.a.type = c.p.b.type = Type::bf16;
      c.options.unit = unit;
      c.a = c.b = layout;
      ASSERT_NO_FATAL_FAILURE(check(c));
    }
  }
}

TEST_P(Gemm, SplitsAlongK) {
  for (int64_t m : {1, 16}) {
    for (Unit unit : {Unit::fma, Unit::bf16_dot}) {
      Case c = base(m, 600, 531);
      c.p.a.type = c.p.b.type = Type::bf16;
      c.b = Layout::columns;
      c.options.unit = unit;
      c.p.has_bias = c.p.has_gate = c.p.has_residual = c.alias = true;
      c.p.activation = Activation::silu;
      ASSERT_GT(plan(
                    [&] {
                      Problem p = c.p;
                      p.b.row = 1;
                      p.b.col = p.n;
                      return p;
                    }(),
                    c.options)
                    .splits,
                1);
      ASSERT_NO_FATAL_FAILURE(check(c));
    }
  }
}

// ---- Pieces ----

TEST_P(Gemm, ConversionsAreExactAndRoundToNearestEven) {
  const Kernels& t = *GetParam();
  for (Type type : {Type::bf16, Type::f16}) {
    std::vector<uint16_t> bits(65536);
    for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
    std::vector<float> wide(bits.size());
    t.widen[static_cast<int>(type)](bits.data(), 65536, wide.data());
    std::vector<float> values;
    for (size_t i = 0; i < bits.size(); ++i) {
      const double want = decode(type, bits[i]);
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(wide[i])) << i;
        continue;
      }
      ASSERT_EQ(wide[i], static_cast<float>(want)) << i;
      // The value, the tie above it, and both sides of the tie.
      const double next = decode(type, static_cast<uint16_t>(i + 1));
      values.push_back(wide[i]);
      if (!std::isfinite(next) || std::signbit(next) != std::signbit(want)) continue;
      const float tie = static_cast<float>((want + next) / 2);
      values.insert(values.end(), {tie, std::nextafter(tie, INFINITY), std::nextafter(tie, -INFINITY)});
    }
    values.insert(values.end(), {65519.9f, 65520.0f, 65536.0f, 1e30f, -1e30f, 3.4e38f, NAN, 1e-45f, 3e-8f});
    std::vector<uint16_t> narrow(values.size());
    t.narrow[static_cast<int>(type)](values.data(), static_cast<int64_t>(values.size()), narrow.data());
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::isnan(values[i])) {
        ASSERT_TRUE(std::isnan(decode(type, narrow[i])));
      } else {
        ASSERT_EQ(narrow[i], encode(type, values[i])) << values[i];
      }
    }
  }
}

void activate_row(const Kernels& t, Activation activation, std::vector<float>* x) {
  t.finish[static_cast<int>(Type::f32)]({x->data(), nullptr, nullptr, nullptr}, static_cast<int64_t>(x->size()),
                                        activation, x->data());
}

// Relative to |x| (the size of the inputs of the last product) and, in the left tail down to 1e-30, to the result:
// the relative error of exp(v) is the absolute error of v, a few u |v|.
TEST_P(Gemm, ActivationAccuracy) {
  std::vector<float> xs;
  for (double x = -13; x < 13; x += 0.00037) xs.push_back(static_cast<float>(x));
  for (double x = 1e-30; x < 100; x *= 1.7) xs.insert(xs.end(), {static_cast<float>(x), static_cast<float>(-x)});
  for (Activation act : {Activation::relu, Activation::gelu_erf, Activation::gelu_tanh, Activation::silu}) {
    std::vector<float> y = xs;
    activate_row(*GetParam(), act, &y);
    double worst = 0;
    for (size_t i = 0; i < xs.size(); ++i) {
      const double x = xs[i], want = activate(act, x), error = std::fabs(y[i] - want);
      ASSERT_LE(error, 4 * kU * std::fabs(x)) << "act " << static_cast<int>(act) << " x " << x;
      const double exponent = act == Activation::silu ? std::fabs(x) : std::fabs(x) + std::fabs(x * x * x);
      if (std::fabs(want) > 1e-30) {
        ASSERT_LE(error, (8 + 4 * exponent) * kU * std::fabs(want)) << x;
      }
      worst = std::max(worst, error / (kU * std::fabs(x)));
    }
    RecordProperty("worst_u_of_x_" + std::to_string(static_cast<int>(act)), std::to_string(worst));
  }
  for (Activation act : {Activation::relu, Activation::gelu_erf, Activation::gelu_tanh, Activation::silu}) {
    std::vector<float> special = {NAN, INFINITY, -INFINITY};
    activate_row(*GetParam(), act, &special);
    EXPECT_TRUE(std::isnan(special[0]));
    EXPECT_EQ(special[1], INFINITY);
    EXPECT_EQ(special[2], 0);
  }
}

// One expert: rows of x picked by index, weights [N,K], result rows packed.
TEST_P(Gemm, TileGathersRows) {
  const int64_t rows = 50, n = 70, k = 96;
  Rng rng(3);
  std::vector<float> x(static_cast<size_t>(rows * k)), w(static_cast<size_t>(n * k));
  for (float& f : x) f = static_cast<float>(uniform(rng));
  for (float& f : w) f = static_cast<float>(uniform(rng));
  const std::vector<int32_t> index = {49, 3, 3, 17, 0, 21, 8, 9, 30, 31, 32, 1, 2, 44, 45, 46, 40, 12};
  for (int64_t m : {int64_t{1}, int64_t{5}, static_cast<int64_t>(index.size())}) {
    std::vector<float> out(static_cast<size_t>(m * n));
    Tile t;
    t.kernels = GetParam();
    t.m = m;
    t.n = n;
    t.k = k;
    t.a = {x.data(), Type::f32, k, 1, index.data()};
    t.b = {w.data(), Type::f32, k, 1, nullptr};
    t.out = {out.data(), Type::f32, n, 1, nullptr};
    choose_blocking(&t);
    run_tile(t);
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0, magnitude = 0;
        for (int64_t p = 0; p < k; ++p) {
          const double product = static_cast<double>(x[static_cast<size_t>(index[static_cast<size_t>(i)] * k + p)]) *
                                 w[static_cast<size_t>(j * k + p)];
          sum += product;
          magnitude += std::fabs(product);
        }
        ASSERT_NEAR(out[static_cast<size_t>(i * n + j)], sum, (k + 2) * kU * magnitude);
      }
    }
  }
}

TEST(GemmLimits, BoundAllSmallerSizes) {
  for (const Kernels* t : instruction_sets()) {
    for (bool along_k : {true, false}) {
      for (int64_t m : {1, 5, 16, 17, 100, 513, 3000, 20000}) {
        for (int64_t k : {1, 100, 4096, 16384, 60000}) {
          Problem p;
          p.n = 2000;
          p.a.col = 1;
          p.b.col = along_k ? 1 : p.n;
          p.b.row = along_k ? k : 1;
          p.batch_rank = 1;
          p.batch[0] = 30;  // folds into m = 1 only
          p.m = m;
          p.k = k;
          Options o;
          o.kernels = t;
          const Limits most = limits(p, o);
          for (int64_t smaller : {m, m - 1, m / 2, m / 3, m / 7, int64_t{1}}) {
            for (int64_t shorter : {k, k / 2, k / 5}) {
              for (int64_t batch : {1, 30}) {
                p.m = smaller;
                p.k = shorter;
                p.batch[0] = batch;
                const Plan x = plan(p, o);
                ASSERT_LE(x.workspace_bytes(), most.workspace_bytes)
                    << m << " " << k << " " << smaller << " " << shorter;
                ASSERT_LE(x.phases(), most.phases) << m << " " << k << " " << smaller << " " << shorter;
              }
            }
          }
        }
      }
    }
  }
}

TEST(GemmUnit, FollowsTheSetting) {
  std::string error;
  ASSERT_TRUE(set_bf16_mode("fma", &error));
  EXPECT_EQ(bf16_unit(), Unit::fma);
  ASSERT_TRUE(set_bf16_mode("dot", &error));
  EXPECT_EQ(bf16_unit() == Unit::bf16_dot, bf16_dot_unit() != nullptr);
  ASSERT_TRUE(set_bf16_mode("auto", &error));
  EXPECT_EQ(bf16_unit() == Unit::bf16_dot, bf16_dot_is_faster());
  ASSERT_TRUE(set_isa("avx2", &error));
  EXPECT_EQ(bf16_unit(), Unit::fma);
  EXPECT_NE(best_kernels().isa, Isa::avx512);
  ASSERT_TRUE(set_isa("auto", &error));
}

}  // namespace
}  // namespace dgpu::cpu::gemm
