// Register tiles over packed panels, and panel packing. Included once per instruction set.
#if defined(DGPU_GEMM_MICRO_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DGPU_GEMM_MICRO_INL_H_
#undef DGPU_GEMM_MICRO_INL_H_
#else
#define DGPU_GEMM_MICRO_INL_H_
#endif

#include "backends/cpu/gemm/kernels.h"
#include "backends/cpu/vec-inl.h"
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace dgpu::cpu::gemm::HWY_NAMESPACE {
using namespace vec::HWY_NAMESPACE;

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
// Transposes 4 x 4 units within each 128-bit block.
HWY_INLINE void transpose_in_blocks(VU* r) {
  const DU d;
  const hn::RepartitionToWide<DU> dw;
  const auto lo01 = hn::BitCast(dw, hn::InterleaveLower(d, r[0], r[1]));
  const auto lo23 = hn::BitCast(dw, hn::InterleaveLower(d, r[2], r[3]));
  const auto hi01 = hn::BitCast(dw, hn::InterleaveUpper(d, r[0], r[1]));
  const auto hi23 = hn::BitCast(dw, hn::InterleaveUpper(d, r[2], r[3]));
  r[0] = hn::BitCast(d, hn::InterleaveLower(dw, lo01, lo23));
  r[1] = hn::BitCast(d, hn::InterleaveUpper(dw, lo01, lo23));
  r[2] = hn::BitCast(d, hn::InterleaveLower(dw, hi01, hi23));
  r[3] = hn::BitCast(d, hn::InterleaveUpper(dw, hi01, hi23));
}

// Bytes that packing reads ahead in each row, into the second-level cache: many rows at once defeat the hardware's
// streams.
constexpr int kPackAhead = 256;

// Transposes kLanes x kLanes units. Whole vectors are read, so that each cache line is touched once: rows are often a
// power of two apart and share one set of the first-level cache.
HWY_INLINE void transpose(const char* const* rows, int64_t offset, VU* r) {
  const DU d;
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    r[i] = hn::LoadU(d, reinterpret_cast<const uint32_t*>(rows[i] + offset));
    __builtin_prefetch(rows[i] + offset + kPackAhead, 0, 2);
  }
#pragma GCC unroll 4
  for (int i = 0; i < kLanes; i += 4) transpose_in_blocks(r + i);
#if HWY_MAX_BYTES == 64
  VU t[16];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const auto low01 = _mm512_shuffle_i32x4(r[i].raw, r[i + 4].raw, 0x44);
    const auto low23 = _mm512_shuffle_i32x4(r[i + 8].raw, r[i + 12].raw, 0x44);
    const auto high01 = _mm512_shuffle_i32x4(r[i].raw, r[i + 4].raw, 0xee);
    const auto high23 = _mm512_shuffle_i32x4(r[i + 8].raw, r[i + 12].raw, 0xee);
    t[i].raw = _mm512_shuffle_i32x4(low01, low23, 0x88);
    t[i + 4].raw = _mm512_shuffle_i32x4(low01, low23, 0xdd);
    t[i + 8].raw = _mm512_shuffle_i32x4(high01, high23, 0x88);
    t[i + 12].raw = _mm512_shuffle_i32x4(high01, high23, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) r[i] = t[i];
#elif HWY_MAX_BYTES == 32
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const VU low = hn::ConcatLowerLower(d, r[i + 4], r[i]);
    r[i + 4] = hn::ConcatUpperUpper(d, r[i + 4], r[i]);
    r[i] = low;
  }
#endif
}
#endif

struct Pair {
  using T = uint16_t;
};
HWY_INLINE V f16_value(VU low16) {
#if DGPU_VEC_NATIVE_F16
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<hwy::float16_t, D> df16;
  return hn::PromoteTo(D(), hn::BitCast(df16, hn::DemoteTo(d16, hn::BitCast(DI(), low16))));
#else
  return f16_from_bits(low16);
#endif
}

