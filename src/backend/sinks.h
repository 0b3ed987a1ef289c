// What backends report to rooms above, which this room does not include.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "dgpu/backend.h"

namespace dgpu::backend {

class Backend;
class Device;

// Behind dgpuCoreQueue*: the runtime's queue implements it and passes token(sink) to queue.create.
class QueueSink {
 public:
  // See dgpuBackendServices::advance. Any thread, also from inside submit.
  virtual void advance(uint64_t value, dgpuStatus_t outcome, const char* message, int32_t native_code) noexcept = 0;

 protected:
  ~QueueSink() = default;
};
inline dgpuCoreQueue* token(QueueSink* sink) { return reinterpret_cast<dgpuCoreQueue*>(sink); }
inline QueueSink* sink(dgpuCoreQueue* queue) { return reinterpret_cast<QueueSink*>(queue); }

// The runtime, as the registry sees it.
class RuntimeLink {
 public:
  // Fails everything on the device with DEVICE_LOST. Once per device; any thread, also from inside submit.
  virtual void device_lost(Device& device, std::string_view message) noexcept = 0;
  // The backend is being unloaded; Device::check_usable() already refuses new work. Lets queued work on its devices
  // finish until the deadline (now_ns clock), then cancels it. Invalidates every context that has one of its devices,
  // with all descendants, wakes blocked calls, and destroys the queues that are empty.
  virtual void drain(Backend& backend, uint64_t deadline) noexcept = 0;

 protected:
  ~RuntimeLink() = default;
};

// The memory room, as the registry sees it.
class MemoryLink {
 public:
  // Live allocations on the backend's devices as text, "null device 0: 2 allocations, 4096 bytes"; "" if there are
  // none.
  virtual std::string live(Backend& backend) = 0;
  // After drain: gives cached blocks back to the backend.
  virtual void release(Backend& backend) noexcept = 0;

 protected:
  ~MemoryLink() = default;
};

// Answers metrics that the core itself knows (memory, commands, utilization). False: not mine.
using MetricSource = bool (*)(Device& device, uint32_t metric, dgpuMetric& out);

}  // namespace dgpu::backend
