// The gated linear unit's attributes and function, shared with moe_experts.
#pragma once
#include "ops/op.h"
#include "ops/ref_math.h"

namespace dgpu::ops {

GluFn glu_fn(const OpSpec& spec);
std::vector<AttrSchema> glu_attrs();  // activation, alpha, gate_max, up_clamp, up_offset
Status check_glu_attrs(const OpSpec& spec);

}  // namespace dgpu::ops
