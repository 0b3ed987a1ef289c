#include "backends/cpu/moe/problem.h"

#include <limits>
#include <optional>

namespace dgpu::cpu::moe {
namespace {

std::optional<vec::Activation> activation(std::string_view name) {
  using A = vec::Activation;
  constexpr std::pair<std::string_view, A> kNames[] = {{"silu", A::silu},           {"gelu_erf", A::gelu_erf},
                                                       {"gelu_tanh", A::gelu_tanh}, {"relu", A::relu},
                                                       {"sigmoid", A::sigmoid},     {"none", A::none}};
  for (const auto& [text, value] : kNames) {
    if (name == text) return value;
  }
  return std::nullopt;
}

}  // namespace

bool parse(const kit::OpView& op, Problem* p, std::string* reason) {
  PortReader r(op, reason);
  p->x = r.floats("x", true);
  p->indices = r.typed("indices", DGPU_DTYPE_I32, true);
  p->weights = r.typed("weights", DGPU_DTYPE_F32, true);
  p->gate = r.floats("gate");
  p->up = r.floats("up");
  p->gate_up = r.floats("gate_up");
  p->down = r.floats("down", true);
  p->gate_bias = r.floats("gate_bias");
  p->up_bias = r.floats("up_bias");
  p->gate_up_bias = r.floats("gate_up_bias");
  p->down_bias = r.floats("down_bias");
  p->expert_map = r.typed("expert_map", DGPU_DTYPE_I32);
  p->out = r.floats("out", true);
  if (!p->gate_up && !p->up) r.refuse("up is not bound");
  const auto fn = activation(op.s("activation"));
  if (!fn) r.refuse("activation not supported");
  if (!r.ok()) return false;
  p->form = p->gate_up ? (op.s("layout") == "interleaved" ? Form::interleaved : Form::contiguous)
                       : (p->gate ? Form::gate_and_up : Form::up);
  constexpr double kInf = std::numeric_limits<double>::infinity();
  p->glu.activation = *fn;
  p->glu.alpha = static_cast<float>(op.f("alpha", 1));
  p->glu.gate_max = static_cast<float>(op.f("gate_max", kInf));
  p->glu.up_clamp = static_cast<float>(op.f("up_clamp", kInf));
  p->glu.up_offset = static_cast<float>(op.f("up_offset", 0));
  p->scale_input = op.b("scale_input");
  p->experts = p->down.desc.shape[0];
  p->hidden = p->down.desc.shape[1];
  p->inner = p->down.desc.shape[2];
  p->picks = p->indices.desc.shape[1];
  return true;
}

}  // namespace dgpu::cpu::moe
