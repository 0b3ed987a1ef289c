// layer_norm: normalisation by mean and variance over the last dimension.
#include <cmath>

#include "ops/schema.h"

namespace dgpu::ops::schemas {
namespace {

Status infer(const OpSpec& spec, Outputs& outputs) {
  DGPU_TRY(expect_rank(spec, "x", 1));
  const Dims x = dims(spec, "x");
  DGPU_TRY(expect_dims(spec, "weight", {x.back()}, "last dimension of x"));
  DGPU_TRY(expect_dims(spec, "bias", {x.back()}, "last dimension of x"));
  outputs["out"] = packed(dtype(spec, "x"), x);
  return DGPU_STATUS_SUCCESS;
}

Status reference(const OpSpec& spec, RefTensors& t) {
  const auto& x = t.find("x")->second;
  auto& out = t.find("out")->second.f;
  const double* weight = spec.bound("weight") ? t.find("weight")->second.f.data() : nullptr;
  const double* bias = spec.bound("bias") ? t.find("bias")->second.f.data() : nullptr;
  const double eps = spec.f("eps");
  const int64_t width = x.shape.back();
  const int64_t rows = width ? x.size() / width : 0;
  for (int64_t r = 0; r < rows; ++r) {
    const double* in = x.f.data() + r * width;
    double mean = 0, var = 0;
    for (int64_t j = 0; j < width; ++j) mean += in[j];
    mean /= static_cast<double>(width);
    for (int64_t j = 0; j < width; ++j) var += (in[j] - mean) * (in[j] - mean);
    const double inv = 1 / std::sqrt(var / static_cast<double>(width) + eps);
    for (int64_t j = 0; j < width; ++j)
      out[r * width + j] = (in[j] - mean) * inv * (weight ? weight[j] : 1) + (bias ? bias[j] : 0);
  }
  return DGPU_STATUS_SUCCESS;
}

}  // namespace

const Schema& layer_norm() {
  static const auto* schema =
      new Schema{"layer_norm",
                 1,
                 "Normalisation by mean and variance over the last dimension.",
                 {need("eps", DGPU_ATTR_FLOAT, "added to the variance")},
                 {in("x", floats(), "rows"), in_opt("weight", floats(), "factor per column"),
                  in_opt("bias", floats(), "summand per column"), out("out", floats(), "normalised rows")},
                 infer,
                 reference};
  return *schema;
}

}  // namespace dgpu::ops::schemas
