// cast, embedding, cache_append: elements move, with a conversion where the types differ.
#include "backends/cpu/cast.h"
#include "backends/cpu/kernels.h"
#include "backends/cpu/rows.h"

namespace dgpu::cpu {
namespace {

// ---- cast ---------------------------------------------------------------------------------------------------------

class Cast final : public Kernel {
 public:
  explicit Cast(const kit::OpView& op) : x_(bind(op, "x")), out_(bind(op, "out")) {
    // Elements that share a byte stay in one chunk.
    if (out_.bytes == 0) most_ = int64_t{1} << 62;
  }
  uint32_t chunks(uint32_t, const Args& a) const override { return Split(grid(a).total, most_).count(); }
  dgpuStatus_t run(uint32_t, uint32_t chunk, const Args& a) const override {
    const Grid<2> g = grid(a);
    const Split split(g.total, most_);
    for_runs(g, split.begin(chunk), split.end(chunk), most_, [&](const Cursor<2>& c, int64_t n) {
      cast_run(x_.base(a), {x_.d.dtype, c.offset[0], c.step(0)}, out_.base(a), {out_.d.dtype, c.offset[1], c.step(1)},
               n);
    });
    return DGPU_STATUS_SUCCESS;
  }
  const char* algorithm() const override { return "runs"; }

 private:
  Grid<2> grid(const Args& a) const {
    Grid<2> g;
    for (uint32_t i = 0; i < out_.d.rank; ++i) g.push(out_.extent(i, a), {x_.d.strides[i], out_.d.strides[i]});
    return g;
  }
  Port x_, out_;
  int64_t most_ = kChunkElems;
};

std::unique_ptr<Kernel> make_cast(const kit::OpView& op, std::string* reason) {
  if (op.desc("x")->layout == 0 && op.desc("out")->layout == 0) return std::make_unique<Cast>(op);
  *reason = "cast: needs strided tensors";
  return nullptr;
}

// ---- Rows by index --------------------------------------------------------------------------------------------------

// The elements of one row, dimensions `first` and up of `rows` and `other_first` and up of `other`.
Grid<2> row_grid(const Port& rows, uint32_t first, const Port& other, uint32_t other_first, const Args& a) {
  Grid<2> g;
  for (uint32_t i = first; i < rows.d.rank; ++i)
    g.push(rows.extent(i, a), {rows.d.strides[i], other.d.strides[other_first + i - first]});
  return g;
}

void move_row(const Grid<2>& g, const Port& from, const Port& to, int64_t from_offset, int64_t to_offset,
              const Args& a) {
  for_runs(g, 0, g.total, g.total, [&](const Cursor<2>& c, int64_t n) {
    cast_run(from.base(a), {from.d.dtype, from_offset + c.offset[0], c.step(0)}, to.base(a),
             {to.d.dtype, to_offset + c.offset[1], c.step(1)}, n);
  });
}

class Embedding final : public Kernel {
 public:
  explicit Embedding(const kit::OpView& op) : table_(bind(op, "table")), ids_(bind(op, "ids")), out_(bind(op, "out")) {}
  uint32_t chunks(uint32_t, const Args& a) const override {
    return split(index_grid(a), row_grid(table_, 1, out_, ids_.d.rank, a)).count();
  }
  dgpuStatus_t run(uint32_t, uint32_t chunk, const Args& a) const override {
    const Grid<2> index = index_grid(a), row = row_grid(table_, 1, out_, ids_.d.rank, a);
    const Split s = split(index, row);
    const int64_t rows = table_.extent(0, a);
    int64_t bad = -1;
    for_runs(index, s.begin(chunk), s.end(chunk), 1, [&](const Cursor<2>& c, int64_t) {
      const int64_t id = load_int(ids_.base(a), ids_.d.dtype, c.offset[0]);
      if (id < 0 || id >= rows) {
        if (bad < 0) bad = c.offset[0];
        return;
      }
      move_row(row, table_, out_, id * table_.d.strides[0], c.offset[1], a);
    });
    if (bad < 0) return DGPU_STATUS_SUCCESS;
    return kit::fail(DGPU_STATUS_DATA_OUT_OF_RANGE, "embedding: ids holds " +
                                                        std::to_string(load_int(ids_.base(a), ids_.d.dtype, bad)) +
                                                        ": expected 0 to " + std::to_string(rows - 1));
  }
  const char* algorithm() const override { return "rows"; }

