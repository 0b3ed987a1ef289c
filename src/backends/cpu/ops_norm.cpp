// rms_norm and layer_norm: rows over the last dimension.
#include <cmath>

#include "backends/cpu/kernels.h"
#include "backends/cpu/rows.h"

namespace dgpu::cpu {
namespace {

// Rows of up to four tensors that share the leading dimensions; an unbound port has stride 0.
Grid<4> row_grid(const Port& x, const std::array<const Port*, 4>& ports, const Args& a) {
  Grid<4> g;
  for (uint32_t i = 0; i + 1 < x.d.rank; ++i) {
    std::array<int64_t, 4> strides;
    for (int t = 0; t < 4; ++t) strides[t] = *ports[t] ? ports[t]->d.strides[i] : 0;
    g.push(x.extent(i, a), strides);
  }
  return g;
}

int64_t row_count(const Port& x, const Args& a) {
  int64_t n = 1;
  for (uint32_t i = 0; i + 1 < x.d.rank; ++i) n *= x.extent(i, a);
  return n;
}

Split split_rows(const Port& x, const Args& a) {
  const int64_t width = x.extent(x.d.rank - 1, a);
  return Split(width ? row_count(x, a) : 0, kChunkElems / (width ? width : 1));
}

class RmsNorm final : public Kernel {
 public:
  explicit RmsNorm(const kit::OpView& op)
      : x_(bind(op, "x")),
        weight_(bind(op, "weight")),
        residual_(bind(op, "residual")),
        out_(bind(op, "out")),
        sum_(bind(op, "sum")),
        eps_(op.f("eps")),
        offset_(static_cast<float>(op.f("weight_offset", 0))),
        y_type_(op.s("cast") == "before_weight" ? x_.d.dtype : dgpuDtype_t{DGPU_DTYPE_F32}),
        sum_type_(sum_ ? sum_.d.dtype : x_.d.dtype) {}
  uint32_t chunks(uint32_t, const Args& a) const override { return split_rows(x_, a).count(); }

  dgpuStatus_t run(uint32_t, uint32_t chunk, const Args& a) const override {
    const int64_t width = x_.extent(x_.d.rank - 1, a);
    const Split split = split_rows(x_, a);
    const float* weight = weight_ ? load_weight(a, width) : nullptr;
    const Grid<4> g = row_grid(x_, {&x_, &residual_, &out_, &sum_}, a);
    for_runs(g, split.begin(chunk), split.end(chunk), 1,
             [&](const Cursor<4>& c, int64_t) { row(a, c.offset, width, weight); });
    return DGPU_STATUS_SUCCESS;
  }
  const char* algorithm() const override { return "rows"; }

 private:
  const float* load_weight(const Args& a, int64_t width) const {
    float* w = scratch(0, width);
    const float* loaded = load_row(weight_.base(a), weight_.d.dtype, weight_.last_stride(), width, w);
    if (offset_ == 0) return loaded;
    for (int64_t i = 0; i < width; ++i) w[i] = loaded[i] + offset_;
    return w;
  }

  void row(const Args& a, const int64_t* offset, int64_t width, const float* weight) const {
    const float* r = load_row(x_.at(a, offset[0]), x_.d.dtype, x_.last_stride(), width, scratch(1, width));
    if (residual_) {
      const float* other =
          load_row(residual_.at(a, offset[1]), residual_.d.dtype, residual_.last_stride(), width, scratch(2, width));
      float* s = scratch(1, width);
      vec::add_rounded(r, other, sum_type_, s, width);
      r = s;
    }
    if (sum_) store_row(r, sum_.at(a, offset[3]), sum_type_, sum_.last_stride(), width);
    const double mean = vec::sum_sq(r, width) / static_cast<double>(width);
    const auto inv = static_cast<float>(1 / std::sqrt(mean + eps_));
    char* to = out_.at(a, offset[2]);
    float* y = target_row(to, out_.d.dtype, out_.last_stride(), scratch(3, width));
    if (weight)
      vec::scale_mul(r, inv, y_type_, weight, y, width);
    else
      vec::scale(r, inv, y, width);
    finish_row(y, to, out_.d.dtype, out_.last_stride(), width);
  }

