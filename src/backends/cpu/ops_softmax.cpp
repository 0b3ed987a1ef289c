// softmax over one axis. A row longer than kSplitElems is split over chunks: first the largest element and the sum of
// each piece, then every piece of the output from all pieces' pairs, combined in order.
#include <cmath>
#include <limits>

#include "backends/cpu/kernels.h"
#include "backends/cpu/rows.h"

namespace dgpu::cpu {
namespace {

struct Partial {
  float max;
  double sum;  // of exp(x - max)
};

class Softmax final : public Kernel {
 public:
  explicit Softmax(const kit::OpView& op) : x_(bind(op, "x")), out_(bind(op, "out")) {
    const int64_t axis = op.i("axis", -1);
    axis_ = static_cast<uint32_t>(axis < 0 ? axis + x_.d.rank : axis);
  }
  uint32_t phases() const override { return 2; }
  uint32_t chunks(uint32_t phase, const Args& a) const override {
    const int64_t n = x_.extent(axis_, a), rows = grid(a).total;
    if (n > kSplitElems) return static_cast<uint32_t>(rows * Split(n, kChunkElems).chunks);
    return phase == 0 || n == 0 ? 0 : Split(rows, kChunkElems / n).count();
  }

  dgpuStatus_t run(uint32_t phase, uint32_t chunk, const Args& a) const override {
    const int64_t n = x_.extent(axis_, a);
    const Grid<2> g = grid(a);
    if (n > kSplitElems) {
      piece(phase, chunk, g, n, a);
      return DGPU_STATUS_SUCCESS;
    }
    const Split split(g.total, kChunkElems / n);
    for_runs(g, split.begin(chunk), split.end(chunk), 1, [&](const Cursor<2>& c, int64_t) { row(c.offset, n, a); });
    return DGPU_STATUS_SUCCESS;
  }

  size_t workspace_bytes() const override {
    int64_t rows = 1;
    for (uint32_t i = 0; i < x_.d.rank; ++i) rows *= i == axis_ ? 1 : x_.d.shape[i];
    const int64_t n = x_.d.shape[axis_];
    return n > kSplitElems ? static_cast<size_t>(rows * (n / kPieceAtLeast + 1)) * sizeof(Partial) : 0;
  }
  const char* algorithm() const override { return "rows"; }

 private:
  // Pieces of a split row have at least half the size of a chunk.
  static constexpr int64_t kPieceAtLeast = kChunkElems / 2;

  Grid<2> grid(const Args& a) const {
    Grid<2> g;
    for (uint32_t i = 0; i < x_.d.rank; ++i)
      if (i != axis_) g.push(x_.extent(i, a), {x_.d.strides[i], out_.d.strides[i]});
    return g;
  }

  void zero(char* to, int64_t n) const {
    float zeros[256] = {};
    const int64_t stride = out_.d.strides[axis_];
    for (int64_t i = 0; i < n; i += 256)
      store_row(zeros, to + i * stride * out_.bytes, out_.d.dtype, stride, n - i < 256 ? n - i : 256);
  }

  void row(const int64_t* offset, int64_t n, const Args& a) const {
    const int64_t stride = out_.d.strides[axis_];
    const float* x = load_row(x_.at(a, offset[0]), x_.d.dtype, x_.d.strides[axis_], n, scratch(0, n));
    char* to = out_.at(a, offset[1]);
    const float m = vec::max(x, n);
    if (m == -std::numeric_limits<float>::infinity()) return zero(to, n);
    float* y = target_row(to, out_.d.dtype, stride, scratch(1, n));
    const double sum = vec::exp_sum(x, m, y, n);
    vec::scale(y, static_cast<float>(1 / sum), y, n);
    finish_row(y, to, out_.d.dtype, stride, n);
  }

  void piece(uint32_t phase, uint32_t chunk, const Grid<2>& g, int64_t n, const Args& a) const {
    const Split pieces(n, kChunkElems);
    const Cursor<2> c(g, chunk / pieces.chunks);
    auto* partials = static_cast<Partial*>(a.workspace) + chunk / pieces.chunks * pieces.chunks;
    const int64_t p = chunk % pieces.chunks, begin = pieces.begin(p), m = pieces.end(p) - begin;
    const int64_t xs = x_.d.strides[axis_], os = out_.d.strides[axis_];
    const float* x = load_row(x_.at(a, c.offset[0] + begin * xs), x_.d.dtype, xs, m, scratch(0, m));
    if (phase == 0) {
      const float top = vec::max(x, m);
      const bool nothing = top == -std::numeric_limits<float>::infinity();
      partials[p] = {top, nothing ? 0 : vec::exp_sum(x, top, nullptr, m)};
      return;
    }
    float top = -std::numeric_limits<float>::infinity();
    for (int64_t i = 0; i < pieces.chunks; ++i) top = partials[i].max > top ? partials[i].max : top;
    double sum = 0;
    for (int64_t i = 0; i < pieces.chunks; ++i)
      if (partials[i].sum != 0) sum += partials[i].sum * std::exp(double(partials[i].max) - double(top));
    char* to = out_.at(a, c.offset[1] + begin * os);
    if (sum == 0) return zero(to, m);
    float* y = target_row(to, out_.d.dtype, os, scratch(1, m));
    vec::exp_sum(x, top, y, m);
    vec::scale(y, static_cast<float>(1 / sum), y, m);
    finish_row(y, to, out_.d.dtype, os, m);
  }

  Port x_, out_;
  uint32_t axis_;
};

std::unique_ptr<Kernel> make_softmax(const kit::OpView& op, std::string* reason) {
  if (!accept_floats(op, {"x", "out"}, reason)) return nullptr;
  return std::make_unique<Softmax>(op);
}

const char* const kAttributes[] = {"axis", nullptr};
const char* const kPorts[] = {"x=f32|bf16|f16", "out=f32|bf16|f16", nullptr};
const dgpuBackendClaim kClaim = {sizeof(dgpuBackendClaim), "softmax", 1, 0, kAttributes, kPorts};

}  // namespace

const KernelEntry softmax_kernel = {"softmax", make_softmax, &kClaim};

}  // namespace dgpu::cpu
