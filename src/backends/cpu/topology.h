// Claimed links between virtual devices, from the JSON file that DGPU_CPU_TOPOLOGY names. Format: README.md here.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

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
  // Reads the claims of a document. False with `error` naming the place and the accepted form.
  bool parse(const std::string& text, std::string* error);
  bool load(const std::string& path, std::string* error);
  const Link& link(uint32_t from, uint32_t to) const { return links_[from * devices_ + to]; }

 private:
  uint32_t devices_;
  std::vector<Link> links_;  // [from * devices + to]
};

}  // namespace dgpu::cpu
