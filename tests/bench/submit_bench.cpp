// What submitting costs: an empty kernel over one grid point, against PoCL in the same run.
//   latency      submit one, synchronise; median and 99th percentile of many rounds
//   throughput   submit a batch, synchronise once; commands per second, median of many rounds
// Neither side ever meets a full queue: a batch is smaller than the stream's default capacity.
// The kernel is a C function without arguments through libffi here, and an OpenCL C kernel without arguments there;
// both run on the host's cores. Prints a table with the ratios; nothing is asserted.
#include <CL/cl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "dgpu.h"

namespace {

using Clock = std::chrono::steady_clock;
double since_us(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

struct Result {
  double latency_us = 0, latency_p99_us = 0, rate = 0, call_ns = 0;
};

// The two libraries take turns, as machines have better and worse moments: virtual cores move, and with them the time
// that a cache line takes from one to the other. Each turn is a process of its own, so that neither library meets the
// other's threads.
constexpr int kTurns = 7;
constexpr int kRounds = 1000;  // of latency, per turn
constexpr int kBatch = 500;    // commands of one throughput round
constexpr int kBatches = 60;   // rounds per turn

double middle(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Side {
 public:
  virtual ~Side() = default;
  virtual void submit() = 0;
  virtual void wait() = 0;

  Result measure() {
    std::vector<double> latency, rate;
    for (int i = 0; i < 200; ++i) {
      submit();
      wait();
    }
    for (int i = 0; i < kRounds; ++i) {
      const auto start = Clock::now();
      submit();
      wait();
      latency.push_back(since_us(start));
    }
    for (int i = 0; i < kBatches; ++i) {
      const auto start = Clock::now();
      for (int j = 0; j < kBatch; ++j) submit();
      wait();
      rate.push_back(kBatch / since_us(start) * 1e6);
    }
    std::sort(latency.begin(), latency.end());
    return {latency[latency.size() / 2], latency[latency.size() * 99 / 100], middle(rate), 0};
  }
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
    return middle(calls);
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

// ---- turns ----

// What a process of one turn writes: the numbers of Result, and for OpenCL the platform.
int turn(const std::string& side) {
  Result result;
  std::string name = "libdgpu cpu";
  if (side == "dgpu") {
    Dgpu ours;
    result = ours.measure();
    result.call_ns = ours.call_ns();
  } else {
    OpenCl peer;
    if (!peer.open()) return 1;
    result = peer.measure();
    name = peer.name;
  }
  std::printf("%.9g %.9g %.9g %.9g %s\n", result.latency_us, result.latency_p99_us, result.rate, result.call_ns,
              name.c_str());
  return 0;
}

struct Turns {
  std::vector<double> latency, p99, rate, call;
  std::string name;

  bool run(const char* side) {
    const std::string command = std::string("exec /proc/") + std::to_string(getpid()) + "/exe --turn " + side;
    FILE* output = popen(command.c_str(), "r");
    if (!output) return false;
    Result r;
    char text[256] = {};
    const int read =
        std::fscanf(output, "%lf %lf %lf %lf %255[^\n]", &r.latency_us, &r.latency_p99_us, &r.rate, &r.call_ns, text);
    if (pclose(output) != 0 || read != 5) return false;
    latency.push_back(r.latency_us);
    p99.push_back(r.latency_p99_us);
    rate.push_back(r.rate);
    call.push_back(r.call_ns);
    name = text;
    return true;
  }
  void print() const {
    std::printf("%-34.34s %12.3f %12.3f %14.0f\n", name.c_str(), middle(latency), middle(p99), middle(rate));
  }
};

}  // namespace

int main(int count, char** arguments) {
  if (count == 3 && std::string(arguments[1]) == "--turn") return turn(arguments[2]);
  Turns ours, theirs;
  bool compare = true;
  for (int i = 0; i < kTurns; ++i) {
    if (!ours.run("dgpu")) return 1;
    compare = compare && theirs.run("opencl");
  }
  std::printf("empty kernel, one grid point; medians of %d turns of %d rounds, %d x %d commands\n", kTurns, kRounds,
              kBatches, kBatch);
  std::printf("%-34s %12s %12s %14s\n", "", "latency us", "p99 us", "commands/s");
  ours.print();
  if (compare) {
    theirs.print();
    std::printf("%-34s %12.2f %12.2f %14.2f\n", "ratio (larger is better for us)",
                middle(theirs.latency) / middle(ours.latency), middle(theirs.p99) / middle(ours.p99),
                middle(ours.rate) / middle(theirs.rate));
    std::printf("%-34s %12.2f %12s %14.2f\n", "best turn of the peer, ours median",
                *std::min_element(theirs.latency.begin(), theirs.latency.end()) / middle(ours.latency), "",
                middle(ours.rate) / *std::max_element(theirs.rate.begin(), theirs.rate.end()));
  } else {
    std::printf("no OpenCL CPU device: nothing to compare with\n");
  }
  std::printf("dgpuKernelLaunch alone, nothing running: %.0f ns\n", middle(ours.call));
  return 0;
}
