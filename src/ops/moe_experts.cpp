// moe_experts: for each token the weighted sum of its experts' feed-forward networks.
#include "ops/glu.h"
#include "ops/schema.h"

namespace dgpu::ops::schemas {
namespace {

// gate_up; or gate and up; or up alone.
Status check_packing(const OpSpec& spec) {
  if (spec.bound("gate_up")) {
    DGPU_TRY(need_attr(spec, "layout", "with gate_up"));
    for (const char* port : {"gate", "up", "gate_bias", "up_bias"}) DGPU_TRY(no_port(spec, port, "with gate_up"));
    return DGPU_STATUS_SUCCESS;
  }
  DGPU_TRY(need_port(spec, "up", "without gate_up"));
  DGPU_TRY(no_port(spec, "gate_up_bias", "without gate_up"));
  if (spec.has("layout")) return bad_attr(spec, "layout", "must not be set without gate_up");
  if (spec.bound("gate")) return DGPU_STATUS_SUCCESS;
  DGPU_TRY(no_port(spec, "gate_bias", "without gate"));
  for (const char* attr : {"gate_max", "up_clamp"})
    if (spec.f(attr, kInf) != kInf) return bad_attr(spec, attr, "must not be set without gate or gate_up");
  if (spec.f("up_offset") != 0) return bad_attr(spec, "up_offset", "must not be set without gate or gate_up");
  return DGPU_STATUS_SUCCESS;
}

Status check_weights(const OpSpec& spec, const Dim& hidden) {
  DGPU_TRY(expect_rank(spec, "down", 3, 3));
  const Dims down = dims(spec, "down");
  const Dim experts = down[0], inner = down[2];
  DGPU_TRY(expect_dims(spec, "down", {experts, hidden, inner}, "experts, width of x, inner width"));
  for (const char* port : {"gate", "up"})
    DGPU_TRY(expect_dims(spec, port, {experts, inner, hidden}, "experts, inner width of down, width of x"));
  for (const char* port : {"gate_bias", "up_bias"})
    DGPU_TRY(expect_dims(spec, port, {experts, inner}, "experts, inner width of down"));
  if (spec.bound("gate_up")) {
    if (inner.symbol) return bad_shape(spec, "down", "expected a fixed inner width, got {}", text(down));
    const Dim both{2 * inner.extent, 0};
    DGPU_TRY(
        expect_dims(spec, "gate_up", {experts, both, hidden}, "experts, twice the inner width of down, width of x"));
    DGPU_TRY(expect_dims(spec, "gate_up_bias", {experts, both}, "experts, twice the inner width of down"));
  }
  return expect_dims(spec, "down_bias", {experts, hidden}, "experts, width of x");
}

Status infer(const OpSpec& spec, Outputs& outputs) {
  DGPU_TRY(expect_rank(spec, "x", 2, 2));
  DGPU_TRY(expect_rank(spec, "indices", 2, 2));
  const Dims x = dims(spec, "x"), indices = dims(spec, "indices");
  DGPU_TRY(expect_dims(spec, "indices", {x[0], indices[1]}, "a row per token"));
  DGPU_TRY(expect_dims(spec, "weights", indices, "shape of indices"));
  DGPU_TRY(check_glu_attrs(spec));
  DGPU_TRY(check_packing(spec));
  DGPU_TRY(check_weights(spec, x[1]));
  DGPU_TRY(expect_rank(spec, "expert_map", 1, 1));
  outputs["out"] = packed(dtype(spec, "x"), x);
  return DGPU_STATUS_SUCCESS;
}

double dot(const double* a, const double* b, int64_t n) {
  double s0 = 0, s1 = 0;
  int64_t i = 0;
  for (; i + 2 <= n; i += 2) {
    s0 += a[i] * b[i];
    s1 += a[i + 1] * b[i + 1];
  }
  return s0 + s1 + (i < n ? a[i] * b[i] : 0);
}

class Experts {
 public:
  Experts(const OpSpec& spec, RefTensors& t) : fn_(glu_fn(spec)), interleaved_(spec.s("layout") == "interleaved") {
    const auto data = [&](const char* port) { return spec.bound(port) ? t.find(port)->second.f.data() : nullptr; };
    gate_ = data("gate");
    up_ = data("up");
    gate_up_ = data("gate_up");
    down_ = data("down");
    gate_bias_ = data("gate_bias");
    up_bias_ = data("up_bias");
    gate_up_bias_ = data("gate_up_bias");
    down_bias_ = data("down_bias");
    const auto& down = t.find("down")->second.shape;
    hidden_ = down[1];
    inner_ = down[2];
    act_.resize(inner_);
  }

