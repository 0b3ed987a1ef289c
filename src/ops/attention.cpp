// attention: softmax(q k) v over paged keys of one or more sources, visible by absolute positions.
#include <algorithm>
#include <cmath>

#include "ops/schema.h"

namespace dgpu::ops::schemas {
namespace {

std::string numbered(const char* stem, int64_t i) { return stem + std::to_string(i); }

Status check_lists(const OpSpec& spec, int64_t sources) {
  if (sources < 1 || sources > 16) return bad_attr(spec, "sources", "expected 1 to 16, got {}", sources);
  for (const char* attr : {"window", "chunk", "every", "ring"}) {
    const auto list = spec.ints(attr);
    if (!list.empty() && static_cast<int64_t>(list.size()) != sources)
      return bad_attr(spec, attr, "expected an entry per source, {}, or none, got {}", sources, list.size());
    for (const int64_t v : list)
      if (v < 0) return bad_attr(spec, attr, "expected entries of at least 0, got {}", v);
  }
  for (const int64_t v : spec.ints("ring"))
    if (v > 1) return bad_attr(spec, "ring", "expected entries of 0 or 1, got {}", v);
  if (!(spec.f("softcap") >= 0))
    return bad_attr(spec, "softcap", "expected at least 0 (0: none), got {}", spec.f("softcap"));
  for (const auto& [port, d] : spec.ports) {
    const PortSchema* row = port_schema(attention(), port);
    if (row && row->repeated && std::stoll(port.substr(row->name.size())) >= sources)
      return bad_shape(spec, port, "must not be bound with sources={}", sources);
  }
  return DGPU_STATUS_SUCCESS;
}

// Value width of source i; the widths of all sources must be equal.
Status check_source(const OpSpec& spec, int64_t i, const Dims& q, const Dim& sequences, Dim& width) {
  const std::string k = numbered("k", i), v = numbered("v", i), table = numbered("table", i);
  const std::string lengths = numbered("lengths", i), positions = numbered("k_positions", i),
                    pick = numbered("pick", i);
  for (const auto& port : {k, v, table, lengths})
    DGPU_TRY(need_port(spec, port, fmt::format("with sources={}", spec.i("sources"))));
  DGPU_TRY(expect_rank(spec, k, 4, 4));
  DGPU_TRY(expect_rank(spec, v, 4, 4));
  DGPU_TRY(expect_rank(spec, table, 2, 2));
  DGPU_TRY(expect_rank(spec, pick, 2, 2));
  const Dims kd = dims(spec, k), vd = dims(spec, v), td = dims(spec, table);
  if (kd[1].symbol || kd[1].extent < 1)
    return bad_shape(spec, k, "expected a fixed page of at least 1 token, got {}", text(kd));
  DGPU_TRY(expect_dims(spec, k, {kd[0], kd[1], kd[2], q[2]}, "head dimension of q"));
  if (kd[2].symbol || kd[2].extent < 1 || q[1].symbol || q[1].extent % kd[2].extent)
    return bad_shape(spec, k, "expected heads that divide the {} heads of q, got {}", text(q[1]), text(kd[2]));
  if (i == 0) width = vd[3];
  DGPU_TRY(expect_dims(spec, v, {kd[0], kd[1], kd[2], width}, "pages and heads of the keys, value width of v0"));
  DGPU_TRY(expect_dims(spec, table, {sequences, td[1]}, "a row per sequence"));
  DGPU_TRY(expect_dims(spec, lengths, {sequences}, "one per sequence"));
  DGPU_TRY(expect_dims(spec, positions, {kd[0], kd[1]}, "pages of the keys"));
  const auto ring = spec.ints("ring");
  if (spec.bound(positions) && static_cast<int64_t>(ring.size()) > i && ring[i])
    return bad_shape(spec, positions, "must not be bound with ring: the position of a key is its index");
  if (spec.bound(pick)) DGPU_TRY(expect_dims(spec, pick, {q[0], dims(spec, pick)[1]}, "a row per query"));
  return DGPU_STATUS_SUCCESS;
}

// offsets has an entry more than there are sequences: not expressible with symbols, hence checked per execution.
Status check(const OpSpec& spec, const int64_t* symbols) {
  const auto &offsets = desc(spec, "offsets"), &table = desc(spec, "table0");
  const int64_t have = symbols ? extent(offsets, 0, symbols) : offsets.shape[0];
  const int64_t rows = symbols ? extent(table, 0, symbols) : table.shape[0];
  if (have == rows + 1) return DGPU_STATUS_SUCCESS;
  return bad_shape(spec, "offsets", "expected {} entries, one more than table0 has rows, got {}", rows + 1, have);
}

Status infer(const OpSpec& spec, Outputs& outputs) {
  const int64_t sources = spec.i("sources");
  DGPU_TRY(check_lists(spec, sources));
  DGPU_TRY(expect_rank(spec, "q", 3, 3));
  DGPU_TRY(expect_rank(spec, "table0", 2, 2));
  DGPU_TRY(expect_rank(spec, "offsets", 1, 1));
  const Dims q = dims(spec, "q");
  const Dim sequences = dims(spec, "table0")[0];
  if ((sequences.symbol != 0) != (dims(spec, "offsets")[0].symbol != 0))
    return bad_shape(spec, "offsets", "expected a {} extent as table0 has, got {}",
                     sequences.symbol ? "symbolic" : "fixed", text(dims(spec, "offsets")));
  DGPU_TRY(check(spec, nullptr));
  Dim width;
  for (int64_t i = 0; i < sources; ++i) DGPU_TRY(check_source(spec, i, q, sequences, width));
  DGPU_TRY(expect_dims(spec, "positions", {q[0]}, "one per query"));
  DGPU_TRY(expect_dims(spec, "sinks", {q[1]}, "one per head of q"));
  DGPU_TRY(expect_rank(spec, "bias", 3, 3));
  if (spec.bound("bias")) {
    const Dims bias = dims(spec, "bias");
    DGPU_TRY(
        expect_dims(spec, "bias", {bias[0].is_one() ? bias[0] : q[1], q[0], bias[2]}, "1 or the heads, queries, keys"));
  }
  outputs["out"] = packed(dtype(spec, "q"), {q[0], q[1], width});
  outputs["lse"] = packed(DGPU_DTYPE_F32, {q[0], q[1]});
  return DGPU_STATUS_SUCCESS;
}

// ---- Reference ----

struct Source {
  const RefTensor *k, *v, *table, *lengths, *positions = nullptr, *pick = nullptr;
  int64_t page, kv_heads, window, chunk, every;
  bool ring;
  int64_t room() const { return table->shape[1] * page; }  // places of a sequence
};

// A visible key: where it is, and its place j in its sequence.
struct Key {
  int64_t source, row, j;
};

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && a < 0); }

