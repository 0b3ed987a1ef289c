#include "backends/cpu/attention/keys.h"

#include <algorithm>
#include <cstring>

namespace dgpu::cpu::attention {
namespace {

dgpuStatus_t out_of_range(const std::string& text) { return kit::fail(DGPU_STATUS_DATA_OUT_OF_RANGE, text); }

// The page of key j, checked. Pages of keys that nobody sees are never looked up.
dgpuStatus_t page_of(const SequenceSource& s, int64_t index, int64_t* page) {
  *page = s.table[index * s.spec->table.stride(1)];
  if (*page >= 0 && *page < s.pages) return DGPU_STATUS_SUCCESS;
  return out_of_range("attention: table entry " + std::to_string(index) + " is page " + std::to_string(*page) +
                      ", the cache has pages 0 to " + std::to_string(s.pages - 1));
}

dgpuStatus_t overwritten(const SequenceSource& s, int64_t j) {
  return out_of_range("attention: key " + std::to_string(j) + " of " + std::to_string(s.length) +
                      " is visible, but the ring holds the last " + std::to_string(s.room) + " only");
}

dgpuStatus_t position_of(const SequenceSource& s, const Args& args, int64_t j, int32_t* position) {
  int64_t page = 0;
  const auto status = page_of(s, j / s.page, &page);
  if (status < 0) return status;
  const Port& p = s.spec->k_positions;
  *position = p.data<const int32_t>(args)[page * p.stride(0) + j % s.page * p.stride(1)];
  return DGPU_STATUS_SUCCESS;
}

// The distinct, visible keys among those picked for query t.
dgpuStatus_t picked_keys(const SequenceSource& s, const Args& args, int64_t t, const Bounds& b, Scratch* scratch,
                         KeyRange* range) {
  const Port& pick = s.spec->pick;
  const int64_t count = pick.extent(1, args);
  const int32_t* row = pick.data<const int32_t>(args) + t * pick.stride(0);
  int32_t* list = scratch->take<int32_t>(count);
  int64_t n = 0;
  bool ascending = true;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t j = row[i * pick.stride(1)];
    if (j == -1) continue;
    if (j < 0 || j >= s.length) {
      return out_of_range("attention: pick [" + std::to_string(t) + ", " + std::to_string(i) + "] is " +
                          std::to_string(j) + ", the sequence has " + std::to_string(s.length) + " keys");
    }
    if (j < b.j_lo || j >= b.j_hi) continue;
    if (j < s.oldest()) return overwritten(s, j);
    if (s.spec->k_positions) {
      int32_t position = 0;
      const auto status = position_of(s, args, j, &position);
      if (status < 0) return status;
      if (position < b.p_lo || position > b.p_last) continue;
    }
    ascending = ascending && (n == 0 || list[n - 1] < j);
    list[n++] = j;
  }
  if (!ascending) {
    std::sort(list, list + n);
    n = std::unique(list, list + n) - list;
  }
  *range = {0, n, list};
  return DGPU_STATUS_SUCCESS;
}

}  // namespace

SequenceSource sequence_source(const SourceSpec& spec, const Args& args, int64_t sequence) {
  SequenceSource s;
  s.spec = &spec;
  s.table = spec.table.data<const int32_t>(args) + sequence * spec.table.stride(0);
  s.pages = spec.k.extent(0, args);
  s.page = std::max<int64_t>(spec.k.extent(1, args), 1);
  s.room = s.page * spec.table.extent(1, args);
  s.length = spec.lengths.data<const int32_t>(args)[sequence * spec.lengths.stride(0)];
  return s;
}

