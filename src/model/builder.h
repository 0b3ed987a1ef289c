// From template and config to program.
#pragma once
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/program.h"
#include "model/config.h"
#include "model/template.h"

namespace dgpu::model {

// Builds the program of a model. `file` names the config in messages. Errors: INVALID_ARGUMENT (a config key or the
// template; object says which), PARSE_ERROR, INVALID_SHAPE and others of operators with the statement's place.
Status build_program(const Template& t, const JsonNode& config, const std::string& file, graph::Program& out);

dgpuDtype_t dtype_named(std::string_view name);  // f32, i32 or i64; 0 otherwise

// The work of build_program: evaluates the blocks and appends to the program. Throws Fault.
class Builder final : public Host {
 public:
  Builder(const Template& t, const JsonNode& config, const std::string& file);
  graph::Program build();

  // Host
  bool lookup(std::string_view name, const Expr& at, Val& out) override;
  Val call(const std::string& name, const Args& args, const Expr& at) override;
  bool callable(std::string_view name) const override;
  Val unary(Op op, const Val& x, const Expr& at) override;
  Val binary(Op op, const Val& a, const Val& b, const Expr& at) override;
  Val field(const Val& x, const std::string& name, const Expr& at) override;
  Val index(const Val& x, const std::vector<Val>& indices, const Expr& at) override;
  Val tap(const Val& x, const std::string& name, const Expr& at) override;

 private:
  using Id = graph::Id;

  // One instance of a block.
  struct Frame {
    const Block* block = nullptr;
    std::string prefix;  // of checkpoint names: "model.layers.0.self_attn."
    std::string path;    // of values and states: "layers.0.self_attn"
    std::string taps;    // of tap names: "layers.0."
    int64_t layer = -1;
    std::map<std::string, Val, std::less<>> names;
  };
  // The states of one declaration.
  struct StateGroup {
    std::string name;  // "layers.0.self_attn.c"
    Id cache = graph::kNone;
    std::vector<std::string> components;
    std::vector<Id> states, current;  // current: the value after the last write
  };
  struct Bound {
    std::string port;
    Id value;
    bool inout = false;
  };
  struct OpCall {
    std::string op;
    std::map<std::string, ops::AttrValue, std::less<>> attrs;
    std::vector<Bound> inputs;
    std::vector<std::string> outputs;
    std::string keep;  // "f32": floating outputs stay f32
    bool is_extern = false;
    std::vector<std::pair<graph::Shape, std::string>> extern_outputs;  // shape, dtype
  };

  // builder.cpp
  void meta();
  std::vector<Val> run_block(const Block& b, const std::vector<Val>& args, const std::string* at,
                             const std::string& taps, int64_t layer, const Expr* where);
  bool run_flow(const std::vector<Step>& steps, std::vector<Val>& result);
  void assign(const Statement& s, const Val& value, Id first_new, const Source& source);
  void carry_rows(std::vector<Val>& carried);
  void finish(const std::vector<Val>& results, const Block& block);
  void check_weights_used();
  void mark_once();
  Val global_eval(const Expr& expr, int64_t layer);
  Frame& frame() { return frames_.back(); }
  [[noreturn]] void bad_block(const Block& b, const std::string& message) const;

  // builder_values.cpp
  Id add_value(std::string name, graph::Value value);
  Id add_input(graph::InputKind kind, Id cache = graph::kNone);
  std::string unique(const std::string& name) { return unique(name, names_); }
  static std::string unique(const std::string& name, std::unordered_map<std::string, uint32_t>& taken);
  graph::Value& value(Id id) { return program_.values[id]; }
  Id tensor(const Val& v, const Expr& at, std::string_view what) const;
  Id add_view(Id of, graph::Shape shape, std::vector<int64_t> strides, int64_t offset, const std::string& name);
  std::vector<int64_t> strides_of(Id id) const;  // with kDense where only the session knows
  Id contiguous(Id id, const Expr& at);
  Id reshape(Id id, const graph::Shape& shape, const Expr& at);
  Id slice(Id id, int64_t axis, int64_t from, int64_t to, int64_t step, const Expr& at);
  Id permute(Id id, const std::vector<int64_t>& order, const Expr& at);
  int64_t axis_of(Id id, const Val& v, const Expr& at) const;
  graph::Dim dim_of(const Val& v, const Expr& at);
  graph::Shape shape_of(const Val& v, const Expr& at);
  Val dim_val(const graph::Dim& d) const;
  std::string shape_text(const graph::Shape& shape) const;
  dgpuTensorDesc nominal(const graph::Shape& shape, dgpuDtype_t dtype) const;

