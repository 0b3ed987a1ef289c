#include "backends/cpu/task.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "backends/cpu/copy.h"

namespace dgpu::cpu {
namespace {

constexpr uint64_t kCopyChunk = 1 << 20;         // bytes; about 100 us
constexpr uint64_t kStreamThreshold = 32 << 20;  // bytes; beyond the last-level cache of common processors
constexpr uint64_t kMaxPoints = 16384;           // grid points per chunk
constexpr uint64_t kGridChunks = 256;            // chunks of a grid with fewer points than that allows

uint64_t divide_up(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }

char* pointer(const dgpuBackendRef& ref) { return reinterpret_cast<char*>(ref.native); }

}  // namespace

CopyTask::CopyTask(const dgpuCommandCopy& c)
    : dst_(pointer(c.dst)),
      src_(pointer(c.src)),
      dst_pitch_(c.dst_pitch),
      src_pitch_(c.src_pitch),
      width_(c.width),
      rows_(c.rows) {
  if (rows_ > 1 && dst_pitch_ == width_ && src_pitch_ == width_) {
    width_ *= rows_;
    rows_ = 1;
  }
  columns_ = divide_up(width_, kCopyChunk);
  rows_per_chunk_ = columns_ > 1 ? 1 : std::max<uint64_t>(1, kCopyChunk / std::max<uint64_t>(width_, 1));
  const uint64_t last = rows_ ? rows_ - 1 : 0;
  overlap_ = dst_ < src_ + last * src_pitch_ + width_ && src_ < dst_ + last * dst_pitch_ + width_;
  stream_ = width_ * rows_ > kStreamThreshold;
}

uint32_t CopyTask::chunks(uint32_t) const {
  if (width_ == 0 || rows_ == 0) return 0;
  if (overlap_) return 1;
  return static_cast<uint32_t>(std::min<uint64_t>(columns_ * divide_up(rows_, rows_per_chunk_), kMaxChunks));
}

dgpuStatus_t CopyTask::run(uint32_t, uint32_t chunk) const {
  if (overlap_) {
    const bool backwards = dst_ > src_;
    for (uint64_t i = 0; i < rows_; ++i) {
      const uint64_t row = backwards ? rows_ - 1 - i : i;
      std::memmove(dst_ + row * dst_pitch_, src_ + row * src_pitch_, width_);
    }
    return DGPU_STATUS_SUCCESS;
  }
  const auto copy = stream_ ? stream_copy : plain_copy;
  if (columns_ > 1) {
    const uint64_t row = chunk / columns_;
    const uint64_t offset = chunk % columns_ * kCopyChunk;
    copy(dst_ + row * dst_pitch_ + offset, src_ + row * src_pitch_ + offset, std::min(kCopyChunk, width_ - offset));
    return DGPU_STATUS_SUCCESS;
  }
  const uint64_t first = chunk * rows_per_chunk_;
  const uint64_t end = std::min(rows_, first + rows_per_chunk_);
  for (uint64_t row = first; row < end; ++row) copy(dst_ + row * dst_pitch_, src_ + row * src_pitch_, width_);
  return DGPU_STATUS_SUCCESS;
}

FillTask::FillTask(const dgpuCommandFill& c)
    : dst_(pointer(c.dst)), pattern_(c.pattern), size_(c.size), pattern_size_(c.pattern_size) {}

uint32_t FillTask::chunks(uint32_t) const {
  return static_cast<uint32_t>(std::min<uint64_t>(divide_up(size_, kCopyChunk), kMaxChunks));
}

dgpuStatus_t FillTask::run(uint32_t, uint32_t chunk) const {
  const uint64_t offset = chunk * kCopyChunk;
  fill_pattern(dst_ + offset, pattern_, pattern_size_, std::min(kCopyChunk, size_ - offset));
  return DGPU_STATUS_SUCCESS;
}

KernelTask::KernelTask(const dgpuCommandKernel& launch)
    : kernel_(reinterpret_cast<const HostKernel*>(launch.kernel)), launch_(&launch) {
  uint64_t plane = 0;
  overflow_ = __builtin_mul_overflow(launch.grid[0], launch.grid[1], &plane) ||
              __builtin_mul_overflow(plane, launch.grid[2], &points_);
  overflow_ = overflow_ && launch.grid[0] && launch.grid[1] && launch.grid[2];
  if (!launch.grid[0] || !launch.grid[1] || !launch.grid[2]) points_ = 0;
  points_per_chunk_ = std::clamp<uint64_t>(divide_up(points_, kGridChunks), 1, kMaxPoints);
  points_per_chunk_ = std::max(points_per_chunk_, divide_up(points_, kMaxChunks));
}

uint32_t KernelTask::chunks(uint32_t) const {
  return overflow_ ? 1 : static_cast<uint32_t>(divide_up(points_, points_per_chunk_));
}

dgpuStatus_t KernelTask::run(uint32_t, uint32_t chunk) const {
  if (overflow_)
    return kit::fail(DGPU_STATUS_INVALID_ARGUMENT,
                     fmt::format("kernel {}: the grid has more than 2^64 points", kernel_->name()));
  const uint64_t first = chunk * points_per_chunk_;
  return kernel_->run(*launch_, first, std::min(points_, first + points_per_chunk_));
}

OpTask::OpTask(const dgpuCommandOp& command, std::vector<void*>& ports)
    : kernel_(reinterpret_cast<const Plan*>(command.plan)->kernel.get()),
      args_{ports.data(), command.symbols, pointer(command.workspace)} {
  for (uint32_t i = 0; i < command.port_count; ++i) ports[i] = pointer(command.ports[i]);
}

dgpuStatus_t TaskSlot::make(const dgpuBackendCommand& command) {
  switch (command.kind) {
    case DGPU_COMMAND_COPY:
      task_ = &slot_.emplace<CopyTask>(*static_cast<const dgpuCommandCopy*>(command.payload));
      return DGPU_STATUS_SUCCESS;
    case DGPU_COMMAND_FILL:
      task_ = &slot_.emplace<FillTask>(*static_cast<const dgpuCommandFill*>(command.payload));
      return DGPU_STATUS_SUCCESS;
    case DGPU_COMMAND_KERNEL:
      task_ = &slot_.emplace<KernelTask>(*static_cast<const dgpuCommandKernel*>(command.payload));
      return DGPU_STATUS_SUCCESS;
    case DGPU_COMMAND_OP: {
      const auto& op = *static_cast<const dgpuCommandOp*>(command.payload);
      const Plan& plan = *reinterpret_cast<const Plan*>(op.plan);
      if (op.port_count != plan.ports)
        return kit::fail(
            DGPU_STATUS_INVALID_ARGUMENT,
            fmt::format("{}: {} ports given, the plan has {}", plan.kernel->algorithm(), op.port_count, plan.ports));
      if (!op.workspace.native && plan.kernel->workspace_bytes())
        return kit::fail(
            DGPU_STATUS_INVALID_ARGUMENT,
            fmt::format("{}: needs a workspace of {} bytes", plan.kernel->algorithm(), plan.kernel->workspace_bytes()));
      if (ports_.size() < op.port_count) ports_.resize(op.port_count);
      task_ = &slot_.emplace<OpTask>(op, ports_);
      return DGPU_STATUS_SUCCESS;
    }
    default:
      return kit::fail(DGPU_STATUS_UNSUPPORTED, fmt::format("command kind {} is not known to cpu", command.kind));
  }
}

}  // namespace dgpu::cpu
