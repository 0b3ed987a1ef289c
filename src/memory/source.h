// Where pools take their segments from.
#pragma once
#include <string>

#include "runtime/address_table.h"
#include "runtime/context.h"

namespace dgpu::memory {

class SegmentSource {
 public:
  virtual ~SegmentSource() = default;
  // Fills memory, native, host, size, registered. OUT_OF_MEMORY or OUT_OF_HOST_MEMORY when nothing is left.
  virtual Status allocate(uint64_t size, Segment& out) = 0;
  virtual void release(Segment& segment) noexcept = 0;
  virtual std::string label() const = 0;
  virtual uint64_t capacity() const = 0;  // 0: unknown
  virtual Status check_usable() const = 0;
  virtual Status exhausted() const = 0;  // the status for "nothing is left"
  // Bytes that pools of other contexts hold of the same device.
  virtual uint64_t held_elsewhere() const { return 0; }
  // Makes them give back what they hold free. Without any pool's lock.
  virtual void reclaim_elsewhere() {}
};

class DeviceSource final : public SegmentSource {
 public:
  DeviceSource(Context& context, uint32_t device) : context_(context), index_(device) {}
  Status allocate(uint64_t size, Segment& out) override;
  void release(Segment& segment) noexcept override;
  std::string label() const override { return device().label(); }
  uint64_t capacity() const override { return device().info().memory_bytes; }
  Status check_usable() const override { return device().check_usable(); }
  Status exhausted() const override { return DGPU_STATUS_OUT_OF_MEMORY; }
  uint64_t held_elsewhere() const override;
  void reclaim_elsewhere() override;

 private:
  template <typename F>
  void for_others(F call) const;
  backend::Device& device() const { return context_.device(index_); }
  Context& context_;  // owns this
  const uint32_t index_;
};

// Pinned host memory: pages from mimalloc, registered with every device that wants to know.
class HostSource final : public SegmentSource {
 public:
  explicit HostSource(Context& context) : context_(context) {}
  Status allocate(uint64_t size, Segment& out) override;
  void release(Segment& segment) noexcept override;
  std::string label() const override { return "pinned host memory"; }
  uint64_t capacity() const override { return 0; }
  Status check_usable() const override { return DGPU_STATUS_SUCCESS; }
  Status exhausted() const override { return DGPU_STATUS_OUT_OF_HOST_MEMORY; }

 private:
  Context& context_;
};

}  // namespace dgpu::memory
