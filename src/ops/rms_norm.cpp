// rms_norm: normalisation by the root mean square over the last dimension, with a residual added before.
#include <cmath>

#include "ops/convert.h"
#include "ops/decompose.h"
#include "ops/schema.h"

namespace dgpu::ops::schemas {
namespace {

Status infer(const OpSpec& spec, Outputs& outputs) {
  DGPU_TRY(expect_rank(spec, "x", 1));
  const Dims x = dims(spec, "x");
  DGPU_TRY(expect_dims(spec, "weight", {x.back()}, "last dimension of x"));
  DGPU_TRY(expect_dims(spec, "residual", x, "shape of x"));
  if (spec.bound("weight")) {
    DGPU_TRY(need_attr(spec, "weight_offset", "with weight"));
    DGPU_TRY(need_attr(spec, "cast", "with weight"));
  }
  outputs["out"] = packed(dtype(spec, "x"), x);
  outputs["sum"] = packed(dtype(spec, "x"), x);
  return DGPU_STATUS_SUCCESS;
}

Status reference(const OpSpec& spec, RefTensors& t) {
  const auto& x = t.find("x")->second;
  auto& out = t.find("out")->second.f;
  const double* weight = spec.bound("weight") ? t.find("weight")->second.f.data() : nullptr;
  const double* residual = spec.bound("residual") ? t.find("residual")->second.f.data() : nullptr;
  RefTensor* sum = spec.bound("sum") ? &t.find("sum")->second : nullptr;
  const double eps = spec.f("eps"), offset = spec.f("weight_offset");
  const bool round_y = weight && spec.s("cast") == "before_weight";
  const dgpuDtype_t sum_type = sum ? sum->dtype : x.dtype;
  const int64_t width = x.shape.back();
  const int64_t rows = width ? x.size() / width : 0;
  std::vector<double> r(width);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t at = row * width;
    double square = 0;
    for (int64_t j = 0; j < width; ++j) {
      r[j] = x.f[at + j];
      if (residual) r[j] = round_to(sum_type, r[j] + residual[at + j]);
      square += r[j] * r[j];
      if (sum) sum->f[at + j] = r[j];
    }
    const double inv = 1 / std::sqrt(square / static_cast<double>(width) + eps);
    for (int64_t j = 0; j < width; ++j) {
      double y = r[j] * inv;
      if (round_y) y = round_to(x.dtype, y);
      out[at + j] = weight ? y * (weight[j] + offset) : y;
    }
  }
  return DGPU_STATUS_SUCCESS;
}

// Adds the residual first, then normalises the sum.
bool decompose(const OpSpec& spec, Decomposition& out) {
  if (!spec.bound("residual") && !spec.bound("sum")) return false;
  const dgpuDtype_t x_type = dtype(spec, "x"), sum_type = spec.bound("sum") ? dtype(spec, "sum") : x_type;
  if (spec.bound("residual") && spec.s("cast") == "before_weight" && sum_type != x_type) return false;
  std::string sum = "x";
  if (spec.bound("residual")) {
    sum = spec.bound("sum") ? "sum" : add_temp(out, x_type, desc(spec, "x"));
    StepBuilder(spec, out, "binary")
        .attr("fn", std::string("add"))
        .bind("a", "x")
        .bind("b", "residual")
        .bind("out", sum)
        .add();
  } else {
    StepBuilder(spec, out, "cast").bind("x", "x").bind("out", "sum").add();
  }
  StepBuilder norm(spec, out, "rms_norm");
  for (const char* attr : {"eps", "weight_offset", "cast"}) norm.copy_attr(attr);
  norm.bind("x", sum).bind_if("weight", "weight").bind("out", "out").add();
  return true;
}

}  // namespace

const Schema& rms_norm() {
  static const auto* schema =
      new Schema{"rms_norm",
                 1,
                 "Normalisation by the root mean square over the last dimension, after adding a residual.",
                 {need("eps", DGPU_ATTR_FLOAT, "added to the mean square"),
                  maybe("weight_offset", DGPU_ATTR_FLOAT, "added to the weight; required with weight"),
                  maybe("cast", DGPU_ATTR_STRING,
                        "whether the normalised value is rounded to x's type before the product with the "
                        "weight; required with weight",
                        {"before_weight", "after_weight"})},
                 {in("x", floats(), "rows"), in_opt("weight", floats(), "factor per column"),
                  in_opt("residual", floats(), "added to x first"), out("out", floats(), "normalised rows"),
                  out_opt("sum", floats(), "x + residual")},
                 infer,
                 reference,
                 nullptr,
                 decompose,
                 {{"sum", "x"}, {"sum", "residual"}}};
  return *schema;
}

}  // namespace dgpu::ops::schemas
