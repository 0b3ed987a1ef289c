// A model's config read through a template: closed world, typed, bounded. Named scalars are evaluated when first asked
// for.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>

#include "model/template.h"

namespace dgpu::model {

// Evaluates an expression of the template's own (not of a block); `layer` is -1 outside layers.
using ScalarEval = std::function<Val(const Expr& expr, int64_t layer)>;

class Scalars {
 public:
  // All must outlive this. `file` names the config in messages.
  Scalars(const Template& t, const JsonNode& config, std::string file);

  void set_eval(ScalarEval eval) { eval_ = std::move(eval); }
  // Throw Fault (INVALID_ARGUMENT, object = the key).
  void check_world() const;                // every key of the config is known
  void read_all();                         // every key has an accepted value
  void check_rules(Evaluator& evaluator);  // the template's checks
  // A key or named scalar; false if there is none of that name.
  bool lookup(std::string_view name, int64_t layer, const Expr& at, Val& out);
  const std::string& root_name() const { return root_name_; }
  dgpuDtype_t checkpoint_dtype() const { return dtype_; }
  const std::vector<std::pair<std::string, int64_t>>& limits() const { return limits_; }

 private:
  struct Cell {
    const KeyEntry* key = nullptr;
    const Expr* expr = nullptr;
    bool per_layer = false;
  };
  struct Slot {
    bool busy = false, done = false;
    Val value;
  };
  struct Found {
    std::string path;
    const JsonNode* json;
  };
  [[noreturn]] void bad(const std::string& key, const std::string& message) const;
  void check_object(const JsonNode& object, const std::string& prefix, size_t depth, bool top) const;
  Val value_of(const Cell& cell, int64_t layer);
  Val read_key(const KeyEntry& k);
  Val missing(const KeyEntry& k, const std::string& path);
  Val convert(const KeyEntry& k, const JsonNode& j, const std::string& path);
  Val typed(const KeyEntry& k, const JsonNode& j, const std::string& path);
  std::string key_text(const Expr& e) const;
  Val list(const KeyEntry& k, const JsonNode& j, const std::string& path);
  Val read_struct(const StructDef& s, const JsonNode& j, const std::string& path);
  Val read_kinds(const KeyEntry& k, const StructDef& s, const JsonNode& j, const std::string& path);
  Val field(const KeyEntry& k, const JsonNode& object, const std::string& path);
  void accept(const KeyEntry& k, const JsonNode& j, const std::string& path) const;
  void role(const KeyEntry& k, const Val& v);
  std::vector<Found> find(const KeyEntry& k) const;

  const Template& t_;
  const JsonNode& top_;
  const JsonNode* root_ = nullptr;
  std::string root_name_, file_;
  ScalarEval eval_;
  std::unordered_map<std::string, Cell> cells_;
  std::map<std::pair<std::string, int64_t>, Slot> slots_;
  std::vector<std::string> busy_;  // names being evaluated, for the message about a cycle
  dgpuDtype_t dtype_ = 0;
  std::vector<std::pair<std::string, int64_t>> limits_;
};

}  // namespace dgpu::model
