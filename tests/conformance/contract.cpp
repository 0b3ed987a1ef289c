#include "contract.h"

#include <atomic>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

namespace conformance {
namespace {

constexpr uint64_t kLong = 60'000'000'000;  // ends a broken run; nothing here takes that long

struct Broken {
  std::string why;
};
struct Skipped {
  std::string why;
};

void expect(bool good, const std::string& why) {
  if (!good) throw Broken{why};
}
void ok(dgpuStatus_t status, const char* call) {
  if (status == DGPU_STATUS_SUCCESS) return;
  dgpuErrorInfo info = DGPU_ERROR_INFO_INIT;
  (void)dgpuGetLastError(&info);
  throw Broken{std::string(call) + ": " + dgpuStatusName(status) +
               (status < 0 ? std::string(": ") + info.message : "")};
}
#define OK(call) ok(call, #call)

using Bytes = std::vector<unsigned char>;

// A context with a stream; gone at the end of a check, whatever happened.
struct Bench {
  explicit Bench(dgpuDevice_t d) : device(d) {
    OK(dgpuContextCreate(&device, 1, nullptr, &context));
    stream = another();
  }
  ~Bench() { (void)dgpuContextDestroy(context); }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;
  dgpuStream_t another() {
    dgpuStream_t s = nullptr;
    OK(dgpuStreamCreate(context, device, nullptr, &s));
    return s;
  }
  dgpuAddr_t memory(size_t bytes) {
    dgpuAddr_t a = 0;
    OK(dgpuMemAlloc(context, device, bytes, &a));
    return a;
  }
  void sync() { OK(dgpuStreamSynchronize(stream, kLong)); }
  Bytes read(dgpuAddr_t from, size_t bytes) {
    Bytes out(bytes);
    OK(dgpuMemCopyToHostAsync(stream, out.data(), from, bytes));
    sync();
    return out;
  }
  void write(dgpuAddr_t to, const Bytes& bytes) {
    OK(dgpuMemCopyFromHostAsync(stream, to, bytes.data(), bytes.size()));
    sync();
  }
  dgpuDevice_t device;
  dgpuContext_t context = nullptr;
  dgpuStream_t stream = nullptr;
};

Bytes noise(size_t bytes, unsigned seed) {
  Bytes out(bytes);
  for (size_t i = 0; i < bytes; ++i) out[i] = static_cast<unsigned char>((i * 2654435761u + seed * 40503u) >> 13);
  return out;
}

// ---- The checks ----

void allocations(dgpuDevice_t device) {
  Bench b(device);
  dgpuDeviceInfo info = DGPU_DEVICE_INFO_INIT;
  OK(dgpuDeviceGetInfo(device, &info));
  dgpuAddr_t address = 0;
  expect(dgpuMemAlloc(b.context, device, info.memory_bytes + 1, &address) == DGPU_STATUS_OUT_OF_MEMORY,
         "more than the device's memory must be OUT_OF_MEMORY");
  std::vector<dgpuAddr_t> blocks;
  for (size_t size = 1; size <= (2u << 20); size *= 3) blocks.push_back(b.memory(size));
  for (const dgpuAddr_t block : blocks) OK(dgpuMemFree(b.context, block));
  OK(dgpuMemTrim(b.context, device, 0));
  dgpuMemStats stats = DGPU_MEM_STATS_INIT;
  OK(dgpuMemGetStats(b.context, device, &stats));
  expect(stats.used_bytes == 0 && stats.reserved_bytes == 0, "freed memory was not given back by a trim");
}

void copies(dgpuDevice_t device) {
  Bench b(device);
  for (const size_t size : {size_t{1}, size_t{255}, size_t{4097}, size_t{1} << 20}) {
    const dgpuAddr_t first = b.memory(size + 64), second = b.memory(size + 64);
    const Bytes in = noise(size, 1), around(size + 64, 0x55);
    b.write(second, around);
    b.write(first + 3, in);
    OK(dgpuMemCopyAsync(b.stream, second + 17, first + 3, size));
    const Bytes out = b.read(second, size + 64);
    expect(std::memcmp(out.data() + 17, in.data(), size) == 0, "a copy of " + std::to_string(size) + " bytes differs");
    expect(out[16] == 0x55 && out[17 + size] == 0x55, "a copy wrote beside its range");
  }
}

void rows(dgpuDevice_t device) {
  Bench b(device);
  constexpr size_t kRows = 37, kWidth = 29, kFrom = 40, kTo = 53;
  const dgpuAddr_t from = b.memory(kRows * kFrom), to = b.memory(kRows * kTo);
  const Bytes in = noise(kRows * kFrom, 2);
  b.write(from, in);
  OK(dgpuMemFillAsync(b.stream, to, 0x77, 1, kRows * kTo));
  OK(dgpuMemCopy2DAsync(b.stream, to + 5, kTo, from + 2, kFrom, kWidth, kRows));
  const Bytes out = b.read(to, kRows * kTo);
  for (size_t row = 0; row < kRows; ++row) {
    expect(std::memcmp(out.data() + 5 + row * kTo, in.data() + 2 + row * kFrom, kWidth) == 0,
           "row " + std::to_string(row) + " of a copy of rows differs");
    expect(out[row * kTo + 4] == 0x77 && (row + 1 == kRows || out[row * kTo + 5 + kWidth] == 0x77),
           "a copy of rows wrote beside row " + std::to_string(row));
  }
}

void fills(dgpuDevice_t device) {
  Bench b(device);
  constexpr size_t kBytes = 4096;
  const uint64_t pattern = 0x0807060504030201u;
  const dgpuAddr_t memory = b.memory(kBytes);
  for (const uint32_t width : {1u, 2u, 4u, 8u}) {
    OK(dgpuMemFillAsync(b.stream, memory, 0xee, 1, kBytes));
    OK(dgpuMemFillAsync(b.stream, memory + 24, pattern, width, 808));
    const Bytes out = b.read(memory, kBytes);
    for (size_t i = 0; i < kBytes; ++i) {
      const unsigned wanted = i < 24 || i >= 24 + 808 ? 0xee : static_cast<unsigned>((i - 24) % width) + 1;
      expect(out[i] == wanted,
             "byte " + std::to_string(i) + " of a fill with a pattern of " + std::to_string(width) + " bytes is wrong");
    }
  }
}

// Each command sees what the one before it did.
void order(dgpuDevice_t device) {
  Bench b(device);
  const dgpuAddr_t ring = b.memory(64 * 256);
  OK(dgpuMemFillAsync(b.stream, ring, 0, 1, 64 * 256));
  for (unsigned i = 0; i < 600; ++i) {
    OK(dgpuMemFillAsync(b.stream, ring + (i % 64) * 256, i, 4, 256));
    OK(dgpuMemCopyAsync(b.stream, ring + ((i + 1) % 64) * 256, ring + (i % 64) * 256, 256));
    if (i % 200 == 199) b.sync();
  }
  const Bytes out = b.read(ring, 64 * 256);
  for (unsigned i = 600 - 63; i < 600; ++i) {
    unsigned got = 0;
    std::memcpy(&got, out.data() + (i % 64) * 256, 4);
    expect(got == i, "commands of one stream did not run in order");
  }
}

void waits(dgpuDevice_t device) {
  Bench b(device);
  const dgpuStream_t other = b.another();
  const dgpuAddr_t memory = b.memory(1 << 20);
  dgpuEvent_t event = nullptr;
  OK(dgpuEventCreate(b.context, 0, &event));
  for (unsigned round = 1; round <= 50; ++round) {
    const dgpuStream_t from = round % 2 ? b.stream : other, to = round % 2 ? other : b.stream;
    unsigned got = 0;
    OK(dgpuMemFillAsync(from, memory, round, 4, 1 << 20));
    OK(dgpuEventRecord(event, from));
    OK(dgpuStreamWaitEvent(to, event));
    OK(dgpuMemCopyToHostAsync(to, &got, memory + (1 << 20) - 4, 4));
    OK(dgpuStreamSynchronize(to, kLong));
    expect(got == round, "a stream did not wait for the event of another one");
  }
}

void times(dgpuDevice_t device) {
  Bench b(device);
  const dgpuAddr_t memory = b.memory(4 << 20);
  dgpuEvent_t start = nullptr, end = nullptr;
  OK(dgpuEventCreate(b.context, DGPU_EVENT_TIMING, &start));
  OK(dgpuEventCreate(b.context, DGPU_EVENT_TIMING, &end));
  OK(dgpuEventRecord(start, b.stream));
  for (int i = 0; i < 4; ++i) OK(dgpuMemFillAsync(b.stream, memory, 1, 1, 4 << 20));
  OK(dgpuEventRecord(end, b.stream));
  b.sync();
  int64_t ns = 0;
  OK(dgpuEventElapsed(start, end, &ns));
  expect(ns > 0, "four fills of 4 MiB took " + std::to_string(ns) + " ns: does the backend write end_ns?");
}

// Commands of a failed queue do not run, and reset makes it usable.
void failures(dgpuDevice_t device) {
  Bench b(device);
  dgpuKernel_t kernel = nullptr;
  const auto refuse = [](uint64_t) -> int32_t { return -1; };
  int32_t (*function)(uint64_t) = refuse;
  if (dgpuKernelCreate(b.context, "refuse", reinterpret_cast<dgpuKernelFunction>(function), "gx", nullptr,
                       DGPU_KERNEL_STATUS, &kernel) == DGPU_STATUS_UNSUPPORTED)
    throw Skipped{"the backend has no kernels, which alone can be made to fail"};
  const dgpuAddr_t memory = b.memory(4);
  OK(dgpuMemFillAsync(b.stream, memory, 1, 4, 4));
  OK(dgpuKernelLaunch(b.stream, kernel, 1, 1, 1, nullptr, nullptr, 0));
  for (int i = 0; i < 20; ++i) {
    const dgpuStatus_t status = dgpuMemFillAsync(b.stream, memory, 2, 4, 4);
    expect(status == DGPU_STATUS_SUCCESS || status == DGPU_STATUS_STREAM_FAILED, "a failed stream answered otherwise");
  }
  expect(dgpuStreamSynchronize(b.stream, kLong) == DGPU_STATUS_CALLBACK_FAILED,
         "a kernel that returned -1 did not fail its command with CALLBACK_FAILED");
  OK(dgpuStreamReset(b.stream, kLong));
  expect(b.read(memory, 4)[0] == 1, "a command after the failed one ran");
  OK(dgpuMemFillAsync(b.stream, memory, 3, 4, 4));
  expect(b.read(memory, 4)[0] == 3, "the queue does not work after reset");
}

void add_one(uint64_t x, uint64_t y, int32_t by, uint32_t* cells) { cells[y * 16 + x] += static_cast<uint32_t>(by); }

void kernels(dgpuDevice_t device) {
  Bench b(device);
  dgpuKernel_t kernel = nullptr;
  const dgpuStatus_t created = dgpuKernelCreate(b.context, "add_one", reinterpret_cast<dgpuKernelFunction>(add_one),
                                                "gx,gy,i32,ptr", nullptr, 0, &kernel);
  if (created == DGPU_STATUS_UNSUPPORTED) throw Skipped{"the backend has no kernels"};
  OK(created);
  const dgpuAddr_t cells = b.memory(16 * 16 * 4);
  OK(dgpuMemFillAsync(b.stream, cells, 5, 4, 16 * 16 * 4));
  const uint32_t types[2] = {DGPU_ARG_I32, DGPU_ARG_PTR};
  const uint64_t values[2] = {dgpuArgI32(-2), cells};
  OK(dgpuKernelLaunch(b.stream, kernel, 16, 16, 1, types, values, 2));
  OK(dgpuKernelDestroy(kernel));
  const Bytes out = b.read(cells, 16 * 16 * 4);
  for (size_t i = 0; i < out.size(); i += 4) expect(out[i] == 3, "a kernel did not run once for each grid point");
}

void threads(dgpuDevice_t device) {
  Bench b(device);
  std::atomic<int> wrong{0};
  std::vector<std::thread> running;
  for (unsigned t = 0; t < 4; ++t) {
    running.emplace_back([&, t] {
      try {
        const dgpuStream_t stream = b.another();
        const dgpuAddr_t memory = b.memory(4096);
        for (unsigned i = 0; i < 200; ++i) {
          unsigned got = 0;
          OK(dgpuMemFillAsync(stream, memory, t * 1000 + i, 4, 4096));
          OK(dgpuMemCopyToHostAsync(stream, &got, memory + 4092, 4));
          OK(dgpuStreamSynchronize(stream, kLong));
          if (got != t * 1000 + i) ++wrong;
        }
      } catch (const Broken&) {
        ++wrong;
      }
    });
  }
  for (auto& thread : running) thread.join();
  expect(wrong == 0, "streams that four threads use at once disturb each other");
}

// Destroying everything neither blocks nor cancels, and nothing is touched afterwards.
void destruction(dgpuDevice_t device) {
  for (int round = 0; round < 20; ++round) {
    Bench b(device);
    const dgpuAddr_t memory = b.memory(1 << 20);
    for (int i = 0; i < 20; ++i) OK(dgpuMemFillAsync(b.stream, memory, 1, 1, 1 << 20));
    if (round % 2) OK(dgpuStreamDestroy(b.stream));
  }
}

std::atomic<int> wrong_reports{0};
void watch(uint32_t, const char*, const char* message, void*) {
  if (std::strstr(message, "out of order")) ++wrong_reports;
}

struct Check {
  const char* name;
  void (*run)(dgpuDevice_t);
};
constexpr Check kChecks[] = {{"allocations", allocations},
                             {"copies", copies},
                             {"rows", rows},
                             {"fills", fills},
                             {"order", order},
                             {"waits", waits},
                             {"times", times},
                             {"kernels", kernels},
                             {"failures", failures},
                             {"threads", threads},
                             {"destruction", destruction}};

}  // namespace

int check_contract(dgpuDevice_t device) {
  int failures_seen = 0;
  (void)dgpuLogSetCallback(watch, nullptr);
  for (const Check& check : kChecks) {
    std::string result = "ok";
    try {
      wrong_reports = 0;
      check.run(device);
      expect(wrong_reports == 0, "values were reported twice or out of order");
    } catch (const Broken& broken) {
      result = "FAILED: " + broken.why;
      ++failures_seen;
    } catch (const Skipped& skipped) {
      result = "skipped: " + skipped.why;
    }
    std::printf("contract %-14s %s\n", check.name, result.c_str());
    std::fflush(stdout);
  }
  (void)dgpuLogSetCallback(nullptr, nullptr);
  return failures_seen;
}

}  // namespace conformance
