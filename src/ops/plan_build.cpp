// Choosing how an operator runs.
#include <algorithm>

#include "backend/registry.h"
#include "base/struct.h"
#include "ops/backend_op.h"
#include "ops/claims.h"
#include "ops/decompose.h"
#include "ops/extents.h"
#include "ops/plan.h"
#include "ops/schema.h"

namespace dgpu::ops {

class PlanBuilder {
 public:
  explicit PlanBuilder(Plan& plan)
      : plan_(plan), device_(plan.context_->device(plan.device_)), symbols_(ops::symbol_count(plan.spec_)) {}

  Status build() {
    DGPU_TRY(describe_ports());
    bool done = false;
    DGPU_TRY(try_native(done));
    if (!done) DGPU_TRY(try_composed(done));
    if (done) {
      place_workspace();
      return DGPU_STATUS_SUCCESS;
    }
    plan_.mode_ = DGPU_PLAN_REFERENCE;
    plan_.algorithm_ = "f64 reference on the host";
    return DGPU_STATUS_SUCCESS;
  }

 private:
  static constexpr uint64_t kAlignment = 256;

  Status describe_ports() {
    auto& p = plan_;
    p.ports_ = port_order(p.spec_);
    if (p.ports_.size() > Plan::kMaxPorts)
      return fail(DGPU_STATUS_INVALID_ARGUMENT, p.spec_.name, "{}: expected at most {} bound ports, got {}",
                  p.spec_.name, Plan::kMaxPorts, p.ports_.size());
    p.maxima_.assign(symbols_, std::numeric_limits<int64_t>::max());
    for (const auto& port : p.ports_) {
      const auto& d = desc(p.spec_, port);
      p.descs_.push_back(&d);
      p.directions_.push_back(port_schema(*p.schema_, port)->direction);
      for (uint32_t i = 0; i < d.rank; ++i)
        if (d.symbols[i]) p.maxima_[d.symbols[i] - 1] = d.shape[i];
    }
    const size_t n = p.ports_.size();
    p.alias_.assign(n * n, false);
    for (const auto& [out, in] : p.schema_->aliases)
      for (size_t i = 0; i < n; ++i)
        for (size_t j = 0; j < n; ++j)
          if (p.ports_[i] == out && p.ports_[j] == in && same_layout(*p.descs_[i], *p.descs_[j]))
            p.alias_[i * n + j] = p.alias_[j * n + i] = true;
    return DGPU_STATUS_SUCCESS;
  }

  // Asks the backend for a plan of `spec`. Null with a reason if it does not take it.
  Status ask(const OpSpec& spec, const std::vector<std::string>& order, dgpuBackendPlanInfo& info,
             dgpuBackendPlan*& plan, std::string& reason) {
    plan = nullptr;
    if (!device_.has_ops()) {
      reason = "the backend has no operators";
      return DGPU_STATUS_SUCCESS;
    }
    if (!match_claim(device_.backend().claims(), spec, reason)) return DGPU_STATUS_SUCCESS;
    const BackendOp op(spec, order, symbols_);
    info = DGPU_BACKEND_PLAN_INFO_INIT;
    const Status status = device_.op().plan(device_.opened(), op.get(), &info, &plan);
    if (status == DGPU_STATUS_UNSUPPORTED || status == DGPU_STATUS_NOT_FOUND) {
      plan = nullptr;
      info.reason[sizeof info.reason - 1] = 0;
      reason = info.reason[0] ? info.reason : last_error().message;
      if (reason.empty()) reason = "the backend refused without a reason";
      return DGPU_STATUS_SUCCESS;
    }
    if (status == DGPU_STATUS_SUCCESS && plan) return status;
    plan = nullptr;
    return status < 0 ? status
                      : fail(DGPU_STATUS_INTERNAL, spec.name, "backend {} gave no plan for {} and no error",
                             device_.backend().name(), spec.name);
  }

  void append(Plan::NativeStep step, const dgpuBackendPlanInfo& info) {
    auto& p = plan_;
    for (const auto& port : step.order) step.names.push_back(step.spec.ports.find(port)->first.c_str());
    for (const auto& port : step.order) step.descs.push_back(&step.spec.ports.find(port)->second);
    step.workspace_bytes = info.workspace_bytes;
    p.argument_bytes_ += Submission::op_bytes(static_cast<uint32_t>(step.order.size()), symbols_);
    p.deterministic_ = p.deterministic_ && info.deterministic;
    p.steps_.push_back(std::move(step));
  }

  Status try_native(bool& done) {
    dgpuBackendPlanInfo info = DGPU_BACKEND_PLAN_INFO_INIT;
    Plan::NativeStep step;
    step.spec = plan_.spec_;
    step.order = plan_.ports_;
    DGPU_TRY(ask(step.spec, step.order, info, step.plan, plan_.reason_));
    if (!step.plan) return DGPU_STATUS_SUCCESS;
    for (uint32_t i = 0; i < step.order.size(); ++i) step.values.push_back({i, false, 0});
    append(std::move(step), info);
    info.algorithm[sizeof info.algorithm - 1] = 0;
    plan_.algorithm_ = info.algorithm;
    plan_.mode_ = DGPU_PLAN_NATIVE;
    plan_.reason_.clear();
    done = true;
    return DGPU_STATUS_SUCCESS;
  }

