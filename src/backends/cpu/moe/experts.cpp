// Per round of tokens four phases: 0 sorts the routed pairs by expert; 1 multiplies with gate and up and applies the
// activation; 2 multiplies with down; 3 sums each token's experts in the order of its picks. Weights are read once per
// round; rounds bound the workspace.
#include "backends/cpu/moe/experts.h"

#include <algorithm>

#include "backends/cpu/attention/kernels.h"
#include "backends/cpu/gemm/gemm.h"
#include "backends/cpu/kernels.h"
#include "backends/cpu/moe/layout.h"
#include "backends/cpu/scratch.h"

namespace dgpu::cpu::moe {
namespace {

constexpr int64_t kCombineElements = 1 << 17;  // of expert outputs that a chunk of phase 3 sums

// n elements of any type and stride as f32.
void load_row(const Port& port, const Args& args, int64_t at, int64_t stride, int64_t n, float* dst) {
  if (stride == 1) return vec::load(port.at(args, at), port.desc.dtype, n, dst);
  for (int64_t i = 0; i < n; ++i) vec::load(port.at(args, at + i * stride), port.desc.dtype, 1, dst + i);
}

class Experts final : public Kernel {
 public:
  Experts(const Problem& problem, const gemm::Kernels& kernels, size_t round_bytes) : p_(problem), t_(kernels) {
    most_tokens_ = p_.x.desc.shape[0];
    round_ = std::max<int64_t>(most_tokens_, 1);
    if (layout_bytes(p_, round_) > round_bytes) {
      const size_t per_token = (layout_bytes(p_, 65) - layout_bytes(p_, 1)) / 64 + 1;
      round_ = std::clamp<int64_t>(static_cast<int64_t>(round_bytes / per_token), 1, round_);
    }
    rounds_ = (most_tokens_ + round_ - 1) / round_;
  }
  uint32_t phases() const override { return static_cast<uint32_t>(4 * rounds_); }
  uint32_t chunks(uint32_t phase, const Args& args) const override;
  dgpuStatus_t run(uint32_t phase, uint32_t chunk, const Args& args) const override;
  size_t workspace_bytes() const override { return layout_bytes(p_, round_); }
  const char* algorithm() const override {
    switch (t_.isa) {
      case gemm::Isa::avx512:
        return "moe_experts grouped avx512";
      case gemm::Isa::avx2:
        return "moe_experts grouped avx2";
      case gemm::Isa::sse4:
        return "moe_experts grouped sse4";
      case gemm::Isa::neon:
        return "moe_experts grouped neon";
      default:
        return "moe_experts grouped scalar";
    }
  }

 private:
  // A chunk of phase 1 or 2: rows and columns of one expert.
  struct Block {
    int64_t expert = 0, row0 = 0, row1 = 0, column0 = 0, column1 = 0;
    int64_t rows() const { return row1 - row0; }
    int64_t columns() const { return column1 - column0; }
  };
  Block block(const Layout& l, const uint32_t* first_chunk, bool inner, uint32_t chunk) const;
  gemm::Source weight_rows(const Port& w, const Args& args, int64_t expert, int64_t first, int64_t step) const;
  void multiply(const gemm::Source& a, const gemm::Source& b, int64_t m, int64_t n, int64_t k,
                const gemm::Source& out) const;
  void run_inner(const Layout& l, const Block& b, const Args& args) const;
  void activate(const Layout& l, const Block& b, const Args& args, float* gate, float* up, int64_t ld) const;
  void run_outer(const Layout& l, const Block& b, const Args& args) const;
  void combine(const Layout& l, int64_t token, const Args& args) const;
  int64_t combine_tokens() const {
    return std::max<int64_t>(kCombineElements / std::max<int64_t>(p_.hidden * p_.picks, 1), 1);
  }

