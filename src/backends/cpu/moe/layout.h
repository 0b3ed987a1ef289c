// Which rows go to which expert: the plan of one round of tokens, made from the routing data.
#pragma once
#include "backends/cpu/moe/problem.h"

namespace dgpu::cpu::moe {

constexpr int64_t kColumnStep = 48;                // register tiles of 24, 16 and 12 columns fit
constexpr int64_t kMostColumns = 8 * kColumnStep;  // of a block
constexpr int32_t kNoRow = -1, kIdentity = -2;

// Work of one expert in one product: blocks of rows times blocks of columns.
struct Grid {
  int64_t row_blocks = 0, column_blocks = 0;
  int64_t columns = 0;  // per block
  uint32_t chunks() const { return static_cast<uint32_t>(row_blocks * column_blocks); }
};

// Lies in the workspace. Rows are (token, pick) pairs that meet an expert, sorted by expert, then by token.
struct Layout {
  int64_t tokens = 0, rows = 0;
  int64_t first_token = 0;
  int32_t* first_row = nullptr;      // per expert, and one more
  uint32_t* inner_chunks = nullptr;  // first chunk per expert, and one more: products with gate and up
  uint32_t* outer_chunks = nullptr;  // with down
  int32_t* row_of = nullptr;         // per (token, pick) of the round: row, kNoRow or kIdentity
  int32_t* token_of = nullptr;       // per row
  float* weight_of = nullptr;        // per row
  float* act = nullptr;              // [row][inner]
  float* y = nullptr;                // [row][hidden]
};

// Blocks of an expert with `rows` rows: `reduction` terms per output, `columns` outputs of `weights` weight rows each.
Grid grid(int64_t rows, int64_t columns, int64_t reduction, int64_t weights, int64_t bytes_per_weight);
// Rows [begin, end) of a block.
inline int64_t row_begin(const Grid& g, int64_t rows, int64_t block) { return block * rows / g.row_blocks; }

Grid inner_grid(const Problem& p, int64_t rows);
Grid outer_grid(const Problem& p, int64_t rows);

// Bytes of a layout for `tokens` tokens.
size_t layout_bytes(const Problem& p, int64_t tokens);
// Reads the routing of tokens [first, first + tokens), checks it and fills the layout at the workspace.
dgpuStatus_t lay_out(const Problem& p, const Args& args, int64_t first, int64_t tokens, int64_t most_tokens);

}  // namespace dgpu::cpu::moe
