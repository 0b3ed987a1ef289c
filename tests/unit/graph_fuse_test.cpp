// Fusion keeps the meaning of a program and the values that taps ask for.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>

#include "graph/passes/passes.h"
#include "graph/reference.h"
#include "model/day0/documents.h"
#include "model/model.h"

namespace dgpu::graph {
namespace {

size_t count(const Program& p, const std::string& op) {
  return std::count_if(p.nodes.begin(), p.nodes.end(), [&](const Node& n) { return n.op == op; });
}

std::shared_ptr<const model::Model> fixture(const std::string& name) {
  const char* dir = std::getenv("DGPU_SHARED");
  std::shared_ptr<const model::Model> m;
  if (!dir) return m;
  EXPECT_EQ(model::Model::open(std::string(dir) + "/models/" + name, "", false, m), 0) << last_error().message;
  return m;
}

std::map<std::string, std::vector<double>> run(const model::Model& m, const Program& p) {
  std::map<std::string, std::vector<double>> out;
  ReferenceRun r;
  r.tokens = {1, 5, 3, 7, 2, 9, 4, 11, 6, 8, 10, 12};
  r.load = [&](Id id, ops::RefTensor& t) { return model::load_reference_weight(p, m.checkpoint(), id, t); };
  r.tap = [&](const std::string& name, const ops::RefTensor& t) -> Status { return out[name] = t.f, 0; };
  EXPECT_EQ(run_reference(p, r), 0) << last_error().message;
  return out;
}

TEST(GraphFuse, SameValuesFewerNodes) {
  for (const char* name : {"llama2", "qwen2-bias", "qwen3-moe", "mixtral"}) {
    const auto m = fixture(name);
    if (!m) GTEST_SKIP() << "DGPU_SHARED is not set: no fixture models";
    const auto before = run(*m, m->program());
    for (const bool all : {false, true}) {
      Program fused = m->program();
      FuseOptions options;
      options.all_taps = all;
      options.taps = {"layers.1.output"};
      ASSERT_EQ(fuse(fused, options), 0) << last_error().message;
      EXPECT_LT(fused.nodes.size(), m->program().nodes.size()) << name;
      const auto after = run(*m, fused);
      EXPECT_EQ(after.size(), all ? before.size() : 2) << name;
      for (const auto& [tap, values] : after) {
        const auto& want = before.at(tap);
        ASSERT_EQ(values.size(), want.size());
        for (size_t i = 0; i < values.size(); ++i)
          ASSERT_NEAR(values[i], want[i], 1e-12 * (1 + std::fabs(want[i]))) << name << ": " << tap;
      }
    }
  }
}

TEST(GraphFuse, DenseBlockBecomesMatmulsWithEpilogues) {
  const auto m = fixture("llama2");
  if (!m) GTEST_SKIP() << "DGPU_SHARED is not set: no fixture models";
  Program fused = m->program();
  ASSERT_EQ(fuse(fused, {}), 0);
  EXPECT_EQ(count(fused, "glu"), 0u);
  EXPECT_EQ(count(fused, "binary"), 0u);
  EXPECT_EQ(count(fused, "matmul"), 3u * 7 + 1);
  EXPECT_TRUE(fused.taps.empty());
}

TEST(GraphFuse, TapPreventsFusion) {
  const auto m = fixture("llama2");
  if (!m) GTEST_SKIP() << "DGPU_SHARED is not set: no fixture models";
  Program fused = m->program();
  FuseOptions options;
  options.taps = {"layers.0.self_attn"};
  ASSERT_EQ(fuse(fused, options), 0);
  ASSERT_EQ(fused.taps.size(), 1u);
  // The attention output of layer 0 is still there before the residual is added, by the norm that follows.
  EXPECT_EQ(fused.nodes[fused.producer(fused.taps[0].value)].input("residual"), kNone);
}

}  // namespace
}  // namespace dgpu::graph
