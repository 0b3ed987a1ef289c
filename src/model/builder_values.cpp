// Values, views and shapes of the program under construction.
#include <algorithm>

#include "model/builder.h"

namespace dgpu::model {

using graph::Dim;
using graph::kDense;
using graph::kNone;
using graph::Origin;
using graph::Shape;
using graph::TypeRule;
using graph::Value;

dgpuDtype_t dtype_named(std::string_view name) {
  if (name == "f32") return DGPU_DTYPE_F32;
  if (name == "i32") return DGPU_DTYPE_I32;
  return name == "i64" ? dgpuDtype_t{DGPU_DTYPE_I64} : dgpuDtype_t{};
}

static constexpr size_t kMaxValues = 4'000'000;

std::string Builder::unique(const std::string& name, std::unordered_map<std::string, uint32_t>& taken) {
  uint32_t& count = taken[name];
  if (count++ == 0) return name;
  for (uint32_t k = count;; ++k) {
    std::string other = fmt::format("{}#{}", name, k);
    if (taken.emplace(other, 1).second) return other;
  }
}

Builder::Id Builder::add_value(std::string name, Value v) {
  if (program_.values.size() >= kMaxValues)
    throw Fault{DGPU_STATUS_INVALID_ARGUMENT, t_.file, fmt::format("{}: more than {} values", file_, kMaxValues)};
  v.name = unique(name);
  program_.values.push_back(std::move(v));
  return static_cast<Id>(program_.values.size() - 1);
}

Builder::Id Builder::add_input(graph::InputKind kind, Id cache) {
  using graph::Base;
  using graph::InputKind;
  if (const Id known = program_.find_input(kind, cache); known != kNone) return known;
  Value v;
  v.origin = Origin::Input, v.rule = TypeRule::Fixed, v.dtype = DGPU_DTYPE_I32;
  v.index = static_cast<Id>(program_.inputs.size());
  const auto dim = [&](Base base, int64_t add = 0) {
    const bool own = base == Base::Pages || base == Base::PageSize || base == Base::TableWidth;
    return program_.dim(program_.symbol(base, 1, add, own ? cache : kNone));
  };
  switch (kind) {
    case InputKind::Tokens:
    case InputKind::Positions:
    case InputKind::Rows:
    case InputKind::CacheSlots:
      v.shape = {dim(Base::Tokens)};
      break;
    case InputKind::Offsets:
      v.shape = {dim(Base::Sequences, 1)};
      break;
    case InputKind::TotalLengths:
    case InputKind::SequenceSlots:
    case InputKind::CacheLengths:
      v.shape = {dim(Base::Sequences)};
      break;
    case InputKind::LogitRows:
      v.shape = {dim(Base::LogitRows)};
      break;
    case InputKind::CacheTable:
      v.shape = {dim(Base::Sequences), dim(Base::TableWidth)};
      break;
    case InputKind::CachePositions:
    case InputKind::CacheRows:
      v.shape = {dim(Base::Pages), dim(Base::PageSize)};
      break;
  }
  std::string name = graph::name_of(kind);
  if (cache != kNone) name += "." + program_.caches[cache].name;
  const Id id = add_value(std::move(name), std::move(v));
  program_.inputs.push_back({kind, cache, id});
  return id;
}

Builder::Id Builder::tensor(const Val& v, const Expr& at, std::string_view what) const {
  if (const TensorRef* t = v.get<TensorRef>()) return t->id;
  fault(at, fmt::format("{} must be a tensor, got {}", what, text_of(v)));
}

// ---- Shapes --------------------------------------------------------------------------------------------------------

std::string Builder::shape_text(const Shape& shape) const {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i) out += ",";
    out += shape[i].symbol ? program_.symbols[shape[i].symbol - 1].name : fmt::format("{}", shape[i].value);
  }
  return out + "]";
}

Val Builder::dim_val(const Dim& d) const { return d.symbol ? Val(DimRef{d.symbol}) : Val(d.value); }

Dim Builder::dim_of(const Val& v, const Expr& at) {
  if (const DimRef* d = v.get<DimRef>()) return program_.dim(d->symbol);
  const int64_t* n = v.get<int64_t>();
  if (!n || *n < 0 || *n > (int64_t{1} << 40))
    fault(at, fmt::format("an extent must be a number from 0 on, got {}", text_of(v)));
  return {*n, 0};
}

