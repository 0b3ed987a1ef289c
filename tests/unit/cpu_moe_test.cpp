// Mixture of experts of the cpu backend against plain f64 loops.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "backends/cpu/gemm/gemm.h"
#include "backends/cpu/moe/experts.h"
#include "cpu_op_harness.h"

namespace dgpu::cpu::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
enum class Form { up, gate_and_up, contiguous, interleaved };

struct Case {
  int64_t tokens = 5, experts = 4, picks = 2, hidden = 32, inner = 24;
  Form form = Form::gate_and_up;
  const char* activation = "silu";
  double alpha = 1, gate_max = kInf, up_clamp = kInf, up_offset = 0;
  bool biases = false, scale_input = false, map = false, transposed = false;
  dgpuDtype_t x = DGPU_DTYPE_F32, w = DGPU_DTYPE_F32, out = DGPU_DTYPE_F32;
  int64_t gap = 0, inner_stride = 1;
  size_t round_bytes = size_t{96} << 20;
  unsigned seed = 1;
};

double act(const std::string& fn, double alpha, double g) {
  if (fn == "silu") return g / (1 + std::exp(-alpha * g));
  if (fn == "gelu_erf") return 0.5 * g * std::erfc(-g / std::sqrt(2.0));
  if (fn == "gelu_tanh") return 0.5 * g * (1 + std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g)));
  if (fn == "relu") return std::max(g, 0.0);
  if (fn == "sigmoid") return 1 / (1 + std::exp(-g));
  return g;
}

class Experts {
 public:
  explicit Experts(const Case& c) : c_(c), op_("moe_experts"), random_(c.seed) { build(); }
  Op& op() { return op_; }
  std::unique_ptr<Kernel> plan(const gemm::Kernels* kernels = nullptr) {
    std::string reason;
    auto kernel = op_.plan(
        [&](const kit::OpView& view, std::string* why) {
          return moe::make(view, why, {kernels, c_.round_bytes});
        },
        &reason);
    EXPECT_TRUE(kernel) << reason;
    return kernel;
  }

  // |error| <= bound: products of K terms are off by (K + 2) u sum|a b|; the activations have slope at most 1.2 and are
  // good to 8 u.
  void check(const std::string& what) {
    constexpr double u = 0x1p-24;
    if (want_.empty()) expect();
    for (int64_t t = 0; t < c_.tokens; ++t) {
      for (int64_t o = 0; o < c_.hidden; ++o) {
        const auto at = static_cast<size_t>(t * c_.hidden + o);
        const double target = want_[at], got = op_["out"].get({t, o});
        const double limit = bound_[at] + static_cast<double>(c_.picks) * 2 * u * std::fabs(target) +
                             1.01 * unit_roundoff(c_.out) * std::fabs(target) + 1e-37 +
                             (c_.out == DGPU_DTYPE_F16 ? 0x1p-25 : 0);
        ASSERT_LE(std::fabs(got - target), limit)
            << what << " token " << t << " element " << o << " want " << target << " got " << got;
      }
    }
  }
  std::vector<unsigned char> result() { return op_["out"].bytes; }
  void forget() { std::fill(op_["out"].bytes.begin(), op_["out"].bytes.end(), 0xcd); }

 private:
  double normal() { return std::normal_distribution<double>()(random_); }

  // The f64 result and its bound, once: the inputs stay.
  void expect() {
    constexpr double u = 0x1p-24;
    std::vector<double> h(static_cast<size_t>(c_.inner)), error(h.size());
    for (int64_t t = 0; t < c_.tokens; ++t) {
      std::vector<double> want(static_cast<size_t>(c_.hidden), 0.0), bound(want.size(), 0.0);
      for (int64_t j = 0; j < c_.picks; ++j) {
        auto e = static_cast<int64_t>(op_["indices"].get({t, j}));
        const double w = op_["weights"].get({t, j});
        if (c_.map && e >= 0) e = static_cast<int64_t>(op_["expert_map"].get({e}));
        if (e == -1) continue;
        if (e == -2) {
          for (int64_t i = 0; i < c_.hidden; ++i) {
            const double v = w * op_["x"].get({t, i});
            want[static_cast<size_t>(i)] += v;
            bound[static_cast<size_t>(i)] += 2 * u * std::fabs(v);
          }
          continue;
        }
        const double in = c_.scale_input ? w : 1, after = c_.scale_input ? 1 : w;
        for (int64_t i = 0; i < c_.inner; ++i)
          inner(t, e, i, in, &h[static_cast<size_t>(i)], &error[static_cast<size_t>(i)]);
        for (int64_t o = 0; o < c_.hidden; ++o) {
          double y = 0, size = 0, carried = 0;
          for (int64_t i = 0; i < c_.inner; ++i) {
            const double weight = op_["down"].get({e, o, i});
            y += weight * h[static_cast<size_t>(i)];
            size += std::fabs(weight * h[static_cast<size_t>(i)]);
            carried += std::fabs(weight) * error[static_cast<size_t>(i)];
          }
          const double bias = c_.biases ? op_["down_bias"].get({e, o}) : 0;
          want[static_cast<size_t>(o)] += after * (y + bias);
          bound[static_cast<size_t>(o)] +=
              std::fabs(after) *
              (carried + (static_cast<double>(c_.inner + c_.picks) + 6) * u * (size + std::fabs(bias)));
        }
      }
      want_.insert(want_.end(), want.begin(), want.end());
      bound_.insert(bound_.end(), bound.begin(), bound.end());
    }
  }

