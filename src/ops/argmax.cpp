// argmax: index of the largest of each row.
#include "ops/decompose.h"
#include "ops/order.h"
#include "ops/schema.h"

namespace dgpu::ops::schemas {
namespace {

Status check(const OpSpec& spec, const int64_t* symbols) {
  const auto& x = desc(spec, "x");
  const uint32_t last = x.rank - 1;
  if ((symbols ? extent(x, last, symbols) : x.shape[last]) > 0) return DGPU_STATUS_SUCCESS;
  return bad_shape(spec, "x", "expected at least 1 element in the last dimension, got 0");
}

Status infer(const OpSpec& spec, Outputs& outputs) {
  DGPU_TRY(expect_rank(spec, "x", 1));
  DGPU_TRY(check(spec, nullptr));
  Dims shape = dims(spec, "x");
  shape.pop_back();
  outputs["out"] = packed(DGPU_DTYPE_I32, shape);
  return DGPU_STATUS_SUCCESS;
}

Status reference(const OpSpec&, RefTensors& t) {
  const auto& x = t.find("x")->second;
  auto& out = t.find("out")->second.i;
  const int64_t n = x.shape.back();
  for (size_t r = 0; r < out.size(); ++r) {
    const double* row = &x.f[r * n];
    int64_t best = 0;
    for (int64_t j = 1; j < n; ++j)
      if (larger(row[j], row[best])) best = j;
    out[r] = best;
  }
  return DGPU_STATUS_SUCCESS;
}

bool decompose(const OpSpec& spec, Decomposition& out) {
  dgpuTensorDesc indices = desc(spec, "out");
  if (indices.rank == DGPU_MAX_RANK) return false;
  indices.shape[indices.rank] = 1;
  indices.strides[indices.rank] = 1;
  indices.symbols[indices.rank++] = 0;
  const std::string values = add_temp(out, dtype(spec, "x"), indices);
  StepBuilder(spec, out, "top_k")
      .attr("k", int64_t{1})
      .bind("x", "x")
      .bind("values", values)
      .bind_view("indices", "out", indices, 0)
      .add();
  return true;
}

}  // namespace

const Schema& argmax() {
  static const auto* schema =
      new Schema{"argmax",
                 1,
                 "Lowest index of the largest element of each row.",
                 {},
                 {in("x", floats(), "rows"), out("out", integers(), "index in the last dimension")},
                 infer,
                 reference,
                 check,
                 decompose};
  return *schema;
}

}  // namespace dgpu::ops::schemas
