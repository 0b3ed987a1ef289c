// What submitting costs: an empty kernel over one grid point, against PoCL in the same run.
//   latency      submit one, synchronise; median and 99th percentile of many rounds
//   throughput   submit a batch, synchronise once; commands per second, median of many rounds
// The kernel is a C function without arguments through libffi here, and an OpenCL C kernel without arguments there;
// both run on the host's cores. Prints a table with the ratios; nothing is asserted.
#include <CL/cl.h>

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
  double latency_us = 0, latency_p99_us = 0, rate = 0;
};

constexpr int kRounds = 3000;  // of latency
constexpr int kBatch = 500;    // commands of one throughput round
constexpr int kBatches = 60;

template <typename Submit, typename Wait>
Result measure(Submit&& submit, Wait&& wait) {
  for (int i = 0; i < 200; ++i) {
    submit();
    wait();
  }
  std::vector<double> latency;
  for (int i = 0; i < kRounds; ++i) {
    const auto start = Clock::now();
    submit();
    wait();
    latency.push_back(since_us(start));
  }
  std::vector<double> rate;
  for (int i = 0; i < kBatches; ++i) {
    const auto start = Clock::now();
    for (int j = 0; j < kBatch; ++j) submit();
    wait();
    rate.push_back(kBatch / since_us(start) * 1e6);
  }
  std::sort(latency.begin(), latency.end());
  std::sort(rate.begin(), rate.end());
  return {latency[latency.size() / 2], latency[latency.size() * 99 / 100], rate[rate.size() / 2]};
}

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

Result run_dgpu(double& submit_ns) {
  dgpuDevice_t device = nullptr;
  dgpuContext_t context = nullptr;
  dgpuStream_t stream = nullptr;
  dgpuKernel_t kernel = nullptr;
  CHECK(dgpuInit(nullptr));
  CHECK(dgpuDeviceGet(0, &device));
  CHECK(dgpuContextCreate(&device, 1, nullptr, &context));
  CHECK(dgpuStreamCreate(context, device, nullptr, &stream));
  CHECK(dgpuKernelCreate(context, "empty", empty, "", nullptr, 0, &kernel));
  const Result result = measure([&] { CHECK(dgpuKernelLaunch(stream, kernel, 1, 1, 1, nullptr, nullptr, 0)); },
                                [&] { CHECK(dgpuStreamSynchronize(stream, DGPU_TIMEOUT_INFINITE)); });
  // The call alone: behind a gate, so that nothing runs meanwhile.
  dgpuTimeline_t gate = nullptr;
  CHECK(dgpuTimelineCreate(context, 0, &gate));
  std::vector<double> calls;
  for (uint64_t i = 1; i <= 200; ++i) {
    CHECK(dgpuStreamWaitTimeline(stream, gate, i));
    const auto start = Clock::now();
    for (int j = 0; j < kBatch; ++j) CHECK(dgpuKernelLaunch(stream, kernel, 1, 1, 1, nullptr, nullptr, 0));
    calls.push_back(since_us(start) * 1000 / kBatch);
    CHECK(dgpuTimelineSignal(gate, i));
    CHECK(dgpuStreamSynchronize(stream, DGPU_TIMEOUT_INFINITE));
  }
  std::sort(calls.begin(), calls.end());
  submit_ns = calls[calls.size() / 2];
  CHECK(dgpuContextDestroy(context));
  CHECK(dgpuShutdown());
  return result;
}

// ---- PoCL ----

bool run_opencl(Result& result, std::string& name) {
  cl_platform_id platform = nullptr;
  cl_device_id device = nullptr;
  cl_uint count = 0;
  if (clGetPlatformIDs(1, &platform, &count) != CL_SUCCESS || count == 0) return false;
  if (clGetDeviceIDs(platform, CL_DEVICE_TYPE_CPU, 1, &device, &count) != CL_SUCCESS || count == 0) return false;
  char text[256] = {};
  clGetPlatformInfo(platform, CL_PLATFORM_VERSION, sizeof(text), text, nullptr);
  name = text;
  cl_int error = 0;
  cl_context context = clCreateContext(nullptr, 1, &device, nullptr, nullptr, &error);
  cl_command_queue queue = clCreateCommandQueue(context, device, 0, &error);
  const char* source = "__kernel void empty() {}";
  cl_program program = clCreateProgramWithSource(context, 1, &source, nullptr, &error);
  if (clBuildProgram(program, 1, &device, "", nullptr, nullptr) != CL_SUCCESS) return false;
  cl_kernel kernel = clCreateKernel(program, "empty", &error);
  const size_t one = 1;
  result = measure([&] { clEnqueueNDRangeKernel(queue, kernel, 1, nullptr, &one, &one, 0, nullptr, nullptr); },
                   [&] { clFinish(queue); });
  clReleaseKernel(kernel);
  clReleaseProgram(program);
  clReleaseCommandQueue(queue);
  clReleaseContext(context);
  return true;
}

}  // namespace

int main() {
  double submit_ns = 0;
  const Result ours = run_dgpu(submit_ns);
  Result theirs;
  std::string name;
  const bool peer = run_opencl(theirs, name);
  std::printf("empty kernel, one grid point, %d rounds, %d x %d commands\n", kRounds, kBatches, kBatch);
  std::printf("%-34s %12s %12s %14s\n", "", "latency us", "p99 us", "commands/s");
  std::printf("%-34s %12.3f %12.3f %14.0f\n", "libdgpu cpu", ours.latency_us, ours.latency_p99_us, ours.rate);
  if (peer) {
    std::printf("%-34.34s %12.3f %12.3f %14.0f\n", name.c_str(), theirs.latency_us, theirs.latency_p99_us, theirs.rate);
    std::printf("%-34s %12.2f %12.2f %14.2f\n", "ratio (larger is better for us)", theirs.latency_us / ours.latency_us,
                theirs.latency_p99_us / ours.latency_p99_us, ours.rate / theirs.rate);
  } else {
    std::printf("no OpenCL CPU device: nothing to compare with\n");
  }
  std::printf("dgpuKernelLaunch alone, nothing running: %.0f ns\n", submit_ns);
  return 0;
}
