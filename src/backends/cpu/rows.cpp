#include "backends/cpu/rows.h"

#include <cstdlib>
#include <new>

namespace dgpu::cpu {

uint32_t dtype_bits(dgpuDtype_t t) {
  switch (t) {
#define DGPU_DTYPE_BITS_ROW(name, value, bits, text) \
  case value:                                        \
    return bits;
    DGPU_DTYPE_LIST(DGPU_DTYPE_BITS_ROW)
#undef DGPU_DTYPE_BITS_ROW
    default:
      return 0;
  }
}

Port bind(const kit::OpView& op, std::string_view name) {
  Port p;
  p.index = op.port(name);
  if (p.index < 0) return p;
  p.d = op.desc(static_cast<uint32_t>(p.index));
  p.bytes = dtype_bytes(p.d.dtype);
  return p;
}

bool accept_floats(const kit::OpView& op, std::initializer_list<const char*> names, std::string* reason) {
  for (const char* name : names) {
    const dgpuTensorDesc* d = op.desc(name);
    if (!d || (is_f(d->dtype) && d->layout == 0)) continue;
    *reason = std::string(op.name()) + ": port " + name + " must be a strided f32, bf16 or f16 tensor";
    return false;
  }
  return true;
}

const float* load_row(const void* p, dgpuDtype_t type, int64_t stride, int64_t n, float* scratch) {
  if (stride == 1) {
    if (type == DGPU_DTYPE_F32) return static_cast<const float*>(p);
    vec::load(p, type, n, scratch);
    return scratch;
  }
  if (stride == 0) {
    float v = 0;
    if (n > 0) vec::load(p, type, 1, &v);
    for (int64_t i = 0; i < n; ++i) scratch[i] = v;
    return scratch;
  }
  if (type == DGPU_DTYPE_F32) {
    const auto* x = static_cast<const float*>(p);
    for (int64_t i = 0; i < n; ++i) scratch[i] = x[i * stride];
    return scratch;
  }
  const auto* x = static_cast<const uint16_t*>(p);
  constexpr int64_t kPart = 256;
  uint16_t part[kPart];
  for (int64_t begin = 0; begin < n; begin += kPart) {
    const int64_t m = n - begin < kPart ? n - begin : kPart;
    for (int64_t i = 0; i < m; ++i) part[i] = x[(begin + i) * stride];
    vec::load(part, type, m, scratch + begin);
  }
  return scratch;
}

void store_row(const float* x, void* p, dgpuDtype_t type, int64_t stride, int64_t n) {
  if (stride == 1) return vec::store(x, type, n, p);
  if (type == DGPU_DTYPE_F32) {
    auto* y = static_cast<float*>(p);
    for (int64_t i = 0; i < n; ++i) y[i * stride] = x[i];
    return;
  }
  auto* y = static_cast<uint16_t*>(p);
  constexpr int64_t kPart = 256;
  uint16_t part[kPart];
  for (int64_t begin = 0; begin < n; begin += kPart) {
    const int64_t m = n - begin < kPart ? n - begin : kPart;
    vec::store(x + begin, type, m, part);
    for (int64_t i = 0; i < m; ++i) y[(begin + i) * stride] = part[i];
  }
}

namespace {
struct Scratch {
  void* data[kScratchSlots] = {};
  size_t size[kScratchSlots] = {};
  ~Scratch() {
    for (void* p : data) std::free(p);
  }
};
thread_local Scratch t_scratch;
}  // namespace

void* scratch_bytes(int slot, size_t n) {
  Scratch& s = t_scratch;
  if (n > s.size[slot]) {
    size_t size = s.size[slot] ? s.size[slot] : size_t{16384};
    while (size < n) size *= 2;
    std::free(s.data[slot]);
    s.size[slot] = 0;
    s.data[slot] = std::aligned_alloc(64, size);
    if (!s.data[slot]) throw std::bad_alloc();
    s.size[slot] = size;
  }
  return s.data[slot];
}

}  // namespace dgpu::cpu
