#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "model/device_io.h"
#include "model/open_model.h"
#include "model/session.h"

namespace dgpu::model {
Sequence::Sequence(Ref<Session> session, uint32_t slot)
    : Object(Kind::sequence),
      session_(std::move(session)),
      slot_(slot),
      oldest_(session_->program().caches.size(), 0) {}

Sequence::~Sequence() {
  std::lock_guard lock(session_->mutex_);
  session_->slot_used_[slot_] = false;
}

Status Session::take_slot(uint32_t& slot) {
  const auto free = std::find(slot_used_.begin(), slot_used_.end(), false);
  if (free == slot_used_.end())
    return fail(DGPU_STATUS_CAPACITY, "session",
                "all {} sequences of the session are live; destroy one or raise max_sequences", limits_.max_sequences);
  *free = true;
  slot = static_cast<uint32_t>(free - slot_used_.begin());
  log_->renew(slot);
  return DGPU_STATUS_SUCCESS;
}

uint64_t Session::state_bytes(const graph::State& state, uint64_t length, const std::vector<uint64_t>& oldest) const {
  uint64_t bytes = 0;
  for (const auto& span : spans(state, 0, length, oldest)) bytes += span.bytes;
  return bytes;
}

std::vector<Session::Span> Session::spans(const graph::State& state, uint32_t slot, uint64_t length,
                                          const std::vector<uint64_t>& oldest) const {
  const auto row = state_row(state, slot);
  if (state.cache == graph::kNone) return {{row.address, row.bytes_per_entry}};
  std::vector<Span> out;
  const auto end = static_cast<uint64_t>(cache_entries(program_.caches[state.cache], length));
  for (uint64_t at = oldest[state.cache]; at < end;) {
    const uint64_t place = at % row.places, count = std::min(end - at, row.places - place);
    out.push_back({row.address + place * row.bytes_per_entry, count * row.bytes_per_entry});
    at += count;
  }
  return out;
}

Status Sequence::create(Session& session, Ref<Sequence>& out) {
  uint32_t slot = 0;
  {
    std::lock_guard lock(session.mutex_);
    DGPU_TRY(session.take_slot(slot));
  }
  out = Ref<Sequence>::adopt(new Sequence(Ref<Session>::retain(&session), slot));
  return DGPU_STATUS_SUCCESS;
}

uint64_t Sequence::length() const {
  std::lock_guard lock(session_->mutex_);
  return length_;
}

Status Sequence::fork(Stream& stream, Ref<Sequence>& out) {
  auto& s = *session_;
  DGPU_TRY(same_context(stream.context(), &s.context(), "stream"));
  Ref<Sequence> made;
  DGPU_TRY(create(s, made));
  std::lock_guard lock(s.mutex_);
  s.settle_steps();
  DGPU_TRY(s.check_intact(*this));
  DGPU_TRY(s.order_after_last(stream));
  const Status copied = copy_states(stream, *made);
  s.note_last(stream);  // also of a part: the slot is free again, but something may still be written to it
  DGPU_TRY(copied);
  s.log_->add(s.last_timeline_, s.last_value_, {{made->slot_, 0}}, false);
  made->length_ = length_;
  made->fresh_ = fresh_;
  made->oldest_ = oldest_;
  made->tokens_ = tokens_;
  made->total_ = total_;
  out = std::move(made);
  return DGPU_STATUS_SUCCESS;
}

// Whether the state can go back to `length` tokens, above 0.
Status Sequence::check_rewind(const graph::State& state, uint64_t length) const {
  if (!state.rewinds)
    return fail(DGPU_STATUS_UNSUPPORTED, state.name,
                "state '{}' ({}) cannot rewind; only length 0 or the current one is possible", state.name, state.kind);
  if (state.cache == graph::kNone) return DGPU_STATUS_SUCCESS;
  const auto& cache = session_->program_.caches[state.cache];
  const uint64_t oldest = oldest_[state.cache];
  if (oldest == 0 || oldest <= first_visible(cache, length)) return DGPU_STATUS_SUCCESS;
  const uint64_t least = oldest + static_cast<uint64_t>(cache.cap) - 1;
  return fail(DGPU_STATUS_UNSUPPORTED, state.name,
              "state '{}' ({}) has overwritten what lies before its window of {}: of {} tokens at most {} can be "
              "forgotten, or all; {} are asked for",
              state.name, state.kind, cache.cap, length_, length_ - least, length_ - length);
}

Status Sequence::copy_states(Stream& stream, Sequence& to) {
  const auto& s = *session_;
  for (const auto& state : s.program_.states) {
    const auto here = s.spans(state, slot_, length_, oldest_), there = s.spans(state, to.slot_, length_, oldest_);
    for (size_t i = 0; i < here.size(); ++i) DGPU_TRY(copy(stream, there[i].address, here[i].address, here[i].bytes));
  }
  return DGPU_STATUS_SUCCESS;
}

Status Sequence::truncate(uint64_t length) {
  std::lock_guard lock(session_->mutex_);
  session_->settle_steps();
  const StepLog::Damage* damage = session_->log_->damage(slot_);
  if (length > length_)
    return fail(DGPU_STATUS_INVALID_ARGUMENT, "length", "the sequence holds {} tokens, not {}", length_, length);
  if (length == length_ && !damage) return DGPU_STATUS_SUCCESS;
  if (length > 0 && length < length_)
    for (const auto& state : session_->program_.states) DGPU_TRY(check_rewind(state, length));
  length_ = length;
  if (length == 0) {
    fresh_ = true;
    std::fill(oldest_.begin(), oldest_.end(), 0);
  }
  if (tokens_.size() > length) tokens_.resize(length);
  if (damage && length <= damage->good) {
    session_->log_->repair(slot_);
    if (session_->length_independent_ != INT64_MAX) total_ = kUnknownTotal;
  }
  return DGPU_STATUS_SUCCESS;
}

std::string Sequence::describe() const {
  const auto& s = *session_;
  struct Row {
    uint64_t count = 0, fixed = 0, per_token = 0, allocated = 0;
  };
  std::map<std::pair<std::string, uint64_t>, Row> rows;  // by kind and cap
  for (const auto& state : s.program_.states) {
    const auto* cache = state.cache == graph::kNone ? nullptr : &s.program_.caches[state.cache];
    const auto where = s.state_row(state, slot_);
    auto& row = rows[{state.kind, cache && cache->ring() ? where.places : 0}];
    ++row.count;
    if (cache)
      row.per_token += where.bytes_per_entry / static_cast<uint64_t>(cache->every);
    else
      row.fixed += where.bytes_per_entry;
    row.allocated += where.bytes_per_entry * where.places;
  }
  nlohmann::ordered_json doc = {
      {"schema", "dgpu.sequence/1"}, {"length", length()}, {"max_tokens", s.limits_.max_tokens}};
  doc["states"] = nlohmann::ordered_json::array();
  for (const auto& [key, row] : rows)
    doc["states"].push_back({{"kind", key.first},
                             {"count", row.count},
                             {"fixed_bytes", row.fixed},
                             {"bytes_per_token", row.per_token},
                             {"cap_tokens", key.second ? nlohmann::ordered_json(key.second) : nlohmann::ordered_json()},
                             {"allocated_bytes", row.allocated}});
  return doc.dump();
}

}  // namespace dgpu::model
