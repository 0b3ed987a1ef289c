// rope_freqs: inverse frequencies of rotary embeddings and the factor on cos and sin.
//
// The published implementation (Hugging Face transformers, modeling_rope_utils) computes in f32, scalars of the
// configuration in f64; each f32 operation here is one of its operations, so that angles agree at long positions.
//   default   f_i = 1 / theta^(2i / dim)
//   linear    f_i / factor
//   dynamic   theta' = theta (factor s / max_position - (factor - 1))^(dim / (dim - 2)),  s = max(length, max_position)
//             A function of the length alone: that implementation keeps the base of the longest sequence it has met
//             until it meets one below max_position.
//   llama3    wavelength w = 2 pi / f_i, o = original_max_position: w < o / high: f_i; w > o / low: f_i / factor;
//             else t = (o / w - low) / (high - low): (1 - t) f_i / factor + t f_i
//   yarn      d(n) = dim ln(o / (2 pi n)) / (2 ln theta); low = d(beta_fast), high = d(beta_slow), rounded outwards if
//             truncate, clamped to [0, dim - 1]; t_i = clamp((i - low) / (high - low), 0, 1);
//             f_i / factor t_i + f_i (1 - t_i); scale m(factor, mscale) / m(factor, mscale_all_dim) if both are given,
//             else m(factor, 1), with m(s, k) = 0.1 k ln s + 1 for s > 1, else 1; attention_factor replaces it.
#include <algorithm>
#include <cmath>

#include "ops/schema.h"

