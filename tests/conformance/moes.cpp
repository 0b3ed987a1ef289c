// moe_route and moe_experts.
#include "grid_util.h"

namespace conformance {

namespace {

// Indices may differ where the scores they were chosen by are closer than f32 can tell.
bool judge_route(const Run& run, std::string& why) {
  const auto &indices = run.want.at("indices"), &got = run.got.at("indices");
  const auto &weights = run.want.at("weights"), &got_weights = run.got.at("weights");
  const auto& scores = run.want.at("scores");
  const int64_t k = indices.shape[1], experts = scores.shape[1];
  for (int64_t t = 0; t < indices.shape[0]; ++t) {
    bool flipped = false;
    for (int64_t j = 0; j < k; ++j) {
      const auto a = static_cast<int64_t>(indices.v[t * k + j]), b = static_cast<int64_t>(got.v[t * k + j]);
      if (a == b) continue;
      if (b < 0 || b >= experts || std::fabs(scores.v[t * experts + a] - scores.v[t * experts + b]) > 1e-5) {
        why = "token " + std::to_string(t) + " choice " + std::to_string(j) + ": got expert " + std::to_string(b) +
              ", expected " + std::to_string(a);
        return false;
      }
      flipped = true;
    }
    for (int64_t j = 0; j < k && !flipped; ++j) {
      const double want = weights.v[t * k + j], have = got_weights.v[t * k + j];
      // A softmax over the experts, a sum over the chosen, a division.
      if (std::fabs(have - want) >
          allowed(DGPU_DTYPE_F32, want, 16 + 3 * kUlps + sum_factor(static_cast<double>(experts)), std::fabs(want))) {
        why = "token " + std::to_string(t) + " weight " + std::to_string(j) + ": got " + std::to_string(have) +
              ", expected " + std::to_string(want);
        return false;
      }
    }
  }
  return true;
}

void moe_route(Grid& grid, bool full) {
  struct Shape2 {
    int64_t tokens, experts, k;
  };
  const auto shapes = full ? std::vector<Shape2>{{1, 8, 2}, {5, 32, 4}, {17, 256, 8}, {0, 8, 2}, {3, 1, 1}, {4, 16, 16}}
                           : std::vector<Shape2>{{5, 32, 4}, {1, 8, 2}};
  for (const auto dtype : {DGPU_DTYPE_F32, DGPU_DTYPE_BF16})
    for (const auto& s : shapes)
      for (const char* scoring : {"softmax", "sigmoid", "sqrt_softplus", "none"})
        for (int variant = 0; variant < 7; ++variant) {
          Case test{.op = "moe_route"};
          const bool then_score = variant == 1 || variant == 5;
          test.attr("top_k", s.k).attr("scoring", std::string(scoring));
          test.attr("order", std::string(then_score ? "select_then_score" : "score_then_select"));
          test.attr("renormalise", variant % 2 == 0).in("logits", dtype, {s.tokens, s.experts}, -4, 4);
          if (std::string(scoring) == "none" && variant % 2 == 0) test.port("logits").low = 0.5;  // a sum to divide by
          if (variant == 2) test.attr("renorm_eps", 1e-20).attr("scale", 2.5);
          if (variant == 3) test.attr("bias_on", std::string("score")).in("bias", DGPU_DTYPE_F32, {s.experts}, -1, 1);
          if (variant == 5) test.attr("bias_on", std::string("logit")).in("bias", DGPU_DTYPE_F32, {s.experts}, -1, 1);
          if (variant == 4 || variant == 6) {
            if (s.experts < 8 || s.k > s.experts / 2) continue;
            test.attr("groups", int64_t{4}).attr("group_top_k", int64_t{2});
            test.attr("group_score", std::string(variant == 4 ? "top2_sum" : "max"))
                .attr("masked_fill", std::string(variant == 4 ? "neg_inf" : "zero"));
          }
          test.out("weights", DGPU_DTYPE_F32, {s.tokens, s.k}).out("indices", DGPU_DTYPE_I32, {s.tokens, s.k});
          test.out("scores", DGPU_DTYPE_F32, {s.tokens, s.experts});
          test.judge = judge_route;
          grid.push_back(test);
        }
  Case given{.op = "moe_route"};
  given.attr("top_k", int64_t{3})
      .attr("scoring", std::string("sqrt_softplus"))
      .attr("order", std::string("score_then_select"));
  given.attr("renormalise", true).attr("scale", 1.5).in("logits", DGPU_DTYPE_F32, {4, 8}, -4, 4);
  given.data("ids", DGPU_DTYPE_I32, {4, 3}, integers(12, 8, 3))
      .out("weights", DGPU_DTYPE_F32, {4, 3})
      .out("indices", DGPU_DTYPE_I32, {4, 3});
  given.bound = relative(4 * kUlps);
  grid.push_back(given);
}

enum Packing { kUpOnly, kGateAndUp, kContiguous, kInterleaved };

Case experts(Types types, Packing packing, int64_t tokens, int64_t count, int64_t k, int64_t hidden, int64_t inner,
             bool bias) {
  Case test{.op = "moe_experts"};
  test.in("x", types.in, {tokens, hidden}).data("indices", DGPU_DTYPE_I32, {tokens, k}, integers(tokens * k, count, 7));
  test.in("weights", DGPU_DTYPE_F32, {tokens, k}, 0, 1).in("down", types.in, {count, hidden, inner});
  if (packing == kUpOnly || packing == kGateAndUp) test.in("up", types.in, {count, inner, hidden});
  if (packing == kGateAndUp) test.in("gate", types.in, {count, inner, hidden});
  if (packing == kContiguous || packing == kInterleaved) {
    test.in("gate_up", types.in, {count, 2 * inner, hidden})
        .attr("layout", std::string(packing == kContiguous ? "contiguous" : "interleaved"));
    if (bias) test.in("gate_up_bias", types.in, {count, 2 * inner});
  } else if (bias) {
    test.in("up_bias", types.in, {count, inner});
    if (packing == kGateAndUp) test.in("gate_bias", types.in, {count, inner});
  }
  if (bias) test.in("down_bias", types.in, {count, hidden});
  test.out("out", types.out, {tokens, hidden});
  return test;
}

// Magnitudes without activation and limits: |act(g)| <= |g|. Hidden activations may be rounded to x's type, independent
// of each other: in the sum over I of them this gives kLambda u_x / sqrt(I) of the magnitude.
void finish(Case& test, Types types, int64_t hidden, int64_t inner) {
  test.prepare = absolute_run(
      {{"activation", std::string("none")}, {"alpha", 1.0}, {"gate_max", INFINITY}, {"up_clamp", INFINITY}});
  const double sums =
      2.5 * (sum_factor(static_cast<double>(hidden)) + sum_factor(static_cast<double>(inner))) + 4 * kUlps;
  const double rounding =
      types.in == DGPU_DTYPE_F32 ? 0 : kLambda * unit_roundoff(types.in) / std::sqrt(static_cast<double>(inner));
  test.bound = [=](const Run& run, const Port& p, int64_t i) {
    const double magnitude = run.magnitude.at(p.name).v[i];
    return allowed(p.dtype, run.want.at(p.name).v[i], sums, magnitude) + rounding * magnitude;
  };
}

void moe_experts(Grid& grid, bool full) {
  struct Row {
    int64_t tokens, count, k, hidden, inner;
  };
  const auto rows = full ? std::vector<Row>{{1, 4, 2, 32, 48},
                                            {9, 8, 3, 65, 33},
                                            {40, 4, 2, 64, 96},
                                            {0, 4, 2, 16, 16},
                                            {3, 1, 1, 1, 1}}
                         : std::vector<Row>{{1, 4, 2, 32, 48}, {9, 8, 3, 65, 33}};
  for (const auto& types : type_pairs(full))
    for (const auto& r : rows)
      for (const Packing packing : {kUpOnly, kGateAndUp, kContiguous, kInterleaved})
        for (const bool bias : {false, true}) {
          Case test = experts(types, packing, r.tokens, r.count, r.k, r.hidden, r.inner, bias);
          test.attr("activation", std::string(bias ? "silu" : r.tokens == 9 ? "gelu_tanh" : "relu"));
          if (packing != kUpOnly && bias)
            test.attr("alpha", 1.702).attr("gate_max", 3.0).attr("up_clamp", 3.0).attr("up_offset", 1.0);
          if (r.tokens == 40) test.attr("scale_input", true);
          finish(test, types, r.hidden, r.inner);
          grid.push_back(test);
        }
  Case mapped = experts({DGPU_DTYPE_F32, DGPU_DTYPE_F32}, kGateAndUp, 6, 3, 3, 24, 16, false);
  mapped.attr("activation", std::string("silu"));
  mapped.port("indices").given = {0, 1, 2, 3, 4, 5, -1, 6, 0, 2, 2, 2, 6, 5, 4, -1, -1, -1};
  mapped.data("expert_map", DGPU_DTYPE_I32, {7}, {2, -1, 0, -2, 1, -1, 2});
  finish(mapped, {DGPU_DTYPE_F32, DGPU_DTYPE_F32}, 24, 16);
  grid.push_back(mapped);
}

}  // namespace

void moe_grid(Grid& grid, bool full) {
  moe_route(grid, full);
  moe_experts(grid, full);
}

}  // namespace conformance