template <bool kStream>
HWY_INLINE void put(V v, float* p) {
  if constexpr (kStream) {
    hn::Stream(v, D(), p);
  } else {
    hn::StoreU(v, D(), p);
  }
}
// Stores one transposed 4-byte unit of source: an f32, or two 16-bit values that become two k or stay a pair.
template <bool kStream>
HWY_INLINE void put_unit(F32, VU u, float* p, int) {
  put<kStream>(hn::BitCast(D(), u), p);
}
template <bool kStream>
HWY_INLINE void put_unit(Pair, VU u, float* p, int) {
  put<kStream>(hn::BitCast(D(), u), p);
}
template <bool kStream>
HWY_INLINE void put_unit(BF16, VU u, float* p, int width) {
  put<kStream>(hn::BitCast(D(), hn::ShiftLeft<16>(u)), p);
  put<kStream>(hn::BitCast(D(), hn::And(u, hn::Set(DU(), 0xffff0000u))), p + width);
}
template <bool kStream>
HWY_INLINE void put_unit(F16, VU u, float* p, int width) {
  put<kStream>(f16_value(hn::And(u, hn::Set(DU(), 0xffffu))), p);
  put<kStream>(f16_value(hn::ShiftRight<16>(u)), p + width);
}

template <class Tag, bool kStream>
void pack_rows(const void* const* rows, int64_t k, int width, void* panel) {
  using T = typename Tag::T;
  constexpr bool kPair = std::is_same_v<Tag, Pair>;
  constexpr int kPerUnit = 4 / static_cast<int>(sizeof(T));           // k in a source unit
  [[maybe_unused]] constexpr int kPanelUnits = kPair ? 1 : kPerUnit;  // panel rows that it fills
  float* out = static_cast<float*>(panel);
  int64_t done = 0;
#if HWY_TARGET != HWY_SCALAR
  const auto* bytes = reinterpret_cast<const char* const*>(rows);
  for (; done + kLanes * kPerUnit <= k; done += kLanes * kPerUnit) {
    for (int g = 0; g < width; g += kLanes) {
      VU t[kLanes];
      transpose(bytes + g, done * static_cast<int64_t>(sizeof(T)), t);
#pragma GCC unroll 16
      for (int u = 0; u < kLanes; ++u) put_unit<kStream>(Tag(), t[u], out + g + u * kPanelUnits * width, width);
    }
    out += kLanes * kPanelUnits * width;
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
  if constexpr (kStream) hwy::FlushStream();
}

constexpr int kColumnsAhead = 16;  // k that pack_columns reads ahead
template <class T>
constexpr int kLine = 64 / static_cast<int>(sizeof(T));

template <class T>
HWY_INLINE void prefetch_row(const T* p, int columns) {
  for (int c = 0; c < columns; c += kLine<T>) __builtin_prefetch(p + c, 0, 2);
}

// One vector of a panel row: from row k of the source, and for pairs from row k + 1, too.
template <class Tag>
HWY_INLINE V column_units(Tag tag, const typename Tag::T* even, const typename Tag::T*) {
  return load(tag, even);
}
HWY_INLINE V column_units(Pair, const uint16_t* even, const uint16_t* odd) {
  return hn::BitCast(D(), hn::Or(load_u16(even), hn::ShiftLeft<16>(load_u16(odd))));
}

template <class Tag>
void pack_columns(const void* src, int64_t stride, int64_t k, int columns, int width, void* panels,
                  int64_t panel_floats) {
  using T = typename Tag::T;
  constexpr int kStep = std::is_same_v<Tag, Pair> ? 2 : 1;
  static constexpr T kZeros[kMaxColumns] = {};
  const T* p = static_cast<const T*>(src);
  float* out = static_cast<float*>(panels);
  const int whole = columns / kLanes * kLanes;
  for (int64_t i = 0; i < k; i += kStep, p += kStep * stride, out += width) {
    for (int s = 0; s < kStep; ++s) prefetch_row(p + (kColumnsAhead + s) * stride, columns);
    const T* odd = i + 1 < k ? p + stride : kZeros;
    int c = 0;
    for (float* panel = out; c < whole; panel += panel_floats) {
      for (int g = 0; g < width && c < whole; g += kLanes, c += kLanes) {
        hn::StoreU(column_units(Tag(), p + c, odd + c), D(), panel + g);
      }
    }
    if (c == columns) continue;
    T edge[2][kLanes] = {};
    std::memcpy(edge[0], p + c, static_cast<size_t>(columns - c) * sizeof(T));
    std::memcpy(edge[1], odd + c, static_cast<size_t>(columns - c) * sizeof(T));
    hn::StoreU(column_units(Tag(), edge[0], edge[1]), D(), out + c / width * panel_floats + c % width);
  }
}

}  // namespace dgpu::cpu::gemm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
