// layer_norm: normalisation by mean and variance over the last dimension.
#include <cmath>

#include "ops/decompose.h"
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

bool decompose(const OpSpec& spec, Decomposition& out) {
  const auto& x = desc(spec, "x");
  dgpuTensorDesc row = x;
  row.shape[x.rank - 1] = 1;
  row.symbols[x.rank - 1] = 0;
  if (x.symbols[x.rank - 1] || x.shape[x.rank - 1] == 0) return false;
  const std::string mean = add_temp(out, DGPU_DTYPE_F32, row), var = add_temp(out, DGPU_DTYPE_F32, row);
  const std::string centred = add_temp(out, DGPU_DTYPE_F32, x), square = add_temp(out, DGPU_DTYPE_F32, x);
  const auto reduce = [&](std::string_view from, std::string_view to) {
    StepBuilder(spec, out, "reduce")
        .attr("fn", std::string("mean"))
        .attr("axes", std::vector<int64_t>{-1})
        .attr("keepdims", true)
        .bind("x", from)
        .bind("out", to)
        .add();
  };
  const auto binary = [&](const char* fn, std::string_view a, std::string_view b, std::string_view to) {
    StepBuilder(spec, out, "binary").attr("fn", std::string(fn)).bind("a", a).bind("b", b).bind("out", to).add();
  };
  const auto unary = [&](const char* fn, std::string_view from, std::string_view to) {
    StepBuilder(spec, out, "unary").attr("fn", std::string(fn)).bind("x", from).bind("out", to).add();
  };
  const bool weight = spec.bound("weight"), bias = spec.bound("bias");
  reduce("x", mean);
  binary("sub", "x", mean, centred);
  unary("square", centred, square);
  reduce(square, var);
  StepBuilder(spec, out, "binary")
      .attr("fn", std::string("add"))
      .attr("scalar", spec.f("eps"))
      .bind("a", var)
      .bind("out", var)
      .add();
  unary("rsqrt", var, var);
  binary("mul", centred, var, weight || bias ? centred : "out");
  if (weight) binary("mul", centred, "weight", bias ? centred : "out");
  if (bias) binary("add", centred, "bias", "out");
  return true;
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
                 reference,
                 nullptr,
                 decompose};
  return *schema;
}

}  // namespace dgpu::ops::schemas