  // out += factor * expert(x)
  void add(int64_t e, const double* x, double factor, double* out) {
    for (int64_t i = 0; i < inner_; ++i) act_[i] = inner(e, x, i);
    for (int64_t h = 0; h < hidden_; ++h) {
      const double y = dot(down_ + (e * hidden_ + h) * inner_, act_.data(), inner_);
      out[h] += factor * (y + (down_bias_ ? down_bias_[e * hidden_ + h] : 0));
    }
  }

 private:
  double line(const double* w, const double* bias, int64_t row, const double* x) const {
    return dot(w + row * hidden_, x, hidden_) + (bias ? bias[row] : 0);
  }
  double inner(int64_t e, const double* x, int64_t i) const {
    if (gate_up_) {
      const int64_t base = 2 * e * inner_;
      const int64_t g = base + (interleaved_ ? 2 * i : i), u = base + (interleaved_ ? 2 * i + 1 : inner_ + i);
      return fn_(line(gate_up_, gate_up_bias_, g, x), line(gate_up_, gate_up_bias_, u, x));
    }
    const double up = line(up_, up_bias_, e * inner_ + i, x);
    return gate_ ? fn_(line(gate_, gate_bias_, e * inner_ + i, x), up) : fn_.act(up);
  }

  GluFn fn_;
  bool interleaved_;
  const double *gate_, *up_, *gate_up_, *down_, *gate_bias_, *up_bias_, *gate_up_bias_, *down_bias_;
  int64_t hidden_, inner_;
  std::vector<double> act_;
};

Status reference(const OpSpec& spec, RefTensors& t) {
  const auto &x = t.find("x")->second, &indices = t.find("indices")->second, &weights = t.find("weights")->second;
  const RefTensor* map = spec.bound("expert_map") ? &t.find("expert_map")->second : nullptr;
  auto& out = t.find("out")->second.f;
  const int64_t hidden = x.shape[1], k = indices.shape[1], experts = t.find("down")->second.shape[0];
  const bool scale_input = spec.b("scale_input");
  Experts run(spec, t);
  std::vector<double> scaled(hidden);
  for (int64_t n = 0; n < x.shape[0]; ++n)
    for (int64_t j = 0; j < k; ++j) {
      int64_t e = indices.i[n * k + j];
      const int64_t limit = map ? map->shape[0] : experts;
      if (e < -1 || e >= limit)
        return bad_data(spec, "indices", "indices[{},{}] = {}: expected -1 (none) to {}", n, j, e, limit - 1);
      if (map && e >= 0) {
        const int64_t global = e;
        e = map->i[e];
        if (e < -2 || e >= experts)
          return bad_data(spec, "expert_map", "expert_map[{}] = {}: expected -2 (identity), -1 (not here) to {}",
                          global, e, experts - 1);
      }
      if (e == -1) continue;
      const double w = weights.f[n * k + j];
      const double* row = x.f.data() + n * hidden;
      for (int64_t h = 0; h < hidden; ++h) scaled[h] = row[h] * w;
      if (e == -2)
        for (int64_t h = 0; h < hidden; ++h) out[n * hidden + h] += scaled[h];
      else
        run.add(e, scale_input ? scaled.data() : row, scale_input ? 1 : w, out.data() + n * hidden);
    }
  return DGPU_STATUS_SUCCESS;
}

}  // namespace

const Schema& moe_experts() {
  static const auto* schema = [] {
    auto attrs = glu_attrs();
    attrs.push_back(maybe("layout", DGPU_ATTR_STRING,
                          "rows of gate_up: all gates first, or alternating; required with "
                          "gate_up",
                          {"contiguous", "interleaved"}));
    attrs.push_back(with("scale_input", false, "the weight multiplies x before the expert instead of its output"));
    return new Schema{
        "moe_experts",
        1,
        "Weighted sum of the chosen experts' feed-forward networks.",
        std::move(attrs),
        {in("x", floats(), "[T, H]"), in("indices", i32_only(), "[T, k] experts; -1: none"),
         in("weights", f32_only(), "[T, k]"), in_opt("gate", floats(), "[E, I, H]"),
         in_opt("up", floats(), "[E, I, H]"), in_opt("gate_up", floats(), "[E, 2I, H], instead of gate and up"),
         in("down", floats(), "[E, H, I]"), in_opt("gate_bias", floats(), "[E, I]"),
         in_opt("up_bias", floats(), "[E, I]"), in_opt("gate_up_bias", floats(), "[E, 2I]"),
         in_opt("down_bias", floats(), "[E, H]"),
         in_opt("expert_map", i32_only(), "[G] local expert of each index; -1: not here, -2: identity"),
         out("out", floats(), "[T, H]")},
        infer,
        reference};
  }();
  return *schema;
}

}  // namespace dgpu::ops::schemas
