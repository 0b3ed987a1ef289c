// What submitting costs: an empty kernel over one grid point, against PoCL in the same run.
//   latency      submit one, synchronise; median and 99th percentile of many rounds
//   throughput   submit a batch, synchronise once; commands per second, median of many rounds
// Neither side ever meets a full queue: a batch is smaller than the stream's default capacity.
// The kernel is a C function without arguments through libffi here, and an OpenCL C kernel without arguments there;
// both run on the host's cores. Prints a table with the ratios; nothing is asserted.
#include <CL/cl.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "dgpu.h"

namespace {

using Clock = std::chrono::steady_clock;
double since_us(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

struct Result {
  double latency_us = 0, latency_p99_us = 0, rate = 0;
};

// The two libraries take turns, as machines have better and worse moments: virtual cores move, and with them the time
// that a cache line takes from one to the other.
constexpr int kTurns = 10;
constexpr int kRounds = 600;  // of latency, per turn
constexpr int kBatch = 500;   // commands of one throughput round
constexpr int kBatches = 20;  // rounds per turn

class Side {
 public:
  virtual ~Side() = default;
  virtual void submit() = 0;
  virtual void wait() = 0;

  void turn() {
    for (int i = 0; i < 200; ++i) {
      submit();
      wait();
    }
    for (int i = 0; i < kRounds; ++i) {
      const auto start = Clock::now();
      submit();
      wait();
      latency_.push_back(since_us(start));
    }
    for (int i = 0; i < kBatches; ++i) {
      const auto start = Clock::now();
      for (int j = 0; j < kBatch; ++j) submit();
      wait();
      rate_.push_back(kBatch / since_us(start) * 1e6);
    }
  }
  Result result() {
    std::sort(latency_.begin(), latency_.end());
    std::sort(rate_.begin(), rate_.end());
    return {latency_[latency_.size() / 2], latency_[latency_.size() * 99 / 100], rate_[rate_.size() / 2]};
  }

 private:
  std::vector<double> latency_, rate_;
};

// ---- libdgpu ----

void check(dgpuStatus_t status, const char* what) {
  if (status == DGPU_STATUS_SUCCESS) return;
  dgpuErrorInfo info = DGPU_ERROR_INFO_INIT;
  dgpuGetLastError(&info);
  std::fprintf(stderr, "%s: %s (%s)\n", what, dgpuStatusName(status), info.message);
  std::exit(1);
}
#define CHECK(call) check(call, #call)

void empty() {}

class Dgpu final : public Side {
 public:
  Dgpu() {
    dgpuDevice_t device = nullptr;
    CHECK(dgpuInit(nullptr));
    CHECK(dgpuDeviceGet(0, &device));
    CHECK(dgpuContextCreate(&device, 1, nullptr, &context_));
    CHECK(dgpuStreamCreate(context_, device, nullptr, &stream_));
    CHECK(dgpuKernelCreate(context_, "empty", empty, "", nullptr, 0, &kernel_));
  }
  ~Dgpu() override {
    CHECK(dgpuContextDestroy(context_));
    CHECK(dgpuShutdown());
  }
  void submit() override { CHECK(dgpuKernelLaunch(stream_, kernel_, 1, 1, 1, nullptr, nullptr, 0)); }
  void wait() override { CHECK(dgpuStreamSynchronize(stream_, DGPU_TIMEOUT_INFINITE)); }

  // The call alone, in ns: behind a gate, so that nothing runs meanwhile.
  double call_ns() {
    dgpuTimeline_t gate = nullptr;
    CHECK(dgpuTimelineCreate(context_, 0, &gate));
    std::vector<double> calls;
    for (uint64_t i = 1; i <= 200; ++i) {
      CHECK(dgpuStreamWaitTimeline(stream_, gate, i));
      const auto start = Clock::now();
      for (int j = 0; j < kBatch; ++j) submit();
      calls.push_back(since_us(start) * 1000 / kBatch);
      CHECK(dgpuTimelineSignal(gate, i));
      wait();
    }
    std::sort(calls.begin(), calls.end());
    return calls[calls.size() / 2];
  }

 private:
  dgpuContext_t context_ = nullptr;
  dgpuStream_t stream_ = nullptr;
  dgpuKernel_t kernel_ = nullptr;
};

// ---- PoCL ----

class OpenCl final : public Side {
 public:
  ~OpenCl() override {
    if (kernel_) clReleaseKernel(kernel_);
    if (program_) clReleaseProgram(program_);
    if (queue_) clReleaseCommandQueue(queue_);
    if (context_) clReleaseContext(context_);
  }
  // An in-order queue without profiling and events: the least that it can be asked for. False without a CPU device.
  bool open() {
    cl_platform_id platform = nullptr;
    cl_device_id device = nullptr;
    cl_uint count = 0;
    cl_int error = 0;
    if (clGetPlatformIDs(1, &platform, &count) != CL_SUCCESS || count == 0) return false;
    if (clGetDeviceIDs(platform, CL_DEVICE_TYPE_CPU, 1, &device, &count) != CL_SUCCESS || count == 0) return false;
    clGetPlatformInfo(platform, CL_PLATFORM_VERSION, sizeof(name), name, nullptr);
    context_ = clCreateContext(nullptr, 1, &device, nullptr, nullptr, &error);
    queue_ = clCreateCommandQueue(context_, device, 0, &error);
    const char* source = "__kernel void empty() {}";
    program_ = clCreateProgramWithSource(context_, 1, &source, nullptr, &error);
    if (clBuildProgram(program_, 1, &device, "", nullptr, nullptr) != CL_SUCCESS) return false;
    kernel_ = clCreateKernel(program_, "empty", &error);
    return error == CL_SUCCESS;
  }
  void submit() override {
    constexpr size_t kOne = 1;
    if (clEnqueueNDRangeKernel(queue_, kernel_, 1, nullptr, &kOne, &kOne, 0, nullptr, nullptr) != CL_SUCCESS) {
      std::fprintf(stderr, "clEnqueueNDRangeKernel failed\n");
      std::exit(1);
    }
  }
  void wait() override { clFinish(queue_); }

  char name[256] = {};

 private:
  cl_context context_ = nullptr;
  cl_command_queue queue_ = nullptr;
  cl_program program_ = nullptr;
  cl_kernel kernel_ = nullptr;
};

}  // namespace

int main() {
  OpenCl peer;
  Dgpu ours;
  const bool compare = peer.open();
  for (int i = 0; i < kTurns; ++i) {
    ours.turn();
    if (compare) peer.turn();
  }
  const Result mine = ours.result();
  std::printf("empty kernel, one grid point, %d x %d rounds, %d x %d x %d commands\n", kTurns, kRounds, kTurns,
              kBatches, kBatch);
  std::printf("%-34s %12s %12s %14s\n", "", "latency us", "p99 us", "commands/s");
  std::printf("%-34s %12.3f %12.3f %14.0f\n", "libdgpu cpu", mine.latency_us, mine.latency_p99_us, mine.rate);
  if (compare) {
    const Result theirs = peer.result();
    std::printf("%-34.34s %12.3f %12.3f %14.0f\n", peer.name, theirs.latency_us, theirs.latency_p99_us, theirs.rate);
    std::printf("%-34s %12.2f %12.2f %14.2f\n", "ratio (larger is better for us)", theirs.latency_us / mine.latency_us,
                theirs.latency_p99_us / mine.latency_p99_us, mine.rate / theirs.rate);
  } else {
    std::printf("no OpenCL CPU device: nothing to compare with\n");
  }
  std::printf("dgpuKernelLaunch alone, nothing running: %.0f ns\n", ours.call_ns());
  return 0;
}
