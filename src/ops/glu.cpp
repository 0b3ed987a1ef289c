// glu: gated linear unit.
#include "ops/glu.h"

#include "ops/decompose.h"
#include "ops/schema.h"

namespace dgpu::ops {

GluFn glu_fn(const OpSpec& spec) {
  GluFn fn;
  const std::string name = spec.s("activation");
  fn.activation = scalar_fn(name);
  fn.silu = name == "silu";
  fn.alpha = spec.f("alpha", 1);
  fn.gate_max = spec.f("gate_max", kInf);
  fn.up_clamp = spec.f("up_clamp", kInf);
  fn.up_offset = spec.f("up_offset", 0);
  return fn;
}

std::vector<AttrSchema> glu_attrs() {
  return {need("activation", DGPU_ATTR_STRING, "function of the gate",
               {"silu", "gelu_erf", "gelu_tanh", "relu", "sigmoid", "none"}),
          with("alpha", 1.0, "silu is g sigmoid(alpha g)"), with("gate_max", kInf, "upper limit of the gate"),
          with("up_clamp", kInf, "limit of the magnitude of up"),
          with("up_offset", 0.0, "added to up after the limit")};
}

Status check_glu_attrs(const OpSpec& spec) {
  if (spec.f("alpha", 1) != 1 && spec.s("activation") != "silu")
    return bad_attr(spec, "alpha", "must not be set with activation={}: only silu has it", spec.s("activation"));
  if (!(spec.f("up_clamp", kInf) >= 0))
    return bad_attr(spec, "up_clamp", "expected at least 0, got {}", spec.f("up_clamp"));
  return DGPU_STATUS_SUCCESS;
}

namespace schemas {
namespace {

Status infer(const OpSpec& spec, Outputs& outputs) {
  DGPU_TRY(check_glu_attrs(spec));
  DGPU_TRY(expect_rank(spec, "x", 1));
  Dims shape = dims(spec, "x");
  if (spec.s("layout") == "separate") {
    DGPU_TRY(need_port(spec, "up", "with layout=separate"));
    DGPU_TRY(expect_dims(spec, "up", shape, "shape of x"));
  } else {
    DGPU_TRY(no_port(spec, "up", "unless layout=separate"));
    if (shape.back().symbol || shape.back().extent % 2)
      return bad_shape(spec, "x", "expected a fixed, even last dimension (gate and up), got {}", text(shape));
    shape.back().extent /= 2;
  }
  outputs["out"] = packed(dtype(spec, "x"), shape);
  return DGPU_STATUS_SUCCESS;
}

Status reference(const OpSpec& spec, RefTensors& t) {
  const auto& x = t.find("x")->second.f;
  auto& out = t.find("out")->second;
  const GluFn fn = glu_fn(spec);
  const std::string layout = spec.s("layout");
  const int64_t width = out.shape.back(), n = out.size();
  if (layout == "separate") {
    const auto& up = t.find("up")->second.f;
    for (int64_t i = 0; i < n; ++i) out.f[i] = fn(x[i], up[i]);
    return DGPU_STATUS_SUCCESS;
  }
  const bool interleaved = layout == "interleaved";
  for (int64_t i = 0; i < n; ++i) {
    const int64_t row = i / width * width * 2, j = i % width;
    out.f[i] = interleaved ? fn(x[row + 2 * j], x[row + 2 * j + 1]) : fn(x[row + j], x[row + width + j]);
  }
  return DGPU_STATUS_SUCCESS;
}

// Limits, activation and product one after the other, in f32.
bool decompose(const OpSpec& spec, Decomposition& out) {
  const GluFn fn = glu_fn(spec);
  const std::string layout = spec.s("layout");
  dgpuTensorDesc half = desc(spec, "x");
  const uint32_t last = half.rank - 1;
  const int64_t width = half.shape[last] / 2, stride = half.strides[last];
  if (layout != "separate") half.shape[last] = width;
  if (layout == "interleaved") half.strides[last] = 2 * stride;
  const std::string g = add_temp(out, DGPU_DTYPE_F32, half), u = add_temp(out, DGPU_DTYPE_F32, half);
  StepBuilder(spec, out, "cast").bind_view("x", "x", half, 0).bind("out", g).add();
  if (layout == "separate")
    StepBuilder(spec, out, "cast").bind("x", "up").bind("out", u).add();
  else
    StepBuilder(spec, out, "cast")
        .bind_view("x", "x", half, layout == "interleaved" ? stride : width * stride)
        .bind("out", u)
        .add();
  const auto scalar = [&](const char* f, std::string_view tensor, double value, std::string_view to) {
    StepBuilder step(spec, out, "binary");
    step.attr("fn", std::string(f)).attr("scalar", value).bind("a", tensor).bind("out", to).add();
  };
  if (fn.gate_max != kInf) scalar("min", g, fn.gate_max, g);
  if (fn.up_clamp != kInf) {
    scalar("min", u, fn.up_clamp, u);
    scalar("max", u, -fn.up_clamp, u);
  }
  if (fn.up_offset != 0) scalar("add", u, fn.up_offset, u);
  std::string act = g;
  if (fn.silu) {
    act = add_temp(out, DGPU_DTYPE_F32, half);
    scalar("mul", g, fn.alpha, act);
    StepBuilder(spec, out, "unary").attr("fn", std::string("sigmoid")).bind("x", act).bind("out", act).add();
    StepBuilder(spec, out, "binary").attr("fn", std::string("mul")).bind("a", g).bind("b", act).bind("out", act).add();
  } else if (spec.s("activation") != "none") {
    StepBuilder(spec, out, "unary").attr("fn", spec.s("activation")).bind("x", g).bind("out", g).add();
  }
  StepBuilder(spec, out, "binary").attr("fn", std::string("mul")).bind("a", act).bind("b", u).bind("out", "out").add();
  return true;
}

}  // namespace

const Schema& glu() {
  static const auto* schema = [] {
    auto attrs = glu_attrs();
    attrs.insert(attrs.begin() + 1, need("layout", DGPU_ATTR_STRING,
                                         "where gate and up are: two tensors, two halves of "
                                         "the last dimension, or alternating",
                                         {"separate", "contiguous", "interleaved"}));
    return new Schema{"glu",
                      1,
                      "Gated linear unit: activation of a gate times up.",
                      std::move(attrs),
                      {in("x", floats(), "the gate, or gate and up"), in_opt("up", floats(), "with layout=separate"),
                       out("out", floats(), "act(gate) up")},
                      infer,
                      reference,
                      nullptr,
                      decompose,
                      {{"out", "x"}, {"out", "up"}}};
  }();
  return *schema;
}

}  // namespace schemas
}  // namespace dgpu::ops
