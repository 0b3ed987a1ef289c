// reduce: sum, mean, max, min, sum of squares over any axes. Two ways through memory: along the reduced elements of one
// output ("rows"), or adding whole runs of outputs ("columns") where the outputs are the contiguous ones. Long
// reductions are cut into pieces whose f64 results are combined in order.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backends/cpu/kernels.h"
#include "backends/cpu/rows.h"

namespace dgpu::cpu {
namespace {

enum class Fn { sum, mean, max, min, sum_sq };

class Reduce final : public Kernel {
 public:
  Reduce(const kit::OpView& op, Fn fn) : x_(bind(op, "x")), out_(bind(op, "out")), fn_(fn) {
    for (const int64_t axis : op.ints("axes")) reduced_[static_cast<size_t>(axis < 0 ? axis + x_.d.rank : axis)] = true;
    keepdims_ = op.b("keepdims");
    Grid<2> outputs;
    Grid<1> inputs;
    grids(nullptr, &outputs, &inputs);
    const bool inner_reduced = inputs.rank > 0 && inputs.stride[inputs.rank - 1][0] == 1;
    columns_ = !inner_reduced && outputs.rank > 0 && outputs.stride[outputs.rank - 1][0] == 1;
    per_chunk_ = columns_ ? kBlockElems : 1;
    const int64_t at_once = std::min(std::max<int64_t>(outputs.total, 1), kBlockElems);
    piece_ = columns_ ? std::max<int64_t>(256, 2 * kSplitElems / at_once) : kSplitElems;
    workspace_ = inputs.total > piece_ ? outputs.total * ceil_div(inputs.total, piece_) : 0;
  }

  uint32_t phases() const override { return 2; }
  uint32_t chunks(uint32_t phase, const Args& a) const override {
    Grid<2> outputs;
    Grid<1> inputs;
    grids(&a, &outputs, &inputs);
    const int64_t pieces = piece_count(inputs);
    if (phase == 0) return static_cast<uint32_t>(split(outputs, inputs).chunks * pieces);
    return pieces > 1 ? Split(outputs.total, kChunkElems / pieces).count() : 0;
  }

  dgpuStatus_t run(uint32_t phase, uint32_t chunk, const Args& a) const override {
    Grid<2> outputs;
    Grid<1> inputs;
    grids(&a, &outputs, &inputs);
    if (inputs.total == 0 && fn_ != Fn::sum && fn_ != Fn::sum_sq)
      return kit::fail(DGPU_STATUS_INVALID_SHAPE, "reduce: mean, max and min of nothing are not defined");
    const int64_t pieces = piece_count(inputs);
    if (phase == 1) {
      combine(Split(outputs.total, kChunkElems / pieces), chunk, outputs, inputs.total, pieces, a);
      return DGPU_STATUS_SUCCESS;
    }
    const Split s = split(outputs, inputs);
    const int64_t piece = chunk / s.chunks, part = chunk % s.chunks;
    const int64_t begin = piece * piece_, end = std::min(inputs.total, begin + piece_);
    for_runs(outputs, s.begin(part), s.end(part), columns_ ? kBlockElems : s.size, [&](const Cursor<2>& c, int64_t n) {
      double results[kBlockElems];
      if (columns_) {
        column_run(c, n, inputs, begin, end, a, results);
        put(c, n, pieces, piece, outputs.total, inputs.total, results, a);
        return;
      }
      for (int64_t i = 0; i < n; ++i) {
        results[0] = row(c.offset[0] + i * c.step(0), inputs, begin, end, a);
        Cursor<2> at = c;
        at.offset[1] += i * c.step(1);
        at.offset[0] += i * c.step(0);
        if (pieces == 1)
          write(at.offset[1], results[0], inputs.total, a);
        else
          static_cast<double*>(a.workspace)[piece * outputs.total + flat(c) + i] = results[0];
      }
    });
    return DGPU_STATUS_SUCCESS;
  }

  size_t workspace_bytes() const override { return static_cast<size_t>(workspace_) * sizeof(double); }
  const char* algorithm() const override { return columns_ ? "columns" : "rows"; }

 private:
  // args null: the stated maxima.
  void grids(const Args* a, Grid<2>* outputs, Grid<1>* inputs) const {
    uint32_t o = 0;
    for (uint32_t i = 0; i < x_.d.rank; ++i) {
      const int64_t n = a ? x_.extent(i, *a) : x_.d.shape[i];
      if (reduced_[i]) {
        inputs->push(n, {x_.d.strides[i]});
        o += keepdims_ ? 1 : 0;
      } else {
        outputs->push(n, {x_.d.strides[i], out_.d.strides[o]});
        ++o;
      }
    }
  }
  int64_t piece_count(const Grid<1>& inputs) const { return std::max<int64_t>(1, ceil_div(inputs.total, piece_)); }
  Split split(const Grid<2>& outputs, const Grid<1>& inputs) const {
    const int64_t work = std::min(std::max<int64_t>(inputs.total, 1), piece_);
    return Split(outputs.total, std::max(per_chunk_, kChunkElems / work));
  }
  static int64_t flat(const Cursor<2>& c) {
    int64_t at = 0;
    for (int i = 0; i < c.grid->rank; ++i) at = at * c.grid->shape[i] + c.index[i];
    return at;
  }

