#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/dtype.h"
#include "dgpu/op.h"
#include "graph/passes/passes.h"
#include "model/batch.h"
#include "model/day0/overview.h"
#include "model/weights.h"
#include "ops/plan.h"

namespace dgpu::model {
namespace {

// Nodes that are planned alike: same operator, attributes, shapes and types.
struct Row {
  std::string op, example, types, mode, algorithm, reason;
  uint64_t count = 0;
};

class Coverage {
 public:
  Coverage(const Model& model, Ref<Context> context, uint32_t device, dgpuDtype_t dtype)
      : model_(model), context_(std::move(context)), device_(device), dtype_(dtype), program_(model.program()) {}

  Status run(Document& out) {
    DGPU_TRY(graph::fuse(program_, {}));
    stored_ = model_.has_checkpoint() && check_tensors(program_, model_.checkpoint()) >= 0;
    typical_extents();
    for (const graph::Node& n : program_.nodes) DGPU_TRY(node(n));
    report(out);
    return DGPU_STATUS_SUCCESS;
  }

 private:
  // A step of eight sequences with 512 tokens and 4096 cached ones: plans depend on the sizes only by degree.
  void typical_extents() {
    constexpr int64_t kSequences = 8, kTokens = 512, kCached = 4096;
    x_.tokens = kTokens, x_.sequences = kSequences, x_.logit_rows = kSequences, x_.slots = kSequences;
    for (const graph::Cache& c : program_.caches) {
      x_.pages.push_back(kSequences);
      x_.page_size.push_back(cache_places(c, kCached, kTokens));
      x_.table_width.push_back(1);
    }
  }
  dgpuTensorDesc describe(graph::Id id) const {
    const graph::Value& root = program_.values[program_.root(id)];
    const bool is_weight = root.origin == graph::Origin::Weight;
    dgpuDtype_t weight = program_.checkpoint_dtype ? program_.checkpoint_dtype : dtype_;
    if (is_weight && stored_) weight = weight_dtype(program_, model_.checkpoint(), program_.weights[root.index]);
    dgpuTensorDesc d = graph::describe(program_, id, x_, dtype_, weight);
    if (is_weight && stored_) d.dtype = weight;
    return d;
  }

  Status node(const graph::Node& n) {
    ops::OpSpec spec;
    spec.name = n.op, spec.attrs = n.attrs;
    std::string key = n.op, types;
    for (const auto& [name, v] : n.attrs)
      key += fmt::format(" {}#{}", name, std::visit([](const auto& a) { return text(a); }, v));
    for (const auto* list : {&n.inputs, &n.outputs})
      for (const graph::Binding& b : *list) {
        const dgpuTensorDesc d = describe(b.value);
        spec.ports[b.port] = d;
        key += fmt::format(" {}:{}", b.port, dtype_name(d.dtype));
        for (uint32_t i = 0; i < d.rank; ++i) key += fmt::format(",{}/{}", d.shape[i], d.strides[i]);
        const std::string type = dtype_name(d.dtype);
        if (types.find(type) == std::string::npos) types += (types.empty() ? "" : " ") + type;
      }
    Row& row = rows_[key];
    if (row.count++) return DGPU_STATUS_SUCCESS;
    order_.push_back(&row);
    row.op = n.op, row.example = n.name, row.types = types;
    return plan(n, std::move(spec), row);
  }
  static std::string text(const std::string& s) { return s; }
  template <typename T>
  static std::string text(const std::vector<T>& list) {
    std::string out;
    for (const T& v : list) out += fmt::format("{},", v);
    return out;
  }
  template <typename T>
  static std::string text(const T& v) {
    return fmt::format("{}", v);
  }

  Status plan(const graph::Node& n, ops::OpSpec spec, Row& row) {
    if (n.is_extern || !ops::find(n.op)) {
      row.mode = "missing", row.reason = "declared extern by the template: this library has no such operator";
      return DGPU_STATUS_SUCCESS;
    }
    Ref<ops::Plan> made;
    const Status status = ops::Plan::create(context_, device_, std::move(spec), made);
    if (status == DGPU_STATUS_UNSUPPORTED) {
      row.mode = "missing", row.reason = last_error().message;
      return DGPU_STATUS_SUCCESS;
    }
    DGPU_TRY(status);
    dgpuPlanInfo info = DGPU_PLAN_INFO_INIT;
    made->info(info);
    row.mode = info.mode == DGPU_PLAN_NATIVE ? "native" : info.mode == DGPU_PLAN_COMPOSED ? "composed" : "reference";
    row.algorithm = info.algorithm, row.reason = info.reason;
    return DGPU_STATUS_SUCCESS;
  }

  void report(Document& out) {
    JsonDoc& j = out.json = new_document("coverage");
    j["family"] = program_.family;
    j["dtype"] = dtype_name(dtype_);
    std::map<std::string, uint64_t> totals = {{"native", 0}, {"composed", 0}, {"reference", 0}, {"missing", 0}};
    JsonDoc rows = JsonDoc::array(), findings = JsonDoc::array();
    for (const Row* r : order_) {
      totals[r->mode] += r->count;
      rows.push_back({{"operator", r->op},
                      {"count", r->count},
                      {"mode", r->mode},
                      {"types", r->types},
                      {"algorithm", r->algorithm},
                      {"reason", r->reason},
                      {"first", r->example}});
      if (r->mode == "missing")
        findings.push_back(
            fmt::format("{} is missing ({} uses, first {}): {}", r->op, r->count, r->example, r->reason));
    }
    for (const char* mode : {"native", "composed", "reference", "missing"}) j[mode] = totals[mode];
    j["operators"] = std::move(rows);
    j["findings"] = std::move(findings);
    out.good = totals["missing"] == 0;
    finish(out);
  }

  const Model& model_;
  Ref<Context> context_;
  const uint32_t device_;
  const dgpuDtype_t dtype_;
  graph::Program program_;
  graph::Extents x_;
  bool stored_ = false;  // weights have the types of the checkpoint
  std::map<std::string, Row> rows_;
  std::vector<const Row*> order_;
};

}  // namespace

Status coverage(const Model& model, Ref<Context> context, uint32_t device, dgpuDtype_t dtype, Document& out) {
  return Coverage(model, std::move(context), device, dtype).run(out);
}

}  // namespace dgpu::model
