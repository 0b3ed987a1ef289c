#include "backends/cpu/faults.h"

#include <cstring>

namespace dgpu::cpu {
namespace {

constexpr size_t kMaxFaults = 256;
constexpr uint64_t kMost = 1'000'000'000'000'000;  // occurrences and bytes
constexpr size_t kMaxMessage = 200;

struct Kind {
  const char* name;
  FaultSite site;
  dgpuStatus_t status;  // unless the fault states another
  const char* what;     // "command 3 of cpu device 0"
};
constexpr Kind kKinds[] = {
    {"command", FaultSite::kCommand, DGPU_STATUS_COMMAND_FAILED, "command"},
    {"copy", FaultSite::kCopy, DGPU_STATUS_COMMAND_FAILED, "copy"},
    {"allocation", FaultSite::kAllocation, DGPU_STATUS_OUT_OF_MEMORY, "allocation"},
    {"pin", FaultSite::kPin, DGPU_STATUS_OUT_OF_HOST_MEMORY, "pinning"},
    {"stream", FaultSite::kStream, DGPU_STATUS_OUT_OF_HOST_MEMORY, "stream"},
    {"plan", FaultSite::kPlan, DGPU_STATUS_OUT_OF_HOST_MEMORY, "plan"},
    {"kernel", FaultSite::kKernel, DGPU_STATUS_OUT_OF_HOST_MEMORY, "kernel"},
    {"open", FaultSite::kOpen, DGPU_STATUS_INTERNAL, "opening"},
    {"device", FaultSite::kDevice, DGPU_STATUS_DEVICE_LOST, "device"},
};

const Kind& parse_kind(const json& object, const std::string& where) {
  std::string names;
  for (const Kind& kind : kKinds) {
    if (object.contains("fail") && object["fail"] == kind.name) return kind;
    names += names.empty() ? kind.name : std::string(", ") + kind.name;
  }
  reject(where + ".fail", "must be one of " + names);
}

struct StatusRow {
  const char* name;
  dgpuStatus_t value;
  bool injectable;  // a status that a device may give; the rest are the caller's or the library's own
};
constexpr bool injectable(const char* cls, dgpuStatus_t value) {
  if (value == DGPU_STATUS_UNSUPPORTED || value == DGPU_STATUS_INTERNAL) return true;
  if (value == DGPU_STATUS_STREAM_FAILED) return false;
  return std::string_view(cls) == "RESOURCE" || std::string_view(cls) == "STREAM";
}
constexpr StatusRow kStatuses[] = {
#define DGPU_CPU_ROW(name, value, cls, text) {#name, value, injectable(#cls, value)},
    DGPU_STATUS_LIST(DGPU_CPU_ROW)
#undef DGPU_CPU_ROW
};

dgpuStatus_t parse_status(const json& object, const std::string& where, dgpuStatus_t fallback) {
  if (!object.contains("status")) return fallback;
  std::string names;
  for (const StatusRow& row : kStatuses) {
    if (!row.injectable) continue;
    if (object["status"] == row.name) return row.value;
    names += names.empty() ? row.name : std::string(", ") + row.name;
  }
  reject(where + ".status", "must be one of " + names);
}

void check_fault_keys(const json& object, const std::string& where, FaultSite site) {
  switch (site) {
    case FaultSite::kCopy:
      return check_keys(object, where, {"fail", "from", "to", "at", "count", "status", "message"});
    case FaultSite::kDevice:
      return check_keys(object, where, {"fail", "device", "after", "reports", "message"});
    case FaultSite::kAllocation:
      if (object.contains("after_bytes"))
        return check_keys(object, where, {"fail", "device", "after_bytes", "status", "message"});
      return check_keys(object, where, {"fail", "device", "at", "count", "after_bytes", "status", "message"});
    default:
      return check_keys(object, where, {"fail", "device", "at", "count", "status", "message"});
  }
}

std::string describe(const Fault& fault, const char* what) {
  if (fault.site == FaultSite::kDevice)
    return fmt::format("cpu device {} is lost after {} commands", fault.device, fault.at - 1);
  if (fault.by_bytes)
    return fmt::format("cpu device {} allocates nothing beyond {} bytes", fault.device, fault.after_bytes);
  const std::string which = fault.count == 1   ? fmt::format("{} {}", what, fault.at)
                            : fault.count == 0 ? fmt::format("{} {} and all that follow", what, fault.at)
                                               : fmt::format("{} {} to {}", what, fault.at, fault.at + fault.count - 1);
  if (fault.site == FaultSite::kCopy)
    return fmt::format("{} from cpu device {} to {} fails", which, fault.device, fault.to);
  return fmt::format("{} of cpu device {} fails", which, fault.device);
}

Fault parse_fault(const json& object, const std::string& where, uint32_t devices) {
  if (!object.is_object()) reject(where, "must be an object");
  const Kind& kind = parse_kind(object, where);
  check_fault_keys(object, where, kind.site);
  Fault fault;
  fault.site = kind.site;
  fault.device = device_index(object, where, kind.site == FaultSite::kCopy ? "from" : "device", devices);
  if (kind.site == FaultSite::kCopy) {
    fault.to = device_index(object, where, "to", devices);
    if (fault.device == fault.to) reject(where, fmt::format("copies inside device {} use no link", fault.to));
  }
  fault.by_bytes = object.contains("after_bytes");
  fault.after_bytes = whole(object, where, "after_bytes", 0, 0, kMost);
  fault.at = kind.site == FaultSite::kDevice ? whole(object, where, "after", 0, 0, kMost) + 1
                                             : whole(object, where, "at", 1, 1, kMost);
  fault.count = kind.site == FaultSite::kDevice ? 0 : whole(object, where, "count", 1, 0, kMost);
  fault.reports = flag(object, where, "reports", true);
  fault.status = parse_status(object, where, kind.status);
  fault.text = fmt::format("injected by {}: {}", where, describe(fault, kind.what));
  if (object.contains("message")) {
    const json& message = object["message"];
    if (!message.is_string() || message.get_ref<const std::string&>().size() > kMaxMessage)
      reject(where + ".message", fmt::format("must be a text of at most {} bytes", kMaxMessage));
    fault.text = message.get<std::string>() + " (" + fault.text + ")";
  }
  return fault;
}

}  // namespace

std::vector<Fault> parse_faults(const json& array, uint32_t devices) {
  if (!array.is_array()) reject("faults", "must be an array");
  if (array.size() > kMaxFaults) reject("faults", fmt::format("has {} entries, at most {}", array.size(), kMaxFaults));
  std::vector<Fault> faults;
  for (size_t i = 0; i < array.size(); ++i) {
    const std::string where = fmt::format("faults[{}]", i);
    faults.push_back(parse_fault(array[i], where, devices));
    for (size_t j = 0; j < i; ++j)
      if (faults[i].site == FaultSite::kDevice && faults[j].site == FaultSite::kDevice &&
          faults[i].device == faults[j].device)
        reject(where, fmt::format("device {} is lost by faults[{}] already", faults[i].device, j));
  }
  return faults;
}

}  // namespace dgpu::cpu