class Attention {
 public:
  Attention(const OpSpec& spec, RefTensors& t)
      : spec_(spec),
        q_(t.find("q")->second),
        out_(t.find("out")->second),
        offsets_(t.find("offsets")->second.i),
        positions_(t.find("positions")->second.i),
        causal_(spec.b("causal")),
        scale_(spec.f("scale")),
        softcap_(spec.f("softcap")) {
    const auto get = [&](const std::string& port) { return spec.bound(port) ? &t.find(port)->second : nullptr; };
    const auto entry = [&](const char* attr, int64_t i) {
      const auto list = spec.ints(attr);
      return list.empty() ? 0 : list[i];
    };
    sinks_ = get("sinks");
    bias_ = get("bias");
    lse_ = get("lse");
    for (int64_t i = 0; i < spec.i("sources", 1); ++i) {
      const auto* k = get(numbered("k", i));
      sources_.push_back({k, get(numbered("v", i)), get(numbered("table", i)), get(numbered("lengths", i)),
                          get(numbered("k_positions", i)), get(numbered("pick", i)), k->shape[1], k->shape[2],
                          entry("window", i), entry("chunk", i), entry("every", i), entry("ring", i) != 0});
    }
  }

  Status run() {
    if (lse_) std::fill(lse_->f.begin(), lse_->f.end(), -kInf);
    const int64_t tokens = q_.shape[0];
    for (size_t b = 0; b < offsets_.size(); ++b)
      if (offsets_[b] < (b ? offsets_[b - 1] : 0) || offsets_[b] > tokens)
        return bad_data(spec_, "offsets", "offsets[{}] = {}: expected {} to {}", b, offsets_[b],
                        b ? offsets_[b - 1] : 0, tokens);
    for (size_t b = 0; b + 1 < offsets_.size(); ++b)
      for (int64_t t = offsets_[b]; t < offsets_[b + 1]; ++t) {
        keys_.clear();
        for (size_t i = 0; i < sources_.size(); ++i)
          DGPU_TRY(collect(static_cast<int64_t>(i), static_cast<int64_t>(b), t));
        for (int64_t h = 0; h < q_.shape[1]; ++h) head(t, h);
      }
    return DGPU_STATUS_SUCCESS;
  }

