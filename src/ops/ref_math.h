// Scalar functions of the references, in f64.
#pragma once
#include <string_view>

namespace dgpu::ops {

using ScalarFn = double (*)(double);

// Function of one argument by its name in the schemas ("gelu_tanh"; "none" is the identity), null if there is none.
ScalarFn scalar_fn(std::string_view name);

double sigmoid(double x);
double softplus(double x);  // ln(1 + e^x) without overflow

// Gate and up of a gated linear unit, see docs/operators.md, glu.
struct GluFn {
  ScalarFn activation = nullptr;
  bool silu = false;  // g sigmoid(alpha g)
  double alpha = 1;
  double gate_max = 0;
  double up_clamp = 0;
  double up_offset = 0;
  double act(double g) const { return silu ? g * sigmoid(alpha * g) : activation(g); }
  double operator()(double gate, double up) const;
};

}  // namespace dgpu::ops
