#include "backends/cpu/attention/problem.h"

#include <algorithm>
#include <cstdint>

namespace dgpu::cpu::attention {
namespace {

void read_source(PortReader& r, int i, SourceSpec* s) {
  const std::string n = std::to_string(i);
  s->k = r.floats("k" + n, true);
  s->v = r.floats("v" + n, true);
  s->table = r.typed("table" + n, DGPU_DTYPE_I32, true);
  s->lengths = r.typed("lengths" + n, DGPU_DTYPE_I32, true);
  s->k_positions = r.typed("k_positions" + n, DGPU_DTYPE_I32);
  s->pick = r.typed("pick" + n, DGPU_DTYPE_I32);
}

int64_t floor_div(int64_t a, int64_t b) {
  const int64_t q = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}

}  // namespace

bool parse(const kit::OpView& op, Problem* p, std::string* reason) {
  PortReader r(op, reason);
  p->source_count = static_cast<int>(op.i("sources", 1));
  if (p->source_count < 1 || p->source_count > kMaxSources) {
    *reason = "sources: 1 to " + std::to_string(kMaxSources);
    return false;
  }
  p->q = r.floats("q", true);
  p->out = r.floats("out", true);
  p->sinks = r.floats("sinks");
  p->bias = r.floats("bias");
  p->offsets = r.typed("offsets", DGPU_DTYPE_I32, true);
  p->positions = r.typed("positions", DGPU_DTYPE_I32, true);
  p->lse = r.typed("lse", DGPU_DTYPE_F32);
  const auto window = op.ints("window"), chunk = op.ints("chunk"), every = op.ints("every"), ring = op.ints("ring");
  const auto entry = [](const std::vector<int64_t>& list, int i) {
    return static_cast<size_t>(i) < list.size() ? std::max<int64_t>(list[static_cast<size_t>(i)], 0) : 0;
  };
  for (int i = 0; i < p->source_count; ++i) {
    auto& s = p->sources[static_cast<size_t>(i)];
    read_source(r, i, &s);
    s.window = entry(window, i);
    s.chunk = entry(chunk, i);
    s.every = entry(every, i);
    s.ring = entry(ring, i) != 0;
    p->picks = p->picks || s.pick;
  }
  if (!r.ok()) return false;
  p->causal = op.b("causal");
  p->scale = static_cast<float>(op.f("scale", 1));
  p->softcap = static_cast<float>(op.f("softcap", 0));
  p->heads = p->q.max_extent(1);
  p->d = p->q.max_extent(2);
  p->kv_heads = p->sources[0].k.max_extent(2);
  p->dv = p->sources[0].v.max_extent(3);
  for (int64_t kv = 0; kv < p->kv_heads; ++kv) {
    p->max_group = std::max(p->max_group, p->first_head(kv + 1) - p->first_head(kv));
  }
  return true;
}

Bounds bounds(const Problem& p, const SourceSpec& s, int64_t position, int64_t length) {
  int64_t p_lo = INT32_MIN, p_last = INT32_MAX, j_lo = 0, j_hi = length;
  if (s.every > 0) {
    j_hi = std::min(j_hi, floor_div(position + 1, s.every));
  } else if (p.causal) {
    p_last = std::min(p_last, position);
  }
  if (s.window > 0) p_lo = std::max(p_lo, position - s.window + 1);
  if (s.chunk > 0) {
    const int64_t first = floor_div(position, s.chunk) * s.chunk;
    p_lo = std::max(p_lo, first);
    p_last = std::min(p_last, first + s.chunk - 1);
  }
  if (!s.k_positions) {
    j_lo = std::max(j_lo, p_lo);
    j_hi = std::min(j_hi, p_last + 1);
  }
  j_hi = std::max<int64_t>(j_hi, 0);
  j_lo = std::min(std::max<int64_t>(j_lo, 0), j_hi);
  const auto narrow = [](int64_t x) { return static_cast<int32_t>(std::clamp<int64_t>(x, INT32_MIN, INT32_MAX)); };
  return {narrow(j_lo), narrow(j_hi), narrow(p_lo), narrow(p_last)};
}

}  // namespace dgpu::cpu::attention
