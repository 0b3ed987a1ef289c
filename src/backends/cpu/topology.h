// The JSON file that DGPU_CPU_TOPOLOGY names: claimed links between virtual devices, whether copies keep to them, and
// injected faults. Format: docs/virtual-devices.md.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "backends/cpu/faults.h"
#include "dgpu/device.h"

namespace dgpu::cpu {

struct Link {
  uint32_t kind = DGPU_LINK_HOST;
  uint32_t hops = 1;
  bool peer_access = true;  // all virtual devices share the host's memory
  bool claimed = false;
  uint64_t bandwidth_bytes_per_s = 0;
  uint64_t latency_ns = 0;
};

class Topology {
 public:
  explicit Topology(uint32_t devices);
  // Reads a document. False with `error` naming the place and the accepted form; then nothing has changed.
  bool parse(const std::string& text, std::string* error);
  bool load(const std::string& path, std::string* error);
  const Link& link(uint32_t from, uint32_t to) const { return links_[from * devices_ + to]; }
  // Copies between devices take at least as long as their link claims.
  bool pacing() const { return pacing_; }
  const std::vector<Fault>& faults() const { return faults_; }

 private:
  uint32_t devices_;
  std::vector<Link> links_;  // [from * devices + to]
  bool pacing_ = false;
  std::vector<Fault> faults_;
};

}  // namespace dgpu::cpu
