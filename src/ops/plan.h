// A plan: how one operator runs on one device. Immutable after creation; executions share it.
#pragma once
#include <string>
#include <vector>

#include "dgpu/op.h"
#include "ops/op.h"
#include "runtime/context.h"
#include "runtime/submission.h"

namespace dgpu::ops {

class Plan final : public Object {
 public:
  static constexpr Kind kKind = Kind::op_plan;
  static constexpr uint32_t kMaxPorts = 128;

  // Validates `spec` and chooses: the backend's own kernel if a claim covers it and the backend takes it; else a
  // decomposition whose parts are all native; else the f64 reference as a host task. `device`: index in the context.
  static Status create(Ref<Context> context, uint32_t device, OpSpec spec, Ref<Plan>& out);
  ~Plan() override;

  Context* context() const { return context_.get(); }
  const OpSpec& spec() const { return spec_; }
  uint32_t mode() const { return mode_; }
  const std::vector<std::string>& ports() const { return ports_; }  // plan order
  uint32_t symbol_count() const { return static_cast<uint32_t>(maxima_.size()); }
  uint64_t workspace_bytes() const { return workspace_bytes_; }
  const std::string& reason() const { return reason_; }
  void info(dgpuPlanInfo& out) const;

  // One execution, see dgpuOpPlanExecute. QUEUE_FULL is a positive status. Allocates nothing unless the mode is
  // reference. `function`: the API function, static storage.
  Status execute(Stream& stream, const char* function, const dgpuAddr_t* addresses, uint32_t address_count,
                 const int64_t* symbols, uint32_t symbol_count, dgpuAddr_t workspace);

  // The same in pieces, for several plans in one submission: begin it with the sums of commands() and
  // argument_bytes(), then add each.
  uint32_t commands() const { return mode_ == DGPU_PLAN_REFERENCE ? 1 : static_cast<uint32_t>(steps_.size()); }
  size_t argument_bytes() const { return argument_bytes_; }
  Status add(Submission& submission, const dgpuAddr_t* addresses, uint32_t address_count, const int64_t* symbols,
             uint32_t symbol_count, dgpuAddr_t workspace);
  // All checks of an execution but those of the addresses' memory.
  Status check(const dgpuAddr_t* addresses, uint32_t address_count, const int64_t* symbols, uint32_t symbol_count,
               dgpuAddr_t workspace) const;

 private:
  friend class PlanBuilder;
  struct PortValue {
    uint32_t index;  // outer port, or temporary
    bool temporary;
    uint64_t offset;  // bytes
  };
  struct NativeStep {
    OpSpec spec;
    std::vector<std::string> order;
    std::vector<const char*> names;
    std::vector<const dgpuTensorDesc*> descs;
    std::vector<PortValue> values;
    dgpuBackendPlan* plan = nullptr;
    uint64_t workspace_bytes = 0;
  };
  struct HostCall;  // one execution of the reference

  Plan(Ref<Context> context, uint32_t device, OpSpec spec);
  Status check_symbols(const int64_t* symbols, uint32_t count) const;
  Status check_ports(const dgpuAddr_t* addresses, const int64_t* symbols) const;
  Status check_aliases(const dgpuAddr_t* addresses, const uint64_t* bytes, const int64_t* symbols) const;
  Status add_step(Submission& submission, const NativeStep& step, const dgpuAddr_t* addresses, const int64_t* symbols,
                  dgpuAddr_t workspace);
  Status add_reference(Submission& submission, const dgpuAddr_t* addresses, const int64_t* symbols);
  bool may_alias(uint32_t output, uint32_t other) const { return alias_[output * ports_.size() + other]; }

  const Ref<Context> context_;
  const uint32_t device_;
  const OpSpec spec_;
  const Schema* const schema_;
  std::vector<std::string> ports_;
  std::vector<const dgpuTensorDesc*> descs_;  // by port
  std::vector<uint32_t> directions_;
  std::vector<bool> alias_;      // output x port: may be the same memory
  std::vector<int64_t> maxima_;  // by symbol id - 1
  uint32_t mode_ = DGPU_PLAN_REFERENCE;
  std::string algorithm_, reason_;
  bool deterministic_ = true;
  std::vector<NativeStep> steps_;
  std::vector<uint64_t> temporaries_;  // offsets in the workspace
  uint64_t step_workspace_ = 0;        // offset of the steps' own workspace
  uint64_t workspace_bytes_ = 0;
  size_t argument_bytes_ = 0;
};

}  // namespace dgpu::ops
