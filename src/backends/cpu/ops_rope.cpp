// rope and rope_freqs: rotary position embedding.
#include <algorithm>
#include <cmath>
#include <vector>

#include "backends/cpu/kernels.h"
#include "backends/cpu/rows.h"

namespace dgpu::cpu {
namespace {

// ---- rope -----------------------------------------------------------------------------------------------------------

// Angles beyond this are reduced by the C library: the vector reduction is exact below.
constexpr double kVectorAngle = 1048576.0;

class Rope final : public Kernel {
 public:
  explicit Rope(const kit::OpView& op)
      : x_(bind(op, "x")),
        positions_(bind(op, "positions")),
        freqs_(bind(op, "freqs")),
        rows_(bind(op, "rows")),
        scale_(bind(op, "scale")),
        out_(bind(op, "out")),
        half_(op.s("pairing") == "half"),
        tail_(op.s("at") == "tail"),
        angle32_(op.s("angle") == "f32"),
        inverse_(op.b("inverse")) {}

  uint32_t chunks(uint32_t, const Args& a) const override { return split(grid(a), a).count(); }

  dgpuStatus_t run(uint32_t, uint32_t chunk, const Args& a) const override {
    const Grid<4> g = grid(a);
    const Split s = split(g, a);
    const int64_t r2 = freqs_.extent(freqs_.d.rank - 1, a);
    auto* angles = scratch<double>(0, r2);
    float* cosine = scratch(1, 2 * r2);
    const float scale = scale_ ? *reinterpret_cast<const float*>(scale_.base(a)) : 1.0f;
    dgpuStatus_t status = DGPU_STATUS_SUCCESS;
    for_runs(g, s.begin(chunk), s.end(chunk), 1, [&](const Cursor<4>& c, int64_t) {
      const int64_t position = load_int(positions_.base(a), positions_.d.dtype, c.offset[2]);
      int64_t row = 0;
      if (rows_) {
        row = load_int(rows_.base(a), rows_.d.dtype, c.offset[3]);
        if (row < 0 || row >= freqs_.extent(0, a)) {
          status = bad_row(row, freqs_.extent(0, a));
          return;
        }
      }
      table(a, position, row, r2, scale, angles, cosine, cosine + r2);
      token(a, c.offset[0], c.offset[1], r2, cosine, cosine + r2);
    });
    return status;
  }
  const char* algorithm() const override { return half_ ? "half" : "interleave"; }

 private:
  static dgpuStatus_t bad_row(int64_t row, int64_t limit) {
    return kit::fail(DGPU_STATUS_DATA_OUT_OF_RANGE,
                     "rope: rows holds " + std::to_string(row) + ": expected 0 to " + std::to_string(limit - 1));
  }

  Grid<4> grid(const Args& a) const {
    Grid<4> g;
    for (uint32_t i = 0; i + 2 < x_.d.rank; ++i)
      g.push(x_.extent(i, a),
             {x_.d.strides[i], out_.d.strides[i], positions_.d.strides[i], rows_ ? rows_.d.strides[i] : 0});
    return g;
  }
  Split split(const Grid<4>& g, const Args& a) const {
    const int64_t width = x_.extent(x_.d.rank - 2, a) * x_.extent(x_.d.rank - 1, a);
    return Split(width ? g.total : 0, kChunkElems / (width ? width : 1));
  }

  // cos and sin of one position, times scale; the sine is negated to rotate back.
  void table(const Args& a, int64_t position, int64_t row, int64_t r2, float scale, double* angles, float* cosine,
             float* sine) const {
    const auto* f = reinterpret_cast<const float*>(freqs_.base(a)) + (rows_ ? row * freqs_.d.strides[0] : 0);
    const int64_t stride = freqs_.last_stride();
    double largest = 0;
    for (int64_t i = 0; i < r2; ++i) {
      const float freq = f[i * stride];
      angles[i] = angle32_ ? static_cast<double>(static_cast<float>(position) * freq)
                           : static_cast<double>(position) * static_cast<double>(freq);
      largest = std::max(largest, std::fabs(angles[i]));
    }
    vec::cos_sin(angles, scale, cosine, sine, r2);
    for (int64_t i = 0; largest > kVectorAngle && i < r2; ++i) {
      if (!(std::fabs(angles[i]) > kVectorAngle)) continue;
      cosine[i] = static_cast<float>(std::cos(angles[i])) * scale;
      sine[i] = static_cast<float>(std::sin(angles[i])) * scale;
    }
    if (inverse_) vec::scale(sine, -1, sine, r2);
  }

