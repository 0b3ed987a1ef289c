// Injected faults of virtual devices, as the topology file lists them. Format: docs/virtual-devices.md.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "backends/cpu/json_fields.h"
#include "dgpu/status.h"

namespace dgpu::cpu {

// What fails. All but kCopy and kDevice are entries of one device.
enum class FaultSite : uint32_t { kCommand, kCopy, kAllocation, kPin, kStream, kPlan, kKernel, kOpen, kDevice };

struct Fault {
  FaultSite site = FaultSite::kCommand;
  uint32_t device = 0;       // of copies: the source
  uint32_t to = 0;           // of copies: the destination
  uint64_t at = 1;           // the first occurrence that fails, counted from 1
  uint64_t count = 1;        // occurrences in a row that fail; 0: all that follow
  uint64_t after_bytes = 0;  // allocations: the sum that is still granted
  bool by_bytes = false;     // after_bytes counts, not at
  bool reports = true;       // a lost device still reports the commands that it holds
  dgpuStatus_t status = DGPU_STATUS_SUCCESS;
  std::string text;  // what the failure says
};

// Reads the array `faults` of the document. Throws with the place.
std::vector<Fault> parse_faults(const json& array, uint32_t devices);

}  // namespace dgpu::cpu