 private:
  // Row of key j in the cache of a source, -1 where its page is not one.
  static int64_t row_of(const Source& s, int64_t b, int64_t j) {
    const int64_t place = s.ring ? j % s.room() : j;
    const int64_t page = s.table->i[b * s.table->shape[1] + place / s.page];
    return page < 0 || page >= s.k->shape[0] ? -1 : page * s.page + place % s.page;
  }

  bool visible(const Source& s, int64_t position, int64_t j, int64_t query) const {
    if (s.every > 0) {
      if (j >= floor_div(query + 1, s.every)) return false;
    } else if (causal_ && position > query) {
      return false;
    }
    if (s.window > 0 && position <= query - s.window) return false;
    return s.chunk <= 0 || floor_div(position, s.chunk) == floor_div(query, s.chunk);
  }

  Status consider(int64_t i, int64_t b, int64_t t, int64_t j) {
    const Source& s = sources_[i];
    const int64_t row = row_of(s, b, j);
    if (row < 0 && s.positions) return bad_page(i, b, j);
    if (!visible(s, s.positions ? s.positions->i[row] : j, j, positions_[t])) return DGPU_STATUS_SUCCESS;
    if (s.ring && j < s.lengths->i[b] - s.room())
      return bad_data(spec_, numbered("lengths", i),
                      "query {} sees key {} of {}: expected one of the last {}, older ones are overwritten", t, j,
                      s.lengths->i[b], s.room());
    if (row < 0) return bad_page(i, b, j);
    if (i == 0 && bias_ && j >= bias_->shape[2])
      return bad_data(spec_, "bias", "key {} is visible: expected more than the {} columns of bias", j,
                      bias_->shape[2]);
    keys_.push_back({i, row, j});
    return DGPU_STATUS_SUCCESS;
  }

  Status bad_page(int64_t i, int64_t b, int64_t j) const {
    const Source& s = sources_[i];
    const int64_t at = (s.ring ? j % s.room() : j) / s.page;
    return bad_data(spec_, numbered("table", i), "table[{},{}] = {}: expected 0 to {}", b, at,
                    s.table->i[b * s.table->shape[1] + at], s.k->shape[0] - 1);
  }

  Status collect(int64_t i, int64_t b, int64_t t) {
    const Source& s = sources_[i];
    const int64_t length = s.lengths->i[b];
    if (length < 0 || (length > s.room() && !(s.ring && s.room() > 0)))
      return bad_data(spec_, numbered("lengths", i), "lengths[{}] = {}: expected 0 to {}, the room of a table row", b,
                      length, s.room());
    if (!s.pick) {
      for (int64_t j = 0; j < length; ++j) DGPU_TRY(consider(i, b, t, j));
      return DGPU_STATUS_SUCCESS;
    }
    const int64_t n = s.pick->shape[1];
    picked_.assign(s.pick->i.begin() + t * n, s.pick->i.begin() + (t + 1) * n);
    for (int64_t p : picked_)
      if (p < -1 || p >= length)
        return bad_data(spec_, numbered("pick", i), "query {} picks {}: expected -1 (none) to {}", t, p, length - 1);
    std::sort(picked_.begin(), picked_.end());
    picked_.erase(std::unique(picked_.begin(), picked_.end()), picked_.end());
    for (int64_t p : picked_)
      if (p >= 0) DGPU_TRY(consider(i, b, t, p));
    return DGPU_STATUS_SUCCESS;
  }

