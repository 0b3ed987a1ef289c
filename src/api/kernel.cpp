// Kernels.
#include "runtime/kernel.h"

#include "api/entry.h"

using namespace dgpu;

extern "C" {

dgpuStatus_t dgpuKernelCreate(dgpuContext_t context, const char* name, dgpuKernelFunction function,
                              const char* signature, void* user, uint32_t flags, dgpuKernel_t* out_kernel) {
  return entry("dgpuKernelCreate", [&]() -> Status {
    if (out_kernel) *out_kernel = nullptr;
    DGPU_PIN(Context, owner, context);
    DGPU_TRY(need(name, "name"));
    DGPU_TRY(need(reinterpret_cast<const void*>(function), "function"));
    DGPU_TRY(need(signature, "signature"));
    DGPU_TRY(need(out_kernel, "out_kernel"));
    Ref<Kernel> kernel;
    DGPU_TRY(Kernel::create(owner.ref(), name, function, signature, user, flags, kernel));
    return handle_publish(std::move(kernel), out_kernel, owner->scope());
  });
}

dgpuStatus_t dgpuKernelDestroy(dgpuKernel_t kernel) {
  return entry("dgpuKernelDestroy", [&] { return retire<Kernel>(kernel, "kernel"); });
}

dgpuStatus_t dgpuKernelGetInfo(dgpuKernel_t kernel, dgpuKernelInfo* out_info) {
  return entry("dgpuKernelGetInfo", [&]() -> Status {
    zero_struct(out_info);
    DGPU_PIN(Kernel, pinned, kernel);
    dgpuKernelInfo info = DGPU_KERNEL_INFO_INIT;
    copy_text(info.name, pinned->name());
    copy_text(info.signature, pinned->signature());
    info.arg_count = static_cast<uint32_t>(pinned->arguments().size());
    info.flags = pinned->flags();
    return write_struct(out_info, "dgpuKernelInfo", info);
  });
}

dgpuStatus_t dgpuKernelGetArgType(dgpuKernel_t kernel, uint32_t index, uint32_t* out_type) {
  return entry("dgpuKernelGetArgType", [&]() -> Status {
    if (out_type) *out_type = 0;
    DGPU_PIN(Kernel, pinned, kernel);
    DGPU_TRY(need(out_type, "out_type"));
    if (index >= pinned->arguments().size()) {
      return fail(DGPU_STATUS_NOT_FOUND, "index", "index is {}, kernel {} has {} launch arguments", index,
                  pinned->name(), pinned->arguments().size());
    }
    *out_type = pinned->arguments()[index];
    return DGPU_STATUS_SUCCESS;
  });
}

dgpuStatus_t dgpuKernelLaunch(dgpuStream_t stream, dgpuKernel_t kernel, uint64_t grid_x, uint64_t grid_y,
                              uint64_t grid_z, const uint32_t* types, const uint64_t* values, uint32_t count) {
  return entry("dgpuKernelLaunch", [&]() -> Status {
    DGPU_PIN(Stream, pinned, stream);
    DGPU_PIN(Kernel, function, kernel);
    return function->launch(*pinned, "dgpuKernelLaunch", grid_x, grid_y, grid_z, types, values, count);
  });
}

}  // extern "C"