  void inner(int64_t t, int64_t e, int64_t i, double scale, double* value, double* error) {
    constexpr double u = 0x1p-24;
    const auto line = [&](const char* port, const char* bias_port, int64_t row, double* err) {
      double sum = 0, size = 0;
      for (int64_t k = 0; k < c_.hidden; ++k) {
        const double v = op_[port].get({e, row, k}) * op_["x"].get({t, k}) * scale;
        sum += v;
        size += std::fabs(v);
      }
      const double bias = c_.biases ? op_[bias_port].get({e, row}) : 0;
      *err = (static_cast<double>(c_.hidden) + 4) * u * (size + std::fabs(bias));
      return sum + bias;
    };
    double g = 0, v = 1, ge = 0, ve = 0;
    switch (c_.form) {
      case Form::up:
        g = line("up", "up_bias", i, &ge);
        break;
      case Form::gate_and_up:
        g = line("gate", "gate_bias", i, &ge);
        v = line("up", "up_bias", i, &ve);
        break;
      case Form::contiguous:
        g = line("gate_up", "gate_up_bias", i, &ge);
        v = line("gate_up", "gate_up_bias", c_.inner + i, &ve);
        break;
      case Form::interleaved:
        g = line("gate_up", "gate_up_bias", 2 * i, &ge);
        v = line("gate_up", "gate_up_bias", 2 * i + 1, &ve);
    }
    if (c_.form != Form::up) {
      g = std::min(g, c_.gate_max);
      v = std::clamp(v, -c_.up_clamp, c_.up_clamp) + c_.up_offset;
    }
    const double a = act(c_.activation, c_.alpha, g);
    *value = a * v;
    *error = 1.2 * ge * (std::fabs(v) + ve) + std::fabs(a) * ve + 10 * u * std::fabs(a * v) + 2 * u * std::fabs(g * v);
  }

  // Weights [E, rows, columns], stored so or with the last two dimensions swapped.
  void weight(const char* name, int64_t rows, int64_t columns) {
    Tensor t(c_.w,
             c_.transposed ? std::vector<int64_t>{c_.experts, columns, rows}
                           : std::vector<int64_t>{c_.experts, rows, columns},
             c_.gap, c_.inner_stride);
    if (c_.transposed) {
      std::swap(t.desc.shape[1], t.desc.shape[2]);
      std::swap(t.desc.strides[1], t.desc.strides[2]);
    }
    op_.port(name, std::move(t)).fill([this] { return normal() * 0.3; });
  }
  void bias(const char* name, int64_t n) {
    if (c_.biases)
      op_.port(name, Tensor(c_.w, {c_.experts, n}, c_.gap, c_.inner_stride)).fill([this] { return normal(); });
  }

  void build() {
    op_.attr("activation", c_.activation);
    op_.attr("alpha", c_.alpha);
    op_.attr("gate_max", c_.gate_max);
    op_.attr("up_clamp", c_.up_clamp);
    op_.attr("up_offset", c_.up_offset);
    op_.flag("scale_input", c_.scale_input);
    op_.port("x", Tensor(c_.x, {c_.tokens, c_.hidden}, c_.gap, c_.inner_stride)).fill([this] { return normal(); });
    const int64_t indices = c_.map ? c_.experts + 3 : c_.experts;
    op_.port("indices", Tensor(DGPU_DTYPE_I32, {c_.tokens, c_.picks})).fill([&] {
      return static_cast<double>(random_() % static_cast<unsigned>(indices + 1)) - 1;
    });
    op_.port("weights", Tensor(DGPU_DTYPE_F32, {c_.tokens, c_.picks})).fill([this] { return normal(); });
    if (c_.form == Form::gate_and_up) weight("gate", c_.inner, c_.hidden);
    if (c_.form == Form::gate_and_up || c_.form == Form::up) weight("up", c_.inner, c_.hidden);
    if (c_.form == Form::contiguous || c_.form == Form::interleaved) {
      op_.attr("layout", c_.form == Form::contiguous ? "contiguous" : "interleaved");
      weight("gate_up", 2 * c_.inner, c_.hidden);
      bias("gate_up_bias", 2 * c_.inner);
    } else {
      if (c_.form == Form::gate_and_up) bias("gate_bias", c_.inner);
      bias("up_bias", c_.inner);
    }
    weight("down", c_.hidden, c_.inner);
    bias("down_bias", c_.hidden);
    if (c_.map) {
      std::vector<int> map;
      for (int64_t e = 0; e < indices; ++e) map.push_back(static_cast<int>((e * 5 + 1) % (c_.experts + 2)) - 2);
      op_.port("expert_map", Tensor(DGPU_DTYPE_I32, {indices})).fill(map);
    }
    op_.port("out", Tensor(c_.out, {c_.tokens, c_.hidden}, c_.gap, c_.inner_stride));
  }

