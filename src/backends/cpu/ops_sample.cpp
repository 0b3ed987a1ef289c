// sample: one token per row. Rows with a small top_k draw among sorted candidates. Without one, tokens are put into
// buckets by descending logit, whose counts and weights tell in which bucket a cut or the draw falls; only that bucket
// is sorted. Weights are f64.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "backends/cpu/kernels.h"
#include "backends/cpu/select.h"

namespace dgpu::cpu {
namespace {

constexpr int64_t kMaxCandidates = 1024;
constexpr int kBuckets = 512;
constexpr double kBucketsPerUnit = 8;  // of (largest - logit) / temperature; the last bucket holds all beyond 64

// Philox4x32-10, first word times 2^-32: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. Key:
// the seed; counter: (position, 0).
double philox_uniform(int64_t seed, int64_t position) {
  const auto s = static_cast<uint64_t>(seed), p = static_cast<uint64_t>(position);
  uint32_t k0 = static_cast<uint32_t>(s), k1 = static_cast<uint32_t>(s >> 32);
  uint32_t c0 = static_cast<uint32_t>(p), c1 = static_cast<uint32_t>(p >> 32), c2 = 0, c3 = 0;
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c0, p1 = uint64_t{0xCD9E8D57} * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return c0 * 0x1p-32;
}

struct Params {
  double temperature = 0;
  int64_t top_k = 0;  // at most the vocabulary; all of it if not limited
  double top_p = 1;   // 1 if not limited
  double u = 0;
};

// What the chunks of one part of a row leave behind.
struct Piece {
  uint64_t best;  // code of the largest logit
  int64_t count;  // candidates
  union {
    uint64_t codes[kMaxCandidates];
    struct {
      double weight[kBuckets];
      int64_t tokens[kBuckets];
    } bucket;
  };
};

// Draws from k sorted weights: the kept prefix by top_p, then the first token whose running sum exceeds u times its
// sum.
int64_t draw_sorted(const double* w, int64_t k, double top_p, double u) {
  double sum = 0;
  for (int64_t i = 0; i < k; ++i) sum += w[i];
  int64_t kept = k;
  double kept_sum = sum;
  if (top_p < 1)
    for (kept = 0, kept_sum = 0; kept < k && kept_sum < top_p * sum; ++kept) kept_sum += w[kept];
  double passed = 0;
  for (int64_t i = 0; i < kept; ++i)
    if ((passed += w[i]) > u * kept_sum) return i;
  return kept - 1;
}

// The logits of one row.
struct Row {
  const Port& logits;
  const Args& a;
  int64_t offset, size;
  double largest, temperature;

  float logit(int64_t i) const {
    float v = 0;
    return *load_row(logits.at(a, offset + i * logits.last_stride()), logits.d.dtype, 1, 1, &v);
  }
  double descent(int64_t i) const { return (static_cast<double>(logit(i)) - largest) * (1 / temperature); }
  // Calls f(first index, logits, their (logit - largest) / temperature, their buckets, count) block by block.
  template <class F>
  void blocks(int64_t begin, int64_t end, F f) const {
    float block[kBlockElems];
    double descent[kBlockElems];
    int32_t bucket[kBlockElems];
    const int64_t stride = logits.last_stride();
    for (int64_t i = begin; i < end; i += kBlockElems) {
      const int64_t n = std::min(end - i, kBlockElems);
      const float* x = load_row(logits.at(a, offset + i * stride), logits.d.dtype, stride, n, block);
      vec::scaled_diff(x, largest, 1 / temperature, descent, n);
      vec::buckets(descent, kBucketsPerUnit, kBuckets - 1, bucket, n);
      f(i, x, descent, bucket, n);
    }
  }
};

// The buckets of a row, and prefixes of its tokens in descending order found through them.
class Buckets {
 public:
  Buckets(const Row& row, const Piece* pieces, int64_t count) : row_(row) {
    for (int64_t p = 0; p < count; ++p)
      for (int b = 0; b < kBuckets; ++b) {
        weight_[b] += pieces[p].bucket.weight[b];
        tokens_[b] += pieces[p].bucket.tokens[b];
      }
  }

  struct Prefix {
    int64_t count = 0, last = 0;  // tokens, and the last of them if it was asked for
    double sum = 0;
  };
  // The shortest prefix of at most `limit` tokens whose sum is >= target (> target if `above`), or all `limit`.
  Prefix prefix(int64_t limit, double target, bool above, bool want_last = false) {
    Prefix p;
    const auto reached = [&](double sum) { return above ? sum > target : sum >= target; };
    int skipped = -1;
    for (int b = 0; b < kBuckets && p.count < limit; ++b) {
      if (tokens_[b] == 0) continue;
      if (p.count + tokens_[b] <= limit && !reached(p.sum + weight_[b])) {
        p.count += tokens_[b];
        p.sum += weight_[b];
        skipped = b;
        continue;
      }
      sort(b);
      skipped = -1;
      for (int64_t i = 0; i < tokens_[b] && p.count < limit; ++i) {
        ++p.count;
        p.sum += weights_[i];
        p.last = select_index(codes_[i]);
        if (reached(p.sum)) return p;
      }
    }
    if (want_last && skipped >= 0) {
      sort(skipped);
      p.last = select_index(codes_[tokens_[skipped] - 1]);
    }
    return p;
  }

