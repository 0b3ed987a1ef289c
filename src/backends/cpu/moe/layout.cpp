#include "backends/cpu/moe/layout.h"

#include <algorithm>

namespace dgpu::cpu::moe {
namespace {

constexpr int64_t kBlockRows = 256;
constexpr int64_t kStreamBytes = 384 << 10;  // of weights in a chunk that reads them for few rows
constexpr int64_t kChunkFlops = 16 << 20;
constexpr int64_t kFewRows = 16;

dgpuStatus_t out_of_range(const char* port, int64_t t, int64_t j, int64_t value, int64_t low, int64_t limit) {
  return kit::fail(DGPU_STATUS_DATA_OUT_OF_RANGE, std::string("moe_experts: ") + port + "[" + std::to_string(t) +
                                                      (j >= 0 ? ", " + std::to_string(j) : std::string()) + "] is " +
                                                      std::to_string(value) + ": expected " + std::to_string(low) +
                                                      " to " + std::to_string(limit - 1));
}

// The local expert of a routed index, kNoRow or kIdentity.
dgpuStatus_t local_expert(const Problem& p, const Args& args, int64_t t, int64_t j, int32_t* expert) {
  const int32_t index = p.indices.data<const int32_t>(args)[t * p.indices.stride(0) + j * p.indices.stride(1)];
  const int64_t experts = p.down.extent(0, args);
  const int64_t limit = p.expert_map ? p.expert_map.extent(0, args) : experts;
  if (index < -1 || index >= limit) return out_of_range("indices", t, j, index, -1, limit);
  *expert = index;
  if (!p.expert_map || index < 0) return DGPU_STATUS_SUCCESS;
  *expert = p.expert_map.data<const int32_t>(args)[index * p.expert_map.stride(0)];
  if (*expert < kIdentity || *expert >= experts)
    return out_of_range("expert_map", index, -1, *expert, kIdentity, experts);
  return DGPU_STATUS_SUCCESS;
}

// Arrays one after the other in a block of memory; with a null base it only counts.
class Carver {
 public:
  explicit Carver(char* base) : base_(base) {}
  template <class T>
  void take(T** array, int64_t count) {
    *array = base_ != nullptr ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    used_ += (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
  }
  size_t used() const { return used_; }

 private:
  char* base_;
  size_t used_ = 0;
};

// The arrays for rounds of `tokens` tokens, from `base` on; returns their bytes.
size_t place(const Problem& p, int64_t tokens, char* base, Layout* layout) {
  const int64_t pairs = tokens * p.picks;
  Carver carver(base);
  carver.take(&layout->first_row, p.experts + 1);
  carver.take(&layout->inner_chunks, p.experts + 1);
  carver.take(&layout->outer_chunks, p.experts + 1);
  carver.take(&layout->row_of, pairs);
  carver.take(&layout->token_of, pairs);
  carver.take(&layout->weight_of, pairs);
  carver.take(&layout->act, pairs * p.inner);
  carver.take(&layout->y, pairs * p.hidden);
  return carver.used();
}

constexpr size_t kHeader = (sizeof(Layout) + 63) / 64 * 64;

}  // namespace

Grid grid(int64_t rows, int64_t columns, int64_t reduction, int64_t weights, int64_t bytes_per_weight) {
  Grid g;
  if (rows == 0 || columns == 0) return g;
  g.row_blocks = (rows + kBlockRows - 1) / kBlockRows;
  const int64_t block_rows = (rows + g.row_blocks - 1) / g.row_blocks;
  const int64_t per_column = std::max<int64_t>(reduction * weights, 1);
  const int64_t target = block_rows <= kFewRows ? kStreamBytes / (per_column * bytes_per_weight)
                                                : kChunkFlops / (2 * per_column * block_rows);
  g.columns = std::clamp<int64_t>(target / kColumnStep, 1, kMostColumns / kColumnStep) * kColumnStep;
  g.column_blocks = (columns + g.columns - 1) / g.columns;
  return g;
}

Grid inner_grid(const Problem& p, int64_t rows) {
  const Port& w = p.gate_up ? p.gate_up : p.up;
  return grid(rows, p.inner, p.hidden, p.form == Form::up ? 1 : 2, gemm::size_of(w.type));
}

Grid outer_grid(const Problem& p, int64_t rows) { return grid(rows, p.hidden, p.inner, 1, gemm::size_of(p.down.type)); }

size_t layout_bytes(const Problem& p, int64_t tokens) {
  Layout unused;
  return kHeader + place(p, tokens, nullptr, &unused);
}

dgpuStatus_t lay_out(const Problem& p, const Args& args, int64_t first, int64_t tokens, int64_t most_tokens) {
  auto* layout = static_cast<Layout*>(args.workspace);
  *layout = Layout();
  place(p, most_tokens, static_cast<char*>(args.workspace) + kHeader, layout);
  layout->first_token = first;
  std::fill_n(layout->first_row, p.experts + 1, 0);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t j = 0; j < p.picks; ++j) {
      int32_t expert = kNoRow;
      const auto status = local_expert(p, args, first + t, j, &expert);
      if (status < 0) return status;
      layout->row_of[t * p.picks + j] = expert;
      if (expert >= 0) ++layout->first_row[expert + 1];
    }
  }
  for (int64_t e = 0; e < p.experts; ++e) layout->first_row[e + 1] += layout->first_row[e];
  layout->rows = layout->first_row[p.experts];
  layout->tokens = tokens;
  layout->inner_chunks[0] = layout->outer_chunks[0] = 0;
  for (int64_t e = 0; e < p.experts; ++e) {
    const int64_t rows = layout->first_row[e + 1] - layout->first_row[e];
    layout->inner_chunks[e + 1] = layout->inner_chunks[e] + inner_grid(p, rows).chunks();
    layout->outer_chunks[e + 1] = layout->outer_chunks[e] + outer_grid(p, rows).chunks();
  }
  // first_row[e] runs to the end of expert e while rows are dealt, and is put back afterwards.
  const auto* weights = p.weights.data<const float>(args);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t j = 0; j < p.picks; ++j) {
      int32_t& row = layout->row_of[t * p.picks + j];
      if (row < 0) continue;
      row = layout->first_row[row]++;
      layout->token_of[row] = static_cast<int32_t>(first + t);
      layout->weight_of[row] = weights[(first + t) * p.weights.stride(0) + j * p.weights.stride(1)];
    }
  }
  for (int64_t e = p.experts; e > 0; --e) layout->first_row[e] = layout->first_row[e - 1];
  layout->first_row[0] = 0;
  return DGPU_STATUS_SUCCESS;
}

}  // namespace dgpu::cpu::moe
