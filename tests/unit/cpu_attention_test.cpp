// Attention of the cpu backend against plain f64 loops: every rule of visibility, every type, every instruction set.
#include "backends/cpu/attention/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "backends/cpu/gemm/gemm.h"
#include "cpu_op_harness.h"

namespace dgpu::cpu::test {
namespace {

using Ints = std::vector<int64_t>;
constexpr double kInf = std::numeric_limits<double>::infinity();

struct Source {
  int64_t page = 1 << 20, spare_pages = 2;  // page is cut to the longest sequence: contiguous
  std::vector<int> lengths;                 // per sequence
  int64_t window = 0, chunk = 0, every = 0;
  int64_t ring = 0;  // pages per sequence of a ring; 0: none
  int picks = 0;
  bool positions = false;
  dgpuDtype_t k = DGPU_DTYPE_F32, v = DGPU_DTYPE_F32;
};

struct Case {
  std::vector<int> queries;  // per sequence
  int64_t heads = 2, kv_heads = 1, d = 16, dv = 16;
  std::vector<Source> sources = {Source()};
  std::vector<int> first_position;  // per sequence; default: lengths - queries of source 0
  bool causal = true, sinks = false, lse = true;
  int bias = 0;  // 0 none, 1 for all heads, 2 per head
  double scale = 0, softcap = 0;
  dgpuDtype_t q = DGPU_DTYPE_F32, out = DGPU_DTYPE_F32;
  int64_t gap = 0, inner = 1;  // strides of all float tensors
  int padding = 0;             // tokens of no sequence, at the end
  unsigned seed = 1;
};

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && a < 0); }

std::string port(const char* stem, size_t i) { return stem + std::to_string(i); }

class Attention {
 public:
  explicit Attention(const Case& c) : c_(c), op_("attention"), random_(c.seed) { build(); }
  Op& op() { return op_; }

  std::unique_ptr<Kernel> plan(const attention::Kernels* kernels = nullptr) {
    std::string reason;
    auto kernel = op_.plan(
        [&](const kit::OpView& view, std::string* why) { return attention::make(view, why, kernels); }, &reason);
    EXPECT_TRUE(kernel) << reason;
    return kernel;
  }

