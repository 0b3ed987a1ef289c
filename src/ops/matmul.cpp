// matmul: matrix product with an epilogue.
#include "ops/broadcast.h"
#include "ops/decompose.h"
#include "ops/ref_math.h"
#include "ops/schema.h"

namespace dgpu::ops::schemas {
namespace {

Status infer(const OpSpec& spec, Outputs& outputs) {
  DGPU_TRY(expect_rank(spec, "a", 2));
  DGPU_TRY(expect_rank(spec, "b", 2));
  const Dims a = dims(spec, "a"), b = dims(spec, "b");
  const bool ta = spec.b("transpose_a"), tb = spec.b("transpose_b");
  const size_t ra = a.size(), rb = b.size();
  const Dim m = a[ra - (ta ? 1 : 2)], k = a[ra - (ta ? 2 : 1)];
  const Dim kb = b[rb - (tb ? 1 : 2)], n = b[rb - (tb ? 2 : 1)];
  if (!(k == kb))
    return bad_shape(spec, "b", "expected the inner extent {} of a {}, got {} in {}", text(k), text(a), text(kb),
                     text(b));
  Dims shape;
  if (!broadcast(Dims(a.begin(), a.end() - 2), Dims(b.begin(), b.end() - 2), shape))
    return bad_shape(spec, "b", "leading dimensions of {} do not broadcast with a {}", text(b), text(a));
  shape.push_back(m);
  shape.push_back(n);
  DGPU_TRY(expect_dims(spec, "bias", {n}, "columns of the product"));
  DGPU_TRY(expect_dims(spec, "gate", shape, "shape of the product"));
  DGPU_TRY(expect_dims(spec, "residual", shape, "shape of the product"));
  outputs["out"] = packed(dtype(spec, "a"), shape);
  return DGPU_STATUS_SUCCESS;
}

double dot(const double* a, const double* b, int64_t n) {
  double s0 = 0, s1 = 0, s2 = 0, s3 = 0;
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    s0 += a[i] * b[i];
    s1 += a[i + 1] * b[i + 1];
    s2 += a[i + 2] * b[i + 2];
    s3 += a[i + 3] * b[i + 3];
  }
  for (; i < n; ++i) s0 += a[i] * b[i];
  return (s0 + s1) + (s2 + s3);
}

// out[M,N] = a b for one matrix; blocks of columns of b stay in the cache while the rows of a pass.
struct Product {
  int64_t m, n, k;
  bool ta, tb;
  void operator()(const double* a, const double* b, double* out) const {
    std::vector<double> row(k);
    constexpr int64_t kBlock = 64;
    for (int64_t n0 = 0; n0 < n; n0 += kBlock)
      for (int64_t i = 0; i < m; ++i) {
        const double* ai = a + i * k;
        if (ta) {
          for (int64_t p = 0; p < k; ++p) row[p] = a[p * m + i];
          ai = row.data();
        }
        line(ai, b, out + i * n, n0, std::min(n0 + kBlock, n));
      }
  }
  void line(const double* ai, const double* b, double* out, int64_t begin, int64_t end) const {
    if (tb) {
      for (int64_t j = begin; j < end; ++j) out[j] = dot(ai, b + j * k, k);
      return;
    }
    for (int64_t j = begin; j < end; ++j) out[j] = 0;
    for (int64_t p = 0; p < k; ++p) {
      const double v = ai[p];
      const double* bp = b + p * n;
      for (int64_t j = begin; j < end; ++j) out[j] += v * bp[j];
    }
  }
};

void epilogue(const OpSpec& spec, RefTensors& t, RefTensor& out) {
  const auto data = [&](const char* port) { return spec.bound(port) ? t.find(port)->second.f.data() : nullptr; };
  const double *bias = data("bias"), *gate = data("gate"), *residual = data("residual");
  const ScalarFn act = scalar_fn(spec.s("activation", "none"));
  const int64_t n = out.shape.back(), total = out.size();
  for (int64_t i = 0; i < total; ++i) {
    double v = act(out.f[i] + (bias ? bias[i % n] : 0));
    if (gate) v *= gate[i];
    out.f[i] = residual ? v + residual[i] : v;
  }
}

Status reference(const OpSpec& spec, RefTensors& t) {
  const auto &a = t.find("a")->second, &b = t.find("b")->second;
  auto& out = t.find("out")->second;
  const bool ta = spec.b("transpose_a"), tb = spec.b("transpose_b");
  const size_t rank = out.shape.size();
  Product product{out.shape[rank - 2], out.shape[rank - 1], a.shape[a.shape.size() - (ta ? 2 : 1)], ta, tb};
  const auto leading = [](const std::vector<int64_t>& s) { return std::vector<int64_t>(s.begin(), s.end() - 2); };
  const auto batch = leading(out.shape);
  int64_t count = 1;
  for (const int64_t n : batch) count *= n;
  BroadcastIndex ia(leading(a.shape), batch), ib(leading(b.shape), batch);
  for (int64_t i = 0; i < count; ++i, ia.next(), ib.next())
    product(a.f.data() + ia.offset() * product.m * product.k, b.f.data() + ib.offset() * product.k * product.n,
            out.f.data() + i * product.m * product.n);
  epilogue(spec, t, out);
  return DGPU_STATUS_SUCCESS;
}

// Takes the last step of the epilogue off.
bool decompose(const OpSpec& spec, Decomposition& out) {
  const std::string activation = spec.s("activation", "none");
  const char* last = spec.bound("residual") ? "residual"
                     : spec.bound("gate")   ? "gate"
                     : activation != "none" ? "activation"
                     : spec.bound("bias")   ? "bias"
                                            : nullptr;
  if (!last) return false;
  const std::string_view peeled = last;
  const std::string inner = add_temp(out, DGPU_DTYPE_F32, desc(spec, "out"));
  StepBuilder product(spec, out, "matmul");
  product.bind("a", "a").bind("b", "b").bind("out", inner).copy_attr("transpose_a").copy_attr("transpose_b");
  if (peeled != "activation") product.copy_attr("activation");
  for (const char* port : {"bias", "gate", "residual"})
    if (peeled != port) product.bind_if(port, port);
  product.add();
  if (peeled == "activation")
    StepBuilder(spec, out, "unary").attr("fn", activation).bind("x", inner).bind("out", "out").add();
  else
    StepBuilder(spec, out, "binary")
        .attr("fn", std::string(peeled == "gate" ? "mul" : "add"))
        .bind("a", inner)
        .bind("b", peeled)
        .bind("out", "out")
        .add();
  return true;
}

}  // namespace

const Schema& matmul() {
  static const auto* schema = new Schema{
      "matmul",
      1,
      "Matrix product with bias, activation, gate and residual.",
      {with("transpose_a", false, "a is stored as [K,M]"), with("transpose_b", false, "b is stored as [N,K]"),
       with("activation", std::string("none"), "applied after the bias",
            {"none", "relu", "gelu_erf", "gelu_tanh", "silu"})},
      {in("a", floats(), "[..., M, K]"), in("b", floats(), "[..., K, N]"), in_opt("bias", floats(), "[N]"),
       in_opt("gate", floats(), "factor after the activation"), in_opt("residual", floats(), "added last"),
       out("out", floats(), "[..., M, N]; may be gate or residual")},
      infer,
      reference,
      nullptr,
      decompose,
      {{"out", "gate"}, {"out", "residual"}}};
  return *schema;
}

}  // namespace dgpu::ops::schemas
