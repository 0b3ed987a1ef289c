#include "graph/program.h"

#include <algorithm>

namespace dgpu::graph {

const char* name_of(InputKind kind) {
  switch (kind) {
    case InputKind::Tokens:
      return "tokens";
    case InputKind::Positions:
      return "positions";
    case InputKind::Offsets:
      return "offsets";
    case InputKind::Rows:
      return "rows";
    case InputKind::TotalLengths:
      return "total_lengths";
    case InputKind::LogitRows:
      return "logit_rows";
    case InputKind::SequenceSlots:
      return "sequence_slots";
    case InputKind::CacheSlots:
      return "cache_slots";
    case InputKind::CacheTable:
      return "cache_table";
    case InputKind::CacheLengths:
      return "cache_lengths";
    case InputKind::CachePositions:
      return "cache_positions";
    case InputKind::CacheRows:
      return "cache_rows";
  }
  return "?";
}

int64_t element_count(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

static Id find_binding(const std::vector<Binding>& bindings, std::string_view port) {
  for (const Binding& b : bindings)
    if (b.port == port) return b.value;
  return kNone;
}
Id Node::input(std::string_view port) const { return find_binding(inputs, port); }
Id Node::output(std::string_view port) const { return find_binding(outputs, port); }

Id Program::producer(Id id) const {
  const Value* v = &values[id];
  if (v->is_view()) {
    if (v->effect != kNone) return v->effect;
    v = &values[v->base];
  }
  return v->origin == Origin::Node ? v->index : kNone;
}

int64_t Program::length_independent() const {
  int64_t limit = INT64_MAX;
  for (const Node& n : nodes) {
    if (n.op != "rope_freqs" || n.input("lengths") == kNone) continue;
    const auto it = n.attrs.find("max_position");
    const auto* value = it == n.attrs.end() ? nullptr : std::get_if<int64_t>(&it->second);
    limit = std::min(limit, value ? *value : 0);
  }
  return limit;
}

Id Program::find_input(InputKind kind, Id cache) const {
  for (const Input& in : inputs)
    if (in.kind == kind && in.cache == cache) return in.value;
  return kNone;
}

const Tensor* Program::find_tensor(std::string_view name) const {
  for (const Tensor& t : tensors)
    if (t.name == name) return &t;
  return nullptr;
}

// Matches `text` against `pattern`, where * stands for any text. Linear: only the last * is retried.
static bool matches(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = std::string_view::npos, mark = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      mark = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p, ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++mark;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

const SkippedTensor* Program::find_skipped(std::string_view tensor) const {
  for (const auto& s : skipped)
    if (matches(s.pattern, tensor)) return &s;
  return nullptr;
}

static const char* base_name(Base base) {
  switch (base) {
    case Base::Tokens:
      return "T";
    case Base::Sequences:
      return "B";
    case Base::LogitRows:
      return "R";
    case Base::Pages:
      return "P";
    case Base::PageSize:
      return "S";
    case Base::TableWidth:
      return "N";
    case Base::Slots:
      return "slots";
  }
  return "?";
}

// Large primes: a fixed dimension of a model hardly equals one of them.
static int64_t base_nominal(Base base, Id cache) {
  const int64_t c = cache == kNone ? 0 : static_cast<int64_t>(cache);
  switch (base) {
    case Base::Tokens:
      return 7919;
    case Base::Sequences:
      return 1013;
    case Base::LogitRows:
      return 4801;
    case Base::Pages:
      return 1511 + 2 * c;
    case Base::PageSize:
      return 20011 + 2 * c;
    case Base::TableWidth:
      return 3001 + 2 * c;
    case Base::Slots:
      return 2003;
  }
  return 0;
}

uint32_t Program::symbol(Base base, int64_t scale, int64_t add, Id cache) {
  for (size_t i = 0; i < symbols.size(); ++i) {
    const Symbol& s = symbols[i];
    if (s.base == base && s.scale == scale && s.add == add && s.cache == cache) return static_cast<uint32_t>(i + 1);
  }
  Symbol s;
  s.base = base, s.cache = cache, s.scale = scale, s.add = add;
  s.name = std::string(base_name(base));
  if (cache != kNone) s.name += fmt::format("{}", cache);
  if (scale != 1) s.name += fmt::format("*{}", scale);
  if (add != 0) s.name += fmt::format("{:+}", add);
  s.nominal = scale * base_nominal(base, cache) + add;
  symbols.push_back(std::move(s));
  return static_cast<uint32_t>(symbols.size());
}

static int64_t per_cache(const std::vector<int64_t>& v, Id cache) { return cache < v.size() ? v[cache] : 0; }

int64_t evaluate(const Symbol& s, const Extents& x) {
  int64_t base = 0;
  switch (s.base) {
    case Base::Tokens:
      base = x.tokens;
      break;
    case Base::Sequences:
      base = x.sequences;
      break;
    case Base::LogitRows:
      base = x.logit_rows;
      break;
    case Base::Pages:
      base = per_cache(x.pages, s.cache);
      break;
    case Base::PageSize:
      base = per_cache(x.page_size, s.cache);
      break;
    case Base::TableWidth:
      base = per_cache(x.table_width, s.cache);
      break;
    case Base::Slots:
      base = x.slots;
      break;
  }
  return s.scale * base + s.add;
}

std::vector<int64_t> evaluate_symbols(const Program& program, const Extents& extents) {
  std::vector<int64_t> out;
  out.reserve(program.symbols.size());
  for (const Symbol& s : program.symbols) out.push_back(evaluate(s, extents));
  return out;
}

static std::vector<int64_t> dense_strides(const Program& program, const Shape& shape, const Extents& extents) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= shape[i].symbol ? evaluate(program.symbols[shape[i].symbol - 1], extents) : shape[i].value;
  }
  return strides;
}

std::vector<int64_t> resolved_strides(const Program& program, Id id, const Extents& extents) {
  const Value& v = program.values[id];
  if (!v.is_view()) return dense_strides(program, v.shape, extents);
  std::vector<int64_t> base, out = v.strides;
  for (size_t i = 0; i < out.size(); ++i) {
    if (out[i] != kDense) continue;
    if (base.empty()) base = dense_strides(program, program.values[v.base].shape, extents);
    out[i] = base[i];
  }
  return out;
}

dgpuTensorDesc describe(const Program& program, Id id, const Extents& maxima, dgpuDtype_t activation,
                        dgpuDtype_t checkpoint) {
  const Value& v = program.values[id];
  dgpuTensorDesc d = DGPU_TENSOR_DESC_INIT;
  d.dtype = v.rule == TypeRule::Fixed ? v.dtype : v.rule == TypeRule::Activation ? activation : checkpoint;
  d.rank = static_cast<uint32_t>(v.shape.size());
  const std::vector<int64_t> strides = resolved_strides(program, id, maxima);
  for (uint32_t i = 0; i < d.rank; ++i) {
    const Dim& dim = v.shape[i];
    d.shape[i] = dim.value;
    d.strides[i] = strides[i];
    if (dim.symbol == 0) continue;
    const Symbol& s = program.symbols[dim.symbol - 1];
    d.shape[i] = evaluate(s, maxima);
    if (per_step(s.base)) d.symbols[i] = dim.symbol;
  }
  return d;
}

std::vector<Id> last_uses(const Program& program) {
  std::vector<Id> last(program.values.size(), kNone);
  for (Id n = 0; n < program.nodes.size(); ++n) {
    for (const Binding& b : program.nodes[n].inputs) last[program.root(b.value)] = n;
    for (const Binding& b : program.nodes[n].outputs) last[program.root(b.value)] = n;
  }
  const Id end = static_cast<Id>(program.nodes.size());
  for (const Tap& tap : program.taps) last[program.root(tap.value)] = end;
  if (program.logits != kNone) last[program.root(program.logits)] = end;
  return last;
}

namespace {

struct Verifier {
  const Program& p;
  std::vector<bool> ready;