  // Compares the output with the f64 result.
  void check(const std::string& what) {
    const int64_t tokens = op_["q"].desc.shape[0];
    double worst = 0;
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t h = 0; h < c_.heads; ++h) {
        const auto& [value, size, lse, lse_error, relative] = row(t, h);
        for (int64_t e = 0; e < c_.dv; ++e) {
          const double want = value[static_cast<size_t>(e)], got = op_["out"].get({t, h, e});
          const double bound = relative * size[static_cast<size_t>(e)] +
                               unit_roundoff(c_.out) * std::fabs(want) * 1.01 + 1e-37 +
                               (c_.out == DGPU_DTYPE_F16 ? 0x1p-25 : 0);
          ASSERT_LE(std::fabs(got - want), bound)
              << what << " token " << t << " head " << h << " element " << e << " want " << want << " got " << got;
          worst = std::max(worst, std::fabs(got - want) / bound);
        }
        if (!c_.lse) continue;
        const double got = op_["lse"].get({t, h});
        if (lse == -kInf) {
          ASSERT_EQ(got, -kInf) << what;
        } else {
          ASSERT_LE(std::fabs(got - lse), lse_error) << what << " lse, token " << t << " head " << h << " want " << lse;
        }
      }
    }
  }

  std::vector<unsigned char> result() {
    std::vector<unsigned char> r = op_["out"].bytes;
    if (c_.lse) r.insert(r.end(), op_["lse"].bytes.begin(), op_["lse"].bytes.end());
    return r;
  }
  void forget() {
    for (const char* name : {"out", "lse"})
      if (op_.has(name)) std::fill(op_[name].bytes.begin(), op_[name].bytes.end(), 0xcd);
  }

 private:
  double normal() { return std::normal_distribution<double>()(random_); }
  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(std::max(n, 1))); }

  void build() {
    const auto sequences = static_cast<int64_t>(c_.queries.size());
    std::vector<int> offsets = {0};
    for (int n : c_.queries) offsets.push_back(offsets.back() + n);
    const int64_t tokens = offsets.back() + c_.padding;
    if (c_.scale == 0) c_.scale = 1 / std::sqrt(static_cast<double>(c_.d));
    op_.attr("scale", c_.scale);
    op_.flag("causal", c_.causal);
    op_.attr("softcap", c_.softcap);
    op_.attr("sources", static_cast<int64_t>(c_.sources.size()));
    Ints window, chunk, every, ring;
    for (auto& s : c_.sources) {
      window.push_back(s.window);
      chunk.push_back(s.chunk);
      every.push_back(s.every);
      ring.push_back(s.ring > 0);
    }
    op_.attr("window", window);
    op_.attr("chunk", chunk);
    op_.attr("every", every);
    op_.attr("ring", ring);
    op_.port("q", Tensor(c_.q, {tokens, c_.heads, c_.d}, c_.gap, c_.inner)).fill([this] { return normal(); });
    for (size_t i = 0; i < c_.sources.size(); ++i) add_source(i, sequences, tokens);
    op_.port("offsets", Tensor(DGPU_DTYPE_I32, {sequences + 1})).fill(offsets);
    std::vector<int> positions;
    for (size_t b = 0; b < c_.queries.size(); ++b) {
      const int first = c_.first_position.empty() ? c_.sources[0].lengths[b] - c_.queries[b] : c_.first_position[b];
      for (int i = 0; i < c_.queries[b]; ++i) positions.push_back(first + i);
    }
    positions.resize(static_cast<size_t>(tokens), 0);
    op_.port("positions", Tensor(DGPU_DTYPE_I32, {tokens})).fill(positions);
    if (c_.sinks) op_.port("sinks", Tensor(DGPU_DTYPE_F32, {c_.heads})).fill([this] { return normal(); });
    if (c_.bias) {
      int longest = 1;
      for (int n : c_.sources[0].lengths) longest = std::max(longest, n);
      op_.port("bias", Tensor(DGPU_DTYPE_F32, {c_.bias == 1 ? 1 : c_.heads, tokens, longest})).fill([this] {
        return normal();
      });
    }
    op_.port("out", Tensor(c_.out, {tokens, c_.heads, c_.dv}, c_.gap, c_.inner));
    if (c_.lse) op_.port("lse", Tensor(DGPU_DTYPE_F32, {tokens, c_.heads}));
  }

  void add_source(size_t i, int64_t sequences, int64_t tokens) {
    Source& s = c_.sources[i];
    int longest = 1;
    for (int n : s.lengths) longest = std::max(longest, n);
    s.page = std::min<int64_t>(s.page, longest);
    const int64_t per_sequence = s.ring > 0 ? s.ring : (longest + s.page - 1) / s.page;
    const int64_t pages = per_sequence * sequences + s.spare_pages;
    op_.port(port("k", i), Tensor(s.k, {pages, s.page, c_.kv_heads, c_.d}, c_.gap, c_.inner)).fill([this] {
      return normal();
    });
    op_.port(port("v", i), Tensor(s.v, {pages, s.page, c_.kv_heads, c_.dv}, c_.gap, c_.inner)).fill([this] {
      return normal();
    });
    std::vector<int> shuffled(static_cast<size_t>(pages));
    for (size_t n = 0; n < shuffled.size(); ++n) shuffled[n] = static_cast<int>(n);
    std::shuffle(shuffled.begin(), shuffled.end(), random_);
    std::vector<int> table;
    for (size_t b = 0; b < static_cast<size_t>(sequences); ++b) {
      const int64_t used = std::min((s.lengths[b] + s.page - 1) / s.page, per_sequence);
      for (int64_t n = 0; n < per_sequence; ++n) {
        table.push_back(n < used ? shuffled[b * static_cast<size_t>(per_sequence) + static_cast<size_t>(n)] : -7);
      }
    }
    op_.port(port("table", i), Tensor(DGPU_DTYPE_I32, {sequences, per_sequence})).fill(table);
    op_.port(port("lengths", i), Tensor(DGPU_DTYPE_I32, {sequences})).fill(s.lengths);
    if (s.positions) {
      op_.port(port("k_positions", i), Tensor(DGPU_DTYPE_I32, {pages, s.page})).fill([&] {
        return static_cast<double>(below(longest + 3) - 2);
      });
    }
    if (s.picks > 0) {
      auto& pick = op_.port(port("pick", i), Tensor(DGPU_DTYPE_I32, {tokens, s.picks}));
      pick.fill([] { return -1.0; });
      int64_t t = 0;
      for (size_t b = 0; b < static_cast<size_t>(sequences); ++b) {
        for (int n = 0; n < c_.queries[b]; ++n, ++t) {
          for (int64_t p = 0; p < s.picks; ++p) {
            pick.set({t, p}, s.lengths[b] == 0 || below(5) == 0 ? -1 : below(s.lengths[b]));
          }
        }
      }
    }
  }

  bool visible(const Source& s, size_t i, int64_t t, int64_t j, int64_t position) {
    const auto at = static_cast<int64_t>(op_["positions"].get({t}));
    if (s.every > 0 ? j >= floor_div(at + 1, s.every) : c_.causal && position > at) return false;
    if (s.window > 0 && position <= at - s.window) return false;
    if (s.chunk > 0 && floor_div(position, s.chunk) != floor_div(at, s.chunk)) return false;
    if (s.picks == 0) return true;
    for (int64_t p = 0; p < s.picks; ++p)
      if (static_cast<int64_t>(op_[port("pick", i)].get({t, p})) == j) return true;
    return false;
  }

  // Value and sum of |weight value| per element; the relative error bound multiplies the latter. An f32 product of d
  // terms is off by at most (d + 2) u sum|q k|, which the exponential turns into a relative error of the weight; the
  // sums over n keys add (n + 16) u, in any order of summation.
  void expected(int64_t t, int64_t h, std::vector<double>& value, std::vector<double>& size, double* lse,
                double* lse_error, double* relative) {
    constexpr double u = 0x1p-24;
    std::fill(value.begin(), value.end(), 0.0);
    std::fill(size.begin(), size.end(), 0.0);
    *lse = -kInf;
    *relative = 0;
    size_t b = 0;
    while (b < c_.queries.size() && t >= static_cast<int64_t>(op_["offsets"].get({static_cast<int64_t>(b) + 1}))) ++b;
    if (b == c_.queries.size()) return;
    const int64_t kv = h * c_.kv_heads / c_.heads;
    struct Key {
      size_t source;
      int64_t page, place;
      double score;
    };
    std::vector<Key> keys;
    double top = c_.sinks ? op_["sinks"].get({h}) : -kInf, error = 0;
    for (size_t i = 0; i < c_.sources.size(); ++i) {
      const Source& s = c_.sources[i];
      Tensor& k = op_[port("k", i)];
      for (int64_t j = 0; j < s.lengths[b]; ++j) {
        const int64_t at = s.ring > 0 ? j % (s.ring * s.page) : j;
        const auto page = static_cast<int64_t>(op_[port("table", i)].get({static_cast<int64_t>(b), at / s.page}));
        const int64_t place = at % s.page;
        const auto position = s.positions ? static_cast<int64_t>(op_[port("k_positions", i)].get({page, place})) : j;
        if (!visible(s, i, t, j, position)) continue;
        double dot = 0, sum = 0;
        for (int64_t e = 0; e < c_.d; ++e) {
          const double product = op_["q"].get({t, h, e}) * k.get({page, place, kv, e});
          dot += product;
          sum += std::fabs(product);
        }
        double score = dot * c_.scale;
        if (c_.softcap > 0) score = c_.softcap * std::tanh(score / c_.softcap);
        if (i == 0 && c_.bias) score += op_["bias"].get({c_.bias == 1 ? 0 : h, t, j});
        error = std::max(error, (static_cast<double>(c_.d) + 2) * u * sum * std::fabs(c_.scale) +
                                    10 * u * (std::fabs(dot * c_.scale) + std::fabs(score)));
        top = std::max(top, score);
        keys.push_back({i, page, place, score});
      }
    }
    if (keys.empty() && !c_.sinks) return;
    double sum = c_.sinks ? std::exp(op_["sinks"].get({h}) - top) : 0;
    for (auto& k : keys) sum += std::exp(k.score - top);
    for (auto& k : keys) {
      const double p = std::exp(k.score - top) / sum;
      Tensor& v = op_[port("v", k.source)];
      for (int64_t e = 0; e < c_.dv; ++e) {
        const double x = p * v.get({k.page, k.place, kv, e});
        value[static_cast<size_t>(e)] += x;
        size[static_cast<size_t>(e)] += std::fabs(x);
      }
    }
    const double sums = (static_cast<double>(keys.size()) + 16) * u;
    *lse = top + std::log(sum);
    *lse_error = error + sums + 4 * u * (std::fabs(*lse) + std::fabs(top));
    *relative = 2 * error + 2 * sums;
  }

  struct Row {
    std::vector<double> value, size;
    double lse = 0, lse_error = 0, relative = 0;
  };
  // The f64 result of a row, computed once: the inputs stay.
  const Row& row(int64_t t, int64_t h) {
    const auto at = static_cast<size_t>(t * c_.heads + h);
    if (rows_.size() <= at) rows_.resize(at + 1);
    Row& r = rows_[at];
    if (r.value.empty()) {
      r.value.resize(static_cast<size_t>(c_.dv));
      r.size.resize(r.value.size());
      expected(t, h, r.value, r.size, &r.lse, &r.lse_error, &r.relative);
    }
    return r;
  }

  Case c_;
  Op op_;
  std::mt19937 random_;
  std::vector<Row> rows_;
};