  Case c_;
  Op op_;
  std::mt19937 random_;
  std::vector<double> want_, bound_;
};

void check_everywhere(const Case& c, const std::string& what) {
  Experts a(c);
  for (auto isa : {gemm::Isa::scalar, gemm::Isa::sse4, gemm::Isa::avx2, gemm::Isa::avx512, gemm::Isa::neon}) {
    const auto* kernels = gemm::kernels(isa);
    if (kernels == nullptr) continue;
    for (auto unit : {gemm::Unit::fma, gemm::Unit::bf16_dot}) {
      if (unit == gemm::Unit::bf16_dot && (gemm::bf16_dot_unit() == nullptr || isa != gemm::Isa::avx512)) continue;
      gemm::force_bf16_unit(unit);
      const auto kernel = a.plan(kernels);
      ASSERT_TRUE(kernel);
      const std::string name = what + " " + kernels->name;
      a.forget();
      ASSERT_EQ(a.op().run(*kernel), DGPU_STATUS_SUCCESS) << name << ": " << kit::failure();
      a.check(name);
      if (testing::Test::HasFatalFailure()) return;
      const auto first = a.result();
      for (auto order : {Op::Order::backward, Op::Order::threads}) {
        a.forget();
        ASSERT_EQ(a.op().run(*kernel, order), DGPU_STATUS_SUCCESS) << name;
        ASSERT_EQ(a.result(), first) << name << ": the order of chunks shows";
      }
    }
  }
  gemm::force_bf16_unit(std::nullopt);
}

constexpr Form kForms[] = {Form::up, Form::gate_and_up, Form::contiguous, Form::interleaved};

TEST(CpuMoe, FormsAndBatchSizes) {
  for (Form form : kForms) {
    for (int64_t tokens : {0, 1, 3, 40, 150}) {
      Case c;
      c.form = form;
      c.tokens = tokens;
      c.biases = tokens != 3;
      check_everywhere(c, "form " + std::to_string(static_cast<int>(form)) + " tokens " + std::to_string(tokens));
    }
  }
}

TEST(CpuMoe, Activations) {
  for (const char* name : {"silu", "gelu_erf", "gelu_tanh", "relu", "sigmoid", "none"}) {
    for (Form form : {Form::up, Form::gate_and_up}) {
      Case c;
      c.form = form;
      c.activation = name;
      check_everywhere(c, name);
    }
  }
  Case c;  // gpt-oss
  c.form = Form::interleaved;
  c.alpha = 1.702;
  c.gate_max = c.up_clamp = 1.5;
  c.up_offset = 1;
  c.biases = true;
  check_everywhere(c, "limits and offset");
  c.form = Form::up;
  c.gate_max = c.up_clamp = kInf;
  c.up_offset = 0;
  check_everywhere(c, "alpha without gate");
}

TEST(CpuMoe, StoredTransposed) {
  for (Form form : kForms) {
    for (int64_t tokens : {1, 6, 60}) {
      for (auto w : {DGPU_DTYPE_F32, DGPU_DTYPE_BF16}) {
        Case c;
        c.form = form;
        c.tokens = tokens;
        c.transposed = true;
        c.biases = true;
        c.x = c.w = static_cast<dgpuDtype_t>(w);
        check_everywhere(c, "transposed, tokens " + std::to_string(tokens));
      }
    }
  }
}

TEST(CpuMoe, MapIdentityAndScaledInput) {
  for (bool scale : {false, true}) {
    for (Form form : {Form::gate_and_up, Form::interleaved}) {
      Case c;
      c.form = form;
      c.tokens = 30;
      c.picks = 4;
      c.map = true;
      c.scale_input = scale;
      c.biases = true;
      check_everywhere(c, "map");
    }
  }
}

