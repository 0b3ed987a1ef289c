// Runs one operator on the cpu backend's kernel and on the f64 reference, and compares. For unit tests of the kernels.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>

#include "backends/cpu/isa.h"
#include "backends/cpu/kernels.h"
#include "ops/convert.h"
#include "ops/op.h"
#include "ops/schema.h"

namespace dgpu::cpu::test {

using ops::OpSpec;

// Element type's unit roundoff.
inline double roundoff(dgpuDtype_t t) {
  return t == DGPU_DTYPE_BF16 ? 0x1p-8 : t == DGPU_DTYPE_F16 ? 0x1p-11 : 0x1p-24;
}
// Half the distance of the smallest numbers.
inline double smallest(dgpuDtype_t t) { return t == DGPU_DTYPE_F16 ? 0x1p-25 : 0x1p-134; }

inline dgpuTensorDesc packed(dgpuDtype_t dtype, const std::vector<int64_t>& shape) {
  dgpuTensorDesc d = DGPU_TENSOR_DESC_INIT;
  d.dtype = dtype;
  d.rank = static_cast<uint32_t>(shape.size());
  int64_t stride = 1;
  for (uint32_t i = d.rank; i-- > 0;) {
    d.shape[i] = shape[i];
    d.strides[i] = stride;
    stride *= std::max<int64_t>(shape[i], 1);
  }
  return d;
}

// Dimensions in memory order `order` (outermost first), each `gap` elements longer than it needs to be.
inline dgpuTensorDesc strided(dgpuDtype_t dtype, const std::vector<int64_t>& shape, const std::vector<uint32_t>& order,
                              int64_t gap) {
  dgpuTensorDesc d = packed(dtype, shape);
  int64_t stride = 1;
  for (size_t i = order.size(); i-- > 0;) {
    d.strides[order[i]] = stride;
    stride *= shape[order[i]] + gap;
  }
  return d;
}

class Case {
 public:
  OpSpec spec;
  std::vector<int64_t> symbols;

  explicit Case(std::string name) { spec.name = std::move(name); }
  Case& attr(const std::string& name, ops::AttrValue v) {
    EXPECT_EQ(ops::set_attr(spec, name, std::move(v)), 0) << last_error().message;
    return *this;
  }
  // Binds a port; its memory is filled by fill(flat index over the shape) and surrounded by guards.
  Case& port(const std::string& name, const dgpuTensorDesc& d, const std::function<double(int64_t)>& fill = nullptr) {
    EXPECT_EQ(ops::set_port(spec, name, d), 0) << last_error().message;
    Memory& m = memory_[name];
    m.desc = d;
    m.bytes.assign(span_bytes(d) + 2 * kGuard, kGuardByte);
    if (fill) {
      int64_t flat = 0;
      each(d, nullptr, [&](int64_t offset) {
        const double v = fill(flat++);
        if (dtype_is_float(d.dtype))
          ops::store_float(d.dtype, m.data(), offset, v);
        else
          ops::store_int(d.dtype, m.data(), offset, static_cast<int64_t>(v));
      });
    }
    return *this;
  }
  Case& out(const std::string& name, dgpuDtype_t dtype) {
    dgpuTensorDesc d = DGPU_TENSOR_DESC_INIT;
    EXPECT_EQ(ops::infer(spec, name, d), 0) << last_error().message;
    d.dtype = dtype;
    return port(name, d);
  }
  void* data(const std::string& name) { return memory_.at(name).data(); }
  void share(const std::string& name, const std::string& with) { shared_[name] = with; }

