// What the host is, and how much of it this process may use.
#pragma once
#include <cstdint>
#include <string>

namespace dgpu::cpu {

struct Machine {
  std::string model;      // "AMD EPYC 9354", "" if unknown
  uint32_t packages = 1;  // sockets
  uint32_t cores = 1;     // physical cores of the machine
  uint32_t pus = 1;       // hardware threads of the machine
  uint32_t numa_nodes = 1;
  uint64_t l1d_bytes = 0;  // per core; 0: unknown
  uint64_t l2_bytes = 0;   // per core
  uint64_t l3_bytes = 0;   // one shared cache
};

// Discovered with hwloc on the first call (some milliseconds).
const Machine& machine();

// Hardware threads that this process may run on at once: affinity mask, limited by the cgroup quota (rounded up).
uint32_t usable_cores();
// Bytes of memory that this process may use: physical memory, limited by the cgroup.
uint64_t usable_memory();
// Processor name from /proc/cpuinfo.
std::string cpu_model();
// Mean current clock in hertz, 0 if unknown.
double cpu_clock_hz();

// Limits of the cgroups that a process is in, v1 and v2, over all ancestors. `root` is where the cgroup file systems
// are mounted, `self` the text of /proc/self/cgroup. 0: no limit.
double cgroup_cpu_quota(const std::string& root, const std::string& self);
uint64_t cgroup_memory_limit(const std::string& root, const std::string& self);

// Stable over runs and boots of one machine: a hash of the machine id and the index, in the form of a UUID.
std::string device_uuid(uint32_t index);

}  // namespace dgpu::cpu
