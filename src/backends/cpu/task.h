// What a command does, as phases of chunks. Tasks live in their queue's slot: starting one allocates nothing.
#pragma once
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "backends/cpu/host_kernel.h"
#include "backends/cpu/kernel.h"

namespace dgpu::cpu {

class Task {
 public:
  virtual ~Task() = default;
  virtual uint32_t phases() const { return 1; }
  // See Kernel. At most kMaxChunks.
  virtual uint32_t chunks(uint32_t phase) const = 0;
  // May throw. An error's text is in kit::failure().
  virtual dgpuStatus_t run(uint32_t phase, uint32_t chunk) const = 0;
  // User code: never run by a thread that only helps, and of unknown duration.
  virtual bool user() const { return false; }
  // Runs on a user thread, chunks in order.
  virtual bool may_block() const { return false; }

  static constexpr uint32_t kMaxChunks = (1u << 31) - 1;
};

class CopyTask : public Task {
 public:
  explicit CopyTask(const dgpuCommandCopy& copy);
  uint32_t chunks(uint32_t phase) const override;
  dgpuStatus_t run(uint32_t phase, uint32_t chunk) const override;

 private:
  char* dst_;
  const char* src_;
  uint64_t dst_pitch_, src_pitch_, width_, rows_;
  uint64_t columns_;         // pieces of a row
  uint64_t rows_per_chunk_;  // 1 where a row has several pieces
  bool overlap_;             // one chunk, in a safe order
  bool stream_;              // too large for the caches: bypass them
};

class FillTask : public Task {
 public:
  explicit FillTask(const dgpuCommandFill& fill);
  uint32_t chunks(uint32_t phase) const override;
  dgpuStatus_t run(uint32_t phase, uint32_t chunk) const override;

 private:
  char* dst_;
  uint64_t pattern_, size_;
  uint32_t pattern_size_;
};

class KernelTask final : public Task {
 public:
  explicit KernelTask(const dgpuCommandKernel& launch);
  uint32_t chunks(uint32_t phase) const override;
  dgpuStatus_t run(uint32_t phase, uint32_t chunk) const override;
  bool user() const override { return true; }
  bool may_block() const override { return kernel_->may_block(); }

 private:
  const HostKernel* kernel_;
  const dgpuCommandKernel* launch_;
  uint64_t points_;
  uint64_t points_per_chunk_;
  bool overflow_;  // more points than 64 bits count
};

// A planned operator; what dgpuBackendPlan stands for.
struct Plan {
  std::unique_ptr<Kernel> kernel;
  uint32_t ports = 0;
};

class OpTask : public Task {
 public:
  // `ports` must stay valid while the task runs.
  OpTask(const dgpuCommandOp& command, std::vector<void*>& ports);
  uint32_t phases() const override { return kernel_->phases(); }
  uint32_t chunks(uint32_t phase) const override { return kernel_->chunks(phase, args_); }
  dgpuStatus_t run(uint32_t phase, uint32_t chunk) const override { return kernel_->run(phase, chunk, args_); }

 private:
  const Kernel* kernel_;
  Args args_;
};

// Room for the task of one command.
class TaskSlot {
 public:
  // Makes the task of a command that is not a marker. An error's text is in kit::failure().
  dgpuStatus_t make(const dgpuBackendCommand& command);
  Task* task() const { return task_; }

 private:
  std::variant<std::monostate, CopyTask, FillTask, KernelTask, OpTask> slot_;
  std::vector<void*> ports_;  // of the running operator; grows to the largest one
  Task* task_ = nullptr;
};

}  // namespace dgpu::cpu
