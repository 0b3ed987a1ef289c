// Does a backend's claim cover an operator?
#pragma once
#include <string>
#include <vector>

#include "ops/op.h"

namespace dgpu::ops {

// The claim covers the validated operator: each attribute is named with its value or has its default, each bound port
// is named with its type. Otherwise `reason` says what the claim lacks ("claim lacks attribute cast=after_weight").
bool covers(const dgpuBackendClaim& claim, const OpSpec& spec, std::string& reason);

// The first of `claims` that covers the operator, or null with the reason of the first that names it.
const dgpuBackendClaim* match_claim(const std::vector<const dgpuBackendClaim*>& claims, const OpSpec& spec,
                                    std::string& reason);

}  // namespace dgpu::ops
