// Backends and devices.
#include "dgpu/device.h"

#include "api/entry.h"
#include "backend/registry.h"

using namespace dgpu;
using backend::Backend;
using backend::Device;
using backend::registry;

namespace {

template <typename H>
H handle_of(const Object& object) {
  return reinterpret_cast<H>(static_cast<uintptr_t>(object.handle()));
}

Status out_of_range(const char* what, uint32_t index, size_t count) {
  return fail(DGPU_STATUS_NOT_FOUND, "index", "index is {}, there are {} {}", index, count, what);
}

// Says why where a backend did not start: the program has nothing else to go by.
Status no_devices() {
  std::string why = "no backend has devices";
  for (const backend::Attempt& attempt : registry().attempts()) {
    if (attempt.accepted) continue;
    why = fmt::format("{}: {}", attempt.name.empty() ? attempt.path : attempt.name, attempt.reason);
    break;
  }
  return fail(DGPU_STATUS_NOT_FOUND, "ordinal", "there are no devices; {} (dgpuBackendAttemptGet lists what was tried)",
              why);
}

}  // namespace

extern "C" {

dgpuStatus_t dgpuBackendCount(uint32_t* out_count) {
  return library_entry("dgpuBackendCount", out_count, "out_count", [&]() -> Status {
    *out_count = static_cast<uint32_t>(registry().backends().size());
    return DGPU_STATUS_SUCCESS;
  });
}

dgpuStatus_t dgpuBackendGet(uint32_t index, dgpuBackend_t* out_backend) {
  return library_entry("dgpuBackendGet", out_backend, "out_backend", [&]() -> Status {
    const auto backends = registry().backends();
    if (index >= backends.size()) return out_of_range("backends", index, backends.size());
    *out_backend = handle_of<dgpuBackend_t>(*backends[index]);
    return DGPU_STATUS_SUCCESS;
  });
}

dgpuStatus_t dgpuBackendGetInfo(dgpuBackend_t backend, dgpuBackendInfo* out_info) {
  return entry("dgpuBackendGetInfo", [&]() -> Status {
    zero_struct(out_info);
    DGPU_PIN(Backend, pinned, backend);
    dgpuBackendInfo info = DGPU_BACKEND_INFO_INIT;
    info.name = pinned->name().c_str();
    info.version = pinned->version().c_str();
    info.path = pinned->path().c_str();
    info.vendor = pinned->vendor().c_str();
    info.abi_major = DGPU_BACKEND_ABI_MAJOR;
    info.abi_minor = pinned->abi_minor();
    info.device_count = pinned->device_count();
    info.built_in = pinned->built_in();
    return write_struct(out_info, "dgpuBackendInfo", info);
  });
}

dgpuStatus_t dgpuBackendLoad(const char* path, dgpuBackend_t* out_backend) {
  return library_entry("dgpuBackendLoad", out_backend, "out_backend", [&]() -> Status {
    DGPU_TRY(need(path, "path"));
    DGPU_TRY(may_block("dgpuBackendLoad"));
    Ref<Backend> loaded;
    DGPU_TRY(registry().load(path, loaded));
    *out_backend = handle_of<dgpuBackend_t>(*loaded);
    return DGPU_STATUS_SUCCESS;
  });
}

dgpuStatus_t dgpuBackendUnload(dgpuBackend_t backend, uint64_t timeout_ns) {
  return library_entry("dgpuBackendUnload", [&]() -> Status {
    DGPU_PIN(Backend, pinned, backend);
    DGPU_TRY(may_block("dgpuBackendUnload"));
    return registry().unload(*pinned, timeout_ns);
  });
}

dgpuStatus_t dgpuBackendAttemptCount(uint32_t* out_count) {
  return library_entry("dgpuBackendAttemptCount", out_count, "out_count", [&]() -> Status {
    *out_count = static_cast<uint32_t>(registry().attempts().size());
    return DGPU_STATUS_SUCCESS;
  });
}

dgpuStatus_t dgpuBackendAttemptGet(uint32_t index, dgpuBackendAttempt* out_attempt) {
  zero_struct(out_attempt);
  return library_entry("dgpuBackendAttemptGet", [&]() -> Status {
    const auto attempts = registry().attempts();
    if (index >= attempts.size()) return out_of_range("attempts", index, attempts.size());
    const backend::Attempt& attempt = attempts[index];
    dgpuBackendAttempt out = DGPU_BACKEND_ATTEMPT_INIT;
    copy_text(out.path, attempt.path);
    copy_text(out.name, attempt.name);
    copy_text(out.reason, attempt.reason);
    out.accepted = attempt.accepted;
    out.status = attempt.status;
    return write_struct(out_attempt, "dgpuBackendAttempt", out);
  });
}

dgpuStatus_t dgpuDeviceCount(uint32_t* out_count) {
  return library_entry("dgpuDeviceCount", out_count, "out_count", [&]() -> Status {
    *out_count = static_cast<uint32_t>(registry().devices().size());
    return DGPU_STATUS_SUCCESS;
  });
}

dgpuStatus_t dgpuDeviceGet(uint32_t ordinal, dgpuDevice_t* out_device) {
  return library_entry("dgpuDeviceGet", out_device, "out_device", [&]() -> Status {
    const auto devices = registry().devices();
    if (devices.empty()) return no_devices();
    if (ordinal >= devices.size()) {
      return fail(DGPU_STATUS_NOT_FOUND, "ordinal", "ordinal is {}, there are {} devices", ordinal, devices.size());
    }
    *out_device = handle_of<dgpuDevice_t>(*devices[ordinal]);
    return DGPU_STATUS_SUCCESS;
  });
}

dgpuStatus_t dgpuDeviceGetInfo(dgpuDevice_t device, dgpuDeviceInfo* out_info) {
  return entry("dgpuDeviceGetInfo", [&]() -> Status {
    zero_struct(out_info);
    DGPU_PIN(Device, pinned, device);
    dgpuDeviceInfo info = pinned->info();
    info.ordinal = registry().ordinal(*pinned);
    return write_struct(out_info, "dgpuDeviceInfo", info);
  });
}

dgpuStatus_t dgpuDeviceGetLink(dgpuDevice_t from, dgpuDevice_t to, dgpuLinkInfo* out_info) {
  return entry("dgpuDeviceGetLink", [&]() -> Status {
    zero_struct(out_info);
    DGPU_PIN(Device, first, from);
    DGPU_PIN(Device, second, to);
    dgpuLinkInfo info = DGPU_LINK_INFO_INIT;
    DGPU_TRY(first->link(*second, info));
    return write_struct(out_info, "dgpuLinkInfo", info);
  });
}

dgpuStatus_t dgpuDeviceGetMetric(dgpuDevice_t device, uint32_t metric, dgpuMetric* out_metric) {
  return entry("dgpuDeviceGetMetric", [&]() -> Status {
    zero_struct(out_metric);
    DGPU_PIN(Device, pinned, device);
    dgpuMetric value = DGPU_METRIC_INIT;
    pinned->metric(metric, value);
    return write_struct(out_metric, "dgpuMetric", value);
  });
}

}  // extern "C"
