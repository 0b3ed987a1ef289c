// What a model is and whether a device can run it, without loading weights.
#pragma once
#include "model/day0/documents.h"
#include "model/model.h"
#include "runtime/context.h"

namespace dgpu::model {

// Parameters, bytes, operators and state bytes, from config and headers.
Status inspect(const Model& model, Document& out);
// Plans every operator of the fused program for activations of type `dtype`: native, composed, reference or missing.
Status coverage(const Model& model, Ref<Context> context, uint32_t device, dgpuDtype_t dtype, Document& out);

}  // namespace dgpu::model