 private:
  Grid<2> index_grid(const Args& a) const {
    Grid<2> g;
    for (uint32_t i = 0; i < ids_.d.rank; ++i) g.push(ids_.extent(i, a), {ids_.d.strides[i], out_.d.strides[i]});
    return g;
  }
  static Split split(const Grid<2>& index, const Grid<2>& row) {
    return Split(index.total, kChunkElems / (row.total ? row.total : 1));
  }
  Port table_, ids_, out_;
};

std::unique_ptr<Kernel> make_embedding(const kit::OpView& op, std::string* reason) {
  if (op.desc("table")->layout == 0 && is_i(op.desc("ids")->dtype)) return std::make_unique<Embedding>(op);
  *reason = "embedding: needs a strided table and i32 or i64 ids";
  return nullptr;
}

// Phase 0 checks all slots, so that nothing is written when one is out of range; a single chunk does both in phase 1.
class CacheAppend final : public Kernel {
 public:
  explicit CacheAppend(const kit::OpView& op)
      : x_(bind(op, "x")), slots_(bind(op, "slots")), cache_(bind(op, "cache")) {}
  uint32_t phases() const override { return 2; }
  uint32_t chunks(uint32_t phase, const Args& a) const override {
    const uint32_t n = split(a).count();
    return phase == 1 ? n : n > 1 ? 1 : 0;
  }
  dgpuStatus_t run(uint32_t phase, uint32_t chunk, const Args& a) const override {
    const Split s = split(a);
    if (phase == 0 || s.count() == 1) {
      const dgpuStatus_t status = check(a);
      if (status < 0 || phase == 0) return status;
    }
    const Grid<2> row = row_grid(x_, 1, cache_, 2, a);
    const int64_t per_page = cache_.extent(1, a);
    for (int64_t t = s.begin(chunk); t < s.end(chunk); ++t) {
      const int64_t slot = load_int(slots_.base(a), slots_.d.dtype, t * slots_.d.strides[0]);
      if (slot < 0) continue;
      const int64_t to = slot / per_page * cache_.d.strides[0] + slot % per_page * cache_.d.strides[1];
      move_row(row, x_, cache_, t * x_.d.strides[0], to, a);
    }
    return DGPU_STATUS_SUCCESS;
  }
  const char* algorithm() const override { return "rows"; }

 private:
  Split split(const Args& a) const {
    int64_t width = 1;
    for (uint32_t i = 1; i < x_.d.rank; ++i) width *= x_.extent(i, a);
    return Split(x_.extent(0, a), kChunkElems / (width ? width : 1));
  }
  dgpuStatus_t check(const Args& a) const {
    const int64_t limit = cache_.extent(0, a) * cache_.extent(1, a), n = x_.extent(0, a);
    for (int64_t t = 0; t < n; ++t) {
      const int64_t slot = load_int(slots_.base(a), slots_.d.dtype, t * slots_.d.strides[0]);
      if (slot >= -1 && slot < limit) continue;
      return kit::fail(DGPU_STATUS_DATA_OUT_OF_RANGE, "cache_append: slots[" + std::to_string(t) +
                                                          "] = " + std::to_string(slot) + ": expected -1 to " +
                                                          std::to_string(limit - 1));
    }
    return DGPU_STATUS_SUCCESS;
  }
  Port x_, slots_, cache_;
};

std::unique_ptr<Kernel> make_cache_append(const kit::OpView& op, std::string* reason) {
  if (!accept_floats(op, {"x", "cache"}, reason)) return nullptr;
  if (is_i(op.desc("slots")->dtype)) return std::make_unique<CacheAppend>(op);
  *reason = "cache_append: needs i32 or i64 slots";
  return nullptr;
}

const char* const kNoAttributes[] = {nullptr};
const char* const kCastPorts[] = {"x", "out", nullptr};
const dgpuBackendClaim kCastClaim = {sizeof(dgpuBackendClaim), "cast", 1, 0, kNoAttributes, kCastPorts};
const char* const kEmbeddingPorts[] = {"table", "ids=i32|i64", "out", nullptr};
const dgpuBackendClaim kEmbeddingClaim = {sizeof(dgpuBackendClaim), "embedding", 1, 0, kNoAttributes, kEmbeddingPorts};
const char* const kAppendPorts[] = {"x=f32|bf16|f16", "slots=i32|i64", "cache=f32|bf16|f16", nullptr};
const dgpuBackendClaim kAppendClaim = {sizeof(dgpuBackendClaim), "cache_append", 1, 0, kNoAttributes, kAppendPorts};

}  // namespace

const KernelEntry cast_kernel = {"cast", make_cast, &kCastClaim};
const KernelEntry embedding_kernel = {"embedding", make_embedding, &kEmbeddingClaim};
const KernelEntry cache_append_kernel = {"cache_append", make_cache_append, &kAppendClaim};

}  // namespace dgpu::cpu
