// Views that dataflow can ask for.
#include <algorithm>

#include "model/builder.h"
#include "model/flow_args.h"

namespace dgpu::model {

using graph::Dim;
using graph::kDense;
using graph::Shape;

static int64_t fixed(const Dim& d, const Expr& at) {
  if (d.symbol) fault(at, "this axis must have a fixed extent");
  return d.value;
}
static Val ref(uint32_t id) { return Val(TensorRef{id}); }

// [.., n * d] -> [.., n, d]
Val Builder::view_heads(const Args& args, const Expr& at) {
  static const std::string fn = "heads";
  const FlowArgs a(args, {"x", "count"}, at, fn);
  const Id x = tensor(a.need("x"), at, "x");
  const int64_t n = a.integer("count");
  Shape shape = value(x).shape;
  if (shape.empty() || n < 1 || fixed(shape.back(), at) % n)
    fault(at, fmt::format("heads: {} does not divide into {}", shape_text(shape), n));
  const int64_t d = shape.back().value / n;
  shape.back() = {n, 0};
  shape.push_back({d, 0});
  return ref(reshape(x, shape, at));
}

// [.., n, d] -> [.., n * d]
Val Builder::view_merge(const Args& args, const Expr& at) {
  static const std::string fn = "merge";
  const Id x = tensor(FlowArgs(args, {"x"}, at, fn).need("x"), at, "x");
  Shape shape = value(x).shape;
  if (shape.size() < 2) fault(at, "merge needs two extents");
  const int64_t d = fixed(shape.back(), at);
  shape.pop_back();
  shape.back() = {fixed(shape.back(), at) * d, 0};
  return ref(reshape(x, shape, at));
}

Val Builder::view_reshape(const Args& args, const Expr& at) {
  static const std::string fn = "reshape";
  const FlowArgs a(args, {"x", "shape"}, at, fn);
  return ref(reshape(tensor(a.need("x"), at, "x"), shape_of(a.need("shape"), at), at));
}

Val Builder::view_split(const Args& args, const Expr& at) {
  static const std::string fn = "split";
  const FlowArgs a(args, {"x", "sizes", "axis"}, at, fn);
  const Id x = tensor(a.need("x"), at, "x");
  const int64_t axis =
      a.find("axis") ? axis_of(x, *a.find("axis"), at) : static_cast<int64_t>(value(x).shape.size()) - 1;
  if (axis < 0 || !a.need("sizes").list()) fault(at, "split takes a tensor and a list of sizes");
  const int64_t whole = fixed(value(x).shape[axis], at);
  const auto wrong = [&] {
    fault(at, fmt::format("split: sizes {} of an extent of {}", text_of(a.need("sizes")), whole));
  };
  int64_t from = 0;
  List out;
  for (const Val& size : *a.need("sizes").list()) {
    const int64_t n = size.get<int64_t>() ? *size.get<int64_t>() : -1;
    if (n < 0 || n > whole - from) wrong();
    out.push_back(ref(slice(x, axis, from, from + n, 1, at)));
    from += n;
  }
  if (from != whole) wrong();
  return Val(std::move(out));
}

Val Builder::view_part(const Args& args, const Expr& at) {
  static const std::string fn = "part";
  const FlowArgs a(args, {"x", "axis", "from", "to", "step"}, at, fn);
  const Id x = tensor(a.need("x"), at, "x");
  return ref(slice(x, axis_of(x, a.need("axis"), at), a.integer("from"), a.integer("to"), a.integer("step", 1), at));
}

// One index of an axis, which goes away.
Val Builder::view_pick(const Args& args, const Expr& at) {
  static const std::string fn = "pick";
  const FlowArgs a(args, {"x", "axis", "index"}, at, fn);
  const Id x = tensor(a.need("x"), at, "x");
  const int64_t axis = axis_of(x, a.need("axis"), at), index = a.integer("index");
  const Id one = slice(x, axis, index, index < INT64_MAX ? index + 1 : index, 1, at);
  Shape shape = value(one).shape;
  std::vector<int64_t> strides = strides_of(one);
  shape.erase(shape.begin() + axis), strides.erase(strides.begin() + axis);
  for (size_t k = static_cast<size_t>(axis); k < strides.size(); ++k)
    if (strides[k] == kDense) fault(at, "pick: a cache's pages stay in front");
  const std::string name = value(one).name;
  return ref(add_view(one, std::move(shape), std::move(strides), 0, name));
}

Val Builder::view_permute(const Args& args, const Expr& at) {
  static const std::string fn = "permute";
  const FlowArgs a(args, {"x", "order"}, at, fn);
  const Id x = tensor(a.need("x"), at, "x");
  std::vector<int64_t> order;
  if (!a.need("order").list()) fault(at, "permute takes a tensor and a list of axes");
  for (const Val& o : *a.need("order").list()) order.push_back(axis_of(x, o, at));
  return ref(permute(x, order, at));
}

// A new axis of `count` equal parts.
Val Builder::view_expand(const Args& args, const Expr& at) {
  static const std::string fn = "expand";
  const FlowArgs a(args, {"x", "axis", "count"}, at, fn);
  const Id x = tensor(a.need("x"), at, "x");
  const int64_t axis = a.integer("axis"), n = a.integer("count");
  Shape shape = value(x).shape;
  std::vector<int64_t> strides = strides_of(x);
  if (axis < 0 || axis > static_cast<int64_t>(shape.size()) || shape.size() >= DGPU_MAX_RANK || n < 1 || n > (1 << 24))
    fault(at, "expand: axis or count out of range");
  for (size_t k = static_cast<size_t>(axis); k < strides.size(); ++k)
    if (strides[k] == kDense) fault(at, "expand: a cache's pages stay in front");
  shape.insert(shape.begin() + axis, {n, 0}), strides.insert(strides.begin() + axis, 0);
  const std::string name = value(x).name + ".expanded";
  return ref(add_view(x, std::move(shape), std::move(strides), 0, name));
}

Val Builder::dense_copy(const Args& args, const Expr& at) {
  static const std::string fn = "contiguous";
  return ref(contiguous(tensor(FlowArgs(args, {"x"}, at, fn).need("x"), at, "x"), at));
}

}  // namespace dgpu::model