Shape Builder::shape_of(const Val& v, const Expr& at) {
  const List* items = v.list();
  if (!items) fault(at, fmt::format("a shape must be a list, got {}", text_of(v)));
  if (items->size() > DGPU_MAX_RANK)
    fault(at, fmt::format("a shape of rank {}, expected at most {}", items->size(), DGPU_MAX_RANK));
  Shape out;
  for (const Val& item : *items) out.push_back(dim_of(item, at));
  return out;
}

// For shape inference: nominal extents, symbols marked, and the narrowest floating types, so that a port that insists
// on f32 is found out.
dgpuTensorDesc Builder::nominal(const Shape& shape, dgpuDtype_t dtype) const {
  dgpuTensorDesc d = DGPU_TENSOR_DESC_INIT;
  d.dtype = dtype ? dtype : dgpuDtype_t{DGPU_DTYPE_BF16};
  d.rank = static_cast<uint32_t>(shape.size());
  int64_t stride = 1;
  for (uint32_t i = d.rank; i-- > 0; stride *= d.shape[i]) {
    d.shape[i] = shape[i].value, d.strides[i] = stride;
    const uint32_t symbol = shape[i].symbol;  // what the session fixes once is fixed for an operator's plan
    if (symbol && graph::per_step(program_.symbols[symbol - 1].base)) d.symbols[i] = symbol;
  }
  return d;
}

// ---- Views ---------------------------------------------------------------------------------------------------------

// A stride can be told as a number if all extents inside it are fixed.
std::vector<int64_t> Builder::strides_of(Id id) const {
  const Value& v = program_.values[id];
  if (v.is_view()) return v.strides;
  std::vector<int64_t> out(v.shape.size());
  int64_t stride = 1;
  for (size_t i = v.shape.size(); i-- > 0;) {
    out[i] = stride;
    if (stride != kDense) stride = v.shape[i].symbol && i > 0 ? kDense : stride * v.shape[i].value;
  }
  return out;
}

Builder::Id Builder::add_view(Id of, Shape shape, std::vector<int64_t> strides, int64_t offset,
                              const std::string& name) {
  Value v;
  v.origin = Origin::View;
  v.rule = value(of).rule, v.dtype = value(of).dtype;
  v.shape = std::move(shape), v.strides = std::move(strides);
  v.base = program_.root(of);
  v.offset = value(of).offset + offset;
  v.effect = value(of).effect;
  return add_value(name, std::move(v));
}

int64_t Builder::axis_of(Id id, const Val& v, const Expr& at) const {
  const int64_t rank = static_cast<int64_t>(program_.values[id].shape.size());
  const int64_t* axis = v.get<int64_t>();
  if (!axis || *axis < -rank || *axis >= rank)
    fault(at, fmt::format("axis {} of a tensor of rank {}", text_of(v), rank));
  return *axis < 0 ? *axis + rank : *axis;
}

Builder::Id Builder::slice(Id id, int64_t axis, int64_t from, int64_t to, int64_t step, const Expr& at) {
  const Value& v = program_.values[id];
  const Dim& d = v.shape[axis];
  if (d.symbol) fault(at, fmt::format("a part of the symbolic extent {}", program_.symbols[d.symbol - 1].name));
  if (from < 0 || to < from || to > d.value || step < 1)
    fault(at, fmt::format("part {}:{}:{} of an extent of {}", from, to, step, d.value));
  Shape shape = v.shape;
  std::vector<int64_t> strides = strides_of(id);
  if (from > 0 && strides[axis] == kDense) fault(at, "a part of a cache's pages");
  const int64_t offset = from > 0 ? from * strides[axis] : 0;
  shape[axis].value = (to - from + step - 1) / step;
  if (strides[axis] != kDense) strides[axis] *= step;
  return add_view(id, std::move(shape), std::move(strides), offset, v.name + ".part");
}

Builder::Id Builder::permute(Id id, const std::vector<int64_t>& order, const Expr& at) {
  const Value& v = program_.values[id];
  const std::vector<int64_t> strides = strides_of(id);
  std::vector<bool> seen(v.shape.size());
  Shape shape;
  std::vector<int64_t> out;
  for (size_t k = 0; k < order.size(); ++k) {
    const int64_t o = order[k];
    if (o < 0 || o >= static_cast<int64_t>(seen.size()) || seen[o]) fault(at, "permute needs every axis once");
    seen[o] = true;
    if (strides[o] == kDense && static_cast<int64_t>(k) != o) fault(at, "permute of a cache's pages");
    shape.push_back(v.shape[o]), out.push_back(strides[o]);
  }
  if (order.size() != seen.size()) fault(at, "permute needs every axis once");
  return add_view(id, std::move(shape), std::move(out), 0, v.name + ".permuted");
}

