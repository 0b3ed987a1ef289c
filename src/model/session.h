// A session: plans, limits, cache pool and the memory of one program on one device. Steps plan and allocate nothing.
#pragma once
#include <mutex>
#include <string>
#include <vector>

#include "graph/passes/passes.h"
#include "model/batch.h"
#include "model/placement.h"
#include "model/step_log.h"
#include "ops/plan.h"
#include "runtime/stream.h"

namespace dgpu::model {

class OpenModel;
class Session;

// What a token history left behind: a slot of the session's caches and a length.
class Sequence final : public Object {
 public:
  static constexpr Kind kKind = Kind::sequence;
  static Status create(Session& session, Ref<Sequence>& out);
  ~Sequence() override;
  Session& session() const { return *session_; }
  uint64_t length() const;
  Status fork(Stream& stream, Ref<Sequence>& out);
  Status truncate(uint64_t length);
  Status save(Stream& stream, void* buffer, size_t size, size_t* needed);
  Status restore(Stream& stream, const void* buffer, size_t size);
  std::string describe() const;

 private:
  friend class Session;
  Sequence(Ref<Session> session, uint32_t slot);
  struct Saved;
  Status read_saved(const void* buffer, size_t size, Saved& out) const;
  Status check_rewind(const graph::State& state, uint64_t length) const;
  Status copy_states(Stream& stream, Sequence& to);
  Ref<Session> session_;
  uint32_t slot_;
  uint64_t length_ = 0;           // under the session's mutex, as the next
  bool fresh_ = true;             // fixed states are not zeroed yet
  std::vector<uint64_t> oldest_;  // per cache: first entry that a ring still holds; 0 for other caches
  // Where values depend on the length of the sequence (Program::length_independent):
  std::vector<int32_t> tokens_;                          // what it holds, to be replayed
  uint64_t total_ = 0;                                   // length that the cached entries were computed for, or:
  static constexpr uint64_t kUnknownTotal = UINT64_MAX;  // for none, or for several
};

struct SessionLimits {
  uint32_t max_sequences = 8, max_tokens = 0, max_batch_tokens = 512, max_logit_rows = 0;
  std::string taps;
  dgpuDtype_t compute = 0;                // type of activations; 0: as the model was loaded
  const graph::Routes* routes = nullptr;  // experts that are given, for steps of max_batch_tokens; used by create alone
  bool routing = false;                   // also keep the inputs and outputs of expert routing, for comparison
};

// A value of the program that stays readable until the next step.
struct Kept {
  std::string name;
  graph::Id value = graph::kNone;
};

class Session final : public Object {
 public:
  static constexpr Kind kKind = Kind::session;
  static Status create(Ref<OpenModel> model, const SessionLimits& limits, Ref<Session>& out);
  ~Session() override;

  struct Step {
    const int32_t* tokens = nullptr;
    const uint32_t* offsets = nullptr;
    std::vector<Sequence*> sequences;
    const uint32_t* logit_rows = nullptr;  // null: last token of each sequence that has tokens
    uint32_t logit_row_count = 0;
    uint32_t token_count = 0;
    Status* statuses = nullptr;
  };
  Status step(Stream& stream, const Step& step);

  const graph::Program& program() const { return program_; }
  const SessionLimits& limits() const { return limits_; }
  Context& context() const { return placement_->context(); }
  const Placement& placement() const { return *placement_; }
  HandleScope* scope() const { return context().scope(); }
  // Output of the last step.
  Status logits(dgpuTensorDesc& desc, dgpuAddr_t& address) const;
  const std::vector<Kept>& taps() const { return taps_; }
  Status tap(size_t index, dgpuTensorDesc& desc, dgpuAddr_t& address) const;
  // Inputs and outputs of routing nodes, with limits.routing: names "NODE:PORT".
  const std::vector<Kept>& routing() const { return routing_; }
  Status value(graph::Id id, dgpuTensorDesc& desc, dgpuAddr_t& address) const;
  // A value at the session's maxima.
  dgpuTensorDesc describe(graph::Id id) const { return describe(id, maxima_); }
  dgpuDtype_t compute() const { return limits_.compute; }

