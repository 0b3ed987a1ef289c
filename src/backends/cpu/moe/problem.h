// What a moe_experts operator is, read once from its description.
#pragma once
#include <string>

#include "backends/cpu/ports.h"
#include "backends/cpu/vec.h"

namespace dgpu::cpu::moe {

// How gate and up come out of the weights.
enum class Form { up, gate_and_up, contiguous, interleaved };

struct Problem {
  Port x, indices, weights, gate, up, gate_up, down, gate_bias, up_bias, gate_up_bias, down_bias, expert_map, out;
  Form form = Form::up;
  vec::Glu glu;
  bool scale_input = false;
  int64_t hidden = 0, inner = 0, experts = 0, picks = 0;  // H, I, E, k
};

// Reads and checks the description; false with `reason` set where this kernel cannot run it.
bool parse(const kit::OpView& op, Problem* problem, std::string* reason);

}  // namespace dgpu::cpu::moe
