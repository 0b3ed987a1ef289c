#include "backends/cpu/gemm/gemm.h"

#include <algorithm>

#include "backends/cpu/isa.h"
#include "backends/cpu/machine.h"
#include "backends/cpu/probe.h"

namespace dgpu::cpu::gemm {
namespace {

// Of a chunk, which packs its columns of B for itself: 1 to 2 % of its time at this height. Packing them once for all,
// in a phase of its own, was no faster at any size: what it writes is read back from the third-level cache.
constexpr int64_t kTallRows = 512;
constexpr int64_t kEnoughChunks = 16;  // for a few threads: fewer are cut down to kSmallProducts
constexpr int64_t kFewColumns = 64;    // of a chunk: a panel of A comes from the third-level cache for them
constexpr int64_t kOwnColumns = 256;   // of a chunk at most: half of a 1 MiB L2 per k block
constexpr int64_t kSmallProducts = 4'000'000;
constexpr int64_t kLongProducts = 80'000'000;  // of a chunk at most, about 1.3 ms
constexpr int64_t kLowRows = 126;              // but not for less than this height
constexpr int64_t kStreamSums = 8192;          // floats of a stream chunk's sums: they stay in the first-level cache
constexpr int64_t kStreamChunks = 16;
constexpr int64_t kSplitK = 256;                 // fewest k of a split
constexpr int64_t kFinishColumns = 512;          // of a chunk that adds up splits
constexpr int64_t kPreparedBytes = 32 << 20;     // of packed A per round
constexpr int64_t kChunkProducts = 12'000'000;   // multiplier steps of a chunk, about 200 us
constexpr int64_t kChunkBytes = 512 << 10;       // of B that an in-place chunk reads at most, about 30 us
constexpr int64_t kSmallChunkBytes = 128 << 10;  // and at least, so that reading ahead within a chunk pays
constexpr int64_t kDotChunks = 16;               // wanted, so that few threads end together

// A batch dimension that B does not have, and whose entries follow each other like rows in all else, is more rows.
void fold_batch(Problem* p) {
  while (p->batch_rank > 0) {
    const int d = p->batch_rank - 1;
    const int64_t size = p->batch[d];
    View* views[] = {&p->a, &p->out, p->has_gate ? &p->gate : nullptr, p->has_residual ? &p->residual : nullptr};
    bool fold = p->b.batch[d] == 0 || size == 1;
    for (View* v : views) {
      if (v != nullptr && size != 1 && p->m != 1 && v->batch[d] != p->m * v->row) fold = false;
    }
    if (!fold) return;
    for (View* v : views) {
      if (v != nullptr && p->m == 1) v->row = v->batch[d];
    }
    p->m *= size;
    p->batch_rank = d;
  }
}

Unit choose_unit(const Problem& p, const Options& o, const Kernels& t) {
  const bool possible =
      p.a.type == Type::bf16 && p.b.type == Type::bf16 && t.isa == Isa::avx512 && bf16_dot_unit() != nullptr;
  return possible ? o.unit.value_or(bf16_unit()) : Unit::fma;
}

Path choose_path(const Problem& p, const Options& o) {
  const bool along_k = p.b.col == 1 || p.k <= 1;
  const bool along_n = p.b.row == 1 || p.n <= 1;
  if (o.path == Path::packed) return Path::packed;
  if (along_k && p.m <= kDotRows && (o.path == Path::dot || !o.path)) return Path::dot;
  if (along_n && p.m <= kMaxStreamRows && (o.path == Path::stream || !o.path)) return Path::stream;
  return Path::packed;
}

// Even pieces of at most `most`.
int64_t even(int64_t count, int64_t most) { return ceil_div(count, ceil_div(count, std::max<int64_t>(1, most))); }

void block_packed(Plan* x) {
  const Problem& p = x->problem;
  const Kernels& t = *x->kernels;
  x->k_block = packed_k_block(x->unit, p.k);
  x->k_blocks = std::max<int64_t>(1, ceil_div(p.k, x->k_block));
  x->panel_rows = even(p.m, t.rows);
  x->panels = ceil_div(p.m, x->panel_rows);
  const int64_t units = std::max<int64_t>(1, units_of(x->unit, p.k));
  const int64_t tall = std::min({p.m, kTallRows, std::max(kLowRows, kLongProducts / (kFewColumns * units))});
  const int64_t target = std::min(kChunkProducts, x->batches * p.m * p.n * units / kEnoughChunks);
  const int64_t columns = std::clamp(target / (tall * units), std::max<int64_t>(kFewColumns, t.b_width), kOwnColumns);
  x->columns_per_chunk = std::min(columns / t.b_width * t.b_width, round_up(p.n, t.b_width));
  const int64_t side = x->batches * ceil_div(p.n, x->columns_per_chunk);  // chunks side by side
  const int64_t small = kSmallProducts / (x->columns_per_chunk * units);
  const int64_t rows = std::min(tall, std::max(small, p.m * side / kEnoughChunks));
  x->rows_per_chunk = even(x->panels, ceil_div(rows, x->panel_rows)) * x->panel_rows;
  x->column_chunks = ceil_div(p.n, x->columns_per_chunk);
  x->prepared_a = x->batches == 1 && x->column_chunks > 2 && p.k > 0;
  x->rows_per_round = p.m;
  if (x->prepared_a) {
    const int64_t chunk_bytes = x->k_blocks * a_panel_floats(t, x->unit, x->k_block) *
                                (x->rows_per_chunk / x->panel_rows) * static_cast<int64_t>(sizeof(float));
    x->rows_per_round = std::max<int64_t>(1, kPreparedBytes / chunk_bytes) * x->rows_per_chunk;
  }
}

void block_in_place(Plan* x) {
  const Problem& p = x->problem;
  x->rows_per_chunk = x->rows_per_round = p.m;
  x->k_blocks = 1;
  if (x->path == Path::dot) {
    x->k_block = dot_k_block(p.m, p.k);
    const int64_t step = p.m == 1 ? kMaxDotColumns : 24;  // multiples of the register tile's columns
    const int64_t row_bytes = std::max<int64_t>(1, p.k * size_of(p.b.type));
    const int64_t columns =
        std::clamp(ceil_div(p.n, kDotChunks), kSmallChunkBytes / row_bytes, kChunkBytes / row_bytes);
    x->columns_per_chunk = std::clamp<int64_t>(round_up(columns, step), step, round_up(p.n, step));
    // Several tiles of rows visit A again and again: a copy whose rows do not lie a power of two apart stays in the
    // cache.
    x->prepared_a = x->batches == 1 && p.k > 1 &&
                    (p.m > kMaxDotRows || p.a.col != 1 || p.a.type != (x->unit == Unit::fma ? Type::f32 : Type::bf16));
    x->column_chunks = ceil_div(p.n, x->columns_per_chunk);
    return;
  }
  // Long pieces of B's rows read fast, but leave few chunks: k is split, too.
  x->columns_per_chunk = std::min<int64_t>(1024, kStreamSums / p.m / 32 * 32);
  x->column_chunks = ceil_div(p.n, x->columns_per_chunk);
  const int64_t splits = x->batches == 1 ? std::min(ceil_div(kStreamChunks, x->column_chunks), p.k / kSplitK) : 1;
  x->split_k = std::max<int64_t>(16, round_up(ceil_div(p.k, std::max<int64_t>(1, splits)), 16));
  x->splits = std::max<int64_t>(1, ceil_div(p.k, x->split_k));
}

int64_t prepared_row_floats(const Plan& x) {  // path dot
  return round_up(x.unit == Unit::fma ? x.problem.k : ceil_div(x.problem.k, 2), 16) + 16;
}

int64_t split_floats(const Plan& x) { return x.problem.m * round_up(x.problem.n, 16); }

// Offset in elements of a batch entry, for every operand.
struct Offsets {
  int64_t a = 0, b = 0, out = 0, gate = 0, residual = 0;
};
Offsets batch_offsets(const Problem& p, int64_t entry) {
  Offsets o;
  for (int d = p.batch_rank - 1; d >= 0; --d) {
    const int64_t i = entry % p.batch[d];
    entry /= p.batch[d];
    o.a += i * p.a.batch[d];
    o.b += i * p.b.batch[d];
    o.out += i * p.out.batch[d];
    o.gate += i * p.gate.batch[d];
    o.residual += i * p.residual.batch[d];
  }
  return o;
}

Source source(const void* data, const View& v, int64_t offset) {
  Source s;
  if (data != nullptr) s = {at(data, v.type, offset), v.type, v.row, v.col, nullptr};
  return s;
}

// Preparing A: chunks of panels (path packed, per k block) or rows (path dot).
constexpr int64_t kPanelsPerPrepare = 8;
int64_t prepare_chunks(const Plan& x, int64_t rows) {
  if (x.path == Path::dot) return rows;
  return x.k_blocks * ceil_div(ceil_div(rows, x.panel_rows), kPanelsPerPrepare);
}

void prepare(const Plan& x, int64_t row0, int64_t rows, int64_t chunk, const Source& a, float* workspace) {
  const Kernels& t = *x.kernels;
  if (x.path == Path::dot) {
    return copy_row(t, x.unit, a, row0 + chunk, x.problem.k, workspace + chunk * prepared_row_floats(x));
  }
  const int64_t block = chunk % x.k_blocks, first = chunk / x.k_blocks * kPanelsPerPrepare;
  const int64_t k0 = block * x.k_block, kc = std::min(x.k_block, x.problem.k - k0);
  const int64_t panels = ceil_div(rows, x.panel_rows), floats = a_panel_floats(t, x.unit, x.k_block);
  for (int64_t i = first; i < std::min(first + kPanelsPerPrepare, panels); ++i) {
    const int64_t i0 = i * x.panel_rows, left = rows - i0;
    pack_panels(t, x.unit, a.from(row0 + i0, k0), std::min(x.panel_rows, left), left, kc, t.a_width,
                workspace + (block * panels + i) * floats, floats, Reader::kFar);
  }
}

int64_t rows_of_round(const Plan& x, int64_t round) {
  return std::min(x.rows_per_round, x.problem.m - round * x.rows_per_round);
}

}  // namespace

Unit bf16_unit() {
  if (bf16_dot_unit() == nullptr || bf16_mode() == Bf16Mode::kFma) return Unit::fma;
  return bf16_mode() == Bf16Mode::kDot || bf16_dot_is_faster() ? Unit::bf16_dot : Unit::fma;
}

void force_bf16_unit(std::optional<Unit> unit) {
  std::string error;
  set_bf16_mode(!unit ? "auto" : *unit == Unit::fma ? "fma" : "dot", &error);
}

Plan plan(const Problem& problem, const Options& options) {
  Plan x;
  x.problem = problem;
  fold_batch(&x.problem);
  const Problem& p = x.problem;
  x.kernels = options.kernels != nullptr ? options.kernels : &best_kernels();
  x.unit = choose_unit(p, options, *x.kernels);
  x.batches = 1;
  for (int d = 0; d < p.batch_rank; ++d) x.batches *= p.batch[d];
  if (p.m == 0 || p.n == 0 || x.batches == 0) return x;
  x.path = choose_path(p, options);
  if (x.path == Path::packed) {
    block_packed(&x);
  } else {
    block_in_place(&x);
  }
  x.rounds = ceil_div(p.m, x.rows_per_round);
  x.row_chunks = ceil_div(x.rows_per_round, x.rows_per_chunk);
  return x;
}

uint32_t Plan::chunks(uint32_t phase) const {
  if (phase >= phases() || rounds == 0) return 0;
  if (splits > 1 && phase == 1) return static_cast<uint32_t>(ceil_div(problem.n, kFinishColumns));
  if (!prepared_a) return static_cast<uint32_t>(batches * row_chunks * column_chunks * splits);
  const int64_t rows = rows_of_round(*this, phase / 2);
  if (phase % 2 == 0) return static_cast<uint32_t>(prepare_chunks(*this, rows));
  return static_cast<uint32_t>(ceil_div(rows, rows_per_chunk) * column_chunks);
}

size_t Plan::workspace_bytes() const {
  if (splits > 1) return static_cast<size_t>(splits * split_floats(*this)) * sizeof(float);
  if (!prepared_a || rounds == 0) return 0;
  const int64_t rows = std::min(rows_per_round, problem.m);
  const int64_t floats = path == Path::dot
                             ? rows * prepared_row_floats(*this)
                             : ceil_div(rows, panel_rows) * k_blocks * a_panel_floats(*kernels, unit, k_block);
  return static_cast<size_t>(floats) * sizeof(float);
}

const char* Plan::algorithm() const {
  static constexpr const char* kNames[2][3] = {{"packed_fma", "dot_fma", "stream_fma"},
                                               {"packed_bf16_dot", "dot_bf16_dot", "stream_bf16_dot"}};
  return kNames[static_cast<int>(unit)][static_cast<int>(path)];
}

Limits limits(const Problem& problem, const Options& options) {
  Problem p = problem;
  // Whether batch dimensions fold into rows depends on the sizes: at most all that B does not have.
  for (int d = 0; d < p.batch_rank; ++d) p.m *= p.b.batch[d] == 0 || p.batch[d] == 1 ? p.batch[d] : 1;
  const Kernels& t = options.kernels != nullptr ? *options.kernels : best_kernels();
  constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
  // A panel of A for all of k grows by at most one block. Panels are even: at least half as tall as the tile.
  const int64_t panel_bytes = t.a_width * (round_up(p.k, kUnitBlock) + kUnitBlock) * kFloat;
  const int64_t all = (ceil_div(p.m, ceil_div(t.rows, 2)) + 1) * panel_bytes;
  const int64_t chunk_bytes = (kTallRows / ceil_div(t.rows, 2) + 2) * panel_bytes;
  const int64_t dot = std::min<int64_t>(p.m, kDotRows) * (round_up(p.k, 16) + 16) * kFloat;
  // splits < kStreamChunks / column_chunks + 1, and the columns and rows of a chunk are at most kStreamSums.
  const int64_t few = std::min<int64_t>(p.m, kMaxStreamRows), columns = round_up(p.n, 16);
  const int64_t splits = p.b.col == 1 ? 0 : (kStreamChunks * (kStreamSums + 16 * few) + few * columns) * kFloat;
  Limits l;
  l.workspace_bytes =
      static_cast<size_t>(std::max({dot, splits, std::min(all, std::max(kPreparedBytes, chunk_bytes))}));
  const int64_t round_panels = std::max<int64_t>(1, (kPreparedBytes - chunk_bytes) / panel_bytes);
  l.phases = static_cast<uint32_t>(2 * std::max<int64_t>(1, ceil_div(p.m, round_panels * ceil_div(t.rows, 2))));
  return l;
}

namespace {

// Threads claim chunks one after the other. What they read of B in place is dealt out in as many runs as there are
// cores, so that each mostly goes on where it was: what the processor read ahead is its own then. 5 to 8 % faster.
int64_t deal(int64_t chunk, int64_t chunks) {
  static const int64_t runs = usable_cores();
  const int64_t run = chunk % runs;
  return run * (chunks / runs) + std::min(run, chunks % runs) + chunk / runs;
}

// The elementwise operands of the tile at a place of one batch entry.
void set_epilogue(const Problem& p, const Pointers& pointers, const Offsets& at, int64_t row, int64_t column,
                  Tile* tile) {
  if (p.has_bias) tile->bias = Source{pointers.bias, p.bias_type, 0, p.bias_stride, nullptr}.from(0, column);
  tile->activation = p.activation;
  if (p.has_gate) tile->gate = source(pointers.gate, p.gate, at.gate).from(row, column);
  if (p.has_residual) tile->residual = source(pointers.residual, p.residual, at.residual).from(row, column);
  tile->out = source(pointers.out, p.out, at.out).from(row, column);
}

// Adds up the splits of some columns, in their order.
void finish(const Plan& x, int64_t chunk, const Pointers& pointers, const float* partials) {
  const int64_t column = chunk * kFinishColumns;
  Tile tile;
  tile.kernels = x.kernels;
  tile.m = x.problem.m;
  tile.n = std::min(kFinishColumns, x.problem.n - column);
  set_epilogue(x.problem, pointers, {}, 0, column, &tile);
  finish_tile(tile, partials + column, x.splits, split_floats(x), round_up(x.problem.n, 16));
}

}  // namespace

void run(const Plan& x, uint32_t phase, uint32_t chunk, const Pointers& pointers, void* workspace) {
  const Problem& p = x.problem;
  const int64_t round = x.prepared_a ? phase / 2 : 0;
  const int64_t round_row = round * x.rows_per_round, round_rows = rows_of_round(x, round);
  float* prepared = static_cast<float*>(workspace);
  if (x.prepared_a && phase % 2 == 0) {
    return prepare(x, round_row, round_rows, chunk, source(pointers.a, p.a, 0), prepared);
  }
  if (x.splits > 1 && phase == 1) return finish(x, chunk, pointers, prepared);
  const int64_t row_chunks = ceil_div(round_rows, x.rows_per_chunk);
  const int64_t i = chunk % row_chunks, claimed = chunk / row_chunks % x.column_chunks;
  const int64_t j = x.path == Path::dot ? deal(claimed, x.column_chunks) : claimed;
  const Offsets at = batch_offsets(p, x.splits > 1 ? 0 : chunk / row_chunks / x.column_chunks);
  const int64_t local = i * x.rows_per_chunk, row = round_row + local, column = j * x.columns_per_chunk;
  Tile tile;
  tile.kernels = x.kernels;
  tile.unit = x.unit;
  tile.path = x.path;
  tile.m = std::min(x.rows_per_chunk, round_rows - local);
  tile.n = std::min(x.columns_per_chunk, p.n - column);
  tile.k = p.k;
  tile.k_block = x.k_block;
  tile.panel_rows = x.panel_rows;
  tile.a = source(pointers.a, p.a, at.a).from(row, 0);
  tile.b = source(pointers.b, p.b, at.b).from(column, 0);
  if (x.prepared_a && x.path == Path::packed) {
    const int64_t floats = a_panel_floats(*x.kernels, x.unit, x.k_block);
    tile.packed_a = prepared + local / x.panel_rows * floats;
    tile.packed_a_block = ceil_div(round_rows, x.panel_rows) * floats;
  } else if (x.prepared_a) {
    const Type type = x.unit == Unit::fma ? Type::f32 : Type::bf16;
    tile.a = {prepared, type, prepared_row_floats(x) * 4 / size_of(type), 1, nullptr};
    tile.a = tile.a.from(local, 0);
  }
  if (x.splits > 1) {
    const int64_t split = chunk / row_chunks / x.column_chunks, k0 = split * x.split_k, pitch = round_up(p.n, 16);
    tile.k = std::min(x.split_k, p.k - k0);
    tile.a = tile.a.from(0, k0);
    tile.b = tile.b.from(0, k0);
    tile.out = {prepared + split * split_floats(x) + column, Type::f32, pitch, 1, nullptr};
  } else {
    set_epilogue(p, pointers, at, row, column, &tile);
  }
  run_tile(tile);
}

}  // namespace dgpu::cpu::gemm
