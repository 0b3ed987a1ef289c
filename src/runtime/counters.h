// What the runtime counts per device, for the metrics.
#pragma once
#include <atomic>
#include <cstdint>

#include "backend/device.h"

namespace dgpu {

struct DeviceCounters final : backend::DeviceState {
  explicit DeviceCounters(backend::Device&) {}
  std::atomic<uint64_t> commands{0};  // retired on streams that are gone
};

}  // namespace dgpu