  // A tensor of a decomposition: outer port or temporary of the plan, with the bytes to add.
  using Scope = std::map<std::string, Plan::PortValue, std::less<>>;

  Status try_composed(bool& done) {
    Scope scope;
    for (uint32_t i = 0; i < plan_.ports_.size(); ++i) scope[plan_.ports_[i]] = {i, false, 0};
    std::string reason;
    DGPU_TRY(compose(plan_.spec_, scope, 0, done, reason));
    if (done) {
      plan_.mode_ = DGPU_PLAN_COMPOSED;
      for (const auto& step : plan_.steps_)
        plan_.algorithm_ += (plan_.algorithm_.empty() ? "" : " + ") + step.spec.name;
      return DGPU_STATUS_SUCCESS;
    }
    drop_steps();
    if (!reason.empty()) plan_.reason_ += "; not composed: " + reason;
    return DGPU_STATUS_SUCCESS;
  }

  Status compose(const OpSpec& spec, const Scope& outer, int depth, bool& done, std::string& reason) {
    constexpr int kDepth = 8;
    Decomposition parts;
    done = false;
    if (depth == kDepth || !decompose(spec, parts)) return DGPU_STATUS_SUCCESS;
    Scope scope = outer;
    for (size_t i = 0; i < parts.temporaries.size(); ++i)
      scope["%" + std::to_string(i)] = add_temporary(parts.temporaries[i]);
    for (auto& part : parts.steps) {
      Scope inner;
      for (const auto& [port, value] : part.values) {
        Plan::PortValue v = scope.find(value.tensor)->second;
        v.offset += static_cast<uint64_t>(value.offset) * dtype_bits(part.spec.ports.find(port)->second.dtype) / 8;
        inner[port] = v;
      }
      DGPU_TRY(add_part(std::move(part.spec), inner, depth, done, reason));
      if (!done) return DGPU_STATUS_SUCCESS;
    }
    return DGPU_STATUS_SUCCESS;
  }

  Status add_part(OpSpec spec, const Scope& values, int depth, bool& done, std::string& reason) {
    dgpuBackendPlanInfo info = DGPU_BACKEND_PLAN_INFO_INIT;
    Plan::NativeStep step;
    step.spec = std::move(spec);
    step.order = port_order(step.spec);
    std::string why;
    DGPU_TRY(ask(step.spec, step.order, info, step.plan, why));
    if (!step.plan) {
      DGPU_TRY(compose(step.spec, values, depth + 1, done, reason));
      if (!done && reason.empty()) reason = step.spec.name + ": " + why;
      return DGPU_STATUS_SUCCESS;
    }
    for (const auto& port : step.order) step.values.push_back(values.find(port)->second);
    append(std::move(step), info);
    done = true;
    return DGPU_STATUS_SUCCESS;
  }

  Plan::PortValue add_temporary(const dgpuTensorDesc& d) {
    int64_t count = 1;
    for (uint32_t i = 0; i < d.rank; ++i) count *= d.shape[i];
    const uint64_t bytes = static_cast<uint64_t>(count) * dtype_bits(d.dtype) / 8;
    plan_.temporaries_.push_back(temporary_bytes_);
    temporary_bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return {static_cast<uint32_t>(plan_.temporaries_.size() - 1), true, 0};
  }

  void drop_steps() {
    for (auto& step : plan_.steps_) device_.op().plan_destroy(step.plan);
    plan_.steps_.clear();
    plan_.temporaries_.clear();
    plan_.argument_bytes_ = 0;
    plan_.deterministic_ = true;
  }

  // Temporaries first, then one workspace that the steps share: they run one after the other.
  void place_workspace() {
    uint64_t most = 0;
    for (const auto& step : plan_.steps_) most = std::max(most, step.workspace_bytes);
    plan_.step_workspace_ = temporary_bytes_;
    plan_.workspace_bytes_ = temporary_bytes_ + most;
  }

  Plan& plan_;
  backend::Device& device_;
  const uint32_t symbols_;
  uint64_t temporary_bytes_ = 0;
};

Plan::Plan(Ref<Context> context, uint32_t device, OpSpec spec)
    : Object(Kind::op_plan),
      context_(std::move(context)),
      device_(device),
      spec_(std::move(spec)),
      schema_(find(spec_.name)) {}

Plan::~Plan() {
  for (auto& step : steps_) context_->device(device_).op().plan_destroy(step.plan);
}

Status Plan::create(Ref<Context> context, uint32_t device, OpSpec spec, Ref<Plan>& out) {
  DGPU_TRY(validate(spec));
  DGPU_TRY(context->device(device).check_usable());
  const dgpuErrorInfo before = last_error();
  auto plan = Ref<Plan>::adopt(new Plan(std::move(context), device, std::move(spec)));
  DGPU_TRY(PlanBuilder(*plan).build());
  last_error() = before;  // what was tried on the way is no failure of this call
  out = std::move(plan);
  return DGPU_STATUS_SUCCESS;
}

void Plan::info(dgpuPlanInfo& out) const {
  out = DGPU_PLAN_INFO_INIT;
  out.mode = mode_;
  out.port_count = static_cast<uint32_t>(ports_.size());
  out.symbol_count = symbol_count();
  out.deterministic = deterministic_;
  out.workspace_bytes = workspace_bytes_;
  copy_text(out.algorithm, algorithm_);
  copy_text(out.reason, reason_);
}

}  // namespace dgpu::ops
