// One device of one backend, as every room above sees it.
#pragma once
#include <atomic>
#include <mutex>
#include <string>
#include <string_view>

#include "backend/sinks.h"
#include "backend/states.h"
#include "base/handle.h"

namespace dgpu::backend {

constexpr uint32_t kMaxDevices = 1024;  // of one backend

// A plugin's groups, copied up to their struct_size: missing groups and entries are null.
struct Table {
  dgpuBackendTable top{};  // its group pointers are the plugin's; use the copies below
  dgpuBackendDeviceGroup device{};
  dgpuBackendMemoryGroup memory{};
  dgpuBackendQueueGroup queue{};
  dgpuBackendKernelGroup kernel{};
  dgpuBackendOpGroup op{};
  dgpuBackendTelemetryGroup telemetry{};
};

class Device final : public Object {
 public:
  static constexpr Kind kKind = Kind::device;
  Device(Backend& backend, uint32_t index, const dgpuDeviceInfo& info);

  // Lives as long as the device: the registry keeps a backend until nobody else holds one of its devices.
  Backend& backend() const { return backend_; }
  const Table& table() const;
  // Entries that every backend has: allocate and free; create, destroy, submit and reset. The rest may be null.
  const dgpuBackendMemoryGroup& memory() const { return table().memory; }
  const dgpuBackendQueueGroup& queue() const { return table().queue; }
  bool has_kernels() const { return table().kernel.create && table().kernel.destroy; }
  const dgpuBackendKernelGroup& kernel() const { return table().kernel; }
  bool has_ops() const { return table().op.claim && table().op.plan && table().op.plan_destroy; }
  const dgpuBackendOpGroup& op() const { return table().op; }

  // As the backend filled it in; `ordinal` is the registry's business, see Registry::ordinal.
  const dgpuDeviceInfo& info() const { return info_; }
  uint32_t index() const { return index_; }  // inside its backend
  // "cpu device 0", for messages.
  std::string label() const;

  // The backend's own device; opened on first use.
  Status open(dgpuBackendDevice** out);
  // After a successful open; null before.
  dgpuBackendDevice* opened() const { return opened_.load(std::memory_order_acquire); }

  // DEVICE_LOST, or INVALID_HANDLE when the backend is being unloaded. Ask before starting anything new on it.
  Status check_usable() const;
  bool lost() const { return lost_.load(std::memory_order_acquire); }
  // Called by the service; later calls change nothing.
  void report_lost(const char* message) noexcept;

  // A room's state for this device: T derives from DeviceState, is made as T(Device&) on first use and destroyed before
  // the backend's device is closed. It must not hold a Ref to the device.
  template <typename T>
  T& state() {
    return states_.get<T>(*this);
  }
  // Metric from the core or the backend; absent with a reason otherwise.
  void metric(uint32_t id, dgpuMetric& out);
  // Commands of this process that retired on the device, DGPU_METRIC_COMMANDS.
  void count_commands(uint64_t retired) { commands_.fetch_add(retired, std::memory_order_relaxed); }
  // Link to another device, which may belong to another backend.
  Status link(Device& to, dgpuLinkInfo& out);
  // Registry only: nobody uses it any more. drop_state destroys room state, close also closes the backend's device.
  void drop_state() noexcept { states_.clear(); }
  void close() noexcept;

 private:
  Backend& backend_;
  const uint32_t index_;
  const dgpuDeviceInfo info_;
  std::mutex open_mutex_;
  std::atomic<dgpuBackendDevice*> opened_{nullptr};
  std::atomic<bool> lost_{false};
  std::atomic<uint64_t> commands_{0};
  States<Device, DeviceState> states_;
};

}  // namespace dgpu::backend
