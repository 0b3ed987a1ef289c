#include "backends/cpu/gemm/tile.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace dgpu::cpu::gemm {
namespace {

// n elements `stride` apart, moved together.
void gather(Type type, const void* src, int64_t stride, int64_t n, void* dst) {
  if (type == Type::f32) {
    for (int64_t i = 0; i < n; ++i) static_cast<float*>(dst)[i] = static_cast<const float*>(src)[i * stride];
  } else {
    for (int64_t i = 0; i < n; ++i) static_cast<uint16_t*>(dst)[i] = static_cast<const uint16_t*>(src)[i * stride];
  }
}

void scatter(Type type, const void* src, int64_t n, int64_t stride, void* dst) {
  const auto width = static_cast<size_t>(size_of(type));
  for (int64_t j = 0; j < n; ++j) std::memcpy(at(dst, type, j * stride), at(src, type, j), width);
}

void pack_any(const Kernels& t, Unit unit, const Source& s, int64_t count, int64_t k, int width, float* panel) {
  float raw[kMaxWidth] = {};
  for (int64_t p = 0; p < k; p += unit == Unit::fma ? 1 : 2, panel += width) {
    if (unit == Unit::fma) {
      for (int64_t i = 0; i < count; ++i) {
        std::memcpy(static_cast<char*>(at(raw, s.type, i)), s.at(i, p), static_cast<size_t>(size_of(s.type)));
      }
      t.widen[static_cast<int>(s.type)](raw, width, panel);
      continue;
    }
    for (int64_t i = 0; i < count; ++i) {
      uint16_t pair[2] = {*static_cast<const uint16_t*>(s.at(i, p)), 0};
      if (p + 1 < k) pair[1] = *static_cast<const uint16_t*>(s.at(i, p + 1));
      std::memcpy(panel + i, pair, sizeof(pair));
    }
  }
}

// A row of an elementwise operand as f32, in place where it already is.
const float* f32_row(const Kernels& t, const Source& s, int64_t i, int64_t n, float* buffer) {
  const void* p = s.at(i, 0);
  if (s.type == Type::f32 && (s.col == 1 || n == 1)) return static_cast<const float*>(p);
  if (s.col != 1 && n > 1) {
    float* raw = buffer + n;
    gather(s.type, p, s.col, n, raw);
    p = raw;
  }
  t.widen[static_cast<int>(s.type)](p, n, buffer);
  return buffer;
}

// Rows of sums, `ld` floats apart, through the epilogue into the output.
class Epilogue {
 public:
  explicit Epilogue(const Tile& x) : x_(x), buffers_(scratch(Slot::rows, 7 * x.n)) {
    if (x.bias.data != nullptr) bias_ = f32_row(*x.kernels, x.bias, 0, x.n, buffers_);
  }
  void rows(int64_t first, int64_t count, const float* sums, int64_t ld) const {
    const Kernels& t = *x_.kernels;
    const int64_t n = x_.n;
    float *const gate = buffers_ + 2 * n, *const residual = gate + 2 * n, *const out = residual + 2 * n;
    const auto finish = t.finish[static_cast<int>(x_.out.type)];
    const bool contiguous = x_.out.col == 1 || n == 1;
    for (int64_t i = first; i < first + count; ++i, sums += ld) {
      const Row row = {sums, bias_, x_.gate.data != nullptr ? f32_row(t, x_.gate, i, n, gate) : nullptr,
                       x_.residual.data != nullptr ? f32_row(t, x_.residual, i, n, residual) : nullptr};
      void* const p = const_cast<void*>(x_.out.at(i, 0));
      finish(row, n, x_.activation, contiguous ? p : out);
      if (!contiguous) scatter(x_.out.type, out, n, x_.out.col, p);
    }
  }

