// The operators of the library: one row each, one file each.
#pragma once
#include "ops/op.h"

#define DGPU_OP_LIST(X) \
  X(argmax)             \
  X(attention)          \
  X(binary)             \
  X(cache_append)       \
  X(cast)               \
  X(embedding)          \
  X(glu)                \
  X(layer_norm)         \
  X(matmul)             \
  X(moe_experts)        \
  X(moe_route)          \
  X(reduce)             \
  X(rms_norm)           \
  X(rope)               \
  X(rope_freqs)         \
  X(sample)             \
  X(softmax)            \
  X(top_k)              \
  X(unary)

namespace dgpu::ops::schemas {
#define DGPU_OP_DECLARE(name) const Schema& name();
DGPU_OP_LIST(DGPU_OP_DECLARE)
#undef DGPU_OP_DECLARE
}  // namespace dgpu::ops::schemas
