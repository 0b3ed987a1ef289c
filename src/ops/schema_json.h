// A schema as a JSON document.
#pragma once
#include <string>

#include "ops/op.h"

namespace dgpu::ops {

std::string schema_json(const Schema& schema);

}  // namespace dgpu::ops