 private:
  const Tile& x_;
  const float* bias_ = nullptr;
  float* buffers_;
};

// Each panel of A meets all of B's, which stay in the second-level cache; the epilogue takes its rows while they are
// in the first.
void run_packed(const Tile& x, int64_t ld) {
  const Kernels& t = *x.kernels;
  const MicroKernel* micro = x.unit == Unit::fma ? t.micro : bf16_dot_unit()->micro;
  const int64_t a_panel = a_panel_floats(t, x.unit, x.k_block), b_panel = units_of(x.unit, x.k_block) * t.b_width;
  const int64_t b_panels = ld / t.b_width;
  const bool one_block = x.k <= x.k_block;
  float* const sums = scratch(Slot::sums, (one_block ? x.panel_rows : x.m) * ld);
  float* const own_a = x.packed_a != nullptr ? nullptr : scratch(Slot::a, a_panel);
  float* const b = scratch(Slot::b, b_panels * b_panel);
  const Epilogue epilogue(x);
  for (int64_t k0 = 0, block = 0; k0 < x.k; k0 += x.k_block, ++block) {
    const int64_t kc = std::min(x.k_block, x.k - k0);
    const int64_t units = units_of(x.unit, kc);
    pack_panels(t, x.unit, x.b.from(0, k0), x.n, x.n, kc, t.b_width, b, b_panel);
    for (int64_t i0 = 0, panel = 0; i0 < x.m; i0 += x.panel_rows, ++panel) {
      const int64_t left = x.m - i0, rows = std::min(x.panel_rows, left);
      const float* const a = own_a != nullptr ? own_a : x.packed_a + block * x.packed_a_block + panel * a_panel;
      if (own_a != nullptr) pack_panels(t, x.unit, x.a.from(i0, k0), rows, left, kc, t.a_width, own_a, a_panel);
      float* const c = sums + (one_block ? 0 : i0 * ld);
      for (int64_t j = 0; j < b_panels; ++j) {
        micro[rows](a, b + j * b_panel, units, c + j * t.b_width, ld, k0 > 0);
      }
      if (k0 + kc == x.k) epilogue.rows(i0, rows, c, ld);
    }
  }
}

// Whether the in-place kernels can read this row operand as it is.
bool readable(const Tile& x) {
  return (x.a.col == 1 || x.k == 1) && x.a.type == (x.unit == Unit::fma ? Type::f32 : Type::bf16);
}

void run_dot(const Tile& x, float* sums, int64_t ld) {
  const Kernels& t = *x.kernels;
  constexpr int64_t kMaxDotTiles = ceil_div(kDotRows, kMaxDotRows);
  constexpr int64_t kGroup = 24;  // rows of B between two visits of the same A: a multiple of every tile width
  Source a = x.a;
  if (!readable(x)) {
    const int64_t row = round_up(x.k, 16);
    a = {scratch(Slot::a, x.m * row), x.unit == Unit::fma ? Type::f32 : Type::bf16, row, 1, nullptr};
    for (int64_t i = 0; i < x.m; ++i) copy_row(t, x.unit, x.a, i, x.k, const_cast<void*>(a.at(i, 0)));
  }
  const int64_t tiles = ceil_div(x.m, kMaxDotRows);
  for (int64_t j0 = 0; j0 < x.n; j0 += kGroup) {
    const int64_t count = std::min(kGroup, x.n - j0);
    for (int64_t k0 = 0; k0 < x.k; k0 += x.k_block) {
      const int64_t kc = std::min(x.k_block, x.k - k0);
      // The block after this one: further along k, else the next rows. With one tile the next register tile's rows.
      const bool along = k0 + x.k_block < x.k;
      const int64_t next_j = along || j0 + kGroup >= x.n ? j0 : j0 + kGroup, next_k = along ? k0 + x.k_block : 0;
      const void *b[kGroup], *next[kGroup + kDotAhead * kMaxDotTiles];
      for (int64_t j = 0; j < count; ++j) b[j] = x.b.at(j0 + j, k0);
      for (int64_t j = 0; j < kGroup + kDotAhead * tiles; ++j) {
        next[j] = tiles == 1 ? x.b.at(std::min(j0 + kMaxDotColumns + j, x.n - 1), k0)
                             : x.b.at(std::min(next_j + j, x.n - 1), next_k);
      }
      for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t i0 = tile * x.m / tiles, rows = (tile + 1) * x.m / tiles - i0;
        const void* rows_of_a[kMaxDotRows];
        for (int64_t i = 0; i < rows; ++i) rows_of_a[i] = a.at(i0 + i, k0);
        const Dot dot = x.unit == Unit::fma ? t.dot[rows][static_cast<int>(x.b.type)] : bf16_dot_unit()->dot[rows];
        dot(rows_of_a, b, next + tile * kDotAhead, count, kc, sums + i0 * ld + j0, ld, k0 > 0);
      }
    }
  }
}

void run_stream(const Tile& x, float* sums, int64_t ld) {
  const Kernels& t = *x.kernels;
  const int64_t row = round_up(x.k, 16);
  float* a = scratch(Slot::a, x.m * row);
  const Type type = x.unit == Unit::fma ? Type::f32 : Type::bf16;
  for (int64_t i = 0; i < x.m; ++i) copy_row(t, x.unit, x.a, i, x.k, at(a, type, i * row));
  const Stream stream = x.unit == Unit::fma ? t.stream[x.m][static_cast<int>(x.b.type)] : bf16_dot_unit()->stream[x.m];
  stream(a, row, x.b.data, x.b.col, x.n, x.k, sums, ld);
}

}  // namespace

