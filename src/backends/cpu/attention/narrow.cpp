// Few query rows: keys and values are read once, in place, and multiplied from the cache for all heads of the group.
// One block has all key heads, so that the cache is read in the order in which it lies in memory.
#include <algorithm>
#include <cstring>
#include <limits>

#include "backends/cpu/attention/block.h"

namespace dgpu::cpu::attention {
namespace {

constexpr float kNegInf = -std::numeric_limits<float>::infinity();
constexpr int64_t kBlockKeys = 64, kPad = 16;

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
  dgpuStatus_t run_source(int source);
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
  float* queries_ = nullptr;  // [row][ldq], padded with zeros
  const SourceSpec* spec_ = nullptr;
  bool has_bias_ = false;
  Bounds* bounds_ = nullptr;  // per token
  int64_t k_offsets_[kBlockKeys], v_offsets_[kBlockKeys];
  int32_t positions_[kBlockKeys + kPad] = {};
  const void *k_rows_[kBlockKeys], *v_rows_[kBlockKeys];
  char *k_copies_ = nullptr, *v_copies_ = nullptr;
  float *scores_ = nullptr, *bias_ = nullptr;
};

constexpr int64_t kScoreStride = kBlockKeys + kPad;

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
  bounds_ = scratch_.take<Bounds>(tokens_);
  const int64_t most = p_.max_group * tokens_;
  scores_ = scratch_.take<float>(most * kScoreStride);
  std::memset(scores_, 0, static_cast<size_t>(most * kScoreStride) * sizeof(float));
  bias_ = scratch_.take<float>(kScoreStride);
  std::memset(bias_, 0, kScoreStride * sizeof(float));
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
    rule.positions = spec_->k_positions ? positions_ : nullptr;
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
  row_addresses(spec_->k, args_, kv, k_offsets_, n, p_.d, k_copies_, k_rows_);
  row_addresses(spec_->v, args_, kv, v_offsets_, n, p_.dv, v_copies_, v_rows_);
  const auto k_type = static_cast<int>(spec_->k.type), v_type = static_cast<int>(spec_->v.type);
  float alpha[kNarrowLimit];
  for (int64_t r = 0; r < rows; r += t_.narrow_rows) {
    const int64_t count = std::min<int64_t>(t_.narrow_rows, rows - r);
    t_.scores_narrow[count][k_type](queries_ + (row0 + r) * ldq_, ldq_, k_rows_, n, p_.d, scores_ + r * kScoreStride,
                                    kScoreStride);
  }
  for (int64_t r = 0; r < rows; ++r) softmax(range, i0, n, row0 + r, scores_ + r * kScoreStride, alpha + r);
  for (int64_t r = 0; r < rows; r += t_.narrow_rows) {
    const int64_t count = std::min<int64_t>(t_.narrow_rows, rows - r);
    t_.values_narrow[count][v_type](scores_ + r * kScoreStride, kScoreStride, v_rows_, n, p_.dv, alpha + r,
                                    part_.o + (row0 + r) * p_.dv, p_.dv);
  }
}

dgpuStatus_t Narrow::run_split(const SequenceSource& s, const KeyRange& range, int64_t i0, int64_t i1) {
  clear(part_);
  for (int64_t i = i0; i < i1; i += kBlockKeys) {
    const int64_t n = std::min(kBlockKeys, i1 - i);
    const auto status =
        locate(s, args_, range, i, n, k_offsets_, v_offsets_, spec_->k_positions ? positions_ : nullptr);
    if (status < 0) return status;
    for (int64_t kv = 0; kv < p_.kv_heads; ++kv) run_head(range, i, n, kv);
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
  const int64_t size = job_.split[source];
  int64_t split0 = range.lo / size, split1 = (range.hi + size - 1) / size;
  if (job_.source >= 0) {
    split0 = std::max(split0, job_.index);
    split1 = std::min(split1, job_.index + 1);
  }
  for (int64_t i = split0; i < split1; ++i) {
    const int64_t i0 = std::max(range.lo, i * size), i1 = std::min(range.hi, (i + 1) * size);
    if (i0 >= i1) continue;
    const auto result = run_split(s, range, i0, i1);
    if (result < 0) return result;
  }
  return DGPU_STATUS_SUCCESS;
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
