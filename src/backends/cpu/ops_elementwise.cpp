// unary, binary, glu: the same function on every element, in blocks that stay in the first-level cache.
#include <cmath>
#include <limits>

#include "backends/cpu/kernels.h"
#include "backends/cpu/rows.h"

namespace dgpu::cpu {
namespace {

// Strides of `p` for dimension `i` of an output of rank `rank`, broadcast like NumPy.
int64_t broadcast_stride(const Port& p, uint32_t i, uint32_t rank, const Args& args) {
  const uint32_t missing = rank - p.d.rank;
  if (i < missing || p.extent(i - missing, args) == 1) return 0;
  return p.d.strides[i - missing];
}

template <int N>
Grid<N> broadcast_grid(const Port& out, const std::array<const Port*, N>& ports, const Args& args) {
  Grid<N> g;
  for (uint32_t i = 0; i < out.d.rank; ++i) {
    std::array<int64_t, N> strides;
    for (int t = 0; t < N; ++t) strides[t] = broadcast_stride(*ports[t], i, out.d.rank, args);
    g.push(out.extent(i, args), strides);
  }
  return g;
}

int64_t elements(const Port& p, const Args& args) {
  int64_t n = 1;
  for (uint32_t i = 0; i < p.d.rank; ++i) n *= p.extent(i, args);
  return n;
}

constexpr const char* kUnaryNames[] = {"neg",      "abs",     "exp",  "log",        "sqrt",      "rsqrt",
                                       "tanh",     "sigmoid", "silu", "gelu_erf",   "gelu_tanh", "relu",
                                       "softplus", "sin",     "cos",  "reciprocal", "square"};
constexpr const char* kBinaryNames[] = {"add", "sub", "mul", "div", "max", "min", "pow", "floordiv", "mod"};
constexpr const char* kActivationNames[] = {"none", "relu", "gelu_erf", "gelu_tanh", "silu", "sigmoid"};

template <size_t N>
int index_of(const char* const (&names)[N], std::string_view name) {
  for (size_t i = 0; i < N; ++i)
    if (name == names[i]) return static_cast<int>(i);
  return -1;
}

class UnaryKernel final : public Kernel {
 public:
  UnaryKernel(const kit::OpView& op, vec::Unary fn) : x_(bind(op, "x")), out_(bind(op, "out")), fn_(fn) {}
  uint32_t chunks(uint32_t, const Args& a) const override { return Split(elements(out_, a), kChunkElems).count(); }
  dgpuStatus_t run(uint32_t, uint32_t chunk, const Args& a) const override {
    const Grid<2> g = broadcast_grid<2>(out_, {&x_, &out_}, a);
    const Split split(g.total, kChunkElems);
    float in[kBlockElems], result[kBlockElems];
    for_runs(g, split.begin(chunk), split.end(chunk), kBlockElems, [&](const Cursor<2>& c, int64_t n) {
      const float* x = load_row(x_.at(a, c.offset[0]), x_.d.dtype, c.step(0), n, in);
      char* to = out_.at(a, c.offset[1]);
      float* y = target_row(to, out_.d.dtype, c.step(1), result);
      vec::unary(fn_, x, y, n);
      finish_row(y, to, out_.d.dtype, c.step(1), n);
    });
    return DGPU_STATUS_SUCCESS;
  }
  const char* algorithm() const override { return "blocks"; }

 private:
  Port x_, out_;
  vec::Unary fn_;
};

std::unique_ptr<Kernel> make_unary(const kit::OpView& op, std::string* reason) {
  if (!accept_floats(op, {"x", "out"}, reason)) return nullptr;
  return std::make_unique<UnaryKernel>(op, static_cast<vec::Unary>(index_of(kUnaryNames, op.s("fn"))));
}

class BinaryKernel final : public Kernel {
 public:
  BinaryKernel(const kit::OpView& op, vec::Binary fn)
      : a_(bind(op, "a")),
        b_(bind(op, "b")),
        out_(bind(op, "out")),
        fn_(fn),
        scalar_(static_cast<float>(op.f("scalar"))) {}
  uint32_t chunks(uint32_t, const Args& a) const override { return Split(elements(out_, a), kChunkElems).count(); }
  dgpuStatus_t run(uint32_t, uint32_t chunk, const Args& a) const override {
    const Grid<3> g = broadcast_grid<3>(out_, {&a_, b_ ? &b_ : &a_, &out_}, a);
    const Split split(g.total, kChunkElems);
    float in_a[kBlockElems], in_b[kBlockElems], result[kBlockElems];
    if (!b_)
      for (float& v : in_b) v = scalar_;
    for_runs(g, split.begin(chunk), split.end(chunk), kBlockElems, [&](const Cursor<3>& c, int64_t n) {
      const float* x = load_row(a_.at(a, c.offset[0]), a_.d.dtype, c.step(0), n, in_a);
      const float* y = b_ ? load_row(b_.at(a, c.offset[1]), b_.d.dtype, c.step(1), n, in_b) : in_b;
      char* to = out_.at(a, c.offset[2]);
      float* z = target_row(to, out_.d.dtype, c.step(2), result);
      vec::binary(fn_, x, y, z, n);
      finish_row(z, to, out_.d.dtype, c.step(2), n);
    });
    return DGPU_STATUS_SUCCESS;
  }
  const char* algorithm() const override { return "blocks"; }

