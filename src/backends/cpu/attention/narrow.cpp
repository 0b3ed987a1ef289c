// Few query rows: keys and values are read once, in place, and multiplied from the cache for all heads of the group.
// One block has all key heads, so that the cache is read in the order in which it lies in memory.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "backends/cpu/attention/block.h"
#include "backends/cpu/gemm/gemm.h"

namespace dgpu::cpu::attention {
namespace {

constexpr float kNegInf = -std::numeric_limits<float>::infinity();
constexpr int64_t kBlockKeys = 64, kPad = 16;
constexpr int64_t kBlockBytes = 256 << 10;  // this block and the next lie in the second-level cache

// Brings rows of the next block into the second-level cache, a few lines at a time between products: rows of all key
// heads in memory order, which the hardware does not foresee across pages.
class Prefetcher {
 public:
  void begin(const char* k, int64_t k_bytes, const char* v, int64_t v_bytes, int64_t budget) {
    base_[0] = k;
    base_[1] = v;
    bytes_[0] = k_bytes;
    bytes_[1] = v_bytes;
    budget_ = budget;
  }
  void rows(const int64_t* k, const int64_t* v, int64_t k_size, int64_t v_size, int64_t n) {
    offsets_[0] = k;
    offsets_[1] = v;
    size_[0] = k_size;
    size_[1] = v_size;
    rows_ = n;
    row_ = at_ = 0;
    which_ = 0;
  }
  // The part of the rows that falls to one of the block's products.
  void step() {
    for (int64_t lines = budget_; lines > 0 && row_ < rows_;) {
      const char* p = base_[which_] + offsets_[which_][row_] * size_[which_];
      for (; lines > 0 && at_ < bytes_[which_]; at_ += 64, --lines) __builtin_prefetch(p + at_, 0, 2);
      if (at_ < bytes_[which_]) return;
      at_ = 0;
      if (++which_ == 2) {
        which_ = 0;
        ++row_;
      }
    }
  }

 private:
  const char* base_[2] = {};
  int64_t bytes_[2] = {}, size_[2] = {};
  const int64_t* offsets_[2] = {};
  int64_t rows_ = 0, row_ = 0, at_ = 0, budget_ = 0;
  int which_ = 0;
};

// Rows are (head, token): head * tokens + token, so that the rows of a key head are consecutive.
struct State {
  float* o = nullptr;  // [row][ldo]
  float* m = nullptr;
  float* l = nullptr;
};

class Narrow {
 public:
  Narrow(const Problem& p, const Kernels& t, const Args& args, const BlockJob& job)
      : p_(p), t_(t), g_(*t.gemm), args_(args), job_(job), tokens_(job.t1 - job.t0), rows_(tokens_ * p.heads) {}
  dgpuStatus_t run();

 private:
  int64_t token(int64_t row) const { return job_.t0 + row % tokens_; }
  int64_t head(int64_t row) const { return row / tokens_; }
  State make_state() {
    return {scratch_.take<float>(rows_ * p_.dv), scratch_.take<float>(rows_), scratch_.take<float>(rows_)};
  }
  void clear(const State& s);
  void prepare();
  void prepare_bf16();
  void scores(int64_t row, int64_t count, int64_t j, int64_t keys, float* s);
  dgpuStatus_t run_source(int source);
  dgpuStatus_t locate_block(const SequenceSource& s, const KeyRange& range, int64_t i, int64_t end);
  dgpuStatus_t run_split(const SequenceSource& s, const KeyRange& range, int64_t i0, int64_t i1);
  void run_head(const KeyRange& range, int64_t i0, int64_t n, int64_t kv);
  void softmax(const KeyRange& range, int64_t i0, int64_t n, int64_t row, float* s, float* alpha);
  void write_partial(const State& s);
  void write_output(const State& s);

