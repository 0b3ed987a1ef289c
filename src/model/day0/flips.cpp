#include "model/day0/flips.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "graph/roundings.h"

namespace dgpu::model {
namespace {

std::string text_attr(const graph::Node& node, const char* name) {
  const auto it = node.attrs.find(name);
  return it == node.attrs.end() ? "" : std::get<std::string>(it->second);
}

double scored(double logit, const std::string& scoring) {
  if (scoring == "sigmoid") return 1 / (1 + std::exp(-logit));
  if (scoring == "sqrt_softplus") return std::sqrt(std::log1p(std::exp(logit)));
  return logit;
}

// Largest slope of the scoring function: how much of a logit's error reaches the score.
double slope(const std::string& scoring) {
  if (scoring == "sigmoid") return 0.25;
  return 1;
}

// Without a bias on the score, every scoring is monotone in the logit, and gaps are measured there.
// The gap that had to be bridged: from the best expert that is missing to the worst that came in its place.
double margin_of(const float* logits, const float* bias, const std::set<int64_t>& truth, const std::set<int64_t>& ours,
                 const std::string& scoring, bool on_score) {
  double missing = -INFINITY, instead = INFINITY;
  const auto score = [&](int64_t e) {
    const double b = bias ? bias[e] : 0;
    return bias && on_score ? scored(logits[e], scoring) + b : logits[e] + b;
  };
  for (const int64_t e : truth)
    if (!ours.count(e)) missing = std::max(missing, score(e));
  for (const int64_t e : ours)
    if (!truth.count(e)) instead = std::min(instead, score(e));
  return missing - instead;
}

}  // namespace

graph::Routes routes_of(const Capture& run) {
  graph::Routes out;
  for (const auto& node : run.program.nodes) {
    const auto it = run.routing.find(node.name + ":indices");
    if (graph::chooses_experts(node) && it != run.routing.end())
      out[node.name].assign(it->second.data.begin(), it->second.data.end());
  }
  return out;
}

std::vector<Flip> find_flips(const Capture& low, const Capture& f32, double one_rounding) {
  std::vector<Flip> flips;
  const auto roundings = graph::count_roundings(low.program);
  for (graph::Id n = 0; n < low.program.nodes.size(); ++n) {
    const auto& node = low.program.nodes[n];
    if (!graph::chooses_experts(node)) continue;
    const auto a = low.routing.find(node.name + ":indices"), b = f32.routing.find(node.name + ":indices");
    const auto l = f32.routing.find(node.name + ":logits"), bias = f32.routing.find(node.name + ":bias");
    if (a == low.routing.end() || b == f32.routing.end() || l == f32.routing.end()) continue;
    const int64_t k = b->second.shape.back(), experts = l->second.shape.back();
    const auto tokens = static_cast<int64_t>(b->second.data.size()) / k;
    const auto scoring = text_attr(node, "scoring");
    const bool on_score = text_attr(node, "bias_on") == "score";
    const bool has_bias = bias != f32.routing.end();
    const auto set_of = [&](const HostValue& v, int64_t t) {
      return std::set<int64_t>(v.data.begin() + t * k, v.data.begin() + (t + 1) * k);
    };
    for (int64_t t = 0; t < tokens; ++t) {
      const auto ours = set_of(a->second, t), truth = set_of(b->second, t);
      if (ours == truth) continue;
      const float* row = l->second.data.data() + t * experts;
      double square = 0;
      for (int64_t e = 0; e < experts; ++e) square += double(row[e]) * row[e];
      // Root mean square error of one logit from the counted roundings, four times that for its tail, twice for a gap
      // of two logits.
      const auto rounded = low.routing.find(node.name + ":logits");
      const double r = rounded == low.routing.end() ? 1 : roundings[rounded->second.value];
      const double error =
          2 * 4 * one_rounding * std::sqrt(std::max(1.0, r)) * std::sqrt(square / static_cast<double>(experts));
      Flip f{node.name, t, 0, has_bias && on_score ? error * slope(scoring) : error, false};
      f.margin = margin_of(row, has_bias ? bias->second.data.data() : nullptr, truth, ours, scoring, on_score);
      f.excused = f.margin < f.error;
      flips.push_back(f);
    }
  }
  return flips;
}

}  // namespace dgpu::model