float* scratch(Slot slot, int64_t floats) {
  struct Buffer {
    std::unique_ptr<float, decltype(&std::free)> data{nullptr, &std::free};
    int64_t floats = 0;
  };
  thread_local Buffer buffers[static_cast<int>(Slot::count)];
  Buffer& b = buffers[static_cast<int>(slot)];
  if (b.floats < floats) {
    b.floats = round_up(floats, 1024);
    b.data.reset();
    b.data.reset(static_cast<float*>(std::aligned_alloc(64, static_cast<size_t>(b.floats) * sizeof(float))));
  }
  return b.data.get();
}

void pack_panels(const Kernels& t, Unit unit, const Source& s, int64_t count, int64_t available, int64_t k, int width,
                 float* panels, int64_t panel_floats, Reader reader) {
  const int type = static_cast<int>(s.type);
  const bool along_k = s.col == 1 || k == 1;
  if (!along_k && s.row == 1 && s.index == nullptr) {
    const int columns = static_cast<int>(std::min(round_up(count, width), available));
    return (unit == Unit::fma ? t.pack_columns[type] : t.pack_pair_columns)(s.data, s.col, k, columns, width, panels,
                                                                            panel_floats);
  }
  for (int64_t i0 = 0; i0 < count; i0 += width, panels += panel_floats) {
    const int64_t valid = std::min<int64_t>(width, count - i0);
    if (!along_k) {
      pack_any(t, unit, s.from(i0, 0), valid, k, width, panels);
      continue;
    }
    const void* rows[kMaxWidth];
    for (int i = 0; i < width; ++i) rows[i] = s.at(i0 + std::min<int64_t>(i, valid - 1), 0);
    if (reader == Reader::kFar) {
      (unit == Unit::fma ? t.stream_rows[type] : t.stream_pair_rows)(rows, k, width, panels);
    } else {
      (unit == Unit::fma ? t.pack_rows[type] : t.pack_pair_rows)(rows, k, width, panels);
    }
  }
}

void copy_row(const Kernels& t, Unit unit, const Source& s, int64_t i, int64_t k, void* dst) {
  if (unit == Unit::bf16_dot) return gather(s.type, s.at(i, 0), s.col, k, dst);
  if (s.col == 1 || k == 1) return t.widen[static_cast<int>(s.type)](s.at(i, 0), k, static_cast<float*>(dst));
  float raw[256];
  for (int64_t p = 0; p < k; p += 256) {
    const int64_t count = std::min<int64_t>(256, k - p);
    gather(s.type, s.at(i, p), s.col, count, raw);
    t.widen[static_cast<int>(s.type)](raw, count, static_cast<float*>(dst) + p);
  }
}

void choose_blocking(Tile* x) {
  const Kernels& t = *x->kernels;
  const bool along_k = x->b.col == 1 || x->k <= 1;
  x->path = along_k && x->m <= kDotRows ? Path::dot : Path::packed;
  x->k_block = x->path == Path::packed ? packed_k_block(x->unit, x->k) : dot_k_block(x->m, x->k);
  x->panel_rows = x->m == 0 ? 1 : ceil_div(x->m, ceil_div(x->m, t.rows));
}

void run_tile(const Tile& x) {
  if (x.m == 0 || x.n == 0) return;
  const int64_t ld = round_up(x.n, x.kernels->b_width);
  if (x.path == Path::packed && x.k > 0) return run_packed(x, ld);
  float* const sums = scratch(Slot::sums, x.m * ld);
  if (x.k == 0) {
    std::memset(sums, 0, static_cast<size_t>(x.m * ld) * sizeof(float));
  } else if (x.path == Path::dot) {
    run_dot(x, sums, ld);
  } else {
    run_stream(x, sums, ld);
  }
  Epilogue(x).rows(0, x.m, sums, ld);
}

void finish_tile(const Tile& x, const float* partials, int64_t parts, int64_t part_floats, int64_t ld) {
  float* const sums = scratch(Slot::sums, x.n);
  const Epilogue epilogue(x);
  for (int64_t i = 0; i < x.m; ++i) {
    std::memcpy(sums, partials + i * ld, static_cast<size_t>(x.n) * sizeof(float));
    for (int64_t p = 1; p < parts; ++p) x.kernels->add(sums, partials + p * part_floats + i * ld, x.n);
    epilogue.rows(i, 1, sums, x.n);
  }
}

}  // namespace dgpu::cpu::gemm
