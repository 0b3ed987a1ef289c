// argmax and top_k over the last dimension. A row longer than kSplitElems is split: candidates of each piece first,
// then the best of them. Candidates are 64-bit codes, order key above inverted index, so that one comparison sorts by
// value and then by lowest index.
#include "backends/cpu/select.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "backends/cpu/kernels.h"

namespace dgpu::cpu {

uint64_t best_code(const Port& x, const Args& a, int64_t offset, int64_t begin, int64_t end) {
  float block[kBlockElems];
  int32_t keys[kBlockElems];
  float best = 0;
  uint64_t code = 0;
  for (int64_t i = begin; i < end; i += kBlockElems) {
    const int64_t n = std::min(end - i, kBlockElems);
    const float* v = load_row(x.at(a, offset + i * x.last_stride()), x.d.dtype, x.last_stride(), n, block);
    const float m = vec::max(v, n);
    if (i > begin && m <= best) continue;
    vec::order_keys(v, false, keys, n);
    const int32_t key = vec::max_key(keys, n);
    code = std::max(code, select_code(key, i + vec::find_key(keys, key, n)));
    if (std::isnan(m)) return code;
    best = m;
  }
  return code;
}

namespace {

// Keeps the k largest codes, in any order; returns the smallest of them.
uint64_t keep_best(uint64_t* codes, int64_t count, int64_t k) {
  std::nth_element(codes, codes + (k - 1), codes + count, std::greater<>());
  return codes[k - 1];
}

}  // namespace

int64_t best_codes(const Port& x, const Args& a, int64_t offset, int64_t begin, int64_t end, int64_t k, bool ascending,
                   uint64_t* out) {
  k = std::min(k, end - begin);
  if (k <= 0) return 0;
  const int64_t room = 2 * k + kBlockElems;
  auto* codes = scratch<uint64_t>(5, room);
  float block[kBlockElems];
  int32_t keys[kBlockElems];
  int64_t count = 0;
  int32_t bound = 0;
  bool bounded = false;
  for (int64_t i = begin; i < end; i += kBlockElems) {
    const int64_t n = std::min(end - i, kBlockElems);
    const float* v = load_row(x.at(a, offset + i * x.last_stride()), x.d.dtype, x.last_stride(), n, block);
    vec::order_keys(v, ascending, keys, n);
    int64_t j = bounded ? vec::first_above(keys, bound, 0, n) : 0;
    while (j < n) {
      codes[count++] = select_code(keys[j], i + j);
      j = bounded ? vec::first_above(keys, bound, j + 1, n) : j + 1;
    }
    if (count < 2 * k && !(count >= k && !bounded)) continue;
    bound = select_key(keep_best(codes, count, k));
    count = k;
    bounded = true;
  }
  keep_best(codes, count, k);
  std::sort(codes, codes + k, std::greater<>());
  std::copy(codes, codes + k, out);
  return k;
}

namespace {

Grid<3> row_grid(const Port& x, const Port& first, const Port& second, const Args& a) {
  Grid<3> g;
  for (uint32_t i = 0; i + 1 < x.d.rank; ++i)
    g.push(x.extent(i, a), {x.d.strides[i], first.d.strides[i], second ? second.d.strides[i] : 0});
  return g;
}

// Rows and pieces of rows of an operator that reduces the last dimension of x.
class RowPieces : public Kernel {
 public:
  uint32_t phases() const override { return 2; }
  uint32_t chunks(uint32_t phase, const Args& a) const override {
    const int64_t n = x_.extent(x_.d.rank - 1, a), rows = grid(a).total;
    if (split_row(n)) return static_cast<uint32_t>(phase == 0 ? rows * Split(n, kChunkElems).chunks : rows);
    return phase == 0 ? 0 : Split(rows, kChunkElems / std::max<int64_t>(n, 1)).count();
  }

 protected:
  explicit RowPieces(const kit::OpView& op) : x_(bind(op, "x")) {}
  virtual Grid<3> grid(const Args& a) const = 0;
  virtual bool split_row(int64_t n) const { return n > kSplitElems; }
  size_t pieces_at_most() const {
    size_t rows = 1;
    for (uint32_t i = 0; i + 1 < x_.d.rank; ++i) rows *= static_cast<size_t>(x_.d.shape[i]);
    const int64_t n = x_.d.shape[x_.d.rank - 1];
    return split_row(n) ? rows * static_cast<size_t>(n / (kChunkElems / 2) + 1) : 0;
  }
  Port x_;
};

class Argmax final : public RowPieces {
 public:
  explicit Argmax(const kit::OpView& op) : RowPieces(op), out_(bind(op, "out")) {}
  dgpuStatus_t run(uint32_t phase, uint32_t chunk, const Args& a) const override {
    const int64_t n = x_.extent(x_.d.rank - 1, a);
    if (n == 0) return kit::fail(DGPU_STATUS_INVALID_SHAPE, "argmax: the last dimension of x is empty");
    const Grid<3> g = grid(a);
    auto* codes = static_cast<uint64_t*>(a.workspace);
    if (!split_row(n)) {
      const Split rows(g.total, kChunkElems / n);
      for_runs(g, rows.begin(chunk), rows.end(chunk), 1,
               [&](const Cursor<3>& c, int64_t) { put(a, c, best_code(x_, a, c.offset[0], 0, n)); });
      return DGPU_STATUS_SUCCESS;
    }
    const Split pieces(n, kChunkElems);
    if (phase == 0) {
      const Cursor<3> c(g, chunk / pieces.chunks);
      const int64_t p = chunk % pieces.chunks;
      codes[chunk] = best_code(x_, a, c.offset[0], pieces.begin(p), pieces.end(p));
    } else {
      const uint64_t* first = codes + chunk * pieces.chunks;
      put(a, Cursor<3>(g, chunk), *std::max_element(first, first + pieces.chunks));
    }
    return DGPU_STATUS_SUCCESS;
  }
  size_t workspace_bytes() const override { return pieces_at_most() * sizeof(uint64_t); }
  const char* algorithm() const override { return "rows"; }

