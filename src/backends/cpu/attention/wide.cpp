// Many query rows: keys and values are repacked block by block and multiplied by register tiles.
//
// Query rows lie across the vectors, keys and output elements down the registers: maxima and sums are vertical, and
// the weights come out in the order in which the second product reads them.
#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "backends/cpu/attention/block.h"
#include "backends/cpu/gemm/gemm.h"

namespace dgpu::cpu::attention {
namespace {

constexpr float kNegInf = -std::numeric_limits<float>::infinity();
constexpr int64_t kBlockBytes = 128 << 10;  // keys and values of a block as f32, in a part of the second-level cache

// Running output o[tile][dv][columns], maximum and sum [tile][columns].
struct State {
  float* o = nullptr;
  float* m = nullptr;
  float* l = nullptr;
};

class Wide {
 public:
  Wide(const Problem& p, const Kernels& t, const Args& args, const BlockJob& job)
      : p_(p), t_(t), g_(*t.gemm), args_(args), job_(job), columns_(t.columns) {
    head0_ = p.first_head(job.kv);
    group_ = p.first_head(job.kv + 1) - head0_;
    rows_ = job.row1 - job.row0;
    tiles_ = (rows_ + columns_ - 1) / columns_;
  }
  dgpuStatus_t run();

 private:
  int64_t token(int64_t row) const { return job_.t0 + (job_.row0 + row) / group_; }
  int64_t head(int64_t row) const { return head0_ + (job_.row0 + row) % group_; }
  State make_state();
  void clear(const State& s);
  void pack_queries(bool pairs, float* panels);
  void prepare();
  dgpuStatus_t run_source(int source);
  dgpuStatus_t run_split(const SequenceSource& s, const KeyRange& range, int64_t i0, int64_t i1);
  dgpuStatus_t pack_keys(const SequenceSource& s, const KeyRange& range, int64_t i0, int64_t n);
  void row_bounds(const Bounds* per_query);
  void run_tile(const KeyRange& range, int64_t i0, int64_t n, int64_t tile);
  void load_bias(const KeyRange& range, int64_t i0, int64_t n, int64_t tile);
  void write_partial(const State& s);
  void write_output(const State& s);

