// For benchmarks: a kernel of the cpu backend without the core, and its data.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends/cpu/kernel.h"
#include "chunk_runner.h"

namespace dgpu::cpu::bench {

// Runs all phases of a kernel.
inline void run_on(ChunkRunner& runner, const Kernel& kernel, void* const* ports) {
  static const int64_t symbols[8] = {};
  const Args args = {ports, symbols, runner.workspace(kernel.workspace_bytes())};
  for (uint32_t phase = 0; phase < kernel.phases(); ++phase) {
    runner.run(kernel.chunks(phase, args), [&](uint32_t c) {
      if (kernel.run(phase, c, args) >= 0) return;
      std::fprintf(stderr, "%s\n", kit::failure().c_str());
      std::abort();
    });
  }
}

// A description with packed ports.
class Description {
 public:
  struct Port {
    std::string name;
    dgpuTensorDesc desc = DGPU_TENSOR_DESC_INIT;
    int64_t elements = 1;
    std::unique_ptr<void, void (*)(void*)> data{nullptr, std::free};
  };
  explicit Description(std::string name) : name_(std::move(name)) {}
  void number(const char* name, double x) {
    auto& a = add(name, DGPU_ATTR_FLOAT, 1);
    a.floats = {x};
  }
  void integer(const char* name, int64_t x, uint32_t type = DGPU_ATTR_INT) { add(name, type, 1).ints = {x}; }
  void integers(const char* name, std::vector<int64_t> x) {
    add(name, DGPU_ATTR_INTS, static_cast<uint32_t>(x.size())).ints = std::move(x);
  }
  void text(const char* name, const char* x) { add(name, DGPU_ATTR_STRING, 1).text = x; }
  // Values in [-1, 1), by a linear congruential generator.
  // `transposed`: described with the last two dimensions swapped.
  void random(const char* name, dgpuDtype_t type, const std::vector<int64_t>& shape, bool transposed = false) {
    auto& p = port(name, type, shape);
    if (transposed) {
      std::swap(p.desc.shape[shape.size() - 2], p.desc.shape[shape.size() - 1]);
      std::swap(p.desc.strides[shape.size() - 2], p.desc.strides[shape.size() - 1]);
    }
    for (int64_t i = 0; i < p.elements; ++i) {
      state_ = state_ * 1664525u + 1013904223u;
      const float f = static_cast<float>(state_ >> 8) * 0x1p-23f - 1.0f;
      uint32_t bits;
      std::memcpy(&bits, &f, 4);
      if (type == DGPU_DTYPE_F32) {
        static_cast<float*>(p.data.get())[i] = f;
      } else {
        static_cast<uint16_t*>(p.data.get())[i] = static_cast<uint16_t>(bits >> 16);
      }
    }
  }
  Port& integers_port(const char* name, const std::vector<int64_t>& shape, const std::vector<int32_t>& values) {
    auto& p = port(name, DGPU_DTYPE_I32, shape);
    std::memcpy(p.data.get(), values.data(), values.size() * sizeof(int32_t));
    return p;
  }
  void wide_integers_port(const char* name, const std::vector<int64_t>& shape, const std::vector<int64_t>& values) {
    auto& p = port(name, DGPU_DTYPE_I64, shape);
    std::memcpy(p.data.get(), values.data(), values.size() * sizeof(int64_t));
  }
  void* const* addresses() {
    addresses_.clear();
    for (auto& p : ports_) addresses_.push_back(p.data.get());
    return addresses_.data();
  }
  std::unique_ptr<Kernel> plan(const std::function<std::unique_ptr<Kernel>(const kit::OpView&, std::string*)>& make) {
    std::vector<dgpuBackendAttr> attrs;
    std::vector<const dgpuBackendAttr*> attr_list;
    std::vector<dgpuBackendPort> ports;
    std::vector<const dgpuBackendPort*> port_list;
    for (auto& a : attrs_) {
      attrs.push_back(
          {sizeof(dgpuBackendAttr), a.name.c_str(), a.type, a.count, a.ints.data(), a.floats.data(), a.text.c_str()});
    }
    for (auto& p : ports_) ports.push_back({sizeof(dgpuBackendPort), p.name.c_str(), &p.desc, 0, 0});
    for (auto& a : attrs) attr_list.push_back(&a);
    for (auto& p : ports) port_list.push_back(&p);
    const dgpuBackendOp op = {sizeof(dgpuBackendOp),
                              name_.c_str(),
                              1,
                              static_cast<uint32_t>(attrs.size()),
                              attr_list.data(),
                              port_list.data(),
                              static_cast<uint32_t>(ports.size()),
                              0};
    std::string reason;
    auto kernel = make(kit::OpView(&op), &reason);
    if (!kernel) {
      std::fprintf(stderr, "%s: %s\n", name_.c_str(), reason.c_str());
      std::abort();
    }
    return kernel;
  }

 private:
  struct Attr {
    std::string name;
    uint32_t type, count;
    std::vector<int64_t> ints;
    std::vector<double> floats;
    std::string text;
  };
  Attr& add(const char* name, uint32_t type, uint32_t count) {
    attrs_.push_back({name, type, count, {}, {}, {}});
    return attrs_.back();
  }
  Port& port(const char* name, dgpuDtype_t type, const std::vector<int64_t>& shape) {
    auto& p = ports_.emplace_back();
    p.name = name;
    p.desc.dtype = type;
    p.desc.rank = static_cast<uint32_t>(shape.size());
    for (size_t i = shape.size(); i-- > 0;) {
      p.desc.shape[i] = shape[i];
      p.desc.strides[i] = p.elements;
      p.elements *= shape[i];
    }
    const size_t size = type == DGPU_DTYPE_BF16 || type == DGPU_DTYPE_F16 ? 2 : type == DGPU_DTYPE_I64 ? 8 : 4;
    const size_t bytes = static_cast<size_t>(p.elements) * size;
    p.data.reset(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096 + 4096));
    return p;
  }
  std::string name_;
  std::deque<Attr> attrs_;
  std::deque<Port> ports_;
  std::vector<void*> addresses_;
  uint32_t state_ = 1;
};

// Median of samples over about 0.6 s.
template <class Body>
double median_seconds(Body body) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> samples;
  body();
  const auto begin = Clock::now();
  while (samples.size() < 5 || (std::chrono::duration<double>(Clock::now() - begin).count() < 0.6)) {
    const auto start = Clock::now();
    body();
    samples.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::nth_element(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2), samples.end());
  return samples[samples.size() / 2];
}

}  // namespace dgpu::cpu::bench
