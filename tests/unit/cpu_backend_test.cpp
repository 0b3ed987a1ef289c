// The cpu backend through its table: devices, memory, copies, libffi kernels, telemetry.
#include <thread>

#include "backends/cpu/executor.h"
#include "backends/kit/op_view.h"
#include "cpu_test_core.h"

namespace dgpu::cpu {
namespace {

dgpuBackendRef ref(const void* pointer) { return {nullptr, 0, reinterpret_cast<uint64_t>(pointer)}; }

// ---- Settings and devices ------------------------------------------------------------------------------------------

TEST(CpuBackend, RefusesAnotherMajor) {
  const dgpuBackendTable* table = nullptr;
  EXPECT_EQ(dgpuCpuBackendQuery(DGPU_BACKEND_ABI_MAJOR + 1, 0, &table), DGPU_STATUS_VERSION_MISMATCH);
  EXPECT_EQ(table, nullptr);
}

TEST(CpuBackend, VirtualDevicesHaveStableDistinctIdentities) {
  std::vector<std::string> first;
  for (int run = 0; run < 2; ++run) {
    TestCore core{{"DGPU_CPU_DEVICES", "3"}, {"DGPU_CPU_MEMORY", "64M"}};
    uint32_t count = 0;
    ASSERT_EQ(core.table().device->count(core.backend(), &count), 0);
    ASSERT_EQ(count, 3u);
    for (uint32_t i = 0; i < count; ++i) {
      dgpuDeviceInfo info = DGPU_DEVICE_INFO_INIT;
      info.ordinal = 77;
      ASSERT_EQ(core.table().device->info(core.backend(), i, &info), 0);
      EXPECT_EQ(info.ordinal, 77u) << "the ordinal is the core's";
      EXPECT_EQ(info.memory_bytes, 64u << 20);
      EXPECT_EQ(info.kind, uint32_t{DGPU_DEVICE_KIND_CPU});
      EXPECT_EQ(std::string(info.uuid).size(), 36u);
      EXPECT_EQ(info.uuid[14], '8');
      if (run == 0) {
        for (const auto& other : first) EXPECT_NE(other, info.uuid);
        first.push_back(info.uuid);
      } else {
        EXPECT_EQ(first[i], info.uuid);
      }
    }
    dgpuDeviceInfo info = DGPU_DEVICE_INFO_INIT;
    EXPECT_EQ(core.table().device->info(core.backend(), 3, &info), DGPU_STATUS_INVALID_ARGUMENT);
    EXPECT_EQ(core.message(), "cpu has 3 devices, index is 3");
  }
}

TEST(CpuBackend, InfoIsWrittenUpToTheCallersSize) {
  TestCore core;
  dgpuDeviceInfo info = DGPU_DEVICE_INFO_INIT;
  info.struct_size = offsetof(dgpuDeviceInfo, max_alloc_bytes);
  info.max_alloc_bytes = 0x1234;
  ASSERT_EQ(core.table().device->info(core.backend(), 0, &info), 0);
  EXPECT_EQ(info.max_alloc_bytes, 0x1234u);
  EXPECT_GT(info.memory_bytes, 0u);
}

TEST(CpuBackend, WrongSettingsAreNamed) {
  const struct {
    const char *name, *value, *message;
  } cases[] = {
      {"DGPU_CPU_DEVICES", "0", "DGPU_CPU_DEVICES=0 is not a whole number from 1 to 64"},
      {"DGPU_CPU_DEVICES", "2x", "DGPU_CPU_DEVICES=2x is not a whole number from 1 to 64"},
      {"DGPU_CPU_MEMORY", "12Q", "DGPU_CPU_MEMORY=12Q is not a size such as 512M, 16G or 1048576"},
      {"DGPU_CPU_ISA", "mmx", "DGPU_CPU_ISA=mmx: \"mmx\" is not one of auto, scalar, sse4, avx2, avx512"},
      {"DGPU_CPU_BF16", "on", "DGPU_CPU_BF16=on: \"on\" is not one of auto, dot, fma"},
  };
  for (const auto& c : cases) {
    TestCore core{{c.name, c.value}};
    EXPECT_EQ(core.status(), DGPU_STATUS_INVALID_ARGUMENT);
    EXPECT_EQ(core.message(), c.message);
  }
}

// ---- Memory --------------------------------------------------------------------------------------------------------

TEST(CpuMemory, LimitIsExactToTheByte) {
  TestCore core{{"DGPU_CPU_DEVICES", "2"}, {"DGPU_CPU_MEMORY", "1000000"}};
  const auto& memory = *core.table().memory;
  dgpuBackendDevice *first = core.open(0), *second = core.open(1);
  dgpuBackendAllocation a{sizeof a, nullptr, 0, nullptr}, b = a, c = a;
  ASSERT_EQ(memory.allocate(first, 400'001, &a), 0);
  ASSERT_EQ(memory.allocate(first, 600'000, &b), DGPU_STATUS_OUT_OF_MEMORY);
  EXPECT_EQ(core.message(),
            "cpu device 0: 600000 bytes asked, 599999 of 1000000 bytes free, 1 missing; free memory or raise "
            "DGPU_CPU_MEMORY");
  ASSERT_EQ(memory.allocate(first, 599'999, &b), 0);
  EXPECT_EQ(memory.allocate(first, 1, &c), DGPU_STATUS_OUT_OF_MEMORY);
  ASSERT_EQ(memory.allocate(second, 1'000'000, &c), 0) << "each device has its own limit";
  memory.free(first, a.memory);
  EXPECT_EQ(memory.allocate(first, 400'002, &a), DGPU_STATUS_OUT_OF_MEMORY);
  ASSERT_EQ(memory.allocate(first, 400'001, &a), 0);
  memory.free(first, a.memory);
  memory.free(first, b.memory);
  memory.free(second, c.memory);
}

TEST(CpuMemory, BlocksAreAlignedZeroedAndWritable) {
  TestCore core{{"DGPU_CPU_MEMORY", "64M"}};
  dgpuBackendDevice* device = core.open(0);
  for (const uint64_t size : {uint64_t{1}, uint64_t{4097}, uint64_t{2} << 20, (uint64_t{5} << 20) + 12345}) {
    dgpuBackendAllocation a{sizeof a, nullptr, 0, nullptr};
    ASSERT_EQ(core.table().memory->allocate(device, size, &a), 0);
    EXPECT_EQ(a.native % (size >= 2 << 20 ? 2 << 20 : 256), 0u);
    auto* bytes = static_cast<unsigned char*>(a.host);
    EXPECT_EQ(reinterpret_cast<uint64_t>(bytes), a.native);
    for (const uint64_t i : {uint64_t{0}, size / 2, size - 1}) EXPECT_EQ(bytes[i], 0);
    std::memset(bytes, 0xa5, size);
    core.table().memory->free(device, a.memory);
  }
}

TEST(CpuMemory, HugeRequestsAreRefusedNotMapped) {
  TestCore core{{"DGPU_CPU_MEMORY", "64M"}};
  dgpuBackendAllocation a{sizeof a, nullptr, 0, nullptr};
  EXPECT_EQ(core.table().memory->allocate(core.open(0), UINT64_MAX, &a), DGPU_STATUS_OUT_OF_MEMORY);
  EXPECT_EQ(core.table().memory->allocate(core.open(0), 0, &a), DGPU_STATUS_INVALID_ARGUMENT);
}

// ---- Copies and fills ----------------------------------------------------------------------------------------------

struct CopyShape {
  uint64_t width, rows, dst_pitch, src_pitch;
};
class CpuCopy : public testing::TestWithParam<CopyShape> {};
INSTANTIATE_TEST_SUITE_P(Shapes, CpuCopy,
                         testing::Values(CopyShape{1, 1, 0, 0}, CopyShape{0, 5, 8, 8}, CopyShape{7, 0, 8, 8},
                                         CopyShape{100, 33, 100, 100}, CopyShape{100, 33, 128, 101},
                                         CopyShape{3'000'001, 1, 0, 0}, CopyShape{1'500'000, 3, 1'600'000, 1'500'007},
                                         CopyShape{300, 20'000, 300, 512}, CopyShape{40'000'003, 1, 0, 0}));

TEST_P(CpuCopy, MovesTheBytesAndNothingElse) {
  TestCore core{{"DGPU_CPU_THREADS", "2"}};
  TestStream& stream = make_stream(core, core.open(0));
  const CopyShape& s = GetParam();
  const auto extent = [&](uint64_t pitch) { return s.rows ? (s.rows - 1) * pitch + s.width : 0; };
  std::vector<unsigned char> src(extent(s.src_pitch) + 1), dst(extent(s.dst_pitch) + 64, 0xee), expected;
  for (size_t i = 0; i < src.size(); ++i) src[i] = static_cast<unsigned char>(i * 2654435761u >> 13);
  expected = dst;
  for (uint64_t row = 0; row < s.rows; ++row)
    for (uint64_t i = 0; i < s.width; ++i) expected[row * s.dst_pitch + i] = src[row * s.src_pitch + i];
  dgpuCommandCopy copy{};
  copy.struct_size = sizeof copy;
  copy.dst = ref(dst.data());
  copy.src = ref(src.data());
  copy.dst_pitch = s.dst_pitch;
  copy.src_pitch = s.src_pitch;
  copy.width = s.width;
  copy.rows = s.rows;
  stream.submit(DGPU_COMMAND_COPY, &copy, 0);
  ASSERT_TRUE(stream.wait());
  EXPECT_EQ(stream.queue.outcome(1), 0);
  EXPECT_TRUE(dst == expected);
}

TEST(CpuCopies, OverlappingRangesBehaveLikeMemmove) {
  TestCore core{{"DGPU_CPU_THREADS", "2"}};
  TestStream& stream = make_stream(core, core.open(0));
  constexpr uint64_t kSize = 3'000'000;
  for (const int64_t shift : {+100, -100}) {
    std::vector<unsigned char> bytes(kSize + 200), expected;
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(i * 40503u >> 7);
    expected = bytes;
    std::memmove(expected.data() + 100 + shift, expected.data() + 100, kSize);
    dgpuCommandCopy copy{};
    copy.struct_size = sizeof copy;
    copy.dst = ref(bytes.data() + 100 + shift);
    copy.src = ref(bytes.data() + 100);
    copy.width = kSize;
    copy.rows = 1;
    stream.submit(DGPU_COMMAND_COPY, &copy, 0);
    ASSERT_TRUE(stream.wait());
    EXPECT_TRUE(bytes == expected);
  }
}

TEST(CpuCopies, FillRepeatsThePattern) {
  TestCore core{{"DGPU_CPU_THREADS", "2"}};
  TestStream& stream = make_stream(core, core.open(0));
  const uint64_t pattern = 0x8877665544332211ull;
  for (const uint32_t pattern_size : {1u, 2u, 4u, 8u}) {
    for (const uint64_t count : {0u, 1u, 3u, 5000u, 700'001u}) {
      const uint64_t size = count * pattern_size;
      std::vector<unsigned char> bytes(size + 16, 0xee);
      dgpuCommandFill fill{};
      fill.struct_size = sizeof fill;
      fill.dst = ref(bytes.data());
      fill.pattern = pattern;
      fill.size = size;
      fill.pattern_size = pattern_size;
      stream.submit(DGPU_COMMAND_FILL, &fill, 0);
      ASSERT_TRUE(stream.wait());
      bool right = true;
      for (uint64_t i = 0; i < bytes.size(); ++i)
        right = right && bytes[i] == (i < size ? static_cast<unsigned char>(0x11 * (i % pattern_size + 1)) : 0xee);
      EXPECT_TRUE(right) << pattern_size << " x " << count;
    }
  }
}

// ---- Kernels through libffi ----------------------------------------------------------------------------------------

class CpuKernel : public testing::Test {
 protected:
  dgpuBackendKernel* create(dgpuKernelFunction function, std::vector<uint32_t> params, uint32_t flags = 0,
                            void* user = nullptr) {
    dgpuBackendKernelDesc desc{sizeof desc, "test", function, params.data(), static_cast<uint32_t>(params.size()),
                               flags,       user};
    dgpuBackendKernel* kernel = nullptr;
    EXPECT_EQ(core.table().kernel->create(device, &desc, &kernel), 0) << core.message();
    return kernel;
  }
  TestCore core{{"DGPU_CPU_THREADS", "2"}};
  dgpuBackendDevice* device = core.open(0);
};

void write_all(void* user, uint64_t x, int32_t a, uint32_t b, uint64_t y, int64_t c, uint64_t d, float e, double f,
               uint64_t z, double* out) {
  double* row = out + ((z * 3 + y) * 5 + x) * 7;
  const double values[] = {static_cast<double>(a),
                           static_cast<double>(b),
                           static_cast<double>(c),
                           static_cast<double>(d),
                           static_cast<double>(e),
                           f,
                           static_cast<double>(*static_cast<int*>(user))};
  std::copy(std::begin(values), std::end(values), row);
}

TEST_F(CpuKernel, EveryArgumentTypeArrivesAtEveryPoint) {
  int user = 42;
  dgpuBackendKernel* kernel =
      create(reinterpret_cast<dgpuKernelFunction>(write_all),
             {DGPU_PARAM_USER, DGPU_PARAM_GX, DGPU_ARG_I32, DGPU_ARG_U32, DGPU_PARAM_GY, DGPU_ARG_I64, DGPU_ARG_U64,
              DGPU_ARG_F32, DGPU_ARG_F64, DGPU_PARAM_GZ, DGPU_ARG_PTR},
             0, &user);
  TestStream& stream = make_stream(core, device);
  std::vector<double> out(5 * 3 * 4 * 7);
  stream.launch(kernel, 5, 3, 4,
                {dgpuArgI32(-5), dgpuArgU32(0xfffffff0u), dgpuArgI64(-(int64_t{1} << 40)), uint64_t{1} << 50,
                 dgpuArgF32(1.5f), dgpuArgF64(-2.25), reinterpret_cast<uint64_t>(out.data())});
  ASSERT_TRUE(stream.wait());
  EXPECT_EQ(stream.queue.outcome(1), 0);
  const double expected[] = {-5, 4294967280.0, -1099511627776.0, 1125899906842624.0, 1.5, -2.25, 42};
  for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], expected[i % 7]) << "value " << i;
  core.table().kernel->destroy(kernel);
}

void count_point(uint64_t x, std::atomic<uint32_t>* counts) { ++counts[x]; }

TEST_F(CpuKernel, EachPointOfALargeGridIsCalledOnce) {
  dgpuBackendKernel* kernel = create(reinterpret_cast<dgpuKernelFunction>(count_point), {DGPU_PARAM_GX, DGPU_ARG_PTR});
  TestStream& stream = make_stream(core, device);
  std::vector<std::atomic<uint32_t>> counts(1'000'003);
  stream.launch(kernel, counts.size(), 1, 1, {reinterpret_cast<uint64_t>(counts.data())});
  stream.launch(kernel, 0, 1, 1, {0});
  stream.launch(kernel, 10, 0, UINT64_MAX, {0});
  ASSERT_TRUE(stream.wait());
  EXPECT_EQ(stream.queue.outcome(3), 0);
  for (const auto& count : counts) ASSERT_EQ(count.load(), 1u);
  stream.launch(kernel, uint64_t{1} << 40, uint64_t{1} << 40, 1, {0});
  ASSERT_TRUE(stream.wait());
  EXPECT_EQ(stream.queue.outcome(4), DGPU_STATUS_INVALID_ARGUMENT);
  core.table().kernel->destroy(kernel);
}

int32_t fail_at(uint64_t x, uint64_t y, int32_t bad) { return x == 3 && y == 1 ? bad : 5; }

TEST_F(CpuKernel, ANegativeReturnFailsTheCommand) {
  dgpuBackendKernel* kernel = create(reinterpret_cast<dgpuKernelFunction>(fail_at),
                                     {DGPU_PARAM_GX, DGPU_PARAM_GY, DGPU_ARG_I32}, DGPU_KERNEL_STATUS);
  TestStream& stream = make_stream(core, device);
  stream.launch(kernel, 10, 2, 1, {dgpuArgI32(7)});
  stream.launch(kernel, 10, 2, 1, {dgpuArgI32(-7)});
  ASSERT_TRUE(stream.wait());
  EXPECT_EQ(stream.queue.outcome(1), 0);
  EXPECT_EQ(stream.queue.outcome(2), DGPU_STATUS_CALLBACK_FAILED);
  EXPECT_EQ(stream.queue.reports().back().message, "kernel test returned -7 at grid point (3, 1, 0)");
  core.table().kernel->destroy(kernel);
}

struct Gate {
  std::atomic<bool> open{false};
  std::atomic<int> inside{0};
  std::vector<uint64_t> order;
};
void wait_at_gate(void* user, uint64_t x) {
  auto& gate = *static_cast<Gate*>(user);
  gate.order.push_back(x);  // points of such a kernel never overlap
  ++gate.inside;
  while (!gate.open) std::this_thread::sleep_for(std::chrono::microseconds(50));
}

TEST_F(CpuKernel, BlockingKernelsHoldNoWorker) {
  constexpr int kBlocked = 6;  // more than there are workers
  std::vector<Gate> gates(kBlocked);
  std::vector<dgpuBackendKernel*> kernels;
  std::vector<TestStream*> streams;
  for (auto& gate : gates) {
    kernels.push_back(create(reinterpret_cast<dgpuKernelFunction>(wait_at_gate), {DGPU_PARAM_USER, DGPU_PARAM_GX},
                             DGPU_KERNEL_MAY_BLOCK, &gate));
    streams.push_back(&make_stream(core, device));
    streams.back()->launch(kernels.back(), 3, 1, 1, {});
    streams.back()->launch(kernels.back(), 2, 1, 1, {});
    streams.back()->marker();
  }
  // All of them are inside at once, and other queues still run.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (auto& gate : gates)
    while (gate.inside == 0 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  for (auto& gate : gates) ASSERT_EQ(gate.inside, 1);
  TestKernel kernel;
  kernel.chunk_counts = {16};
  TestStream& other = make_stream(core, device);
  other.run(&kernel);
  EXPECT_TRUE(other.wait());
  EXPECT_EQ(core.table().queue->help(streams[0]->handle(), 1), 0u) << "a helper touched user code";
  for (auto& gate : gates) gate.open = true;
  for (auto* stream : streams) ASSERT_TRUE(stream->wait());
  for (auto& gate : gates) EXPECT_EQ(gate.order, (std::vector<uint64_t>{0, 1, 2, 0, 1}));
  for (auto* k : kernels) core.table().kernel->destroy(k);
}

std::thread::id g_main;
std::atomic<int> g_on_main{0};
void where_am_i(uint64_t) { g_on_main += std::this_thread::get_id() == g_main; }

TEST_F(CpuKernel, HelpersNeverRunUserKernels) {
  g_main = std::this_thread::get_id();
  g_on_main = 0;
  dgpuBackendKernel* kernel = create(reinterpret_cast<dgpuKernelFunction>(where_am_i), {DGPU_PARAM_GX});
  TestStream& stream = make_stream(core, device);
  for (int round = 0; round < 300; ++round) {
    const uint64_t value = stream.launch(kernel, 1 + static_cast<uint64_t>(round % 2) * 20'000, 1, 1, {});
    core.table().queue->help(stream.handle(), value);
    ASSERT_TRUE(stream.wait());
  }
  EXPECT_EQ(g_on_main, 0);
  core.table().kernel->destroy(kernel);
}

TEST_F(CpuKernel, UnusableDescriptionsAreRefusedWithText) {
  const uint32_t params[] = {99};
  dgpuBackendKernelDesc desc{sizeof desc, "odd", nullptr, params, 1, 0, nullptr};
  dgpuBackendKernel* kernel = nullptr;
  EXPECT_EQ(core.table().kernel->create(device, &desc, &kernel), DGPU_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(core.message(), "kernel odd: the function is null");
  desc.function = reinterpret_cast<dgpuKernelFunction>(where_am_i);
  EXPECT_EQ(core.table().kernel->create(device, &desc, &kernel), DGPU_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(core.message(), "kernel odd: parameter 0 has the unknown type 99");
  EXPECT_EQ(kernel, nullptr);
}

// ---- Telemetry -----------------------------------------------------------------------------------------------------

TEST(CpuTelemetry, UtilisationFollowsTheLoad) {
  TestCore core{{"DGPU_CPU_THREADS", "2"}, {"DGPU_CPU_DEVICES", "2"}};
  dgpuMetric metric = DGPU_METRIC_INIT;
  const auto read = [&](uint32_t device, uint32_t id) {
    EXPECT_EQ(core.table().telemetry->metric(core.backend(), device, id, &metric), 0);
    return metric.value;
  };
  read(0, DGPU_METRIC_UTILIZATION);
  EXPECT_EQ(metric.absent, uint32_t{DGPU_ABSENT_NOT_SAMPLED}) << "before the first use";
  TestStream& stream = make_stream(core, core.open(0));
  core.open(1);
  TestKernel kernel;
  std::atomic<bool> released{false};
  kernel.body = [&](uint32_t, uint32_t, const Args&) {
    while (!released) std::this_thread::yield();
    return DGPU_STATUS_SUCCESS;
  };
  stream.run(&kernel);
  double busy = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (busy < 0.9 && std::chrono::steady_clock::now() < end) {
    busy = read(0, DGPU_METRIC_UTILIZATION);
    std::this_thread::yield();
  }
  EXPECT_GE(busy, 0.9) << "a command has been running since the device was opened";
  EXPECT_LE(busy, 1.0);
  EXPECT_EQ(metric.absent, 0u);
  do read(1, DGPU_METRIC_UTILIZATION);
  while (metric.absent && std::chrono::steady_clock::now() < end);
  EXPECT_EQ(metric.absent, 0u) << "a window has passed";
  EXPECT_EQ(metric.value, 0);
  released = true;
  ASSERT_TRUE(stream.wait());
  while (read(0, DGPU_METRIC_UTILIZATION) > 0 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  EXPECT_EQ(metric.value, 0) << "idle again";
  read(0, DGPU_METRIC_POWER);
  EXPECT_EQ(metric.absent, uint32_t{DGPU_ABSENT_UNSUPPORTED});
}

}  // namespace
}  // namespace dgpu::cpu
