// A core for tests of the cpu backend: services that record, queues that can be waited for.
#pragma once
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/cpu/backend.h"
#include "backends/cpu/task.h"

namespace dgpu::cpu {

struct Report {
  uint64_t value;
  dgpuStatus_t status;
  std::string message;
};

// What dgpuCoreQueue stands for.
class TestQueue {
 public:
  void advance(uint64_t value, dgpuStatus_t status, const char* message) {
    std::function<void(const Report&)> hook;
    {
      const std::lock_guard lock(mutex_);
      reports_.push_back({value, status, message ? message : ""});
      retired_ = value;
      hook = on_advance;
      changed_.notify_all();
    }
    if (hook) hook({value, status, message ? message : ""});
  }
  // Bounded: a hang is a failure of the test, not of the machine.
  bool wait(uint64_t value) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), [&] { return retired_ >= value; });
  }
  uint64_t retired() {
    const std::lock_guard lock(mutex_);
    return retired_;
  }
  std::vector<Report> reports() {
    const std::lock_guard lock(mutex_);
    return reports_;
  }
  // Outcome of one value, as the header of the backend defines it.
  dgpuStatus_t outcome(uint64_t value) {
    const std::lock_guard lock(mutex_);
    for (const auto& r : reports_)
      if (r.value >= value) return r.value == value ? r.status : DGPU_STATUS_SUCCESS;
    return DGPU_STATUS_NOT_READY;
  }
  std::function<void(const Report&)> on_advance;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Report> reports_;
  uint64_t retired_ = 0;
};

class TestCore {
 public:
  using Setting = std::pair<const std::string, std::string>;
  explicit TestCore(std::initializer_list<Setting> settings = {}) : settings_(settings) {
    services_.struct_size = sizeof services_;
    services_.abi_major = DGPU_BACKEND_ABI_MAJOR;
    services_.core = reinterpret_cast<dgpuCore*>(this);
    services_.advance = [](dgpuCore*, dgpuCoreQueue* q, uint64_t value, dgpuStatus_t outcome, const char* message,
                           int32_t) { reinterpret_cast<TestQueue*>(q)->advance(value, outcome, message); };
    services_.fail = [](dgpuCore* core, dgpuStatus_t status, const char*, const char* message, int32_t) {
      const std::lock_guard lock(self(core).mutex_);
      self(core).message_ = message;
      return status;
    };
    services_.config = [](dgpuCore* core, const char* name, char* buffer, size_t size, size_t* needed) {
      const auto found = self(core).settings_.find(name);
      if (found == self(core).settings_.end()) return static_cast<dgpuStatus_t>(DGPU_STATUS_NOT_FOUND);
      *needed = found->second.size() + 1;
      if (!buffer) return static_cast<dgpuStatus_t>(DGPU_STATUS_SUCCESS);
      if (size < *needed) return static_cast<dgpuStatus_t>(DGPU_STATUS_BUFFER_TOO_SMALL);
      std::memcpy(buffer, found->second.c_str(), *needed);
      return static_cast<dgpuStatus_t>(DGPU_STATUS_SUCCESS);
    };
    EXPECT_EQ(dgpuCpuBackendQuery(DGPU_BACKEND_ABI_MAJOR, DGPU_BACKEND_ABI_MINOR, &table_), 0);
    status_ = table_->initialize(&services_, &backend_);
  }
  TestCore(const TestCore&) = delete;
  ~TestCore() { shutdown(); }
  // Destroys the queues of the streams first, unless a test wants to see what happens to busy ones.
  void shutdown(bool destroy_queues = true) {
    if (destroy_queues && backend_)
      for (auto& destroy : destroy_queues_) destroy();
    if (backend_) table_->shutdown(backend_);
    backend_ = nullptr;
  }
  // Keeps a stream until no thread of the backend is left: a report may still be inside its queue.
  void keep(std::shared_ptr<void> stream, std::function<void()> destroy) {
    kept_.push_back(std::move(stream));
    destroy_queues_.push_back(std::move(destroy));
  }

  const dgpuBackendTable& table() const { return *table_; }
  void* backend() const { return backend_; }
  dgpuStatus_t status() const { return status_; }
  std::string message() {
    const std::lock_guard lock(mutex_);
    return message_;
  }
  dgpuBackendDevice* open(uint32_t index) {
    dgpuBackendDevice* device = nullptr;
    EXPECT_EQ(table_->device->open(backend_, index, nullptr, &device), 0) << message();
    return device;
  }