 private:
  // Tokens of bucket b in descending order with their weights.
  void sort(int b) {
    if (sorted_ == b) return;
    sorted_ = b;
    codes_ = scratch<uint64_t>(1, tokens_[b]);
    weights_ = scratch<double>(2, tokens_[b]);
    int64_t count = 0;
    row_.blocks(0, row_.size, [&](int64_t first, const float* x, const double*, const int32_t* bucket, int64_t n) {
      int64_t i = vec::find_key(bucket, b, n);
      if (i < 0) return;
      int32_t keys[kBlockElems];
      vec::order_keys(x, false, keys, n);
      while (i < n) {
        codes_[count++] = select_code(keys[i], first + i);
        const int64_t next = vec::find_key(bucket + i + 1, b, n - i - 1);
        if (next < 0) return;
        i += 1 + next;
      }
    });
    std::sort(codes_, codes_ + count, std::greater<>());
    for (int64_t i = 0; i < count; ++i) weights_[i] = row_.descent(select_index(codes_[i]));
    vec::exp_f64(weights_, count);
  }

  const Row& row_;
  double weight_[kBuckets] = {};
  int64_t tokens_[kBuckets] = {};
  int sorted_ = -1;
  uint64_t* codes_ = nullptr;
  double* weights_ = nullptr;
};

class Sample final : public Kernel {
 public:
  explicit Sample(const kit::OpView& op)
      : logits_(bind(op, "logits")),
        temperature_(bind(op, "temperature")),
        top_k_(bind(op, "top_k")),
        top_p_(bind(op, "top_p")),
        seeds_(bind(op, "seeds")),
        positions_(bind(op, "positions")),
        out_(bind(op, "out")) {}

  // The largest logit and candidates; buckets; the draw.
  uint32_t phases() const override { return 3; }
  uint32_t chunks(uint32_t phase, const Args& a) const override {
    const int64_t rows = logits_.extent(0, a);
    return static_cast<uint32_t>(phase == 2 ? rows : rows * Split(logits_.extent(1, a), kChunkElems).chunks);
  }

  dgpuStatus_t run(uint32_t phase, uint32_t chunk, const Args& a) const override {
    const Split split(logits_.extent(1, a), kChunkElems);
    const int64_t row = phase == 2 ? chunk : chunk / split.chunks, p = phase == 2 ? 0 : chunk % split.chunks;
    Params params;
    if (const dgpuStatus_t status = read(a, row, split.total, &params); status < 0) return status;
    Piece* pieces = static_cast<Piece*>(a.workspace) + row * split.chunks;
    const int64_t offset = row * logits_.d.strides[0];
    if (phase == 0) {
      Piece& piece = pieces[p];
      piece.count =
          best_codes(logits_, a, offset, split.begin(p), split.end(p), by_candidates(params), false, piece.codes);
      piece.best = piece.codes[0];
      return DGPU_STATUS_SUCCESS;
    }
    uint64_t best = 0;
    for (int64_t i = 0; i < split.chunks; ++i) best = std::max(best, pieces[i].best);
    Row r{logits_, a, offset, split.total, 0, params.temperature};
    r.largest = static_cast<double>(r.logit(select_index(best)));
    if (phase == 1) {
      if (by_buckets(params)) fill(r, split.begin(p), split.end(p), &pieces[p]);
      return DGPU_STATUS_SUCCESS;
    }
    // Without a finite largest logit there are no probabilities: the largest it is.
    int64_t token = select_index(best);
    if (params.temperature > 0 && std::isfinite(r.largest))
      token = by_buckets(params) ? draw_buckets(r, params, pieces, split.chunks)
                                 : draw_candidates(r, params, pieces, split.chunks);
    store_int(out_.base(a), out_.d.dtype, row * out_.d.strides[0], token);
    return DGPU_STATUS_SUCCESS;
  }

  size_t workspace_bytes() const override {
    const size_t pieces = static_cast<size_t>(logits_.d.shape[1] / (kChunkElems / 2) + 1);
    return static_cast<size_t>(logits_.d.shape[0]) * pieces * sizeof(Piece);
  }
  const char* algorithm() const override { return "buckets"; }

 private:
  static bool by_buckets(const Params& p) { return p.temperature > 0 && p.top_k > kMaxCandidates; }
  // Candidates wanted of each piece.
  static int64_t by_candidates(const Params& p) { return p.temperature == 0 || by_buckets(p) ? 1 : p.top_k; }