 private:
  friend class Sequence;
  struct NodePlan {
    Ref<ops::Plan> plan;
    std::vector<dgpuAddr_t> addresses;  // in the plan's port order
    bool once = false;
  };
  struct StateRow {  // one state, one sequence: where its bytes are
    dgpuAddr_t address;
    uint64_t bytes_per_entry;  // fixed states: all of it
    uint64_t places;           // fixed states: 1
  };
  struct Span {
    dgpuAddr_t address;
    uint64_t bytes;
  };

  Session(Ref<OpenModel> model, std::shared_ptr<Placement> placement);
  Status choose_limits(const SessionLimits& limits);
  Status fuse_around_taps(const std::string& names);
  Status allocate();
  Status allocate_values();
  Status fill_constants();
  Status plan_nodes();
  Status plan_node(const graph::Node& node, NodePlan& out);
  dgpuTensorDesc describe(graph::Id id, const graph::Extents& extents) const;
  dgpuAddr_t address(graph::Id id) const;
  uint64_t value_bytes(graph::Id id) const;

  struct Admitted;  // what takes part in a step
  Status admit(const Step& step, Admitted& out);
  Status submit(Stream& stream, const Admitted& admitted);
  Status submit_commands(Stream& stream, const Admitted& admitted);
  void settle_steps();
  Status check_intact(const Sequence& sequence) const;
  uint64_t good_tokens(const Sequence& sequence) const;
  Status replay(Stream& stream, Sequence& sequence, uint64_t total);
  Status run_nodes(Stream& stream, const graph::Extents& extents, bool once);
  Status zero_fixed_states(Stream& stream, uint32_t slot);
  StateRow state_row(const graph::State& state, uint32_t slot) const;
  // What a state of a sequence of `length` tokens holds, from the first entry that is still there (Sequence::oldest_)
  // on: its bytes in all, and where they lie, in the order of entries.
  uint64_t state_bytes(const graph::State& state, uint64_t length, const std::vector<uint64_t>& oldest) const;
  std::vector<Span> spans(const graph::State& state, uint32_t slot, uint64_t length,
                          const std::vector<uint64_t>& oldest) const;
  // First entries that rings still hold when a sequence has grown to `length` tokens.
  void overwrite(std::vector<uint64_t>& oldest, uint64_t length) const;
  Status take_slot(uint32_t& slot);
  uint64_t layout_hash() const;
  Status order_after_last(Stream& stream);
  void note_last(Stream& stream);

  Ref<OpenModel> model_;
  std::shared_ptr<Placement> placement_;
  graph::Program program_;
  SessionLimits limits_;
  graph::Extents maxima_;
  std::unique_ptr<BatchLayout> layout_;
  uint64_t length_independent_ = 0;  // of the program
  std::vector<Kept> taps_, routing_;
  std::vector<dgpuAddr_t> base_;  // address of each root value
  std::vector<NodePlan> plans_;
  std::vector<dgpuAddr_t> allocations_;
  dgpuAddr_t inputs_ = 0;  // device block of the batch layout
  dgpuAddr_t workspace_ = 0;
  static constexpr unsigned kStaging = 4;
  struct Staging {
    dgpuAddr_t address = 0;
    void* pointer = nullptr;
    Ref<Timeline> timeline;  // the copy from it has ended when `value` has retired
    uint64_t value = 0;
  };
  Staging staging_[kStaging];
  unsigned next_staging_ = 0;

  mutable std::mutex mutex_;  // steps, slots, lengths
  std::vector<bool> slot_used_;
  std::unique_ptr<StepLog> log_;
  bool once_done_ = false;
  graph::Extents last_;  // extents of the last step
  Ref<Timeline> last_timeline_;
  uint64_t last_value_ = 0;
};

}  // namespace dgpu::model
