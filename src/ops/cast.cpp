// cast: conversion between element types, also a copy between strides.
#include "ops/convert.h"
#include "ops/schema.h"

namespace dgpu::ops::schemas {
namespace {

Status infer(const OpSpec& spec, Outputs& outputs) {
  outputs["out"] = packed(spec.bound("out") ? dtype(spec, "out") : dtype(spec, "x"), dims(spec, "x"));
  return DGPU_STATUS_SUCCESS;
}

Status reference(const OpSpec&, RefTensors& t) {
  const auto& x = t.find("x")->second;
  auto& out = t.find("out")->second;
  const int64_t n = out.size();
  if (x.is_int() && out.is_int()) {
    const bool to_bool = out.dtype == DGPU_DTYPE_BOOL;
    for (int64_t i = 0; i < n; ++i) out.i[i] = to_bool ? x.i[i] != 0 : x.i[i];
  } else if (x.is_int()) {
    for (int64_t i = 0; i < n; ++i) out.f[i] = static_cast<double>(x.i[i]);
  } else if (out.is_int()) {
    for (int64_t i = 0; i < n; ++i) out.i[i] = float_to_int(out.dtype, x.f[i]);
  } else {
    out.f = x.f;
  }
  return DGPU_STATUS_SUCCESS;
}

}  // namespace

const Schema& cast() {
  static const auto* schema = new Schema{"cast",
                                         1,
                                         "Conversion between element types.",
                                         {},
                                         {in("x", any_dtype(), "source"), out("out", any_dtype(), "target")},
                                         infer,
                                         reference,
                                         nullptr,
                                         nullptr,
                                         {{"out", "x"}}};
  return *schema;
}

}  // namespace dgpu::ops::schemas
