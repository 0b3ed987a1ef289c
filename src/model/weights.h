// From checkpoint tensors to the weights that operators want: dense, row-major, assembled from strided blocks.
#pragma once
#include "graph/program.h"
#include "model/safetensors.h"

namespace dgpu::model {

// Every tensor that the program needs is there with the right shape and a usable type. The error names the first fault
// and counts the others.
Status check_tensors(const graph::Program& program, const Checkpoint& checkpoint);

// Type in which a weight is kept on the device: as stored; f32 where its tensors differ or are f64; i32/i64 as stored.
dgpuDtype_t weight_dtype(const graph::Program& program, const Checkpoint& checkpoint, const graph::Weight& weight);

// A run of bytes of the checkpoint that goes to one place of the weight unchanged.
struct Run {
  const TensorInfo* tensor = nullptr;
  uint64_t src = 0;  // bytes from the start of the tensor
  uint64_t dst = 0;  // bytes from the start of the weight
  uint64_t bytes = 0;
};
// The runs of a weight, or empty if some block needs element-wise work (a transpose, a slice with stride, a
// conversion).
std::vector<Run> weight_runs(const graph::Program& program, const Checkpoint& checkpoint, const graph::Weight& weight,
                             dgpuDtype_t dtype);

// Assembles the whole weight in host memory, in `dtype` (f64 is accepted, too). Reads the file in parts of a few MiB.
Status assemble(const graph::Program& program, const Checkpoint& checkpoint, const graph::Weight& weight,
                dgpuDtype_t dtype, void* dst);

}  // namespace dgpu::model
