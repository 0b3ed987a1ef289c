#include "smi.h"

namespace smi {
namespace {

enum Info : uint32_t { kIndex, kName, kUuid, kBackend, kKind, kPci, kUnits, kNuma, kHost, kTotal, kMaxAlloc };

std::string metric_field(std::string name) {
  for (auto& c : name) c = c == '_' ? '.' : static_cast<char>(std::tolower(c));
  return name;
}

const char* kind_name(uint32_t kind) {
  switch (kind) {
    case DGPU_DEVICE_KIND_CPU:
      return "cpu";
    case DGPU_DEVICE_KIND_GPU:
      return "gpu";
    case DGPU_DEVICE_KIND_NPU:
      return "npu";
    default:
      return "other";
  }
}

Value present(Json value) { return {std::move(value), ""}; }
Value text_or_absent(const char* text) { return *text ? present(text) : Value{nullptr, "unsupported"}; }

}  // namespace

const std::vector<Field>& fields() {
  static const std::vector<Field> all = [] {
    std::vector<Field> f = {
        {"index", "", "ordinal of the device, as dgpuDeviceGet takes it", false, kIndex},
        {"name", "", "name that the backend gives", false, kName},
        {"uuid", "", "stable identity of the device", false, kUuid},
        {"backend", "", "backend that drives it", false, kBackend},
        {"kind", "", "cpu, gpu, npu or other", false, kKind},
        {"pci", "", "PCI address", false, kPci},
        {"compute.units", "count", "cores or the like that it may use at most", false, kUnits},
        {"numa.node", "", "NUMA node that it is close to", false, kNuma},
        {"host.accessible", "", "whether the host may read and write its memory", false, kHost},
        {"memory.total", "bytes", "capacity of its memory", false, kTotal},
        {"memory.max.alloc", "bytes", "largest single allocation", false, kMaxAlloc},
    };
#define SMI_METRIC(name, id, unit, text) f.push_back({metric_field(#name), unit, text, true, id});
    DGPU_METRIC_LIST(SMI_METRIC)
#undef SMI_METRIC
    return f;
  }();
  return all;
}

const Field* find_field(const std::string& name) {
  for (const auto& f : fields())
    if (f.name == name) return &f;
  return nullptr;
}

Value value_of(const Device& d, const Field& field) {
  if (field.id == kIndex && !field.metric) return present(d.ordinal);
  if (!d.described) return {nullptr, d.error.empty() ? "timeout" : d.error};
  if (field.metric) return d.metrics.at(field.id);
  switch (field.id) {
    case kName:
      return text_or_absent(d.info.name);
    case kUuid:
      return text_or_absent(d.info.uuid);
    case kBackend:
      return text_or_absent(d.info.backend);
    case kKind:
      return present(kind_name(d.info.kind));
    case kPci:
      return text_or_absent(d.info.pci);
    case kUnits:
      return present(d.info.compute_units);
    case kNuma:
      return d.info.numa_node < 0 ? Value{nullptr, "unsupported"} : present(d.info.numa_node);
    case kHost:
      return present(d.info.host_accessible != 0);
    case kTotal:
      return present(d.info.memory_bytes);
    case kMaxAlloc:
      return present(d.info.max_alloc_bytes);
    default:
      return {nullptr, "unsupported"};
  }
}

}  // namespace smi
