// What a moe_experts operator is, read once from its description.
#pragma once
#include <string>

#include "backends/cpu/gemm/tile.h"
#include "backends/cpu/kernel.h"
#include "backends/cpu/vec.h"

namespace dgpu::cpu::moe {

// A port: its index in Args::ports (-1: not bound) and its description.
struct Port {
  int index = -1;
  gemm::Type type = gemm::Type::f32;
  dgpuTensorDesc desc = DGPU_TENSOR_DESC_INIT;
  explicit operator bool() const { return index >= 0; }
  int64_t stride(uint32_t i) const { return desc.strides[i]; }
  int64_t extent(uint32_t i, const Args& args) const { return kit::extent(desc, i, args.symbols); }
  template <class T>
  T* data(const Args& args) const {
    return static_cast<T*>(args.ports[index]);
  }
  const void* at(const Args& args, int64_t elements) const { return gemm::at(data<const void>(args), type, elements); }
};

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
