// Loops over contiguous f32 data, compiled per instruction set and dispatched at run time. The building blocks of the
// operator kernels: a kernel brings rows into f32 (load), works on them here, and writes them back (store).
#pragma once
#include <cstdint>

#include "dgpu/types.h"

namespace dgpu::cpu::vec {

// f32, bf16 and f16 elements to f32 and back (round to nearest even).
void load(const void* src, dgpuDtype_t type, int64_t n, float* dst);
void store(const float* src, dgpuDtype_t type, int64_t n, void* dst);
// To the type's precision, in place.
void round(float* x, dgpuDtype_t type, int64_t n);

enum class Unary {
  neg,
  abs,
  exp,
  log,
  sqrt,
  rsqrt,
  tanh,
  sigmoid,
  silu,
  gelu_erf,
  gelu_tanh,
  relu,
  softplus,
  sin,
  cos,
  reciprocal,
  square
};
enum class Binary { add, sub, mul, div, max, min, pow };
// y may be an input.
void unary(Unary fn, const float* x, float* y, int64_t n);
void binary(Binary fn, const float* a, const float* b, float* y, int64_t n);

enum class Activation { none, relu, gelu_erf, gelu_tanh, silu, sigmoid };
struct Glu {
  Activation activation = Activation::silu;
  float alpha = 1, gate_max = 0, up_clamp = 0, up_offset = 0;  // gate_max and up_clamp: infinity when unused
};
void glu(const Glu& p, const float* gate, const float* up, float* y, int64_t n);

// Sums: f32 in lanes over blocks of 1024, f64 across the blocks; the order depends on n alone.
double sum(const float* x, int64_t n);
double sum_sq(const float* x, int64_t n);
double sum_sq_diff(const float* x, float mean, int64_t n);
// NaN if any element is; -inf and inf for n = 0.
float max(const float* x, int64_t n);
float min(const float* x, int64_t n);

void scale(const float* x, float s, float* y, int64_t n);  // y = x s
// y = (x s) w; with x s rounded to `type` before the product.
void scale_mul(const float* x, float s, dgpuDtype_t type, const float* w, float* y, int64_t n);
void add_rounded(const float* a, const float* b, dgpuDtype_t type, float* y, int64_t n);  // y = a + b, rounded
// y = (x - mean) s w + b; w and b may be null.
void affine(const float* x, float mean, float s, const float* w, const float* b, float* y, int64_t n);
// y = exp(x - m), and the sum as above. y may be null.
double exp_sum(const float* x, float m, float* y, int64_t n);
// In f64: y = (x - m) s, and x = exp(x) in place for x <= 0.
void scaled_diff(const float* x, double m, double s, double* y, int64_t n);
void exp_f64(double* x, int64_t n);
// b = min(-d * per_unit, last) rounded down, for d <= 0.
void buckets(const double* d, double per_unit, int32_t last, int32_t* b, int64_t n);

// cos and sin of f64 angles, rounded to f32 and then multiplied by s.
void cos_sin(const double* angles, float s, float* cosine, float* sine, int64_t n);
// ya = a c - b s, yb = b c + a s. ya may be a, yb may be b.
void rotate(const float* a, const float* b, const float* c, const float* s, float* ya, float* yb, int64_t n);
void split_pairs(const float* x, float* even, float* odd, int64_t n);  // n pairs
void join_pairs(const float* even, const float* odd, float* x, int64_t n);

// Order: integers that compare as the floats do, with -0 = +0 and NaN above all; `ascending` inverts the order, so that
// the best element has the largest key either way.
void order_keys(const float* x, bool ascending, int32_t* keys, int64_t n);
int32_t max_key(const int32_t* keys, int64_t n);                // INT32_MIN for n = 0
int64_t find_key(const int32_t* keys, int32_t key, int64_t n);  // first index, -1 if none
int64_t first_above(const int32_t* keys, int32_t key, int64_t begin,
                    int64_t n);  // first index with keys[i] > key, or n

}  // namespace dgpu::cpu::vec
