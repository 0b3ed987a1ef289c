// What a matrix product is, before any blocking: types, strided operands, epilogue.
#pragma once
#include <cstddef>
#include <cstdint>

namespace dgpu::cpu::gemm {

enum class Type : uint8_t { f32, bf16, f16 };
constexpr int kTypes = 3;
constexpr int64_t size_of(Type t) { return t == Type::f32 ? 4 : 2; }

enum class Activation : uint8_t { none, relu, gelu_erf, gelu_tanh, silu };

// Which multiplier sums the products: f32 FMA on widened operands, or the bf16 pair instruction (both bf16).
enum class Unit : uint8_t { fma, bf16_dot };

// How the operands reach the multiplier.
enum class Path : uint8_t {
  packed,  // both operands copied into panels, block by block
  dot,     // rows of A times rows of B in place, vectors along k: few rows of A, weights [n,k]
  stream   // rows of B in place, vectors along n: very few rows of A, weights [k,n]
};

constexpr int kMaxBatchRank = 6;

// Strides in elements of one operand: `row` and `col` name m,k of A; n,k of B; m,n of the rest.
struct View {
  Type type = Type::f32;
  int64_t row = 0, col = 0;
  int64_t batch[kMaxBatchRank] = {};
};

// out[b,m,n] = activation(sum_k A[b,m,k] B[b,n,k] + bias[n]) * gate[b,m,n] + residual[b,m,n], in f32 up to the final
// rounding. `out` may be `residual` itself.
struct Problem {
  int64_t m = 0, n = 0, k = 0;
  int batch_rank = 0;
  int64_t batch[kMaxBatchRank] = {};
  View a, b, out, gate, residual;
  Type bias_type = Type::f32;
  int64_t bias_stride = 1;
  bool has_bias = false, has_gate = false, has_residual = false;
  Activation activation = Activation::none;
};

struct Pointers {
  const void* a = nullptr;
  const void* b = nullptr;
  const void* bias = nullptr;
  const void* gate = nullptr;
  const void* residual = nullptr;
  void* out = nullptr;
};

inline const void* at(const void* p, Type t, int64_t elements) {
  return static_cast<const char*>(p) + elements * size_of(t);
}
inline void* at(void* p, Type t, int64_t elements) { return static_cast<char*>(p) + elements * size_of(t); }

}  // namespace dgpu::cpu::gemm
