// rope: rotary position embedding from a table of inverse frequencies.
#include <cmath>

#include "ops/schema.h"

namespace dgpu::ops::schemas {
namespace {

Status infer(const OpSpec& spec, Outputs& outputs) {
  DGPU_TRY(expect_rank(spec, "x", 2));
  const Dims x = dims(spec, "x");
  const Dims tokens(x.begin(), x.end() - 2);
  DGPU_TRY(expect_dims(spec, "positions", tokens, "leading dimensions of x"));
  DGPU_TRY(expect_rank(spec, "freqs", 1, 2));
  const Dims freqs = dims(spec, "freqs");
  if (freqs.size() == 2) {
    DGPU_TRY(need_port(spec, "rows", "with two-dimensional freqs"));
    DGPU_TRY(expect_dims(spec, "rows", tokens, "leading dimensions of x"));
  } else {
    DGPU_TRY(no_port(spec, "rows", "with one-dimensional freqs"));
  }
  if (freqs.back().symbol || x.back().symbol || 2 * freqs.back().extent > x.back().extent)
    return bad_shape(spec, "freqs", "expected at most {} frequencies, half the last dimension of x {}, got {}",
                     x.back().extent / 2, text(x), text(freqs.back()));
  DGPU_TRY(expect_dims(spec, "scale", {{1, 0}}, "one factor"));
  outputs["out"] = packed(dtype(spec, "x"), x);
  return DGPU_STATUS_SUCCESS;
}

struct Rotation {
  bool half, inverse, angle32;
  double scale;
  // Rotates r elements from `in` to `out`, which may be the same.
  void operator()(const double* in, double* out, const double* freqs, int64_t r, int64_t position) const {
    for (int64_t i = 0; i < r / 2; ++i) {
      const int64_t first = half ? i : 2 * i, second = half ? i + r / 2 : 2 * i + 1;
      const double angle = angle32 ? static_cast<float>(position) * static_cast<float>(freqs[i])
                                   : static_cast<double>(position) * freqs[i];
      const double c = std::cos(angle) * scale, s = std::sin(angle) * (inverse ? -scale : scale);
      const double a = in[first], b = in[second];
      out[first] = a * c - b * s;
      out[second] = b * c + a * s;
    }
  }
};

Status reference(const OpSpec& spec, RefTensors& t) {
  const auto& x = t.find("x")->second;
  const auto& positions = t.find("positions")->second.i;
  const auto& freqs = t.find("freqs")->second;
  const RefTensor* rows = spec.bound("rows") ? &t.find("rows")->second : nullptr;
  auto& out = t.find("out")->second.f;
  const Rotation rotate{spec.s("pairing") == "half", spec.b("inverse"), spec.s("angle") == "f32",
                        spec.bound("scale") ? t.find("scale")->second.f[0] : 1.0};
  const int64_t width = x.shape.back(), heads = x.shape[x.shape.size() - 2];
  const int64_t half = freqs.shape.back(), r = 2 * half;
  const int64_t begin = spec.s("at") == "tail" ? width - r : 0;
  out = x.f;
  for (size_t n = 0; n < positions.size(); ++n) {
    const int64_t row = rows ? rows->i[n] : 0;
    if (rows && (row < 0 || row >= freqs.shape[0]))
      return bad_data(spec, "rows", "rows[{}] = {}: expected 0 to {}", n, row, freqs.shape[0] - 1);
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t at = (static_cast<int64_t>(n) * heads + h) * width + begin;
      rotate(x.f.data() + at, out.data() + at, freqs.f.data() + row * half, r, positions[n]);
    }
  }
  return DGPU_STATUS_SUCCESS;
}

}  // namespace

const Schema& rope() {
  static const auto* schema = new Schema{
      "rope",
      1,
      "Rotary position embedding.",
      {need("pairing", DGPU_ATTR_STRING, "which elements turn together: (i, i + r/2) or (2i, 2i + 1)",
            {"half", "interleave"}),
       need("at", DGPU_ATTR_STRING, "whether the first or the last r elements of a head turn", {"head", "tail"}),
       need("angle", DGPU_ATTR_STRING, "precision of position * frequency", {"f32", "f64"}),
       with("inverse", false, "rotate back")},
      {in("x", floats(), "heads per token"), in("positions", integers(), "position of each token"),
       in("freqs", f32_only(), "inverse frequencies, one row or several"),
       in_opt("rows", integers(), "row of freqs per token; with two-dimensional freqs"),
       in_opt("scale", f32_only(), "factor on cos and sin"), out("out", floats(), "rotated heads; may be x")},
      infer,
      reference,
      nullptr,
      nullptr,
      {{"out", "x"}}};
  return *schema;
}

}  // namespace dgpu::ops::schemas
