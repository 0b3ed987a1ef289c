#include "model/weights.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "base/dtype.h"

namespace dgpu::model {
namespace {

bool is_float(dgpuDtype_t d) {
  return d == DGPU_DTYPE_F32 || d == DGPU_DTYPE_F16 || d == DGPU_DTYPE_BF16 || d == DGPU_DTYPE_F64;
}
bool is_index(dgpuDtype_t d) { return d == DGPU_DTYPE_I64 || d == DGPU_DTYPE_I32; }

std::string show(const std::vector<int64_t>& shape) {
  std::string s = "[";
  for (size_t i = 0; i < shape.size(); ++i) s += (i ? "," : "") + std::to_string(shape[i]);
  return s + "]";
}

bool dense(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0; stride *= shape[d])
    if (shape[d] != 1 && strides[d] != stride) return false;
  return true;
}

double read_float(const uint8_t* p, dgpuDtype_t dtype) {
  uint16_t h;
  switch (dtype) {
    case DGPU_DTYPE_F64: {
      double v;
      std::memcpy(&v, p, 8);
      return v;
    }
    case DGPU_DTYPE_F32: {
      float v;
      std::memcpy(&v, p, 4);
      return v;
    }
    case DGPU_DTYPE_F16:
      std::memcpy(&h, p, 2);
      return f16_to_f32(h);
    default:
      std::memcpy(&h, p, 2);
      return bf16_to_f32(h);
  }
}

void write_float(uint8_t* p, dgpuDtype_t dtype, double v) {
  if (dtype == DGPU_DTYPE_F64) {
    std::memcpy(p, &v, 8);
  } else {
    const auto f = static_cast<float>(v);
    std::memcpy(p, &f, 4);
  }
}

int64_t read_int(const uint8_t* p, dgpuDtype_t dtype) {
  if (dtype == DGPU_DTYPE_I32) {
    int32_t v;
    std::memcpy(&v, p, 4);
    return v;
  }
  int64_t v;
  std::memcpy(&v, p, 8);
  return v;
}

// Copies or converts one block whose elements lie in `src`.
void copy_block(const graph::Block& block, const uint8_t* src, dgpuDtype_t from, uint8_t* dst, dgpuDtype_t to) {
  const size_t fs = dtype_bits(from) / 8, ts = dtype_bits(to) / 8;
  const int64_t count = graph::element_count(block.shape);
  std::vector<int64_t> at(block.shape.size(), 0);
  int64_t s = block.src_offset, d = block.dst_offset;
  for (int64_t n = 0; n < count; ++n) {
    const uint8_t* p = src + static_cast<size_t>(s) * fs;
    uint8_t* q = dst + static_cast<size_t>(d) * ts;
    if (from == to) {
      std::memcpy(q, p, fs);
    } else if (is_float(to)) {
      write_float(q, to, read_float(p, from));
    } else {
      const int64_t v = read_int(p, from);
      std::memcpy(q, &v, 8);
    }
    for (size_t k = block.shape.size(); k-- > 0;) {
      s += block.src_strides[k];
      d += block.dst_strides[k];
      if (++at[k] < block.shape[k]) break;
      s -= block.src_strides[k] * block.shape[k];
      d -= block.dst_strides[k] * block.shape[k];
      at[k] = 0;
    }
  }
}

constexpr int64_t kPartBytes = 4 << 20;  // of a tensor that is read at once

// Reads a block's elements in parts and copies them. Reading, not mapping: a file that becomes shorter meanwhile is an
// error, not a fault of the process.
class BlockReader {
 public:
  BlockReader(const SafetensorsFile& file, const TensorInfo& tensor, uint8_t* dst, dgpuDtype_t to)
      : file_(file), tensor_(tensor), dst_(dst), to_(to), width_(dtype_bits(tensor.dtype) / 8) {}

  Status read(const graph::Block& block) { return block.shape.empty() ? part(block, 0) : part(ordered(block), 0); }

 private:
  // Dimensions as they lie in the file, so that a part of the first one is one piece of it.
  static graph::Block ordered(const graph::Block& block) {
    std::vector<size_t> order(block.shape.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return std::abs(block.src_strides[a]) > std::abs(block.src_strides[b]);
    });
    graph::Block out = block;
    for (size_t i = 0; i < order.size(); ++i) {
      out.shape[i] = block.shape[order[i]];
      out.src_strides[i] = block.src_strides[order[i]];
      out.dst_strides[i] = block.dst_strides[order[i]];
    }
    return out;
  }

