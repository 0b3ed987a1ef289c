// moe_route: selects experts for each token and weighs them.
#include <algorithm>
#include <cmath>

#include "ops/order.h"
#include "ops/ref_math.h"
#include "ops/schema.h"

namespace dgpu::ops::schemas {
namespace {

Status check_groups(const OpSpec& spec, int64_t experts) {
  const int64_t groups = spec.i("groups", 1), kept = spec.i("group_top_k", 1);
  if (groups < 1 || (experts && experts % groups))
    return bad_attr(spec, "groups", "expected a divisor of the {} experts, got {}", experts, groups);
  if (kept < 1 || kept > groups) return bad_attr(spec, "group_top_k", "expected 1 to groups={}, got {}", groups, kept);
  if (groups == 1 || spec.bound("ids")) return DGPU_STATUS_SUCCESS;
  DGPU_TRY(need_attr(spec, "group_score", "with groups>1"));
  DGPU_TRY(need_attr(spec, "masked_fill", "with groups>1"));
  if (spec.s("group_score") == "top2_sum" && experts / groups < 2)
    return bad_attr(spec, "group_score", "top2_sum expects groups of at least 2 experts, got {}", experts / groups);
  return DGPU_STATUS_SUCCESS;
}

Status infer(const OpSpec& spec, Outputs& outputs) {
  DGPU_TRY(expect_rank(spec, "logits", 2, 2));
  const Dims logits = dims(spec, "logits");
  if (logits[1].symbol) return bad_shape(spec, "logits", "expected a fixed number of experts, got {}", text(logits));
  const int64_t experts = logits[1].extent, k = spec.i("top_k");
  DGPU_TRY(expect_dims(spec, "bias", {logits[1]}, "one per expert"));
  if (k < 1) return bad_attr(spec, "top_k", "expected at least 1, got {}", k);
  if (!spec.bound("ids") && k > experts)
    return bad_attr(spec, "top_k", "expected 1 to the {} experts, got {}", experts, k);
  DGPU_TRY(expect_dims(spec, "ids", {logits[0], {k, 0}}, "top_k per token"));
  if (spec.bound("bias")) {
    DGPU_TRY(need_attr(spec, "bias_on", "with bias"));
    if (spec.s("order") == "select_then_score" && spec.s("bias_on") != "logit")
      return bad_attr(spec, "bias_on", "expected logit with order=select_then_score, got {}", spec.s("bias_on"));
  }
  DGPU_TRY(check_groups(spec, experts));
  outputs["weights"] = packed(DGPU_DTYPE_F32, {logits[0], {k, 0}});
  outputs["indices"] = packed(DGPU_DTYPE_I32, {logits[0], {k, 0}});
  outputs["scores"] = packed(DGPU_DTYPE_F32, logits);
  return DGPU_STATUS_SUCCESS;
}

// Scoring of n logits; softmax sees them all.
void score(const std::string& fn, const double* logits, int64_t n, double* out) {
  if (fn != "softmax") {
    for (int64_t i = 0; i < n; ++i)
      out[i] = fn == "sigmoid"         ? sigmoid(logits[i])
               : fn == "sqrt_softplus" ? std::sqrt(softplus(logits[i]))
                                       : logits[i];
    return;
  }
  double top = -kInf, sum = 0;
  for (int64_t i = 0; i < n; ++i) top = std::fmax(top, logits[i]);
  for (int64_t i = 0; i < n; ++i) sum += out[i] = std::exp(logits[i] - top);
  for (int64_t i = 0; i < n; ++i) out[i] /= sum;
}

struct Route {
  int64_t experts, k, groups, kept;
  std::string scoring, group_score;
  bool score_first, bias_on_score, renormalise;
  double fill, eps, scale;

  // What experts are selected by.
  std::vector<double> selection(const double* logits, const double* bias) const {
    std::vector<double> s(logits, logits + experts);
    if (bias && !bias_on_score)
      for (int64_t e = 0; e < experts; ++e) s[e] += bias[e];
    if (!score_first) return s;
    std::vector<double> scored(experts);
    score(scoring, s.data(), experts, scored.data());
    if (bias && bias_on_score)
      for (int64_t e = 0; e < experts; ++e) scored[e] += bias[e];
    return scored;
  }

  void mask_groups(std::vector<double>& s) const {
    const int64_t size = experts / groups;
    std::vector<double> value(groups);
    for (int64_t g = 0; g < groups; ++g) {
      const auto best = best_indices(&s[g * size], size, group_score == "top2_sum" ? 2 : 1);
      for (const int64_t e : best) value[g] += s[g * size + e];
    }
    const auto keep = best_indices(value.data(), groups, kept);
    for (int64_t g = 0; g < groups; ++g)
      if (std::find(keep.begin(), keep.end(), g) == keep.end())
        std::fill(s.begin() + g * size, s.begin() + (g + 1) * size, fill);
  }