dgpuStatus_t visible_keys(const Problem& problem, const SequenceSource& source, const Args& args, int64_t t0,
                          int64_t t1, Bounds* per_query, Scratch* scratch, KeyRange* range) {
  const auto* positions = problem.positions.data<const int32_t>(args);
  *range = {source.length, 0, nullptr};
  for (int64_t t = t0; t < t1; ++t) {
    const Bounds b = bounds(problem, *source.spec, positions[t * problem.positions.stride(0)], source.length);
    per_query[t - t0] = b;
    if (b.j_lo >= b.j_hi) continue;
    range->lo = std::min<int64_t>(range->lo, b.j_lo);
    range->hi = std::max<int64_t>(range->hi, b.j_hi);
  }
  range->lo = std::min(range->lo, range->hi);
  if (source.spec->pick && t1 > t0) {
    const auto status = picked_keys(source, args, t0, per_query[0], scratch, range);
    if (status < 0) return status;
  } else if (range->lo < range->hi && range->lo < source.oldest()) {
    return overwritten(source, range->lo);
  }
  if (source.spec == &problem.sources[0] && problem.bias && range->hi > 0) {
    const int64_t last = range->key(range->hi - 1), columns = problem.bias.extent(2, args);
    if (last >= columns) {
      return out_of_range("attention: key " + std::to_string(last) + " is visible, bias has " +
                          std::to_string(columns) + " columns");
    }
  }
  return DGPU_STATUS_SUCCESS;
}

dgpuStatus_t locate(const SequenceSource& s, const Args& args, const KeyRange& range, int64_t i0, int64_t n, int64_t* k,
                    int64_t* v, int32_t* positions) {
  const Port &pk = s.spec->k, &pv = s.spec->v, &pp = s.spec->k_positions;
  const int32_t* at = positions != nullptr ? pp.data<const int32_t>(args) : nullptr;
  int64_t index = -1, page = 0, first = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t j = range.key(i0 + i);
    if (index < 0 || j - first >= s.page || j < first) {
      const int64_t row = s.place(j);
      index = row / s.page;
      first = j - row % s.page;
      const auto status = page_of(s, index, &page);
      if (status < 0) return status;
    }
    const int64_t place = j - first;
    k[i] = page * pk.stride(0) + place * pk.stride(1);
    v[i] = page * pv.stride(0) + place * pv.stride(1);
    if (at != nullptr) positions[i] = at[page * pp.stride(0) + place * pp.stride(1)];
  }
  return DGPU_STATUS_SUCCESS;
}

int64_t copy_bytes(const Port& cache, int64_t width) {
  return cache.stride(3) == 1 ? 0 : width * gemm::size_of(cache.type);
}

void row_addresses(const Port& cache, const Args& args, int64_t head, const int64_t* offsets, int64_t n, int64_t width,
                   char* copies, const void** rows) {
  const int64_t bytes = copy_bytes(cache, width), size = gemm::size_of(cache.type);
  const char* base = static_cast<const char*>(cache.at(args, head * cache.stride(2)));
  for (int64_t i = 0; i < n; ++i) rows[i] = base + offsets[i] * size;
  if (bytes == 0) return;
  for (int64_t i = 0; i < n; ++i, copies += bytes) {
    const char* src = static_cast<const char*>(rows[i]);
    for (int64_t e = 0; e < width; ++e) {
      std::memcpy(copies + e * size, src + e * cache.stride(3) * size, static_cast<size_t>(size));
    }
    rows[i] = copies;
  }
}

void load_row(const gemm::Kernels& k, gemm::Type type, const void* src, int64_t stride, int64_t n, float* dst) {
  const auto widen = k.widen[static_cast<int>(type)];
  if (stride == 1) return widen(src, n, dst);
  for (int64_t i = 0; i < n; ++i) widen(gemm::at(src, type, i * stride), 1, dst + i);
}

void store_row(const gemm::Kernels& k, gemm::Type type, const float* src, int64_t n, void* dst, int64_t stride) {
  const auto narrow = k.narrow[static_cast<int>(type)];
  if (stride == 1) return narrow(src, n, dst);
  for (int64_t i = 0; i < n; ++i) narrow(src + i, 1, gemm::at(dst, type, i * stride));
}

}  // namespace dgpu::cpu::attention