namespace dgpu::ops::schemas {
namespace {

constexpr double kPi = 3.14159265358979323846;

// Attributes a type uses; those without a default are required for it.
struct TypeAttrs {
  std::string_view type;
  std::vector<std::string_view> used;
};
const std::vector<TypeAttrs>& type_attrs() {
  static const auto* rows =
      new std::vector<TypeAttrs>{{"default", {}},
                                 {"linear", {"factor"}},
                                 {"dynamic", {"factor", "max_position"}},
                                 {"llama3", {"factor", "low_freq_factor", "high_freq_factor", "original_max_position"}},
                                 {"yarn",
                                  {"factor", "original_max_position", "beta_fast", "beta_slow", "attention_factor",
                                   "mscale", "mscale_all_dim", "truncate"}}};
  return *rows;
}

Status check_type(const OpSpec& spec, const std::string& type) {
  const auto& rows = type_attrs();
  const auto used = std::find_if(rows.begin(), rows.end(), [&](const TypeAttrs& r) { return r.type == type; })->used;
  for (const auto& row : rope_freqs().attrs) {
    if (row.required) continue;
    if (std::find(used.begin(), used.end(), row.name) != used.end()) {
      if (!row.def) DGPU_TRY(need_attr(spec, row.name, "with type=" + type));
    } else if (spec.has(row.name) && (!row.def || spec.attrs.find(row.name)->second != *row.def)) {
      return bad_attr(spec, row.name, "must not be set with type={}, got {}", type,
                      attr_text(spec.attrs.find(row.name)->second));
    }
  }
  for (const char* name : {"factor", "low_freq_factor", "high_freq_factor"})
    if (spec.has(name) && !(spec.f(name) > 0))
      return bad_attr(spec, name, "expected more than 0, got {}", spec.f(name));
  for (const char* name : {"max_position", "original_max_position"})
    if (spec.has(name) && spec.i(name) < 1) return bad_attr(spec, name, "expected at least 1, got {}", spec.i(name));
  if (type == "llama3" && spec.f("high_freq_factor") == spec.f("low_freq_factor"))
    return bad_attr(spec, "high_freq_factor", "expected another value than low_freq_factor, {}",
                    spec.f("low_freq_factor"));
  return DGPU_STATUS_SUCCESS;
}

Status infer(const OpSpec& spec, Outputs& outputs) {
  const std::string type = spec.s("type");
  const int64_t dim = spec.i("dim");
  if (dim < 2 || dim % 2) return bad_attr(spec, "dim", "expected an even number of at least 2, got {}", dim);
  if (!(spec.f("theta") > 0)) return bad_attr(spec, "theta", "expected more than 0, got {}", spec.f("theta"));
  DGPU_TRY(check_type(spec, type));
  Dims shape{{dim / 2, 0}};
  if (type == "dynamic") {
    if (dim < 4) return bad_attr(spec, "dim", "expected at least 4 with type=dynamic, got {}", dim);
    DGPU_TRY(need_port(spec, "lengths", "with type=dynamic"));
    DGPU_TRY(expect_rank(spec, "lengths", 1, 1));
    shape.insert(shape.begin(), dims(spec, "lengths")[0]);
  } else {
    DGPU_TRY(no_port(spec, "lengths", "unless type=dynamic"));
  }
  outputs["freqs"] = packed(DGPU_DTYPE_F32, shape);
  outputs["scale"] = packed(DGPU_DTYPE_F32, {{1, 0}});
  return DGPU_STATUS_SUCCESS;
}

// theta^(2i / dim) in f32.
float power(double theta, int64_t i, int64_t dim) {
  const float exponent = static_cast<float>(2 * i) / static_cast<float>(dim);
  return static_cast<float>(std::pow(static_cast<double>(static_cast<float>(theta)), static_cast<double>(exponent)));
}

// The base for a sequence of `length` tokens; one-element f32 tensors in the published implementation.
float dynamic_base(const OpSpec& spec, int64_t length) {
  const double factor = spec.f("factor"), dim = static_cast<double>(spec.i("dim"));
  const int64_t max = spec.i("max_position"), s = std::max(length, max);
  const float ratio = static_cast<float>(factor) * static_cast<float>(s) / static_cast<float>(max);
  const float grown = ratio - static_cast<float>(factor - 1);
  const float exponent = static_cast<float>(dim / (dim - 2));
  return static_cast<float>(spec.f("theta")) *
         static_cast<float>(std::pow(static_cast<double>(grown), static_cast<double>(exponent)));
}

float llama3(const OpSpec& spec, float f) {
  const double original = static_cast<double>(spec.i("original_max_position"));
  const double low = spec.f("low_freq_factor"), high = spec.f("high_freq_factor");
  const float factor = static_cast<float>(spec.f("factor"));
  const float wavelength = static_cast<float>(2 * kPi) / f;
  if (wavelength > static_cast<float>(original / low)) return f / factor;
  if (wavelength < static_cast<float>(original / high)) return f;
  const float smooth =
      (static_cast<float>(original) / wavelength - static_cast<float>(low)) / static_cast<float>(high - low);
  return (1 - smooth) * f / factor + smooth * f;
}

struct YarnRange {
  double low, high;
};
YarnRange yarn_range(const OpSpec& spec) {
  const double dim = static_cast<double>(spec.i("dim")),
               original = static_cast<double>(spec.i("original_max_position"));
  const auto turns = [&](double n) {
    return dim * std::log(original / (n * 2 * kPi)) / (2 * std::log(spec.f("theta")));
  };
  double low = turns(spec.f("beta_fast", 32)), high = turns(spec.f("beta_slow", 1));
  if (spec.b("truncate", true)) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;  // keeps the ramp finite
  return {low, high};
}

float yarn(const OpSpec& spec, const YarnRange& range, int64_t i) {
  const float p = power(spec.f("theta"), i, spec.i("dim"));
  const float extrapolation = 1 / p, interpolation = 1 / (static_cast<float>(spec.f("factor")) * p);
  const float ramp = std::clamp(
      (static_cast<float>(i) - static_cast<float>(range.low)) / static_cast<float>(range.high - range.low), 0.0f, 1.0f);
  const float keep = 1 - ramp;
  return interpolation * (1 - keep) + extrapolation * keep;
}

double yarn_scale(const OpSpec& spec) {
  if (const double given = spec.f("attention_factor"); given != 0) return given;
  const double factor = spec.f("factor"), mscale = spec.f("mscale"), all = spec.f("mscale_all_dim");
  const auto m = [&](double k) { return factor > 1 ? 0.1 * k * std::log(factor) + 1 : 1.0; };
  return mscale != 0 && all != 0 ? m(mscale) / m(all) : m(1);
}

Status reference(const OpSpec& spec, RefTensors& t) {
  auto& freqs = t.find("freqs")->second.f;
  const std::string type = spec.s("type");
  const int64_t dim = spec.i("dim"), half = dim / 2;
  if (auto it = t.find("scale"); it != t.end())
    it->second.f[0] = type == "yarn" ? static_cast<float>(yarn_scale(spec)) : 1;
  if (type == "dynamic") {
    const auto& lengths = t.find("lengths")->second.i;
    for (size_t b = 0; b < lengths.size(); ++b) {
      if (lengths[b] < 0) return bad_data(spec, "lengths", "lengths[{}] = {}: expected at least 0", b, lengths[b]);
      const float base = dynamic_base(spec, lengths[b]);
      for (int64_t i = 0; i < half; ++i) freqs[b * half + i] = 1 / power(base, i, dim);
    }
    return DGPU_STATUS_SUCCESS;
  }
  const YarnRange range = type == "yarn" ? yarn_range(spec) : YarnRange{};
  for (int64_t i = 0; i < half; ++i) {
    const float f = 1 / power(spec.f("theta"), i, dim);
    if (type == "linear")
      freqs[i] = f / static_cast<float>(spec.f("factor"));
    else if (type == "llama3")
      freqs[i] = llama3(spec, f);
    else if (type == "yarn")
      freqs[i] = yarn(spec, range, i);
    else
      freqs[i] = f;
  }
  return DGPU_STATUS_SUCCESS;
}

}  // namespace

const Schema& rope_freqs() {
  static const auto* schema = new Schema{
      "rope_freqs",
      1,
      "Inverse frequencies of rotary embeddings and the factor on cos and sin.",
      {need("type", DGPU_ATTR_STRING, "scaling of the frequencies", {"default", "linear", "dynamic", "llama3", "yarn"}),
       need("dim", DGPU_ATTR_INT, "rotated elements of a head, even"), need("theta", DGPU_ATTR_FLOAT, "base"),
       maybe("factor", DGPU_ATTR_FLOAT, "all types but default"), maybe("low_freq_factor", DGPU_ATTR_FLOAT, "llama3"),
       maybe("high_freq_factor", DGPU_ATTR_FLOAT, "llama3"),
       maybe("original_max_position", DGPU_ATTR_INT, "llama3, yarn: positions before scaling"),
       maybe("max_position", DGPU_ATTR_INT, "dynamic: length from which on the base grows"),
       with("beta_fast", 32.0, "yarn: turns above which frequencies are kept"),
       with("beta_slow", 1.0, "yarn: turns below which frequencies are divided"),
       with("attention_factor", 0.0, "yarn: factor on cos and sin; 0: derived"),
       with("mscale", 0.0, "yarn: 0.1 mscale ln(factor) + 1"), with("mscale_all_dim", 0.0, "yarn: divisor of it"),
       with("truncate", true, "yarn: round the range to whole dimensions")},
      {in_opt("lengths", integers(), "dynamic: tokens of each sequence"),
       out("freqs", f32_only(), "inverse frequencies"), out("scale", f32_only(), "factor on cos and sin")},
      infer,
      reference};
  return *schema;
}

}  // namespace dgpu::ops::schemas
