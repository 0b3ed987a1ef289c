#include <algorithm>

#include "backends/cpu/device.h"
#include "backends/cpu/machine.h"
#include "backends/kit/abi.h"

namespace dgpu::cpu {
namespace {

constexpr uint64_t kWindowNs = 50'000'000;  // shortest window that is worth a new value

// Share of the time since the last sample that was worth one; absent until a window has passed since the device was
// opened.
void utilization(Device& device, dgpuMetric& out) {
  if (!device.opened.load()) {  // this process runs nothing there, and others are not seen
    out.absent = DGPU_ABSENT_NOT_SAMPLED;
    return;
  }
  const std::lock_guard lock(device.sample_mutex);
  const uint64_t now = now_ns();
  if (now - device.sample_ns >= kWindowNs) {
    const uint64_t busy = device.backend->executor->busy_ns(&device, device.load);
    const uint64_t spent = busy > device.sample_busy_ns ? busy - device.sample_busy_ns : 0;
    // Several queues may be busy at once; the device is then as busy as it can be.
    device.utilization = std::min(1.0, static_cast<double>(spent) / static_cast<double>(now - device.sample_ns));
    device.sample_ns = now;
    device.sample_busy_ns = busy;
    device.sampled = true;
  }
  if (device.sampled)
    out.value = device.utilization;
  else
    out.absent = DGPU_ABSENT_NOT_SAMPLED;
}

}  // namespace

dgpuStatus_t read_metric(Backend& backend, uint32_t index, uint32_t metric, dgpuMetric* out) {
  if (index >= backend.devices.size())
    return backend.services.fail(DGPU_STATUS_INVALID_ARGUMENT, "index", "cpu has {} devices, index is {}",
                                 backend.devices.size(), index);
  dgpuMetric value{};
  if (metric == DGPU_METRIC_UTILIZATION) {
    utilization(*backend.devices[index], value);
  } else if (metric == DGPU_METRIC_CLOCK) {
    value.value = cpu_clock_hz();
    if (value.value == 0) value.absent = DGPU_ABSENT_UNSUPPORTED;
  } else {
    value.absent = DGPU_ABSENT_UNSUPPORTED;
  }
  kit::write_struct(out, value);
  return DGPU_STATUS_SUCCESS;
}

}  // namespace dgpu::cpu
