// Text of a program. It is stable: the same program gives the same bytes.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "graph/program.h"

namespace dgpu::graph {
namespace {

const char* dtype_text(dgpuDtype_t dtype) {
  switch (dtype) {
#define DGPU_ROW(name, value, bits, text) \
  case value:                             \
    return text;
    DGPU_DTYPE_LIST(DGPU_ROW)
#undef DGPU_ROW
    default:
      return "none";
  }
}

std::string type_text(const Value& v) {
  if (v.rule == TypeRule::Activation) return "act";
  if (v.rule == TypeRule::Checkpoint) return "wgt";
  return dtype_text(v.dtype);
}

std::string shape_text(const Program& p, const Shape& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i) out += ",";
    out += shape[i].symbol ? p.symbols[shape[i].symbol - 1].name : fmt::format("{}", shape[i].value);
  }
  return out + "]";
}

std::string attr_text(const ops::AttrValue& value) {
  return std::visit(
      [](const auto& v) -> std::string {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::string>)
          return "'" + v + "'";
        else if constexpr (std::is_same_v<T, std::vector<int64_t>> || std::is_same_v<T, std::vector<double>>)
          return fmt::format("[{}]", fmt::join(v, ","));
        else
          return fmt::format("{}", v);
      },
      value);
}

std::string value_text(const Program& p, Id id) {
  const Value& v = p.values[id];
  return fmt::format("%{}:{}{}", v.name, type_text(v), shape_text(p, v.shape));
}

std::string view_text(const Program& p, const Value& v) {
  if (v.effect != kNone) return fmt::format("%{} after {}", p.values[v.base].name, p.nodes[v.effect].name);
  return fmt::format("%{} offset {} strides [{}]", p.values[v.base].name, v.offset, fmt::join(v.strides, ","));
}

void print_weights(const Program& p, std::string& out) {
  for (const Weight& w : p.weights) {
    out += fmt::format("weight {} {} [{}]", value_text(p, w.value), w.cls == TensorClass::Float ? "float" : "integer",
                       fmt::join(w.shape, ","));
    if (!w.tp.empty()) out += " tp=" + w.tp;
    out += "\n";
    for (const Block& b : w.blocks)
      out += fmt::format("  from {} shape [{}] at {} strides [{}] to {} strides [{}]\n", p.tensors[b.tensor].name,
                         fmt::join(b.shape, ","), b.src_offset, fmt::join(b.src_strides, ","), b.dst_offset,
                         fmt::join(b.dst_strides, ","));
  }
}

void print_nodes(const Program& p, std::string& out) {
  for (const Node& n : p.nodes) {
    out += fmt::format("{} {} \"{}\"", n.is_extern ? "extern" : "node", n.op, n.name);
    for (const auto& [name, value] : n.attrs) out += fmt::format(" {}={}", name, attr_text(value));
    for (const Binding& b : n.inputs) out += fmt::format(" {}=%{}", b.port, p.values[b.value].name);
    out += " ->";
    for (const Binding& b : n.outputs) out += fmt::format(" {}={}", b.port, value_text(p, b.value));
    out += n.once ? " once\n" : "\n";
  }
}

}  // namespace

std::string to_text(const Program& p) {
  std::string out =
      fmt::format("program {} scope {} layers {} hidden {} vocab {} max_positions {} stored {}\n", p.family, p.scope,
                  p.layers, p.hidden, p.vocab, p.max_positions, dtype_text(p.checkpoint_dtype));
  for (const Limit& l : p.limits) out += fmt::format("limit {} = {} ({})\n", l.key, l.value, l.role);
  for (size_t i = 0; i < p.symbols.size(); ++i) out += fmt::format("symbol {} {}\n", i + 1, p.symbols[i].name);
  for (const Input& in : p.inputs) out += fmt::format("input {} {}\n", name_of(in.kind), value_text(p, in.value));
  for (const Cache& c : p.caches) out += fmt::format("cache {} cap {} every {}\n", c.name, c.cap, c.every);
  for (const State& s : p.states)
    out += fmt::format("state {} kind {} cache {} rewinds {}\n", value_text(p, s.value), s.kind,
                       s.cache == kNone ? std::string("none") : p.caches[s.cache].name, s.rewinds);
  for (const Tensor& t : p.tensors)
    out += fmt::format("tensor {} [{}] {}\n", t.name, fmt::join(t.shape, ","),
                       t.kept                        ? dtype_text(t.kept)
                       : t.cls == TensorClass::Float ? "float"
                                                     : "integer");
  print_weights(p, out);
  for (const Constant& c : p.constants)
    out += fmt::format("constant {} = [{}]\n", value_text(p, c.value), fmt::join(c.data, ","));
  for (Id i = 0; i < p.values.size(); ++i)
    if (p.values[i].is_view()) out += fmt::format("view {} = {}\n", value_text(p, i), view_text(p, p.values[i]));
  print_nodes(p, out);
  for (const Tap& t : p.taps) out += fmt::format("tap {} = %{}\n", t.name, p.values[t.value].name);
  for (const SkippedTensor& s : p.skipped) out += fmt::format("skip {}: {}\n", s.pattern, s.reason);
  if (p.logits != kNone) out += fmt::format("logits %{}\n", p.values[p.logits].name);
  return out;
}

}  // namespace dgpu::graph