  // Splits the block along `dimension` until a part's stretch of the file is small enough.
  Status part(graph::Block block, size_t dimension) {
    if (graph::element_count(block.shape) == 0) return DGPU_STATUS_SUCCESS;
    int64_t first = block.src_offset, last = block.src_offset;
    for (size_t d = 0; d < block.shape.size(); ++d)
      (block.src_strides[d] < 0 ? first : last) += (block.shape[d] - 1) * block.src_strides[d];
    const int64_t bytes = (last - first + 1) * width_;
    if (bytes <= kPartBytes || dimension == block.shape.size()) {
      buffer_.resize(static_cast<size_t>(bytes));
      DGPU_TRY(file_.read(tensor_, static_cast<uint64_t>(first * width_), buffer_.size(), buffer_.data()));
      block.src_offset -= first;
      copy_block(block, buffer_.data(), tensor_.dtype, dst_, to_);
      return DGPU_STATUS_SUCCESS;
    }
    const int64_t stride = block.src_strides[dimension], count = block.shape[dimension];
    const int64_t step = std::clamp<int64_t>(kPartBytes / std::max<int64_t>(1, std::abs(stride) * width_), 1, count);
    graph::Block some = block;
    for (int64_t i = 0; i < count; i += step) {
      some.shape[dimension] = std::min(step, count - i);
      some.src_offset = block.src_offset + i * stride;
      some.dst_offset = block.dst_offset + i * block.dst_strides[dimension];
      DGPU_TRY(part(some, dimension + 1));
    }
    return DGPU_STATUS_SUCCESS;
  }

  const SafetensorsFile& file_;
  const TensorInfo& tensor_;
  uint8_t* const dst_;
  const dgpuDtype_t to_;
  const int64_t width_;
  std::vector<uint8_t> buffer_;
};

}  // namespace

Status check_tensors(const graph::Program& program, const Checkpoint& checkpoint) {
  std::string first, object;
  size_t faults = 0;
  const auto fault = [&](const std::string& name, std::string text) {
    if (faults++ == 0) {
      object = name;
      first = std::move(text);
    }
  };
  for (const auto& want : program.tensors) {
    const auto* got = checkpoint.find(want.name);
    if (!got) {
      fault(want.name, fmt::format("tensor '{}' {} is missing from the checkpoint", want.name, show(want.shape)));
    } else if (got->shape != want.shape) {
      fault(want.name, fmt::format("tensor '{}' has shape {}, the config asks for {}", want.name, show(got->shape),
                                   show(want.shape)));
    } else if (want.cls == graph::TensorClass::Integer ? !is_index(got->dtype) : !is_float(got->dtype)) {
      fault(want.name, fmt::format("tensor '{}' has type {}, which is not usable here", want.name, got->dtype_name));
    }
  }
  for (const auto& [name, info] : checkpoint.tensors())
    if (!program.find_tensor(name) && !program.skips(name))
      fault(name, fmt::format("tensor '{}' {} is not part of family '{}'", name, show(info.shape), program.family));
  if (!faults) return DGPU_STATUS_SUCCESS;
  return fail(DGPU_STATUS_INVALID_ARGUMENT, object, "{}{}; `dgpu-day0 audit` lists all", first,
              faults > 1 ? fmt::format(" (and {} more faults)", faults - 1) : "");
}

dgpuDtype_t weight_dtype(const graph::Program& program, const Checkpoint& checkpoint, const graph::Weight& weight) {
  dgpuDtype_t dtype = DGPU_DTYPE_NONE;
  for (const auto& b : weight.blocks) {
    const auto* t = checkpoint.find(program.tensors[b.tensor].name);
    const dgpuDtype_t one = t ? t->dtype : dgpuDtype_t{DGPU_DTYPE_NONE};
    if (dtype != DGPU_DTYPE_NONE && dtype != one)
      dtype = weight.cls == graph::TensorClass::Integer ? DGPU_DTYPE_I64 : DGPU_DTYPE_F32;
    else
      dtype = one;
  }
  return dtype == DGPU_DTYPE_F64 ? dgpuDtype_t{DGPU_DTYPE_F32} : dtype;
}

std::vector<Run> weight_runs(const graph::Program& program, const Checkpoint& checkpoint, const graph::Weight& weight,
                             dgpuDtype_t dtype) {
  std::vector<Run> runs;
  const uint64_t width = dtype_bits(dtype) / 8;
  for (const auto& b : weight.blocks) {
    const auto* t = checkpoint.find(program.tensors[b.tensor].name);
    if (!t || t->dtype != dtype || !dense(b.shape, b.src_strides) || !dense(b.shape, b.dst_strides)) return {};
    runs.push_back({t, static_cast<uint64_t>(b.src_offset) * width, static_cast<uint64_t>(b.dst_offset) * width,
                    static_cast<uint64_t>(graph::element_count(b.shape)) * width});
  }
  return runs;
}

Status assemble(const graph::Program& program, const Checkpoint& checkpoint, const graph::Weight& weight,
                dgpuDtype_t dtype, void* dst) {
  for (const auto& b : weight.blocks) {
    const auto& name = program.tensors[b.tensor].name;
    const auto* t = checkpoint.find(name);
    if (!t) return fail(DGPU_STATUS_NOT_FOUND, name, "tensor '{}' is missing from the checkpoint", name);
    DGPU_TRY(BlockReader(checkpoint.file(*t), *t, static_cast<uint8_t*>(dst), dtype).read(b));
  }
  return DGPU_STATUS_SUCCESS;
}

}  // namespace dgpu::model