std::vector<const attention::Kernels*> all_kernels() {
  std::vector<const attention::Kernels*> list;
  for (auto isa : {gemm::Isa::scalar, gemm::Isa::sse4, gemm::Isa::avx2, gemm::Isa::avx512, gemm::Isa::neon}) {
    if (const auto* k = attention::kernels_for(isa)) list.push_back(k);
  }
  return list;
}

// Runs the case on every instruction set (and both bf16 units), in several orders, and compares.
void check_everywhere(const Case& c, const std::string& what) {
  Attention a(c);
  for (const auto* kernels : all_kernels()) {
    for (auto unit : {gemm::Unit::fma, gemm::Unit::bf16_dot}) {
      if (unit == gemm::Unit::bf16_dot &&
          (gemm::bf16_dot_unit() == nullptr || kernels->gemm->isa != gemm::Isa::avx512 || c.q != DGPU_DTYPE_BF16))
        continue;
      gemm::force_bf16_unit(unit);
      const auto kernel = a.plan(kernels);
      ASSERT_TRUE(kernel);
      const std::string name = what + " " + kernels->gemm->name;
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

Case basic(std::vector<int> queries, std::vector<int> lengths) {
  Case c;
  c.queries = std::move(queries);
  c.sources[0].lengths = std::move(lengths);
  return c;
}

TEST(CpuAttention, PromptsAndSingleTokensMixed) {
  Case c = basic({37, 1, 0, 1, 20}, {37, 150, 5, 1, 61});
  c.heads = 4;
  c.kv_heads = 2;
  c.sources[0].page = 16;
  check_everywhere(c, "ragged");
}

TEST(CpuAttention, HeadGroups) {
  for (auto [heads, kv] : {std::pair<int, int>{1, 1}, {6, 6}, {6, 2}, {8, 1}, {40, 2}}) {
    Case c = basic({1, 9, 33}, {70, 30, 50});
    c.heads = heads;
    c.kv_heads = kv;
    c.sources[0].page = 7;
    check_everywhere(c, "heads " + std::to_string(heads) + "/" + std::to_string(kv));
  }
}

TEST(CpuAttention, OddSizes) {
  for (auto [d, dv] : {std::pair<int, int>{1, 1}, {3, 5}, {17, 9}, {64, 33}, {80, 128}, {192, 128}, {15, 70}}) {
    Case c = basic({1, 45}, {45, 77});
    c.d = d;
    c.dv = dv;
    c.heads = 3;
    check_everywhere(c, "d " + std::to_string(d) + " dv " + std::to_string(dv));
  }
}

TEST(CpuAttention, Strides) {
  Case c = basic({5, 40}, {45, 60});
  c.gap = 5;
  c.sources[0].page = 8;
  check_everywhere(c, "gaps");
  c.inner = 2;
  check_everywhere(c, "inner stride");
  c.q = c.out = c.sources[0].k = c.sources[0].v = DGPU_DTYPE_BF16;
  check_everywhere(c, "inner stride, bf16");
}

TEST(CpuAttention, Types) {
  const dgpuDtype_t types[] = {DGPU_DTYPE_F32, DGPU_DTYPE_BF16, DGPU_DTYPE_F16};
  for (int i = 0; i < 81; ++i) {
    if (i % 5 != 0 && i / 27 != i / 9 % 3) continue;  // a cover of the 81 mixes, and all with q as k
    Case c = basic({2, 40}, {50, 70});
    c.q = types[i / 27];
    c.sources[0].k = types[i / 9 % 3];
    c.sources[0].v = types[i / 3 % 3];
    c.out = types[i % 3];
    c.d = 20;
    c.dv = 24;
    check_everywhere(c, "types " + std::to_string(i));
  }
}

TEST(CpuAttention, Windows) {
  for (int window : {1, 5, 32, 1000}) {
    Case c = basic({1, 50, 3}, {200, 190, 90});
    c.sources[0].window = window;
    c.sources[0].page = 16;
    check_everywhere(c, "window " + std::to_string(window));
    c.causal = false;
    c.first_position = {100, 20, 0};
    check_everywhere(c, "window, not causal " + std::to_string(window));
  }
}

TEST(CpuAttention, Rings) {
  for (int queries : {1, 4, 50}) {  // single tokens, few, many
    Case c = basic({queries, queries, 3}, {4000, 190, 9});
    c.heads = 4;
    c.kv_heads = 2;
    auto& s = c.sources[0];
    s.window = 30;
    for (auto [page, pages] : {std::pair<int, int>{79, 1}, {8, 10}, {1, 100}}) {
      s.page = page;
      s.ring = pages;
      check_everywhere(c, "ring of " + std::to_string(page) + "x" + std::to_string(pages));
    }
    s.window = 0;
    s.chunk = 20;
    c.bias = 2;
    check_everywhere(c, "ring and chunks");
    c.sources.push_back({});
    c.sources[1].lengths = {1000, 90, 2};
    c.sources[1].every = 4;
    c.bias = 0;
    check_everywhere(c, "ring and a pool");
  }
}

// The order of sums follows the index of the key, not its place: a ring gives the bits of a cache that holds all keys.
TEST(CpuAttention, RingsGiveTheBitsOfAWholeCache) {
  for (int queries : {1, 24}) {
    Case c = basic({queries}, {9000});
    c.heads = 4;
    c.d = c.dv = 32;
    c.sources[0].window = 3000;
    Attention whole(c);
    ASSERT_EQ(whole.op().run(*whole.plan()), DGPU_STATUS_SUCCESS);
    c.sources[0].page = 1009;
    c.sources[0].ring = 3;
    Attention ring(c);
    ring.op()["q"] = whole.op()["q"];
    const auto from = static_cast<int64_t>(whole.op()["table0"].get({0, 0}));
    for (const char* name : {"k0", "v0"})
      for (int64_t j = 9000 - 3 * 1009; j < 9000; ++j) {
        const int64_t place = j % (3 * 1009);
        const auto page = static_cast<int64_t>(ring.op()["table0"].get({0, place / 1009}));
        for (int64_t e = 0; e < c.d; ++e)
          ring.op()[name].set({page, place % 1009, 0, e}, whole.op()[name].get({from, j, 0, e}));
      }
    ASSERT_EQ(ring.op().run(*ring.plan()), DGPU_STATUS_SUCCESS) << kit::failure();
    EXPECT_EQ(ring.result(), whole.result()) << queries << " queries";
  }
}

TEST(CpuAttention, KeysThatARingHasLostAreOutOfRange) {
  for (int queries : {3, 40}) {
    for (int picks : {0, 5}) {
      Case c = basic({queries}, {200});
      c.sources[0].window = 80 - queries + 1;
      c.sources[0].page = 8;
      c.sources[0].ring = 10;
      c.sources[0].picks = picks;
      Attention a(c);
      if (picks) a.op()["pick0"].set({0, 0}, 200 - 80);
      const auto kernel = a.plan();
      EXPECT_EQ(a.op().run(*kernel), DGPU_STATUS_SUCCESS) << kit::failure();
      // One position further back the first query sees a key that has been written over.
      a.op()["positions"].set({0}, 200 - queries - 1);
      if (picks) a.op()["pick0"].set({0, 0}, 200 - 81);
      EXPECT_EQ(a.op().run(*kernel), DGPU_STATUS_DATA_OUT_OF_RANGE) << queries << " " << picks;
      EXPECT_NE(kit::failure().find("key 119 of 200"), std::string::npos) << kit::failure();
    }
  }
}

TEST(CpuAttention, PagesOutsideTheWindowAreNotLookedAt) {
  Case c = basic({1, 40}, {200, 190});
  c.sources[0].window = 20;
  c.sources[0].page = 8;
  Attention a(c);
  const auto kernel = a.plan();
  ASSERT_EQ(a.op().run(*kernel), DGPU_STATUS_SUCCESS);
  const auto before = a.result();
  for (int64_t n = 0; n < 16; ++n) {
    a.op()["table0"].set({0, n}, -1);
    a.op()["table0"].set({1, n}, 1 << 30);
  }
  a.forget();
  ASSERT_EQ(a.op().run(*kernel), DGPU_STATUS_SUCCESS) << kit::failure();
  EXPECT_EQ(a.result(), before);
}

TEST(CpuAttention, Chunks) {
  for (int chunk : {1, 8, 50}) {
    Case c = basic({1, 60}, {77, 130});
    c.sources[0].chunk = chunk;
    check_everywhere(c, "chunk " + std::to_string(chunk));
  }
}

TEST(CpuAttention, NotCausal) {
  Case c = basic({30, 1, 7}, {50, 33, 0});
  c.causal = false;
  c.first_position = {-3, 0, 5};
  check_everywhere(c, "not causal");
}

TEST(CpuAttention, SinksSoftcapBiasScale) {
  for (int queries : {2, 40}) {
    for (int flags = 1; flags < 8; ++flags) {
      Case c = basic({queries, queries}, {60, 130});
      c.heads = 4;
      c.kv_heads = 2;
      c.sinks = flags & 1;
      c.softcap = flags & 2 ? 1.5 : 0;
      c.bias = flags & 4 ? 1 + queries % 4 / 2 : 0;
      c.scale = -0.7;
      check_everywhere(c, "flags " + std::to_string(flags));
    }
  }
}

TEST(CpuAttention, SeveralSources) {
  for (int queries : {1, 30}) {
    Case c = basic({queries, queries}, {140, 190});
    c.heads = 4;
    c.kv_heads = 2;
    c.sources.push_back({});
    c.sources.push_back({});
    c.sources[0].window = 16;
    c.sources[0].page = 16;
    c.sources[1].lengths = {30, 45};
    c.sources[1].every = 4;
    c.sources[1].k = c.sources[1].v = DGPU_DTYPE_BF16;
    c.sources[2].lengths = {0, 80};
    c.sources[2].page = 5;
    c.sources[2].positions = true;
    c.sources[2].window = 60;
    c.sources[2].chunk = 32;
    c.sinks = true;
    check_everywhere(c, "three sources");
    c.q = c.sources[0].k = DGPU_DTYPE_BF16;
    check_everywhere(c, "three sources, bf16 queries");
  }
}

TEST(CpuAttention, Picks) {
  for (int heads : {2, 40}) {
    for (bool positions : {false, true}) {
      Case c = basic({1, 20}, {300, 90});
      c.heads = heads;
      c.sources[0].picks = 37;
      c.sources[0].page = 16;
      c.sources[0].positions = positions;
      c.sources[0].window = 100;
      c.bias = 2;
      check_everywhere(c, "picks, heads " + std::to_string(heads));
      c.sources.push_back({});
      c.sources[1].lengths = {20, 30};
      check_everywhere(c, "picks and a second source");
    }
  }
}

TEST(CpuAttention, NothingVisible) {
  Case c = basic({3, 40, 1}, {0, 0, 9});
  c.first_position = {0, 5, -1};
  check_everywhere(c, "nothing visible");
  c.sinks = true;
  check_everywhere(c, "only sinks");
  c.lse = false;
  check_everywhere(c, "no lse");
}

TEST(CpuAttention, PartlyHiddenPrompt) {
  Case c = basic({50}, {20});
  c.first_position = {-10};  // the first ten queries see nothing
  check_everywhere(c, "negative positions");
}

TEST(CpuAttention, TokensOfNoSequence) {
  Case c = basic({3, 20}, {10, 20});
  c.padding = 4;
  check_everywhere(c, "padding");
  check_everywhere(basic({}, {}), "no sequence");
}

// Long enough for several splits, cut into chunks or not.
TEST(CpuAttention, Splits) {
  Case c = basic({1}, {5000});
  c.heads = 4;
  c.kv_heads = 2;
  c.d = c.dv = 64;
  c.sources[0].page = 64;
  c.sinks = true;
  check_everywhere(c, "decode splits");
  c.queries = {24};
  c.sources[0].lengths = {9000};
  c.d = c.dv = 16;
  c.heads = 2;
  check_everywhere(c, "wide splits");
}

// A sequence gives the same bits alone and among others, cut into splits or not.
TEST(CpuAttention, BatchInvariant) {
  for (int queries : {1, 24}) {
    Case one = basic({queries}, {9000});
    one.d = one.dv = 32;
    one.sources[0].k = one.sources[0].v = DGPU_DTYPE_BF16;
    Attention alone(one);
    ASSERT_EQ(alone.op().run(*alone.plan()), DGPU_STATUS_SUCCESS);
    Case many = one;
    many.queries.resize(40, 1);
    many.sources[0].lengths.resize(40, 3);
    many.sources[0].page = 9000;
    Attention batch(many);
    for (int64_t t = 0; t < queries; ++t)
      for (int64_t h = 0; h < one.heads; ++h)
        for (int64_t e = 0; e < one.d; ++e) batch.op()["q"].set({t, h, e}, alone.op()["q"].get({t, h, e}));
    const auto from = static_cast<int64_t>(alone.op()["table0"].get({0, 0}));
    const auto to = static_cast<int64_t>(batch.op()["table0"].get({0, 0}));
    for (const char* name : {"k0", "v0"})
      for (int64_t j = 0; j < 9000; ++j)
        for (int64_t e = 0; e < one.d; ++e) batch.op()[name].set({to, j, 0, e}, alone.op()[name].get({from, j, 0, e}));
    ASSERT_EQ(batch.op().run(*batch.plan()), DGPU_STATUS_SUCCESS);
    for (int64_t t = 0; t < queries; ++t)
      for (int64_t h = 0; h < one.heads; ++h)
        for (int64_t e = 0; e < one.d; ++e)
          ASSERT_EQ(batch.op()["out"].get({t, h, e}), alone.op()["out"].get({t, h, e})) << queries << " " << t;
  }
}

// A prompt in pieces gives what it gives at once: both agree with f64, and with each other within roundoff.
TEST(CpuAttention, ChunkedPrefill) {
  Case whole = basic({200}, {200});
  whole.d = whole.dv = 64;
  whole.heads = 4;
  whole.kv_heads = 2;
  Attention all(whole);
  ASSERT_EQ(all.op().run(*all.plan()), DGPU_STATUS_SUCCESS);
  for (int begin = 0, n = 0; begin < 200; begin += n) {
    n = std::min(begin % 3 == 0 ? 61 : 5, 200 - begin);
    Case piece = whole;
    piece.queries = {n};
    piece.sources[0].lengths = {begin + n};
    piece.sources[0].page = 200;
    Attention part(piece);
    part.op()["k0"] = all.op()["k0"];
    part.op()["v0"] = all.op()["v0"];
    part.op()["table0"] = all.op()["table0"];
    for (int64_t t = 0; t < n; ++t)
      for (int64_t h = 0; h < 4; ++h)
        for (int64_t e = 0; e < 64; ++e) part.op()["q"].set({t, h, e}, all.op()["q"].get({begin + t, h, e}));
    ASSERT_EQ(part.op().run(*part.plan()), DGPU_STATUS_SUCCESS);
    for (int64_t t = 0; t < n; ++t)
      for (int64_t h = 0; h < 4; ++h)
        for (int64_t e = 0; e < 64; ++e)
          ASSERT_NEAR(part.op()["out"].get({t, h, e}), all.op()["out"].get({begin + t, h, e}), 2e-6);
  }
}

TEST(CpuAttention, LargeScoresDoNotOverflow) {
  for (int queries : {1, 40}) {
    Case c = basic({queries}, {100});
    c.scale = 60;
    check_everywhere(c, "large scores");
  }
}

TEST(CpuAttention, DataOutOfRange) {
  struct Fault {
    const char* port;
    std::vector<int64_t> at;
    double value;
    const char* text;
  };
  for (int queries : {3, 40}) {
    Case c = basic({queries, queries}, {60, 90});
    c.sources[0].page = 16;
    c.sources.push_back(c.sources[0]);
    c.sources[1].picks = 6;
    c.bias = 1;
    const Fault faults[] = {
        {"offsets", {0}, -1, "offsets"},    {"offsets", {1}, 1000, "offsets"}, {"offsets", {1}, -5, "offsets"},
        {"offsets", {2}, 1, "offsets"},     {"lengths0", {0}, -1, "lengths0"}, {"lengths0", {1}, 97, "lengths0"},
        {"lengths1", {1}, 1e6, "lengths1"}, {"table0", {0, 1}, -1, "table"},   {"table0", {1, 2}, 14, "table"},
        {"pick1", {1, 2}, 90, "pick"},      {"pick1", {0, 0}, -2, "pick"},     {"table1", {1, 0}, 1e9, "table"}};
    for (const auto& f : faults) {
      Attention a(c);
      a.op()["pick1"].set({queries, 0}, 0);  // so that page 0 of sequence 1 is used
      const auto kernel = a.plan();
      a.op()[f.port].set(f.at, f.value);
      EXPECT_EQ(a.op().run(*kernel), DGPU_STATUS_DATA_OUT_OF_RANGE) << f.port << " " << f.value;
      EXPECT_NE(kit::failure().find(f.text), std::string::npos) << kit::failure();
    }
  }
}

TEST(CpuAttention, BiasNeedsAColumnPerVisibleKey) {
  for (int queries : {2, 40}) {
    Case c = basic({queries}, {60});
    c.bias = 1;
    Attention a(c);
    a.op()["bias"].desc.shape[2] = 59;
    const auto kernel = a.plan();
    EXPECT_EQ(a.op().run(*kernel), DGPU_STATUS_DATA_OUT_OF_RANGE);
    for (int64_t t = 0; t < queries; ++t) a.op()["positions"].set({t}, static_cast<double>(t) + 59 - queries);
    EXPECT_EQ(a.op().run(*kernel), DGPU_STATUS_SUCCESS) << kit::failure();
  }
}

TEST(CpuAttention, SymbolsShrinkTheBatch) {
  Case c = basic({4, 30}, {20, 30});
  Attention a(c);
  auto& op = a.op();
  op["q"].desc.symbols[0] = op["positions"].desc.symbols[0] = op["out"].desc.symbols[0] = 1;
  op["lse"].desc.symbols[0] = 1;
  op["offsets"].desc.symbols[0] = 2;
  op["table0"].desc.symbols[0] = op["lengths0"].desc.symbols[0] = 3;
  const auto kernel = a.plan();
  op.symbols[0] = 4;
  op.symbols[1] = 2;
  op.symbols[2] = 1;
  ASSERT_EQ(op.run(*kernel), DGPU_STATUS_SUCCESS) << kit::failure();
  EXPECT_NE(op["out"].get({3, 1, 0}), op["out"].get({4, 0, 0}));
  Tensor untouched(DGPU_DTYPE_F32, {34, 2, 16});
  EXPECT_EQ(std::memcmp(static_cast<char*>(op["out"].data()) + 4 * 2 * 16 * 4, untouched.data(), 30 * 2 * 16 * 4), 0);
  op.symbols[0] = 34;
  op.symbols[1] = 3;
  op.symbols[2] = 2;
  ASSERT_EQ(op.run(*kernel), DGPU_STATUS_SUCCESS);
  a.check("full batch");
}

// Random corners of the whole space.
TEST(CpuAttention, Grid) {
  std::mt19937 random(7);
  const auto pick = [&](std::initializer_list<int> list) { return *(list.begin() + random() % list.size()); };
  const dgpuDtype_t types[] = {DGPU_DTYPE_F32, DGPU_DTYPE_BF16, DGPU_DTYPE_F16};
  for (int n = 0; n < 50; ++n) {
    Case c;
    c.seed = static_cast<unsigned>(n);
    const int sequences = pick({1, 2, 3});
    for (int b = 0; b < sequences; ++b) {
      c.queries.push_back(pick({0, 1, 1, 2, 13, 34, 70}));
      c.sources[0].lengths.push_back(pick({0, 1, 14, 63, 64, 65, 129, 300}));
    }
    c.kv_heads = pick({1, 2, 3});
    c.heads = c.kv_heads * pick({1, 2, 5, 8});
    c.d = pick({4, 16, 32, 40, 64});
    c.dv = pick({4, 16, 32, 40, 64});
    c.q = types[random() % 3];
    c.out = types[random() % 3];
    auto& s = c.sources[0];
    s.k = types[random() % 3];
    s.v = types[random() % 3];
    s.page = pick({1, 3, 16, 1000});
    s.window = pick({0, 0, 7, 100});
    s.chunk = pick({0, 0, 40});
    if (s.window == 7 && s.page < 1000) {
      s.page = 16;
      s.ring = pick({5, 6});  // at least 70 queries and 7 keys before them
    }
    s.positions = s.ring == 0 && pick({0, 0, 1});
    s.picks = pick({0, 0, 0, 12});
    c.causal = pick({0, 1, 1});
    c.sinks = pick({0, 1});
    c.bias = pick({0, 0, 1, 2});
    c.softcap = pick({0, 0, 3});
    c.gap = pick({0, 3});
    check_everywhere(c, "grid " + std::to_string(n));
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace dgpu::cpu::test
