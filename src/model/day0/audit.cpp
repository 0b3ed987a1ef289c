#include "model/day0/documents.h"

namespace dgpu::model {
namespace {

bool type_fits(const graph::Tensor& want, dgpuDtype_t got) {
  if (want.cls == graph::TensorClass::Integer) return got == DGPU_DTYPE_I64 || got == DGPU_DTYPE_I32;
  return got == DGPU_DTYPE_F32 || got == DGPU_DTYPE_F16 || got == DGPU_DTYPE_BF16 || got == DGPU_DTYPE_F64;
}

}  // namespace

Status audit(const graph::Program& program, const Checkpoint& checkpoint, Document& out) {
  out.json = new_document("audit");
  JsonDoc findings = JsonDoc::array(), skipped = JsonDoc::array();
  const auto finding = [&](const char* kind, const std::string& tensor, JsonDoc more) {
    JsonDoc f = {{"kind", kind}, {"tensor", tensor}};
    f.update(more);
    findings.push_back(f);
  };
  for (const auto& want : program.tensors) {
    const auto* got = checkpoint.find(want.name);
    if (!got) {
      finding("missing", want.name, {{"expected_shape", want.shape}});
      continue;
    }
    if (got->shape != want.shape) finding("shape", want.name, {{"expected", want.shape}, {"actual", got->shape}});
    if (!type_fits(want, got->dtype))
      finding("dtype", want.name,
              {{"expected", want.cls == graph::TensorClass::Integer ? "I64 or I32" : "F32, F16, BF16 or F64"},
               {"actual", got->dtype_name}});
  }
  for (const auto& [name, info] : checkpoint.tensors()) {
    if (program.find_tensor(name)) continue;
    if (const auto* skip = program.find_skipped(name))
      skipped.push_back({{"tensor", name}, {"reason", skip->reason}});
    else
      finding("extra", name, {{"shape", info.shape}, {"dtype", info.dtype_name}});
  }
  out.good = findings.empty();
  out.json["family"] = program.family;
  out.json["tensors"] = {{"expected", program.tensors.size()}, {"found", checkpoint.tensors().size()}};
  out.json["bytes"] = checkpoint.bytes();
  out.json["findings"] = findings;
  out.json["skipped"] = skipped;
  finish(out);
  return DGPU_STATUS_SUCCESS;
}

}  // namespace dgpu::model
