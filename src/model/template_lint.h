// Static checks of a template: every name means one thing, is known where it is used, and is used somewhere.
#pragma once
#include "model/template.h"

namespace dgpu::model {

void lint(const Template& t);  // throws Fault

}  // namespace dgpu::model
