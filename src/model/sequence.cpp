#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "model/device_io.h"
#include "model/open_model.h"
#include "model/session.h"

namespace dgpu::model {
namespace {

struct SavedHeader {
  char magic[8] = {'D', 'G', 'P', 'U', 'S', 'E', 'Q', '1'};
  uint64_t layout = 0;  // hash of the states' names, types and shapes
  uint64_t length = 0;
  uint64_t total = 0;  // see Sequence::total_
  uint64_t bytes = 0;  // after the header
};

}  // namespace

Sequence::Sequence(Ref<Session> session, uint32_t slot)
    : Object(Kind::sequence), session_(std::move(session)), slot_(slot) {}

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
  return DGPU_STATUS_SUCCESS;
}

uint64_t Session::state_bytes(const graph::State& state, uint64_t length) const {
  const uint64_t entries =
      state.cache == graph::kNone ? 1 : static_cast<uint64_t>(cache_entries(program_.caches[state.cache], length));
  return state_row(state, 0).bytes_per_entry * entries;
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
  DGPU_TRY(s.order_after_last(stream));
  for (const auto& state : s.program_.states) {
    const auto from = s.state_row(state, slot_), to = s.state_row(state, made->slot_);
    const uint64_t bytes = s.state_bytes(state, length_);
    if (bytes) DGPU_TRY(copy(stream, to.address, from.address, bytes));
  }
  s.note_last(stream);
  made->length_ = length_;
  made->fresh_ = fresh_;
  made->tokens_ = tokens_;
  made->total_ = total_;
  out = std::move(made);
  return DGPU_STATUS_SUCCESS;
}

Status Sequence::truncate(uint64_t length) {
  std::lock_guard lock(session_->mutex_);
  if (length > length_)
    return fail(DGPU_STATUS_INVALID_ARGUMENT, "length", "the sequence holds {} tokens, not {}", length_, length);
  if (length == length_) return DGPU_STATUS_SUCCESS;
  if (length > 0)
    for (const auto& state : session_->program_.states)
      if (!state.rewinds)
        return fail(DGPU_STATUS_UNSUPPORTED, state.name,
                    "state '{}' ({}) cannot rewind; only length 0 or the current one is possible", state.name,
                    state.kind);
  length_ = length;
  if (length == 0) fresh_ = true;
  if (tokens_.size() > length) tokens_.resize(length);
  return DGPU_STATUS_SUCCESS;
}

uint64_t Session::layout_hash() const {
  uint64_t h = 0xcbf29ce484222325ull;  // FNV-1a
  const auto add = [&](const std::string& text) {
    for (const unsigned char c : text) h = (h ^ c) * 0x100000001b3ull;
  };
  add(program_.family);
  for (const auto& s : program_.states) {
    add(fmt::format("{}/{}/{}", s.name, s.kind, describe(s.value, maxima_).dtype));
    for (const auto d : s.entry) add(std::to_string(d) + ",");
  }
  return h;
}

Status Sequence::save(Stream& stream, void* buffer, size_t size, size_t* needed) {
  auto& s = *session_;
  DGPU_TRY(same_context(stream.context(), &s.context(), "stream"));
  std::lock_guard lock(s.mutex_);
  SavedHeader header;
  header.layout = s.layout_hash();
  header.length = length_;
  for (const auto& state : s.program_.states) header.bytes += s.state_bytes(state, length_);
  header.total = total_;
  header.bytes += tokens_.size() * sizeof(int32_t);
  *needed = sizeof header + header.bytes;
  if (!buffer) return DGPU_STATUS_SUCCESS;
  if (size < *needed)
    return fail(DGPU_STATUS_BUFFER_TOO_SMALL, "buffer", "the buffer has {} bytes, {} are needed", size, *needed);
  DGPU_TRY(s.order_after_last(stream));
  auto* at = static_cast<uint8_t*>(buffer);
  std::memcpy(at, &header, sizeof header);
  at += sizeof header;
  for (const auto& state : s.program_.states) {
    const auto n = s.state_bytes(state, length_);
    if (n && fresh_ && state.cache == graph::kNone)
      std::memset(at, 0, n);
    else if (n)
      DGPU_TRY(copy_to_host(stream, at, s.state_row(state, slot_).address, n));
    at += n;
  }
  if (!tokens_.empty()) std::memcpy(at, tokens_.data(), tokens_.size() * sizeof(int32_t));
  return stream.synchronize(DGPU_TIMEOUT_INFINITE);
}