 private:
  Grid<3> grid(const Args& a) const override { return row_grid(x_, out_, Port(), a); }
  void put(const Args& a, const Cursor<3>& c, uint64_t code) const {
    store_int(out_.base(a), out_.d.dtype, c.offset[1], select_index(code));
  }
  Port out_;
};

class TopK final : public RowPieces {
 public:
  explicit TopK(const kit::OpView& op)
      : RowPieces(op),
        values_(bind(op, "values")),
        indices_(bind(op, "indices")),
        k_(op.i("k")),
        ascending_(!op.b("largest", true)) {}
  dgpuStatus_t run(uint32_t phase, uint32_t chunk, const Args& a) const override {
    const int64_t n = x_.extent(x_.d.rank - 1, a);
    if (n < k_)
      return kit::fail(DGPU_STATUS_INVALID_SHAPE, "top_k: k = " + std::to_string(k_) + " of " + std::to_string(n) +
                                                      " elements: expected at most that many");
    if (k_ == 0) return DGPU_STATUS_SUCCESS;
    const Grid<3> g = grid(a);
    if (!split_row(n)) {
      auto* codes = scratch<uint64_t>(6, k_);
      const Split rows(g.total, kChunkElems / n);
      for_runs(g, rows.begin(chunk), rows.end(chunk), 1, [&](const Cursor<3>& c, int64_t) {
        best_codes(x_, a, c.offset[0], 0, n, k_, ascending_, codes);
        put(a, c, codes);
      });
      return DGPU_STATUS_SUCCESS;
    }
    auto* all = static_cast<uint64_t*>(a.workspace);
    const Split pieces(n, kChunkElems);
    if (phase == 0) {
      const Cursor<3> c(g, chunk / pieces.chunks);
      const int64_t p = chunk % pieces.chunks;
      uint64_t* mine = all + chunk * k_;
      const int64_t found = best_codes(x_, a, c.offset[0], pieces.begin(p), pieces.end(p), k_, ascending_, mine);
      std::fill(mine + found, mine + k_, 0);
      return DGPU_STATUS_SUCCESS;
    }
    uint64_t* row = all + chunk * pieces.chunks * k_;
    std::partial_sort(row, row + k_, row + pieces.chunks * k_, std::greater<>());
    put(a, Cursor<3>(g, chunk), row);
    return DGPU_STATUS_SUCCESS;
  }
  size_t workspace_bytes() const override { return pieces_at_most() * static_cast<size_t>(k_) * sizeof(uint64_t); }
  const char* algorithm() const override { return "candidates"; }

 private:
  Grid<3> grid(const Args& a) const override { return row_grid(x_, values_, indices_, a); }
  // Many candidates per piece cost more than one thread saves.
  bool split_row(int64_t n) const override { return n > kSplitElems && k_ <= 2048; }
  void put(const Args& a, const Cursor<3>& c, const uint64_t* codes) const {
    for (int64_t j = 0; j < k_; ++j) {
      const int64_t index = select_index(codes[j]);
      float v = 0;
      const float* from = load_row(x_.at(a, c.offset[0] + index * x_.last_stride()), x_.d.dtype, 1, 1, &v);
      store_row(from, values_.at(a, c.offset[1] + j * values_.last_stride()), values_.d.dtype, 1, 1);
      store_int(indices_.base(a), indices_.d.dtype, c.offset[2] + j * indices_.last_stride(), index);
    }
  }
  Port values_, indices_;
  int64_t k_;
  bool ascending_;
};

bool accept_rows(const kit::OpView& op, std::string* reason) {
  const dgpuTensorDesc& x = *op.desc("x");
  if (x.shape[x.rank - 1] <= std::numeric_limits<int32_t>::max()) return true;
  *reason = std::string(op.name()) + ": the last dimension of x must have less than 2^31 elements";
  return false;
}

std::unique_ptr<Kernel> make_argmax(const kit::OpView& op, std::string* reason) {
  if (!accept_floats(op, {"x"}, reason) || !accept_rows(op, reason)) return nullptr;
  return std::make_unique<Argmax>(op);
}

std::unique_ptr<Kernel> make_top_k(const kit::OpView& op, std::string* reason) {
  if (!accept_floats(op, {"x", "values"}, reason) || !accept_rows(op, reason)) return nullptr;
  return std::make_unique<TopK>(op);
}

const char* const kNoAttributes[] = {nullptr};
const char* const kArgmaxPorts[] = {"x=f32|bf16|f16", "out=i32|i64", nullptr};
const dgpuBackendClaim kArgmaxClaim = {sizeof(dgpuBackendClaim), "argmax", 1, 0, kNoAttributes, kArgmaxPorts};
const char* const kTopKAttributes[] = {"k", "largest", nullptr};
const char* const kTopKPorts[] = {"x=f32|bf16|f16", "values=f32|bf16|f16", "indices=i32|i64", nullptr};
const dgpuBackendClaim kTopKClaim = {sizeof(dgpuBackendClaim), "top_k", 1, 0, kTopKAttributes, kTopKPorts};

}  // namespace

const KernelEntry argmax_kernel = {"argmax", make_argmax, &kArgmaxClaim};
const KernelEntry top_k_kernel = {"top_k", make_top_k, &kTopKClaim};

}  // namespace dgpu::cpu
