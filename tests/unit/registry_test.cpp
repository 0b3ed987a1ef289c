// The registry's contract with the rooms above: device loss, drain, busy memory, code that is still in use.
#include "backend/registry.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "base/clock.h"

namespace dgpu::backend {
namespace {

std::string null_manifest() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "lib/dgpu/backends/null.json";
}

struct FakeRuntime final : RuntimeLink {
  int lost = 0;
  int drained = 0;
  std::string message;
  bool new_work_refused = false;
  void device_lost(Device&, std::string_view text) noexcept override {
    ++lost;
    message = text;
  }
  void drain(Backend& backend, uint64_t) noexcept override {
    ++drained;
    new_work_refused = backend.devices()[0]->check_usable() == DGPU_STATUS_INVALID_HANDLE;
  }
};

struct FakeMemory final : MemoryLink {
  std::string list;
  int released = 0;
  std::string live(Backend&) override { return list; }
  void release(Backend&) noexcept override { ++released; }
};

class RegistryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(null_manifest())) GTEST_SKIP() << "the null backend is not built: " << null_manifest();
    ASSERT_EQ(library_init(DGPU_INIT_OPTIONS_INIT), 0);
    ready_ = true;
    ASSERT_EQ(registry().load(null_manifest(), backend_), 0) << last_error().message;
  }
  void TearDown() override {
    if (!ready_) return;
    registry().set_runtime(nullptr);
    registry().set_memory(nullptr);
    backend_.reset();
    ASSERT_EQ(library_shutdown(), 0);
  }
  bool ready_ = false;
  Ref<Backend> backend_;
};

TEST_F(RegistryTest, MissingGroupsAreNull) {
  Device& device = *backend_->devices()[0];
  EXPECT_FALSE(device.has_kernels());
  EXPECT_FALSE(device.has_ops());
  EXPECT_TRUE(backend_->claims().empty());
  EXPECT_EQ(device.memory().register_host, nullptr);
  EXPECT_EQ(device.queue().help, nullptr);
  EXPECT_NE(device.queue().submit, nullptr);
}

TEST_F(RegistryTest, ADeviceIsOpenedOnce) {
  Device& device = *backend_->devices()[0];
  EXPECT_EQ(device.opened(), nullptr);
  dgpuBackendDevice* first = nullptr;
  dgpuBackendDevice* second = nullptr;
  ASSERT_EQ(device.open(&first), 0);
  ASSERT_EQ(device.open(&second), 0);
  EXPECT_EQ(first, second);
  EXPECT_EQ(device.opened(), first);
}

TEST_F(RegistryTest, AQueueReportsThroughItsSink) {
  struct Sink final : QueueSink {
    uint64_t value = 0;
    dgpuStatus_t outcome = 1;
    void advance(uint64_t v, dgpuStatus_t status, const char*, int32_t) noexcept override {
      value = v;
      outcome = status;
    }
  } reports;
  Device& device = *backend_->devices()[0];
  dgpuBackendDevice* opened = nullptr;
  ASSERT_EQ(device.open(&opened), 0);
  dgpuBackendQueue* queue = nullptr;
  ASSERT_EQ(device.queue().create(opened, token(&reports), 0, &queue), 0);
  dgpuBackendCommand command{sizeof(command)};
  command.kind = DGPU_COMMAND_MARKER;
  command.value = 9;
  dgpuBackendCommand* commands[] = {&command};
  ASSERT_EQ(device.queue().submit(queue, commands, 1), 0);
  EXPECT_EQ(reports.value, 9u);
  EXPECT_EQ(reports.outcome, 0);
  device.queue().destroy(queue);
}

TEST_F(RegistryTest, MemoryOfTheNullDeviceIsLimited) {
  Device& device = *backend_->devices()[0];
  dgpuBackendDevice* opened = nullptr;
  ASSERT_EQ(device.open(&opened), 0);
  dgpuBackendAllocation block{sizeof(block)};
  ASSERT_EQ(device.memory().allocate(opened, 60 << 20, &block), 0);
  EXPECT_EQ(block.native % 256, 0u);
  dgpuBackendAllocation more{sizeof(more)};
  EXPECT_EQ(device.memory().allocate(opened, 5 << 20, &more), DGPU_STATUS_OUT_OF_MEMORY);
  EXPECT_STREQ(last_error().backend, "null");
  device.memory().free(opened, block.memory);
  ASSERT_EQ(device.memory().allocate(opened, 64 << 20, &more), 0);
  device.memory().free(opened, more.memory);
}

