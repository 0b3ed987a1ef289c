// A lambda as text for an operator's attribute: names other than its parameters replaced by their values.
#pragma once
#include <functional>

#include "model/expr.h"

namespace dgpu::model {

// "\g,u: g * u". Accepts arithmetic, comparison, if-else and calls; throws Fault for anything else.
std::string to_text(const Lambda& lambda, const std::function<Val(const Expr& name)>& value);

}  // namespace dgpu::model