  Port x_, weight_, residual_, out_, sum_;
  double eps_;
  float offset_;
  dgpuDtype_t y_type_;  // what the normalised value is rounded to before the product
  dgpuDtype_t sum_type_;
};

std::unique_ptr<Kernel> make_rms_norm(const kit::OpView& op, std::string* reason) {
  if (!accept_floats(op, {"x", "weight", "residual", "out", "sum"}, reason)) return nullptr;
  return std::make_unique<RmsNorm>(op);
}

class LayerNorm final : public Kernel {
 public:
  explicit LayerNorm(const kit::OpView& op)
      : x_(bind(op, "x")),
        weight_(bind(op, "weight")),
        bias_(bind(op, "bias")),
        out_(bind(op, "out")),
        eps_(op.f("eps")) {}
  uint32_t chunks(uint32_t, const Args& a) const override { return split_rows(x_, a).count(); }

  dgpuStatus_t run(uint32_t, uint32_t chunk, const Args& a) const override {
    const int64_t width = x_.extent(x_.d.rank - 1, a);
    const Split split = split_rows(x_, a);
    const float* w =
        weight_ ? load_row(weight_.base(a), weight_.d.dtype, weight_.last_stride(), width, scratch(0, width)) : nullptr;
    const float* b =
        bias_ ? load_row(bias_.base(a), bias_.d.dtype, bias_.last_stride(), width, scratch(2, width)) : nullptr;
    const Port none;
    const Grid<4> g = row_grid(x_, {&x_, &none, &out_, &none}, a);
    for_runs(g, split.begin(chunk), split.end(chunk), 1, [&](const Cursor<4>& c, int64_t) {
      const float* x = load_row(x_.at(a, c.offset[0]), x_.d.dtype, x_.last_stride(), width, scratch(1, width));
      const auto mean = static_cast<float>(vec::sum(x, width) / static_cast<double>(width));
      const double variance = vec::sum_sq_diff(x, mean, width) / static_cast<double>(width);
      const auto inv = static_cast<float>(1 / std::sqrt(variance + eps_));
      char* to = out_.at(a, c.offset[2]);
      float* y = target_row(to, out_.d.dtype, out_.last_stride(), scratch(3, width));
      vec::affine(x, mean, inv, w, b, y, width);
      finish_row(y, to, out_.d.dtype, out_.last_stride(), width);
    });
    return DGPU_STATUS_SUCCESS;
  }
  const char* algorithm() const override { return "rows"; }

 private:
  Port x_, weight_, bias_, out_;
  double eps_;
};

std::unique_ptr<Kernel> make_layer_norm(const kit::OpView& op, std::string* reason) {
  if (!accept_floats(op, {"x", "weight", "bias", "out"}, reason)) return nullptr;
  return std::make_unique<LayerNorm>(op);
}

const char* const kRmsAttributes[] = {"eps", "weight_offset", "cast=before_weight|after_weight", nullptr};
const char* const kRmsPorts[] = {"x=f32|bf16|f16",   "weight=f32|bf16|f16", "residual=f32|bf16|f16",
                                 "out=f32|bf16|f16", "sum=f32|bf16|f16",    nullptr};
const dgpuBackendClaim kRmsClaim = {sizeof(dgpuBackendClaim), "rms_norm", 1, 0, kRmsAttributes, kRmsPorts};

const char* const kLayerAttributes[] = {"eps", nullptr};
const char* const kLayerPorts[] = {"x=f32|bf16|f16", "weight=f32|bf16|f16", "bias=f32|bf16|f16", "out=f32|bf16|f16",
                                   nullptr};
const dgpuBackendClaim kLayerClaim = {sizeof(dgpuBackendClaim), "layer_norm", 1, 0, kLayerAttributes, kLayerPorts};

}  // namespace

const KernelEntry rms_norm_kernel = {"rms_norm", make_rms_norm, &kRmsClaim};
const KernelEntry layer_norm_kernel = {"layer_norm", make_layer_norm, &kLayerClaim};

}  // namespace dgpu::cpu
