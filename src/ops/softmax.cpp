// softmax over one axis.
#include <cmath>

#include "ops/decompose.h"
#include "ops/schema.h"

namespace dgpu::ops::schemas {
namespace {

Status infer(const OpSpec& spec, Outputs& outputs) {
  uint32_t axis = 0;
  DGPU_TRY(expect_rank(spec, "x", 1));
  DGPU_TRY(normal_axis(spec, "axis", spec.i("axis"), desc(spec, "x").rank, axis));
  outputs["out"] = packed(dtype(spec, "x"), dims(spec, "x"));
  return DGPU_STATUS_SUCCESS;
}

void row(const double* x, double* out, int64_t n, int64_t step) {
  double top = -kInf, sum = 0;
  for (int64_t j = 0; j < n; ++j) top = std::fmax(top, x[j * step]);
  for (int64_t j = 0; j < n; ++j) sum += out[j * step] = top == -kInf ? 0 : std::exp(x[j * step] - top);
  for (int64_t j = 0; j < n; ++j) out[j * step] = sum == 0 ? 0 : out[j * step] / sum;
}

Status reference(const OpSpec& spec, RefTensors& t) {
  const auto& x = t.find("x")->second;
  auto& out = t.find("out")->second.f;
  uint32_t axis = 0;
  DGPU_TRY(normal_axis(spec, "axis", spec.i("axis"), static_cast<uint32_t>(x.shape.size()), axis));
  int64_t inner = 1;
  for (size_t i = axis + 1; i < x.shape.size(); ++i) inner *= x.shape[i];
  const int64_t n = x.shape[axis];
  if (n * inner == 0) return DGPU_STATUS_SUCCESS;
  const int64_t outer = x.size() / (n * inner);
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t i = 0; i < inner; ++i) row(&x.f[o * n * inner + i], &out[o * n * inner + i], n, inner);
  return DGPU_STATUS_SUCCESS;
}

// By maximum, exponential and sum; a row of -inf gives 0 / tiny.
bool decompose(const OpSpec& spec, Decomposition& out) {
  const auto& x = desc(spec, "x");
  uint32_t axis = 0;
  if (normal_axis(spec, "axis", spec.i("axis"), x.rank, axis) < 0 || x.symbols[axis] || x.shape[axis] == 0)
    return false;
  dgpuTensorDesc row = x;
  row.shape[axis] = 1;
  const std::string top = add_temp(out, DGPU_DTYPE_F32, row), sum = add_temp(out, DGPU_DTYPE_F32, row);
  const std::string e = add_temp(out, DGPU_DTYPE_F32, x);
  const auto reduce = [&](const char* fn, std::string_view from, std::string_view to) {
    StepBuilder(spec, out, "reduce")
        .attr("fn", std::string(fn))
        .attr("axes", std::vector<int64_t>{axis})
        .attr("keepdims", true)
        .bind("x", from)
        .bind("out", to)
        .add();
  };
  const auto at_least = [&](std::string_view tensor, double low) {
    StepBuilder(spec, out, "binary")
        .attr("fn", std::string("max"))
        .attr("scalar", low)
        .bind("a", tensor)
        .bind("out", tensor)
        .add();
  };
  const auto binary = [&](const char* fn, std::string_view a, std::string_view b, std::string_view to) {
    StepBuilder(spec, out, "binary").attr("fn", std::string(fn)).bind("a", a).bind("b", b).bind("out", to).add();
  };
  reduce("max", "x", top);
  at_least(top, -3e38);
  binary("sub", "x", top, e);
  StepBuilder(spec, out, "unary").attr("fn", std::string("exp")).bind("x", e).bind("out", e).add();
  reduce("sum", e, sum);
  at_least(sum, 1e-30);
  binary("div", e, sum, "out");
  return true;
}

}  // namespace

const Schema& softmax() {
  static const auto* schema =
      new Schema{"softmax",
                 1,
                 "Softmax over one axis.",
                 {with("axis", int64_t{-1}, "the axis; negative counts from the end")},
                 {in("x", floats(), "logits"), out("out", floats(), "probabilities; a row of -inf gives zeros")},
                 infer,
                 reference,
                 nullptr,
                 decompose};
  return *schema;
}

}  // namespace dgpu::ops::schemas
