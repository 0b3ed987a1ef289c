// Phases: 0 checks the data and lays out the chunks; 1 runs blocks of query rows, or splits of them; 2 merges splits.
#include "backends/cpu/attention/attention.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "backends/cpu/attention/block.h"
#include "backends/cpu/kernels.h"

namespace dgpu::cpu::attention {
namespace {

constexpr int64_t kFewBlocks = 16;     // with fewer blocks than this, blocks are cut into splits
constexpr int64_t kNarrowSplits = 64;  // most splits of a source
constexpr int64_t kWideSplits = 16;
constexpr int64_t kCombineRows = kMaxColumns;
constexpr size_t kMaxPartialBytes = size_t{64} << 20;

struct Sequence {
  int64_t first_token = 0, tokens = 0;
  uint32_t first_chunk = 0, chunks = 0;
  uint32_t first_combine = 0, combines = 0;
  int64_t partials = 0;                   // floats from the beginning of the partial results
  int64_t split[kMaxSources] = {};        // keys per split
  int64_t first_split[kMaxSources] = {};  // when cut: splits that any of its queries sees
  int64_t splits[kMaxSources] = {};
  int64_t all_splits = 0;  // 0: not cut
  bool narrow = false;
};

struct Layout {
  uint32_t chunks = 0, combines = 0;
  int64_t sequences = 0;
  Sequence* list() { return reinterpret_cast<Sequence*>(this + 1); }
};

dgpuStatus_t out_of_range(const std::string& text) { return kit::fail(DGPU_STATUS_DATA_OUT_OF_RANGE, text); }

int64_t power_of_two_below(int64_t x) {
  int64_t p = 1;
  while (p * 2 <= x) p *= 2;
  return p;
}

class Attention final : public Kernel {
 public:
  Attention(Problem problem, const Kernels& kernels) : p_(std::move(problem)), t_(kernels) { measure(); }
  uint32_t phases() const override { return 3; }
  uint32_t chunks(uint32_t phase, const Args& args) const override {
    if (phase == 0) return 1;
    const auto* layout = static_cast<const Layout*>(args.workspace);
    return phase == 1 ? layout->chunks : layout->combines;
  }
  dgpuStatus_t run(uint32_t phase, uint32_t chunk, const Args& args) const override {
    if (phase == 0) return lay_out(args);
    return phase == 1 ? run_block(chunk, args) : combine(chunk, args);
  }
  size_t workspace_bytes() const override { return layout_bytes_ + partial_bytes_; }
  const char* algorithm() const override {
    switch (t_.gemm->isa) {
      case gemm::Isa::avx512:
        return "attention online softmax avx512";
      case gemm::Isa::avx2:
        return "attention online softmax avx2";
      case gemm::Isa::sse4:
        return "attention online softmax sse4";
      case gemm::Isa::neon:
        return "attention online softmax neon";
      default:
        return "attention online softmax scalar";
    }
  }

 private:
  void measure();
  int64_t split_size(const SourceSpec& source, int64_t length, bool narrow) const;
  int64_t blocks(const Sequence& s) const;
  bool narrow(int64_t tokens) const {
    return (p_.picks ? std::min<int64_t>(tokens, 1) : tokens) * p_.max_group <= kNarrowLimit;
  }
  int64_t blocks_per_head(int64_t tokens) const {
    return p_.picks ? tokens * ((p_.max_group + kWideRows - 1) / kWideRows)
                    : (tokens * p_.max_group + kWideRows - 1) / kWideRows;
  }
  dgpuStatus_t check(const Args& args) const;
  dgpuStatus_t lay_out(const Args& args) const;
  void cut(Sequence* s, int64_t sequence, const Args& args) const;
  void clear_unused(const Args& args, int64_t begin, int64_t end) const;
  dgpuStatus_t run_block(uint32_t chunk, const Args& args) const;
  dgpuStatus_t combine(uint32_t chunk, const Args& args) const;
  float* partials(const Args& args) const {
    return reinterpret_cast<float*>(static_cast<char*>(args.workspace) + layout_bytes_);
  }

