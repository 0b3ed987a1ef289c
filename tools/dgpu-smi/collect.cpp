#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <stdexcept>
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
Value number(double value, bool whole) {
  if (!std::isfinite(value)) return {nullptr, "not a number"};
  if (whole && value >= 0 && value < 0x1p64) return {static_cast<uint64_t>(value), ""};
  return {value, ""};
}

Value read_metric(dgpuDevice_t device, uint32_t id) {
  dgpuMetric m = DGPU_METRIC_INIT;
  if (dgpuDeviceGetMetric(device, id, &m) != DGPU_STATUS_SUCCESS) return {nullptr, last_error()};
  if (m.absent) return {nullptr, absence(m.absent)};
  for (const auto& f : fields())
    if (f.metric && f.id == id) return number(m.value, f.unit == "bytes" || f.unit == "count");
  return {m.value, ""};
}

Link read_link(dgpuDevice_t from, uint32_t to) {
  dgpuDevice_t other = nullptr;
  Link link;
  if (dgpuDeviceGet(to, &other) != DGPU_STATUS_SUCCESS ||
      dgpuDeviceGetLink(from, other, &link.info) != DGPU_STATUS_SUCCESS)
    link.absent = last_error();
  return link;
}

bool by_index(const std::string& selector) {
  return selector.rfind("index:", 0) == 0 ||
         (!selector.empty() && selector.find_first_not_of("0123456789") == std::string::npos);
}

bool matches(const Device& d, const std::string& selector) {
  const auto colon = selector.find(':');
  const std::string kind = colon == std::string::npos ? "" : selector.substr(0, colon);
  const std::string rest = colon == std::string::npos ? selector : selector.substr(colon + 1);
  const bool index = (kind.empty() || kind == "index") && rest == std::to_string(d.ordinal);
  const bool uuid = (kind.empty() || kind == "uuid") && rest == d.info.uuid && *d.info.uuid;
  const bool name = kind == "name" && rest == d.info.name;
  const bool pci = kind == "pci" && rest == d.info.pci && *d.info.pci;
  return index || uuid || name || pci;
}

// Shared with the reader threads, which may outlive the wait.
class Reading {
 public:
  Reading(const Wanted& wanted, uint32_t count) : wanted_(wanted), devices_(count), done_(count) {
    for (uint32_t i = 0; i < count; ++i) {
      devices_[i].ordinal = i;
      devices_[i].metrics.assign(1 + last_metric(), Value{nullptr, "timeout"});
      if (wanted.links) devices_[i].links.assign(count, Link{DGPU_LINK_INFO_INIT, "timeout"});
    }
  }

  // In a thread per device.
  void read(uint32_t i) {
    if (const dgpuDevice_t device = read_info(i)) read_rest(i, device);
    publish([&] { done_[i] = true; });
  }

  std::vector<Device> wait(uint32_t timeout_ms) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] { return complete(); });
    return devices_;
  }

 private:
  static size_t last_metric() {
    size_t last = 0;
    for (const auto& f : fields())
      if (f.metric) last = std::max<size_t>(last, f.id);
    return last;
  }

  template <class F>
  void publish(F&& change) {
    const std::lock_guard lock(mutex_);
    change();
    changed_.notify_all();
  }

  // The handle, or null if that is all there is to read.
  dgpuDevice_t read_info(uint32_t i) {
    dgpuDevice_t device = nullptr;
    dgpuDeviceInfo info = DGPU_DEVICE_INFO_INIT;
    std::string error;
    if (dgpuDeviceGet(i, &device) != DGPU_STATUS_SUCCESS || dgpuDeviceGetInfo(device, &info) != DGPU_STATUS_SUCCESS)
      error = last_error();
    publish([&] {
      devices_[i].described = error.empty();
      devices_[i].error = error;
      if (error.empty()) devices_[i].info = info;
      if (!error.empty() || (!wanted_.selector.empty() && !matches(devices_[i], wanted_.selector))) device = nullptr;
    });
    return device;
  }

  void read_rest(uint32_t i, dgpuDevice_t device) {
    for (const uint32_t id : wanted_.metrics) {
      const Value value = read_metric(device, id);
      publish([&] { devices_[i].metrics[id] = value; });
    }
    for (uint32_t to = 0; wanted_.links && to < devices_.size(); ++to) {
      const Link link = read_link(device, to);
      publish([&] { devices_[i].links[to] = link; });
    }
    publish([&] { devices_[i].answered = true; });
  }

  // Nothing more is to be waited for. A selected device need not wait for one that is stuck, unless that one might be
  // meant, too, and comes first.
  bool complete() const {
    for (size_t i = 0; i < devices_.size() && !wanted_.selector.empty(); ++i) {
      if (matches(devices_[i], wanted_.selector)) return done_[i];
      if (!done_[i] && !by_index(wanted_.selector)) return false;
    }
    return std::all_of(done_.begin(), done_.end(), [](bool done) { return done; });
  }

  const Wanted wanted_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Device> devices_;
  std::vector<bool> done_;
};

}  // namespace

bool discover(uint32_t timeout_ms) {
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
  };
  auto state = std::make_shared<State>();
  std::thread([state] {
    uint32_t count = 0;
    dgpuBackendCount(&count);
    const std::lock_guard lock(state->mutex);
    state->done = true;
    state->changed.notify_all();
  }).detach();
  std::unique_lock lock(state->mutex);
  return state->changed.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] { return state->done; });
}

std::vector<Device> collect(const Wanted& wanted, uint32_t timeout_ms) {
  uint32_t count = 0;
  if (dgpuDeviceCount(&count) != DGPU_STATUS_SUCCESS) throw std::runtime_error(last_error());
  auto reading = std::make_shared<Reading>(wanted, count);
  for (uint32_t i = 0; i < count; ++i) std::thread([reading, i] { reading->read(i); }).detach();
  return reading->wait(timeout_ms);
}

int select(const std::vector<Device>& devices, const std::string& selector) {
  for (const auto& d : devices)
    if (matches(d, selector)) return static_cast<int>(d.ordinal);
  return -1;
}

}  // namespace smi
