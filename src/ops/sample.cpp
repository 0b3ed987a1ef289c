// sample: one token per row, by temperature, top-k and top-p, from a counter-based random number.
#include <cmath>

#include "ops/order.h"
#include "ops/philox.h"
#include "ops/schema.h"

namespace dgpu::ops::schemas {
namespace {

Status infer(const OpSpec& spec, Outputs& outputs) {
  DGPU_TRY(expect_rank(spec, "logits", 2, 2));
  const Dims logits = dims(spec, "logits");
  if (logits[1].symbol || logits[1].extent < 1)
    return bad_shape(spec, "logits", "expected a fixed vocabulary of at least 1, got {}", text(logits));
  for (const char* port : {"temperature", "top_k", "top_p", "seeds", "positions"})
    DGPU_TRY(expect_dims(spec, port, {logits[0]}, "one per row of logits"));
  outputs["out"] = packed(DGPU_DTYPE_I32, {logits[0]});
  return DGPU_STATUS_SUCCESS;
}

// Draws from the kept tokens, `order` being all tokens by descending logit: temperature, then top-k, then top-p of what
// top-k leaves, as in Hugging Face transformers, which however keeps more than k where the k-th logit is tied.
int64_t draw(const double* logits, const std::vector<int64_t>& order, double temperature, int64_t top_k, double top_p,
             double u) {
  const size_t k = top_k > 0 ? std::min<size_t>(order.size(), static_cast<size_t>(top_k)) : order.size();
  std::vector<double> p(k);
  double sum = 0;
  for (size_t i = 0; i < k; ++i) sum += p[i] = std::exp((logits[order[i]] - logits[order[0]]) / temperature);
  size_t kept = k;
  double kept_sum = sum;
  if (top_p > 0 && top_p < 1) {
    kept_sum = 0;
    for (kept = 0; kept < k && kept_sum < top_p * sum; ++kept) kept_sum += p[kept];
  }
  double passed = 0;
  for (size_t i = 0; i < kept; ++i)
    if ((passed += p[i]) > u * kept_sum) return order[i];
  return order[kept - 1];
}

Status reference(const OpSpec& spec, RefTensors& t) {
  const auto& logits = t.find("logits")->second;
  const auto &temperature = t.find("temperature")->second.f, &top_p = t.find("top_p")->second.f;
  const auto &top_k = t.find("top_k")->second.i, &seeds = t.find("seeds")->second.i;
  const auto& positions = t.find("positions")->second.i;
  auto& out = t.find("out")->second.i;
  const int64_t n = logits.shape[1];
  for (size_t b = 0; b < out.size(); ++b) {
    if (!(temperature[b] >= 0))
      return bad_data(spec, "temperature", "temperature[{}] = {}: expected at least 0", b, temperature[b]);
    if (!(top_p[b] >= 0 && top_p[b] <= 1))
      return bad_data(spec, "top_p", "top_p[{}] = {}: expected 0 to 1", b, top_p[b]);
    if (top_k[b] < 0) return bad_data(spec, "top_k", "top_k[{}] = {}: expected at least 0", b, top_k[b]);
    const double* row = logits.f.data() + b * n;
    const auto order = best_indices(row, n, temperature[b] == 0 ? 1 : n);
    out[b] = temperature[b] == 0
                 ? order[0]
                 : draw(row, order, temperature[b], top_k[b], top_p[b], philox_uniform(seeds[b], positions[b]));
  }
  return DGPU_STATUS_SUCCESS;
}

}  // namespace

const Schema& sample() {
  static const auto* schema = new Schema{
      "sample",
      1,
      "One token per row by temperature, top-k and top-p.",
      {},
      {in("logits", floats(), "[B, V]"), in("temperature", f32_only(), "[B] 0: the largest"),
       in("top_k", i32_only(), "[B] 0: all"), in("top_p", f32_only(), "[B] 0 or 1: all"),
       in("seeds", i64_only(), "[B] key of the generator"), in("positions", i64_only(), "[B] counter of the generator"),
       out("out", i32_only(), "[B] the tokens")},
      infer,
      reference};
  return *schema;
}

}  // namespace dgpu::ops::schemas
