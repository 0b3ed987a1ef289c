// Kernels: a C function with a declared signature, one backend kernel per device that runs host functions.
#pragma once
#include <string>
#include <vector>

#include "dgpu/kernel.h"
#include "runtime/stream.h"

namespace dgpu {

// "gx,f32,ptr" -> DGPU_PARAM_GX, DGPU_ARG_F32, DGPU_ARG_PTR. Errors name the parameter.
Status parse_signature(std::string_view signature, std::vector<uint32_t>& params);
const char* argument_type_name(uint32_t type);

class Kernel final : public Object {
 public:
  static constexpr Kind kKind = Kind::kernel;
  static constexpr uint32_t kMaxParams = 24;
  static Status create(Ref<Context> context, std::string_view name, dgpuKernelFunction function,
                       std::string_view signature, void* user, uint32_t flags, Ref<Kernel>& out);
  ~Kernel() override;

  Context* context() const { return context_.get(); }
  const std::string& name() const { return name_; }
  const std::string& signature() const { return signature_; }
  uint32_t flags() const { return flags_; }
  const std::vector<uint32_t>& arguments() const { return arguments_; }  // DGPU_ARG_*, without grid and user

  Status launch(Stream& stream, const char* function, uint64_t grid_x, uint64_t grid_y, uint64_t grid_z,
                const uint32_t* types, const uint64_t* values, uint32_t count);

 private:
  Kernel(Ref<Context> context, std::string_view name, std::string_view signature, uint32_t flags);
  Status check_arguments(const uint32_t* types, const uint64_t* values, uint32_t count) const;

  const Ref<Context> context_;
  const std::string name_;
  const std::string signature_;
  const uint32_t flags_;
  std::vector<uint32_t> arguments_;
  std::vector<dgpuBackendKernel*> per_device_;  // null where the backend runs no host functions
};

}  // namespace dgpu