  // builder_views.cpp
  Val view_heads(const Args& args, const Expr& at);
  Val view_merge(const Args& args, const Expr& at);
  Val view_reshape(const Args& args, const Expr& at);
  Val view_split(const Args& args, const Expr& at);
  Val view_part(const Args& args, const Expr& at);
  Val view_pick(const Args& args, const Expr& at);
  Val view_permute(const Args& args, const Expr& at);
  Val view_expand(const Args& args, const Expr& at);
  Val dense_copy(const Args& args, const Expr& at);

  // builder_weights.cpp
  struct WeightDraft;
  struct StateDraft;
  Val add_weight(const WeightDecl& w);
  Id checkpoint_tensor(const WeightDraft& d, const std::string& name, const std::vector<int64_t>& shape);
  std::vector<int64_t> weight_shape(const Expr& expr);
  void draft_part(WeightDraft& d, const WeightPart& part);
  void join_parts(WeightDraft& d);
  Val publish_weight(WeightDraft& d);
  void add_state(const Named& s);
  StateDraft draft_state(const Expr& e);
  void state_argument(StateDraft& d, const Expr& arg);
  void add_component(StateGroup& g, const StateDraft& d, const std::string& name, std::vector<int64_t> entry);
  Id add_cache(int64_t cap, int64_t every);

  // builder_calls.cpp, builder_flow.cpp
  Val flow_call(const std::string& name, const Args& args, const Expr& at, bool& found);
  bool cache_call(const std::string& name, const Args& args, const Expr& at, Val& out);
  Val call_block(const Block& b, const Args& args, const Expr& at);
  Val call_operator(const std::string& name, const Args& args, const Expr& at);
  Val call_extern(const ExternDef& x, const Args& args, const Expr& at);
  Val linear(const Args& args, const Expr& at);
  Val append(const Args& args, const Expr& at);
  Val attention(const Args& args, const Expr& at);
  Val rope(const Args& args, const Expr& at);
  Val rope_freqs(const Args& args, const Expr& at);
  Val source(const Args& args, const Expr& at);
  Val state(const Args& args, const Expr& at);
  Val entries(const Args& args, const Expr& at);
  Val cast_to(const Args& args, const Expr& at);
  Val constant(const Args& args, const Expr& at);
  Val maximum(const Args& args, const Expr& at);
  Val minimum(const Args& args, const Expr& at);
  Val extreme(const std::string& fn, const Args& args, const Expr& at);
  void add_source(OpCall& call, const Val& source, int64_t number, std::vector<int64_t> (&attrs)[4], const Expr& at);
  Val emit(OpCall call, const Expr& at);
  Val emit_unary(const std::string& fn, const Val& x, const Expr& at);
  Val emit_binary(const std::string& fn, const Val& a, const Val& b, const Expr& at);
  void infer(OpCall& call, std::vector<std::pair<graph::Shape, dgpuDtype_t>>& shapes, const Expr& at);
  graph::Dim restored(const OpCall& call, graph::Dim d) const;
  ops::AttrValue attribute(const Val& v, uint32_t type, const std::string& name, const Expr& at);
  std::string lambda_text(const Lambda& f, const Expr& at);
  StateGroup& group(const Val& v, const Expr& at);
  Id cache_of_entries(Id value) const;

  const Template& t_;
  std::string file_;
  Scalars scalars_;
  Evaluator evaluator_;
  graph::Program program_;
  std::vector<Frame> frames_;
  std::vector<StateGroup> groups_;
  std::unordered_map<std::string, uint32_t> names_, node_names_;  // in use, with a counter
  std::unordered_map<std::string, Id> tensors_, weights_;         // by name, by signature
  std::unordered_map<std::string, uint32_t> group_names_;
  std::set<std::string> tap_names_;
  uint32_t blocks_open_ = 0;
};

}  // namespace dgpu::model
