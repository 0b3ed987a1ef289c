#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>

#include "smi.h"

namespace smi {
namespace {

const char* absence(uint32_t reason) {
  switch (reason) {
    case DGPU_ABSENT_DENIED:
      return "denied";
    case DGPU_ABSENT_NOT_SAMPLED:
      return "not sampled yet";
    case DGPU_ABSENT_DEVICE_LOST:
      return "device lost";
    default:
      return "unsupported";
  }
}

std::string last_error() {
  dgpuErrorInfo info = DGPU_ERROR_INFO_INIT;
  dgpuGetLastError(&info);
  return info.message[0] ? info.message : dgpuStatusText(info.status);
}

// Counts and bytes arrive as doubles, too.
Json number(double value, const std::string& unit) {
  if (unit != "bytes" && unit != "count") return value;
  return static_cast<uint64_t>(value);
}

void read_metrics(dgpuDevice_t device, Device& out) {
  out.metrics.push_back({nullptr, "unsupported"});  // there is no metric 0
#define SMI_READ(name, id, unit, text)                                           \
  {                                                                              \
    dgpuMetric m = DGPU_METRIC_INIT;                                             \
    out.metrics.resize(id + 1, Value{nullptr, "unsupported"});                   \
    if (dgpuDeviceGetMetric(device, id, &m) == DGPU_STATUS_SUCCESS && !m.absent) \
      out.metrics[id] = {number(m.value, unit), ""};                             \
    else                                                                         \
      out.metrics[id] = {nullptr, absence(m.absent)};                            \
  }
  DGPU_METRIC_LIST(SMI_READ)
#undef SMI_READ
}

Device read_device(uint32_t ordinal, uint32_t count, bool links) {
  Device d;
  d.ordinal = ordinal;
  dgpuDevice_t device = nullptr;
  if (dgpuDeviceGet(ordinal, &device) != DGPU_STATUS_SUCCESS ||
      dgpuDeviceGetInfo(device, &d.info) != DGPU_STATUS_SUCCESS) {
    d.error = last_error();
    return d;
  }
  read_metrics(device, d);
  for (uint32_t i = 0; links && i < count; ++i) {
    dgpuDevice_t other = nullptr;
    dgpuLinkInfo link = DGPU_LINK_INFO_INIT;
    if (dgpuDeviceGet(i, &other) == DGPU_STATUS_SUCCESS) dgpuDeviceGetLink(device, other, &link);
    d.links.push_back(link);
  }
  d.answered = true;
  return d;
}

// Shared with the reader threads, which may outlive the wait.
struct Results {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Device> devices;
  uint32_t done = 0;
};

}  // namespace

std::vector<Device> collect(bool links, uint32_t timeout_ms) {
  uint32_t count = 0;
  dgpuDeviceCount(&count);
  auto results = std::make_shared<Results>();
  results->devices.resize(count);
  for (uint32_t i = 0; i < count; ++i) {
    results->devices[i].ordinal = i;
    std::thread([results, i, count, links] {
      auto device = read_device(i, count, links);
      std::lock_guard lock(results->mutex);
      results->devices[i] = std::move(device);
      ++results->done;
      results->changed.notify_all();
    }).detach();
  }
  std::unique_lock lock(results->mutex);
  results->changed.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] { return results->done == count; });
  return results->devices;
}

int select(const std::vector<Device>& devices, const std::string& selector) {
  const auto colon = selector.find(':');
  const std::string kind = colon == std::string::npos ? "" : selector.substr(0, colon);
  const std::string rest = colon == std::string::npos ? selector : selector.substr(colon + 1);
  for (const auto& d : devices) {
    const bool index = (kind.empty() || kind == "index") && rest == std::to_string(d.ordinal);
    const bool uuid = (kind.empty() || kind == "uuid") && rest == d.info.uuid && *d.info.uuid;
    const bool name = kind == "name" && rest == d.info.name;
    const bool pci = kind == "pci" && rest == d.info.pci && *d.info.pci;
    if (index || uuid || name || pci) return static_cast<int>(d.ordinal);
  }
  return -1;
}

}  // namespace smi