  void weigh(const double* logits, const int64_t* chosen, double* weights) const {
    std::vector<double> all(experts), some(k);
    if (score_first) {
      score(scoring, logits, experts, all.data());
      for (int64_t j = 0; j < k; ++j) weights[j] = all[chosen[j]];
    } else {
      for (int64_t j = 0; j < k; ++j) some[j] = logits[chosen[j]];
      score(scoring, some.data(), k, weights);
    }
    double sum = 0;
    for (int64_t j = 0; j < k; ++j) sum += weights[j];
    for (int64_t j = 0; j < k; ++j) weights[j] = (renormalise ? weights[j] / (sum + eps) : weights[j]) * scale;
  }
};

Status reference(const OpSpec& spec, RefTensors& t) {
  const auto& logits = t.find("logits")->second;
  const double* bias = spec.bound("bias") ? t.find("bias")->second.f.data() : nullptr;
  const RefTensor* ids = spec.bound("ids") ? &t.find("ids")->second : nullptr;
  RefTensor* scores = spec.bound("scores") ? &t.find("scores")->second : nullptr;
  auto& indices = t.find("indices")->second.i;
  auto& weights = t.find("weights")->second.f;
  const Route route{logits.shape[1],
                    spec.i("top_k"),
                    spec.i("groups", 1),
                    spec.i("group_top_k", 1),
                    spec.s("scoring"),
                    spec.s("group_score"),
                    spec.s("order") == "score_then_select",
                    spec.s("bias_on") == "score",
                    spec.b("renormalise"),
                    spec.s("masked_fill") == "zero" ? 0 : -kInf,
                    spec.f("renorm_eps"),
                    spec.f("scale", 1)};
  for (int64_t n = 0; n < logits.shape[0]; ++n) {
    const double* row = logits.f.data() + n * route.experts;
    auto selection = route.selection(row, bias);
    if (scores) std::copy(selection.begin(), selection.end(), scores->f.begin() + n * route.experts);
    int64_t* chosen = indices.data() + n * route.k;
    if (ids) {
      for (int64_t j = 0; j < route.k; ++j) {
        chosen[j] = ids->i[n * route.k + j];
        if (chosen[j] < 0 || chosen[j] >= route.experts)
          return bad_data(spec, "ids", "ids[{},{}] = {}: expected 0 to {}", n, j, chosen[j], route.experts - 1);
      }
    } else {
      if (route.groups > 1) route.mask_groups(selection);
      const auto best = best_indices(selection.data(), route.experts, route.k);
      std::copy(best.begin(), best.end(), chosen);
    }
    route.weigh(row, chosen, weights.data() + n * route.k);
  }
  return DGPU_STATUS_SUCCESS;
}

}  // namespace

const Schema& moe_route() {
  static const auto* schema =
      new Schema{"moe_route",
                 1,
                 "Selects experts for each token and weighs them.",
                 {need("top_k", DGPU_ATTR_INT, "experts per token"),
                  need("scoring", DGPU_ATTR_STRING, "function from logits to scores",
                       {"softmax", "sigmoid", "sqrt_softplus", "none"}),
                  need("order", DGPU_ATTR_STRING,
                       "whether all logits are scored and the best selected, or the best logits are "
                       "selected and scored among themselves",
                       {"score_then_select", "select_then_score"}),
                  need("renormalise", DGPU_ATTR_BOOL, "divide weights by their sum"),
                  maybe("bias_on", DGPU_ATTR_STRING, "what the selection bias is added to; required with bias",
                        {"score", "logit"}),
                  with("groups", int64_t{1}, "equal consecutive groups of experts"),
                  with("group_top_k", int64_t{1}, "groups that experts are taken from"),
                  maybe("group_score", DGPU_ATTR_STRING,
                        "value of a group: its best or the sum of its two best; required with "
                        "groups>1",
                        {"max", "top2_sum"}),
                  maybe("masked_fill", DGPU_ATTR_STRING,
                        "selection score of experts outside the best groups; required with "
                        "groups>1",
                        {"neg_inf", "zero"}),
                  with("renorm_eps", 0.0, "added to the sum"), with("scale", 1.0, "factor on the weights")},
                 {in("logits", floats(), "[T, E]"), in_opt("bias", floats(), "[E] for selection only"),
                  in_opt("ids", i32_only(), "[T, k] given experts: no selection"), out("weights", f32_only(), "[T, k]"),
                  out("indices", i32_only(), "[T, k] by descending selection score"),
                  out_opt("scores", f32_only(), "[T, E] selection scores before masking")},
                 infer,
                 reference};
  return *schema;
}

}  // namespace dgpu::ops::schemas