  // All heads of one token, as one run where they lie one after the other.
  void token(const Args& a, int64_t x_offset, int64_t out_offset, int64_t r2, const float* cosine,
             const float* sine) const {
    const uint32_t head_dim = x_.d.rank - 2;
    const int64_t heads = x_.extent(head_dim, a), width = x_.extent(head_dim + 1, a);
    const int64_t xs = x_.d.strides[head_dim], os = out_.d.strides[head_dim];
    const bool packed = x_.last_stride() == 1 && out_.last_stride() == 1 && xs == width && os == width;
    const int64_t at_once = packed ? heads : 1;
    const int64_t n = at_once * width, begin = tail_ ? width - 2 * r2 : 0;
    float* buffer = scratch(2, n);
    for (int64_t h = 0; h < heads; h += at_once) {
      char* to = out_.at(a, out_offset + h * os);
      const float* x = load_row(x_.at(a, x_offset + h * xs), x_.d.dtype, x_.last_stride(), n, buffer);
      float* y = target_row(to, out_.d.dtype, out_.last_stride(), buffer);
      if (x != y && 2 * r2 < width) std::memcpy(y, x, static_cast<size_t>(n) * sizeof(float));
      for (int64_t i = begin; i < n; i += width) rotate(x + i, y + i, r2, cosine, sine);
      finish_row(y, to, out_.d.dtype, out_.last_stride(), n);
    }
  }

  void rotate(const float* x, float* y, int64_t r2, const float* cosine, const float* sine) const {
    if (half_) return vec::rotate(x, x + r2, cosine, sine, y, y + r2, r2);
    float* even = scratch(3, 2 * r2);
    vec::split_pairs(x, even, even + r2, r2);
    vec::rotate(even, even + r2, cosine, sine, even, even + r2, r2);
    vec::join_pairs(even, even + r2, y, r2);
  }

  Port x_, positions_, freqs_, rows_, scale_, out_;
  bool half_, tail_, angle32_, inverse_;
};

std::unique_ptr<Kernel> make_rope(const kit::OpView& op, std::string* reason) {
  if (!accept_floats(op, {"x", "out"}, reason)) return nullptr;
  return std::make_unique<Rope>(op);
}

// ---- rope_freqs ----

// The published implementation (Hugging Face transformers, modeling_rope_utils) computes tensors in f32 and scalars of
// the configuration in f64; each f32 operation here is one of its operations.
constexpr double kPi = 3.14159265358979323846;

// theta^(2i / dim) in f32.
float power(float theta, int64_t i, int64_t dim) {
  const float exponent = static_cast<float>(2 * i) / static_cast<float>(dim);
  return static_cast<float>(std::pow(static_cast<double>(theta), static_cast<double>(exponent)));
}

float llama3(const kit::OpView& op, float f) {
  const auto original = static_cast<double>(op.i("original_max_position"));
  const double low = op.f("low_freq_factor"), high = op.f("high_freq_factor");
  const auto factor = static_cast<float>(op.f("factor"));
  const float wavelength = static_cast<float>(2 * kPi) / f;
  if (wavelength > static_cast<float>(original / low)) return f / factor;
  if (wavelength < static_cast<float>(original / high)) return f;
  const float smooth =
      (static_cast<float>(original) / wavelength - static_cast<float>(low)) / static_cast<float>(high - low);
  return (1 - smooth) * f / factor + smooth * f;
}

// Which dimensions keep their frequency: from `low` (all of it) to `high` (none of it).
struct YarnRange {
  double low, high;
};
YarnRange yarn_range(const kit::OpView& op) {
  const auto dim = static_cast<double>(op.i("dim")), original = static_cast<double>(op.i("original_max_position"));
  const auto at = [&](double turns) {
    return dim * std::log(original / (turns * 2 * kPi)) / (2 * std::log(op.f("theta")));
  };
  double low = at(op.f("beta_fast", 32)), high = at(op.f("beta_slow", 1));
  if (op.b("truncate", true)) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;  // keeps the ramp finite
  return {low, high};
}

float yarn(const kit::OpView& op, const YarnRange& range, int64_t i) {
  const float p = power(static_cast<float>(op.f("theta")), i, op.i("dim"));
  const float kept = 1 / p, stretched = 1 / (static_cast<float>(op.f("factor")) * p);
  const float ramp = std::clamp(
      (static_cast<float>(i) - static_cast<float>(range.low)) / static_cast<float>(range.high - range.low), 0.0f, 1.0f);
  const float keep = 1 - ramp;
  return stretched * (1 - keep) + kept * keep;
}

double yarn_scale(const kit::OpView& op) {
  if (const double given = op.f("attention_factor"); given != 0) return given;
  const double factor = op.f("factor"), mscale = op.f("mscale"), all = op.f("mscale_all_dim");
  const auto m = [&](double k) { return factor > 1 ? 0.1 * k * std::log(factor) + 1 : 1.0; };
  return mscale != 0 && all != 0 ? m(mscale) / m(all) : m(1);
}

class RopeFreqs final : public Kernel {
 public:
  explicit RopeFreqs(const kit::OpView& op)
      : lengths_(bind(op, "lengths")), freqs_(bind(op, "freqs")), scale_(bind(op, "scale")), dim_(op.i("dim")) {
    const std::string_view type = op.s("type");
    theta_ = static_cast<float>(op.f("theta"));
    if (type == "dynamic") {
      factor_ = op.f("factor");
      max_position_ = op.i("max_position");
      return;
    }
    if (type == "yarn") scale_value_ = static_cast<float>(yarn_scale(op));
    const YarnRange range = type == "yarn" ? yarn_range(op) : YarnRange{};
    for (int64_t i = 0; i < dim_ / 2; ++i) {
      const float f = 1 / power(theta_, i, dim_);
      table_.push_back(type == "linear"   ? f / static_cast<float>(op.f("factor"))
                       : type == "llama3" ? llama3(op, f)
                       : type == "yarn"   ? yarn(op, range, i)
                                          : f);
    }
  }