  Status bad(std::string_view where, std::string_view what) {
    return fail(DGPU_STATUS_INTERNAL, where, "program of {}: {}", p.family, what);
  }
  Status values() {
    for (const Value& v : p.values) {
      if (v.is_view() && (v.base >= p.values.size() || p.values[v.base].is_view()))
        return bad(v.name, "a view must have a base that is not a view");
      if (v.is_view() && v.strides.size() != v.shape.size())
        return bad(v.name, "a view needs one stride per dimension");
      for (const Dim& d : v.shape)
        if (d.symbol > p.symbols.size() || d.value < 0) return bad(v.name, "dimension out of range");
      if (v.rule == TypeRule::Fixed && v.dtype == 0) return bad(v.name, "no element type");
    }
    return DGPU_STATUS_SUCCESS;
  }
  bool readable(Id id) const {
    const Value& v = p.values[id];
    if (v.is_view()) return v.effect != kNone ? ready[id] : ready[v.base];
    return v.origin != Origin::Node || ready[id];
  }
  Status node(const Node& n) {
    for (const Binding& b : n.inputs) {
      if (b.value >= p.values.size()) return bad(n.name, fmt::format("port {} is not bound to a value", b.port));
      if (!readable(b.value))
        return bad(n.name, fmt::format("port {} reads {} before it is written", b.port, p.values[b.value].name));
    }
    for (const Binding& b : n.outputs) {
      if (b.value >= p.values.size()) return bad(n.name, fmt::format("port {} is not bound to a value", b.port));
      if (ready[b.value]) return bad(n.name, fmt::format("{} is written twice", p.values[b.value].name));
      ready[b.value] = true;
    }
    return DGPU_STATUS_SUCCESS;
  }
};

}  // namespace

Status verify(const Program& program) {
  Verifier v{program, std::vector<bool>(program.values.size())};
  for (size_t i = 0; i < program.values.size(); ++i) {
    const Origin o = program.values[i].origin;
    v.ready[i] = o != Origin::Node && o != Origin::View;
  }
  DGPU_TRY(v.values());
  for (const Node& n : program.nodes) DGPU_TRY(v.node(n));
  for (const Tap& t : program.taps)
    if (t.value >= program.values.size() || !v.readable(t.value)) return v.bad(t.name, "tap has no value");
  if (program.logits >= program.values.size()) return v.bad("logits", "the program has no output");
  return DGPU_STATUS_SUCCESS;
}

}  // namespace dgpu::graph
