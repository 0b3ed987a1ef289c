// Sequences as bytes: a header, per cache the first entry that is there (uint64_t), the entries of each state in order,
// and the tokens where they may have to be replayed. Where entries lie in a ring does not show.
#include <cstring>

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

struct Sequence::Saved {
  SavedHeader header;
  std::vector<uint64_t> oldest;
  std::vector<int32_t> tokens;
  const uint8_t* states = nullptr;
};

uint64_t Session::layout_hash() const {
  uint64_t h = 0xcbf29ce484222325ull;  // FNV-1a
  const auto add = [&](const std::string& text) {
    for (const unsigned char c : text) h = (h ^ c) * 0x100000001b3ull;
  };
  add(program_.family);
  for (const auto& s : program_.states) {
    const int64_t cap = s.cache == graph::kNone ? 0 : program_.caches[s.cache].cap;
    add(fmt::format("{}/{}/{}/{}", s.name, s.kind, describe(s.value, maxima_).dtype, cap));
    for (const auto d : s.entry) add(std::to_string(d) + ",");
  }
  return h;
}

Status Sequence::save(Stream& stream, void* buffer, size_t size, size_t* needed) {
  auto& s = *session_;
  DGPU_TRY(same_context(stream.context(), &s.context(), "stream"));
  std::lock_guard lock(s.mutex_);
  s.settle_steps();
  DGPU_TRY(s.check_intact(*this));
  SavedHeader header;
  header.layout = s.layout_hash();
  header.length = length_;
  header.total = total_;
  header.bytes = oldest_.size() * sizeof(uint64_t) + tokens_.size() * sizeof(int32_t);
  for (const auto& state : s.program_.states) header.bytes += s.state_bytes(state, length_, oldest_);
  *needed = sizeof header + header.bytes;
  if (!buffer) return DGPU_STATUS_SUCCESS;
  if (size < *needed)
    return fail(DGPU_STATUS_BUFFER_TOO_SMALL, "buffer", "the buffer has {} bytes, {} are needed", size, *needed);
  DGPU_TRY(s.order_after_last(stream));
  auto* at = static_cast<uint8_t*>(buffer);
  const auto put = [&](const void* data, size_t n) {
    if (n) std::memcpy(at, data, n);
    at += n;
  };
  put(&header, sizeof header);
  put(oldest_.data(), oldest_.size() * sizeof(uint64_t));
  for (const auto& state : s.program_.states)
    for (const auto& span : s.spans(state, slot_, length_, oldest_)) {
      if (fresh_ && state.cache == graph::kNone)
        std::memset(at, 0, span.bytes);
      else
        DGPU_TRY(copy_to_host(stream, at, span.address, span.bytes));
      at += span.bytes;
    }
  put(tokens_.data(), tokens_.size() * sizeof(int32_t));
  return stream.synchronize(DGPU_TIMEOUT_INFINITE);
}

// Reads and checks all but the states' values.
Status Sequence::read_saved(const void* buffer, size_t size, Saved& out) const {
  const auto& s = *session_;
  auto& header = out.header;
  if (size < sizeof header) return fail(DGPU_STATUS_PARSE_ERROR, "buffer", "{} bytes are no saved sequence", size);
  std::memcpy(&header, buffer, sizeof header);
  if (std::memcmp(header.magic, SavedHeader().magic, sizeof header.magic) != 0)
    return fail(DGPU_STATUS_PARSE_ERROR, "buffer", "the bytes are no saved sequence");
  if (header.layout != s.layout_hash())
    return fail(DGPU_STATUS_VERSION_MISMATCH, "buffer", "saved by a session of another model or compute type");
  if (header.length > s.limits_.max_tokens)
    return fail(DGPU_STATUS_CAPACITY, "buffer", "the saved sequence has {} tokens, the session holds {}", header.length,
                s.limits_.max_tokens);
  out.oldest.resize(oldest_.size());
  out.tokens.resize(s.length_independent_ == INT64_MAX ? 0 : header.length);
  const uint64_t head = sizeof header + out.oldest.size() * sizeof(uint64_t);
  if (size < head) return fail(DGPU_STATUS_PARSE_ERROR, "buffer", "{} bytes are no saved sequence", size);
  out.states = static_cast<const uint8_t*>(buffer) + head;
  if (head > sizeof header) std::memcpy(out.oldest.data(), out.states - (head - sizeof header), head - sizeof header);
  for (size_t c = 0; c < out.oldest.size(); ++c) {
    const auto& cache = s.program_.caches[c];
    if (out.oldest[c] > (cache.ring() ? first_visible(cache, header.length) : 0))
      return fail(DGPU_STATUS_PARSE_ERROR, "buffer", "the saved sequence lacks entries of cache {} before {}",
                  cache.name, out.oldest[c]);
  }
  uint64_t states = 0;
  for (const auto& state : s.program_.states) states += s.state_bytes(state, header.length, out.oldest);
  const uint64_t expected = head + states + out.tokens.size() * sizeof(int32_t);
  if (size != expected || header.bytes != expected - sizeof header)
    return fail(DGPU_STATUS_PARSE_ERROR, "buffer", "{} bytes were given, the saved sequence has {}", size, expected);
  if (!out.tokens.empty()) std::memcpy(out.tokens.data(), out.states + states, out.tokens.size() * sizeof(int32_t));
  return DGPU_STATUS_SUCCESS;
}

Status Sequence::restore(Stream& stream, const void* buffer, size_t size) {
  auto& s = *session_;
  DGPU_TRY(same_context(stream.context(), &s.context(), "stream"));
  std::lock_guard lock(s.mutex_);
  s.settle_steps();
  DGPU_TRY(s.check_intact(*this));
  if (length_ != 0)
    return fail(DGPU_STATUS_INVALID_STATE, "sequence", "the sequence holds {} tokens; restore needs an empty one",
                length_);
  Saved saved;
  DGPU_TRY(read_saved(buffer, size, saved));
  const uint64_t length = saved.header.length;
  auto oldest = saved.oldest;
  s.overwrite(oldest, length);  // the rings of the saving session may have been larger
  DGPU_TRY(s.order_after_last(stream));
  const auto* at = saved.states;
  for (const auto& state : s.program_.states) {
    at += s.state_bytes(state, length, saved.oldest) - s.state_bytes(state, length, oldest);
    for (const auto& span : s.spans(state, slot_, length, oldest)) {
      DGPU_TRY(copy_from_host(stream, span.address, at, span.bytes));
      at += span.bytes;
    }
  }
  DGPU_TRY(stream.synchronize(DGPU_TIMEOUT_INFINITE));
  s.note_last(stream);
  tokens_ = std::move(saved.tokens);
  oldest_ = std::move(oldest);
  length_ = length;
  total_ = saved.header.total;
  fresh_ = false;
  return DGPU_STATUS_SUCCESS;
}

}  // namespace dgpu::model