  // Runs the kernel with the chunks in an order drawn from `seed`.
  dgpuStatus_t run(uint32_t seed = 0) {
    EXPECT_EQ(ops::validate(spec), 0) << last_error().message;
    build();
    std::string reason = "no kernel";
    kernel_ = nullptr;
    for (uint32_t i = 0; const KernelEntry* e = kernel_entry(i); ++i)
      if (e->op == spec.name && !kernel_) kernel_ = e->make(kit::OpView(&op_), &reason);
    EXPECT_NE(kernel_, nullptr) << reason;
    if (!kernel_) return DGPU_STATUS_UNSUPPORTED;
    const size_t bytes = kernel_->workspace_bytes();
    workspace_.assign(bytes + 128, 0xee);
    auto* workspace = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(workspace_.data()) + 63) / 64 * 64);
    const Args args{pointers_.data(), symbols.data(), bytes ? workspace : nullptr};
    std::mt19937 rng(seed);
    chunk_count_ = 0;
    for (uint32_t phase = 0; phase < kernel_->phases(); ++phase) {
      std::vector<uint32_t> order(kernel_->chunks(phase, args));
      chunk_count_ += order.size();
      for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
      std::shuffle(order.begin(), order.end(), rng);
      for (const uint32_t c : order)
        if (const dgpuStatus_t status = kernel_->run(phase, c, args); status < 0) return status;
    }
    check_guards();
    EXPECT_TRUE(std::all_of(workspace + bytes, workspace_.data() + workspace_.size(), [](uint8_t b) {
      return b == 0xee;
    })) << "the kernel wrote behind its workspace";
    return DGPU_STATUS_SUCCESS;
  }
  size_t chunk_count() const { return chunk_count_; }

  // Output `name` of the f64 reference, not rounded, in row-major order of the extents. Call before run() where an
  // output shares memory with an input.
  std::vector<double> reference(const std::string& name) {
    EXPECT_EQ(ops::validate(spec), 0) << last_error().message;
    ops::RefTensors tensors;
    for (const auto& row : ops::find(spec.name)->ports) {
      if (row.direction == DGPU_PORT_OUT || !spec.bound(row.name)) continue;
      Memory& m = memory_.at(row.name);
      ops::RefTensor t;
      t.dtype = m.desc.dtype;
      for (uint32_t i = 0; i < m.desc.rank; ++i) t.shape.push_back(ops::extent(m.desc, i, symbols.data()));
      each(m.desc, symbols.data(), [&](int64_t offset) {
        if (dtype_is_float(t.dtype))
          t.f.push_back(ops::load_float(t.dtype, m.data(), offset));
        else
          t.i.push_back(ops::load_int(t.dtype, m.data(), offset));
      });
      tensors[row.name] = std::move(t);
    }
    EXPECT_EQ(ops::reference(concrete(), tensors), 0) << last_error().message;
    const ops::RefTensor& t = tensors.at(name);
    if (!t.is_int()) return t.f;
    return std::vector<double>(t.i.begin(), t.i.end());
  }
  std::vector<double> result(const std::string& name) {
    std::vector<double> v;
    Memory& m = memory_.at(name);
    each(m.desc, symbols.data(), [&](int64_t offset) {
      v.push_back(dtype_is_float(m.desc.dtype) ? ops::load_float(m.desc.dtype, m.data(), offset)
                                              : static_cast<double>(ops::load_int(m.desc.dtype, m.data(), offset)));
    });
    return v;
  }
  const std::vector<uint8_t>& bytes(const std::string& name) const { return memory_.at(name).bytes; }
  dgpuDtype_t dtype(const std::string& name) const { return memory_.at(name).desc.dtype; }

 private:
  static constexpr size_t kGuard = 64;
  static constexpr uint8_t kGuardByte = 0xa5;
  struct Memory {
    dgpuTensorDesc desc;
    std::vector<uint8_t> bytes;
    uint8_t* data() { return bytes.data() + kGuard; }
  };

  static size_t span_bytes(const dgpuTensorDesc& d) {
    int64_t last = 0;
    for (uint32_t i = 0; i < d.rank; ++i) {
      if (d.shape[i] == 0) return 0;
      last += (d.shape[i] - 1) * d.strides[i];
    }
    return static_cast<size_t>((last + 1) * dgpu::dtype_bits(d.dtype) + 7) / 8;
  }

  template <class F>
  static void each(const dgpuTensorDesc& d, const int64_t* symbols, F f) {
    int64_t shape[DGPU_MAX_RANK], total = 1;
    for (uint32_t i = 0; i < d.rank; ++i) {
      shape[i] = symbols ? ops::extent(d, i, symbols) : d.shape[i];
      total *= shape[i];
    }
    for (int64_t flat = 0; flat < total; ++flat) {
      int64_t rest = flat, offset = 0;
      for (uint32_t i = d.rank; i-- > 0; rest /= shape[i]) offset += rest % shape[i] * d.strides[i];
      f(offset);
    }
  }

  OpSpec concrete() const {
    OpSpec s = spec;
    for (auto& [name, d] : s.ports)
      for (uint32_t i = 0; i < d.rank; ++i) {
        if (d.symbols[i]) d.shape[i] = symbols[d.symbols[i] - 1];
        d.symbols[i] = 0;
      }
    return s;
  }

  void build() {
    attrs_.clear();
    attr_pointers_.clear();
    ports_.clear();
    port_pointers_.clear();
    pointers_.clear();
    numbers_.clear();
    reals_.clear();
    for (const auto& [name, value] : spec.attrs) add_attr(name, value);
    names_ = ops::port_order(spec);
    for (const auto& name : names_) {
      ports_.push_back({sizeof(dgpuBackendPort), name.c_str(), &spec.ports.at(name), 0, 0});
      const auto shared = shared_.find(name);
      pointers_.push_back(memory_.at(shared == shared_.end() ? name : shared->second).data());
    }
    for (const auto& a : attrs_) attr_pointers_.push_back(&a);
    for (const auto& p : ports_) port_pointers_.push_back(&p);
    op_ = {sizeof(dgpuBackendOp),
           spec.name.c_str(),
           1,
           static_cast<uint32_t>(attrs_.size()),
           attr_pointers_.data(),
           port_pointers_.data(),
           static_cast<uint32_t>(ports_.size()),
           ops::symbol_count(spec)};
  }
  void add_attr(const std::string& name, const ops::AttrValue& value) {
    dgpuBackendAttr a{sizeof(dgpuBackendAttr), name.c_str(), ops::attr_type(value), 1, nullptr, nullptr, nullptr};
    auto& n = *numbers_.insert(numbers_.end(), std::make_unique<std::vector<int64_t>>());
    auto& r = *reals_.insert(reals_.end(), std::make_unique<std::vector<double>>());
    if (const auto* v = std::get_if<int64_t>(&value)) n->push_back(*v);
    if (const auto* v = std::get_if<bool>(&value)) n->push_back(*v);
    if (const auto* v = std::get_if<std::vector<int64_t>>(&value)) *n = *v;
    if (const auto* v = std::get_if<double>(&value)) r->push_back(*v);
    if (const auto* v = std::get_if<std::vector<double>>(&value)) *r = *v;
    if (const auto* v = std::get_if<std::string>(&value)) a.string = v->c_str();
    if (!n->empty()) a.ints = n->data();
    if (!r->empty()) a.floats = r->data();
    a.count = static_cast<uint32_t>(a.ints ? n->size() : a.floats ? r->size() : 1);
    attrs_.push_back(a);
  }

  void check_guards() {
    for (const auto& [name, m] : memory_) {
      const auto guard = [&](size_t from) {
        return std::all_of(m.bytes.begin() + from, m.bytes.begin() + from + kGuard,
                           [](uint8_t b) { return b == kGuardByte; });
      };
      EXPECT_TRUE(guard(0) && guard(m.bytes.size() - kGuard)) << "bytes outside port " << name << " were written";
    }
  }

  std::map<std::string, Memory> memory_;
  std::map<std::string, std::string> shared_;
  std::vector<dgpuBackendAttr> attrs_;
  std::vector<const dgpuBackendAttr*> attr_pointers_;
  std::vector<dgpuBackendPort> ports_;
  std::vector<const dgpuBackendPort*> port_pointers_;
  std::vector<std::string> names_;
  std::vector<void*> pointers_;
  std::vector<std::unique_ptr<std::vector<int64_t>>> numbers_;
  std::vector<std::unique_ptr<std::vector<double>>> reals_;
  dgpuBackendOp op_{};
  std::unique_ptr<Kernel> kernel_;
  std::vector<uint8_t> workspace_;
  size_t chunk_count_ = 0;
};