  double score(int64_t t, int64_t h, const Key& key) const {
    const Source& s = sources_[key.source];
    const int64_t width = q_.shape[2], heads = q_.shape[1];
    const double* q = q_.f.data() + (t * heads + h) * width;
    const double* k = s.k->f.data() + (key.row * s.kv_heads + h * s.kv_heads / heads) * width;
    double dot = 0;
    for (int64_t d = 0; d < width; ++d) dot += q[d] * k[d];
    dot *= scale_;
    if (softcap_ > 0) dot = softcap_ * std::tanh(dot / softcap_);
    if (key.source == 0 && bias_)
      dot += bias_->f[((bias_->shape[0] == 1 ? 0 : h) * q_.shape[0] + t) * bias_->shape[2] + key.j];
    return dot;
  }

  void head(int64_t t, int64_t h) {
    const int64_t heads = q_.shape[1], width = out_.shape[2];
    scores_.resize(keys_.size());
    double top = sinks_ ? sinks_->f[h] : -kInf;
    for (size_t n = 0; n < keys_.size(); ++n) top = std::fmax(top, scores_[n] = score(t, h, keys_[n]));
    if (top == -kInf) return;  // nothing visible: zeros, lse -inf
    double sum = sinks_ ? std::exp(sinks_->f[h] - top) : 0;
    for (double& s : scores_) sum += s = std::exp(s - top);
    double* out = out_.f.data() + (t * heads + h) * width;
    for (size_t n = 0; n < keys_.size(); ++n) {
      const Source& s = sources_[keys_[n].source];
      const double* v = s.v->f.data() + (keys_[n].row * s.kv_heads + h * s.kv_heads / heads) * width;
      const double p = scores_[n] / sum;
      for (int64_t d = 0; d < width; ++d) out[d] += p * v[d];
    }
    if (lse_) lse_->f[t * heads + h] = top + std::log(sum);
  }

  const OpSpec& spec_;
  const RefTensor& q_;
  RefTensor& out_;
  const std::vector<int64_t>&offsets_, &positions_;
  bool causal_;
  double scale_, softcap_;
  const RefTensor *sinks_ = nullptr, *bias_ = nullptr;
  RefTensor* lse_ = nullptr;
  std::vector<Source> sources_;
  std::vector<Key> keys_;
  std::vector<int64_t> picked_;
  std::vector<double> scores_;
};

Status reference(const OpSpec& spec, RefTensors& t) { return Attention(spec, t).run(); }

}  // namespace

const Schema& attention() {
  static const auto* schema = new Schema{
      "attention",
      1,
      "Scaled dot-product attention over paged keys of one or more sources.",
      {need("scale", DGPU_ATTR_FLOAT, "factor on q.k"), need("causal", DGPU_ATTR_BOOL, "hide keys after the query"),
       with("sources", int64_t{1}, "number of key sources"),
       with("window", std::vector<int64_t>{}, "per source: a query sees the last w positions, itself included; 0: all"),
       with("chunk", std::vector<int64_t>{}, "per source: a query sees its own chunk of c positions; 0: all"),
       with("every", std::vector<int64_t>{},
            "per source: key j stands for r positions, visible once they are past; 0: 1"),
       with("ring", std::vector<int64_t>{}, "per source: 1: key j is at place j mod N S, over an older one; 0: at j"),
       with("softcap", 0.0, "scores become softcap tanh(s / softcap); 0: none")},
      {in("q", floats(), "[T, Hq, D]"), repeated(in("k", floats(), "[P, S, Hkv, D]")),
       repeated(in("v", floats(), "[P, S, Hkv, Dv]")),
       repeated(in("table", i32_only(), "[B, N] pages of each sequence")),
       repeated(in("lengths", i32_only(), "[B] keys of each sequence")),
       repeated(in_opt("k_positions", i32_only(), "[P, S] position of each key; without it: its index")),
       repeated(in_opt("pick", i32_only(), "[T, n] keys that each query sees; -1: none")),
       in("offsets", i32_only(), "[B + 1] first query of each sequence"),
       in("positions", i32_only(), "[T] position of each query"),
       in_opt("sinks", floats(), "[Hq] extra logits without value"),
       in_opt("bias", floats(), "[1 or Hq, T, L] added to the scores of source 0"), out("out", floats(), "[T, Hq, Dv]"),
       out_opt("lse", f32_only(), "[T, Hq] log of the denominator")},
      infer,
      reference,
      check};
  return *schema;
}

}  // namespace dgpu::ops::schemas
