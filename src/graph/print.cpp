// Text and JSON of a program. Both are stable: the same program gives the same bytes.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

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

// ---- JSON ----------------------------------------------------------------------------------------------------------

namespace {
using nlohmann::ordered_json;

ordered_json shape_json(const Program& p, const Shape& shape) {
  ordered_json out = ordered_json::array();
  for (const Dim& d : shape) {
    if (d.symbol)
      out.push_back(p.symbols[d.symbol - 1].name);
    else
      out.push_back(d.value);
  }
  return out;
}

ordered_json value_json(const Program& p, const Value& v) {
  static const char* const origins[] = {"input", "weight", "state", "constant", "node", "view"};
  ordered_json j = {{"name", v.name},
                    {"origin", origins[static_cast<int>(v.origin)]},
                    {"type", type_text(v)},
                    {"shape", shape_json(p, v.shape)}};
  if (!v.is_view()) return j;
  j["base"] = p.values[v.base].name;
  if (v.effect != kNone)
    j["after"] = p.nodes[v.effect].name;
  else
    j["offset"] = v.offset, j["strides"] = v.strides;
  return j;
}

ordered_json node_json(const Program& p, const Node& n) {
  ordered_json attrs = ordered_json::object(), in = ordered_json::object(), out = ordered_json::object();
  for (const auto& [name, value] : n.attrs) std::visit([&, key = name](const auto& v) { attrs[key] = v; }, value);
  for (const Binding& b : n.inputs) in[b.port] = p.values[b.value].name;
  for (const Binding& b : n.outputs) out[b.port] = p.values[b.value].name;
  return {{"op", n.op},          {"name", n.name}, {"extern", n.is_extern}, {"once", n.once},
          {"attributes", attrs}, {"inputs", in},   {"outputs", out}};
}

ordered_json weight_json(const Program& p, const Weight& w) {
  ordered_json blocks = ordered_json::array();
  for (const Block& b : w.blocks)
    blocks.push_back({{"tensor", p.tensors[b.tensor].name},
                      {"shape", b.shape},
                      {"src_offset", b.src_offset},
                      {"src_strides", b.src_strides},
                      {"dst_offset", b.dst_offset},
                      {"dst_strides", b.dst_strides}});
  return {{"name", w.name}, {"shape", w.shape}, {"tp", w.tp}, {"blocks", blocks}};
}

}  // namespace

std::string to_json(const Program& p) {
  ordered_json j = {{"schema", "dgpu.program/1"},
                    {"family", p.family},
                    {"scope", p.scope},
                    {"layers", p.layers},
                    {"hidden", p.hidden},
                    {"vocab", p.vocab},
                    {"max_positions", p.max_positions}};
  for (const char* key : {"symbols", "values", "inputs", "caches", "states", "tensors", "weights", "nodes", "taps"})
    j[key] = ordered_json::array();
  for (const Symbol& s : p.symbols) j["symbols"].push_back(s.name);
  for (const Value& v : p.values) j["values"].push_back(value_json(p, v));
  for (const Input& i : p.inputs) j["inputs"].push_back({{"kind", name_of(i.kind)}, {"value", p.values[i.value].name}});
  for (const Cache& c : p.caches) j["caches"].push_back({{"name", c.name}, {"cap", c.cap}, {"every", c.every}});
  for (const State& s : p.states)
    j["states"].push_back({{"name", s.name},
                           {"kind", s.kind},
                           {"owner", s.owner},
                           {"entry", s.entry},
                           {"paged", s.cache != kNone},
                           {"rewinds", s.rewinds},
                           {"value", p.values[s.value].name}});
  for (const Tensor& t : p.tensors) j["tensors"].push_back({{"name", t.name}, {"shape", t.shape}});
  for (const Weight& w : p.weights) j["weights"].push_back(weight_json(p, w));
  for (const Node& n : p.nodes) j["nodes"].push_back(node_json(p, n));
  for (const Tap& t : p.taps) j["taps"].push_back({{"name", t.name}, {"value", p.values[t.value].name}});
  j["logits"] = p.logits == kNone ? ordered_json() : ordered_json(p.values[p.logits].name);
  return j.dump(1);
}

}  // namespace dgpu::graph
