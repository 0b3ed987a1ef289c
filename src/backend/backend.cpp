#include <dlfcn.h>

#include "backend/registry.h"
#include "backend/table.h"
#include "base/log.h"
#include "base/struct.h"

namespace dgpu::backend {

namespace {
constexpr uint32_t kMaxClaims = 65536;
}  // namespace

Backend::Backend(Registry& registry, std::string path, void* code, bool built_in)
    : Object(kKind), registry_(registry), path_(std::move(path)), code_(code), built_in_(built_in) {}

Backend::~Backend() { stop(); }

Status Backend::checked(Status status, const char* entry) {
  if (status == DGPU_STATUS_SUCCESS) return status;
  if (status > 0) {
    return fail(DGPU_STATUS_INTERNAL, entry, "backend {}: {} answered {}, which is no answer to it", name_, entry,
                dgpuStatusName(status));
  }
  dgpuErrorInfo& record = last_error();
  if (record.status != status) {
    fail(status, entry, "backend {}: {} failed: {}", name_, entry, dgpuStatusText(status));
  }
  if (!record.backend[0]) copy_text(record.backend, name_);
  return status;
}

Status Backend::negotiate(dgpuBackendQueryFunction query) {
  DGPU_TRY(negotiate_table(query, table_, abi_minor_));
  name_ = table_.top.name;
  version_ = table_.top.version ? table_.top.version : "";
  vendor_ = table_.top.vendor ? table_.top.vendor : "";
  return DGPU_STATUS_SUCCESS;
}

Status Backend::start() {
  fill_services(*this, services_);
  DGPU_TRY(checked(table_.top.initialize(&services_, &instance_), "initialize"));
  initialized_ = true;
  DGPU_TRY(list_devices());
  list_claims();
  uint64_t handle = 0;
  DGPU_TRY(handle_publish(Ref<Object>(Ref<Backend>::retain(this)), &handle, scope_.get()));
  for (auto& device : devices_) DGPU_TRY(handle_publish(Ref<Object>(device), &handle, scope_.get()));
  return DGPU_STATUS_SUCCESS;
}

Status Backend::list_devices() {
  uint32_t count = 0;
  DGPU_TRY(checked(table_.device.count(instance_, &count), "device.count"));
  if (count > kMaxDevices) {
    return fail(DGPU_STATUS_BACKEND_REFUSED, "device.count", "it reports {} devices, at most {} are accepted", count,
                kMaxDevices);
  }
  for (uint32_t i = 0; i < count; ++i) {
    dgpuDeviceInfo info = DGPU_DEVICE_INFO_INIT;
    info.numa_node = -1;
    DGPU_TRY(checked(table_.device.info(instance_, i, &info), "device.info"));
    info.struct_size = sizeof(info);
    info.backend_ordinal = i;
    copy_text(info.backend, name_);
    info.name[sizeof(info.name) - 1] = info.uuid[sizeof(info.uuid) - 1] = info.pci[sizeof(info.pci) - 1] = 0;
    devices_.push_back(make_ref<Device>(*this, i, info));
    device_count_ = i + 1;
  }
  return DGPU_STATUS_SUCCESS;
}

void Backend::list_claims() {
  if (!table_.op.claim || !table_.op.plan || !table_.op.plan_destroy) return;
  for (uint32_t i = 0; i < kMaxClaims; ++i) {
    const dgpuBackendClaim* claim = table_.op.claim(instance_, i);
    if (!claim) return;
    if (claim->struct_size < sizeof(dgpuBackendClaim) || !claim->op || !claim->attributes || !claim->ports) {
      log(DGPU_LOG_WARN, "backend", "backend {}: claim {} is malformed and ignored", name_, i);
      continue;
    }
    claims_.push_back(claim);
  }
}

bool Backend::in_use() const {
  for (const auto& device : devices_) {
    if (device->references() > 1) return true;
  }
  return false;
}

void Backend::stop() noexcept {
  for (size_t i = devices_.size(); i-- > 0;) devices_[i]->close();
  claims_.clear();
  if (initialized_) table_.top.shutdown(instance_);
  initialized_ = false;
  if (code_) ::dlclose(code_);
  code_ = nullptr;
  table_ = Table{};
}

}  // namespace dgpu::backend
