// matmul: out = activation(a b + bias) * gate + residual.
#include <memory>
#include <string>

#include "backends/cpu/gemm/gemm.h"
#include "backends/cpu/kernels.h"

namespace dgpu::cpu {
namespace {

gemm::Type type_of(const dgpuTensorDesc& d) {
  return d.dtype == DGPU_DTYPE_F32 ? gemm::Type::f32 : d.dtype == DGPU_DTYPE_BF16 ? gemm::Type::bf16 : gemm::Type::f16;
}

bool parse_activation(std::string_view name, gemm::Activation* out) {
  using A = gemm::Activation;
  constexpr std::pair<std::string_view, A> kNames[] = {
      {"none", A::none}, {"relu", A::relu}, {"gelu_erf", A::gelu_erf}, {"gelu_tanh", A::gelu_tanh}, {"silu", A::silu}};
  for (const auto& [known, activation] : kNames) {
    if (name == known) *out = activation;
    if (name == known) return true;
  }
  return false;
}

class Matmul final : public Kernel {
 public:
  Matmul(const kit::OpView& op, gemm::Activation activation);
  uint32_t phases() const override { return limits_.phases; }
  uint32_t chunks(uint32_t phase, const Args& args) const override { return plan(args).chunks(phase); }
  dgpuStatus_t run(uint32_t phase, uint32_t chunk, const Args& args) const override;
  size_t workspace_bytes() const override { return limits_.workspace_bytes; }
  const char* algorithm() const override { return plan_.algorithm(); }

 private:
  enum Port { kA, kB, kBias, kGate, kResidual, kOut, kPorts };
  bool bound(Port p) const { return index_[p] >= 0; }
  gemm::Plan plan(const Args& args) const { return symbolic_ ? gemm::plan(problem(args.symbols), options_) : plan_; }
  gemm::Problem problem(const int64_t* symbols) const;
  int64_t size(Port p, uint32_t dimension, const int64_t* symbols) const {
    return symbols != nullptr ? kit::extent(desc_[p], dimension, symbols) : desc_[p].shape[dimension];
  }

  int index_[kPorts];
  dgpuTensorDesc desc_[kPorts] = {};
  bool transpose_[2];
  gemm::Activation activation_;
  bool symbolic_ = false;
  gemm::Options options_;
  gemm::Plan plan_;  // for the stated maxima
  gemm::Limits limits_;
};

Matmul::Matmul(const kit::OpView& op, gemm::Activation activation)
    : transpose_{op.b("transpose_a"), op.b("transpose_b")}, activation_(activation) {
  constexpr const char* kNames[kPorts] = {"a", "b", "bias", "gate", "residual", "out"};
  for (int p = 0; p < kPorts; ++p) {
    index_[p] = op.port(kNames[p]);
    if (index_[p] < 0) continue;
    desc_[p] = *op.desc(kNames[p]);
    for (uint32_t i = 0; i < desc_[p].rank; ++i) symbolic_ |= desc_[p].symbols[i] != 0;
  }
  // Fixed now: settings that change later must not change the results of a plan.
  options_.kernels = &gemm::best_kernels();
  options_.unit = gemm::bf16_unit();
  const gemm::Problem most = problem(nullptr);
  plan_ = gemm::plan(most, options_);
  if (symbolic_) {
    limits_ = gemm::limits(most, options_);
  } else {
    limits_ = {plan_.workspace_bytes(), plan_.phases()};
  }
}

// The maxima where `symbols` is null.
gemm::Problem Matmul::problem(const int64_t* symbols) const {
  gemm::Problem x;
  const uint32_t rank = desc_[kOut].rank;
  x.m = size(kOut, rank - 2, symbols);
  x.n = size(kOut, rank - 1, symbols);
  x.k = size(kA, desc_[kA].rank - (transpose_[0] ? 2 : 1), symbols);
  x.batch_rank = static_cast<int>(rank) - 2;
  for (uint32_t i = 0; i + 2 < rank; ++i) x.batch[i] = size(kOut, i, symbols);
  gemm::View* const views[kPorts] = {&x.a, &x.b, nullptr, &x.gate, &x.residual, &x.out};
  for (int p = 0; p < kPorts; ++p) {
    if (views[p] == nullptr || !bound(static_cast<Port>(p))) continue;
    const dgpuTensorDesc& d = desc_[p];
    gemm::View& v = *views[p];
    v.type = type_of(d);
    // Rows are m of A, n of B: what is not k.
    const bool swap = p == kA ? transpose_[0] : p == kB && !transpose_[1];
    v.row = d.strides[d.rank - (swap ? 1 : 2)];
    v.col = d.strides[d.rank - (swap ? 2 : 1)];
    for (uint32_t i = 0; i + 2 < d.rank; ++i) {
      const bool one = size(static_cast<Port>(p), i, symbols) == 1;
      v.batch[rank - d.rank + i] = one ? 0 : d.strides[i];
    }
  }
  x.has_bias = bound(kBias);
  if (x.has_bias) x.bias_type = type_of(desc_[kBias]);
  if (x.has_bias) x.bias_stride = desc_[kBias].strides[0];
  x.has_gate = bound(kGate);
  x.has_residual = bound(kResidual);
  x.activation = activation_;
  return x;
}

dgpuStatus_t Matmul::run(uint32_t phase, uint32_t chunk, const Args& args) const {
  const auto address = [&](Port p) { return bound(p) ? args.ports[index_[p]] : nullptr; };
  const gemm::Pointers pointers = {address(kA),    address(kB),        address(kBias),
                                   address(kGate), address(kResidual), address(kOut)};
  if (symbolic_) {
    gemm::run(plan(args), phase, chunk, pointers, args.workspace);
  } else {
    gemm::run(plan_, phase, chunk, pointers, args.workspace);
  }
  return DGPU_STATUS_SUCCESS;
}

std::unique_ptr<Kernel> make_matmul(const kit::OpView& op, std::string* reason) {
  gemm::Activation activation = gemm::Activation::none;
  if (!parse_activation(op.s("activation", "none"), &activation)) {
    *reason = "activation " + std::string(op.s("activation")) + " is not known";
    return nullptr;
  }
  for (uint32_t i = 0; i < op.port_count(); ++i) {
    if (op.desc(i).layout == 0) continue;
    *reason = "only strided tensors";
    return nullptr;
  }
  return std::make_unique<Matmul>(op, activation);
}

const char* const kAttributes[] = {"transpose_a", "transpose_b", "activation=none|relu|gelu_erf|gelu_tanh|silu",
                                   nullptr};
const char* const kPortTypes[] = {
    "a=f32|bf16|f16",   "b=f32|bf16|f16", "bias=f32|bf16|f16", "gate=f32|bf16|f16", "residual=f32|bf16|f16",
    "out=f32|bf16|f16", nullptr};
const dgpuBackendClaim kClaim = {sizeof(dgpuBackendClaim), "matmul", 1, 0, kAttributes, kPortTypes};

}  // namespace

const KernelEntry matmul_kernel = {"matmul", make_matmul, &kClaim};

}  // namespace dgpu::cpu
