#include <algorithm>
#include <map>

#include "base/dtype.h"
#include "model/day0/overview.h"

namespace dgpu::model {
namespace {

// Bytes that the checkpoint has, or will have: tensors that the family keeps in a type of their own in that type.
uint64_t expected_bytes(const graph::Program& p, dgpuDtype_t stored) {
  uint64_t bytes = 0;
  for (const graph::Tensor& t : p.tensors)
    bytes += static_cast<uint64_t>(graph::element_count(t.shape)) * dtype_bits(t.kept ? t.kept : stored) / 8;
  return bytes;
}

JsonDoc operators(const graph::Program& p) {
  std::map<std::pair<std::string, bool>, uint64_t> counts;
  for (const graph::Node& n : p.nodes) ++counts[{n.op, n.is_extern}];
  JsonDoc out = JsonDoc::array();
  for (const auto& [key, count] : counts)
    out.push_back({{"operator", key.first}, {"count", count}, {"known", !key.second}});
  return out;
}

JsonDoc state_rows(const std::vector<StateSize>& states) {
  JsonDoc out = JsonDoc::array();
  for (const StateSize& s : states) {
    JsonDoc cap;
    if (s.cap > 0) cap = s.cap;
    out.push_back({{"kind", s.kind},
                   {"count", s.count},
                   {"fixed_bytes", s.fixed_bytes},
                   {"bytes_per_token", s.token_bytes},
                   {"cap", cap}});
  }
  return out;
}

}  // namespace

Status inspect(const Model& model, Document& out) {
  const graph::Program& p = model.program();
  const dgpuDtype_t stored = p.checkpoint_dtype ? p.checkpoint_dtype : dgpuDtype_t{DGPU_DTYPE_BF16};
  JsonDoc& j = out.json = new_document("inspect");
  j["family"] = p.family;
  j["template"] = model.template_file();
  j["layers"] = p.layers;
  j["hidden_size"] = p.hidden;
  j["vocab_size"] = p.vocab;
  j["max_positions"] = p.max_positions ? JsonDoc(p.max_positions) : JsonDoc();
  j["scope"] = p.scope;
  j["parameters"] = model.parameters();
  j["parameters_per_token"] = model.active_parameters();
  j["tensors"] = p.tensors.size();
  j["stored_dtype"] = dtype_name(stored);
  j["weight_bytes"] = model.has_checkpoint() ? model.weight_bytes() : expected_bytes(p, stored);
  j["weights"] = model.has_checkpoint() ? "from the checkpoint's headers" : "estimated from the config alone";
  j["nodes"] = p.nodes.size();
  j["taps"] = p.taps.size();
  j["operators"] = operators(p);
  j["state_dtype"] = dtype_name(stored);
  const auto states = model.states(stored);
  if (std::any_of(states.begin(), states.end(), [](const StateSize& s) { return s.cap > 0; }))
    j["state_cap"] = "the window of the layers; a session keeps it and its largest step";
  j["states"] = state_rows(states);
  j["limits"] = JsonDoc::array();
  for (const graph::Limit& l : p.limits) j["limits"].push_back({{"key", l.key}, {"value", l.value}});
  j["skipped_weights"] = JsonDoc::array();
  for (const graph::SkippedTensor& s : p.skipped)
    j["skipped_weights"].push_back({{"pattern", s.pattern}, {"reason", s.reason}});
  finish(out);
  return DGPU_STATUS_SUCCESS;
}

}  // namespace dgpu::model