  template <class T>
  T value(const Port& port, const Args& a, int64_t row) const {
    return reinterpret_cast<const T*>(port.base(a))[row * port.d.strides[0]];
  }
  template <class V>
  static dgpuStatus_t bad(const char* port, int64_t row, V v, const char* expected) {
    return kit::fail(DGPU_STATUS_DATA_OUT_OF_RANGE, std::string("sample: ") + port + "[" + std::to_string(row) +
                                                        "] = " + std::to_string(v) + ": expected " + expected);
  }
  dgpuStatus_t read(const Args& a, int64_t row, int64_t vocabulary, Params* out) const {
    const auto temperature = value<float>(temperature_, a, row), top_p = value<float>(top_p_, a, row);
    const int64_t top_k = load_int(top_k_.base(a), top_k_.d.dtype, row * top_k_.d.strides[0]);
    if (!(temperature >= 0)) return bad("temperature", row, temperature, "at least 0");
    if (!(top_p >= 0 && top_p <= 1)) return bad("top_p", row, top_p, "0 to 1");
    if (top_k < 0) return bad("top_k", row, top_k, "at least 0");
    out->temperature = temperature;
    out->top_p = top_p > 0 ? static_cast<double>(top_p) : 1;
    out->top_k = top_k > 0 ? std::min(top_k, vocabulary) : vocabulary;
    out->u = philox_uniform(value<int64_t>(seeds_, a, row), value<int64_t>(positions_, a, row));
    return DGPU_STATUS_SUCCESS;
  }

  static void fill(const Row& r, int64_t begin, int64_t end, Piece* piece) {
    // Two of each, so that an addition need not wait for the one before it.
    double weight[2][kBuckets] = {}, w[kBlockElems];
    int64_t tokens[2][kBuckets] = {};
    r.blocks(begin, end, [&](int64_t, const float*, const double* descent, const int32_t* bucket, int64_t n) {
      std::copy(descent, descent + n, w);
      vec::exp_f64(w, n);
      for (int64_t i = 0; i < n; ++i) {
        weight[i & 1][bucket[i]] += w[i];
        ++tokens[i & 1][bucket[i]];
      }
    });
    for (int b = 0; b < kBuckets; ++b) {
      piece->bucket.weight[b] = weight[0][b] + weight[1][b];
      piece->bucket.tokens[b] = tokens[0][b] + tokens[1][b];
    }
  }

  static int64_t draw_buckets(const Row& r, const Params& p, const Piece* pieces, int64_t count) {
    Buckets buckets(r, pieces, count);
    Buckets::Prefix kept = buckets.prefix(p.top_k, std::numeric_limits<double>::infinity(), false);
    if (p.top_p < 1) kept = buckets.prefix(p.top_k, p.top_p * kept.sum, false);
    return buckets.prefix(kept.count, p.u * kept.sum, true, true).last;
  }

  static int64_t draw_candidates(const Row& r, const Params& p, const Piece* pieces, int64_t count) {
    auto* codes = scratch<uint64_t>(1, count * p.top_k);
    int64_t n = 0;
    for (int64_t i = 0; i < count; ++i) {
      std::copy(pieces[i].codes, pieces[i].codes + pieces[i].count, codes + n);
      n += pieces[i].count;
    }
    std::partial_sort(codes, codes + p.top_k, codes + n, std::greater<>());
    auto* w = scratch<double>(2, p.top_k);
    for (int64_t i = 0; i < p.top_k; ++i) w[i] = r.descent(select_index(codes[i]));
    vec::exp_f64(w, p.top_k);
    return select_index(codes[draw_sorted(w, p.top_k, p.top_p, p.u)]);
  }

  Port logits_, temperature_, top_k_, top_p_, seeds_, positions_, out_;
};

std::unique_ptr<Kernel> make_sample(const kit::OpView& op, std::string* reason) {
  if (!accept_floats(op, {"logits"}, reason)) return nullptr;
  if (op.desc("logits")->shape[1] <= std::numeric_limits<int32_t>::max()) return std::make_unique<Sample>(op);
  *reason = "sample: the vocabulary must have less than 2^31 tokens";
  return nullptr;
}

const char* const kAttributes[] = {nullptr};
const char* const kPorts[] = {"logits=f32|bf16|f16", "temperature=f32", "top_k=i32", "top_p=f32",
                              "seeds=i64",           "positions=i64",   "out=i32",   nullptr};
const dgpuBackendClaim kClaim = {sizeof(dgpuBackendClaim), "sample", 1, 0, kAttributes, kPorts};

}  // namespace

const KernelEntry sample_kernel = {"sample", make_sample, &kClaim};

}  // namespace dgpu::cpu
