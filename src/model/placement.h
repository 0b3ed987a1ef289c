// The weights of a model on one device. Immutable once made; shared by sessions.
#pragma once
#include <functional>

#include "graph/program.h"
#include "model/safetensors.h"
#include "runtime/context.h"

namespace dgpu::model {

struct PlacementOptions {
  dgpuDtype_t compute = DGPU_DTYPE_F32;
  uint64_t max_host_bytes = 256u << 20;
  bool mapped = false;  // weights that lie in the file as the device wants them stay there
  std::function<bool(uint64_t done, uint64_t total, const char* what)> progress;  // false cancels
};

class Placement {
 public:
  // Checks every tensor, allocates one block, reads the checkpoint into it. Blocks. On failure nothing stays allocated.
  // With options.mapped, and where the device computes on host memory, whole tensors are used in the mapped file.
  static Status create(const graph::Program& program, const Checkpoint& checkpoint, Ref<Context> context,
                       uint32_t device, const PlacementOptions& options, std::shared_ptr<Placement>& out);
  ~Placement();
  Placement(const Placement&) = delete;
  Placement& operator=(const Placement&) = delete;

  Context& context() const { return *context_; }
  const Ref<Context>& context_ref() const { return context_; }
  uint32_t device() const { return device_; }
  dgpuDtype_t compute() const { return compute_; }
  dgpuAddr_t address(graph::Id weight) const { return addresses_[weight]; }
  dgpuDtype_t dtype(graph::Id weight) const { return dtypes_[weight]; }
  dgpuAddr_t block() const { return block_; }
  bool mapped(graph::Id weight) const { return addresses_[weight] - block_ >= bytes_; }

 private:
  void place_in_files(const graph::Program& program, const Checkpoint& checkpoint);
  Placement(Ref<Context> context, uint32_t device, dgpuDtype_t compute)
      : context_(std::move(context)), device_(device), compute_(compute) {}
  Ref<Context> context_;
  uint32_t device_;
  dgpuDtype_t compute_;
  dgpuAddr_t block_ = 0;
  uint64_t bytes_ = 0;                 // of the block
  std::vector<dgpuAddr_t> files_;      // mappings, by file of the checkpoint; 0: not used
  std::vector<dgpuAddr_t> addresses_;  // by weight
  std::vector<dgpuDtype_t> dtypes_;
};

}  // namespace dgpu::model