// Random values of the element type, reproducible.
inline std::function<double(int64_t)> normal(uint32_t seed, double scale = 1) {
  auto rng = std::make_shared<std::mt19937>(seed);
  return [rng, scale](int64_t) { return scale * std::normal_distribution<double>()(*rng); };
}

// |got - want| <= units u |want| + floor, with u of the output's type.
inline void expect_close(Case& c, const std::string& port, const std::vector<double>& want, double units,
                         double floor) {
  const auto got = c.result(port);
  const double u = roundoff(c.dtype(port)), f32 = roundoff(DGPU_DTYPE_F32);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(want[i])) {
      ASSERT_TRUE(std::isnan(got[i])) << port << "[" << i << "] = " << got[i] << ", want NaN";
      continue;
    }
    const double rounded = ops::round_to(c.dtype(port), want[i]);
    if (got[i] == rounded) continue;
    const double bound = (u + units * f32) * std::fabs(want[i]) + floor + 2 * smallest(c.dtype(port));
    ASSERT_LE(std::fabs(got[i] - want[i]), bound) << port << "[" << i << "]: got " << got[i] << ", want " << want[i];
  }
}

// Compares all chunk orders bit by bit, and the result with the reference.
inline void check(Case& c, const std::string& port, double units, double floor = 0) {
  const auto want = c.reference(port);
  ASSERT_EQ(c.run(1), 0) << kit::failure();
  expect_close(c, port, want, units, floor);
  if (c.chunk_count() < 2) return;
  const auto first = c.bytes(port);
  ASSERT_EQ(c.run(2), 0) << kit::failure();
  EXPECT_EQ(first, c.bytes(port)) << "the result depends on the order of the chunks";
}

// Runs f once per instruction set that this machine has.
inline void for_each_isa(const std::function<void()>& f) {
  std::string error;
  const Isa machine = [&] {
    set_isa("auto", &error);
    return isa();
  }();
  for (const Isa level : {Isa::kScalar, Isa::kSse4, Isa::kAvx2, Isa::kAvx512}) {
    if (level > machine) continue;
    SCOPED_TRACE(isa_name(level));
    ASSERT_TRUE(set_isa(isa_name(level), &error)) << error;
    f();
    if (::testing::Test::HasFatalFailure()) break;
  }
  set_isa("auto", &error);
}

constexpr dgpuDtype_t kFloats[] = {DGPU_DTYPE_F32, DGPU_DTYPE_BF16, DGPU_DTYPE_F16};

}  // namespace dgpu::cpu::test
