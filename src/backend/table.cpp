// Negotiation: a plugin's table is copied group by group up to its struct_size and checked for what must be there.
#include "backend/table.h"

#include <algorithm>
#include <cctype>
#include <cstring>

#include "backend/device.h"

namespace dgpu::backend {
namespace {

constexpr uint32_t kNameMax = 31;

template <typename T>
void copy_group(const T* group, T& out) {
  if (!group) return;
  const size_t size = std::min(group->struct_size, sizeof(T));
  std::memcpy(static_cast<void*>(&out), group, size);
  out.struct_size = sizeof(T);
}

Status refuse(const char* what) {
  return fail(DGPU_STATUS_BACKEND_REFUSED, what, "its table lacks {}, which every backend must have", what);
}

Status check_required(const Table& t) {
  if (!t.top.initialize) return refuse("initialize");
  if (!t.top.shutdown) return refuse("shutdown");
  if (!t.device.count) return refuse("device.count");
  if (!t.device.info) return refuse("device.info");
  if (!t.device.open) return refuse("device.open");
  if (!t.device.close) return refuse("device.close");
  if (!t.memory.allocate) return refuse("memory.allocate");
  if (!t.memory.free) return refuse("memory.free");
  if (!t.queue.create) return refuse("queue.create");
  if (!t.queue.destroy) return refuse("queue.destroy");
  if (!t.queue.submit) return refuse("queue.submit");
  if (!t.queue.reset) return refuse("queue.reset");
  return DGPU_STATUS_SUCCESS;
}

}  // namespace

Status check_backend_name(std::string_view name) {
  const bool good = !name.empty() && name.size() <= kNameMax && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
  if (good) return DGPU_STATUS_SUCCESS;
  return fail(DGPU_STATUS_BACKEND_REFUSED, "name", "its name is '{}'; accepted are 1 to {} of a-z 0-9 _ -",
              name.substr(0, 64), kNameMax);
}

Status negotiate_table(dgpuBackendQueryFunction query, Table& out, uint32_t& out_minor) {
  const dgpuBackendTable* plugin = nullptr;
  const Status answer = query(DGPU_BACKEND_ABI_MAJOR, DGPU_BACKEND_ABI_MINOR, &plugin);
  if (answer == DGPU_STATUS_VERSION_MISMATCH) {
    return fail(DGPU_STATUS_BACKEND_REFUSED, "abi_major", "it does not speak backend ABI {}.{} of this library",
                DGPU_BACKEND_ABI_MAJOR, DGPU_BACKEND_ABI_MINOR);
  }
  if (answer != DGPU_STATUS_SUCCESS || !plugin) {
    return fail(DGPU_STATUS_BACKEND_REFUSED, "dgpuBackendQuery", "its dgpuBackendQuery answered {} and {} table",
                answer, plugin ? "a" : "no");
  }
  if (plugin->struct_size < offsetof(dgpuBackendTable, name)) {
    return fail(DGPU_STATUS_BACKEND_REFUSED, "struct_size", "its table says struct_size {}, which is too small",
                plugin->struct_size);
  }
  if (plugin->abi_major != DGPU_BACKEND_ABI_MAJOR) {
    return fail(DGPU_STATUS_BACKEND_REFUSED, "abi_major",
                "it was built for backend ABI {}.{}, this library speaks {}.{}; majors must match", plugin->abi_major,
                plugin->abi_minor, DGPU_BACKEND_ABI_MAJOR, DGPU_BACKEND_ABI_MINOR);
  }
  out = Table{};
  copy_group(plugin, out.top);
  copy_group(out.top.device, out.device);
  copy_group(out.top.memory, out.memory);
  copy_group(out.top.queue, out.queue);
  copy_group(out.top.kernel, out.kernel);
  copy_group(out.top.op, out.op);
  copy_group(out.top.telemetry, out.telemetry);
  out_minor = std::min<uint32_t>(plugin->abi_minor, DGPU_BACKEND_ABI_MINOR);
  DGPU_TRY(check_backend_name(out.top.name ? out.top.name : ""));
  return check_required(out);
}

}  // namespace dgpu::backend
