#include "ops/ref_math.h"

#include <cmath>

namespace dgpu::ops {

double sigmoid(double x) {
  if (x >= 0) return 1 / (1 + std::exp(-x));
  const double e = std::exp(x);
  return e / (1 + e);
}

double softplus(double x) { return std::fmax(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }

namespace {
constexpr double kInvSqrt2 = 0.70710678118654752440;
constexpr double kSqrt2OverPi = 0.79788456080286535588;

double gelu_erf(double x) { return 0.5 * x * std::erfc(-x * kInvSqrt2); }
double gelu_tanh(double x) { return 0.5 * x * (1 + std::tanh(kSqrt2OverPi * (x + 0.044715 * x * x * x))); }

struct Row {
  std::string_view name;
  ScalarFn fn;
};
constexpr Row kRows[] = {
    {"none", [](double x) { return x; }},
    {"neg", [](double x) { return -x; }},
    {"abs", [](double x) { return std::fabs(x); }},
    {"exp", [](double x) { return std::exp(x); }},
    {"log", [](double x) { return std::log(x); }},
    {"sqrt", [](double x) { return std::sqrt(x); }},
    {"rsqrt", [](double x) { return 1 / std::sqrt(x); }},
    {"tanh", [](double x) { return std::tanh(x); }},
    {"sigmoid", sigmoid},
    {"silu", [](double x) { return x * sigmoid(x); }},
    {"gelu_erf", gelu_erf},
    {"gelu_tanh", gelu_tanh},
    {"relu", [](double x) { return x < 0 ? 0.0 : x; }},  // NaN stays
    {"softplus", softplus},
    {"sin", [](double x) { return std::sin(x); }},
    {"cos", [](double x) { return std::cos(x); }},
    {"reciprocal", [](double x) { return 1 / x; }},
    {"square", [](double x) { return x * x; }},
};
}  // namespace

ScalarFn scalar_fn(std::string_view name) {
  for (const auto& row : kRows)
    if (row.name == name) return row.fn;
  return nullptr;
}

double GluFn::operator()(double gate, double up) const {
  const double g = gate > gate_max ? gate_max : gate;
  const double u = (up > up_clamp ? up_clamp : up < -up_clamp ? -up_clamp : up) + up_offset;
  return act(g) * u;
}

}  // namespace dgpu::ops
