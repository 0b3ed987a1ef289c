#include "model/batch.h"

#include <algorithm>

namespace dgpu::model {
using graph::InputKind;

BatchLayout::BatchLayout(const graph::Program& program, const graph::Extents& maxima)
    : program_(program), maxima_(maxima) {
  for (const auto& in : program.inputs) {
    uint64_t n = 1;
    for (const auto& d : program.values[in.value].shape)
      n *= static_cast<uint64_t>(d.symbol ? graph::evaluate(program.symbols[d.symbol - 1], maxima) : d.value);
    offsets_.push_back(bytes_);
    bytes_ += (n * 4 + 255) / 256 * 256;
  }
}

void BatchLayout::fill(void* block, const graph::Extents& step, const int32_t* tokens,
                       const std::vector<BatchSequence>& sequences, const std::vector<uint32_t>& logit_rows) const {
  for (size_t i = 0; i < program_.inputs.size(); ++i)
    fill_input(program_.inputs[i], reinterpret_cast<int32_t*>(static_cast<uint8_t*>(block) + offsets_[i]), step, tokens,
               sequences, logit_rows);
}

void BatchLayout::fill_input(const graph::Input& in, int32_t* out, const graph::Extents& step, const int32_t* tokens,
                             const std::vector<BatchSequence>& sequences,
                             const std::vector<uint32_t>& logit_rows) const {
  const auto per_token = [&](auto&& value) {
    for (size_t b = 0; b < sequences.size(); ++b)
      for (uint32_t k = 0; k < sequences[b].count; ++k)
        out[sequences[b].first + k] = static_cast<int32_t>(value(b, sequences[b].length + k));
  };
  const auto per_sequence = [&](auto&& value) {
    for (size_t b = 0; b < sequences.size(); ++b) out[b] = static_cast<int32_t>(value(sequences[b]));
  };
  const auto per_place = [&](auto&& value) {  // [pages, page size]
    const int64_t size = maxima_.page_size[in.cache];
    for (int64_t p = 0; p < maxima_.pages[in.cache]; ++p)
      for (int64_t s = 0; s < size; ++s) out[p * size + s] = static_cast<int32_t>(value(p, s));
  };
  switch (in.kind) {
    case InputKind::Tokens:
      std::copy_n(tokens, step.tokens, out);
      break;
    case InputKind::Positions:
      per_token([](size_t, uint64_t position) { return position; });
      break;
    case InputKind::Rows:
      per_token([](size_t b, uint64_t) { return b; });
      break;
    case InputKind::Offsets:
      for (size_t b = 0; b < sequences.size(); ++b) out[b] = static_cast<int32_t>(sequences[b].first);
      out[sequences.size()] = static_cast<int32_t>(step.tokens);
      break;
    case InputKind::TotalLengths:
      per_sequence([](const auto& s) { return s.total; });
      break;
    case InputKind::LogitRows:
      std::copy(logit_rows.begin(), logit_rows.end(), out);
      break;
    case InputKind::SequenceSlots:
    case InputKind::CacheTable:
      per_sequence([](const auto& s) { return s.slot; });
      break;
    case InputKind::CacheLengths:
      per_sequence([&](const auto& s) { return cache_entries(program_.caches[in.cache], s.length + s.count); });
      break;
    case InputKind::CacheSlots: {  // at most as many tokens of a sequence as a ring has places, so all differ
      const auto every = static_cast<uint64_t>(program_.caches[in.cache].every);
      const int64_t size = maxima_.page_size[in.cache];
      per_token([&](size_t b, uint64_t position) -> int64_t {
        if ((position + 1) % every != 0) return -1;
        const int64_t entry = static_cast<int64_t>((position + 1) / every) - 1;
        return static_cast<int64_t>(sequences[b].slot) * size + entry % size;
      });
      break;
    }
    case InputKind::CachePositions: {
      const auto& cache = program_.caches[in.cache];
      const int64_t size = maxima_.page_size[in.cache];
      std::vector<int64_t> last(static_cast<size_t>(maxima_.pages[in.cache]), 0);  // entry written last, per page
      for (const auto& s : sequences) last[s.slot] = std::max<int64_t>(cache_entries(cache, s.length + s.count) - 1, 0);
      per_place([&](int64_t p, int64_t s) {
        const int64_t newest = last[static_cast<size_t>(p)];
        if (!cache.ring() || newest < s) return s * cache.every;
        return newest - (newest - s) % size;  // the newest entry at this place
      });
      break;
    }
    case InputKind::CacheRows: {
      std::vector<int32_t> row(static_cast<size_t>(maxima_.pages[in.cache]), 0);
      for (size_t b = 0; b < sequences.size(); ++b) row[sequences[b].slot] = static_cast<int32_t>(b);
      per_place([&](int64_t p, int64_t) { return row[static_cast<size_t>(p)]; });
      break;
    }
  }
}

}  // namespace dgpu::model
