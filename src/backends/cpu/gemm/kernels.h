// The innermost loops, one table per instruction set.
//
// A panel holds `width` rows of an operand for a range of k, interleaved: 4-byte units [k][width] of f32, or, for the
// bf16 pair instruction, [k/2][width] of two bf16 (k even in the low half; an odd k is padded with zero).
#pragma once
#include "backends/cpu/gemm/types.h"

namespace dgpu::cpu::gemm {

enum class Isa : uint8_t { scalar, sse4, avx2, avx512, neon };

constexpr int kMaxRows = 14;       // rows of the largest register tile
constexpr int kDotAhead = 3;       // rows of B that a register tile of `dot` reads ahead
constexpr int kMaxDotRows = 4;     // rows of A in an in-place tile
constexpr int kMaxDotColumns = 8;  // rows of B in an in-place tile
constexpr int kMaxStreamRows = 16;
constexpr int kMaxColumns = 512;  // columns of B in a chunk
constexpr int kMaxWidth = 64;     // units of the widest panel

// c[rows][2 vectors] (+)= A panel * B panel over `units` steps. C is f32 with `ldc` floats between rows.
using MicroKernel = void (*)(const void* a, const void* b, int64_t units, float* c, int64_t ldc, bool accumulate);
// Interleaves `width` rows that are contiguous along k. rows[i] points at the first k.
using PackRows = void (*)(const void* const* rows, int64_t k, int width, void* panel);
// Same for rows that are contiguous across the panel: element (i, k) at src + i + k * stride. Fills one panel after the
// other, `panel_floats` apart, with `columns` <= kMaxColumns rows in all; what the last holds beyond them is
// unspecified.
using PackColumns = void (*)(const void* src, int64_t stride, int64_t k, int columns, int width, void* panels,
                             int64_t panel_floats);
// c[i][j] (+)= sum_k a[i][k] b[j][k] for j < count; b rows are contiguous along k, as are a's. With several rows of A
// it reads ahead kDotAhead rows from next[j] on for every register tile of rows j meanwhile: the compute of one block
// hides the next one's memory.
using Dot = void (*)(const void* const* a, const void* const* b, const void* const* next, int64_t count, int64_t k,
                     float* c, int64_t ldc, bool accumulate);
// c[i][0..n) = sum_k a[i * lda + k] b[k * ldb + 0..n); a is f32, or bf16 for the pair instruction. c has room for n
// rounded up to b_width.
using Stream = void (*)(const void* a, int64_t lda, const void* b, int64_t ldb, int64_t n, int64_t k, float* c,
                        int64_t ldc);

// One row on its way to the output: activation(sums + bias) * gate + residual; all but the sums may be null.
struct Row {
  const float* sums;
  const float* bias;
  const float* gate;
  const float* residual;
};

struct Kernels {
  Isa isa;
  const char* name;
  int rows;                                   // rows of A in a register tile
  int a_width;                                // units between two k of an A panel, >= rows
  int b_width;                                // columns of a register tile, and units between two k of a B panel
  MicroKernel micro[kMaxRows + 1];            // by rows of the tile
  PackRows pack_rows[kTypes];                 // to f32 panels
  PackRows stream_rows[kTypes];               // the same past the caches; whole vectors of panels are aligned
  PackColumns pack_columns[kTypes];           // to f32 panels
  Dot dot[kMaxDotRows + 1][kTypes];           // by rows of A and type of B; A is f32
  Stream stream[kMaxStreamRows + 1][kTypes];  // by rows of A and type of B
  PackRows pack_pair_rows;                    // bf16 to pair panels
  PackRows stream_pair_rows;
  PackColumns pack_pair_columns;
  void (*widen[kTypes])(const void* src, int64_t n, float* dst);
  void (*narrow[kTypes])(const float* src, int64_t n, void* dst);  // round to nearest even
  // To n contiguous elements of the type, which may be the residual.
  void (*finish[kTypes])(const Row& row, int64_t n, Activation activation, void* out);
  void (*add)(float* x, const float* y, int64_t n);
  double (*fma_loop)(int64_t iterations);                // register-only FMAs; returns the flops done
  float (*read_loop)(const float* data, int64_t count);  // sums: measures read bandwidth
};

// The bf16 pair instruction (AVX512_BF16); panels and tile shape are those of the avx512 table.
struct DotUnit {
  MicroKernel micro[kMaxRows + 1];
  Dot dot[kMaxDotRows + 1];  // both operands bf16
  Stream stream[kMaxStreamRows + 1];
  double (*peak_loop)(int64_t iterations);
};

const Kernels* kernels(Isa isa);  // null where this machine or build lacks it
const Kernels& best_kernels();
const DotUnit* bf16_dot_unit();  // null where this machine or build lacks it

}  // namespace dgpu::cpu::gemm
