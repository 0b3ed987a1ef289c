// One rectangle of a matrix product, start to finish, on the calling thread. The building block of `matmul` and of
// the experts of a mixture.
#pragma once
#include "backends/cpu/gemm/kernels.h"

namespace dgpu::cpu::gemm {

// Rows of an operand: element (i, k) at data + (index ? index[i] : i) * row + k * col elements.
struct Source {
  const void* data = nullptr;
  Type type = Type::f32;
  int64_t row = 0, col = 0;
  const int32_t* index = nullptr;
  const void* at(int64_t i, int64_t k) const {
    return gemm::at(data, type, (index != nullptr ? index[i] : i) * row + k * col);
  }
  // The rows from `i` on, and the columns from `k` on.
  Source from(int64_t i, int64_t k) const {
    Source s = *this;
    s.data = gemm::at(data, type, (index != nullptr ? 0 : i * row) + k * col);
    if (index != nullptr) s.index = index + i;
    return s;
  }
};

struct Tile {
  const Kernels* kernels = nullptr;
  Unit unit = Unit::fma;
  Path path = Path::packed;
  int64_t m = 0, n = 0, k = 0;
  int64_t k_block = 0;     // k per panel; multiple of 2
  int64_t panel_rows = 0;  // rows per panel of A, at most kernels->rows
  Source a, b;             // rows are m and n
  // Path packed: A's panels made beforehand, for the first row of the tile; null: packed here.
  const float* packed_a = nullptr;
  int64_t packed_a_block = 0;  // floats between the same panel of consecutive k blocks
  Source bias;                 // one row of n columns; data may be null, as for gate and residual
  Activation activation = Activation::none;
  Source gate, residual;
  Source out;  // written
};

// Steps of the multiplier in k elements, and floats of one A panel.
inline int64_t units_of(Unit unit, int64_t k) { return unit == Unit::fma ? k : (k + 1) / 2; }
inline int64_t a_panel_floats(const Kernels& t, Unit unit, int64_t k_block) {
  return units_of(unit, k_block) * t.a_width;
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t x, int64_t step) { return ceil_div(x, step) * step; }

constexpr int64_t kDotRows = 16;  // in place up to this m where B is contiguous along k
// Even blocks of at most this many steps: loading and storing a register tile of sums stays below 1 % of its steps, and
// eight panels of B (of 32 columns) fill half of a 1 MiB L2.
constexpr int64_t kUnitBlock = 512;
inline int64_t packed_k_block(Unit unit, int64_t k) {
  const int64_t units = units_of(unit, k < 1 ? 1 : k);
  return round_up(ceil_div(units, ceil_div(units, kUnitBlock)) * (unit == Unit::fma ? 1 : 2), 4);
}
inline int64_t dot_k_block(int64_t m, int64_t k) { return m <= kMaxDotRows ? round_up(k, 2) : 2048; }

// Path and blocking for a tile of its own (callers that are not `matmul`), from its kernels, unit, sizes and sources.
void choose_blocking(Tile* tile);

void run_tile(const Tile& tile);
// The same from sums made elsewhere: `parts` of them, `part_floats` apart, rows `ld` floats apart; added in order.
void finish_tile(const Tile& tile, const float* partials, int64_t parts, int64_t part_floats, int64_t ld);

// Panels, `panel_floats` apart, of rows [0, count) of `s`, `width` rows each, for k in [0, k). Up to `available` >=
// count rows may be read. kFar: for other cores to read. What they hold of the panels of an earlier product must leave
// their caches first; stores past the caches do not wait for that, which on a processor with several last-level caches
// takes longer than the packing.
enum class Reader { kNear, kFar };
void pack_panels(const Kernels& t, Unit unit, const Source& s, int64_t count, int64_t available, int64_t k, int width,
                 float* panels, int64_t panel_floats, Reader reader = Reader::kNear);
// Row i as contiguous f32 (fma) or bf16 (bf16_dot) values.
void copy_row(const Kernels& t, Unit unit, const Source& s, int64_t i, int64_t k, void* dst);

// 64-byte aligned floats of this thread, kept for the next call; contents undefined. Slots do not overlap.
enum class Slot { b, a, sums, rows, count };
float* scratch(Slot slot, int64_t floats);

}  // namespace dgpu::cpu::gemm
