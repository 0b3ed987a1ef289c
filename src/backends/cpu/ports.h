// Ports of an operator's description, read once when it is planned.
#pragma once
#include <string>

#include "backends/cpu/gemm/tile.h"
#include "backends/cpu/kernel.h"

namespace dgpu::cpu {

// A port: its index in Args::ports (-1: not bound) and its description.
struct Port {
  int index = -1;
  gemm::Type type = gemm::Type::f32;
  dgpuTensorDesc desc = DGPU_TENSOR_DESC_INIT;
  explicit operator bool() const { return index >= 0; }
  int64_t stride(uint32_t i) const { return desc.strides[i]; }
  int64_t max_extent(uint32_t i) const { return desc.shape[i]; }
  int64_t extent(uint32_t i, const Args& args) const { return kit::extent(desc, i, args.symbols); }
  template <class T>
  T* data(const Args& args) const {
    return static_cast<T*>(args.ports[index]);
  }
  // Address of an element of a float port.
  const void* at(const Args& args, int64_t elements) const { return gemm::at(data<const void>(args), type, elements); }
};

// Reads ports; the first one that the kernel cannot take sets `reason`.
class PortReader {
 public:
  PortReader(const kit::OpView& op, std::string* reason) : op_(op), reason_(reason) {}
  bool ok() const { return ok_; }
  void refuse(std::string text);
  Port floats(const std::string& name, bool required = false);  // f32, bf16 or f16
  Port typed(const std::string& name, dgpuDtype_t dtype, bool required = false);

 private:
  Port port(const std::string& name, bool required);

  const kit::OpView& op_;
  std::string* reason_;
  bool ok_ = true;
};

}  // namespace dgpu::cpu
