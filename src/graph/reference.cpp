#include "graph/reference.h"

#include <algorithm>
#include <numeric>

namespace dgpu::graph {
namespace {

using ops::RefTensor;

bool is_integer(dgpuDtype_t dtype) {
  return dtype == DGPU_DTYPE_I8 || dtype == DGPU_DTYPE_U8 || dtype == DGPU_DTYPE_I16 || dtype == DGPU_DTYPE_I32 ||
         dtype == DGPU_DTYPE_I64 || dtype == DGPU_DTYPE_BOOL;
}

// Visits the offsets of a strided region in row-major order.
template <typename F>
void for_each_offset(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides, int64_t offset, F&& visit) {
  int64_t count = element_count(shape);
  std::vector<int64_t> at(shape.size(), 0);
  for (int64_t n = 0; n < count; ++n) {
    visit(offset);
    for (size_t d = shape.size(); d-- > 0;) {
      offset += strides[d];
      if (++at[d] < shape[d]) break;
      offset -= strides[d] * shape[d];
      at[d] = 0;
    }
  }
}

class Executor {
 public:
  Executor(const Program& program, const ReferenceRun& run) : p_(program), run_(run) {}

  Status execute() {
    choose_extents();
    memory_.resize(p_.values.size());
    last_ = last_uses(p_);
    fill_inputs();
    size_t next_tap = 0;
    for (Id n = 0; n < p_.nodes.size(); ++n) {
      DGPU_TRY(run_node(p_.nodes[n]));
      DGPU_TRY(emit_taps(n, next_tap));
      release(n);
      if (run_.progress && run_.progress(n + 1, p_.nodes.size(), p_.nodes[n].name))
        return fail(DGPU_STATUS_CANCELLED, p_.nodes[n].name, "cancelled after {}", p_.nodes[n].name);
    }
    RefTensor logits;
    DGPU_TRY(read(p_.logits, logits));
    return run_.tap ? run_.tap("logits", logits) : DGPU_STATUS_SUCCESS;
  }

 private:
  void choose_extents() {
    const auto tokens = static_cast<int64_t>(run_.tokens.size());
    x_.tokens = x_.logit_rows = tokens;
    x_.sequences = x_.slots = 1;
    for (const auto& c : p_.caches) {
      x_.pages.push_back(1);
      x_.page_size.push_back(std::max<int64_t>(1, (tokens + c.every - 1) / c.every));
      x_.table_width.push_back(1);
    }
  }

  std::vector<int64_t> shape_of(Id id) const {
    std::vector<int64_t> out;
    for (const auto& d : p_.values[id].shape) out.push_back(d.symbol ? evaluate(p_.symbols[d.symbol - 1], x_) : d.value);
    return out;
  }

  dgpuDtype_t dtype_of(Id id) const {
    const auto& v = p_.values[id];
    return v.rule == TypeRule::Fixed ? v.dtype : dgpuDtype_t{DGPU_DTYPE_F64};
  }

  RefTensor make(Id id) const {
    RefTensor t;
    t.shape = shape_of(id);
    t.dtype = dtype_of(id);
    const auto n = static_cast<size_t>(element_count(t.shape));
    if (is_integer(t.dtype)) t.i.assign(n, 0);
    else t.f.assign(n, 0.0);
    return t;
  }

  void fill_inputs() {
    const int64_t tokens = x_.tokens;
    for (const auto& in : p_.inputs) {
      RefTensor t = make(in.value);
      const auto counting = [&] { std::iota(t.i.begin(), t.i.end(), 0); };
      switch (in.kind) {
        case InputKind::Tokens: t.i.assign(run_.tokens.begin(), run_.tokens.end()); break;
        case InputKind::Positions:
        case InputKind::LogitRows: counting(); break;
        case InputKind::Offsets: t.i = {0, tokens}; break;
        case InputKind::TotalLengths: t.i = {tokens}; break;
        case InputKind::CacheLengths: t.i = {entries(in.cache)}; break;
        case InputKind::CacheSlots:
          for (int64_t k = 0; k < tokens; ++k) t.i[k] = cache_slot(in.cache, k);
          break;
        case InputKind::CachePositions:
          for (size_t k = 0; k < t.i.size(); ++k) t.i[k] = static_cast<int64_t>(k) * p_.caches[in.cache].every;
          break;
        case InputKind::Rows:
        case InputKind::SequenceSlots:
        case InputKind::CacheTable:
        case InputKind::CacheRows: break;  // one sequence, one page: all zero
      }
      memory_[in.value] = std::move(t);
    }
  }

  int64_t entries(Id cache) const { return x_.tokens / p_.caches[cache].every; }
  int64_t cache_slot(Id cache, int64_t token) const {
    const auto every = p_.caches[cache].every;
    return (token + 1) % every == 0 ? (token + 1) / every - 1 : -1;
  }

