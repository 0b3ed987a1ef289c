#include "backends/cpu/scenario.h"

#include <algorithm>

#include "backends/cpu/device.h"
#include "backends/kit/abi.h"

namespace dgpu::cpu {
namespace {

uint32_t index_of(dgpuBackendDevice* handle) { return reinterpret_cast<const Device*>(handle)->index; }

struct Transfer {
  bool over_link = false;
  uint32_t from = 0, to = 0;
  uint64_t bytes = 0;
};

Transfer transfer_of(const dgpuBackendCommand& command) {
  if (command.kind != DGPU_COMMAND_COPY) return {};
  const auto copy = kit::read_struct(static_cast<const dgpuCommandCopy*>(command.payload));
  if (!copy.src_device || !copy.dst_device || copy.src_device == copy.dst_device) return {};
  return {true, index_of(copy.src_device), index_of(copy.dst_device), copy.width * copy.rows};
}

}  // namespace

std::unique_ptr<Scenario> Scenario::create(Backend& backend) {
  const Topology& topology = *backend.topology;
  if (!topology.pacing() && topology.faults().empty()) return nullptr;
  return std::make_unique<Scenario>(backend, topology);
}

Scenario::Scenario(Backend& backend, const Topology& topology)
    : backend_(backend),
      topology_(topology),
      paces_(topology.pacing()),
      devices_(backend.devices.size()),
      link_free_ns_(backend.devices.size() * backend.devices.size()) {
  for (const Fault& fault : topology.faults()) faults_.emplace_back(fault);
}

bool Scenario::Armed::strikes(uint64_t size) {
  if (fault.by_bytes) {
    uint64_t granted = seen.load();
    do {
      if (size > fault.after_bytes - granted) return true;
    } while (!seen.compare_exchange_weak(granted, granted + size));
    return false;
  }
  const uint64_t n = seen.fetch_add(1) + 1;
  return n >= fault.at && (fault.count == 0 || n - fault.at < fault.count);
}

// Every fault that fits counts the occurrence; the first that strikes decides.
const Fault* Scenario::find(FaultSite site, uint32_t device, uint32_t to, uint64_t size) {
  const Fault* found = nullptr;
  for (Armed& armed : faults_) {
    const Fault& fault = armed.fault;
    if (fault.site != site || fault.device != device || (site == FaultSite::kCopy && fault.to != to)) continue;
    if (armed.strikes(size) && !found) found = &fault;
  }
  return found;
}

const Fault* Scenario::lose(uint32_t device, const Fault& fault) {
  const Fault* expected = nullptr;
  if (devices_[device].lost.compare_exchange_strong(expected, &fault)) {
    backend_.services.device_lost(backend_.devices[device]->core_device, fault.text);
  }
  return &fault;
}

Scenario::Verdict Scenario::before(uint32_t device, const dgpuBackendCommand& command, bool failed) {
  using What = Verdict::What;
  const bool work = command.kind != DGPU_COMMAND_MARKER && !failed;
  const Fault* lost = devices_[device].lost.load();
  if (!lost && work) {
    if (const Fault* fault = find(FaultSite::kDevice, device, 0, 0)) lost = lose(device, *fault);
  }
  if (lost) return {lost->reports ? What::kFail : What::kDrop, DGPU_STATUS_DEVICE_LOST, lost->text.c_str(), 0};
  if (!work) return {};
  const Fault* fault = find(FaultSite::kCommand, device, 0, 0);
  const Transfer transfer = transfer_of(command);
  if (transfer.over_link) {
    const Fault* on_link = find(FaultSite::kCopy, transfer.from, transfer.to, 0);
    if (!fault) fault = on_link;
  }
  if (fault) return {What::kFail, fault->status, fault->text.c_str(), 0};
  return {What::kRun, DGPU_STATUS_SUCCESS, nullptr,
          transfer.over_link && paces_ ? travel(transfer.from, transfer.to, transfer.bytes) : 0};
}

dgpuStatus_t Scenario::entry(FaultSite site, uint32_t device, const char* object, uint64_t size) {
  const Fault* fault = devices_[device].lost.load();
  if (!fault) fault = find(site, device, 0, size);
  return fault ? backend_.services.fail_text(fault->status, object, fault->text) : DGPU_STATUS_SUCCESS;
}

// When a transfer that starts now has arrived. A link carries one transfer after the other in each direction; the
// latency of one overlaps with the next.
uint64_t Scenario::travel(uint32_t from, uint32_t to, uint64_t bytes) {
  const Link& link = topology_.link(from, to);
  if (!link.claimed) return 0;
  uint64_t duration = 0;
  if (link.bandwidth_bytes_per_s) {
    const auto exact = (static_cast<unsigned __int128>(bytes) * 1'000'000'000 + link.bandwidth_bytes_per_s - 1) /
                       link.bandwidth_bytes_per_s;
    duration = static_cast<uint64_t>(std::min<unsigned __int128>(exact, UINT64_MAX / 4));
  }
  const uint64_t now = now_ns();
  std::atomic<uint64_t>& free_ns = link_free_ns_[from * devices_.size() + to];
  uint64_t free = free_ns.load();
  uint64_t end = 0;
  do {
    end = std::max(now, free) + duration;
  } while (!free_ns.compare_exchange_weak(free, end));
  return end + link.latency_ns;
}

}  // namespace dgpu::cpu
