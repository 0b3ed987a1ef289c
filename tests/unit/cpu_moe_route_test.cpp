#include "cpu_kernel_runner.h"

namespace dgpu::cpu::test {
namespace {

struct Router {
  const char *scoring, *order, *bias_on;
  int64_t experts, k, groups, kept;
  const char *group_score, *fill;
  bool renormalise;
};

Case route(const Router& r, int64_t tokens, dgpuDtype_t type, const std::function<double(int64_t)>& logits) {
  Case c("moe_route");
  c.attr("top_k", r.k).attr("scoring", std::string(r.scoring)).attr("order", std::string(r.order));
  c.attr("renormalise", r.renormalise).attr("scale", 2.5).attr("renorm_eps", 1e-20);
  c.port("logits", packed(type, {tokens, r.experts}), logits);
  if (r.bias_on) {
    c.attr("bias_on", std::string(r.bias_on));
    c.port("bias", packed(DGPU_DTYPE_F32, {r.experts}), normal(2, 0.3));
  }
  if (r.groups > 1) {
    c.attr("groups", r.groups).attr("group_top_k", r.kept);
    c.attr("group_score", std::string(r.group_score)).attr("masked_fill", std::string(r.fill));
  }
  return c;
}

const Router kRouters[] = {
    {"softmax", "score_then_select", nullptr, 128, 8, 1, 1, nullptr, nullptr, true},        // Qwen3-MoE
    {"softmax", "select_then_score", "logit", 32, 4, 1, 1, nullptr, nullptr, false},        // gpt-oss
    {"sigmoid", "score_then_select", "score", 256, 8, 8, 4, "top2_sum", "zero", true},      // DeepSeek-V3
    {"softmax", "score_then_select", nullptr, 160, 6, 8, 3, "max", "neg_inf", false},       // DeepSeek-V2
    {"sqrt_softplus", "score_then_select", "score", 256, 6, 1, 1, nullptr, nullptr, true},  // DeepSeek-V4
    {"sigmoid", "select_then_score", nullptr, 16, 1, 1, 1, nullptr, nullptr, false},        // Llama-4
    {"none", "score_then_select", "logit", 7, 7, 1, 1, nullptr, nullptr, true},
    {"softmax", "score_then_select", "logit", 24, 3, 4, 1, "top2_sum", "neg_inf", false},
};

TEST(CpuMoeRoute, EveryRouterTypeAndInstructionSet) {
  for_each_isa([] {
    for (const Router& r : kRouters)
      for (const dgpuDtype_t type : kFloats)
        for (const bool scores : {false, true}) {
          SCOPED_TRACE(std::string(r.scoring) + " " + r.order + " " + std::to_string(r.experts));
          Case c = route(r, 200, type, normal(1, 2));
          if (scores) c.out("scores", DGPU_DTYPE_F32);
          c.out("weights", DGPU_DTYPE_F32).out("indices", DGPU_DTYPE_I32);
          // bf16 logits tie; the selection must be the exact one, to the index.
          check(c, "indices", 0);
          check(c, "weights", 2, 1e-12);
          if (scores) check(c, "scores", 2, 1e-12);
          if (HasFatalFailure()) return;
        }
  });
}

TEST(CpuMoeRoute, TiesTakeTheLowestIndex) {
  for (const Router& r : kRouters) {
    Router tied = r;
    tied.bias_on = nullptr;
    Case c = route(tied, 5, DGPU_DTYPE_F32, [](int64_t i) { return static_cast<double>(i % 3); });
    c.out("weights", DGPU_DTYPE_F32).out("indices", DGPU_DTYPE_I32);
    check(c, "indices", 0);
    check(c, "weights", 2, 1e-12);
  }
}

TEST(CpuMoeRoute, GivenIdsAndStrides) {
  Case c("moe_route");
  c.attr("top_k", int64_t{3})
      .attr("scoring", std::string("sqrt_softplus"))
      .attr("order", std::string("score_then_select"));
  c.attr("renormalise", true).attr("scale", 1.5);
  c.port("logits", strided(DGPU_DTYPE_F32, {9, 20}, {1, 0}, 1), normal(3));
  c.port("ids", strided(DGPU_DTYPE_I32, {9, 3}, {1, 0}, 2), [](int64_t i) { return i * 7 % 20; });
  c.port("weights", strided(DGPU_DTYPE_F32, {9, 3}, {1, 0}, 0));
  c.port("indices", strided(DGPU_DTYPE_I32, {9, 3}, {1, 0}, 1)).out("scores", DGPU_DTYPE_F32);
  check(c, "indices", 0);
  check(c, "weights", 2);
  check(c, "scores", 2);
}

TEST(CpuMoeRoute, IdOutOfRangeFails) {
  Case c("moe_route");
  c.attr("top_k", int64_t{2}).attr("scoring", std::string("none")).attr("order", std::string("score_then_select"));
  c.attr("renormalise", false).port("logits", packed(DGPU_DTYPE_F32, {2, 4}), normal(4));
  c.port("ids", packed(DGPU_DTYPE_I32, {2, 2}), [](int64_t i) { return i == 3 ? 4 : 0; });
  c.out("weights", DGPU_DTYPE_F32).out("indices", DGPU_DTYPE_I32);
  EXPECT_EQ(c.run(), DGPU_STATUS_DATA_OUT_OF_RANGE);
  EXPECT_NE(kit::failure().find("moe_route: ids[1,1] = 4: expected 0 to 3"), std::string::npos) << kit::failure();
}

}  // namespace
}  // namespace dgpu::cpu::test