  const Problem& p_;
  const Kernels& t_;
  const gemm::Kernels& g_;
  const Args& args_;
  const BlockJob& job_;
  const int64_t columns_;
  int64_t head0_ = 0, group_ = 0, rows_ = 0, tiles_ = 0;
  Scratch scratch_;
  State total_, part_;
  bool any_ = false;                             // total_ holds something
  float *queries_ = nullptr, *pairs_ = nullptr;  // panels [tile][d][columns]: f32, and pairs of bf16
  // Of the current source.
  const SourceSpec* spec_ = nullptr;
  bool use_pairs_ = false, has_bias_ = false;
  int32_t *j_lo_ = nullptr, *j_hi_ = nullptr, *p_lo_ = nullptr, *p_last_ = nullptr;  // [tile][columns]
  // Of the current key block.
  int64_t block_keys_ = 0, ldv_ = 0, panel_floats_ = 0;
  int64_t *k_offsets_ = nullptr, *v_offsets_ = nullptr;
  int32_t* positions_ = nullptr;
  const void **k_rows_ = nullptr, **v_rows_ = nullptr;
  char *k_copies_ = nullptr, *v_copies_ = nullptr;
  float *keys_ = nullptr, *values_ = nullptr, *scores_ = nullptr, *bias_ = nullptr;
};

State Wide::make_state() {
  return {scratch_.take<float>(tiles_ * p_.dv * columns_), scratch_.take<float>(tiles_ * columns_),
          scratch_.take<float>(tiles_ * columns_)};
}

void Wide::clear(const State& s) {
  std::memset(s.o, 0, static_cast<size_t>(tiles_ * p_.dv * columns_) * sizeof(float));
  std::fill_n(s.m, tiles_ * columns_, kNegInf);
  std::fill_n(s.l, tiles_ * columns_, 0.0f);
}

// Panels of the query rows, columns past the last repeat it.
void Wide::pack_queries(bool pairs, float* panels) {
  const auto type = static_cast<int>(p_.q.type);
  const int64_t size = gemm::size_of(p_.q.type), stride = p_.q.stride(2);
  const void* rows[kMaxColumns];
  char* copies = stride == 1 ? nullptr : scratch_.take<char>(columns_ * p_.d * size);
  const int64_t units = pairs ? (p_.d + 1) / 2 : p_.d;
  for (int64_t tile = 0; tile < tiles_; ++tile) {
    for (int64_t c = 0; c < columns_; ++c) {
      const int64_t row = std::min(tile * columns_ + c, rows_ - 1);
      rows[c] = p_.q.at(args_, token(row) * p_.q.stride(0) + head(row) * p_.q.stride(1));
      if (copies == nullptr) continue;
      char* copy = copies + c * p_.d * size;
      for (int64_t e = 0; e < p_.d; ++e) {
        std::memcpy(copy + e * size, gemm::at(rows[c], p_.q.type, e * stride), static_cast<size_t>(size));
      }
      rows[c] = copy;
    }
    const auto pack = pairs ? g_.pack_pair_rows : g_.pack_rows[type];
    pack(rows, p_.d, static_cast<int>(columns_), panels + tile * units * columns_);
  }
}

void Wide::prepare() {
  const int64_t cells = tiles_ * columns_;
  part_ = make_state();
  if (job_.source < 0) total_ = make_state();
  queries_ = scratch_.take<float>(cells * p_.d);
  for (int32_t** a : {&j_lo_, &j_hi_, &p_lo_, &p_last_}) *a = scratch_.take<int32_t>(cells);
  const int64_t group = g_.rows;
  block_keys_ = kBlockBytes / static_cast<int64_t>(sizeof(float)) / (p_.d + p_.dv);
  block_keys_ = std::min<int64_t>(std::max<int64_t>(block_keys_, 28), 128) / group * group;
  ldv_ = (p_.dv + 15) / 16 * 16 + 16;
  panel_floats_ = p_.d * g_.a_width;
  const int64_t padded = block_keys_ + group + g_.a_width;
  k_offsets_ = scratch_.take<int64_t>(padded);
  v_offsets_ = scratch_.take<int64_t>(padded);
  positions_ = scratch_.take<int32_t>(padded);
  k_rows_ = scratch_.take<const void*>(padded);
  v_rows_ = scratch_.take<const void*>(padded);
  keys_ = scratch_.take<float>((block_keys_ / group + 1) * panel_floats_);
  values_ = scratch_.take<float>(block_keys_ * ldv_ + 16);
  scores_ = scratch_.take<float>(padded * columns_);
  if (p_.bias) bias_ = scratch_.take<float>(block_keys_ * columns_);
}

dgpuStatus_t Wide::pack_keys(const SequenceSource& s, const KeyRange& range, int64_t i0, int64_t n) {
  const auto status = locate(s, args_, range, i0, n, k_offsets_, v_offsets_, spec_->k_positions ? positions_ : nullptr);
  if (status < 0) return status;
  row_addresses(spec_->k, args_, job_.kv, k_offsets_, n, p_.d, k_copies_, k_rows_);
  row_addresses(spec_->v, args_, job_.kv, v_offsets_, n, p_.dv, v_copies_, v_rows_);
  const int64_t group = g_.rows;
  for (int64_t i = n; i < n + group + g_.a_width; ++i) k_rows_[i] = k_rows_[n - 1];
  const auto pack = use_pairs_ ? g_.pack_pair_rows : g_.pack_rows[static_cast<int>(spec_->k.type)];
  for (int64_t k = 0; k < n; k += group) pack(k_rows_ + k, p_.d, g_.a_width, keys_ + k / group * panel_floats_);
  const auto widen = g_.widen[static_cast<int>(spec_->v.type)];
  for (int64_t k = 0; k < n; ++k) widen(v_rows_[k], p_.dv, values_ + k * ldv_);
  return DGPU_STATUS_SUCCESS;
}

void Wide::row_bounds(const Bounds* per_query) {
  for (int64_t i = 0; i < tiles_ * columns_; ++i) {
    const Bounds& b = per_query[token(std::min(i, rows_ - 1)) - token(0)];
    j_lo_[i] = b.j_lo;
    j_hi_[i] = b.j_hi;
    p_lo_[i] = b.p_lo;
    p_last_[i] = b.p_last;
  }
}

void Wide::load_bias(const KeyRange& range, int64_t i0, int64_t n, int64_t tile) {
  const Port& b = p_.bias;
  const int64_t by_head = b.extent(0, args_) == 1 ? 0 : b.stride(0);
  for (int64_t c = 0; c < columns_; ++c) {
    const int64_t row = std::min(tile * columns_ + c, rows_ - 1);
    const int64_t at = head(row) * by_head + token(row) * b.stride(1);
    for (int64_t k = 0; k < n; ++k) {
      load_row(g_, b.type, b.at(args_, at + range.key(i0 + k) * b.stride(2)), 1, 1, bias_ + k * columns_ + c);
    }
  }
}

// One tile of rows against keys [i0, i0 + n) of the packed block.
void Wide::run_tile(const KeyRange& range, int64_t i0, int64_t n, int64_t tile) {
  const int64_t c0 = tile * columns_, group = g_.rows;
  int64_t first = 0, last = n;
  ScoreRule rule;
  if (range.list == nullptr) {
    const auto [lo, lo_max] = std::minmax_element(j_lo_ + c0, j_lo_ + c0 + columns_);
    const auto [hi_min, hi] = std::minmax_element(j_hi_ + c0, j_hi_ + c0 + columns_);
    first = std::max<int64_t>(*lo - i0, 0) / group * group;
    last = std::min<int64_t>(*hi - i0, n);
    if (first >= last) return;
    rule.masked = *lo_max > i0 + first || *hi_min < i0 + last || spec_->k_positions;
    if (spec_->k_positions) rule.positions = positions_ + first;
  }
  rule.j0 = static_cast<int32_t>(i0 + first);
  rule.j_lo = j_lo_ + c0;
  rule.j_hi = j_hi_ + c0;
  rule.p_lo = p_lo_ + c0;
  rule.p_last = p_last_ + c0;
  rule.softcap = p_.softcap;
  rule.scale = p_.softcap > 0 || has_bias_ ? p_.scale : p_.scale * kLog2e;
  const int64_t units = use_pairs_ ? (p_.d + 1) / 2 : p_.d;
  const float* q = (use_pairs_ ? pairs_ : queries_) + tile * units * columns_;
  const auto micro = use_pairs_ ? gemm::bf16_dot_unit()->micro[group] : g_.micro[group];
  for (int64_t k = first; k < last; k += group) {
    micro(keys_ + k / group * panel_floats_, q, units, scores_ + k * columns_, columns_, false);
  }
  if (has_bias_) {
    load_bias(range, i0 + first, last - first, tile);
    rule.bias = bias_;
  }
  alignas(64) float alpha[kMaxColumns];
  float* weights = scores_ + first * columns_;
  t_.softmax_wide(weights, last - first, rule, part_.m + c0, part_.l + c0, alpha);
  // Output elements in register tiles of nearly equal size.
  const int64_t strips = (p_.dv + t_.value_rows - 1) / t_.value_rows;
  float* o = part_.o + tile * p_.dv * columns_;
  for (int64_t strip = 0; strip < strips; ++strip) {
    const int64_t e0 = strip * p_.dv / strips, e1 = (strip + 1) * p_.dv / strips;
    t_.values_wide[e1 - e0](values_ + first * ldv_ + e0, ldv_, weights, last - first, alpha, o + e0 * columns_);
  }
}

dgpuStatus_t Wide::run_split(const SequenceSource& s, const KeyRange& range, int64_t i0, int64_t i1) {
  clear(part_);
  for (int64_t i = i0; i < i1; i += block_keys_) {
    const int64_t n = std::min(block_keys_, i1 - i);
    const auto status = pack_keys(s, range, i, n);
    if (status < 0) return status;
    for (int64_t tile = 0; tile < tiles_; ++tile) run_tile(range, i, n, tile);
  }
  if (job_.source >= 0) return DGPU_STATUS_SUCCESS;
  if (!any_) {
    std::swap(total_, part_);  // what merging with an empty state would give
    any_ = true;
    return DGPU_STATUS_SUCCESS;
  }
  for (int64_t tile = 0; tile < tiles_; ++tile) {
    const int64_t c0 = tile * columns_;
    t_.merge_wide(p_.dv, total_.o + c0 * p_.dv, total_.m + c0, total_.l + c0, part_.o + c0 * p_.dv, part_.m + c0,
                  part_.l + c0);
  }
  return DGPU_STATUS_SUCCESS;
}

dgpuStatus_t Wide::run_source(int source) {
  const auto& spec = p_.sources[static_cast<size_t>(source)];
  const auto s = sequence_source(spec, args_, job_.sequence);
  const int64_t q0 = token(0), q1 = token(rows_ - 1) + 1;
  Bounds* per_query = scratch_.take<Bounds>(q1 - q0);
  KeyRange range;
  const auto status = visible_keys(p_, s, args_, q0, q1, per_query, &scratch_, &range);
  if (status < 0) return status;
  row_bounds(per_query);
  spec_ = &spec;
  has_bias_ = source == 0 && p_.bias;
  k_copies_ = scratch_.take<char>(copy_bytes(spec.k, p_.d) * block_keys_);
  v_copies_ = scratch_.take<char>(copy_bytes(spec.v, p_.dv) * block_keys_);
  use_pairs_ = p_.q.type == gemm::Type::bf16 && spec.k.type == gemm::Type::bf16 && g_.isa == gemm::Isa::avx512 &&
               gemm::bf16_unit() == gemm::Unit::bf16_dot;
  if (use_pairs_ && pairs_ == nullptr) {
    pairs_ = scratch_.take<float>(tiles_ * columns_ * ((p_.d + 1) / 2));
    pack_queries(true, pairs_);
  } else if (!use_pairs_) {
    pack_queries(false, queries_);
  }
  return job_.for_each_split(source, range.lo, range.hi,
                             [&](int64_t i0, int64_t i1) { return run_split(s, range, i0, i1); });
}

void Wide::write_partial(const State& s) {
  float* rows = scratch_.take<float>(columns_ * p_.dv);
  alignas(64) float one[kMaxColumns];
  std::fill_n(one, kMaxColumns, 1.0f);
  for (int64_t tile = 0; tile < tiles_; ++tile) {
    const int64_t count = std::min(columns_, rows_ - tile * columns_);
    t_.transpose_out(s.o + tile * p_.dv * columns_, p_.dv, count, one, rows, p_.dv);
    for (int64_t c = 0; c < count; ++c) {
      const int64_t row = tile * columns_ + c;
      float* dst = job_.partial + ((token(row) - job_.first_token) * p_.heads + head(row)) * (p_.dv + 2);
      std::memcpy(dst, rows + c * p_.dv, static_cast<size_t>(p_.dv) * sizeof(float));
      dst[p_.dv] = s.m[row];
      dst[p_.dv + 1] = s.l[row];
    }
  }
}

void Wide::write_output(const State& s) {
  float* rows = scratch_.take<float>(columns_ * p_.dv);
  float* sinks = p_.sinks ? scratch_.take<float>(group_ + kMaxColumns) : nullptr;
  load_sinks(p_, t_, args_, head0_, sinks, group_);
  alignas(64) float sink[kMaxColumns], factor[kMaxColumns], lse[kMaxColumns];
  for (int64_t tile = 0; tile < tiles_; ++tile) {
    const int64_t c0 = tile * columns_, count = std::min(columns_, rows_ - c0);
    for (int64_t c = 0; c < columns_ && sinks != nullptr; ++c) {
      sink[c] = sinks[head(std::min(c0 + c, rows_ - 1)) - head0_];
    }
    t_.finish(columns_, s.m + c0, s.l + c0, sinks != nullptr ? sink : nullptr, factor, lse);
    t_.transpose_out(s.o + c0 * p_.dv, p_.dv, count, factor, rows, p_.dv);
    for (int64_t c = 0; c < count; ++c) {
      store_output(p_, t_, args_, token(c0 + c), head(c0 + c), rows + c * p_.dv, lse[c]);
    }
  }
}

dgpuStatus_t Wide::run() {
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

dgpuStatus_t run_wide(const Problem& problem, const Kernels& kernels, const Args& args, const BlockJob& job) {
  return Wide(problem, kernels, args, job).run();
}

}  // namespace dgpu::cpu::attention
