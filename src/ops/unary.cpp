// unary: one function of one argument, element by element.
#include "ops/ref_math.h"
#include "ops/schema.h"

namespace dgpu::ops::schemas {
namespace {

Status infer(const OpSpec& spec, Outputs& outputs) {
  outputs["out"] = packed(dtype(spec, "x"), dims(spec, "x"));
  return DGPU_STATUS_SUCCESS;
}

Status reference(const OpSpec& spec, RefTensors& t) {
  const auto& x = t.find("x")->second.f;
  auto& out = t.find("out")->second.f;
  const ScalarFn fn = scalar_fn(spec.s("fn"));
  for (size_t i = 0; i < x.size(); ++i) out[i] = fn(x[i]);
  return DGPU_STATUS_SUCCESS;
}

}  // namespace

const Schema& unary() {
  static const auto* schema =
      new Schema{"unary",
                 1,
                 "A function of each element.",
                 {need("fn", DGPU_ATTR_STRING, "the function",
                       {"neg", "abs", "exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "silu", "gelu_erf", "gelu_tanh",
                        "relu", "softplus", "sin", "cos", "reciprocal", "square"})},
                 {in("x", floats(), "argument"), out("out", floats(), "fn(x)")},
                 infer,
                 reference,
                 nullptr,
                 nullptr,
                 {{"out", "x"}}};
  return *schema;
}

}  // namespace dgpu::ops::schemas
