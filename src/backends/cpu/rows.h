// What the operator kernels share: bound ports, strided iteration over several tensors at once, rows in f32, scratch.
#pragma once
#include <array>
#include <cstring>

#include "backends/cpu/kernel.h"
#include "backends/cpu/vec.h"

namespace dgpu::cpu {

constexpr int64_t kBlockElems = 1024;   // elements brought into f32 at a time
constexpr int64_t kChunkElems = 32768;  // elements of a chunk of a memory-bound operator, about 20 us
constexpr int64_t kSplitElems = 65536;  // rows longer than this are split over chunks

inline bool is_f(dgpuDtype_t t) { return t == DGPU_DTYPE_F32 || t == DGPU_DTYPE_BF16 || t == DGPU_DTYPE_F16; }
inline bool is_i(dgpuDtype_t t) { return t == DGPU_DTYPE_I32 || t == DGPU_DTYPE_I64; }
uint32_t dtype_bits(dgpuDtype_t t);
inline int64_t dtype_bytes(dgpuDtype_t t) { return dtype_bits(t) / 8; }  // 0 for types below a byte
inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A port of the plan: its index in Args::ports and its description. False if it is not bound.
struct Port {
  int index = -1;
  dgpuTensorDesc d = DGPU_TENSOR_DESC_INIT;
  int64_t bytes = 0;  // of an element

  explicit operator bool() const { return index >= 0; }
  char* base(const Args& a) const { return static_cast<char*>(a.ports[index]); }
  char* at(const Args& a, int64_t offset) const { return base(a) + offset * bytes; }
  int64_t extent(uint32_t i, const Args& a) const { return kit::extent(d, i, a.symbols); }
  int64_t last_stride() const { return d.rank ? d.strides[d.rank - 1] : 1; }
};
Port bind(const kit::OpView& op, std::string_view name);
// Whether each bound port of the list is f32, bf16 or f16; else `reason` names the one that is not.
bool accept_floats(const kit::OpView& op, std::initializer_list<const char*> names, std::string* reason);

// One iteration space and its strides in N tensors (elements). Dimensions are pushed outermost first; those that
// continue each other in all tensors are merged.
template <int N>
struct Grid {
  int rank = 0;
  int64_t shape[DGPU_MAX_RANK] = {};
  int64_t stride[DGPU_MAX_RANK][N] = {};
  int64_t total = 1;

  void push(int64_t extent, const std::array<int64_t, N>& strides) {
    total *= extent;
    if (extent == 1) return;
    if (rank > 0) {
      bool merges = true;
      for (int t = 0; t < N; ++t) merges = merges && stride[rank - 1][t] == strides[t] * extent;
      if (merges) {
        shape[rank - 1] *= extent;
        for (int t = 0; t < N; ++t) stride[rank - 1][t] = strides[t];
        return;
      }
    }
    shape[rank] = extent;
    for (int t = 0; t < N; ++t) stride[rank][t] = strides[t];
    ++rank;
  }
};

// A place in a grid.
template <int N>
struct Cursor {
  const Grid<N>* grid;
  int64_t index[DGPU_MAX_RANK] = {};
  int64_t offset[N] = {};

  Cursor(const Grid<N>& g, int64_t flat) : grid(&g) {
    for (int i = g.rank - 1; i >= 0; --i) {
      index[i] = flat % g.shape[i];
      flat /= g.shape[i];
      for (int t = 0; t < N; ++t) offset[t] += index[i] * g.stride[i][t];
    }
  }
  // Places up to the end of the innermost dimension.
  int64_t run() const { return grid->rank ? grid->shape[grid->rank - 1] - index[grid->rank - 1] : 1; }
  int64_t step(int t) const { return grid->rank ? grid->stride[grid->rank - 1][t] : 0; }
  // Forward by n <= run().
  void advance(int64_t n) {
    int i = grid->rank - 1;
    if (i < 0) return;
    index[i] += n;
    for (int t = 0; t < N; ++t) offset[t] += n * grid->stride[i][t];
    for (; i > 0 && index[i] == grid->shape[i]; --i) {
      index[i] = 0;
      ++index[i - 1];
      for (int t = 0; t < N; ++t) offset[t] += grid->stride[i - 1][t] - grid->shape[i] * grid->stride[i][t];
    }
  }
};

// Calls f(cursor, n) for runs of at most `block` places that cover [begin, end).
template <int N, class F>
void for_runs(const Grid<N>& g, int64_t begin, int64_t end, int64_t block, F f) {
  if (begin >= end) return;  // a grid with an empty dimension has no places
  Cursor<N> c(g, begin);
  while (begin < end) {
    int64_t n = c.run();
    n = n < block ? n : block;
    n = n < end - begin ? n : end - begin;
    f(c, n);
    c.advance(n);
    begin += n;
  }
}

// A fixed partition of `total` items into nearly equal chunks of at most `most` items.
struct Split {
  int64_t total, chunks, size;
  Split(int64_t total_items, int64_t most) : total(total_items) {
    chunks = total > 0 ? ceil_div(total, most < 1 ? 1 : most) : 0;
    size = chunks ? ceil_div(total, chunks) : 0;
    if (size) chunks = ceil_div(total, size);
  }
  int64_t begin(int64_t chunk) const { return chunk * size; }
  int64_t end(int64_t chunk) const { return (chunk + 1) * size < total ? (chunk + 1) * size : total; }
  uint32_t count() const { return static_cast<uint32_t>(chunks); }
};

// n elements of a floating type from `p`, `stride` elements apart, as f32: in place where they lie so already, else in
// `scratch`.
const float* load_row(const void* p, dgpuDtype_t type, int64_t stride, int64_t n, float* scratch);
void store_row(const float* x, void* p, dgpuDtype_t type, int64_t stride, int64_t n);
// Where to compute a row of f32 for store_row: the target itself if it is contiguous f32, else `scratch`.
inline float* target_row(void* p, dgpuDtype_t type, int64_t stride, float* scratch) {
  return type == DGPU_DTYPE_F32 && stride == 1 ? static_cast<float*>(p) : scratch;
}
inline void finish_row(const float* x, void* p, dgpuDtype_t type, int64_t stride, int64_t n) {
  if (x != p) store_row(x, p, type, stride, n);
}

inline int64_t load_int(const void* p, dgpuDtype_t type, int64_t offset) {
  return type == DGPU_DTYPE_I64 ? static_cast<const int64_t*>(p)[offset] : static_cast<const int32_t*>(p)[offset];
}
inline void store_int(void* p, dgpuDtype_t type, int64_t offset, int64_t v) {
  if (type == DGPU_DTYPE_I64)
    static_cast<int64_t*>(p)[offset] = v;
  else
    static_cast<int32_t*>(p)[offset] = static_cast<int32_t>(v);
}

// At least n bytes of this thread, 64-byte aligned, kept and grown; one piece per slot. Contents are not kept between
// calls of scratch() on the slot.
void* scratch_bytes(int slot, size_t n);
template <class T = float>
T* scratch(int slot, int64_t n) {
  return static_cast<T*>(scratch_bytes(slot, static_cast<size_t>(n) * sizeof(T)));
}
constexpr int kScratchSlots = 8;

}  // namespace dgpu::cpu
