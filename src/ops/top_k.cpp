// top_k: the k best of each row, sorted.
#include "ops/order.h"
#include "ops/schema.h"

namespace dgpu::ops::schemas {
namespace {

Status check(const OpSpec& spec, const int64_t* symbols) {
  const auto& x = desc(spec, "x");
  const uint32_t last = x.rank - 1;
  const int64_t n = symbols ? extent(x, last, symbols) : x.shape[last];
  if (spec.i("k") > n) return bad_attr(spec, "k", "expected at most {}, the last extent of x, got {}", n, spec.i("k"));
  return DGPU_STATUS_SUCCESS;
}

Status infer(const OpSpec& spec, Outputs& outputs) {
  DGPU_TRY(expect_rank(spec, "x", 1));
  if (spec.i("k") < 0) return bad_attr(spec, "k", "expected at least 0, got {}", spec.i("k"));
  DGPU_TRY(check(spec, nullptr));
  Dims shape = dims(spec, "x");
  shape.back() = {spec.i("k"), 0};
  outputs["values"] = packed(dtype(spec, "x"), shape);
  outputs["indices"] = packed(DGPU_DTYPE_I32, shape);
  return DGPU_STATUS_SUCCESS;
}

Status reference(const OpSpec& spec, RefTensors& t) {
  const auto& x = t.find("x")->second;
  auto& values = t.find("values")->second.f;
  auto& indices = t.find("indices")->second.i;
  const int64_t n = x.shape.back(), k = spec.i("k");
  const int64_t rows = n ? x.size() / n : 0;
  for (int64_t r = 0; r < rows; ++r) {
    const auto best = best_indices(&x.f[r * n], n, k, spec.b("largest", true));
    for (int64_t j = 0; j < k; ++j) {
      indices[r * k + j] = best[j];
      values[r * k + j] = x.f[r * n + best[j]];
    }
  }
  return DGPU_STATUS_SUCCESS;
}

}  // namespace

const Schema& top_k() {
  static const auto* schema =
      new Schema{"top_k",
                 1,
                 "The k best of each row, sorted; of equal ones the lowest index first.",
                 {need("k", DGPU_ATTR_INT, "how many"), with("largest", true, "best is largest, else smallest")},
                 {in("x", floats(), "rows"), out("values", floats(), "the best values"),
                  out("indices", integers(), "where they are")},
                 infer,
                 reference,
                 check};
  return *schema;
}

}  // namespace dgpu::ops::schemas
