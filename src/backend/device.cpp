#include "backend/device.h"

#include "backend/registry.h"
#include "base/log.h"
#include "base/struct.h"

namespace dgpu::backend {

Device::Device(Backend& backend, uint32_t index, const dgpuDeviceInfo& info)
    : Object(kKind), backend_(backend), index_(index), info_(info) {}

const Table& Device::table() const { return backend_.table(); }

std::string Device::label() const { return fmt::format("{} device {}", backend_.name(), index_); }

Status Device::open(dgpuBackendDevice** out) {
  *out = opened();
  if (*out) [[likely]]
    return DGPU_STATUS_SUCCESS;
  DGPU_TRY(check_usable());
  std::lock_guard lock(open_mutex_);
  *out = opened();
  if (*out) return DGPU_STATUS_SUCCESS;
  dgpuBackendDevice* made = nullptr;
  DGPU_TRY(backend_.checked(
      table().device.open(backend_.instance(), index_, reinterpret_cast<dgpuCoreDevice*>(this), &made), "device.open"));
  if (!made)
    return fail(DGPU_STATUS_INTERNAL, "device.open", "backend {} opened a device without handing it out",
                backend_.name());
  opened_.store(made, std::memory_order_release);
  *out = made;
  return DGPU_STATUS_SUCCESS;
}

Status Device::check_usable() const {
  if (lost()) [[unlikely]]
    return fail(DGPU_STATUS_DEVICE_LOST, "device", "{} is gone", label());
  if (backend_.closing()) [[unlikely]] {
    return fail(DGPU_STATUS_INVALID_HANDLE, "device", "backend {} is being unloaded", backend_.name());
  }
  return DGPU_STATUS_SUCCESS;
}

void Device::report_lost(const char* message) noexcept {
  if (lost_.exchange(true, std::memory_order_acq_rel)) return;
  const char* text = message ? message : "no reason given";
  log(DGPU_LOG_ERROR, "backend", "{} is lost: {}", label(), text);
  if (RuntimeLink* runtime = backend_.registry().runtime()) runtime->device_lost(*this, text);
}

void Device::metric(uint32_t id, dgpuMetric& out) {
  out = DGPU_METRIC_INIT;
  if (lost()) {
    out.absent = DGPU_ABSENT_DEVICE_LOST;
    return;
  }
  if (id == DGPU_METRIC_COMMANDS) {
    out.value = static_cast<double>(commands_.load(std::memory_order_relaxed));
    return;
  }
  if (backend_.registry().core_metric(*this, id, out)) return;
  if (table().telemetry.metric) {
    const Status status = table().telemetry.metric(backend_.instance(), index_, id, &out);
    if (status == DGPU_STATUS_SUCCESS) return;
    out = DGPU_METRIC_INIT;
    out.absent = status == DGPU_STATUS_NOT_PERMITTED ? DGPU_ABSENT_DENIED : DGPU_ABSENT_UNSUPPORTED;
    return;
  }
  out.absent = DGPU_ABSENT_UNSUPPORTED;
}

Status Device::link(Device& to, dgpuLinkInfo& out) {
  out = DGPU_LINK_INFO_INIT;
  out.claimed = 1;
  if (&to == this) {
    out.kind = DGPU_LINK_SAME;
    out.peer_access = 1;
    return DGPU_STATUS_SUCCESS;
  }
  if (&to.backend_ == &backend_ && table().device.link) {
    return backend_.checked(table().device.link(backend_.instance(), index_, to.index_, &out), "device.link");
  }
  out.kind = DGPU_LINK_HOST;
  out.hops = 1;
  return DGPU_STATUS_SUCCESS;
}

void Device::close() noexcept {
  drop_state();
  if (dgpuBackendDevice* device = opened_.exchange(nullptr)) table().device.close(device);
}

}  // namespace dgpu::backend
