// moe_route: selects experts for each token and weighs them. Scores are f64 from the logits on, so that a selection
// differs from the exact one only where the logits themselves leave it open.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backends/cpu/kernels.h"
#include "backends/cpu/rows.h"

namespace dgpu::cpu {
namespace {

enum class Scoring { softmax, sigmoid, sqrt_softplus, none };

bool larger(double a, double b) { return std::isnan(a) ? !std::isnan(b) : a > b; }

// The k best of n values, best first, ties by lowest index.
void best(const double* values, int64_t n, int64_t k, int64_t* out) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (count == k && !larger(values[i], values[out[k - 1]])) continue;
    int64_t at = count < k ? count++ : k - 1;
    for (; at > 0 && larger(values[i], values[out[at - 1]]); --at) out[at] = out[at - 1];
    out[at] = i;
  }
}

// In place; softmax sees all n.
void score(Scoring fn, double* x, int64_t n) {
  if (fn == Scoring::softmax) {
    double top = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int64_t i = 0; i < n; ++i) top = std::fmax(top, x[i]);
    for (int64_t i = 0; i < n; ++i) x[i] -= top;
    vec::exp_f64(x, n);
    for (int64_t i = 0; i < n; ++i) sum += x[i];
    for (int64_t i = 0; i < n; ++i) x[i] /= sum;
  } else if (fn == Scoring::sigmoid) {
    // exp of the negative magnitude; the sign of x is kept in that of the exponential.
    constexpr int64_t kPart = 256;
    double e[kPart];
    for (int64_t begin = 0; begin < n; begin += kPart) {
      const int64_t m = std::min(n - begin, kPart);
      for (int64_t i = 0; i < m; ++i) e[i] = -std::fabs(x[begin + i]);
      vec::exp_f64(e, m);
      for (int64_t i = 0; i < m; ++i) x[begin + i] = (x[begin + i] < 0 ? e[i] : 1) / (1 + e[i]);
    }
  } else if (fn == Scoring::sqrt_softplus) {
    for (int64_t i = 0; i < n; ++i) x[i] = std::sqrt(std::fmax(x[i], 0.0) + std::log1p(std::exp(-std::fabs(x[i]))));
  }
}

class MoeRoute final : public Kernel {
 public:
  MoeRoute(const kit::OpView& op, Scoring scoring)
      : logits_(bind(op, "logits")),
        bias_(bind(op, "bias")),
        ids_(bind(op, "ids")),
        weights_(bind(op, "weights")),
        indices_(bind(op, "indices")),
        scores_(bind(op, "scores")),
        scoring_(scoring),
        k_(op.i("top_k")),
        groups_(op.i("groups", 1)),
        kept_(op.i("group_top_k", 1)),
        top2_(op.s("group_score") == "top2_sum"),
        score_first_(op.s("order") == "score_then_select"),
        bias_on_score_(op.s("bias_on") == "score"),
        renormalise_(op.b("renormalise")),
        eps_(op.f("renorm_eps")),
        scale_(op.f("scale", 1)),
        fill_(op.s("masked_fill") == "zero" ? 0 : -std::numeric_limits<double>::infinity()) {}

  uint32_t chunks(uint32_t, const Args& a) const override { return split(a).count(); }

  dgpuStatus_t run(uint32_t, uint32_t chunk, const Args& a) const override {
    const int64_t experts = logits_.extent(1, a);
    const Split s = split(a);
    const float* bias = nullptr;
    if (bias_) bias = load_row(bias_.base(a), bias_.d.dtype, bias_.last_stride(), experts, scratch(0, experts));
    auto* chosen = scratch<int64_t>(1, k_);
    for (int64_t t = s.begin(chunk); t < s.end(chunk); ++t) {
      const float* row = load_row(logits_.at(a, t * logits_.d.strides[0]), logits_.d.dtype, logits_.last_stride(),
                                  experts, scratch(2, experts));
      if (const dgpuStatus_t status = token(a, t, row, bias, experts, chosen); status < 0) return status;
    }
    return DGPU_STATUS_SUCCESS;
  }
  const char* algorithm() const override { return ids_ ? "given" : "select"; }

 private:
  Split split(const Args& a) const {
    return Split(logits_.extent(0, a), kChunkElems / 4 / std::max<int64_t>(logits_.extent(1, a), 1));
  }

  dgpuStatus_t token(const Args& a, int64_t t, const float* row, const float* bias, int64_t experts,
                     int64_t* chosen) const {
    double* scored = nullptr;  // of the logits without bias, where that is what the weights are made of
    if (score_first_) {
      scored = scratch<double>(3, experts);
      std::copy(row, row + experts, scored);
      score(scoring_, scored, experts);
    }
    if (!ids_ || scores_) {
      double* selection = scratch<double>(4, experts);
      select_by(row, bias, experts, scored, selection);
      for (int64_t e = 0; scores_ && e < experts; ++e) {
        auto* p = reinterpret_cast<float*>(scores_.base(a));
        p[t * scores_.d.strides[0] + e * scores_.d.strides[1]] = static_cast<float>(selection[e]);
      }
      if (!ids_) {
        if (groups_ > 1) mask_groups(selection, experts);
        best(selection, experts, k_, chosen);
      }
    }
    for (int64_t j = 0; ids_ && j < k_; ++j) {
      chosen[j] = load_int(ids_.base(a), ids_.d.dtype, t * ids_.d.strides[0] + j * ids_.d.strides[1]);
      if (chosen[j] < 0 || chosen[j] >= experts) return bad_id(t, j, chosen[j], experts);
    }
    weigh(a, t, row, scored, chosen);
    return DGPU_STATUS_SUCCESS;
  }

