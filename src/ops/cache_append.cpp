// cache_append: writes rows into slots of a paged cache.
#include "ops/schema.h"

namespace dgpu::ops::schemas {
namespace {

Status infer(const OpSpec& spec, Outputs&) {
  DGPU_TRY(expect_rank(spec, "x", 1));
  DGPU_TRY(expect_rank(spec, "cache", 2));
  const Dims x = dims(spec, "x");
  DGPU_TRY(expect_dims(spec, "slots", {x[0]}, "first dimension of x"));
  const Dims cache = dims(spec, "cache");
  Dims want{cache[0], cache[1]};
  want.insert(want.end(), x.begin() + 1, x.end());
  DGPU_TRY(expect_dims(spec, "cache", want, "pages, page tokens, and the rows of x"));
  if (cache[1].symbol || cache[1].extent < 1)
    return bad_shape(spec, "cache", "expected a fixed page of at least 1 token, got {}", text(cache[1]));
  return DGPU_STATUS_SUCCESS;
}

Status reference(const OpSpec& spec, RefTensors& t) {
  const auto& x = t.find("x")->second;
  const auto& slots = t.find("slots")->second.i;
  auto& cache = t.find("cache")->second;
  const int64_t places = cache.shape[0] * cache.shape[1];
  const int64_t width = slots.empty() ? 0 : x.size() / static_cast<int64_t>(slots.size());
  for (size_t i = 0; i < slots.size(); ++i)
    if (slots[i] < -1 || slots[i] >= places)
      return bad_data(spec, "slots", "slots[{}] = {}: expected -1 (skip) to {}", i, slots[i], places - 1);
  for (size_t i = 0; i < slots.size(); ++i)
    for (int64_t j = 0; j < width && slots[i] >= 0; ++j) cache.f[slots[i] * width + j] = x.f[i * width + j];
  return DGPU_STATUS_SUCCESS;
}

}  // namespace

const Schema& cache_append() {
  static const auto* schema = new Schema{
      "cache_append",
      1,
      "Writes rows into slots of a paged cache.",
      {},
      {in("x", floats(), "a row per token"), in("slots", integers(), "place in the cache: page S + place; -1 skips"),
       inout("cache", floats(), "pages of S rows")},
      infer,
      reference};
  return *schema;
}

}  // namespace dgpu::ops::schemas