  uint32_t chunks(uint32_t, const Args& a) const override {
    return Split(lengths_ ? std::max<int64_t>(lengths_.extent(0, a), 1) : 1, kRowsPerChunk).count();
  }

  dgpuStatus_t run(uint32_t, uint32_t chunk, const Args& a) const override {
    if (scale_ && chunk == 0) *reinterpret_cast<float*>(scale_.base(a)) = scale_value_;
    auto* freqs = reinterpret_cast<float*>(freqs_.base(a));
    if (!lengths_) {
      for (int64_t i = 0; i < dim_ / 2; ++i) freqs[i * freqs_.last_stride()] = table_[static_cast<size_t>(i)];
      return DGPU_STATUS_SUCCESS;
    }
    const int64_t n = lengths_.extent(0, a);
    const Split s(n, kRowsPerChunk);
    for (int64_t b = s.begin(chunk); b < s.end(chunk); ++b) {
      const int64_t length = load_int(lengths_.base(a), lengths_.d.dtype, b * lengths_.d.strides[0]);
      if (length < 0)
        return kit::fail(DGPU_STATUS_DATA_OUT_OF_RANGE, "rope_freqs: lengths[" + std::to_string(b) +
                                                            "] = " + std::to_string(length) + ": expected at least 0");
      const float base = dynamic_base(length);
      for (int64_t i = 0; i < dim_ / 2; ++i)
        freqs[b * freqs_.d.strides[0] + i * freqs_.d.strides[1]] = 1 / power(base, i, dim_);
    }
    return DGPU_STATUS_SUCCESS;
  }
  const char* algorithm() const override { return lengths_ ? "per sequence" : "table"; }

 private:
  static constexpr int64_t kRowsPerChunk = 16;

  float dynamic_base(int64_t length) const {
    const int64_t s = std::max(length, max_position_);
    const auto dim = static_cast<double>(dim_);
    const float ratio = static_cast<float>(factor_) * static_cast<float>(s) / static_cast<float>(max_position_);
    const float grown = ratio - static_cast<float>(factor_ - 1);
    const auto exponent = static_cast<float>(dim / (dim - 2));
    return theta_ * static_cast<float>(std::pow(static_cast<double>(grown), static_cast<double>(exponent)));
  }

  Port lengths_, freqs_, scale_;
  int64_t dim_;
  float theta_ = 0, scale_value_ = 1;
  double factor_ = 1;
  int64_t max_position_ = 1;
  std::vector<float> table_;
};

std::unique_ptr<Kernel> make_rope_freqs(const kit::OpView& op, std::string*) { return std::make_unique<RopeFreqs>(op); }

const char* const kRopeAttributes[] = {"pairing=half|interleave", "at=head|tail", "angle=f32|f64", "inverse", nullptr};
const char* const kRopePorts[] = {"x=f32|bf16|f16", "positions=i32|i64", "freqs=f32", "rows=i32|i64",
                                  "scale=f32",      "out=f32|bf16|f16",  nullptr};
const dgpuBackendClaim kRopeClaim = {sizeof(dgpuBackendClaim), "rope", 1, 0, kRopeAttributes, kRopePorts};

const char* const kFreqsAttributes[] = {"type=default|linear|dynamic|llama3|yarn",
                                        "dim",
                                        "theta",
                                        "factor",
                                        "low_freq_factor",
                                        "high_freq_factor",
                                        "original_max_position",
                                        "max_position",
                                        "beta_fast",
                                        "beta_slow",
                                        "attention_factor",
                                        "mscale",
                                        "mscale_all_dim",
                                        "truncate",
                                        nullptr};
const char* const kFreqsPorts[] = {"lengths=i32|i64", "freqs=f32", "scale=f32", nullptr};
const dgpuBackendClaim kFreqsClaim = {sizeof(dgpuBackendClaim), "rope_freqs", 1, 0, kFreqsAttributes, kFreqsPorts};

}  // namespace

const KernelEntry rope_kernel = {"rope", make_rope, &kRopeClaim};
const KernelEntry rope_freqs_kernel = {"rope_freqs", make_rope_freqs, &kFreqsClaim};

}  // namespace dgpu::cpu
