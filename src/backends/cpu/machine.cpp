#include "backends/cpu/machine.h"

#include <fmt/core.h>
#include <hwloc.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <vector>

namespace dgpu::cpu {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream out;
  out << in.rdbuf();
  return in ? out.str() : std::string();
}

// Directories of one controller ("" for v2) from the process's cgroup up to the root.
std::vector<std::string> cgroup_directories(const std::string& root, const std::string& self,
                                            const std::string& controller) {
  std::vector<std::string> directories;
  std::istringstream lines(self);
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string names = "," + line.substr(first + 1, second - first - 1) + ",";
    if (controller.empty() ? names != ",," : names.find("," + controller + ",") == std::string::npos) continue;
    std::string path = line.substr(second + 1);
    const std::string base = controller.empty() ? root : root + "/" + controller;
    while (path.size() > 1) {
      directories.push_back(base + path);
      path.erase(path.rfind('/'));
    }
    directories.push_back(base);
  }
  return directories;
}

uint32_t affinity_count() {
  // A mask larger than the static one on machines with more than 1024 hardware threads.
  for (int size = 1024; size <= 1 << 16; size *= 4) {
    cpu_set_t* set = CPU_ALLOC(size);
    if (!set) break;
    const size_t bytes = CPU_ALLOC_SIZE(size);
    const bool ok = sched_getaffinity(0, bytes, set) == 0;
    const int count = ok ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (ok) return static_cast<uint32_t>(std::max(count, 1));
  }
  return static_cast<uint32_t>(std::max(sysconf(_SC_NPROCESSORS_ONLN), 1L));
}

uint64_t cache_bytes(hwloc_topology_t topology, hwloc_obj_type_t type) {
  const hwloc_obj_t cache = hwloc_get_obj_by_type(topology, type, 0);
  return cache && cache->attr ? cache->attr->cache.size : 0;
}

Machine discover() {
  Machine m;
  m.model = cpu_model();
  m.cores = m.pus = affinity_count();
  hwloc_topology_t topology;
  if (hwloc_topology_init(&topology) != 0) return m;
  if (hwloc_topology_load(topology) == 0) {
    const auto count = [&](hwloc_obj_type_t type) {
      return static_cast<uint32_t>(std::max(hwloc_get_nbobjs_by_type(topology, type), 1));
    };
    m.packages = count(HWLOC_OBJ_PACKAGE);
    m.cores = count(HWLOC_OBJ_CORE);
    m.pus = count(HWLOC_OBJ_PU);
    m.numa_nodes = count(HWLOC_OBJ_NUMANODE);
    m.l1d_bytes = cache_bytes(topology, HWLOC_OBJ_L1CACHE);
    m.l2_bytes = cache_bytes(topology, HWLOC_OBJ_L2CACHE);
    m.l3_bytes = cache_bytes(topology, HWLOC_OBJ_L3CACHE);
  }
  hwloc_topology_destroy(topology);
  return m;
}

// FNV-1a, twice with different starts, for 128 bits.
uint64_t hash(const std::string& text, uint64_t start) {
  uint64_t h = start;
  for (const unsigned char c : text) h = (h ^ c) * 0x100000001b3ull;
  return h ^ (h >> 29);
}

}  // namespace

const Machine& machine() {
  static const Machine instance = discover();
  return instance;
}

double cgroup_cpu_quota(const std::string& root, const std::string& self) {
  double limit = 0;
  const auto take = [&](double quota, double period) {
    if (quota > 0 && period > 0 && (limit == 0 || quota / period < limit)) limit = quota / period;
  };
  for (const auto& directory : cgroup_directories(root, self, "")) {
    std::istringstream text(read_file(directory + "/cpu.max"));  // "max 100000" or "150000 100000"
    double quota = 0, period = 0;
    if (text >> quota >> period) take(quota, period);
  }
  for (const auto& directory : cgroup_directories(root, self, "cpu")) {
    std::istringstream quota_text(read_file(directory + "/cpu.cfs_quota_us"));  // -1: none
    std::istringstream period_text(read_file(directory + "/cpu.cfs_period_us"));
    double quota = 0, period = 0;
    if (quota_text >> quota && period_text >> period) take(quota, period);
  }
  return limit;
}

uint64_t cgroup_memory_limit(const std::string& root, const std::string& self) {
  uint64_t limit = 0;
  const auto take = [&](const std::string& path) {
    std::istringstream text(read_file(path));
    uint64_t bytes = 0;
    if (text >> bytes && bytes > 0 && (limit == 0 || bytes < limit)) limit = bytes;
  };
  for (const auto& directory : cgroup_directories(root, self, "")) take(directory + "/memory.max");
  for (const auto& directory : cgroup_directories(root, self, "memory")) take(directory + "/memory.limit_in_bytes");
  return limit;
}

uint32_t usable_cores() {
  const uint32_t cores = affinity_count();
  const double quota = cgroup_cpu_quota("/sys/fs/cgroup", read_file("/proc/self/cgroup"));
  if (quota <= 0 || quota >= cores) return cores;
  return static_cast<uint32_t>(std::ceil(quota));
}

uint64_t usable_memory() {
  const uint64_t physical =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t limit = cgroup_memory_limit("/sys/fs/cgroup", read_file("/proc/self/cgroup"));
  return limit && limit < physical ? limit : physical;
}

std::string cpu_model() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (line.rfind("model name", 0) == 0 && line.find(": ") != std::string::npos)
      return line.substr(line.find(": ") + 2);
  return {};
}

double cpu_clock_hz() {
  std::ifstream in("/proc/cpuinfo");
  double sum = 0;
  uint32_t count = 0;
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("cpu MHz", 0) != 0 || line.find(": ") == std::string::npos) continue;
    sum += std::strtod(line.c_str() + line.find(": ") + 2, nullptr);
    ++count;
  }
  return count ? sum / count * 1e6 : 0;
}

std::string device_uuid(uint32_t index) {
  std::string id = read_file("/etc/machine-id");
  if (id.empty()) id = read_file("/var/lib/dbus/machine-id");
  if (id.empty()) {
    char host[256] = {};
    gethostname(host, sizeof host - 1);
    id = std::string(host) + cpu_model();
  }
  while (!id.empty() && (id.back() == '\n' || id.back() == ' ')) id.pop_back();
  const std::string text = "libdgpu cpu " + id + " " + std::to_string(index);
  // RFC 9562 version 8 (custom), variant 10.
  const uint64_t high = (hash(text, 0xcbf29ce484222325ull) & ~0xf000ull) | 0x8000ull;
  const uint64_t low = (hash(text, 0x84222325cbf29ce4ull) & ~(3ull << 62)) | (2ull << 62);
  return fmt::format("{:08x}-{:04x}-{:04x}-{:04x}-{:012x}", high >> 32, (high >> 16) & 0xffff, high & 0xffff, low >> 48,
                     low & 0xffffffffffffull);
}

}  // namespace dgpu::cpu
