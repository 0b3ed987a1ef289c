// softmax over one axis.
#include <cmath>

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

}  // namespace

const Schema& softmax() {
  static const auto* schema =
      new Schema{"softmax",
                 1,
                 "Softmax over one axis.",
                 {with("axis", int64_t{-1}, "the axis; negative counts from the end")},
                 {in("x", floats(), "logits"), out("out", floats(), "probabilities; a row of -inf gives zeros")},
                 infer,
                 reference};
  return *schema;
}

}  // namespace dgpu::ops::schemas