TEST_F(RegistryTest, ALostDeviceIsReportedOnce) {
  FakeRuntime runtime;
  registry().set_runtime(&runtime);
  Device& device = *backend_->devices()[0];
  device.report_lost("pulled out");
  device.report_lost("again");
  EXPECT_EQ(runtime.lost, 1);
  EXPECT_EQ(runtime.message, "pulled out");
  EXPECT_EQ(device.check_usable(), DGPU_STATUS_DEVICE_LOST);
  dgpuBackendDevice* opened = nullptr;
  EXPECT_EQ(device.open(&opened), DGPU_STATUS_DEVICE_LOST);
  dgpuMetric metric = DGPU_METRIC_INIT;
  device.metric(DGPU_METRIC_POWER, metric);
  EXPECT_EQ(metric.absent, static_cast<uint32_t>(DGPU_ABSENT_DEVICE_LOST));
}

TEST_F(RegistryTest, LiveMemoryMakesUnloadBusyAndChangesNothing) {
  FakeRuntime runtime;
  FakeMemory memory;
  registry().set_runtime(&runtime);
  registry().set_memory(&memory);
  memory.list = "null device 0: 2 allocations, 4096 bytes";
  EXPECT_EQ(registry().unload(*backend_, 0), DGPU_STATUS_BUSY);
  EXPECT_NE(std::string(last_error().message).find("2 allocations"), std::string::npos);
  EXPECT_EQ(runtime.drained, 0);
  EXPECT_EQ(backend_->devices()[0]->check_usable(), 0);
  EXPECT_EQ(registry().ordinal(*backend_->devices()[0]), registry().devices().size() - 1);
  memory.list.clear();
  EXPECT_EQ(registry().unload(*backend_, 0), 0);
  EXPECT_EQ(runtime.drained, 1);
  EXPECT_TRUE(runtime.new_work_refused);
  EXPECT_EQ(memory.released, 1);
}

TEST_F(RegistryTest, CodeStaysWhileACallUsesIt) {
  Ref<Device> device = backend_->devices()[0];
  dgpuBackendDevice* opened = nullptr;
  ASSERT_EQ(device->open(&opened), 0);
  EXPECT_EQ(registry().unload(*backend_, 1000000), DGPU_STATUS_TIMEOUT);
  EXPECT_NE(device->opened(), nullptr);
  Ref<Backend> again;
  EXPECT_EQ(registry().load(null_manifest(), again), DGPU_STATUS_BUSY);
  std::thread user([&] {
    device.reset();
  });
  user.join();
  ASSERT_EQ(registry().load(null_manifest(), again), 0) << last_error().message;
  EXPECT_EQ(registry().unload(*again, 1000000), 0);
}

TEST_F(RegistryTest, RoomStateGoesBeforeTheDeviceCloses) {
  static int made = 0;
  static int open_at_death = 0;
  struct Room final : DeviceState {
    explicit Room(Device& d) : device(d) { ++made; }
    ~Room() override { open_at_death += device.opened() != nullptr; }
    Device& device;
  };
  made = open_at_death = 0;
  dgpuBackendDevice* opened = nullptr;
  ASSERT_EQ(backend_->devices()[0]->open(&opened), 0);
  Room& room = backend_->devices()[0]->state<Room>();
  EXPECT_EQ(&room, &backend_->devices()[0]->state<Room>());
  EXPECT_EQ(registry().unload(*backend_, 0), 0);
  EXPECT_EQ(made, 1);
  EXPECT_EQ(open_at_death, 1);
}

TEST_F(RegistryTest, TheCoreAnswersItsOwnMetricsFirst) {
  registry().add_metric_source([](Device&, uint32_t metric, dgpuMetric& out) {
    if (metric != DGPU_METRIC_UTILIZATION) return false;
    out.value = 17;
    return true;
  });
  dgpuMetric metric = DGPU_METRIC_INIT;
  backend_->devices()[0]->count_commands(3);
  backend_->devices()[0]->metric(DGPU_METRIC_COMMANDS, metric);
  EXPECT_EQ(metric.value, 3);
  backend_->devices()[0]->metric(DGPU_METRIC_UTILIZATION, metric);
  EXPECT_EQ(metric.value, 17);
  EXPECT_EQ(metric.absent, 0u);
  backend_->devices()[0]->metric(DGPU_METRIC_CLOCK, metric);
  EXPECT_EQ(metric.absent, static_cast<uint32_t>(DGPU_ABSENT_UNSUPPORTED));
}

}  // namespace
}  // namespace dgpu::backend
