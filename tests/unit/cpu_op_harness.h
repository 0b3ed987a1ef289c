// An operator of the cpu backend without the core: description, data in any strides, chunks in any order.
#pragma once
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "backends/cpu/kernel.h"

namespace dgpu::cpu::test {

inline float bf16_to_float(uint16_t h) {
  const uint32_t bits = static_cast<uint32_t>(h) << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}
inline uint16_t float_to_bf16(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
inline double f16_to_double(uint16_t h) {
  const int exponent = (h >> 10) & 31, fraction = h & 1023;
  const double value = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return h & 0x8000 ? -value : value;
}
inline uint16_t double_to_f16(double x) {  // round to nearest even, finite results only
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const double a = std::fabs(x);
  int exponent = 0;
  std::frexp(a, &exponent);
  const int step = std::max(exponent - 11, -24);
  const double units = std::nearbyint(std::ldexp(a, -step));
  int biased = step + 25;
  double fraction = units;
  if (fraction >= 2048) fraction /= 2, ++biased;
  return static_cast<uint16_t>(
      sign | (fraction < 1024 ? static_cast<int>(fraction) : (biased << 10) | (static_cast<int>(fraction) - 1024)));
}
inline double unit_roundoff(dgpuDtype_t t) {
  return t == DGPU_DTYPE_F32 ? 0x1p-24 : t == DGPU_DTYPE_BF16 ? 0x1p-8 : t == DGPU_DTYPE_F16 ? 0x1p-11 : 0;
}
inline size_t dtype_bytes(dgpuDtype_t t) { return t == DGPU_DTYPE_F32 || t == DGPU_DTYPE_I32 ? 4 : 2; }

// A tensor with its memory; guard bytes around it and between strided elements must survive.
struct Tensor {
  dgpuTensorDesc desc = DGPU_TENSOR_DESC_INIT;
  std::vector<unsigned char> bytes;
  size_t guard = 64;

  Tensor() = default;
  // gap: extra elements per row of the innermost dimension; inner: its stride.
  Tensor(dgpuDtype_t type, const std::vector<int64_t>& shape, int64_t gap = 0, int64_t inner = 1) {
    desc.dtype = type;
    desc.rank = static_cast<uint32_t>(shape.size());
    int64_t stride = inner;
    for (size_t i = shape.size(); i-- > 0;) {
      desc.shape[i] = shape[i];
      desc.strides[i] = stride;
      stride *= shape[i];
      if (i + 1 == shape.size()) stride += gap;
    }
    bytes.assign(static_cast<size_t>(std::max<int64_t>(stride, 1)) * dtype_bytes(type) + 2 * guard, 0xcd);
  }
  void* data() { return bytes.data() + guard; }
  const void* data() const { return bytes.data() + guard; }
  int64_t offset(const std::vector<int64_t>& at) const {
    int64_t o = 0;
    for (size_t i = 0; i < at.size(); ++i) o += at[i] * desc.strides[i];
    return o;
  }
  double get(const std::vector<int64_t>& at) const {
    const int64_t o = offset(at);
    switch (desc.dtype) {
      case DGPU_DTYPE_F32:
        return static_cast<const float*>(data())[o];
      case DGPU_DTYPE_BF16:
        return bf16_to_float(static_cast<const uint16_t*>(data())[o]);
      case DGPU_DTYPE_F16:
        return f16_to_double(static_cast<const uint16_t*>(data())[o]);
      default:
        return static_cast<const int32_t*>(data())[o];
    }
  }
  void set(const std::vector<int64_t>& at, double x) {
    const int64_t o = offset(at);
    switch (desc.dtype) {
      case DGPU_DTYPE_F32:
        static_cast<float*>(data())[o] = static_cast<float>(x);
        break;
      case DGPU_DTYPE_BF16:
        static_cast<uint16_t*>(data())[o] = float_to_bf16(static_cast<float>(x));
        break;
      case DGPU_DTYPE_F16:
        static_cast<uint16_t*>(data())[o] = double_to_f16(x);
        break;
      default:
        static_cast<int32_t*>(data())[o] = static_cast<int32_t>(x);
    }
  }
  // Every element in row-major order.
  void fill(const std::function<double()>& next) {
    std::vector<int64_t> at(desc.rank, 0);
    for (uint32_t i = 0; i < desc.rank; ++i)
      if (desc.shape[i] == 0) return;
    for (;;) {
      set(at, next());
      uint32_t i = desc.rank;
      while (i > 0 && ++at[i - 1] == desc.shape[i - 1]) at[--i] = 0;
      if (i == 0) return;
    }
  }
  void fill(const std::vector<int>& values) {
    size_t i = 0;
    fill([&] { return static_cast<double>(values[i++]); });
  }
};

// A description and its tensors, and how to run a kernel of it.
class Op {
 public:
  explicit Op(std::string name) : name_(std::move(name)) {}
  void attr(const std::string& name, double x) {
    auto& a = add(name, DGPU_ATTR_FLOAT, 1);
    a.floats = {x};
  }
  void attr(const std::string& name, int64_t x, uint32_t type = DGPU_ATTR_INT) {
    auto& a = add(name, type, 1);
    a.ints = {x};
  }
  void flag(const std::string& name, bool x) { attr(name, int64_t{x}, DGPU_ATTR_BOOL); }
  void attr(const std::string& name, const char* x) { add(name, DGPU_ATTR_STRING, 1).text = x; }
  void attr(const std::string& name, const std::vector<int64_t>& x) {
    auto& a = add(name, DGPU_ATTR_INTS, static_cast<uint32_t>(x.size()));
    a.ints = x;
  }
  Tensor& port(const std::string& name, Tensor t) {
    ports_.push_back({name, std::move(t)});
    return ports_.back().second;
  }
  Tensor& operator[](const std::string& name) {
    for (auto& p : ports_)
      if (p.first == name) return p.second;
    std::abort();
  }
  bool has(const std::string& name) const {
    for (auto& p : ports_)
      if (p.first == name) return true;
    return false;
  }
  int64_t symbols[8] = {};

  // Calls make with the backend's view of the description.
  std::unique_ptr<Kernel> plan(const std::function<std::unique_ptr<Kernel>(const kit::OpView&, std::string*)>& make,
                               std::string* reason) {
    std::vector<dgpuBackendAttr> attrs;
    std::vector<const dgpuBackendAttr*> attr_list;
    std::vector<dgpuBackendPort> ports;
    std::vector<const dgpuBackendPort*> port_list;
    for (auto& a : attrs_) {
      attrs.push_back(
          {sizeof(dgpuBackendAttr), a.name.c_str(), a.type, a.count, a.ints.data(), a.floats.data(), a.text.c_str()});
    }
    for (auto& p : ports_) ports.push_back({sizeof(dgpuBackendPort), p.first.c_str(), &p.second.desc, 0, 0});
    for (auto& a : attrs) attr_list.push_back(&a);
    for (auto& p : ports) port_list.push_back(&p);
    dgpuBackendOp op = {sizeof(dgpuBackendOp),
                        name_.c_str(),
                        1,
                        static_cast<uint32_t>(attrs.size()),
                        attr_list.data(),
                        port_list.data(),
                        static_cast<uint32_t>(ports.size()),
                        0};
    return make(kit::OpView(&op), reason);
  }

  enum class Order { forward, backward, threads };
  // Runs all phases; the workspace is filled with a pattern first and its end is checked.
  dgpuStatus_t run(const Kernel& kernel, Order order = Order::forward) {
    std::vector<void*> addresses;
    for (auto& p : ports_) addresses.push_back(p.second.data());
    const size_t bytes = kernel.workspace_bytes();
    const size_t rounded = (bytes + 128 + 63) / 64 * 64;
    std::unique_ptr<unsigned char, void (*)(void*)> workspace(
        static_cast<unsigned char*>(std::aligned_alloc(64, rounded)), std::free);
    std::memset(workspace.get(), 0xee, rounded);
    const Args args = {addresses.data(), symbols, bytes ? workspace.get() : nullptr};
    for (uint32_t phase = 0; phase < kernel.phases(); ++phase) {
      const auto status = run_phase(kernel, phase, kernel.chunks(phase, args), args, order);
      if (status < 0) return status;
    }
    for (size_t i = bytes; i < rounded; ++i)
      if (workspace.get()[i] != 0xee) return DGPU_STATUS_INTERNAL;
    return DGPU_STATUS_SUCCESS;
  }

 private:
  struct Attr {
    std::string name;
    uint32_t type, count;
    std::vector<int64_t> ints;
    std::vector<double> floats;
    std::string text;
  };
  Attr& add(const std::string& name, uint32_t type, uint32_t count) {
    attrs_.push_back({name, type, count, {}, {}, {}});
    return attrs_.back();
  }
  static dgpuStatus_t run_phase(const Kernel& kernel, uint32_t phase, uint32_t chunks, const Args& args, Order order) {
    if (order != Order::threads) {
      for (uint32_t i = 0; i < chunks; ++i) {
        const auto status = kernel.run(phase, order == Order::forward ? i : chunks - 1 - i, args);
        if (status < 0) return status;
      }
      return DGPU_STATUS_SUCCESS;
    }
    std::atomic<uint32_t> next{0};
    std::atomic<int> failed{DGPU_STATUS_SUCCESS};
    auto work = [&] {
      for (uint32_t i; (i = next.fetch_add(1)) < chunks;) {
        const auto status = kernel.run(phase, i, args);
        if (status < 0) failed = status;
      }
    };
    std::vector<std::thread> pool;
    for (int t = 0; t < 3; ++t) pool.emplace_back(work);
    for (auto& t : pool) t.join();
    return failed;
  }

  std::string name_;
  std::deque<Attr> attrs_;
  std::deque<std::pair<std::string, Tensor>> ports_;
};

}  // namespace dgpu::cpu::test
