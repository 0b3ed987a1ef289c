// Contexts.
#include "runtime/context.h"

#include "api/entry.h"
#include "backend/registry.h"
#include "memory/memory.h"
#include "runtime/stream.h"

using namespace dgpu;

namespace {

constexpr uint32_t kMaxDevices = 64;

Status create_context(const dgpuDevice_t* devices, uint32_t count, const dgpuContextOptions* options,
                      dgpuContext_t* out_context) {
  DGPU_TRY(library_check());
  DGPU_TRY(clear_output(out_context, "out_context"));
  dgpuContextOptions known = DGPU_CONTEXT_OPTIONS_INIT;
  DGPU_TRY(read_optional(options, "dgpuContextOptions", known));
  if (known.flags & ~uint32_t{DGPU_CONTEXT_NO_HELPING}) {
    return fail(DGPU_STATUS_INVALID_ARGUMENT, "flags", "flags {:#x} has bits besides DGPU_CONTEXT_*", known.flags);
  }
  DGPU_TRY(need(devices, "devices"));
  if (count == 0 || count > kMaxDevices) {
    return fail(DGPU_STATUS_INVALID_ARGUMENT, "count", "{} devices were given, 1 to {} are possible", count,
                kMaxDevices);
  }
  std::vector<Pinned<backend::Device>> pins(count);
  std::vector<Ref<backend::Device>> refs;
  for (uint32_t i = 0; i < count; ++i) {
    DGPU_TRY(pin<backend::Device>(devices[i], "devices", pins[i]));
    refs.push_back(pins[i].ref());
  }
  Ref<Context> context;
  DGPU_TRY(Context::create(std::move(refs), known.flags, context));
  DGPU_TRY(memory::attach(*context));
  // In its own scope: publishing fails if the backend of a device was unloaded during the call.
  HandleScope* const scope = context->scope();
  return handle_publish(std::move(context), out_context, scope);
}

}  // namespace

extern "C" {

dgpuStatus_t dgpuContextCreate(const dgpuDevice_t* devices, uint32_t count, const dgpuContextOptions* options,
                               dgpuContext_t* out_context) {
  return library_entry("dgpuContextCreate", out_context, "out_context",
                       [&] { return create_context(devices, count, options, out_context); });
}

dgpuStatus_t dgpuContextDestroy(dgpuContext_t context) {
  return entry("dgpuContextDestroy", [&] { return retire<Context>(context, "context"); });
}

dgpuStatus_t dgpuContextDeviceCount(dgpuContext_t context, uint32_t* out_count) {
  return entry("dgpuContextDeviceCount", [&]() -> Status {
    DGPU_PIN(Context, pinned, context);
    DGPU_TRY(clear_output(out_count, "out_count"));
    *out_count = pinned->device_count();
    return DGPU_STATUS_SUCCESS;
  });
}

dgpuStatus_t dgpuContextGetDevice(dgpuContext_t context, uint32_t index, dgpuDevice_t* out_device) {
  return entry("dgpuContextGetDevice", [&]() -> Status {
    if (out_device) *out_device = nullptr;
    DGPU_PIN(Context, pinned, context);
    DGPU_TRY(need(out_device, "out_device"));
    if (index >= pinned->device_count()) {
      return fail(DGPU_STATUS_NOT_FOUND, "index", "index is {}, the context has {} devices", index,
                  pinned->device_count());
    }
    *out_device = reinterpret_cast<dgpuDevice_t>(static_cast<uintptr_t>(pinned->device(index).handle()));
    return DGPU_STATUS_SUCCESS;
  });
}

dgpuStatus_t dgpuContextSynchronize(dgpuContext_t context, uint64_t timeout_ns) {
  return entry("dgpuContextSynchronize", [&]() -> Status {
    DGPU_PIN(Context, pinned, context);
    DGPU_TRY(may_block("dgpuContextSynchronize"));
    return pinned->synchronize(timeout_ns);
  });
}

}  // extern "C"