  const Problem p_;
  const gemm::Kernels& t_;
  int64_t most_tokens_ = 0, round_ = 0, rounds_ = 0;
};

uint32_t Experts::chunks(uint32_t phase, const Args& args) const {
  const int64_t first = phase / 4 * round_;
  if (first >= p_.x.extent(0, args)) return 0;
  const auto* l = static_cast<const Layout*>(args.workspace);
  switch (phase % 4) {
    case 0:
      return 1;
    case 1:
      return l->inner_chunks[p_.experts];
    case 2:
      return l->outer_chunks[p_.experts];
    default:
      return static_cast<uint32_t>((l->tokens + combine_tokens() - 1) / combine_tokens());
  }
}

Experts::Block Experts::block(const Layout& l, const uint32_t* first_chunk, bool inner, uint32_t chunk) const {
  Block b;
  // The last expert that begins at or before the chunk; those without rows share their first with the next.
  b.expert = std::upper_bound(first_chunk, first_chunk + p_.experts, chunk) - first_chunk - 1;
  const int64_t first = l.first_row[b.expert], rows = l.first_row[b.expert + 1] - first;
  const Grid g = inner ? inner_grid(p_, rows) : outer_grid(p_, rows);
  const int64_t index = chunk - first_chunk[b.expert];
  b.row0 = first + row_begin(g, rows, index % g.row_blocks);
  b.row1 = first + row_begin(g, rows, index % g.row_blocks + 1);
  b.column0 = index / g.row_blocks * g.columns;
  b.column1 = std::min(b.column0 + g.columns, inner ? p_.inner : p_.hidden);
  return b;
}

// Rows first, first + step, ... of an expert's weights [E, rows, k].
gemm::Source Experts::weight_rows(const Port& w, const Args& args, int64_t expert, int64_t first, int64_t step) const {
  return {w.at(args, expert * w.stride(0) + first * w.stride(1)), w.type, w.stride(1) * step, w.stride(2), nullptr};
}

void Experts::multiply(const gemm::Source& a, const gemm::Source& b, int64_t m, int64_t n, int64_t k,
                       const gemm::Source& out) const {
  gemm::Tile tile;
  tile.kernels = &t_;
  const bool pairs = a.type == gemm::Type::bf16 && b.type == gemm::Type::bf16 && t_.isa == gemm::Isa::avx512 &&
                     gemm::bf16_unit() == gemm::Unit::bf16_dot;
  tile.unit = pairs ? gemm::Unit::bf16_dot : gemm::Unit::fma;
  tile.m = m;
  tile.n = n;
  tile.k = k;
  tile.a = a;
  tile.b = b;
  tile.out = out;
  gemm::choose_blocking(&tile);
  if (b.col != 1 && b.row == 1 && m <= gemm::kMaxStreamRows) {
    tile.unit = gemm::Unit::fma;
    tile.path = gemm::Path::stream;
  }
  gemm::run_tile(tile);
}

void Experts::run_inner(const Layout& l, const Block& b, const Args& args) const {
  Scratch scratch;
  const int64_t m = b.rows(), n = b.columns();
  const gemm::Source x = {p_.x.data<const void>(args), p_.x.type, p_.x.stride(0), p_.x.stride(1), l.token_of + b.row0};
  const auto f32 = [](float* data, int64_t ld) { return gemm::Source{data, gemm::Type::f32, ld, 1, nullptr}; };
  float* gate = scratch.take<float>(m * 2 * n);
  float* up = gate + n;
  const auto product = [&](const Port& w, int64_t first, int64_t count, float* dst) {
    multiply(x, weight_rows(w, args, b.expert, first, 1), m, count, p_.hidden, f32(dst, 2 * n));
  };
  switch (p_.form) {
    case Form::up:
      product(p_.up, b.column0, n, gate);
      break;
    case Form::gate_and_up:
      product(p_.gate, b.column0, n, gate);
      product(p_.up, b.column0, n, up);
      break;
    case Form::contiguous:
      product(p_.gate_up, b.column0, n, gate);
      product(p_.gate_up, p_.inner + b.column0, n, up);
      break;
    case Form::interleaved: {
      float* both = scratch.take<float>(m * 2 * n);
      product(p_.gate_up, 2 * b.column0, 2 * n, both);
      for (int64_t i = 0; i < m; ++i) vec::split_pairs(both + i * 2 * n, gate + i * 2 * n, up + i * 2 * n, n);
    }
  }
  activate(l, b, args, gate, up, 2 * n);
}

// Input scale, biases, activation: from products (rows `ld` floats apart) to the layout's act.
void Experts::activate(const Layout& l, const Block& b, const Args& args, float* gate, float* up, int64_t ld) const {
  const int64_t n = b.columns();
  float gate_bias[kMostColumns], up_bias[kMostColumns], ones[kMostColumns];
  bool has_gate_bias = false, has_up_bias = false;
  const auto load_bias = [&](const Port& bias, int64_t first, int64_t step, float* dst) {
    if (!bias) return false;
    load_row(bias, args, b.expert * bias.stride(0) + first * bias.stride(1), bias.stride(1) * step, n, dst);
    return true;
  };
  if (p_.form == Form::contiguous || p_.form == Form::interleaved) {
    const bool pairs = p_.form == Form::interleaved;
    const int64_t first = pairs ? 2 * b.column0 : b.column0;
    has_gate_bias = load_bias(p_.gate_up_bias, first, pairs ? 2 : 1, gate_bias);
    has_up_bias = load_bias(p_.gate_up_bias, pairs ? first + 1 : first + p_.inner, pairs ? 2 : 1, up_bias);
  } else {
    has_gate_bias = load_bias(p_.form == Form::up ? p_.up_bias : p_.gate_bias, b.column0, 1, gate_bias);
    has_up_bias = p_.form != Form::up && load_bias(p_.up_bias, b.column0, 1, up_bias);
  }
  if (p_.form == Form::up) std::fill_n(ones, n, 1.0f);
  for (int64_t i = 0; i < b.rows(); ++i, gate += ld, up += ld) {
    const int64_t row = b.row0 + i;
    float* const u = p_.form == Form::up ? ones : up;
    if (p_.scale_input) {  // the products are linear in x
      vec::scale(gate, l.weight_of[row], gate, n);
      if (u == up) vec::scale(up, l.weight_of[row], up, n);
    }
    if (has_gate_bias) vec::binary(vec::Binary::add, gate, gate_bias, gate, n);
    if (has_up_bias) vec::binary(vec::Binary::add, up, up_bias, up, n);
    vec::glu(p_.glu, gate, u, l.act + row * p_.inner + b.column0, n);
  }
}

void Experts::run_outer(const Layout& l, const Block& b, const Args& args) const {
  const gemm::Source act = {l.act + b.row0 * p_.inner, gemm::Type::f32, p_.inner, 1, nullptr};
  float* y = l.y + b.row0 * p_.hidden + b.column0;
  multiply(act, weight_rows(p_.down, args, b.expert, b.column0, 1), b.rows(), b.columns(), p_.inner,
           {y, gemm::Type::f32, p_.hidden, 1, nullptr});
  if (!p_.down_bias) return;
  float bias[kMostColumns];
  load_row(p_.down_bias, args, b.expert * p_.down_bias.stride(0) + b.column0 * p_.down_bias.stride(1),
           p_.down_bias.stride(1), b.columns(), bias);
  for (int64_t i = 0; i < b.rows(); ++i, y += p_.hidden) vec::binary(vec::Binary::add, y, bias, y, b.columns());
}

void Experts::combine(const Layout& l, int64_t token, const Args& args) const {
  Scratch scratch;
  const int64_t n = p_.hidden, t = l.first_token + token;
  float* sum = scratch.take<float>(n);
  float* term = scratch.take<float>(n);
  std::fill_n(sum, n, 0.0f);
  for (int64_t j = 0; j < p_.picks; ++j) {
    const int32_t row = l.row_of[token * p_.picks + j];
    if (row == kNoRow) continue;
    const float weight = p_.weights.data<const float>(args)[t * p_.weights.stride(0) + j * p_.weights.stride(1)];
    const float* value = term;
    if (row == kIdentity) {
      load_row(p_.x, args, t * p_.x.stride(0), p_.x.stride(1), n, term);
      vec::scale(term, weight, term, n);
    } else if (p_.scale_input) {
      value = l.y + row * n;
    } else {
      vec::scale(l.y + row * n, weight, term, n);
    }
    vec::binary(vec::Binary::add, sum, value, sum, n);
  }
  void* out = gemm::at(p_.out.data<void>(args), p_.out.type, t * p_.out.stride(0));
  if (p_.out.stride(1) == 1) return vec::store(sum, p_.out.desc.dtype, n, out);
  for (int64_t i = 0; i < n; ++i) {
    vec::store(sum + i, p_.out.desc.dtype, 1, gemm::at(out, p_.out.type, i * p_.out.stride(1)));
  }
}

dgpuStatus_t Experts::run(uint32_t phase, uint32_t chunk, const Args& args) const {
  const auto* l = static_cast<const Layout*>(args.workspace);
  switch (phase % 4) {
    case 0: {
      const int64_t first = phase / 4 * round_;
      return lay_out(p_, args, first, std::min(round_, p_.x.extent(0, args) - first), round_);
    }
    case 1:
      run_inner(*l, block(*l, l->inner_chunks, true, chunk), args);
      break;
    case 2:
      run_outer(*l, block(*l, l->outer_chunks, false, chunk), args);
      break;
    default: {
      const int64_t begin = chunk * combine_tokens(), end = std::min(begin + combine_tokens(), l->tokens);
      for (int64_t t = begin; t < end; ++t) combine(*l, t, args);
    }
  }
  return DGPU_STATUS_SUCCESS;
}

}  // namespace

std::unique_ptr<Kernel> make(const kit::OpView& op, std::string* reason, const Options& options) {
  Problem problem;
  if (!parse(op, &problem, reason)) return nullptr;
  const auto& kernels = options.kernels != nullptr ? *options.kernels : *attention::best_kernels().gemm;
  return std::make_unique<Experts>(problem, kernels, options.round_bytes);
}

}  // namespace dgpu::cpu::moe

namespace dgpu::cpu {
namespace {

std::unique_ptr<Kernel> make_moe_experts(const kit::OpView& op, std::string* reason) { return moe::make(op, reason); }

const char* const kAttributes[] = {"activation", "layout",    "alpha",       "gate_max",
                                   "up_clamp",   "up_offset", "scale_input", nullptr};
const char* const kPorts[] = {"x=f32|bf16|f16",
                              "indices=i32",
                              "weights=f32",
                              "gate=f32|bf16|f16",
                              "up=f32|bf16|f16",
                              "gate_up=f32|bf16|f16",
                              "down=f32|bf16|f16",
                              "gate_bias=f32|bf16|f16",
                              "up_bias=f32|bf16|f16",
                              "gate_up_bias=f32|bf16|f16",
                              "down_bias=f32|bf16|f16",
                              "expert_map=i32",
                              "out=f32|bf16|f16",
                              nullptr};
const dgpuBackendClaim kClaim = {sizeof(dgpuBackendClaim), "moe_experts", 1, 0, kAttributes, kPorts};

}  // namespace

const KernelEntry moe_experts_kernel = {"moe_experts", make_moe_experts, &kClaim};

}  // namespace dgpu::cpu
