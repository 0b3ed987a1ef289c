// Compiles the inner loops once per instruction set and hands out the tables.
#include "backends/cpu/gemm/kernels.h"

#include "backends/cpu/isa.h"

#include <type_traits>
#include <utility>

#include "backends/cpu/simd.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/gemm/kernels.cpp"
#include "hwy/foreach_target.h"
//
#include "backends/cpu/gemm/epilogue-inl.h"
#include "backends/cpu/gemm/inplace-inl.h"
#include "backends/cpu/gemm/micro-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dgpu::cpu::gemm::HWY_NAMESPACE {

double fma_loop(int64_t iterations) {
  constexpr int kSums = 12;
  const D d;
  V s[kSums];
#pragma GCC unroll 12
  for (int i = 0; i < kSums; ++i) s[i] = hn::Set(d, static_cast<float>(i));
  const V x = hn::Set(d, 0.999f), y = hn::Set(d, 0.001f);
  for (int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) s[i] = hn::MulAdd(s[i], x, y);
  }
  V total = s[0];
  for (int i = 1; i < kSums; ++i) total = hn::Add(total, s[i]);
  volatile float sink = hn::GetLane(total);
  (void)sink;
  return 2.0 * kSums * kLanes * static_cast<double>(iterations);
}

float read_loop(const float* data, int64_t count) {
  constexpr int kSums = 8;
  const D d;
  V s[kSums];
#pragma GCC unroll 8
  for (int i = 0; i < kSums; ++i) s[i] = hn::Zero(d);
  for (int64_t p = 0; p + kSums * kLanes <= count; p += kSums * kLanes) {
#pragma GCC unroll 8
    for (int i = 0; i < kSums; ++i) s[i] = hn::Add(s[i], hn::LoadU(d, data + p + i * kLanes));
  }
  for (int i = 1; i < kSums; ++i) s[0] = hn::Add(s[0], s[i]);
  return hn::GetLane(hn::SumOfLanes(d, s[0]));
}

template <size_t... R>
void fill_micro(Kernels* t, std::index_sequence<R...>) {
  ((t->micro[R + 1] = micro<static_cast<int>(R) + 1>), ...);
}
template <class Tag, size_t... R>
void fill_dot(Kernels* t, Type type, std::index_sequence<R...>) {
  ((t->dot[R + 1][static_cast<int>(type)] = dot<static_cast<int>(R) + 1, Tag>), ...);
}
template <class Tag, size_t... R>
void fill_stream(Kernels* t, Type type, std::index_sequence<R...>) {
  ((t->stream[R + 1][static_cast<int>(type)] = stream<static_cast<int>(R) + 1, Tag>), ...);
}
template <class Tag>
void fill_type(Kernels* t, Type type) {
  const int i = static_cast<int>(type);
  t->pack_rows[i] = pack_rows<Tag, false>;
  t->stream_rows[i] = pack_rows<Tag, true>;
  t->pack_columns[i] = pack_columns<Tag>;
  t->widen[i] = widen<Tag>;
  t->narrow[i] = narrow<Tag>;
  t->finish[i] = finish<Tag>;
  fill_dot<Tag>(t, type, std::make_index_sequence<kMaxDotRows>());
  fill_stream<Tag>(t, type, std::make_index_sequence<kMaxStreamRows>());
}

Kernels make(Isa isa, const char* name) {
  Kernels t = {};
  t.isa = isa;
  t.name = name;
  t.rows = kTileRows;
  t.a_width = kAWidth;
  t.b_width = kBWidth;
  fill_micro(&t, std::make_index_sequence<kTileRows>());
  fill_type<F32>(&t, Type::f32);
  fill_type<BF16>(&t, Type::bf16);
  fill_type<F16>(&t, Type::f16);
  t.pack_pair_rows = pack_rows<Pair, false>;
  t.stream_pair_rows = pack_rows<Pair, true>;
  t.pack_pair_columns = pack_columns<Pair>;
  t.add = add;
  t.fma_loop = fma_loop;
  t.read_loop = read_loop;
  return t;
}

}  // namespace dgpu::cpu::gemm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dgpu::cpu::gemm {

const Kernels* kernels(Isa isa) {
  [[maybe_unused]] const cpu::Isa limit = cpu::isa();
  switch (isa) {
#if HWY_TARGETS & HWY_AVX3
    case Isa::avx512: {
      static const Kernels table = N_AVX3::make(isa, "avx512");
      return limit >= cpu::Isa::kAvx512 ? &table : nullptr;
    }
#endif
#if HWY_TARGETS & HWY_AVX2
    case Isa::avx2: {
      static const Kernels table = N_AVX2::make(isa, "avx2");
      return limit >= cpu::Isa::kAvx2 ? &table : nullptr;
    }
#endif
#if HWY_TARGETS & HWY_SSE4
    case Isa::sse4: {
      static const Kernels table = N_SSE4::make(isa, "sse4");
      return limit >= cpu::Isa::kSse4 ? &table : nullptr;
    }
#endif
#if HWY_TARGETS & HWY_NEON
    case Isa::neon: {
      static const Kernels table = N_NEON::make(isa, "neon");
      return &table;
    }
#endif
#if HWY_TARGETS & HWY_EMU128
    case Isa::scalar: {
      static const Kernels table = N_EMU128::make(isa, "scalar");
      return &table;
    }
#elif HWY_TARGETS & HWY_SCALAR
    case Isa::scalar: {
      static const Kernels table = N_SCALAR::make(isa, "scalar");
      return &table;
    }
#endif
    default:
      return nullptr;
  }
}

const Kernels& best_kernels() {
  for (Isa isa : {Isa::avx512, Isa::avx2, Isa::neon, Isa::sse4}) {
    if (const Kernels* t = kernels(isa)) return *t;
  }
  return *kernels(Isa::scalar);
}

}  // namespace dgpu::cpu::gemm
#endif  // HWY_ONCE
