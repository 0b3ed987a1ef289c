#include "model/model.h"

#include <algorithm>

#include "base/dtype.h"
#include "model/builder.h"

namespace dgpu::model {

Status Model::from_config(const JsonNode& config, const std::string& file, const std::string& template_path,
                          std::shared_ptr<const Model>& out) {
  TemplateSet set;
  DGPU_TRY(set.load(template_path));
  const TemplateFile* found = nullptr;
  DGPU_TRY(set.match(config, file, found));
  std::unique_ptr<Template> parsed;
  DGPU_TRY(parse_template(set, *found, parsed));
  auto model = std::make_shared<Model>();
  DGPU_TRY(build_program(*parsed, config, file, model->program_));
  model->config_ = config;
  model->template_file_ = found->file;
  out = std::move(model);
  return DGPU_STATUS_SUCCESS;
}

Status Model::open(const std::string& directory, const std::string& template_path, bool config_only,
                   std::shared_ptr<const Model>& out) {
  JsonNode config;
  const std::string file = directory + "/config.json";
  DGPU_TRY(read_json(file, config));
  std::shared_ptr<const Model> built;
  DGPU_TRY(from_config(config, file, template_path, built));
  auto model = std::const_pointer_cast<Model>(built);
  model->directory_ = directory;
  if (!config_only || Checkpoint::exists(directory)) {
    DGPU_TRY(Checkpoint::open(directory, model->checkpoint_));
    model->has_checkpoint_ = true;
  }
  out = std::move(model);
  return DGPU_STATUS_SUCCESS;
}

uint64_t Model::parameters() const {
  uint64_t total = 0;
  for (const graph::Tensor& t : program_.tensors) total += static_cast<uint64_t>(graph::element_count(t.shape));
  return total;
}

// Experts count with the share of them that one token visits.
uint64_t Model::active_parameters() const {
  std::vector<double> share(program_.tensors.size(), 1.0);
  for (const graph::Node& n : program_.nodes) {
    if (n.op != "moe_experts") continue;
    const graph::Id indices = n.input("indices");
    for (const graph::Binding& b : n.inputs) {
      const graph::Value& v = program_.values[b.value];
      if (v.origin != graph::Origin::Weight || v.shape.empty()) continue;
      const double k = static_cast<double>(program_.values[indices].shape.back().value);
      for (const graph::Block& block : program_.weights[v.index].blocks)
        share[block.tensor] = std::min(1.0, k / static_cast<double>(v.shape[0].value));
    }
  }
  double total = 0;
  for (size_t i = 0; i < share.size(); ++i)
    total += share[i] * static_cast<double>(graph::element_count(program_.tensors[i].shape));
  return static_cast<uint64_t>(total + 0.5);
}

uint64_t Model::weight_bytes() const { return has_checkpoint_ ? checkpoint_.bytes() : 0; }

std::vector<StateSize> Model::states(dgpuDtype_t activation) const {
  std::vector<StateSize> out;
  for (const graph::State& s : program_.states) {
    const graph::Cache* cache = s.cache == graph::kNone ? nullptr : &program_.caches[s.cache];
    const int64_t cap = cache && cache->ring() ? cache->cap : 0;
    auto it =
        std::find_if(out.begin(), out.end(), [&](const StateSize& x) { return x.kind == s.kind && x.cap == cap; });
    if (it == out.end()) it = out.insert(out.end(), {s.kind, 0, 0, 0, cap});
    const dgpuDtype_t dtype = s.rule == graph::TypeRule::Fixed ? s.dtype : activation;
    const uint64_t bytes = static_cast<uint64_t>(graph::element_count(s.entry)) * dtype_bits(dtype) / 8;
    ++it->count;
    if (cache)
      it->token_bytes += (bytes + static_cast<uint64_t>(cache->every) - 1) / static_cast<uint64_t>(cache->every);
    else
      it->fixed_bytes += bytes;
  }
  return out;
}

}  // namespace dgpu::model