 private:
  Port a_, b_, out_;
  vec::Binary fn_;
  float scalar_;
};

// Integers wrap; division rounds down and mod has the divisor's sign, as in Python.
class IntBinaryKernel final : public Kernel {
 public:
  enum class Fn { add, sub, mul, max, min, floordiv, mod };
  IntBinaryKernel(const kit::OpView& op, Fn fn)
      : a_(bind(op, "a")),
        b_(bind(op, "b")),
        out_(bind(op, "out")),
        fn_(fn),
        scalar_(static_cast<int64_t>(op.f("scalar"))) {}
  uint32_t chunks(uint32_t, const Args& a) const override { return Split(elements(out_, a), kChunkElems).count(); }
  dgpuStatus_t run(uint32_t, uint32_t chunk, const Args& a) const override {
    const Grid<3> g = broadcast_grid<3>(out_, {&a_, b_ ? &b_ : &a_, &out_}, a);
    const Split split(g.total, kChunkElems);
    bool zero = false;
    for_runs(g, split.begin(chunk), split.end(chunk), kChunkElems, [&](const Cursor<3>& c, int64_t n) {
      for (int64_t i = 0; i < n; ++i) {
        const int64_t x = load_int(a_.base(a), a_.d.dtype, c.offset[0] + i * c.step(0));
        const int64_t y = b_ ? load_int(b_.base(a), b_.d.dtype, c.offset[1] + i * c.step(1)) : scalar_;
        if (y == 0 && (fn_ == Fn::floordiv || fn_ == Fn::mod)) {
          zero = true;
          continue;
        }
        store_int(out_.base(a), out_.d.dtype, c.offset[2] + i * c.step(2), value(x, y));
      }
    });
    if (zero) return kit::fail(DGPU_STATUS_DATA_OUT_OF_RANGE, "binary: b is 0: an integer division needs b != 0");
    return DGPU_STATUS_SUCCESS;
  }
  const char* algorithm() const override { return "integers"; }