  const Problem p_;
  const Kernels& t_;
  int64_t narrow_split_ = 0, wide_split_ = 0;  // fewest keys per split
  size_t layout_bytes_ = 0, partial_bytes_ = 0;
};

// Sizes that follow from the description alone.
void Attention::measure() {
  int64_t key_bytes = 0, most_splits = 0, longest = 0;
  for (int i = 0; i < p_.source_count; ++i) {
    const auto& s = p_.sources[static_cast<size_t>(i)];
    key_bytes = std::max(key_bytes, p_.kv_heads * (p_.d * gemm::size_of(s.k.type) + p_.dv * gemm::size_of(s.v.type)));
    longest = std::max(longest, s.table.max_extent(1) * s.k.max_extent(1));
  }
  narrow_split_ = power_of_two_below(std::clamp<int64_t>((1 << 20) / std::max<int64_t>(key_bytes, 1), 64, 8192));
  wide_split_ =
      power_of_two_below(std::clamp<int64_t>((32 << 20) / (kWideRows * std::max<int64_t>(p_.d + p_.dv, 1)), 256, 4096));
  most_splits = std::min<int64_t>((longest + narrow_split_ - 1) / narrow_split_, kNarrowSplits) * p_.source_count + 1;
  const int64_t sequences = p_.offsets.max_extent(0);
  layout_bytes_ = (sizeof(Layout) + static_cast<size_t>(sequences) * sizeof(Sequence) + 63) / 64 * 64;
  const int64_t rows = std::min(p_.q.max_extent(0) * p_.heads,
                                kFewBlocks * std::max(kWideRows, kNarrowLimit * std::max<int64_t>(p_.kv_heads, 1)));
  const auto floats = static_cast<size_t>(rows * most_splits * (p_.dv + 2));
  partial_bytes_ = std::min(floats * sizeof(float), kMaxPartialBytes);
}

int64_t Attention::split_size(const SourceSpec& source, int64_t length, bool narrow) const {
  if (source.pick) length = std::max<int64_t>(source.pick.max_extent(1), 1);
  int64_t size = narrow ? narrow_split_ : wide_split_;
  while ((length + size - 1) / size > (narrow ? kNarrowSplits : kWideSplits)) size *= 2;
  return size;
}

int64_t Attention::blocks(const Sequence& s) const {
  if (s.narrow) return p_.picks ? s.tokens : std::min<int64_t>(s.tokens, 1);
  return blocks_per_head(s.tokens) * p_.kv_heads;
}

// Every value that selects memory, except pages, which are checked where they are used.
dgpuStatus_t Attention::check(const Args& args) const {
  const int64_t tokens = p_.q.extent(0, args), sequences = p_.offsets.extent(0, args) - 1;
  const auto* offsets = p_.offsets.data<const int32_t>(args);
  const int64_t stride = p_.offsets.stride(0);
  for (int64_t b = 0; b <= sequences; ++b) {
    const int64_t low = b == 0 ? 0 : offsets[(b - 1) * stride];
    const int64_t at = offsets[b * stride];
    if (at < low || at > tokens) {
      return out_of_range("attention: offsets[" + std::to_string(b) + "] is " + std::to_string(at) + ", not within [" +
                          std::to_string(low) + ", " + std::to_string(tokens) + "]");
    }
  }
  for (int i = 0; i < p_.source_count; ++i) {
    const auto& s = p_.sources[static_cast<size_t>(i)];
    const auto* lengths = s.lengths.data<const int32_t>(args);
    int64_t most = s.table.extent(1, args) * s.k.extent(1, args);
    if (s.ring && most > 0) most = std::numeric_limits<int32_t>::max();
    if (i == 0 && p_.bias && s.k_positions) most = std::min(most, p_.bias.extent(2, args));
    for (int64_t b = 0; b < sequences; ++b) {
      const int64_t length = lengths[b * s.lengths.stride(0)];
      if (length >= 0 && length <= most) continue;
      return out_of_range("attention: lengths" + std::to_string(i) + "[" + std::to_string(b) + "] is " +
                          std::to_string(length) + ", room is for " + std::to_string(most) + " keys");
    }
  }
  return DGPU_STATUS_SUCCESS;
}

// Tokens of no sequence.
void Attention::clear_unused(const Args& args, int64_t begin, int64_t end) const {
  Scratch scratch;
  float* zeros = scratch.take<float>(p_.dv);
  std::fill_n(zeros, p_.dv, 0.0f);
  for (int64_t t = begin; t < end; ++t) {
    for (int64_t h = 0; h < p_.heads; ++h) {
      store_output(p_, t_, args, t, h, zeros, -std::numeric_limits<float>::infinity());
    }
  }
}

// The splits of each source that some query of the sequence sees.
void Attention::cut(Sequence* s, int64_t sequence, const Args& args) const {
  const auto* positions = p_.positions.data<const int32_t>(args);
  s->all_splits = 0;
  for (int i = 0; i < p_.source_count; ++i) {
    const auto& spec = p_.sources[static_cast<size_t>(i)];
    const auto view = sequence_source(spec, args, sequence);
    int64_t lo = view.length, hi = 0;
    for (int64_t t = s->first_token; t < s->first_token + s->tokens; ++t) {
      const Bounds b = bounds(p_, spec, positions[t * p_.positions.stride(0)], view.length);
      if (b.j_lo >= b.j_hi) continue;
      lo = std::min<int64_t>(lo, b.j_lo);
      hi = std::max<int64_t>(hi, b.j_hi);
    }
    if (spec.pick) {  // of the list of picked keys
      lo = 0;
      hi = std::min(spec.pick.extent(1, args), view.length);
    }
    const int64_t size = s->split[i];
    s->first_split[i] = lo / size;
    s->splits[i] = hi > lo ? (hi + size - 1) / size - lo / size : 0;
    s->all_splits += s->splits[i];
  }
}

dgpuStatus_t Attention::lay_out(const Args& args) const {
  auto* layout = static_cast<Layout*>(args.workspace);
  *layout = Layout();
  const auto status = check(args);
  if (status < 0) return status;
  const int64_t sequences = p_.offsets.extent(0, args) - 1, tokens = p_.q.extent(0, args);
  if (sequences < 0) return DGPU_STATUS_SUCCESS;
  const auto* offsets = p_.offsets.data<const int32_t>(args);
  const int64_t stride = p_.offsets.stride(0);
  clear_unused(args, 0, offsets[0]);
  clear_unused(args, offsets[sequences * stride], tokens);
  layout->sequences = sequences;
  int64_t all_blocks = 0;
  for (int64_t b = 0; b < sequences; ++b) {
    Sequence s;
    s.first_token = offsets[b * stride];
    s.tokens = offsets[(b + 1) * stride] - s.first_token;
    s.narrow = narrow(s.tokens);
    for (int i = 0; i < p_.source_count; ++i) {
      const auto& spec = p_.sources[static_cast<size_t>(i)];
      s.split[i] = split_size(spec, spec.lengths.data<const int32_t>(args)[b * spec.lengths.stride(0)], s.narrow);
    }
    all_blocks += blocks(s);
    layout->list()[b] = s;
  }
  int64_t floats = 0;
  if (all_blocks < kFewBlocks) {
    for (int64_t b = 0; b < sequences; ++b) {
      Sequence& s = layout->list()[b];
      cut(&s, b, args);
      if (s.all_splits < 2) s.all_splits = 0;
      s.partials = floats;
      floats += s.all_splits * s.tokens * p_.heads * (p_.dv + 2);
    }
  }
  const bool fits = static_cast<size_t>(floats) * sizeof(float) <= partial_bytes_;
  for (int64_t b = 0; b < sequences; ++b) {
    Sequence& s = layout->list()[b];
    if (!fits) s.all_splits = 0;
    s.first_chunk = layout->chunks;
    s.chunks = static_cast<uint32_t>(blocks(s) * std::max<int64_t>(s.all_splits, 1));
    layout->chunks += s.chunks;
    s.first_combine = layout->combines;
    if (s.all_splits > 0) {
      s.combines = static_cast<uint32_t>((s.tokens * p_.heads + kCombineRows - 1) / kCombineRows);
    }
    layout->combines += s.combines;
  }
  return DGPU_STATUS_SUCCESS;
}

dgpuStatus_t Attention::run_block(uint32_t chunk, const Args& args) const {
  auto* layout = static_cast<Layout*>(args.workspace);
  const Sequence* begin = layout->list();
  // The last sequence that begins at or before the chunk; those without chunks share their first with the next.
  const Sequence* s = std::upper_bound(begin, begin + layout->sequences, chunk,
                                       [](uint32_t c, const Sequence& q) { return c < q.first_chunk; }) -
                      1;
  const int64_t splits = std::max<int64_t>(s->all_splits, 1);
  int64_t index = chunk - s->first_chunk;
  int64_t split = index % splits;
  int64_t block = index / splits;
  BlockJob job;
  job.sequence = s - begin;
  job.first_token = s->first_token;
  job.split = s->split;
  if (s->all_splits > 0) {
    job.partial = partials(args) + s->partials + split * s->tokens * p_.heads * (p_.dv + 2);
    job.source = 0;
    while (split >= s->splits[job.source]) split -= s->splits[job.source++];
    job.index = s->first_split[job.source] + split;
  }
  job.t0 = s->first_token;
  job.t1 = job.t0 + s->tokens;
  if (s->narrow) {
    if (p_.picks) {
      job.t0 += block;
      job.t1 = job.t0 + 1;
    }
    return run_narrow(p_, t_, args, job);
  }
  job.kv = block % p_.kv_heads;
  block = blocks_per_head(s->tokens) - 1 - block / p_.kv_heads;  // the longest first
  const int64_t group = p_.first_head(job.kv + 1) - p_.first_head(job.kv);
  int64_t rows = s->tokens * group;
  if (p_.picks) {
    const int64_t per_token = (p_.max_group + kWideRows - 1) / kWideRows;
    job.t0 += block / per_token;
    job.t1 = job.t0 + 1;
    block %= per_token;
    rows = group;
  }
  job.row0 = block * kWideRows;
  job.row1 = std::min(job.row0 + kWideRows, rows);
  return job.row0 < job.row1 ? run_wide(p_, t_, args, job) : DGPU_STATUS_SUCCESS;
}

dgpuStatus_t Attention::combine(uint32_t chunk, const Args& args) const {
  auto* layout = static_cast<Layout*>(args.workspace);
  const Sequence* begin = layout->list();
  const Sequence* s = std::upper_bound(begin, begin + layout->sequences, chunk,
                                       [](uint32_t c, const Sequence& q) { return c < q.first_combine; }) -
                      1;
  const int64_t rows = s->tokens * p_.heads;
  const int64_t row0 = (chunk - s->first_combine) * kCombineRows;
  run_combine(p_, t_, args, s->first_token, row0, std::min(row0 + kCombineRows, rows), s->all_splits,
              rows * (p_.dv + 2), partials(args) + s->partials);
  return DGPU_STATUS_SUCCESS;
}

}  // namespace

std::unique_ptr<Kernel> make(const kit::OpView& op, std::string* reason, const Kernels* kernels) {
  Problem problem;
  if (!parse(op, &problem, reason)) return nullptr;
  return std::make_unique<Attention>(std::move(problem), kernels != nullptr ? *kernels : best_kernels());
}

}  // namespace dgpu::cpu::attention

namespace dgpu::cpu {
namespace {

std::unique_ptr<Kernel> make_attention(const kit::OpView& op, std::string* reason) {
  return attention::make(op, reason);
}

const char* const kAttributes[] = {"scale", "causal", "sources", "window", "chunk",
                                   "every", "ring",   "softcap", nullptr};
const char* const kPorts[] = {
    "q=f32|bf16|f16",    "k*=f32|bf16|f16",  "v*=f32|bf16|f16", "table*=i32",    "lengths*=i32",
    "k_positions*=i32",  "pick*=i32",        "offsets=i32",     "positions=i32", "sinks=f32|bf16|f16",
    "bias=f32|bf16|f16", "out=f32|bf16|f16", "lse=f32",         nullptr};
const dgpuBackendClaim kClaim = {sizeof(dgpuBackendClaim), "attention", 1, 0, kAttributes, kPorts};

}  // namespace

const KernelEntry attention_kernel = {"attention", make_attention, &kClaim};

}  // namespace dgpu::cpu
