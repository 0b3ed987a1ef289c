// The matmul kernel as the core sees it: ports, attributes, symbols. The arithmetic is cpu_gemm_test's business.
#include <gtest/gtest.h>

#include "backends/cpu/kernels.h"
#include "cpu_op_harness.h"

namespace dgpu::cpu::test {
namespace {

std::mt19937 rng(5);
double uniform() { return std::uniform_real_distribution<double>(-1, 1)(rng); }

// Index of a tensor of `rank` dimensions under an index of the output: leading dimensions broadcast from the right.
std::vector<int64_t> pick(const Tensor& t, const std::vector<int64_t>& at, int64_t row, int64_t col) {
  std::vector<int64_t> index(t.desc.rank);
  const size_t skip = at.size() - t.desc.rank;
  for (size_t i = 0; i + 2 < t.desc.rank; ++i) index[i] = t.desc.shape[i] == 1 ? 0 : at[skip + i];
  index[t.desc.rank - 2] = row;
  index[t.desc.rank - 1] = col;
  return index;
}

// Checks the rows and columns of `out` below m and n of every matrix.
void check(Op& op, bool ta, bool tb, int64_t m, int64_t n, int64_t k) {
  Tensor &a = op["a"], &b = op["b"], &out = op["out"];
  const size_t rank = out.desc.rank;
  std::vector<int64_t> at(rank, 0);
  for (;;) {
    const int64_t i = at[rank - 2], j = at[rank - 1];
    double sum = 0, magnitude = 0;
    for (int64_t p = 0; p < k; ++p) {
      const double product = a.get(pick(a, at, ta ? p : i, ta ? i : p)) * b.get(pick(b, at, tb ? j : p, tb ? p : j));
      sum += product;
      magnitude += std::fabs(product);
    }
    if (op.has("bias")) sum += op["bias"].get({j});
    double want = sum / (1 + std::exp(-sum));
    if (op.has("gate")) want *= op["gate"].get(at);
    if (op.has("residual")) want += op["residual"].get(at);
    const double u = unit_roundoff(out.desc.dtype);
    // Sum of k products in f32, then a few roundings, then the output's.
    const double error = (static_cast<double>(k) + 20) * 0x1p-24 * (magnitude + 2) + u * std::fabs(want);
    ASSERT_NEAR(out.get(at), want, error) << i << "," << j;
    size_t d = rank;
    const auto extent = [&](size_t x) { return x == rank - 2 ? m : x == rank - 1 ? n : out.desc.shape[x]; };
    while (d > 0 && ++at[d - 1] == extent(d - 1)) at[--d] = 0;
    if (d == 0) return;
  }
}

struct Shapes {
  std::vector<int64_t> a, b, out;
  bool ta, tb;
};

Op describe(const Shapes& s, dgpuDtype_t at, dgpuDtype_t bt, dgpuDtype_t ot) {
  Op op("matmul");
  op.attr("activation", "silu");
  op.flag("transpose_a", s.ta);
  op.flag("transpose_b", s.tb);
  op.port("a", Tensor(at, s.a, 2));
  op.port("b", Tensor(bt, s.b));
  op.port("bias", Tensor(DGPU_DTYPE_F32, {s.out.back()}));
  op.port("gate", Tensor(ot, s.out, 1));
  op.port("residual", Tensor(ot, s.out, 0, 2));
  op.port("out", Tensor(ot, s.out, 3));
  for (const char* p : {"a", "b", "bias", "gate", "residual"}) op[p].fill(uniform);
  return op;
}

std::unique_ptr<Kernel> plan(Op& op) {
  std::string reason;
  auto kernel = op.plan(matmul_kernel.make, &reason);
  EXPECT_TRUE(kernel) << reason;
  return kernel;
}

TEST(Matmul, BroadcastsTransposesAndMixesTypes) {
  const Shapes all[] = {
      {{5, 9}, {9, 7}, {5, 7}, false, false},
      {{9, 5}, {7, 9}, {5, 7}, true, true},
      {{2, 3, 5, 9}, {9, 7}, {2, 3, 5, 7}, false, false},
      {{5, 9}, {2, 3, 7, 9}, {2, 3, 5, 7}, false, true},
      {{2, 1, 9, 5}, {3, 9, 7}, {2, 3, 5, 7}, true, false},
      {{1, 1, 1}, {4, 1, 1}, {4, 1, 1}, false, false},
      {{3, 40, 33}, {65, 33}, {3, 40, 65}, false, true},
  };
  for (const Shapes& s : all) {
    for (dgpuDtype_t at : {DGPU_DTYPE_F32, DGPU_DTYPE_BF16}) {
      for (dgpuDtype_t bt : {DGPU_DTYPE_BF16, DGPU_DTYPE_F16}) {
        for (dgpuDtype_t ot : {DGPU_DTYPE_F32, DGPU_DTYPE_BF16}) {
          Op op = describe(s, at, bt, ot);
          const auto kernel = plan(op);
          ASSERT_EQ(op.run(*kernel, Op::Order::threads), DGPU_STATUS_SUCCESS);
          check(op, s.ta, s.tb, s.out[s.out.size() - 2], s.out.back(), s.a[s.a.size() - (s.ta ? 2 : 1)]);
        }
      }
    }
  }
}

// The path changes with the number of rows; rows past it stay untouched (the harness' guards see the rest).
TEST(Matmul, FollowsSymbols) {
  for (int64_t most : {20, 150}) {
    for (int64_t m : {int64_t{0}, int64_t{1}, int64_t{16}, int64_t{17}, most}) {
      if (m > most) continue;
      Op op =
          describe({{most, 80}, {200, 80}, {most, 200}, false, true}, DGPU_DTYPE_F32, DGPU_DTYPE_BF16, DGPU_DTYPE_F32);
      for (const char* p : {"a", "gate", "residual", "out"}) op[p].desc.symbols[0] = 1;
      const auto kernel = plan(op);
      const auto before = op["out"].bytes;
      op.symbols[0] = m;
      ASSERT_EQ(op.run(*kernel, Op::Order::backward), DGPU_STATUS_SUCCESS);
      const auto first_untouched = static_cast<size_t>(op["out"].offset({m, 0})) * 4 + 64;
      EXPECT_TRUE(std::equal(
          before.begin() + static_cast<std::ptrdiff_t>(std::min(first_untouched, before.size())), before.end(),
          op["out"].bytes.begin() + static_cast<std::ptrdiff_t>(std::min(first_untouched, before.size()))));
      if (m > 0) check(op, false, true, m, 200, 80);
    }
  }
}

}  // namespace
}  // namespace dgpu::cpu::test
