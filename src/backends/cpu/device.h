// The backend's objects behind the opaque handles of dgpu/backend.h.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/cpu/executor.h"
#include "backends/cpu/scenario.h"
#include "backends/cpu/services.h"
#include "backends/cpu/topology.h"

namespace dgpu::cpu {

struct Backend;

// A virtual device: its own memory budget and queues, no threads of its own. Lives as long as the backend.
struct Device {
  Backend* backend = nullptr;
  uint32_t index = 0;
  dgpuCoreDevice* core_device = nullptr;
  uint64_t memory_limit = 0;
  std::atomic<uint64_t> memory_used{0};
  std::atomic<bool> opened{false};
  DeviceLoad load;

  // Telemetry: the last sample, and the one before it that the current value was measured against.
  std::mutex sample_mutex;
  uint64_t sample_ns = 0;
  uint64_t sample_busy_ns = 0;
  double utilization = 0;
  bool sampled = false;  // utilization counts
};

struct Backend {
  explicit Backend(const dgpuBackendServices& table) : services(table) {}
  Services services;
  std::vector<std::unique_ptr<Device>> devices;
  std::unique_ptr<Topology> topology;
  std::unique_ptr<Scenario> scenario;  // null unless the topology file paces copies or injects faults
  std::unique_ptr<Executor> executor;
  std::string model;
};

// memory.cpp
dgpuStatus_t allocate(Device& device, uint64_t size, dgpuBackendAllocation* out);
void deallocate(Device& device, dgpuBackendMemory* memory);
dgpuStatus_t register_host(Device& device, void* pointer, dgpuBackendAllocation* out);

// op.cpp
const dgpuBackendClaim* claim(uint32_t index);
dgpuStatus_t make_plan(Device& device, const dgpuBackendOp& op, dgpuBackendPlanInfo* info, dgpuBackendPlan** out);

// telemetry.cpp
dgpuStatus_t read_metric(Backend& backend, uint32_t index, uint32_t metric, dgpuMetric* out);

}  // namespace dgpu::cpu
