// reduce: sum, mean, max, min or sum of squares over axes.
#include <algorithm>
#include <cmath>

#include "ops/decompose.h"
#include "ops/schema.h"

namespace dgpu::ops::schemas {
namespace {

// Reduced axes, one bit each. Allocates nothing unless it fails.
Status reduced_axes(const OpSpec& spec, uint32_t rank, uint32_t& reduced) {
  const auto& axes = std::get<std::vector<int64_t>>(spec.attrs.find("axes")->second);
  reduced = 0;
  if (axes.empty()) return bad_attr(spec, "axes", "expected at least one axis, got []");
  for (const int64_t a : axes) {
    uint32_t axis = 0;
    DGPU_TRY(normal_axis(spec, "axes", a, rank, axis));
    if (reduced >> axis & 1) return bad_attr(spec, "axes", "axis {} is given twice", a);
    reduced |= 1u << axis;
  }
  return DGPU_STATUS_SUCCESS;
}

bool needs_elements(std::string_view fn) { return fn == "mean" || fn == "max" || fn == "min"; }

// `mean`, `max` and `min` of nothing: an empty reduced axis with something to write.
Status check(const OpSpec& spec, const int64_t* symbols) {
  if (!needs_elements(spec.s("fn"))) return DGPU_STATUS_SUCCESS;
  const auto& x = desc(spec, "x");
  uint32_t reduced = 0;
  DGPU_TRY(reduced_axes(spec, x.rank, reduced));
  bool empty = false, writes = true;
  for (uint32_t i = 0; i < x.rank; ++i) {
    const int64_t n = symbols ? extent(x, i, symbols) : x.symbols[i] ? 1 : x.shape[i];
    if (n == 0) (reduced >> i & 1 ? empty : writes) = reduced >> i & 1;
  }
  if (empty && writes)
    return bad_shape(spec, "x", "fn={} of nothing: expected reduced axes not to be empty", spec.s("fn"));
  return DGPU_STATUS_SUCCESS;
}

Status infer(const OpSpec& spec, Outputs& outputs) {
  const Dims x = dims(spec, "x");
  uint32_t reduced = 0;
  DGPU_TRY(reduced_axes(spec, static_cast<uint32_t>(x.size()), reduced));
  DGPU_TRY(check(spec, nullptr));
  Dims shape;
  for (size_t i = 0; i < x.size(); ++i) {
    if (!(reduced >> i & 1)) shape.push_back(x[i]);
    if ((reduced >> i & 1) && spec.b("keepdims")) shape.push_back({1, 0});
  }
  outputs["out"] = packed(dtype(spec, "x"), shape);
  return DGPU_STATUS_SUCCESS;
}

Status reference(const OpSpec& spec, RefTensors& t) {
  const auto& x = t.find("x")->second;
  auto& out = t.find("out")->second.f;
  const std::string fn = spec.s("fn");
  uint32_t reduced = 0;
  DGPU_TRY(reduced_axes(spec, static_cast<uint32_t>(x.shape.size()), reduced));
  std::vector<int64_t> step(x.shape.size(), 0), at(x.shape.size(), 0);  // in the output
  int64_t stride = 1, count = 1;
  for (size_t i = x.shape.size(); i-- > 0;) {
    if (reduced >> i & 1) {
      count *= x.shape[i];
    } else {
      step[i] = stride;
      stride *= x.shape[i];
    }
  }
  const double start = fn == "max" ? -kInf : fn == "min" ? kInf : 0;
  std::fill(out.begin(), out.end(), start);
  int64_t o = 0;
  for (const double v : x.f) {
    double& r = out[o];
    if (fn == "max")
      r = std::isnan(v) || v > r ? v : r;
    else if (fn == "min")
      r = std::isnan(v) || v < r ? v : r;
    else
      r += fn == "sum_sq" ? v * v : v;
    for (size_t i = x.shape.size(); i-- > 0;) {
      o += step[i];
      if (++at[i] < x.shape[i]) break;
      o -= step[i] * at[i];
      at[i] = 0;
    }
  }
  if (fn == "mean")
    for (double& r : out) r /= static_cast<double>(count);
  return DGPU_STATUS_SUCCESS;
}

// mean: a sum times 1/n; sum_sq: a sum of squares.
bool decompose(const OpSpec& spec, Decomposition& out) {
  const std::string fn = spec.s("fn");
  StepBuilder sum(spec, out, "reduce");
  sum.attr("fn", std::string("sum")).copy_attr("axes").copy_attr("keepdims");
  if (fn == "sum_sq") {
    const std::string square = add_temp(out, DGPU_DTYPE_F32, desc(spec, "x"));
    StepBuilder(spec, out, "unary").attr("fn", std::string("square")).bind("x", "x").bind("out", square).add();
    sum.bind("x", square).bind("out", "out").add();
    return true;
  }
  const auto& x = desc(spec, "x");
  uint32_t reduced = 0;
  if (fn != "mean" || reduced_axes(spec, x.rank, reduced) < 0) return false;
  int64_t count = 1;
  for (uint32_t i = 0; i < x.rank; ++i) {
    if ((reduced >> i & 1) && x.symbols[i]) return false;
    if (reduced >> i & 1) count *= x.shape[i];
  }
  const std::string total = add_temp(out, DGPU_DTYPE_F32, desc(spec, "out"));
  sum.bind("x", "x").bind("out", total).add();
  StepBuilder(spec, out, "binary")
      .attr("fn", std::string("div"))
      .attr("scalar", static_cast<double>(count))
      .bind("a", total)
      .bind("out", "out")
      .add();
  return true;
}

}  // namespace

const Schema& reduce() {
  static const auto* schema =
      new Schema{"reduce",
                 1,
                 "Sum, mean, max, min or sum of squares over axes.",
                 {need("fn", DGPU_ATTR_STRING, "the reduction", {"sum", "mean", "max", "min", "sum_sq"}),
                  need("axes", DGPU_ATTR_INTS, "axes to reduce; negative ones count from the end"),
                  with("keepdims", false, "keep reduced axes with extent 1")},
                 {in("x", floats(), "source"), out("out", floats(), "the reductions")},
                 infer,
                 reference,
                 check,
                 decompose};
  return *schema;
}

}  // namespace dgpu::ops::schemas
