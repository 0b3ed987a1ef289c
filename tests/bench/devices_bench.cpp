// Eight virtual devices against one: the same work in one step, on one stream of one device, and spread over a stream
// per device. Two kinds of step: independent, and with all devices waiting for each other after every layer.
// Prints medians in microseconds and the ratio; the goal is a ratio of at most 1.3.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "dgpu.h"

namespace {

constexpr int kDevices = 8, kLayers = 24, kPoints = 64, kRuns = 31;

void check(dgpuStatus_t status, const char* what) {
  if (status == DGPU_STATUS_SUCCESS) return;
  dgpuErrorInfo info = DGPU_ERROR_INFO_INIT;
  dgpuGetLastError(&info);
  std::fprintf(stderr, "%s: %s: %s\n", what, dgpuStatusName(status), info.message);
  std::exit(1);
}
#define CHECK(call) check((call), #call)

// About `rounds` / 250 microseconds of arithmetic that stays in registers.
void work(uint64_t x, uint64_t rounds, float* out) {
  float a = 1.0f + static_cast<float>(x) * 1e-3f, b = 0.5f;
  for (uint64_t i = 0; i < rounds; ++i) {
    a = a * 0.999f + 0.001f;
    b = b * 0.998f + a * 0.002f;
  }
  out[x] = a + b;
}

struct Setup {
  dgpuContext_t context = nullptr;
  std::vector<dgpuStream_t> streams;
  std::vector<dgpuTimeline_t> timelines;
  std::vector<dgpuAddr_t> outputs;
  dgpuKernel_t kernel = nullptr;
};

Setup make(int devices) {
  Setup s;
  std::vector<dgpuDevice_t> handles(static_cast<size_t>(devices));
  for (int i = 0; i < devices; ++i) CHECK(dgpuDeviceGet(static_cast<uint32_t>(i), &handles[static_cast<size_t>(i)]));
  CHECK(dgpuContextCreate(handles.data(), static_cast<uint32_t>(devices), nullptr, &s.context));
  dgpuStreamOptions options = DGPU_STREAM_OPTIONS_INIT;
  options.flags = DGPU_STREAM_BLOCKING_SUBMIT;
  for (const auto device : handles) {
    CHECK(dgpuStreamCreate(s.context, device, &options, &s.streams.emplace_back()));
    CHECK(dgpuStreamGetTimeline(s.streams.back(), &s.timelines.emplace_back()));
    CHECK(dgpuMemAllocAsync(s.streams.back(), kPoints * sizeof(float), &s.outputs.emplace_back()));
  }
  CHECK(dgpuKernelCreate(s.context, "work", reinterpret_cast<dgpuKernelFunction>(work), "gx,u64,ptr", nullptr, 0,
                         &s.kernel));
  return s;
}

void destroy(Setup& s) {
  for (size_t i = 0; i < s.streams.size(); ++i) {
    CHECK(dgpuMemFreeAsync(s.streams[i], s.outputs[i]));
    CHECK(dgpuTimelineDestroy(s.timelines[i]));
    CHECK(dgpuStreamDestroy(s.streams[i]));
  }
  CHECK(dgpuKernelDestroy(s.kernel));
  CHECK(dgpuContextDestroy(s.context));
}

double step(const Setup& s, uint64_t rounds, bool joined) {
  const auto begin = std::chrono::steady_clock::now();
  const uint32_t types[] = {DGPU_ARG_U64, DGPU_ARG_PTR};
  const size_t n = s.streams.size();
  for (int layer = 0; layer < kLayers; ++layer) {
    for (size_t i = 0; i < n; ++i) {
      const uint64_t values[] = {rounds, s.outputs[i]};
      CHECK(dgpuKernelLaunch(s.streams[i], s.kernel, kPoints / n, 1, 1, types, values, 2));
    }
    if (!joined || n == 1) continue;
    std::vector<uint64_t> reached(n);
    for (size_t i = 0; i < n; ++i) CHECK(dgpuStreamGetValue(s.streams[i], &reached[i]));
    for (size_t i = 0; i < n; ++i)
      for (size_t j = 0; j < n; ++j)
        if (i != j) CHECK(dgpuStreamWaitTimeline(s.streams[i], s.timelines[j], reached[j]));
  }
  for (const auto stream : s.streams) CHECK(dgpuStreamSynchronize(stream, DGPU_TIMEOUT_INFINITE));
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

}  // namespace

int main() {
  CHECK(dgpuConfigSet("DGPU_CPU_DEVICES", "8"));
  CHECK(dgpuInit(nullptr));
  Setup one = make(1), eight = make(kDevices);
  // Until the system has spread the new threads over the cores.
  const auto warm = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
  while (std::chrono::steady_clock::now() < warm) {
    step(one, 5'000, false);
    step(eight, 5'000, false);
  }
  std::printf("%d layers of %d points; medians of %d steps, one device and eight in turn\n", kLayers, kPoints, kRuns);
  std::printf("%-12s %12s %14s %14s %8s\n", "step", "point", "1 device", "8 devices", "ratio");
  for (const uint64_t rounds : {500u, 5'000u, 25'000u}) {
    for (const bool joined : {false, true}) {
      std::vector<double> a, b;
      for (int run = 0; run < kRuns; ++run) {
        a.push_back(step(one, rounds, joined));
        b.push_back(step(eight, rounds, joined));
      }
      std::printf("%-12s %9llu it %11.0f us %11.0f us %8.2f\n", joined ? "joined" : "independent",
                  static_cast<unsigned long long>(rounds), median(a), median(b), median(b) / median(a));
    }
  }
  destroy(one);
  destroy(eight);
  CHECK(dgpuShutdown());
  return 0;
}