// Extents as (coefficient, symbol) products: [T, 4, 16] and [T*4, 16] agree.
static bool same_count(const graph::Program& p, const Shape& a, const Shape& b) {
  const auto total = [&](const Shape& s, std::vector<uint32_t>& symbols) {
    int64_t n = 1;
    for (const Dim& d : s) {
      if (!d.symbol) {
        n *= d.value;
        continue;
      }
      const graph::Symbol& sym = p.symbols[d.symbol - 1];
      if (sym.add != 0) {
        symbols.push_back(d.symbol);
        continue;
      }
      n *= sym.scale;
      symbols.push_back(0x10000u + static_cast<uint32_t>(sym.base) * 256 + (sym.cache == kNone ? 0 : sym.cache + 1));
    }
    std::sort(symbols.begin(), symbols.end());
    return n;
  };
  std::vector<uint32_t> x, y;
  return total(a, x) == total(b, y) && x == y;
}

// Strides of `to` over the memory of `from` with `strides`, or false if elements would have to move. As NumPy's reshape
// without a copy: runs of dimensions with equal products match, and inside a run the memory must be dense.
static bool restride(const Shape& from, const std::vector<int64_t>& strides, const Shape& to,
                     std::vector<int64_t>& out) {
  out.assign(to.size(), 0);
  size_t i = 0, j = 0;
  while (i < from.size() && from[i].value == 1 && !from[i].symbol) ++i;
  while (i < from.size() || j < to.size()) {
    while (j < to.size() && to[j].value == 1 && !to[j].symbol) out[j++] = 1;
    if (i >= from.size() || j >= to.size()) break;
    size_t i0 = i, j0 = j;
    int64_t a = from[i++].value, b = to[j++].value;
    while (a != b) {
      if (a < b) {
        if (i >= from.size()) return false;
        a *= from[i++].value;
      } else {
        if (j >= to.size()) return false;
        b *= to[j++].value;
      }
    }
    if (i == i0 + 1 && j == j0 + 1) {
      out[j0] = strides[i0];
      if (strides[i0] == kDense && i0 != j0) return false;
    } else {
      for (size_t k = i0; k < i; ++k)
        if (strides[k] == kDense) return false;
      for (size_t k = i0; k + 1 < i; ++k)
        if (strides[k] != strides[k + 1] * from[k + 1].value) return false;
      int64_t s = strides[i - 1];
      for (size_t k = j; k-- > j0;) {
        out[k] = s;
        s *= to[k].value;
      }
    }
    while (i < from.size() && from[i].value == 1 && !from[i].symbol) ++i;
  }
  while (j < to.size()) out[j++] = 1;
  return true;
}

Builder::Id Builder::reshape(Id id, const Shape& shape, const Expr& at) {
  const Shape from = program_.values[id].shape;
  if (from == shape) return id;
  if (!same_count(program_, from, shape))
    fault(at, fmt::format("a tensor {} cannot take the shape {}", shape_text(from), shape_text(shape)),
          DGPU_STATUS_INVALID_SHAPE);
  std::vector<int64_t> strides;
  if (restride(from, strides_of(id), shape, strides))
    return add_view(id, shape, std::move(strides), 0, program_.values[id].name + ".reshaped");
  const Id copy = contiguous(id, at);
  if (!restride(from, strides_of(copy), shape, strides))
    fault(at, "this reshape is not possible", DGPU_STATUS_INVALID_SHAPE);
  return add_view(copy, shape, std::move(strides), 0, program_.values[id].name + ".reshaped");
}

// A dense copy in row-major order.
Builder::Id Builder::contiguous(Id id, const Expr& at) {
  OpCall call;
  call.op = "cast";
  call.inputs = {{"x", id}};
  call.outputs = {"out"};
  if (value(id).rule == TypeRule::Fixed && value(id).dtype == DGPU_DTYPE_F32) call.keep = "f32";
  const Val v = emit(std::move(call), at);
  return v.get<TensorRef>()->id;
}

}  // namespace dgpu::model
