// Contexts: a set of devices that share pools and plans.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "backend/device.h"
#include "base/handle.h"
#include "dgpu/device.h"
#include "runtime/timeline.h"

namespace dgpu {

class Runtime;
class Stream;

// What the memory room keeps per context; it casts back. Destroyed with the context, when no stream is left.
class ContextMemory {
 public:
  virtual ~ContextMemory() = default;
  // A stream is going; everything on it has retired. Pools hold its timeline, which holds the context: they let go now.
  virtual void stream_gone() noexcept = 0;
};

class Context final : public Object {
 public:
  static constexpr Kind kKind = Kind::context;
  // Opens the devices. The caller publishes the handle.
  static Status create(std::vector<Ref<backend::Device>> devices, uint32_t flags, Ref<Context>& out);
  ~Context() override;

  Runtime& runtime() const { return runtime_; }
  uint32_t device_count() const { return static_cast<uint32_t>(devices_.size()); }
  backend::Device& device(uint32_t index) const { return *devices_[index]; }
  // Position of the device in the context. INVALID_ARGUMENT if it has no such device.
  Status device_index(const backend::Device& device, uint32_t& out) const;
  bool has_device_of(const backend::Backend& backend) const;
  bool helping() const { return !(flags_ & DGPU_CONTEXT_NO_HELPING); }
  // Publish the handles of what belongs to the context here: destroying the context retires them.
  HandleScope* scope() const { return scope_.get(); }
  void invalidated() override { scope_->invalidate(); }

  ContextMemory* memory() const { return memory_.load(std::memory_order_acquire); }
  void set_memory(std::unique_ptr<ContextMemory> memory) { memory_.store(memory.release(), std::memory_order_release); }

  // Living streams; references keep them from going.
  std::vector<Ref<Stream>> streams() const;
  // Devices lost so far. What is made at a count cannot be known to the streams that were lost at a smaller one.
  uint32_t losses() const { return losses_.load(std::memory_order_acquire); }
  // What has been submitted and not retired now, on all streams that can know an address made at the count `born`.
  // Whoever found the address alive before it was retired is counted.
  struct Point {
    Ref<Timeline> timeline;
    uint64_t value;
  };
  std::vector<Point> pending(uint32_t born = 0) const;
  Status synchronize(uint64_t timeout_ns);

  // Ends all blocking waits with `status` and cancels what is not handed to a backend yet.
  void interrupt(Status status) noexcept;
  void device_lost(const backend::Device& device, std::string_view message) noexcept;

  void add_stream(Stream* stream);
  void remove_stream(Stream* stream);
  void add_timeline(Timeline* timeline);
  void remove_timeline(Timeline* timeline);

  // Links of the runtime's list.
  Context* list_next = nullptr;
  Context* list_prev = nullptr;

 private:
  Context(std::vector<Ref<backend::Device>> devices, uint32_t flags, Runtime& runtime);

  Runtime& runtime_;
  const std::vector<Ref<backend::Device>> devices_;
  const uint32_t flags_;
  const Ref<HandleScope> scope_ = HandleScope::create();
  std::atomic<ContextMemory*> memory_{nullptr};  // owned; set while other threads already find the context in the list
  mutable std::mutex mutex_;                     // the lists; a stream's submit lock may be taken inside
  Stream* streams_ = nullptr;
  Timeline* timelines_ = nullptr;
  std::atomic<int32_t> interrupted_{0};
  std::atomic<uint32_t> losses_{0};
};

// DGPU_STATUS_CONTEXT_MISMATCH unless both are the same.
Status same_context(const Context* a, const Context* b, const char* argument);

}  // namespace dgpu