Status Sequence::restore(Stream& stream, const void* buffer, size_t size) {
  auto& s = *session_;
  DGPU_TRY(same_context(stream.context(), &s.context(), "stream"));
  std::lock_guard lock(s.mutex_);
  if (length_ != 0)
    return fail(DGPU_STATUS_INVALID_STATE, "sequence", "the sequence holds {} tokens; restore needs an empty one",
                length_);
  SavedHeader header;
  if (size < sizeof header) return fail(DGPU_STATUS_PARSE_ERROR, "buffer", "{} bytes are no saved sequence", size);
  std::memcpy(&header, buffer, sizeof header);
  if (std::memcmp(header.magic, SavedHeader().magic, sizeof header.magic) != 0)
    return fail(DGPU_STATUS_PARSE_ERROR, "buffer", "the bytes are no saved sequence");
  if (header.layout != s.layout_hash())
    return fail(DGPU_STATUS_VERSION_MISMATCH, "buffer", "saved by a session of another model or compute type");
  if (header.length > s.limits_.max_tokens)
    return fail(DGPU_STATUS_CAPACITY, "buffer", "the saved sequence has {} tokens, the session holds {}", header.length,
                s.limits_.max_tokens);
  uint64_t expected = 0;
  for (const auto& state : s.program_.states) expected += s.state_bytes(state, header.length);
  const uint64_t kept = s.length_independent_ == INT64_MAX ? 0 : header.length;
  expected += kept * sizeof(int32_t);
  if (header.bytes != expected || size != sizeof header + expected)
    return fail(DGPU_STATUS_PARSE_ERROR, "buffer", "{} bytes were given, the saved sequence has {}", size,
                sizeof header + expected);
  DGPU_TRY(s.order_after_last(stream));
  const auto* at = static_cast<const uint8_t*>(buffer) + sizeof header;
  for (const auto& state : s.program_.states) {
    const auto n = s.state_bytes(state, header.length);
    if (n) DGPU_TRY(copy_from_host(stream, s.state_row(state, slot_).address, at, n));
    at += n;
  }
  DGPU_TRY(stream.synchronize(DGPU_TIMEOUT_INFINITE));
  s.note_last(stream);
  tokens_.resize(kept);
  if (kept) std::memcpy(tokens_.data(), at, kept * sizeof(int32_t));
  length_ = header.length;
  total_ = header.total;
  fresh_ = false;
  return DGPU_STATUS_SUCCESS;
}

std::string Sequence::describe() const {
  const auto& s = *session_;
  struct Row {
    uint64_t count = 0, fixed = 0, per_token = 0;
    int64_t cap = 0;
  };
  std::map<std::string, Row> rows;
  for (const auto& state : s.program_.states) {
    auto& row = rows[state.kind];
    ++row.count;
    const auto bytes = s.state_row(state, slot_).bytes_per_entry;
    if (state.cache == graph::kNone) {
      row.fixed += bytes;
    } else {
      const auto& cache = s.program_.caches[state.cache];
      row.per_token += bytes / static_cast<uint64_t>(cache.every);
      row.cap = std::max(row.cap, cache.cap);
    }
  }
  nlohmann::ordered_json doc = {
      {"schema", "dgpu.sequence/1"}, {"length", length()}, {"max_tokens", s.limits_.max_tokens}};
  doc["states"] = nlohmann::ordered_json::array();
  for (const auto& [kind, row] : rows)
    doc["states"].push_back({{"kind", kind},
                             {"count", row.count},
                             {"fixed_bytes", row.fixed},
                             {"bytes_per_token", row.per_token},
                             {"cap_tokens", row.cap ? nlohmann::ordered_json(row.cap) : nlohmann::ordered_json()}});
  return doc.dump();
}

}  // namespace dgpu::model
