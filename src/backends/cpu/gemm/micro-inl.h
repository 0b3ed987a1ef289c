// Register tiles over packed panels, and panel packing. Included once per instruction set.
#if defined(DGPU_GEMM_MICRO_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DGPU_GEMM_MICRO_INL_H_
#undef DGPU_GEMM_MICRO_INL_H_
#else
#define DGPU_GEMM_MICRO_INL_H_
#endif

#include "backends/cpu/gemm/convert-inl.h"
#include "backends/cpu/gemm/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace dgpu::cpu::gemm::HWY_NAMESPACE {

// 32 vector registers: 14 rows x 2 vectors of sums, 2 of B, 1 broadcast. 16 registers: 6 x 2.
#if HWY_TARGET == HWY_AVX3
constexpr int kTileRows = 14, kAWidth = 16;
#elif HWY_TARGET == HWY_NEON
constexpr int kTileRows = 12, kAWidth = 12;
#else
constexpr int kTileRows = 6, kAWidth = 8;
#endif
constexpr int kBWidth = 2 * kLanes;

template <int R>
void micro(const void* av, const void* bv, int64_t units, float* HWY_RESTRICT c, int64_t ldc, bool accumulate) {
  const D d;
  const float* HWY_RESTRICT a = static_cast<const float*>(av);
  const float* HWY_RESTRICT b = static_cast<const float*>(bv);
  V c0[R], c1[R];
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) c0[i] = c1[i] = hn::Zero(d);
  for (int64_t u = 0; u < units; ++u, a += kAWidth, b += kBWidth) {
    const V b0 = hn::LoadU(d, b);
    const V b1 = hn::LoadU(d, b + kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      const V x = hn::Set(d, a[i]);
      c0[i] = hn::MulAdd(x, b0, c0[i]);
      c1[i] = hn::MulAdd(x, b1, c1[i]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
    float* row = c + i * ldc;
    if (accumulate) {
      c0[i] = hn::Add(c0[i], hn::LoadU(d, row));
      c1[i] = hn::Add(c1[i], hn::LoadU(d, row + kLanes));
    }
    hn::StoreU(c0[i], d, row);
    hn::StoreU(c1[i], d, row + kLanes);
  }
}

#if HWY_TARGET != HWY_SCALAR
// Vector j of a 4-unit column block: one 16-byte block from every fourth row.
HWY_INLINE VU load_blocks(const char* const* rows, int j, int64_t offset) {
  const DU d;
  const auto block = [rows, offset](int i) HWY_ATTR {
    return hn::LoadU(hn::Full128<uint32_t>(), reinterpret_cast<const uint32_t*>(rows[i] + offset));
  };
#if HWY_MAX_BYTES == 64
  const hn::Half<DU> dh;
  return hn::Combine(d, hn::Combine(dh, block(j + 12), block(j + 8)), hn::Combine(dh, block(j + 4), block(j)));
#elif HWY_MAX_BYTES == 32
  return hn::Combine(d, block(j + 4), block(j));
#else
  (void)d;
  return block(j);
#endif
}

// out[u] = unit u of kLanes rows, u < 4.
HWY_INLINE void transpose4(const char* const* rows, int64_t offset, VU* out) {
  const DU d;
  const hn::RepartitionToWide<DU> dw;
  const VU r0 = load_blocks(rows, 0, offset), r1 = load_blocks(rows, 1, offset);
  const VU r2 = load_blocks(rows, 2, offset), r3 = load_blocks(rows, 3, offset);
  const auto lo01 = hn::BitCast(dw, hn::InterleaveLower(d, r0, r1));
  const auto lo23 = hn::BitCast(dw, hn::InterleaveLower(d, r2, r3));
  const auto hi01 = hn::BitCast(dw, hn::InterleaveUpper(d, r0, r1));
  const auto hi23 = hn::BitCast(dw, hn::InterleaveUpper(d, r2, r3));
  out[0] = hn::BitCast(d, hn::InterleaveLower(dw, lo01, lo23));
  out[1] = hn::BitCast(d, hn::InterleaveUpper(dw, lo01, lo23));
  out[2] = hn::BitCast(d, hn::InterleaveLower(dw, hi01, hi23));
  out[3] = hn::BitCast(d, hn::InterleaveUpper(dw, hi01, hi23));
}
#endif

// Stores one transposed 4-byte unit of source: an f32, or two 16-bit values that become two k or stay a pair.
struct Pair {
  using T = uint16_t;
};
HWY_INLINE void put_unit(F32, VU u, float* p, int) { hn::StoreU(hn::BitCast(D(), u), D(), p); }
HWY_INLINE void put_unit(Pair, VU u, float* p, int) { hn::StoreU(hn::BitCast(D(), u), D(), p); }
HWY_INLINE void put_unit(BF16, VU u, float* p, int width) {
  hn::StoreU(bf16_bits(u), D(), p);
  hn::StoreU(hn::BitCast(D(), hn::And(u, hn::Set(DU(), 0xffff0000u))), D(), p + width);
}
HWY_INLINE void put_unit(F16, VU u, float* p, int width) {
  hn::StoreU(f16_bits(hn::And(u, hn::Set(DU(), 0xffffu))), D(), p);
  hn::StoreU(f16_bits(hn::ShiftRight<16>(u)), D(), p + width);
}

template <class Tag>
void pack_rows(const void* const* rows, int64_t k, int width, void* panel) {
  using T = typename Tag::T;
  constexpr bool kPair = std::is_same_v<Tag, Pair>;
  constexpr int kPerUnit = 4 / static_cast<int>(sizeof(T));           // k in a source unit
  [[maybe_unused]] constexpr int kPanelUnits = kPair ? 1 : kPerUnit;  // panel rows that it fills
  float* out = static_cast<float*>(panel);
  int64_t done = 0;
#if HWY_TARGET != HWY_SCALAR
  const auto* bytes = reinterpret_cast<const char* const*>(rows);
  for (; done + 4 * kPerUnit <= k; done += 4 * kPerUnit) {
    for (int g = 0; g < width; g += kLanes) {
      VU t[4];
      transpose4(bytes + g, done * static_cast<int64_t>(sizeof(T)), t);
#pragma GCC unroll 4
      for (int u = 0; u < 4; ++u) put_unit(Tag(), t[u], out + g + u * kPanelUnits * width, width);
    }
    out += 4 * kPanelUnits * width;
  }
#endif
  for (; done < k; done += kPair ? 2 : 1, out += width) {
    for (int i = 0; i < width; ++i) {
      const T* p = static_cast<const T*>(rows[i]) + done;
      if constexpr (kPair) {
        const uint16_t pair[2] = {p[0], done + 1 < k ? p[1] : uint16_t{0}};
        std::memcpy(out + i, pair, 4);
      } else {
        out[i] = load_one(Tag(), p);
      }
    }
  }
}

template <class Tag>
void pack_columns(const void* src, int64_t stride, int64_t k, int valid, int width, void* panel) {
  using T = typename Tag::T;
  const T* p = static_cast<const T*>(src);
  float* out = static_cast<float*>(panel);
  T edge[kMaxWidth] = {};
  for (int64_t i = 0; i < k; ++i, p += stride, out += width) {
    const T* row = p;
    if (valid < width) {
      std::memcpy(edge, p, static_cast<size_t>(valid) * sizeof(T));
      row = edge;
    }
    for (int g = 0; g < width; g += kLanes) hn::StoreU(load(Tag(), row + g), D(), out + g);
  }
}

inline void pack_pair_columns(const void* src, int64_t stride, int64_t k, int valid, int width, void* panel) {
  const uint16_t* p = static_cast<const uint16_t*>(src);
  auto* out = static_cast<uint32_t*>(panel);
  uint16_t edge[2][kMaxWidth] = {};
  for (int64_t i = 0; i < k; i += 2, p += 2 * stride, out += width) {
    const uint16_t* even = p;
    const uint16_t* odd = i + 1 < k ? p + stride : nullptr;
    if (valid < width || odd == nullptr) {
      const size_t bytes = static_cast<size_t>(valid) * 2;
      std::memcpy(edge[0], even, bytes);
      if (odd != nullptr) std::memcpy(edge[1], odd, bytes);
      if (odd == nullptr) std::memset(edge[1], 0, sizeof(edge[1]));
      even = edge[0];
      odd = edge[1];
    }
    for (int g = 0; g < width; g += kLanes) {
      hn::StoreU(hn::Or(load_u16(even + g), hn::ShiftLeft<16>(load_u16(odd + g))), DU(), out + g);
    }
  }
}

}  // namespace dgpu::cpu::gemm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
