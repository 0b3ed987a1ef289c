#include "backends/cpu/ports.h"

#include <utility>

namespace dgpu::cpu {

void PortReader::refuse(std::string text) {
  if (ok_) *reason_ = std::move(text);
  ok_ = false;
}

Port PortReader::floats(const std::string& name, bool required) {
  Port p = port(name, required);
  if (!p) return p;
  switch (p.desc.dtype) {
    case DGPU_DTYPE_F32:
      p.type = gemm::Type::f32;
      break;
    case DGPU_DTYPE_BF16:
      p.type = gemm::Type::bf16;
      break;
    case DGPU_DTYPE_F16:
      p.type = gemm::Type::f16;
      break;
    default:
      refuse(name + ": only f32, bf16 and f16");
  }
  return p;
}

Port PortReader::typed(const std::string& name, dgpuDtype_t dtype, bool required) {
  Port p = port(name, required);
  if (p && p.desc.dtype != dtype) refuse(name + ": element type not supported");
  return p;
}

Port PortReader::port(const std::string& name, bool required) {
  Port p;
  p.index = op_.port(name);
  if (p) {
    p.desc = *op_.desc(name);
    if (p.desc.layout != 0) refuse(name + ": only strided tensors");
  } else if (required) {
    refuse(name + " is not bound");
  }
  return p;
}

}  // namespace dgpu::cpu