TEST(CpuMoe, Types) {
  const dgpuDtype_t types[] = {DGPU_DTYPE_F32, DGPU_DTYPE_BF16, DGPU_DTYPE_F16};
  for (int i = 0; i < 27; ++i) {
    for (int64_t tokens : {2, 50}) {
      Case c;
      c.tokens = tokens;
      c.form = kForms[i % 4];
      c.x = types[i / 9];
      c.w = types[i / 3 % 3];
      c.out = types[i % 3];
      c.biases = true;
      check_everywhere(c, "types " + std::to_string(i));
    }
  }
}

TEST(CpuMoe, OddSizesAndStrides) {
  for (auto [hidden, inner] : {std::pair<int, int>{1, 1}, {7, 3}, {50, 101}, {129, 65}}) {
    Case c;
    c.hidden = hidden;
    c.inner = inner;
    c.tokens = 9;
    c.experts = 3;
    c.picks = 3;
    c.biases = true;
    check_everywhere(c, "odd sizes");
    c.gap = 3;
    c.form = Form::contiguous;
    check_everywhere(c, "gaps");
    c.inner_stride = 2;
    c.form = Form::interleaved;
    check_everywhere(c, "inner stride");
  }
}

TEST(CpuMoe, ManyChunks) {
  Case c;
  c.tokens = 600;  // several blocks of rows per expert
  c.experts = 2;
  c.hidden = 20;
  c.inner = 120;
  check_everywhere(c, "row blocks");
  c.tokens = 1;
  c.hidden = 700;
  c.inner = 900;
  c.experts = 3;
  c.form = Form::interleaved;
  c.w = DGPU_DTYPE_BF16;
  check_everywhere(c, "column blocks");
}

TEST(CpuMoe, RoundsOfTokens) {
  Case c;
  c.tokens = 77;
  c.biases = true;
  Experts whole(c);
  ASSERT_EQ(whole.op().run(*whole.plan()), DGPU_STATUS_SUCCESS);
  c.round_bytes = 10000;
  Experts rounds(c);
  const auto kernel = rounds.plan();
  EXPECT_GT(kernel->phases(), 4u);
  EXPECT_LE(kernel->workspace_bytes(), 12000u);
  check_everywhere(c, "rounds");
  c.round_bytes = 1;
  check_everywhere(c, "one token per round");
}

TEST(CpuMoe, NothingRouted) {
  Case c;
  c.tokens = 4;
  Experts a(c);
  a.op()["indices"].fill([] { return -1.0; });
  ASSERT_EQ(a.op().run(*a.plan()), DGPU_STATUS_SUCCESS);
  for (int64_t t = 0; t < 4; ++t)
    for (int64_t i = 0; i < c.hidden; ++i) EXPECT_EQ(a.op()["out"].get({t, i}), 0);
}

TEST(CpuMoe, SymbolShrinksTheBatch) {
  Case c;
  c.tokens = 40;
  Experts a(c);
  for (const char* name : {"x", "indices", "weights", "out"}) a.op()[name].desc.symbols[0] = 1;
  const auto kernel = a.plan();
  a.op().symbols[0] = 40;
  ASSERT_EQ(a.op().run(*kernel), DGPU_STATUS_SUCCESS);
  a.check("all");
  const double before = a.op()["out"].get({1, 0});
  a.forget();
  const double untouched = a.op()["out"].get({2, 0});
  a.op().symbols[0] = 2;
  ASSERT_EQ(a.op().run(*kernel), DGPU_STATUS_SUCCESS);
  EXPECT_NEAR(a.op()["out"].get({1, 0}), before, 1e-5 * std::fabs(before));
  EXPECT_EQ(a.op()["out"].get({2, 0}), untouched);
  a.op().symbols[0] = 0;
  ASSERT_EQ(a.op().run(*kernel), DGPU_STATUS_SUCCESS);
}

TEST(CpuMoe, DataOutOfRange) {
  Case c;
  c.map = true;
  struct Fault {
    const char* port;
    std::vector<int64_t> at;
    double value;
  };
  for (const auto& f : {Fault{"indices", {2, 1}, -2}, Fault{"indices", {4, 0}, 7}, Fault{"expert_map", {3}, 4},
                        Fault{"expert_map", {3}, -3}, Fault{"indices", {0, 0}, 2e9}}) {
    Experts a(c);
    a.op()["indices"].set({1, 1}, 3);
    const auto kernel = a.plan();
    a.op()[f.port].set(f.at, f.value);
    EXPECT_EQ(a.op().run(*kernel), DGPU_STATUS_DATA_OUT_OF_RANGE) << f.port << " " << f.value;
    EXPECT_NE(kit::failure().find(f.port), std::string::npos) << kit::failure();
  }
}

}  // namespace
}  // namespace dgpu::cpu::test
