// The f64 reference execution, written in the format of published baselines.
#include <cstring>

#include "base/dtype.h"
#include "graph/reference.h"
#include "model/day0/documents.h"
#include "model/weights.h"

namespace dgpu::model {
namespace {

struct Captured {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> data;
};

// Published baselines have a leading batch dimension of 1.
Captured capture(const std::string& name, const ops::RefTensor& t) {
  Captured c{name, {1}, {}};
  c.shape.insert(c.shape.end(), t.shape.begin(), t.shape.end());
  c.data.assign(t.f.begin(), t.f.end());
  return c;
}

}  // namespace

Status load_reference_weight(const graph::Program& program, const Checkpoint& checkpoint, graph::Id id,
                             ops::RefTensor& out) {
  const auto& w = program.weights[id];
  out.shape = w.shape;
  const auto n = static_cast<size_t>(graph::element_count(w.shape));
  if (w.cls == graph::TensorClass::Integer) {
    out.dtype = DGPU_DTYPE_I64;
    out.i.resize(n);
    return assemble(program, checkpoint, w, DGPU_DTYPE_I64, out.i.data());
  }
  out.dtype = DGPU_DTYPE_F64;
  out.f.resize(n);
  return assemble(program, checkpoint, w, DGPU_DTYPE_F64, out.f.data());
}

Status baseline(const graph::Program& program, const Checkpoint& checkpoint, const std::vector<int32_t>& tokens,
                const std::string& file, const Progress& progress, Document& out) {
  DGPU_TRY(check_tensors(program, checkpoint));
  DGPU_TRY(check_output(file));
  for (size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] < 0 || tokens[i] >= program.vocab)
      return fail(DGPU_STATUS_INVALID_ARGUMENT, "tokens", "token {} at place {} is not below the vocabulary size {}",
                  tokens[i], i, program.vocab);
  if (tokens.empty()) return fail(DGPU_STATUS_INVALID_ARGUMENT, "tokens", "at least one token is needed");
  std::vector<Captured> captured;
  graph::ReferenceRun run;
  run.tokens = tokens;
  run.load = [&](graph::Id id, ops::RefTensor& t) { return load_reference_weight(program, checkpoint, id, t); };
  run.tap = [&](const std::string& name, const ops::RefTensor& t) -> Status {
    captured.push_back(capture(name, t));
    return DGPU_STATUS_SUCCESS;
  };
  if (progress)
    run.progress = [&](uint64_t done, uint64_t total, const std::string& what) -> uint32_t {
      return !progress(done, total, what);
    };
  DGPU_TRY(graph::run_reference(program, run));

  std::vector<TensorSource> tensors;
  const std::vector<int64_t> ids(tokens.begin(), tokens.end());
  const auto bytes = [](const void* p, size_t n) { return [p, n](const auto& sink) { return sink(p, n); }; };
  tensors.push_back(
      {"input_ids", DGPU_DTYPE_I64, {1, static_cast<int64_t>(ids.size())}, bytes(ids.data(), ids.size() * 8)});
  JsonDoc names = JsonDoc::array();
  for (const auto& c : captured) {
    tensors.push_back({c.name, DGPU_DTYPE_F32, c.shape, bytes(c.data.data(), c.data.size() * 4)});
    names.push_back(c.name);
  }
  DGPU_TRY(write_safetensors(file, tensors, {{"source", "libdgpu f64 reference"}}));
  out.json = new_document("baseline");
  out.json["family"] = program.family;
  out.json["file"] = file;
  out.json["tokens"] = tokens.size();
  out.json["tensors"] = names;
  finish(out);
  return DGPU_STATUS_SUCCESS;
}

}  // namespace dgpu::model
