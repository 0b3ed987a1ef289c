// The Day-0 documents: JSON with a schema name and version, a verdict and findings. Each function blocks.
#pragma once
#include <functional>
#include <nlohmann/json.hpp>

#include "graph/program.h"
#include "model/safetensors.h"

namespace dgpu::model {

using JsonDoc = nlohmann::ordered_json;

struct Document {
  JsonDoc json;  // starts with "schema" and "verdict"
  bool good = true;
};

// A document with its schema name; finish() sets the verdict.
inline JsonDoc new_document(const char* name) {
  return {{"schema", std::string("dgpu.day0.") + name + "/1"}, {"verdict", "good"}};
}
inline void finish(Document& document) { document.json["verdict"] = document.good ? "good" : "negative"; }

using Progress = std::function<bool(uint64_t done, uint64_t total, const std::string& what)>;  // false cancels

// Checkpoint against program: missing, extra, wrong-shaped, wrong-typed tensors.
Status audit(const graph::Program& program, const Checkpoint& checkpoint, Document& out);

// A random checkpoint with the program's tensors in `directory`, next to a copy of `config_file`.
Status synthesize(const graph::Program& program, const std::string& config_file, const std::string& directory,
                  uint64_t seed, const Progress& progress, Document& out);

// The f64 reference of every operator over `tokens`, written to `file` as f32 safetensors.
Status baseline(const graph::Program& program, const Checkpoint& checkpoint, const std::vector<int32_t>& tokens,
                const std::string& file, const Progress& progress, Document& out);
// One weight of the checkpoint as f64 or i64.
Status load_reference_weight(const graph::Program& program, const Checkpoint& checkpoint, graph::Id weight,
                             ops::RefTensor& out);

}  // namespace dgpu::model
