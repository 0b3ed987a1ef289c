// The inner loops of attention, one table per instruction set. Scores are in units of log2 (times log2 e), so that
// the weights are powers of two.
#pragma once
#include "backends/cpu/gemm/kernels.h"

namespace dgpu::cpu::attention {

using gemm::Type;

constexpr int kMaxColumns = 32;    // rows of a tile that lie across its vectors: two vectors of the widest set
constexpr int kMaxValueRows = 14;  // output elements in a register tile
constexpr int kMaxNarrowRows = 4;  // query rows in a register tile of the narrow path
constexpr float kLog2e = 1.44269504f;
constexpr float kLn2 = 0.69314718f;

// How a raw product q.k becomes a score, and which keys count.
struct ScoreRule {
  float scale = 1;                     // includes log2 e where there is neither softcap nor bias
  float softcap = 0;                   // > 0: score = softcap tanh(raw * scale / softcap) log2 e
  const float* bias = nullptr;         // f32, same layout as the scores, added before log2 e is applied
  bool masked = false;                 // the bounds below apply
  int32_t j0 = 0;                      // index of the first key
  const int32_t* positions = nullptr;  // of the keys, from the first on; null: no rule on them
  const int32_t* j_lo = nullptr;       // bounds per row, see Bounds
  const int32_t* j_hi = nullptr;
  const int32_t* p_lo = nullptr;
  const int32_t* p_last = nullptr;
};

struct Kernels {
  const gemm::Kernels* gemm = nullptr;
  int columns = 0;      // of a wide tile
  int value_rows = 0;   // register tile of `values`
  int narrow_rows = 0;  // register tile of the narrow path

  // Wide: rows (query, head) lie across the vectors. s is [keys][columns]; m, l, alpha are [columns].
  // Turns raw products into weights 2^(score - max) in place and updates the running max and sum; alpha is the factor
  // for what was summed before.
  void (*softmax_wide)(float* s, int64_t keys, const ScoreRule& rule, float* m, float* l, float* alpha);
  // o[r][columns] = o * alpha + sum_key v[key][r] p[key][columns], r < R.
  void (*values_wide[kMaxValueRows + 1])(const float* v, int64_t ldv, const float* p, int64_t keys, const float* alpha,
                                         float* o);
  // o[i][columns] = o a + part b, with a = 2^(m - M), b = 2^(part_m - M), M = max; m and l likewise.
  void (*merge_wide)(int64_t rows, float* o, float* m, float* l, const float* part, const float* part_m,
                     const float* part_l);
  // dst[column][i] = o[i][column] * factor[column] for n elements of `count` columns; dst rows are `ld` floats apart.
  void (*transpose_out)(const float* o, int64_t n, int64_t count, const float* factor, float* dst, int64_t ld);

  // Narrow: keys lie across the vectors. Rows of q, s, o are ldq, lds, ldo floats apart.
  // s[r][j] = q[r] . k[j] for j < count, r < R; q rows are padded with zeros to whole vectors, in the order of k's
  // type.
  void (*scores_narrow[kMaxNarrowRows + 1][gemm::kTypes])(const float* q, int64_t ldq, const void* const* k,
                                                          int64_t count, int64_t d, float* s, int64_t lds);
  // One row; s is padded to whole vectors. The bounds of the rule point at those of this row.
  void (*softmax_narrow)(float* s, int64_t keys, const ScoreRule& rule, float* m, float* l, float* alpha);
  // o[r][0..dv) = o * alpha[r] + sum_j p[r][j] v[j]; o is in the order of v's type.
  void (*values_narrow[kMaxNarrowRows + 1][gemm::kTypes])(const float* p, int64_t ldp, const void* const* v,
                                                          int64_t count, int64_t dv, const float* alpha, float* o,
                                                          int64_t ldo);
  // Order of elements in which the two above want a row that meets a cache of this type; in place.
  void (*paired_order[gemm::kTypes])(float* x, int64_t n, bool to_natural);
  // One row of n elements: as merge_wide.
  void (*merge_row)(int64_t n, float* o, float* m, float* l, const float* part, float part_m, float part_l);
  // Adds the sink (a score times log2 e; null: none); gives the factor 1 / sum (0 if the sum is 0) and the log of the
  // sum. Elementwise over n <= kMaxColumns rows; all arrays hold kMaxColumns floats.
  void (*finish)(int64_t n, const float* m, const float* l, const float* sink, float* factor, float* lse);
  void (*multiply)(const float* x, int64_t n, float factor, float* dst);
};

// Products of bf16 query rows with bf16 keys by the pair instruction, as scores_narrow; in natural order. An entry per
// count of rows; null where the machine lacks the instruction.
using PairScores = void (*)(const void* q, int64_t ldq, const void* const* k, int64_t count, int64_t d, float* s,
                            int64_t lds);
const PairScores* pair_scores();

const Kernels* kernels_for(gemm::Isa isa);  // null where this machine or build lacks it
const Kernels& best_kernels();              // asked anew at each call: obeys a change of Highway's targets

}  // namespace dgpu::cpu::attention