 private:
  static TestCore& self(dgpuCore* core) { return *reinterpret_cast<TestCore*>(core); }
  std::map<std::string, std::string> settings_;
  dgpuBackendServices services_{};
  const dgpuBackendTable* table_ = nullptr;
  void* backend_ = nullptr;
  dgpuStatus_t status_ = 0;
  std::mutex mutex_;
  std::string message_;
  std::vector<std::shared_ptr<void>> kept_;
  std::vector<std::function<void()>> destroy_queues_;
};

// A kernel made of functions.
class TestKernel : public Kernel {
 public:
  std::vector<uint32_t> chunk_counts{1};
  std::function<dgpuStatus_t(uint32_t phase, uint32_t chunk, const Args& args)> body;
  uint32_t phases() const override { return static_cast<uint32_t>(chunk_counts.size()); }
  uint32_t chunks(uint32_t phase, const Args&) const override { return chunk_counts[phase]; }
  dgpuStatus_t run(uint32_t phase, uint32_t chunk, const Args& args) const override {
    return body ? body(phase, chunk, args) : DGPU_STATUS_SUCCESS;
  }
  const char* algorithm() const override { return "test"; }
};

// One queue of one device, with storage for its commands.
class TestStream {
 public:
  TestStream(TestCore& core, dgpuBackendDevice* device, int32_t priority = 0) : core_(core) {
    dgpuBackendQueue* handle = nullptr;
    EXPECT_EQ(core.table().queue->create(device, reinterpret_cast<dgpuCoreQueue*>(&queue), priority, &handle), 0);
    handle_ = handle;
  }
  void destroy() {
    if (auto* handle = handle_.exchange(nullptr)) core_.table().queue->destroy(handle);
  }

  // Each returns the value of the command.
  uint64_t marker(uint32_t flags = 0) { return submit(DGPU_COMMAND_MARKER, nullptr, flags); }
  uint64_t run(const TestKernel* kernel, uint32_t flags = 0) {
    return submit(DGPU_COMMAND_OP, payload_of(kernel), flags);
  }
  // For the caller to submit.
  dgpuBackendCommand* make_run(const TestKernel* kernel) { return make(DGPU_COMMAND_OP, payload_of(kernel), 0); }
  const dgpuCommandOp* payload_of(const TestKernel* kernel) {
    auto& plan = plans_.emplace_back();
    plan.kernel.reset(const_cast<TestKernel*>(kernel));
    auto& op = ops_.emplace_back();
    op.struct_size = sizeof op;
    op.plan = reinterpret_cast<dgpuBackendPlan*>(&plan);
    return &op;
  }
  uint64_t launch(dgpuBackendKernel* kernel, uint64_t x, uint64_t y, uint64_t z, std::vector<uint64_t> values) {
    auto& kept = values_.emplace_back(std::move(values));
    auto& launch = launches_.emplace_back();
    launch.struct_size = sizeof launch;
    launch.kernel = kernel;
    launch.grid[0] = x;
    launch.grid[1] = y;
    launch.grid[2] = z;
    launch.values = kept.data();
    launch.count = static_cast<uint32_t>(kept.size());
    return submit(DGPU_COMMAND_KERNEL, &launch, 0);
  }
  uint64_t submit(uint32_t kind, const void* payload, uint32_t flags) {
    dgpuBackendCommand* command = make(kind, payload, flags);
    EXPECT_EQ(core_.table().queue->submit(handle_, &command, 1), 0);
    return value_;
  }
  dgpuBackendCommand* make(uint32_t kind, const void* payload, uint32_t flags) {
    auto& command = commands_.emplace_back();
    command.struct_size = sizeof command;
    command.kind = kind;
    command.flags = flags;
    command.value = ++value_;
    command.payload = payload;
    return &command;
  }
  const dgpuBackendCommand& command(uint64_t value) const { return commands_[value - 1]; }
  dgpuBackendQueue* handle() const { return handle_; }
  uint64_t value() const { return value_; }
  bool wait() { return queue.wait(value_); }

  TestQueue queue;

 private:
  // The test owns the kernels; plans only borrow them.
  struct Borrowed : Plan {
    ~Borrowed() { kernel.release(); }
  };
  TestCore& core_;
  std::atomic<dgpuBackendQueue*> handle_{nullptr};
  uint64_t value_ = 0;
  std::deque<dgpuBackendCommand> commands_;
  std::deque<Borrowed> plans_;
  std::deque<dgpuCommandOp> ops_;
  std::deque<dgpuCommandKernel> launches_;
  std::deque<std::vector<uint64_t>> values_;
};

inline TestStream& make_stream(TestCore& core, dgpuBackendDevice* device, int32_t priority = 0) {
  auto stream = std::make_shared<TestStream>(core, device, priority);
  core.keep(stream, [s = stream.get()] { s->destroy(); });
  return *stream;
}

}  // namespace dgpu::cpu
