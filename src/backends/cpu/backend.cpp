// The table of dgpu/backend.h: unwraps handles, catches exceptions, passes on.
#include "backends/cpu/backend.h"

#include <fmt/core.h>

#include <algorithm>
#include <new>

#include "backends/cpu/device.h"
#include "backends/cpu/host_kernel.h"
#include "backends/cpu/isa.h"
#include "backends/cpu/machine.h"
#include "backends/kit/abi.h"

namespace dgpu::cpu {
namespace {

Backend& backend_of(void* handle) { return *static_cast<Backend*>(handle); }
Device& device_of(dgpuBackendDevice* handle) { return *reinterpret_cast<Device*>(handle); }
Queue& queue_of(dgpuBackendQueue* handle) { return *reinterpret_cast<Queue*>(handle); }

// The cpu devices' queues need their executor; a queue handle names only the queue, so it carries its device.
Executor& executor_of(const Queue& queue) {
  return *static_cast<const Device*>(queue.device.load(std::memory_order_relaxed))->backend->executor;
}

// Runs `body`; exceptions become a status with text.
template <typename Body>
dgpuStatus_t guarded(const Services& services, const char* object, Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return services.fail(DGPU_STATUS_OUT_OF_HOST_MEMORY, object, "no host memory");
  } catch (const std::exception& e) {
    return services.fail(DGPU_STATUS_INTERNAL, object, "{}", e.what());
  }
}

// ---- Life ----------------------------------------------------------------------------------------------------------

dgpuStatus_t apply_instruction_settings(const Services& services) {
  std::string error;
  const std::string isa_value = services.text("DGPU_CPU_ISA");
  if (!isa_value.empty() && !set_isa(isa_value, &error))
    return services.fail(DGPU_STATUS_INVALID_ARGUMENT, "DGPU_CPU_ISA", "DGPU_CPU_ISA={}: {}", isa_value, error);
  const std::string bf16_value = services.text("DGPU_CPU_BF16");
  if (!bf16_value.empty() && !set_bf16_mode(bf16_value, &error))
    return services.fail(DGPU_STATUS_INVALID_ARGUMENT, "DGPU_CPU_BF16", "DGPU_CPU_BF16={}: {}", bf16_value, error);
  return DGPU_STATUS_SUCCESS;
}

dgpuStatus_t make_devices(Backend& backend) {
  uint64_t count = 0;
  if (const auto s = backend.services.integer("DGPU_CPU_DEVICES", 1, 1, 64, &count); s < 0) return s;
  std::optional<uint64_t> memory;
  if (const auto s = backend.services.bytes("DGPU_CPU_MEMORY", &memory); s < 0) return s;
  constexpr uint64_t kUnit = 2 << 20;
  const uint64_t share = std::max(usable_memory() / count / kUnit * kUnit, kUnit);
  for (uint32_t i = 0; i < count; ++i) {
    auto device = std::make_unique<Device>();
    device->backend = &backend;
    device->index = i;
    device->memory_limit = memory && *memory ? *memory : share;
    backend.devices.push_back(std::move(device));
  }
  return DGPU_STATUS_SUCCESS;
}

dgpuStatus_t read_topology(Backend& backend) {
  backend.topology = std::make_unique<Topology>(static_cast<uint32_t>(backend.devices.size()));
  const std::string path = backend.services.text("DGPU_CPU_TOPOLOGY");
  std::string error;
  if (path.empty()) return DGPU_STATUS_SUCCESS;
  if (backend.topology->load(path, &error)) {
    backend.scenario = Scenario::create(backend);
    return DGPU_STATUS_SUCCESS;
  }
  return backend.services.fail(DGPU_STATUS_PARSE_ERROR, path.c_str(), "DGPU_CPU_TOPOLOGY={}: {}", path, error);
}

dgpuStatus_t initialize(const dgpuBackendServices* table, void** out) {
  const Services services(*table);
  return guarded(services, "cpu", [&] {
    auto backend = std::make_unique<Backend>(*table);
    if (const auto s = apply_instruction_settings(services); s < 0) return s;
    if (const auto s = make_devices(*backend); s < 0) return s;
    if (const auto s = read_topology(*backend); s < 0) return s;
    const uint32_t cores = usable_cores();
    uint64_t threads = 0;
    if (const auto s = services.integer("DGPU_CPU_THREADS", 0, 0, 4096, &threads); s < 0) return s;
    if (threads == 0) threads = cores;
    backend->model = cpu_model();
    backend->executor = std::make_unique<Executor>(backend->services, static_cast<uint32_t>(threads), cores);
    *out = backend.release();
    return static_cast<dgpuStatus_t>(DGPU_STATUS_SUCCESS);
  });
}

void shutdown(void* handle) {
  backend_of(handle).executor->stop();
  delete &backend_of(handle);
}

// An injected failure of an entry; SUCCESS without one.
dgpuStatus_t injected(const Device& device, FaultSite site, const char* object, uint64_t size = 0) {
  Scenario* scenario = device.backend->scenario.get();
  return scenario ? scenario->entry(site, device.index, object, size) : DGPU_STATUS_SUCCESS;
}

// ---- Devices -------------------------------------------------------------------------------------------------------

dgpuStatus_t device_count(void* backend, uint32_t* out) {
  *out = static_cast<uint32_t>(backend_of(backend).devices.size());
  return DGPU_STATUS_SUCCESS;
}

dgpuStatus_t check_index(const Backend& backend, uint32_t index) {
  if (index < backend.devices.size()) return DGPU_STATUS_SUCCESS;
  return backend.services.fail(DGPU_STATUS_INVALID_ARGUMENT, "index", "cpu has {} devices, index is {}",
                               backend.devices.size(), index);
}

dgpuStatus_t device_info(void* handle, uint32_t index, dgpuDeviceInfo* out) {
  Backend& backend = backend_of(handle);
  if (const auto s = check_index(backend, index); s < 0) return s;
  return guarded(backend.services, "device", [&] {
    // ordinal and backend are the core's.
    dgpuDeviceInfo info = DGPU_DEVICE_INFO_INIT;
    std::memcpy(static_cast<void*>(&info), out, std::min(out->struct_size, sizeof info));
    const std::string model = backend.model.empty() ? "CPU" : backend.model;
    kit::copy_text(info.name,
                   backend.devices.size() == 1
                       ? model.c_str()
                       : fmt::format("{} (virtual device {} of {})", model, index, backend.devices.size()).c_str());
    kit::copy_text(info.uuid, device_uuid(index).c_str());
    info.pci[0] = 0;
    info.kind = DGPU_DEVICE_KIND_CPU;
    info.backend_ordinal = index;
    info.compute_units = backend.executor->threads();
    const uint32_t nodes = machine().numa_nodes;
    info.numa_node = nodes == 1 ? 0 : -1;  // memory is not bound to a node where there are several
    info.host_accessible = 1;
    info.memory_bytes = info.max_alloc_bytes = backend.devices[index]->memory_limit;
    kit::write_struct(out, info);
    return static_cast<dgpuStatus_t>(DGPU_STATUS_SUCCESS);
  });
}

dgpuStatus_t device_open(void* handle, uint32_t index, dgpuCoreDevice* core_device, dgpuBackendDevice** out) {
  Backend& backend = backend_of(handle);
  if (const auto s = check_index(backend, index); s < 0) return s;
  return guarded(backend.services, "device", [&] {
    Device& device = *backend.devices[index];
    if (const auto s = injected(device, FaultSite::kOpen, "device"); s < 0) return s;
    std::string error;
    if (!backend.executor->start(backend.scenario && backend.scenario->paces(), &error))
      return backend.services.fail_text(DGPU_STATUS_OUT_OF_HOST_MEMORY, "DGPU_CPU_THREADS", error);
    if (!error.empty()) backend.services.log(DGPU_LOG_WARN, error);
    device.core_device = core_device;
    {
      const std::lock_guard lock(device.sample_mutex);
      device.sample_ns = now_ns();
      device.sample_busy_ns = backend.executor->busy_ns(&device, device.load);
      device.sampled = false;
    }
    device.opened.store(true);
    *out = reinterpret_cast<dgpuBackendDevice*>(&device);
    return static_cast<dgpuStatus_t>(DGPU_STATUS_SUCCESS);
  });
}

void device_close(dgpuBackendDevice* handle) { device_of(handle).opened.store(false); }

dgpuStatus_t device_link(void* handle, uint32_t from, uint32_t to, dgpuLinkInfo* out) {
  Backend& backend = backend_of(handle);
  if (const auto s = check_index(backend, from); s < 0) return s;
  if (const auto s = check_index(backend, to); s < 0) return s;
  const Link& link = backend.topology->link(from, to);
  dgpuLinkInfo info{};
  info.kind = link.kind;
  info.hops = link.hops;
  info.peer_access = link.peer_access;
  info.claimed = link.claimed;
  info.bandwidth_bytes_per_s = link.bandwidth_bytes_per_s;
  info.latency_ns = link.latency_ns;
  kit::write_struct(out, info);
  return DGPU_STATUS_SUCCESS;
}

// ---- Memory --------------------------------------------------------------------------------------------------------

dgpuStatus_t memory_allocate(dgpuBackendDevice* device, uint64_t size, dgpuBackendAllocation* out) {
  return guarded(device_of(device).backend->services, "size", [&] {
    const auto s = injected(device_of(device), FaultSite::kAllocation, "size", size);
    return s < 0 ? s : allocate(device_of(device), size, out);
  });
}

void memory_free(dgpuBackendDevice* device, dgpuBackendMemory* memory) { deallocate(device_of(device), memory); }

dgpuStatus_t memory_register(dgpuBackendDevice* device, void* pointer, uint64_t, dgpuBackendAllocation* out) {
  const auto s = injected(device_of(device), FaultSite::kPin, "pointer");
  return s < 0 ? s : register_host(device_of(device), pointer, out);
}

// ---- Queues --------------------------------------------------------------------------------------------------------

dgpuStatus_t queue_create(dgpuBackendDevice* handle, dgpuCoreQueue* core_queue, int32_t priority,
                          dgpuBackendQueue** out) {
  Device& device = device_of(handle);
  const Services& services = device.backend->services;
  return guarded(services, "queue", [&] {
    if (const auto s = injected(device, FaultSite::kStream, "stream"); s < 0) return s;
    Backend& backend = *device.backend;
    const Executor::QueueOf owner{&device, device.index, &device.load, backend.scenario.get()};
    Queue* queue = backend.executor->create(owner, core_queue, priority);
    if (!queue)
      return services.fail(DGPU_STATUS_CAPACITY, "stream", "cpu has {} queues, and no more; destroy streams",
                           Executor::kMaxQueues);
    *out = reinterpret_cast<dgpuBackendQueue*>(queue);
    return static_cast<dgpuStatus_t>(DGPU_STATUS_SUCCESS);
  });
}

void queue_destroy(dgpuBackendQueue* queue) { executor_of(queue_of(queue)).destroy(queue_of(queue)); }

dgpuStatus_t queue_submit(dgpuBackendQueue* queue, dgpuBackendCommand* const* commands, uint32_t count) {
  executor_of(queue_of(queue)).submit(queue_of(queue), commands, count);
  return DGPU_STATUS_SUCCESS;
}

void queue_reset(dgpuBackendQueue* queue) { executor_of(queue_of(queue)).reset(queue_of(queue)); }

uint32_t queue_help(dgpuBackendQueue* queue, uint64_t value) {
  return executor_of(queue_of(queue)).help(queue_of(queue), value);
}

// ---- Kernels and operators -----------------------------------------------------------------------------------------

dgpuStatus_t kernel_create(dgpuBackendDevice* device, const dgpuBackendKernelDesc* desc, dgpuBackendKernel** out) {
  const Services& services = device_of(device).backend->services;
  return guarded(services, "signature", [&] {
    if (const auto s = injected(device_of(device), FaultSite::kKernel, "kernel"); s < 0) return s;
    std::string error;
    const auto known = kit::read_struct(desc);
    auto kernel = HostKernel::create(services, known, &error);
    if (!kernel)
      return services.fail(DGPU_STATUS_INVALID_ARGUMENT, "signature", "kernel {}: {}",
                           known.name ? known.name : "without a name", error);
    *out = reinterpret_cast<dgpuBackendKernel*>(kernel.release());
    return static_cast<dgpuStatus_t>(DGPU_STATUS_SUCCESS);
  });
}

void kernel_destroy(dgpuBackendKernel* kernel) { delete reinterpret_cast<HostKernel*>(kernel); }

const dgpuBackendClaim* op_claim(void*, uint32_t index) { return claim(index); }

dgpuStatus_t op_plan(dgpuBackendDevice* device, const dgpuBackendOp* op, dgpuBackendPlanInfo* out_info,
                     dgpuBackendPlan** out_plan) {
  const auto s = injected(device_of(device), FaultSite::kPlan, op->name);
  return s < 0 ? s : make_plan(device_of(device), *op, out_info, out_plan);
}

void op_plan_destroy(dgpuBackendPlan* plan) { delete reinterpret_cast<Plan*>(plan); }

dgpuStatus_t metric(void* backend, uint32_t index, uint32_t id, dgpuMetric* out) {
  return guarded(backend_of(backend).services, "metric",
                 [&] { return read_metric(backend_of(backend), index, id, out); });
}

// ---- Table ---------------------------------------------------------------------------------------------------------

constexpr dgpuBackendDeviceGroup kDevice = {sizeof kDevice, device_count, device_info,
                                            device_open,    device_close, device_link};
constexpr dgpuBackendMemoryGroup kMemory = {sizeof kMemory, memory_allocate, memory_free, memory_register, memory_free};
constexpr dgpuBackendQueueGroup kQueue = {sizeof kQueue, queue_create, queue_destroy, queue_submit,
                                          queue_reset,   queue_help,   nullptr};
constexpr dgpuBackendKernelGroup kKernel = {sizeof kKernel, kernel_create, kernel_destroy};
constexpr dgpuBackendOpGroup kOp = {sizeof kOp, op_claim, op_plan, op_plan_destroy};
constexpr dgpuBackendTelemetryGroup kTelemetry = {sizeof kTelemetry, metric};
constexpr dgpuBackendTable kTable = {sizeof kTable,
                                     DGPU_BACKEND_ABI_MAJOR,
                                     DGPU_BACKEND_ABI_MINOR,
                                     "cpu",
                                     "1.0.0",
                                     "libdgpu",
                                     &kDevice,
                                     &kMemory,
                                     &kQueue,
                                     &kKernel,
                                     &kOp,
                                     &kTelemetry,
                                     initialize,
                                     shutdown};

}  // namespace
}  // namespace dgpu::cpu

extern "C" dgpuStatus_t dgpuCpuBackendQuery(uint32_t core_major, uint32_t, const dgpuBackendTable** out_table) {
  if (core_major != DGPU_BACKEND_ABI_MAJOR) {
    *out_table = nullptr;
    return DGPU_STATUS_VERSION_MISMATCH;
  }
  *out_table = &dgpu::cpu::kTable;
  return DGPU_STATUS_SUCCESS;
}