  const Problem& p_;
  const Kernels& t_;
  const gemm::Kernels& g_;
  const Args& args_;
  const BlockJob& job_;
  const int64_t tokens_, rows_;
  Scratch scratch_;
  State total_, part_;
  bool any_ = false;
  int64_t ldq_ = 0;
  // Query rows [row][ldq], padded with zeros: f32 in natural order, in the order for bf16 keys, and bf16.
  float *queries_ = nullptr, *paired_queries_ = nullptr;
  uint16_t* bf16_queries_ = nullptr;
  const SourceSpec* spec_ = nullptr;
  bool has_bias_ = false;
  Bounds* bounds_ = nullptr;  // per token
  int64_t block_keys_ = kBlockKeys;
  Prefetcher prefetcher_;
  // Of this block and the next, in turn.
  int64_t k_offsets_[2][kBlockKeys], v_offsets_[2][kBlockKeys];
  int32_t positions_[2][kBlockKeys + kPad] = {};
  int turn_ = 0;
  const void *k_rows_[kBlockKeys], *v_rows_[kBlockKeys];
  char *k_copies_ = nullptr, *v_copies_ = nullptr;
  float *scores_ = nullptr, *bias_ = nullptr;
};

constexpr int64_t kScoreStride = kBlockKeys + kPad, kScoreKeys = 8;

void Narrow::clear(const State& s) {
  std::memset(s.o, 0, static_cast<size_t>(rows_ * p_.dv) * sizeof(float));
  std::fill_n(s.m, rows_, kNegInf);
  std::fill_n(s.l, rows_, 0.0f);
}

void Narrow::prepare() {
  part_ = make_state();
  if (job_.source < 0) total_ = make_state();
  ldq_ = (p_.d + kPad - 1) / kPad * kPad;
  queries_ = scratch_.take<float>(rows_ * ldq_);
  for (int64_t row = 0; row < rows_; ++row) {
    float* q = queries_ + row * ldq_;
    std::fill(q + p_.d, q + ldq_, 0.0f);
    load_row(g_, p_.q.type, p_.q.at(args_, token(row) * p_.q.stride(0) + head(row) * p_.q.stride(1)), p_.q.stride(2),
             p_.d, q);
  }
  bool bf16_keys = false;
  for (int i = 0; i < p_.source_count; ++i) bf16_keys |= p_.sources[static_cast<size_t>(i)].k.type == gemm::Type::bf16;
  if (bf16_keys) prepare_bf16();
  bounds_ = scratch_.take<Bounds>(tokens_);
  const int64_t most = p_.max_group * tokens_;
  scores_ = scratch_.take<float>(most * kScoreStride);
  std::memset(scores_, 0, static_cast<size_t>(most * kScoreStride) * sizeof(float));
  bias_ = scratch_.take<float>(kScoreStride);
  std::memset(bias_, 0, kScoreStride * sizeof(float));
}

void Narrow::prepare_bf16() {
  if (p_.q.type == gemm::Type::bf16 && g_.isa == gemm::Isa::avx512 && gemm::bf16_unit() == gemm::Unit::bf16_dot) {
    bf16_queries_ = scratch_.take<uint16_t>(rows_ * ldq_);
    g_.narrow[static_cast<int>(gemm::Type::bf16)](queries_, rows_ * ldq_, bf16_queries_);  // exact
    return;
  }
  paired_queries_ = scratch_.take<float>(rows_ * ldq_);
  std::memcpy(paired_queries_, queries_, static_cast<size_t>(rows_ * ldq_) * sizeof(float));
  for (int64_t row = 0; row < rows_; ++row) {
    t_.paired_order[static_cast<int>(gemm::Type::bf16)](paired_queries_ + row * ldq_, p_.d, false);
  }
}

// Raw products of rows [row, row + count) with keys [j, j + keys) of the block.
void Narrow::scores(int64_t row, int64_t count, int64_t j, int64_t keys, float* s) {
  if (spec_->k.type == gemm::Type::bf16 && bf16_queries_ != nullptr) {
    pair_scores()[count](bf16_queries_ + row * ldq_, ldq_, k_rows_ + j, keys, p_.d, s, kScoreStride);
    return;
  }
  const float* q = spec_->k.type == gemm::Type::bf16 ? paired_queries_ : queries_;
  t_.scores_narrow[count][static_cast<int>(spec_->k.type)](q + row * ldq_, ldq_, k_rows_ + j, keys, p_.d, s,
                                                           kScoreStride);
}

// Weights of one row for keys [i0, i0 + n).
void Narrow::softmax(const KeyRange& range, int64_t i0, int64_t n, int64_t row, float* s, float* alpha) {
  const Bounds& b = bounds_[row % tokens_];
  ScoreRule rule;
  rule.softcap = p_.softcap;
  rule.scale = p_.softcap > 0 || has_bias_ ? p_.scale : p_.scale * kLog2e;
  rule.j0 = static_cast<int32_t>(i0);
  if (range.list == nullptr) {
    rule.masked = true;
    rule.j_lo = &b.j_lo;
    rule.j_hi = &b.j_hi;
    rule.p_lo = &b.p_lo;
    rule.p_last = &b.p_last;
    rule.positions = spec_->k_positions ? positions_[turn_] : nullptr;
  }
  if (has_bias_) {
    const Port& port = p_.bias;
    const int64_t by_head = port.extent(0, args_) == 1 ? 0 : port.stride(0);
    const int64_t at = head(row) * by_head + token(row) * port.stride(1);
    if (range.list == nullptr) {
      load_row(g_, port.type, port.at(args_, at + i0 * port.stride(2)), port.stride(2), n, bias_);
    } else {
      for (int64_t k = 0; k < n; ++k) {
        load_row(g_, port.type, port.at(args_, at + range.key(i0 + k) * port.stride(2)), 1, 1, bias_ + k);
      }
    }
    rule.bias = bias_;
  }
  t_.softmax_narrow(s, n, rule, part_.m + row, part_.l + row, alpha);
}

void Narrow::run_head(const KeyRange& range, int64_t i0, int64_t n, int64_t kv) {
  const int64_t row0 = p_.first_head(kv) * tokens_, rows = p_.first_head(kv + 1) * tokens_ - row0;
  if (rows == 0) return;
  row_addresses(spec_->k, args_, kv, k_offsets_[turn_], n, p_.d, k_copies_, k_rows_);
  row_addresses(spec_->v, args_, kv, v_offsets_[turn_], n, p_.dv, v_copies_, v_rows_);
  const auto v_type = static_cast<int>(spec_->v.type);
  float alpha[kNarrowLimit];
  for (int64_t j = 0; j < n; j += kScoreKeys) {
    const int64_t keys = std::min(kScoreKeys, n - j);
    for (int64_t r = 0; r < rows; r += t_.narrow_rows) {
      const int64_t count = std::min<int64_t>(t_.narrow_rows, rows - r);
      scores(row0 + r, count, j, keys, scores_ + r * kScoreStride + j);
    }
    prefetcher_.step();
  }
  for (int64_t r = 0; r < rows; ++r) softmax(range, i0, n, row0 + r, scores_ + r * kScoreStride, alpha + r);
  for (int64_t r = 0; r < rows; r += t_.narrow_rows) {
    const int64_t count = std::min<int64_t>(t_.narrow_rows, rows - r);
    t_.values_narrow[count][v_type](scores_ + r * kScoreStride, kScoreStride, v_rows_, n, p_.dv, alpha + r,
                                    part_.o + (row0 + r) * p_.dv, p_.dv);
  }
}

// Offsets of the block that begins at key i, into the arrays of this turn.
dgpuStatus_t Narrow::locate_block(const SequenceSource& s, const KeyRange& range, int64_t i, int64_t end) {
  if (i >= end) return DGPU_STATUS_SUCCESS;
  return locate(s, args_, range, i, std::min(block_keys_, end - i), k_offsets_[turn_], v_offsets_[turn_],
                spec_->k_positions ? positions_[turn_] : nullptr);
}

dgpuStatus_t Narrow::run_split(const SequenceSource& s, const KeyRange& range, int64_t i0, int64_t i1) {
  clear(part_);
  auto status = locate_block(s, range, i0, i1);
  for (int64_t i = i0; i < i1 && status >= 0; i += block_keys_) {
    const int64_t n = std::min(block_keys_, i1 - i), next = i + n;
    turn_ ^= 1;
    status = locate_block(s, range, next, i1);
    turn_ ^= 1;
    prefetcher_.rows(k_offsets_[turn_ ^ 1], v_offsets_[turn_ ^ 1], gemm::size_of(spec_->k.type),
                     gemm::size_of(spec_->v.type), std::min(block_keys_, i1 - next));
    for (int64_t kv = 0; kv < p_.kv_heads; ++kv) run_head(range, i, n, kv);
    turn_ ^= 1;
  }
  if (status < 0) return status;
  for (int64_t row = 0; row < rows_; ++row) {
    t_.paired_order[static_cast<int>(spec_->v.type)](part_.o + row * p_.dv, p_.dv, true);
  }
  if (job_.source >= 0) return DGPU_STATUS_SUCCESS;
  if (!any_) {
    std::swap(total_, part_);
    any_ = true;
    return DGPU_STATUS_SUCCESS;
  }
  for (int64_t row = 0; row < rows_; ++row) {
    t_.merge_row(p_.dv, total_.o + row * p_.dv, total_.m + row, total_.l + row, part_.o + row * p_.dv, part_.m[row],
                 part_.l[row]);
  }
  return DGPU_STATUS_SUCCESS;
}

// Bytes of a key in all heads, where the heads follow each other.
static int64_t row_bytes(const Port& cache, int64_t width) {
  const int64_t heads = cache.max_extent(2);
  const int64_t elements = std::max(std::abs(cache.stride(2)) * (heads - 1) + width, width);
  return std::min<int64_t>(elements, 2 * heads * width) * gemm::size_of(cache.type);
}

dgpuStatus_t Narrow::run_source(int source) {
  const auto& spec = p_.sources[static_cast<size_t>(source)];
  const auto s = sequence_source(spec, args_, job_.sequence);
  KeyRange range;
  const auto status = visible_keys(p_, s, args_, job_.t0, job_.t1, bounds_, &scratch_, &range);
  if (status < 0) return status;
  spec_ = &spec;
  has_bias_ = source == 0 && p_.bias;
  k_copies_ = scratch_.take<char>(copy_bytes(spec.k, p_.d) * kBlockKeys);
  v_copies_ = scratch_.take<char>(copy_bytes(spec.v, p_.dv) * kBlockKeys);
  const int64_t k_bytes = row_bytes(spec.k, p_.d), v_bytes = row_bytes(spec.v, p_.dv);
  block_keys_ = std::clamp<int64_t>(kBlockBytes / (k_bytes + v_bytes + 1), 8, kBlockKeys) / 8 * 8;
  const int64_t steps = block_keys_ / kScoreKeys * p_.kv_heads;
  prefetcher_.begin(spec.k.data<const char>(args_), k_bytes, spec.v.data<const char>(args_), v_bytes,
                    (block_keys_ * (k_bytes + v_bytes + 126) / 64 + steps - 1) / steps);
  return job_.for_each_split(source, range.lo, range.hi,
                             [&](int64_t i0, int64_t i1) { return run_split(s, range, i0, i1); });
}

void Narrow::write_partial(const State& s) {
  for (int64_t row = 0; row < rows_; ++row) {
    float* dst = job_.partial + ((token(row) - job_.first_token) * p_.heads + head(row)) * (p_.dv + 2);
    std::memcpy(dst, s.o + row * p_.dv, static_cast<size_t>(p_.dv) * sizeof(float));
    dst[p_.dv] = s.m[row];
    dst[p_.dv + 1] = s.l[row];
  }
}

void Narrow::write_output(const State& s) {
  float* values = scratch_.take<float>(p_.dv);
  float* sinks = p_.sinks ? scratch_.take<float>(p_.heads + kMaxColumns) : nullptr;
  load_sinks(p_, t_, args_, 0, sinks, p_.heads);
  alignas(64) float m[kMaxColumns], l[kMaxColumns], sink[kMaxColumns], factor[kMaxColumns], lse[kMaxColumns];
  for (int64_t row0 = 0; row0 < rows_; row0 += kMaxColumns) {
    const int64_t count = std::min<int64_t>(kMaxColumns, rows_ - row0);
    for (int64_t c = 0; c < kMaxColumns; ++c) {
      const int64_t row = std::min(row0 + c, rows_ - 1);
      m[c] = s.m[row];
      l[c] = s.l[row];
      sink[c] = sinks != nullptr ? sinks[head(row)] : 0;
    }
    t_.finish(count, m, l, sinks != nullptr ? sink : nullptr, factor, lse);
    for (int64_t c = 0; c < count; ++c) {
      t_.multiply(s.o + (row0 + c) * p_.dv, p_.dv, factor[c], values);
      store_output(p_, t_, args_, token(row0 + c), head(row0 + c), values, lse[c]);
    }
  }
}

dgpuStatus_t Narrow::run() {
  if (rows_ == 0) return DGPU_STATUS_SUCCESS;
  prepare();
  clear(part_);
  for (int source = 0; source < p_.source_count; ++source) {
    if (job_.source >= 0 && job_.source != source) continue;
    const auto status = run_source(source);
    if (status < 0) return status;
  }
  if (job_.source >= 0) {
    write_partial(part_);
  } else {
    write_output(any_ ? total_ : part_);
  }
  return DGPU_STATUS_SUCCESS;
}

}  // namespace

dgpuStatus_t run_narrow(const Problem& problem, const Kernels& kernels, const Args& args, const BlockJob& job) {
  return Narrow(problem, kernels, args, job).run();
}

}  // namespace dgpu::cpu::attention
