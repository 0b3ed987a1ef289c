#include <fmt/core.h>

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "smi.h"

namespace smi {
namespace {

constexpr const char* kNoDeviceText = "no device found; `dgpu-smi backends --why` tells what was tried";

Sheet sheet_of(const std::vector<Device>& devices, const std::vector<std::string>& names, const char* schema) {
  Sheet s;
  s.schema = schema;
  for (const auto& n : names) {
    s.columns.push_back(n);
    s.units.push_back(find_field(n)->unit);
  }
  for (const auto& d : devices) {
    s.rows.emplace_back();
    for (const auto& n : names) s.rows.back().push_back(value_of(d, *find_field(n)));
  }
  return s;
}

// kOk, or kPartial with a line per device that did not answer.
int verdict(const std::vector<Device>& devices) {
  int exit = kOk;
  if (devices.empty()) complain(kNoDeviceText);
  for (const auto& d : devices)
    if (!d.answered) {
      complain(fmt::format("device {}: {}", d.ordinal, d.error.empty() ? "did not answer in time" : d.error));
      exit = kPartial;
    }
  return exit;
}

Wanted wanted(const std::vector<std::string>& names) {
  Wanted w;
  for (const auto& n : names)
    if (const Field* f = find_field(n); f->metric) w.metrics.push_back(f->id);
  return w;
}

// The chosen devices; an exit code other than kOk ends the command.
int gather(const Options& o, Wanted what, std::vector<Device>& out) {
  what.selector = o.device;
  out = collect(what, o.timeout_ms);
  if (o.device.empty()) return kOk;
  if (const int at = select(out, o.device); at >= 0) {
    out = {out[static_cast<size_t>(at)]};
    return kOk;
  }
  const auto silent = std::count_if(out.begin(), out.end(), [](const Device& d) { return !d.described; });
  const std::string which = silent ? fmt::format(" ({} of {} devices did not answer)", silent, out.size()) : "";
  print_error("--device " + o.device + ": no such device" + which + "; use an index, uuid:..., name:... or pci:...",
              kNotFound, o.format);
  return kNotFound;
}

std::string link_text(const dgpuLinkInfo& l) {
  switch (l.kind) {
    case DGPU_LINK_SAME:
      return "X";
    case DGPU_LINK_PCIE:
      return "PCIE";
    case DGPU_LINK_FABRIC:
      return "FABRIC";
    case DGPU_LINK_NETWORK:
      return "NET";
    default:
      return "HOST";
  }
}

const char* source_name(uint32_t source) {
  switch (source) {
    case DGPU_CONFIG_SOURCE_ENVIRONMENT:
      return "environment";
    case DGPU_CONFIG_SOURCE_CALL:
      return "call";
    default:
      return "default";
  }
}

Value text(std::string s) { return {std::move(s), ""}; }

}  // namespace

int overview(const Options& o) {
  const std::vector<std::string> columns = {"index",         "name",         "backend",     "kind",
                                            "compute.units", "memory.total", "memory.used", "utilization"};
  std::vector<Device> devices;
  if (const int exit = gather(o, wanted(columns), devices)) return exit;
  uint32_t major = 0, minor = 0, patch = 0;
  dgpuGetVersion(&major, &minor, &patch);
  if (o.format == Format::table)
    write(fmt::format("libdgpu {}.{}.{}, {} device{}\n", major, minor, patch, devices.size(),
                      devices.size() == 1 ? "" : "s"));
  if (devices.empty()) {
    if (o.format != Format::table) print(sheet_of(devices, columns, "dgpu.smi.overview/1"), o.format);
    verdict(devices);
    return Exit::kNoDevice;
  }
  print(sheet_of(devices, columns, "dgpu.smi.overview/1"), o.format);
  return verdict(devices);
}

int list(const Options& o) {
  std::vector<Device> devices;
  if (const int exit = gather(o, {}, devices)) return exit;
  print(sheet_of(devices, {"index", "uuid", "backend", "name"}, "dgpu.smi.list/1"), o.format);
  return verdict(devices);
}

int query(const Options& o) {
  if (o.list_fields) {
    Sheet s;
    s.schema = "dgpu.smi.fields/1";
    s.rows_name = "fields";
    s.columns = {"field", "unit", "help"};
    for (const auto& f : fields()) s.rows.push_back({text(f.name), text(f.unit), text(f.help)});
    print(s, o.format);
    return kOk;
  }
  std::vector<std::string> names;
  for (const auto& field : o.fields) {  // blanks around names are allowed, as in "name, index"
    const auto from = field.find_first_not_of(' '), to = field.find_last_not_of(' ');
    names.push_back(from == std::string::npos ? "" : field.substr(from, to - from + 1));
    if (std::count(names.begin(), names.end(), names.back()) > 1) {
      print_error("--fields: '" + names.back() + "' is given twice", kUsage, o.format);
      return kUsage;
    }
  }
  if (names.empty())
    for (const auto& f : fields()) names.push_back(f.name);
  for (const auto& n : names)
    if (!find_field(n)) {
      std::string known;
      for (const auto& f : fields()) known += (known.empty() ? "" : ", ") + f.name;
      print_error("--fields: unknown field '" + n + "'; known are " + known, kUsage, o.format);
      return kUsage;
    }
  std::vector<Device> devices;
  if (const int exit = gather(o, wanted(names), devices)) return exit;
  print(sheet_of(devices, names, "dgpu.smi.query/1"), o.format);
  return verdict(devices);
}

namespace {

Sheet matrix_of(const std::vector<Device>& devices) {
  Sheet s;
  s.schema = "dgpu.smi.topo.matrix/1";
  s.columns.push_back("device");
  for (size_t to = 0; !devices.empty() && to < devices[0].links.size(); ++to) s.columns.push_back(std::to_string(to));
  for (const auto& d : devices) {
    s.rows.push_back({text(std::to_string(d.ordinal))});
    for (const auto& l : d.links)
      s.rows.back().push_back(l.absent.empty() ? text(link_text(l.info)) : Value{nullptr, l.absent});
  }
  return s;
}

Sheet links_of(const std::vector<Device>& devices) {
  Sheet s;
  s.schema = "dgpu.smi.topo/1";
  s.rows_name = "links";
  s.columns = {"from", "to", "link", "hops", "bandwidth", "latency", "peer.access", "claimed"};
  s.units = {"", "", "", "", "bytes/s", "ns", "", ""};
  const auto known = [](uint64_t v) { return v ? Value{v, ""} : Value{nullptr, "unsupported"}; };
  for (const auto& d : devices)
    for (uint32_t to = 0; to < d.links.size(); ++to) {
      if (to == d.ordinal) continue;
      const auto& l = d.links[to].info;
      std::vector<Value> row = {{d.ordinal, ""},
                                {to, ""},
                                text(link_text(l)),
                                {l.hops, ""},
                                known(l.bandwidth_bytes_per_s),
                                known(l.latency_ns),
                                {l.peer_access != 0, ""},
                                {l.claimed != 0, ""}};
      if (const std::string& absent = d.links[to].absent; !absent.empty())
        for (size_t i = 2; i < row.size(); ++i) row[i] = {nullptr, absent};
      s.rows.push_back(std::move(row));
    }
  return s;
}

}  // namespace

int topo(const Options& o) {
  std::vector<Device> devices;
  Wanted what;
  what.links = true;
  if (const int exit = gather(o, what, devices)) return exit;
  print(o.matrix ? matrix_of(devices) : links_of(devices), o.format);
  if (o.matrix && o.format == Format::table)
    write("\nX itself, HOST through host memory, PCIE, FABRIC direct link of the vendor, NET network\n");
  return verdict(devices);
}

int config(const Options& o) {
  Sheet s;
  s.schema = "dgpu.smi.config/1";
  s.rows_name = "settings";
  s.columns = {"name", "value", "source", "default", "type", "help"};
  uint32_t count = 0;
  dgpuConfigCount(&count);
  for (uint32_t i = 0; i < count; ++i) {
    dgpuConfigInfo info = DGPU_CONFIG_INFO_INIT;
    if (dgpuConfigGetInfo(i, &info) != DGPU_STATUS_SUCCESS) continue;
    size_t needed = 0;
    std::string value;
    if (dgpuConfigGet(info.name, nullptr, 0, &needed) == DGPU_STATUS_SUCCESS && needed) {
      value.resize(needed);
      dgpuConfigGet(info.name, value.data(), value.size(), &needed);
      value.resize(needed - 1);
    }
    s.rows.push_back({text(info.name), text(value), text(source_name(info.source)), text(info.def), text(info.type),
                      text(info.help)});
  }
  print(s, o.format);
  for (char** e = environ; *e; ++e) {
    const std::string name(*e, std::strcspn(*e, "="));
    const bool known = std::any_of(s.rows.begin(), s.rows.end(), [&](const auto& row) { return row[0].value == name; });
    if (name.rfind("DGPU_", 0) == 0 && !known) complain(name + " is in the environment, but is none of the settings");
  }
  return kOk;
}

int backends(const Options& o) {
  uint32_t count = 0;
  dgpuBackendCount(&count);
  Sheet s;
  s.rows_name = "backends";
  if (o.why) {
    s.schema = "dgpu.smi.attempts/1";
    s.columns = {"tried", "name", "taken", "reason"};
    uint32_t attempts = 0;
    dgpuBackendAttemptCount(&attempts);
    for (uint32_t i = 0; i < attempts; ++i) {
      dgpuBackendAttempt a = DGPU_BACKEND_ATTEMPT_INIT;
      if (dgpuBackendAttemptGet(i, &a) != DGPU_STATUS_SUCCESS) continue;
      s.rows.push_back({text(a.path), text(a.name), {a.accepted != 0, ""}, text(a.reason)});
    }
    print(s, o.format);
    return kOk;
  }
  s.schema = "dgpu.smi.backends/1";
  s.columns = {"name", "version", "vendor", "abi", "devices", "path"};
  for (uint32_t i = 0; i < count; ++i) {
    dgpuBackend_t backend = nullptr;
    dgpuBackendInfo info = DGPU_BACKEND_INFO_INIT;
    if (dgpuBackendGet(i, &backend) != DGPU_STATUS_SUCCESS || dgpuBackendGetInfo(backend, &info) != DGPU_STATUS_SUCCESS)
      continue;
    s.rows.push_back({text(info.name),
                      text(info.version),
                      text(info.vendor),
                      text(fmt::format("{}.{}", info.abi_major, info.abi_minor)),
                      {info.device_count, ""},
                      text(info.built_in ? "(built in)" : info.path)});
  }
  print(s, o.format);
  return kOk;
}

}  // namespace smi
