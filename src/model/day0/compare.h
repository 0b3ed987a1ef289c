// One run of a model against a baseline, tensor by tensor.
#pragma once
#include "model/day0/documents.h"
#include "model/session.h"

namespace dgpu::model {

// `model` is loaded; `compute` the type of the run. See dgpuDay0Compare. Blocks.
Status compare(Ref<OpenModel> model, dgpuDtype_t compute, const std::string& baseline_file, Document& out);

}  // namespace dgpu::model
