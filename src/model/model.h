// A model on disk: config, template, the program that follows, and the headers of its checkpoint.
#pragma once
#include <memory>
#include <string>

#include "graph/program.h"
#include "model/json_text.h"
#include "model/safetensors.h"

namespace dgpu::model {

struct StateSize {
  std::string kind;          // "kv"
  uint64_t count = 0;        // states of the kind
  uint64_t fixed_bytes = 0;  // per sequence
  uint64_t token_bytes = 0;  // per token of a sequence (pools: averaged over the tokens of an entry)
  int64_t cap = 0;           // window: a session keeps these tokens and its largest step, no more; 0: all tokens
};

class Model {
 public:
  // Reads config.json, chooses the template (directories in `template_path` first), builds the program, and reads the
  // checkpoint's headers unless `config_only`. Blocks. A directory without weights is fine with config_only alone.
  static Status open(const std::string& directory, const std::string& template_path, bool config_only,
                     std::shared_ptr<const Model>& out);
  // The same from a config in memory: no checkpoint.
  static Status from_config(const JsonNode& config, const std::string& file, const std::string& template_path,
                            std::shared_ptr<const Model>& out);

  const std::string& directory() const { return directory_; }
  const std::string& template_file() const { return template_file_; }
  const JsonNode& config() const { return config_; }
  const graph::Program& program() const { return program_; }  // as built: not fused, all taps
  bool has_checkpoint() const { return has_checkpoint_; }
  const Checkpoint& checkpoint() const { return checkpoint_; }

  uint64_t parameters() const;         // elements of all checkpoint tensors that the program names
  uint64_t active_parameters() const;  // of these, what one token uses: experts by their top_k
  uint64_t weight_bytes() const;       // of the checkpoint's tensors; 0 without it
  std::vector<StateSize> states(dgpuDtype_t activation) const;  // by kind and cap, in order of first use

 private:
  std::string directory_, template_file_;
  JsonNode config_;
  graph::Program program_;
  Checkpoint checkpoint_;
  bool has_checkpoint_ = false;
};

}  // namespace dgpu::model