  double start() const {
    const double inf = std::numeric_limits<double>::infinity();
    return fn_ == Fn::max ? -inf : fn_ == Fn::min ? inf : 0;
  }
  double join(double a, double b) const {
    if (fn_ == Fn::max) return std::isnan(a) || a > b ? a : b;
    if (fn_ == Fn::min) return std::isnan(a) || a < b ? a : b;
    return a + b;
  }
  double of_run(const float* x, int64_t n) const {
    switch (fn_) {
      case Fn::max:
        return vec::max(x, n);
      case Fn::min:
        return vec::min(x, n);
      case Fn::sum_sq:
        return vec::sum_sq(x, n);
      default:
        return vec::sum(x, n);
    }
  }

  double row(int64_t offset, const Grid<1>& inputs, int64_t begin, int64_t end, const Args& a) const {
    double result = start();
    float block[kBlockElems];
    for_runs(inputs, begin, end, kBlockElems, [&](const Cursor<1>& c, int64_t n) {
      const float* x = load_row(x_.at(a, offset + c.offset[0]), x_.d.dtype, c.step(0), n, block);
      result = join(result, of_run(x, n));
    });
    return result;
  }

  // n outputs side by side: f32 over 32 rows, f64 across those.
  void column_run(const Cursor<2>& at, int64_t n, const Grid<1>& inputs, int64_t begin, int64_t end, const Args& a,
                  double* results) const {
    float block[kBlockElems], sums[kBlockElems];
    int pending = 0;
    for (int64_t i = 0; i < n; ++i) results[i] = start();
    const auto flush = [&] {
      for (int64_t i = 0; i < n && pending; ++i) results[i] = join(results[i], sums[i]);
      pending = 0;
    };
    const vec::Binary op = fn_ == Fn::max ? vec::Binary::max : fn_ == Fn::min ? vec::Binary::min : vec::Binary::add;
    for_runs(inputs, begin, end, 1, [&](const Cursor<1>& c, int64_t) {
      const float* x =
          load_row(x_.at(a, at.offset[0] + c.offset[0]), x_.d.dtype, at.step(0), n, pending ? block : sums);
      if (fn_ == Fn::sum_sq) {
        float* squares = pending ? block : sums;
        vec::binary(vec::Binary::mul, x, x, squares, n);
        x = squares;
      }
      if (pending)
        vec::binary(op, sums, x, sums, n);
      else if (x != sums)
        std::memcpy(sums, x, static_cast<size_t>(n) * sizeof(float));
      if (++pending == 32) flush();
    });
    flush();
  }

  void put(const Cursor<2>& c, int64_t n, int64_t pieces, int64_t piece, int64_t outputs, int64_t count,
           const double* results, const Args& a) const {
    if (pieces > 1) {
      std::memcpy(static_cast<double*>(a.workspace) + piece * outputs + flat(c), results,
                  static_cast<size_t>(n) * sizeof(double));
      return;
    }
    float values[kBlockElems];
    for (int64_t i = 0; i < n; ++i) values[i] = final(results[i], count);
    store_row(values, out_.at(a, c.offset[1]), out_.d.dtype, c.step(1), n);
  }

  float final(double v, int64_t count) const {
    return static_cast<float>(fn_ == Fn::mean ? v / static_cast<double>(count) : v);
  }
  void write(int64_t offset, double v, int64_t count, const Args& a) const {
    const float f = final(v, count);
    store_row(&f, out_.at(a, offset), out_.d.dtype, 1, 1);
  }

  void combine(const Split& s, uint32_t chunk, const Grid<2>& outputs, int64_t count, int64_t pieces,
               const Args& a) const {
    const auto* partial = static_cast<const double*>(a.workspace);
    int64_t at = s.begin(chunk);
    for_runs(outputs, s.begin(chunk), s.end(chunk), 1, [&](const Cursor<2>& c, int64_t) {
      double v = start();
      for (int64_t p = 0; p < pieces; ++p) v = join(v, partial[p * outputs.total + at]);
      write(c.offset[1], v, count, a);
      ++at;
    });
  }

  Port x_, out_;
  Fn fn_;
  bool reduced_[DGPU_MAX_RANK] = {};
  bool keepdims_ = false, columns_ = false;
  int64_t per_chunk_ = 1, piece_ = 1, workspace_ = 0;
};

std::unique_ptr<Kernel> make_reduce(const kit::OpView& op, std::string* reason) {
  if (!accept_floats(op, {"x", "out"}, reason)) return nullptr;
  const std::string_view fn = op.s("fn");
  return std::make_unique<Reduce>(op, fn == "sum"    ? Fn::sum
                                      : fn == "mean" ? Fn::mean
                                      : fn == "max"  ? Fn::max
                                      : fn == "min"  ? Fn::min
                                                     : Fn::sum_sq);
}

const char* const kAttributes[] = {"fn=sum|mean|max|min|sum_sq", "axes", "keepdims", nullptr};
const char* const kPorts[] = {"x=f32|bf16|f16", "out=f32|bf16|f16", nullptr};
const dgpuBackendClaim kClaim = {sizeof(dgpuBackendClaim), "reduce", 1, 0, kAttributes, kPorts};

}  // namespace

const KernelEntry reduce_kernel = {"reduce", make_reduce, &kClaim};

}  // namespace dgpu::cpu
