// One ragged step: who takes part, the inputs, the nodes.
#include <algorithm>
#include <numeric>

#include "model/device_io.h"
#include "model/open_model.h"
#include "model/session.h"

namespace dgpu::model {

struct Session::Admitted {
  std::vector<int32_t> tokens;
  std::vector<BatchSequence> parts;
  std::vector<Sequence*> sequences;
  std::vector<uint32_t> rows;
};

namespace {

Status check_shape(const Session::Step& step, const SessionLimits& limits) {
  constexpr Status kBad = DGPU_STATUS_INVALID_ARGUMENT;
  const size_t count = step.sequences.size();
  if (count && !step.offsets) return fail(kBad, "offsets", "offsets is null");
  if (step.token_count && !step.tokens) return fail(kBad, "tokens", "tokens is null");
  if (count && step.offsets[0] != 0) return fail(kBad, "offsets", "offsets[0] must be 0");
  for (size_t b = 0; b < count; ++b)
    if (step.offsets[b + 1] < step.offsets[b]) return fail(kBad, "offsets", "offsets decrease at sequence {}", b);
  if ((count ? step.offsets[count] : 0) != step.token_count)
    return fail(kBad, "token_count", "token_count is {}, offsets end at {}", step.token_count,
                count ? step.offsets[count] : 0);
  if (step.token_count > limits.max_batch_tokens)
    return fail(DGPU_STATUS_CAPACITY, "token_count", "the step has {} tokens, the session takes {} at once",
                step.token_count, limits.max_batch_tokens);
  for (uint32_t i = 0; step.logit_rows && i < step.logit_row_count; ++i)
    if (step.logit_rows[i] >= step.token_count || (i && step.logit_rows[i] <= step.logit_rows[i - 1]))
      return fail(kBad, "logit_rows", "logit_rows[{}] is out of range or not ascending", i);
  return DGPU_STATUS_SUCCESS;
}

}  // namespace

// Sequences that cannot take part are left out with their reason, the others move together.
Status Session::admit(const Step& step, Admitted& out) {
  DGPU_TRY(check_shape(step, limits_));
  std::vector<int64_t> new_index(step.token_count, -1);
  for (size_t b = 0; b < step.sequences.size(); ++b) {
    auto* s = step.sequences[b];
    if (&s->session() != this)
      return fail(DGPU_STATUS_INVALID_ARGUMENT, "sequences", "sequence {} belongs to another session", b);
    for (size_t c = 0; c < b; ++c)
      if (step.sequences[c] == s)
        return fail(DGPU_STATUS_INVALID_ARGUMENT, "sequences", "sequences {} and {} are the same", c, b);
    const uint32_t first = step.offsets[b], count = step.offsets[b + 1] - first;
    Status status = check_intact(*s);
    if (status == DGPU_STATUS_SUCCESS && s->length_ + count > limits_.max_tokens)
      status =
          fail(DGPU_STATUS_CAPACITY, "sequences", "sequence {} holds {} tokens and gets {}: its cache of {} lacks {}",
               b, s->length_, count, limits_.max_tokens, s->length_ + count - limits_.max_tokens);
    for (uint32_t k = 0; k < count && status == 0; ++k)
      if (step.tokens[first + k] < 0 || step.tokens[first + k] >= program_.vocab)
        status = fail(DGPU_STATUS_INVALID_ARGUMENT, "tokens", "token {} of sequence {} is {}, the vocabulary has {}", k,
                      b, step.tokens[first + k], program_.vocab);
    if (step.statuses)
      step.statuses[b] = status;
    else if (status < 0)
      return status;
    if (status < 0 || count == 0) continue;
    out.parts.push_back({s->slot_, s->length_, static_cast<uint32_t>(out.tokens.size()), count, s->length_ + count});
    out.sequences.push_back(s);
    for (uint32_t k = 0; k < count; ++k) {
      new_index[first + k] = static_cast<int64_t>(out.tokens.size());
      out.tokens.push_back(step.tokens[first + k]);
    }
  }
  if (step.logit_rows) {
    for (uint32_t i = 0; i < step.logit_row_count; ++i)
      if (new_index[step.logit_rows[i]] >= 0) out.rows.push_back(static_cast<uint32_t>(new_index[step.logit_rows[i]]));
  } else {
    for (const auto& p : out.parts) out.rows.push_back(p.first + p.count - 1);
  }
  if (out.rows.size() > limits_.max_logit_rows)
    return fail(DGPU_STATUS_CAPACITY, "logit_rows", "{} rows of logits are asked for, the session gives {}",
                out.rows.size(), limits_.max_logit_rows);
  return DGPU_STATUS_SUCCESS;
}

Status Session::step(Stream& stream, const Step& step) {
  DGPU_TRY(same_context(stream.context(), &context(), "stream"));
  if (stream.device_index() != placement_->device())
    return fail(DGPU_STATUS_INVALID_ARGUMENT, "stream", "the stream is not on the model's device");
  std::lock_guard lock(mutex_);
  settle_steps();
  Admitted admitted;
  DGPU_TRY(admit(step, admitted));
  for (size_t i = 0; i < admitted.sequences.size(); ++i)
    DGPU_TRY(replay(stream, *admitted.sequences[i], admitted.parts[i].total));
  DGPU_TRY(submit(stream, admitted));
  for (size_t i = 0; i < admitted.sequences.size(); ++i) {
    auto& s = *admitted.sequences[i];
    const auto& part = admitted.parts[i];
    s.length_ += part.count;
    if (length_independent_ == INT64_MAX) continue;
    s.total_ = s.length_;
    s.tokens_.insert(s.tokens_.end(), admitted.tokens.begin() + part.first,
                     admitted.tokens.begin() + part.first + part.count);
  }
  return DGPU_STATUS_SUCCESS;
}

// Where frequencies depend on the length, a longer sequence has other values for its earlier tokens, too: they are
// computed anew for the length that the step leads to, so that chunks give what one step gives.
Status Session::replay(Stream& stream, Sequence& s, uint64_t total) {
  const auto seen = [&](uint64_t length) { return std::max(length, length_independent_); };
  if (s.length_ == 0 || seen(s.total_) == seen(total)) return DGPU_STATUS_SUCCESS;
  std::fill(s.oldest_.begin(), s.oldest_.end(), 0);
  s.total_ = Sequence::kUnknownTotal;  // until all of it was submitted
  for (uint64_t at = 0; at < s.length_;) {
    const auto count = static_cast<uint32_t>(std::min<uint64_t>(limits_.max_batch_tokens, s.length_ - at));
    Admitted part;
    part.tokens.assign(s.tokens_.begin() + static_cast<int64_t>(at),
                       s.tokens_.begin() + static_cast<int64_t>(at + count));
    part.parts.push_back({s.slot_, at, 0, count, total});
    part.sequences.push_back(&s);
    DGPU_TRY(submit(stream, part));
    at += count;
  }
  s.total_ = total;
  return DGPU_STATUS_SUCCESS;
}

Status Session::order_after_last(Stream& stream) {
  if (!last_timeline_ || last_timeline_.get() == stream.timeline()) return DGPU_STATUS_SUCCESS;
  // What has failed runs no more, and its failure belongs to its own stream.
  if (last_timeline_->outcome(last_value_) < 0) return DGPU_STATUS_SUCCESS;
  return wait_timeline(stream, last_timeline_, last_value_);
}

void Session::note_last(Stream& stream) {
  last_timeline_ = Ref<Timeline>::retain(stream.timeline());
  last_value_ = stream.submitted();
}

void Session::settle_steps() {
  if (log_->settle()) once_done_ = false;
}

Status Session::check_intact(const Sequence& s) const {
  const StepLog::Damage* damage = log_->damage(s.slot_);
  if (!damage) return DGPU_STATUS_SUCCESS;
  if (damage->why && damage->why->status == DGPU_STATUS_DEVICE_LOST) return raise(damage->why);  // nothing mends that
  return fail(DGPU_STATUS_INVALID_STATE, "sequence",
              "the sequence took part in a step that failed ({}); truncate it to at most {} tokens, or destroy it",
              damage->why ? static_cast<const char*>(damage->why->message) : "its record is no longer kept",
              damage->good);
}

// Tokens that stay good if what is submitted next on the sequence fails.
uint64_t Session::good_tokens(const Sequence& s) const {
  const auto rewinds = [](const graph::State& state) { return state.rewinds; };
  return std::all_of(program_.states.begin(), program_.states.end(), rewinds) ? s.length_ : 0;
}

Status Session::submit(Stream& stream, const Admitted& a) {
  const bool once = !once_done_;
  const uint64_t before = stream.submitted();
  const Status status = submit_commands(stream, a);
  const bool any = stream.submitted() != before;
  if (any) note_last(stream);
  if (status == DGPU_STATUS_SUCCESS) {
    std::vector<StepLog::Part> parts;
    for (const Sequence* s : a.sequences) parts.push_back({s->slot_, good_tokens(*s)});
    log_->add(last_timeline_, last_value_, parts, once);
  } else if (any) {
    // A part of the step runs. Caches only got entries that no sequence counts; what cannot rewind is spoilt.
    if (once) once_done_ = false;
    const auto why = std::make_shared<const dgpuErrorInfo>(last_error());
    for (const Sequence* s : a.sequences)
      if (good_tokens(*s) < s->length_) log_->spoil(s->slot_, 0, why);
  }
  return status;
}

Status Session::submit_commands(Stream& stream, const Admitted& a) {
  graph::Extents x = maxima_;
  x.tokens = static_cast<int64_t>(a.tokens.size());
  x.sequences = static_cast<int64_t>(a.parts.size());
  x.logit_rows = static_cast<int64_t>(a.rows.size());
  DGPU_TRY(order_after_last(stream));
  auto& staging = staging_[next_staging_];
  if (staging.timeline) {
    // Four steps back; usually long done. Its failure belongs to whoever waits for that step.
    const Status s = staging.timeline->wait(staging.value, DGPU_TIMEOUT_INFINITE);
    if (s == DGPU_STATUS_SHUTDOWN || s == DGPU_STATUS_DEVICE_LOST) return s;
  }
  layout_->fill(staging.pointer, x, a.tokens.data(), a.parts, a.rows);
  if (layout_->bytes()) DGPU_TRY(copy(stream, inputs_, staging.address, layout_->bytes()));
  staging.timeline = Ref<Timeline>::retain(stream.timeline());
  staging.value = stream.submitted();
  next_staging_ = (next_staging_ + 1) % kStaging;
  for (size_t i = 0; i < a.sequences.size(); ++i) {
    auto& s = *a.sequences[i];
    overwrite(s.oldest_, a.parts[i].length + a.parts[i].count);
    if (!s.fresh_) continue;
    DGPU_TRY(zero_fixed_states(stream, s.slot_));
    s.fresh_ = false;
  }
  if (!once_done_) {
    DGPU_TRY(run_nodes(stream, x, true));
    once_done_ = true;
  }
  DGPU_TRY(run_nodes(stream, x, false));
  last_ = x;
  return DGPU_STATUS_SUCCESS;
}

Status Session::run_nodes(Stream& stream, const graph::Extents& extents, bool once) {
  const auto symbols = graph::evaluate_symbols(program_, extents);
  for (size_t n = 0; n < plans_.size(); ++n) {
    const auto& p = plans_[n];
    if (p.once != once) continue;
    DGPU_TRY(execute(stream, *p.plan, p.addresses, symbols, workspace_));
  }
  return DGPU_STATUS_SUCCESS;
}

Session::StateRow Session::state_row(const graph::State& state, uint32_t slot) const {
  const uint64_t rows =
      state.cache == graph::kNone ? limits_.max_sequences : static_cast<uint64_t>(maxima_.pages[state.cache]);
  const uint64_t row = value_bytes(state.value) / rows;
  const uint64_t entries = state.cache == graph::kNone ? 1 : static_cast<uint64_t>(maxima_.page_size[state.cache]);
  return {base_[state.value] + row * slot, row / entries, entries};
}

void Session::overwrite(std::vector<uint64_t>& oldest, uint64_t length) const {
  for (size_t c = 0; c < program_.caches.size(); ++c) {
    const auto places = static_cast<uint64_t>(maxima_.page_size[c]);
    if (program_.caches[c].ring() && length > places) oldest[c] = std::max(oldest[c], length - places);
  }
}

Status Session::zero_fixed_states(Stream& stream, uint32_t slot) {
  for (const auto& state : program_.states) {
    if (state.cache != graph::kNone) continue;
    const auto row = state_row(state, slot);
    DGPU_TRY(fill_zero(stream, row.address, row.bytes_per_entry));
  }
  return DGPU_STATUS_SUCCESS;
}

}  // namespace dgpu::model
