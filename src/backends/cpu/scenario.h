// What the topology file makes happen: copies that take as long as their link claims, and injected faults. Devices have
// one only if the file asks for either, so that commands otherwise pay a single test.
#pragma once
#include <atomic>
#include <deque>
#include <memory>
#include <vector>

#include "backends/cpu/faults.h"
#include "backends/cpu/services.h"
#include "backends/cpu/topology.h"

namespace dgpu::cpu {

struct Backend;

class Scenario {
 public:
  // Null if the topology has neither pacing nor faults.
  static std::unique_ptr<Scenario> create(Backend& backend);
  Scenario(Backend& backend, const Topology& topology);

  // What becomes of a command that is about to run; `failed`: its queue has failed, so that it does not run anyway.
  struct Verdict {
    enum class What { kRun, kFail, kDrop };  // kDrop: never reported
    What what = What::kRun;
    dgpuStatus_t status = DGPU_STATUS_SUCCESS;
    const char* text = nullptr;
    uint64_t due_ns = 0;  // not reported before; 0: at once
  };
  Verdict before(uint32_t device, const dgpuBackendCommand& command, bool failed);

  // An entry that is about to succeed. SUCCESS, or a failure with its text in the core's record. `size` of allocations.
  dgpuStatus_t entry(FaultSite site, uint32_t device, const char* object, uint64_t size = 0);
  bool paces() const { return paces_; }

 private:
  struct Armed {
    explicit Armed(const Fault& what) : fault(what) {}
    const Fault fault;
    std::atomic<uint64_t> seen{0};  // occurrences; bytes granted with by_bytes
    bool strikes(uint64_t size);
  };
  struct PerDevice {
    std::atomic<const Fault*> lost{nullptr};
  };
  const Fault* find(FaultSite site, uint32_t device, uint32_t to, uint64_t size);
  const Fault* lose(uint32_t device, const Fault& fault);
  uint64_t travel(uint32_t from, uint32_t to, uint64_t bytes);

  Backend& backend_;
  const Topology& topology_;
  const bool paces_;
  std::deque<Armed> faults_;
  std::vector<PerDevice> devices_;
  std::vector<std::atomic<uint64_t>> link_free_ns_;  // [from * devices + to]: when what is on the link has arrived
};

}  // namespace dgpu::cpu
