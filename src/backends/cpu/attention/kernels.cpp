// Compiles the inner loops once per instruction set and hands out the tables.
#include "backends/cpu/attention/kernels.h"

#include <utility>

#include "backends/cpu/simd.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/attention/kernels.cpp"
#include "hwy/foreach_target.h"
//
#include "backends/cpu/attention/softmax-inl.h"
#include "backends/cpu/attention/tiles-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dgpu::cpu::attention::HWY_NAMESPACE {

template <size_t... R>
void fill_values(Kernels* t, std::index_sequence<R...>) {
  ((t->values_wide[R + 1] = values_wide<static_cast<int>(R) + 1>), ...);
}
template <class Tag, size_t... R>
void fill_narrow(Kernels* t, gemm::Type type, std::index_sequence<R...>) {
  const int i = static_cast<int>(type);
  ((t->scores_narrow[R + 1][i] = scores_narrow<static_cast<int>(R) + 1, Tag>), ...);
  ((t->values_narrow[R + 1][i] = values_narrow<static_cast<int>(R) + 1, Tag>), ...);
}

Kernels make(gemm::Isa isa) {
  Kernels t = {};
  t.gemm = gemm::kernels(isa);
  t.columns = kColumns;
  t.value_rows = kValueRows;
  t.narrow_rows = kNarrowRows;
  t.softmax_wide = softmax_wide;
  fill_values(&t, std::make_index_sequence<kValueRows>());
  t.merge_wide = merge_wide;
  t.transpose_out = transpose_out;
  const auto rows = std::make_index_sequence<kNarrowRows>();
  fill_narrow<F32>(&t, gemm::Type::f32, rows);
  fill_narrow<BF16>(&t, gemm::Type::bf16, rows);
  fill_narrow<F16>(&t, gemm::Type::f16, rows);
  t.paired_order[static_cast<int>(gemm::Type::f32)] = paired_order<F32>;
  t.paired_order[static_cast<int>(gemm::Type::bf16)] = paired_order<BF16>;
  t.paired_order[static_cast<int>(gemm::Type::f16)] = paired_order<F16>;
  t.softmax_narrow = softmax_narrow;
  t.merge_row = merge_row;
  t.finish = finish;
  t.multiply = multiply;
  return t;
}

}  // namespace dgpu::cpu::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dgpu::cpu::attention {

const Kernels* kernels_for(gemm::Isa isa) {
  if (gemm::kernels(isa) == nullptr) return nullptr;
  switch (isa) {
#if HWY_TARGETS & HWY_AVX3
    case gemm::Isa::avx512: {
      static const Kernels table = N_AVX3::make(isa);
      return &table;
    }
#endif
#if HWY_TARGETS & HWY_AVX2
    case gemm::Isa::avx2: {
      static const Kernels table = N_AVX2::make(isa);
      return &table;
    }
#endif
#if HWY_TARGETS & HWY_SSE4
    case gemm::Isa::sse4: {
      static const Kernels table = N_SSE4::make(isa);
      return &table;
    }
#endif
#if HWY_TARGETS & HWY_NEON
    case gemm::Isa::neon: {
      static const Kernels table = N_NEON::make(isa);
      return &table;
    }
#endif
#if HWY_TARGETS & HWY_EMU128
    case gemm::Isa::scalar: {
      static const Kernels table = N_EMU128::make(isa);
      return &table;
    }
#elif HWY_TARGETS & HWY_SCALAR
    case gemm::Isa::scalar: {
      static const Kernels table = N_SCALAR::make(isa);
      return &table;
    }
#endif
    default:
      return nullptr;
  }
}

const Kernels& best_kernels() {
  for (gemm::Isa isa : {gemm::Isa::avx512, gemm::Isa::avx2, gemm::Isa::neon, gemm::Isa::sse4}) {
    if (const Kernels* t = kernels_for(isa)) return *t;
  }
  return *kernels_for(gemm::Isa::scalar);
}

}  // namespace dgpu::cpu::attention
#endif  // HWY_ONCE