  static dgpuStatus_t bad_id(int64_t t, int64_t j, int64_t id, int64_t experts) {
    return kit::fail(DGPU_STATUS_DATA_OUT_OF_RANGE, "moe_route: ids[" + std::to_string(t) + "," + std::to_string(j) +
                                                        "] = " + std::to_string(id) + ": expected 0 to " +
                                                        std::to_string(experts - 1));
  }

  void select_by(const float* row, const float* bias, int64_t experts, const double* scored, double* selection) const {
    const bool rescore = score_first_ && bias && !bias_on_score_;
    if (score_first_ && !rescore)
      std::copy(scored, scored + experts, selection);
    else
      std::copy(row, row + experts, selection);
    for (int64_t e = 0; bias && e < experts; ++e) selection[e] += static_cast<double>(bias[e]);
    if (rescore) score(scoring_, selection, experts);
  }

  void mask_groups(double* s, int64_t experts) const {
    const int64_t size = experts / groups_;
    double* value = scratch<double>(5, groups_);
    auto* keep = scratch<int64_t>(6, kept_);
    for (int64_t g = 0; g < groups_; ++g) {
      int64_t two[2] = {0, 0};
      best(s + g * size, size, top2_ ? 2 : 1, two);
      value[g] = s[g * size + two[0]] + (top2_ ? s[g * size + two[1]] : 0);
    }
    best(value, groups_, kept_, keep);
    std::sort(keep, keep + kept_);
    for (int64_t g = 0, next = 0; g < groups_; ++g) {
      if (next < kept_ && keep[next] == g)
        ++next;
      else
        std::fill(s + g * size, s + (g + 1) * size, fill_);
    }
  }

  void weigh(const Args& a, int64_t t, const float* row, const double* scored, const int64_t* chosen) const {
    double* w = scratch<double>(5, k_);
    for (int64_t j = 0; j < k_; ++j) w[j] = score_first_ ? scored[chosen[j]] : static_cast<double>(row[chosen[j]]);
    if (!score_first_) score(scoring_, w, k_);
    double sum = 0;
    for (int64_t j = 0; j < k_; ++j) sum += w[j];
    auto* weights = reinterpret_cast<float*>(weights_.base(a)) + t * weights_.d.strides[0];
    auto* indices = reinterpret_cast<int32_t*>(indices_.base(a)) + t * indices_.d.strides[0];
    for (int64_t j = 0; j < k_; ++j) {
      weights[j * weights_.d.strides[1]] = static_cast<float>((renormalise_ ? w[j] / (sum + eps_) : w[j]) * scale_);
      indices[j * indices_.d.strides[1]] = static_cast<int32_t>(chosen[j]);
    }
  }

  Port logits_, bias_, ids_, weights_, indices_, scores_;
  Scoring scoring_;
  int64_t k_, groups_, kept_;
  bool top2_, score_first_, bias_on_score_, renormalise_;
  double eps_, scale_, fill_;
};

std::unique_ptr<Kernel> make_moe_route(const kit::OpView& op, std::string* reason) {
  if (!accept_floats(op, {"logits", "bias"}, reason)) return nullptr;
  const std::string_view s = op.s("scoring");
  return std::make_unique<MoeRoute>(op, s == "softmax"         ? Scoring::softmax
                                        : s == "sigmoid"       ? Scoring::sigmoid
                                        : s == "sqrt_softplus" ? Scoring::sqrt_softplus
                                                               : Scoring::none);
}

const char* const kAttributes[] = {"top_k",
                                   "scoring=softmax|sigmoid|sqrt_softplus|none",
                                   "order=score_then_select|select_then_score",
                                   "bias_on=score|logit",
                                   "groups",
                                   "group_top_k",
                                   "group_score=max|top2_sum",
                                   "masked_fill=neg_inf|zero",
                                   "renormalise",
                                   "renorm_eps",
                                   "scale",
                                   nullptr};
const char* const kPorts[] = {"logits=f32|bf16|f16", "bias=f32|bf16|f16", "ids=i32", "weights=f32",
                              "indices=i32",         "scores=f32",        nullptr};
const dgpuBackendClaim kClaim = {sizeof(dgpuBackendClaim), "moe_route", 1, 0, kAttributes, kPorts};

}  // namespace

const KernelEntry moe_route_kernel = {"moe_route", make_moe_route, &kClaim};

}  // namespace dgpu::cpu
