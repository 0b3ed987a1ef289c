// What a planned operator is on the cpu backend: phases of independent chunks.
//
// The executor runs phase 0's chunks in any order on any threads, then phase 1's, and so on. The partition into
// chunks depends on the plan, the symbols and the data only, never on the number of threads, and no chunk's result
// depends on which other chunks ran before it in the same phase: results do not change with the machine.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "backends/kit/op_view.h"

namespace dgpu::cpu {

// What one execution brings. Lives in the command; valid until the last chunk returns.
struct Args {
  void* const* ports;      // native address per port index of the plan, null where the port is unset
  const int64_t* symbols;  // values of the operator's symbols, at most their stated maxima
  void* workspace;         // Kernel::workspace_bytes() bytes, 64-byte aligned, null when 0
};

// A planned operator. Immutable after creation: concurrent executions share it and differ in Args alone.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual uint32_t phases() const { return 1; }
  // Chunks of a phase; asked when the previous phase is complete, so it may read data that phase wrote. 0 skips it.
  virtual uint32_t chunks(uint32_t phase, const Args& args) const = 0;
  // Runs one chunk. Never blocks, allocates only thread-local scratch that it keeps. A chunk aims at 20 to 200 us.
  // Returns DGPU_STATUS_SUCCESS, or an error with text from kit::fail() (out-of-range data and the like).
  virtual dgpuStatus_t run(uint32_t phase, uint32_t chunk, const Args& args) const = 0;
  virtual size_t workspace_bytes() const { return 0; }
  virtual const char* algorithm() const = 0;  // static storage; shown in the plan's info
};

// Makes the kernel of one operator, or null with `reason` set when this backend cannot run the description.
// The core has already validated the description against the schema and inferred the outputs.
using KernelFactory = std::unique_ptr<Kernel> (*)(const kit::OpView& op, std::string* reason);

// One row of kernels.def: what is claimed, and how it is made. Several entries of one operator are alternatives; the
// first factory that accepts a description wins.
struct KernelEntry {
  const char* op;
  KernelFactory make;
  const dgpuBackendClaim* claim;  // static storage; what the core may offer, see dgpu/backend.h
};

}  // namespace dgpu::cpu