  // Memory of a value that is not a view, made when first needed.
  Status root(Id id, RefTensor*& out) {
    RefTensor& t = memory_[id];
    const auto& v = p_.values[id];
    if (t.f.empty() && t.i.empty()) {
      if (v.origin == Origin::Weight) {
        DGPU_TRY(run_.load(v.index, t));
      } else {
        t = make(id);
        if (v.origin == Origin::Constant) {
          const auto& data = p_.constants[v.index].data;
          if (is_integer(t.dtype)) t.i.assign(data.begin(), data.end());
          else t.f = data;
        }
      }
    }
    out = &t;
    return DGPU_STATUS_SUCCESS;
  }

  Status read(Id id, RefTensor& out) {
    const auto& v = p_.values[id];
    RefTensor* base = nullptr;
    DGPU_TRY(root(p_.root(id), base));
    if (!v.is_view()) {
      out = *base;
      return DGPU_STATUS_SUCCESS;
    }
    out.shape = shape_of(id);
    out.dtype = base->dtype;
    const bool ints = !base->i.empty();
    if (ints) out.i.reserve(static_cast<size_t>(element_count(out.shape)));
    else out.f.reserve(static_cast<size_t>(element_count(out.shape)));
    for_each_offset(out.shape, resolved_strides(p_, id, x_), v.offset, [&](int64_t o) {
      if (ints) out.i.push_back(base->i[o]);
      else out.f.push_back(base->f[o]);
    });
    return DGPU_STATUS_SUCCESS;
  }

  Status write(Id id, RefTensor&& value) {
    const auto& v = p_.values[id];
    if (!v.is_view()) {
      memory_[id] = std::move(value);
      return DGPU_STATUS_SUCCESS;
    }
    RefTensor* base = nullptr;
    DGPU_TRY(root(p_.root(id), base));
    size_t at = 0;
    const bool ints = !base->i.empty();
    for_each_offset(value.shape, resolved_strides(p_, id, x_), v.offset, [&](int64_t o) {
      if (ints) base->i[o] = value.i[at++];
      else base->f[o] = value.f[at++];
    });
    return DGPU_STATUS_SUCCESS;
  }

  Status run_node(const Node& node) {
    if (node.is_extern)
      return fail(DGPU_STATUS_UNSUPPORTED, node.op, "{}: operator '{}' is declared extern: this library does not have it",
                  node.name, node.op);
    ops::OpSpec spec;
    spec.name = node.op;
    spec.attrs = node.attrs;
    ops::RefTensors tensors;
    const auto bind = [&](const Binding& b, RefTensor&& t) {
      dgpuTensorDesc desc = DGPU_TENSOR_DESC_INIT;
      desc.dtype = t.dtype;
      desc.rank = static_cast<uint32_t>(t.shape.size());
      int64_t stride = 1;
      for (size_t d = t.shape.size(); d-- > 0; stride *= t.shape[d]) {
        desc.shape[d] = t.shape[d];
        desc.strides[d] = stride;
      }
      spec.ports[b.port] = desc;
      tensors[b.port] = std::move(t);
    };
    for (const auto& b : node.inputs) {
      RefTensor t;
      DGPU_TRY(read(b.value, t));
      bind(b, std::move(t));
    }
    for (const auto& b : node.outputs)
      if (!tensors.count(b.port)) bind(b, make(b.value));
    DGPU_TRY(ops::validate(spec));
    DGPU_TRY(ops::find(node.op)->reference(spec, tensors));
    for (const auto& b : node.outputs) DGPU_TRY(write(b.value, std::move(tensors[b.port])));
    return DGPU_STATUS_SUCCESS;
  }

  // Taps whose producer has run, in order. Taps of inputs come before the first node's.
  Status emit_taps(Id node, size_t& next) {
    if (!run_.tap) return DGPU_STATUS_SUCCESS;
    for (; next < p_.taps.size(); ++next) {
      const Id producer = p_.producer(p_.taps[next].value);
      if (producer != kNone && producer > node) break;
      RefTensor t;
      DGPU_TRY(read(p_.taps[next].value, t));
      if (p_.taps[next].name != "logits") DGPU_TRY(run_.tap(p_.taps[next].name, t));
    }
    return DGPU_STATUS_SUCCESS;
  }

  void release(Id node) {
    for (const auto* list : {&p_.nodes[node].inputs, &p_.nodes[node].outputs})
      for (const auto& b : *list) {
        const Id r = p_.root(b.value);
        const auto origin = p_.values[r].origin;
        const bool weight = origin == Origin::Weight;
        const bool dead = origin == Origin::Node && (last_[r] == node || last_[r] == kNone) && !tapped_later(r, node);
        if (weight || dead) memory_[r] = RefTensor();
      }
  }

  bool tapped_later(Id root_id, Id node) const {
    if (p_.root(p_.logits) == root_id) return true;
    for (const auto& t : p_.taps)
      if (p_.root(t.value) == root_id && p_.producer(t.value) != kNone && p_.producer(t.value) > node) return true;
    return false;
  }

  const Program& p_;
  const ReferenceRun& run_;
  Extents x_;
  std::vector<RefTensor> memory_;
  std::vector<Id> last_;
};

}  // namespace

Status run_reference(const Program& program, const ReferenceRun& run) { return Executor(program, run).execute(); }

}  // namespace dgpu::graph
