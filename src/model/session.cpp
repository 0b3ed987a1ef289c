#include "model/session.h"

#include <algorithm>
#include <set>

#include "base/dtype.h"
#include "graph/memory_plan.h"
#include "graph/passes/passes.h"
#include "model/device_io.h"
#include "model/open_model.h"

namespace dgpu::model {
using graph::Id;
using graph::kNone;

namespace {

constexpr uint64_t kAlign = 256;
uint64_t align(uint64_t n) { return (n + kAlign - 1) / kAlign * kAlign; }

std::set<std::string> split_names(const std::string& text) {
  std::set<std::string> out;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    if (end > at) out.insert(text.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

}  // namespace

Session::Session(Ref<OpenModel> model, std::shared_ptr<Placement> placement)
    : Object(Kind::session), model_(std::move(model)), placement_(std::move(placement)) {}

Session::~Session() {
  for (const auto a : allocations_) device_free(context(), a);
}

Status Session::create(Ref<OpenModel> model, const SessionLimits& limits, Ref<Session>& out) {
  auto placement = model->placement();
  if (!placement) return fail(DGPU_STATUS_INVALID_STATE, "model", "the model is not loaded; call dgpuModelLoad first");
  auto session = Ref<Session>::adopt(new Session(std::move(model), std::move(placement)));
  DGPU_TRY(session->choose_limits(limits));
  DGPU_TRY(session->allocate());
  DGPU_TRY(session->fill_constants());
  DGPU_TRY(session->plan_nodes());
  out = std::move(session);
  return DGPU_STATUS_SUCCESS;
}

Status Session::choose_limits(const SessionLimits& limits) {
  limits_ = limits;
  if (!limits_.compute) limits_.compute = placement_->compute();
  const auto& base = model_->program();
  if (!limits_.max_sequences) limits_.max_sequences = 8;
  if (!limits_.max_batch_tokens) limits_.max_batch_tokens = 512;
  if (!limits_.max_tokens)
    limits_.max_tokens =
        static_cast<uint32_t>(std::min<int64_t>(base.max_positions > 0 ? base.max_positions : 4096, 4096));
  if (!limits_.max_logit_rows) limits_.max_logit_rows = std::min(limits_.max_sequences, limits_.max_batch_tokens);
  if (limits_.max_logit_rows > limits_.max_batch_tokens)
    return fail(DGPU_STATUS_INVALID_ARGUMENT, "max_logit_rows", "max_logit_rows {} is above max_batch_tokens {}",
                limits_.max_logit_rows, limits_.max_batch_tokens);
  const auto at_most = [](const char* field, uint32_t value, uint32_t most) -> Status {
    if (value <= most) return DGPU_STATUS_SUCCESS;
    return fail(DGPU_STATUS_INVALID_ARGUMENT, field, "{} is {}, at most {} is supported", field, value, most);
  };
  DGPU_TRY(at_most("max_sequences", limits_.max_sequences, 65536));
  DGPU_TRY(at_most("max_batch_tokens", limits_.max_batch_tokens, 1u << 22));
  DGPU_TRY(at_most("max_tokens", limits_.max_tokens, 1u << 28));
  program_ = base;
  if (limits_.routes) graph::force_routes(program_, *limits_.routes);
  limits_.routes = nullptr;
  DGPU_TRY(fuse_around_taps(limits_.taps));
  maxima_.tokens = limits_.max_batch_tokens;
  maxima_.sequences = limits_.max_sequences;
  maxima_.logit_rows = limits_.max_logit_rows;
  maxima_.slots = limits_.max_sequences;
  for (const auto& c : program_.caches) {
    maxima_.pages.push_back(limits_.max_sequences);
    maxima_.page_size.push_back(cache_places(c, limits_.max_tokens, limits_.max_batch_tokens));
    maxima_.table_width.push_back(1);
  }
  layout_ = std::make_unique<BatchLayout>(program_, maxima_);
  length_independent_ = static_cast<uint64_t>(program_.length_independent());
  slot_used_.assign(limits_.max_sequences, false);
  log_ = std::make_unique<StepLog>(limits_.max_sequences);
  return DGPU_STATUS_SUCCESS;
}

// Fuses for execution. Values that are asked for survive it and keep their memory until the next step.
Status Session::fuse_around_taps(const std::string& names) {
  const auto wanted = split_names(names);
  const bool all = wanted.count("*") != 0;
  graph::FuseOptions options;
  for (const auto& tap : program_.taps)
    if (all || wanted.count(tap.name)) options.taps.insert(tap.name);
  for (const auto& name : wanted)
    if (name != "*" && !options.taps.count(name))
      return fail(DGPU_STATUS_NOT_FOUND, "taps", "the model has no value named '{}'; its taps are named like {}", name,
                  program_.taps.empty() ? "none" : program_.taps.back().name);
  const auto taps = options.taps;
  std::set<std::string> routing;
  if (limits_.routing)
    for (const auto& node : program_.nodes) {
      if (node.op != "moe_route") continue;
      for (const auto* list : {&node.inputs, &node.outputs})
        for (const auto& b : *list)
          if (routing.insert(node.name + ":" + b.port).second)
            program_.taps.push_back({node.name + ":" + b.port, b.value});
    }
  options.taps.insert(routing.begin(), routing.end());
  DGPU_TRY(graph::fuse(program_, options));
  for (const auto& tap : program_.taps) {
    if (taps.count(tap.name)) taps_.push_back({tap.name, tap.value});
    if (routing.count(tap.name)) routing_.push_back({tap.name, tap.value});
  }
  return DGPU_STATUS_SUCCESS;
}

dgpuTensorDesc Session::describe(Id id, const graph::Extents& extents) const {
  const auto& root = program_.values[program_.root(id)];
  const auto checkpoint = root.origin == graph::Origin::Weight ? placement_->dtype(root.index) : limits_.compute;
  auto desc = graph::describe(program_, id, extents, limits_.compute, checkpoint);
  if (root.origin == graph::Origin::Weight) desc.dtype = checkpoint;
  return desc;
}

uint64_t Session::value_bytes(Id id) const {
  const auto d = describe(id, maxima_);
  uint64_t bits = dtype_bits(d.dtype);
  for (uint32_t i = 0; i < d.rank; ++i) bits *= static_cast<uint64_t>(d.shape[i]);
  return (bits + 7) / 8;
}

dgpuAddr_t Session::address(Id id) const {
  const auto& v = program_.values[id];
  const Id root = program_.root(id);
  const auto width = dtype_bits(describe(root, maxima_).dtype) / 8;
  return base_[root] + (v.is_view() ? static_cast<uint64_t>(v.offset) * width : 0);
}

Status Session::allocate() {
  base_.assign(program_.values.size(), 0);
  const auto get = [&](uint64_t bytes, const std::string& what, dgpuAddr_t& out) -> Status {
    DGPU_TRY(device_alloc(context(), placement_->device(), std::max<uint64_t>(bytes, 1), what, out));
    allocations_.push_back(out);
    return DGPU_STATUS_SUCCESS;
  };
  DGPU_TRY(get(layout_->bytes(), "the inputs of a step", inputs_));
  for (size_t i = 0; i < program_.inputs.size(); ++i)
    base_[program_.inputs[i].value] = inputs_ + layout_->offset(static_cast<Id>(i));
  for (auto& s : staging_) {
    DGPU_TRY(host_alloc(context(), std::max<uint64_t>(layout_->bytes(), 1), s.address, s.pointer));
    allocations_.push_back(s.address);
  }
  for (size_t w = 0; w < program_.weights.size(); ++w)
    base_[program_.weights[w].value] = placement_->address(static_cast<Id>(w));
  uint64_t state_bytes = 0;
  for (const auto& s : program_.states) state_bytes += align(value_bytes(s.value));
  dgpuAddr_t at = 0;
  if (state_bytes)
    DGPU_TRY(get(
        state_bytes,
        fmt::format("the caches of {} sequences with {} tokens each", limits_.max_sequences, limits_.max_tokens), at));
  for (const auto& s : program_.states) {
    base_[s.value] = at;
    at += align(value_bytes(s.value));
  }
  uint64_t constant_bytes = 0;
  for (const auto& c : program_.constants) constant_bytes += align(value_bytes(c.value));
  if (constant_bytes) DGPU_TRY(get(constant_bytes, "constants", at));
  for (const auto& c : program_.constants) {
    base_[c.value] = at;
    at += align(value_bytes(c.value));
  }
  return allocate_values();
}

// Intermediate values share one block by lifetime; results of `once` nodes, taps and logits live on.
Status Session::allocate_values() {
  const auto last = graph::last_uses(program_);
  std::vector<bool> written(program_.values.size(), false);
  std::vector<graph::Lifetime> lives;
  std::vector<Id> owners;
  const auto end = static_cast<uint32_t>(program_.nodes.size());
  for (Id n = 0; n < program_.nodes.size(); ++n)
    for (const auto& b : program_.nodes[n].outputs) {
      const Id root = program_.root(b.value);
      if (program_.values[root].origin != graph::Origin::Node || written[root]) continue;
      written[root] = true;
      const bool once = program_.nodes[n].once;
      lives.push_back({value_bytes(root), once ? 0 : n, once || last[root] == kNone ? end : last[root], 0});
      owners.push_back(root);
    }
  const uint64_t total = graph::plan_memory(lives, kAlign);
  dgpuAddr_t block = 0;
  DGPU_TRY(device_alloc(context(), placement_->device(), std::max<uint64_t>(total, 1),
                        fmt::format("the values of steps with {} tokens", limits_.max_batch_tokens), block));
  allocations_.push_back(block);
  for (size_t i = 0; i < owners.size(); ++i) base_[owners[i]] = block + lives[i].offset;
  return DGPU_STATUS_SUCCESS;
}

Status Session::fill_constants() {
  for (const auto& c : program_.constants) {
    std::vector<uint8_t> bytes(value_bytes(c.value));
    for (size_t i = 0; i < c.data.size(); ++i) {
      const auto put = [&](auto v) { std::memcpy(bytes.data() + i * sizeof v, &v, sizeof v); };
      if (c.dtype == DGPU_DTYPE_I32)
        put(static_cast<int32_t>(c.data[i]));
      else if (c.dtype == DGPU_DTYPE_I64)
        put(static_cast<int64_t>(c.data[i]));
      else
        put(static_cast<float>(c.data[i]));
    }
    DGPU_TRY(upload(context(), placement_->device(), base_[c.value], bytes.data(), bytes.size()));
  }
  return DGPU_STATUS_SUCCESS;
}

Status Session::plan_nodes() {
  uint64_t workspace = 0;
  for (const auto& node : program_.nodes) {
    NodePlan plan;
    DGPU_TRY(plan_node(node, plan));
    workspace = std::max(workspace, plan.plan->workspace_bytes());
    plans_.push_back(std::move(plan));
  }
  if (!workspace) return DGPU_STATUS_SUCCESS;
  DGPU_TRY(device_alloc(context(), placement_->device(), workspace, "the operators' workspace", workspace_));
  allocations_.push_back(workspace_);
  return DGPU_STATUS_SUCCESS;
}

Status Session::plan_node(const graph::Node& node, NodePlan& out) {
  if (node.is_extern)
    return fail(DGPU_STATUS_UNSUPPORTED, node.op,
                "{} needs operator '{}', which this library does not have; `dgpu-day0 coverage` lists what is missing",
                node.name, node.op);
  ops::OpSpec spec;
  spec.name = node.op;
  spec.attrs = node.attrs;
  std::map<std::string, dgpuAddr_t> where;
  for (const auto* list : {&node.inputs, &node.outputs})
    for (const auto& b : *list) {
      spec.ports[b.port] = describe(b.value, maxima_);
      where[b.port] = address(b.value);
    }
  DGPU_TRY(ops::Plan::create(placement_->context_ref(), placement_->device(), spec, out.plan));
  for (const auto& port : out.plan->ports()) out.addresses.push_back(where[port]);
  out.once = node.once;
  return DGPU_STATUS_SUCCESS;
}

Status Session::value(Id id, dgpuTensorDesc& desc, dgpuAddr_t& where) const {
  std::lock_guard lock(mutex_);
  if (!last_timeline_) return fail(DGPU_STATUS_INVALID_STATE, "session", "no step has run yet");
  if (last_timeline_->outcome(last_value_) < 0) return last_timeline_->query(last_value_);
  desc = describe(id, last_);
  // Strides are those of the session's maxima.
  const auto at_most = describe(id, maxima_);
  for (uint32_t i = 0; i < desc.rank; ++i) {
    desc.strides[i] = at_most.strides[i];
    desc.symbols[i] = 0;
  }
  where = address(id);
  return DGPU_STATUS_SUCCESS;
}

Status Session::logits(dgpuTensorDesc& desc, dgpuAddr_t& where) const { return value(program_.logits, desc, where); }

Status Session::tap(size_t index, dgpuTensorDesc& desc, dgpuAddr_t& where) const {
  if (index >= taps_.size())
    return fail(DGPU_STATUS_INVALID_ARGUMENT, "index", "index {} is not below {} taps", index, taps_.size());
  return value(taps_[index].value, desc, where);
}

}  // namespace dgpu::model