 private:
  int64_t value(int64_t x, int64_t y) const {
    const auto ux = static_cast<uint64_t>(x), uy = static_cast<uint64_t>(y);
    switch (fn_) {
      case Fn::add:
        return static_cast<int64_t>(ux + uy);
      case Fn::sub:
        return static_cast<int64_t>(ux - uy);
      case Fn::mul:
        return static_cast<int64_t>(ux * uy);
      case Fn::max:
        return x > y ? x : y;
      case Fn::min:
        return x < y ? x : y;
      case Fn::floordiv:
        if (y == -1) return static_cast<int64_t>(0 - ux);
        return x / y - (x % y != 0 && (x % y < 0) != (y < 0));
      case Fn::mod: {
        if (y == -1) return 0;
        const int64_t r = x % y;
        return r != 0 && (r < 0) != (y < 0) ? r + y : r;
      }
    }
    return 0;
  }
  Port a_, b_, out_;
  Fn fn_;
  int64_t scalar_;
};

std::unique_ptr<Kernel> make_int_binary(const kit::OpView& op, std::string_view fn, std::string* reason) {
  constexpr const char* kNames[] = {"add", "sub", "mul", "max", "min", "floordiv", "mod"};
  const int index = index_of(kNames, fn);
  for (const char* name : {"a", "b", "out"}) {
    const dgpuTensorDesc* d = op.desc(name);
    if (index >= 0 && (!d || (is_i(d->dtype) && d->layout == 0))) continue;
    *reason = "binary: integers need i32 or i64 on all ports and one of add, sub, mul, max, min, floordiv, mod";
    return nullptr;
  }
  return std::make_unique<IntBinaryKernel>(op, static_cast<IntBinaryKernel::Fn>(index));
}

std::unique_ptr<Kernel> make_binary(const kit::OpView& op, std::string* reason) {
  if (is_i(op.desc("a")->dtype)) return make_int_binary(op, op.s("fn"), reason);
  if (!accept_floats(op, {"a", "b", "out"}, reason)) return nullptr;
  const int fn = index_of(kBinaryNames, op.s("fn"));
  if (fn > static_cast<int>(vec::Binary::pow)) {
    *reason = "binary: " + std::string(op.s("fn")) + " takes integers";
    return nullptr;
  }
  return std::make_unique<BinaryKernel>(op, static_cast<vec::Binary>(fn));
}

class GluKernel final : public Kernel {
 public:
  explicit GluKernel(const kit::OpView& op) : x_(bind(op, "x")), up_(bind(op, "up")), out_(bind(op, "out")) {
    const double inf = std::numeric_limits<double>::infinity();
    const int activation = index_of(kActivationNames, op.s("activation"));
    p_ = {static_cast<vec::Activation>(activation), static_cast<float>(op.f("alpha", 1)),
          static_cast<float>(op.f("gate_max", inf)), static_cast<float>(op.f("up_clamp", inf)),
          static_cast<float>(op.f("up_offset", 0))};
    interleaved_ = op.s("layout") == "interleaved";
  }
  uint32_t chunks(uint32_t, const Args& a) const override { return Split(elements(out_, a), kChunkElems).count(); }
  dgpuStatus_t run(uint32_t, uint32_t chunk, const Args& a) const override {
    const uint32_t rank = out_.d.rank;
    const int64_t width = out_.extent(rank - 1, a);
    const Port& up = up_ ? up_ : x_;
    const int64_t up_start = up_ ? 0 : interleaved_ ? x_.last_stride() : width * x_.last_stride();
    const int64_t factor = interleaved_ ? 2 : 1;
    Grid<3> g;
    for (uint32_t i = 0; i < rank; ++i) {
      const int64_t f = i + 1 == rank ? factor : 1;
      g.push(out_.extent(i, a), {x_.d.strides[i] * f, up.d.strides[i] * f, out_.d.strides[i]});
    }
    const Split split(g.total, kChunkElems);
    float in_gate[kBlockElems], in_up[kBlockElems], result[kBlockElems];
    for_runs(g, split.begin(chunk), split.end(chunk), kBlockElems, [&](const Cursor<3>& c, int64_t n) {
      const float *gate = nullptr, *u = nullptr;
      if (c.step(0) == 2 && interleaved_) {
        float pairs[2 * kBlockElems];
        vec::split_pairs(load_row(x_.at(a, c.offset[0]), x_.d.dtype, 1, 2 * n, pairs), in_gate, in_up, n);
        gate = in_gate;
        u = in_up;
      } else {
        gate = load_row(x_.at(a, c.offset[0]), x_.d.dtype, c.step(0), n, in_gate);
        u = load_row(up.at(a, c.offset[1] + up_start), up.d.dtype, c.step(1), n, in_up);
      }
      char* to = out_.at(a, c.offset[2]);
      float* y = target_row(to, out_.d.dtype, c.step(2), result);
      vec::glu(p_, gate, u, y, n);
      finish_row(y, to, out_.d.dtype, c.step(2), n);
    });
    return DGPU_STATUS_SUCCESS;
  }
  const char* algorithm() const override { return "blocks"; }

 private:
  Port x_, up_, out_;
  vec::Glu p_;
  bool interleaved_;
};

std::unique_ptr<Kernel> make_glu(const kit::OpView& op, std::string* reason) {
  if (!accept_floats(op, {"x", "up", "out"}, reason)) return nullptr;
  return std::make_unique<GluKernel>(op);
}

const char* const kUnaryAttributes[] = {
    "fn=neg|abs|exp|log|sqrt|rsqrt|tanh|sigmoid|silu|gelu_erf|gelu_tanh|relu|softplus|sin|cos|reciprocal|square",
    nullptr};
const char* const kUnaryPorts[] = {"x=f32|bf16|f16", "out=f32|bf16|f16", nullptr};
const dgpuBackendClaim kUnaryClaim = {sizeof(dgpuBackendClaim), "unary", 1, 0, kUnaryAttributes, kUnaryPorts};

const char* const kBinaryAttributes[] = {"fn=add|sub|mul|div|max|min|pow|floordiv|mod", "scalar", nullptr};
const char* const kBinaryPorts[] = {"a=f32|bf16|f16|i32|i64", "b=f32|bf16|f16|i32|i64", "out=f32|bf16|f16|i32|i64",
                                    nullptr};
const dgpuBackendClaim kBinaryClaim = {sizeof(dgpuBackendClaim), "binary", 1, 0, kBinaryAttributes, kBinaryPorts};

const char* const kGluAttributes[] = {"activation=silu|gelu_erf|gelu_tanh|relu|sigmoid|none",
                                      "layout=separate|contiguous|interleaved",
                                      "alpha",
                                      "gate_max",
                                      "up_clamp",
                                      "up_offset",
                                      nullptr};
const char* const kGluPorts[] = {"x=f32|bf16|f16", "up=f32|bf16|f16", "out=f32|bf16|f16", nullptr};
const dgpuBackendClaim kGluClaim = {sizeof(dgpuBackendClaim), "glu", 1, 0, kGluAttributes, kGluPorts};

}  // namespace

const KernelEntry unary_kernel = {"unary", make_unary, &kUnaryClaim};
const KernelEntry binary_kernel = {"binary", make_binary, &kBinaryClaim};
const KernelEntry glu_kernel = {"glu", make_glu, &kGluClaim};

}  // namespace dgpu::cpu
