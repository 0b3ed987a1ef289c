// Where the keys and values of one sequence lie: pages, picked lists, positions.
#pragma once
#include "backends/cpu/attention/problem.h"
#include "backends/cpu/scratch.h"

namespace dgpu::cpu::attention {

// One source for one sequence of one execution.
struct SequenceSource {
  const SourceSpec* spec = nullptr;
  const int32_t* table = nullptr;  // row of this sequence
  int64_t page = 1, pages = 0;     // keys per page (S), pages of the cache (P)
  int64_t length = 0;              // keys, overwritten ones of a ring included
  int64_t room = 0;                // places of the sequence (N S)
  int64_t place(int64_t j) const { return spec->ring ? j % room : j; }
  int64_t oldest() const { return spec->ring ? length - room : 0; }  // keys before it are overwritten
};
SequenceSource sequence_source(const SourceSpec& spec, const Args& args, int64_t sequence);

// The keys that a block of queries may see: j in [lo, hi), or the `hi` entries of `list`, ascending, which are then
// visible to all its queries.
struct KeyRange {
  int64_t lo = 0, hi = 0;
  const int32_t* list = nullptr;
  int64_t key(int64_t i) const { return list != nullptr ? list[i] : i; }
};

// Bounds per query of t in [t0, t1), and their union; for a picked source (one query) the list of its visible keys.
dgpuStatus_t visible_keys(const Problem& problem, const SequenceSource& source, const Args& args, int64_t t0,
                          int64_t t1, Bounds* per_query, Scratch* scratch, KeyRange* range);

// Element offsets (head 0) of keys [i0, i0 + n) of the range in the k and v caches, and their positions where the
// source has them (positions may be null).
dgpuStatus_t locate(const SequenceSource& source, const Args& args, const KeyRange& range, int64_t i0, int64_t n,
                    int64_t* k, int64_t* v, int32_t* positions);

// Addresses of the rows of a head. Rows that are not contiguous are copied to `copies` (n rows of `width` elements).
void row_addresses(const Port& cache, const Args& args, int64_t head, const int64_t* offsets, int64_t n, int64_t width,
                   char* copies, const void** rows);

// Bytes of `copies` per row; 0 if rows are contiguous.
int64_t copy_bytes(const Port& cache, int64_t width);

// One row of n elements as f32, of any stride; and the other way.
void load_row(const gemm::Kernels& k, gemm::Type type, const void* src, int64_t stride, int64_t n, float* dst);
void store_row(const gemm::Kernels& k, gemm::Type type, const float* src, int64_t n, void* dst, int64_t stride);

}  // namespace dgpu::cpu::attention
