// Claims and plans: from the list of kernels.
#include <exception>
#include <new>

#include "backends/cpu/device.h"
#include "backends/cpu/kernels.h"
#include "backends/kit/abi.h"

namespace dgpu::cpu {
namespace {

// The first kernel of the operator that accepts the description; otherwise null with the reasons of all that refused.
std::unique_ptr<Kernel> find_kernel(const kit::OpView& op, std::string* reason) {
  for (uint32_t i = 0; const KernelEntry* entry = kernel_entry(i); ++i) {
    if (op.name() != entry->op) continue;
    std::string why;
    if (auto kernel = entry->make(op, &why)) return kernel;
    if (!reason->empty()) *reason += "; ";
    *reason += why.empty() ? "refused without a reason" : why;
  }
  if (reason->empty()) *reason = "the cpu backend has no kernel of this operator";
  return nullptr;
}

dgpuStatus_t answer(const dgpuBackendPlanInfo& info, dgpuBackendPlanInfo* out, dgpuStatus_t status) {
  kit::write_struct(out, info);
  return status;
}

}  // namespace

const dgpuBackendClaim* claim(uint32_t index) {
  const KernelEntry* entry = kernel_entry(index);
  return entry ? entry->claim : nullptr;
}

dgpuStatus_t make_plan(Device& device, const dgpuBackendOp& op, dgpuBackendPlanInfo* out_info, dgpuBackendPlan** out) {
  const Services& services = device.backend->services;
  dgpuBackendPlanInfo info = DGPU_BACKEND_PLAN_INFO_INIT;
  std::string reason;
  try {
    auto plan = std::make_unique<Plan>();
    plan->kernel = find_kernel(kit::OpView(&op), &reason);
    if (!plan->kernel) {
      kit::copy_text(info.reason, reason.c_str());
      return answer(info, out_info, services.fail_text(DGPU_STATUS_UNSUPPORTED, op.name, reason));
    }
    plan->ports = op.port_count;
    info.workspace_bytes = plan->kernel->workspace_bytes();
    info.deterministic = 1;  // partitions and reduction trees do not depend on the threads
    kit::copy_text(info.algorithm, plan->kernel->algorithm());
    kit::write_struct(out_info, info);
    *out = reinterpret_cast<dgpuBackendPlan*>(plan.release());
    return DGPU_STATUS_SUCCESS;
  } catch (const std::bad_alloc&) {
    return answer(info, out_info, services.fail(DGPU_STATUS_OUT_OF_HOST_MEMORY, op.name, "no host memory for a plan"));
  } catch (const std::exception& e) {
    return answer(info, out_info, services.fail(DGPU_STATUS_INTERNAL, op.name, "planning failed: {}", e.what()));
  }
}

}  // namespace dgpu::cpu
