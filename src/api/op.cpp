// Operators: schemas, descriptors, plans.
#include "dgpu/op.h"

#include "api/entry.h"
#include "ops/op_desc.h"
#include "ops/plan.h"
#include "ops/schema_json.h"

using namespace dgpu;
using ops::AttrValue;
using ops::OpDesc;
using ops::Plan;

namespace {

Status set_attribute(const char* function, dgpuOpDesc_t op, const char* attribute, AttrValue value) {
  return entry(function, [&]() -> Status {
    DGPU_PIN(OpDesc, pinned, op);
    DGPU_TRY(need(attribute, "attribute"));
    return pinned->set(attribute, std::move(value));
  });
}

template <typename T>
Status set_list(const char* function, dgpuOpDesc_t op, const char* attribute, const T* values, uint32_t count) {
  return entry(function, [&]() -> Status {
    DGPU_PIN(OpDesc, pinned, op);
    DGPU_TRY(need(attribute, "attribute"));
    if (count) DGPU_TRY(need(values, "values"));
    return pinned->set(attribute, std::vector<T>(values, values + count));
  });
}

}  // namespace

extern "C" {

dgpuStatus_t dgpuOpCount(uint32_t* out_count) {
  return entry("dgpuOpCount", [&]() -> Status {
    DGPU_TRY(clear_output(out_count, "out_count"));
    *out_count = static_cast<uint32_t>(ops::all().size());
    return DGPU_STATUS_SUCCESS;
  });
}

dgpuStatus_t dgpuOpGetName(uint32_t index, const char** out_name) {
  return entry("dgpuOpGetName", [&]() -> Status {
    DGPU_TRY(clear_output(out_name, "out_name"));
    const auto& all = ops::all();
    if (index >= all.size())
      return fail(DGPU_STATUS_NOT_FOUND, "index", "index is {}, there are {} operators", index, all.size());
    *out_name = all[index]->name.c_str();
    return DGPU_STATUS_SUCCESS;
  });
}

dgpuStatus_t dgpuOpGetSchema(const char* name, char* buffer, size_t size, size_t* out_needed) {
  return entry("dgpuOpGetSchema", [&]() -> Status {
    DGPU_TRY(need(name, "name"));
    const ops::Schema* schema = ops::find(name);
    if (!schema) return fail(DGPU_STATUS_NOT_FOUND, "name", "operator {} does not exist", name);
    return write_text(ops::schema_json(*schema), buffer, size, out_needed);
  });
}

dgpuStatus_t dgpuOpDescCreate(const char* name, dgpuOpDesc_t* out_op) {
  return library_entry("dgpuOpDescCreate", out_op, "out_op", [&]() -> Status {
    DGPU_TRY(need(name, "name"));
    if (!ops::find(name)) {
      std::string names;
      for (const auto* s : ops::all()) names += " " + s->name;
      return fail(DGPU_STATUS_NOT_FOUND, "name", "operator {} does not exist; known are:{}", name, names);
    }
    return handle_publish(make_ref<OpDesc>(name), out_op);
  });
}

dgpuStatus_t dgpuOpDescDestroy(dgpuOpDesc_t op) {
  return entry("dgpuOpDescDestroy", [&] { return retire<OpDesc>(op, "op"); });
}

dgpuStatus_t dgpuOpDescSetInt(dgpuOpDesc_t op, const char* attribute, int64_t value) {
  return set_attribute("dgpuOpDescSetInt", op, attribute, value);
}

dgpuStatus_t dgpuOpDescSetFloat(dgpuOpDesc_t op, const char* attribute, double value) {
  return set_attribute("dgpuOpDescSetFloat", op, attribute, value);
}

dgpuStatus_t dgpuOpDescSetBool(dgpuOpDesc_t op, const char* attribute, uint32_t value) {
  return set_attribute("dgpuOpDescSetBool", op, attribute, value != 0);
}

dgpuStatus_t dgpuOpDescSetString(dgpuOpDesc_t op, const char* attribute, const char* value) {
  return entry("dgpuOpDescSetString", [&]() -> Status {
    DGPU_PIN(OpDesc, pinned, op);
    DGPU_TRY(need(attribute, "attribute"));
    DGPU_TRY(need(value, "value"));
    return pinned->set(attribute, std::string(value));
  });
}

dgpuStatus_t dgpuOpDescSetInts(dgpuOpDesc_t op, const char* attribute, const int64_t* values, uint32_t count) {
  return set_list("dgpuOpDescSetInts", op, attribute, values, count);
}

dgpuStatus_t dgpuOpDescSetFloats(dgpuOpDesc_t op, const char* attribute, const double* values, uint32_t count) {
  return set_list("dgpuOpDescSetFloats", op, attribute, values, count);
}

dgpuStatus_t dgpuOpDescSetTensor(dgpuOpDesc_t op, const char* port, const dgpuTensorDesc* desc) {
  return entry("dgpuOpDescSetTensor", [&]() -> Status {
    DGPU_PIN(OpDesc, pinned, op);
    DGPU_TRY(need(port, "port"));
    dgpuTensorDesc tensor = DGPU_TENSOR_DESC_INIT;
    DGPU_TRY(read_struct(desc, "dgpuTensorDesc", tensor));
    tensor.struct_size = sizeof tensor;
    return pinned->bind(port, tensor);
  });
}

dgpuStatus_t dgpuOpDescInfer(dgpuOpDesc_t op, const char* port, dgpuTensorDesc* out_desc) {
  return entry("dgpuOpDescInfer", [&]() -> Status {
    zero_struct(out_desc);
    DGPU_PIN(OpDesc, pinned, op);
    DGPU_TRY(need(port, "port"));
    DGPU_TRY(need(out_desc, "out_desc"));
    dgpuTensorDesc tensor = DGPU_TENSOR_DESC_INIT;
    DGPU_TRY(ops::infer(pinned->copy(), port, tensor));
    return write_struct(out_desc, "dgpuTensorDesc", tensor);
  });
}

dgpuStatus_t dgpuOpPlanCreate(dgpuContext_t context, dgpuDevice_t device, dgpuOpDesc_t op, dgpuOpPlan_t* out_plan) {
  return entry("dgpuOpPlanCreate", [&]() -> Status {
    DGPU_TRY(clear_output(out_plan, "out_plan"));
    DGPU_PIN(Context, pinned_context, context);
    DGPU_PIN(backend::Device, pinned_device, device);
    DGPU_PIN(OpDesc, pinned_op, op);
    uint32_t index = 0;
    DGPU_TRY(pinned_context->device_index(*pinned_device, index));
    Ref<Plan> plan;
    DGPU_TRY(Plan::create(pinned_context.ref(), index, pinned_op->copy(), plan));
    return handle_publish(std::move(plan), out_plan, pinned_context->scope());
  });
}

dgpuStatus_t dgpuOpPlanDestroy(dgpuOpPlan_t plan) {
  return entry("dgpuOpPlanDestroy", [&] { return retire<Plan>(plan, "plan"); });
}

dgpuStatus_t dgpuOpPlanGetInfo(dgpuOpPlan_t plan, dgpuPlanInfo* out_info) {
  return entry("dgpuOpPlanGetInfo", [&]() -> Status {
    zero_struct(out_info);
    DGPU_PIN(Plan, pinned, plan);
    dgpuPlanInfo info = DGPU_PLAN_INFO_INIT;
    pinned->info(info);
    return write_struct(out_info, "dgpuPlanInfo", info);
  });
}

dgpuStatus_t dgpuOpPlanGetPort(dgpuOpPlan_t plan, uint32_t index, const char** out_name) {
  return entry("dgpuOpPlanGetPort", [&]() -> Status {
    DGPU_TRY(clear_output(out_name, "out_name"));
    DGPU_PIN(Plan, pinned, plan);
    const auto& ports = pinned->ports();
    if (index >= ports.size())
      return fail(DGPU_STATUS_NOT_FOUND, "index", "index is {}, the plan has {} ports", index, ports.size());
    *out_name = ports[index].c_str();
    return DGPU_STATUS_SUCCESS;
  });
}

dgpuStatus_t dgpuOpPlanExecute(dgpuOpPlan_t plan, dgpuStream_t stream, const dgpuAddr_t* addresses,
                               uint32_t address_count, const int64_t* symbols, uint32_t symbol_count,
                               dgpuAddr_t workspace) {
  return entry("dgpuOpPlanExecute", [&]() -> Status {
    DGPU_PIN(Plan, pinned_plan, plan);
    DGPU_PIN(Stream, pinned_stream, stream);
    return pinned_plan->execute(*pinned_stream, "dgpuOpPlanExecute", addresses, address_count, symbols, symbol_count,
                                workspace);
  });
}

dgpuStatus_t dgpuOpReference(dgpuOpDesc_t op, void* const* pointers, uint32_t pointer_count, const int64_t* symbols,
                             uint32_t symbol_count) {
  return entry("dgpuOpReference", [&]() -> Status {
    DGPU_PIN(OpDesc, pinned, op);
    if (pointer_count) DGPU_TRY(need(pointers, "pointers"));
    if (symbol_count) DGPU_TRY(need(symbols, "symbols"));
    return ops::run_reference(pinned->copy(), pointers, pointer_count, symbols, symbol_count);
  });
}

}  // extern "C"
