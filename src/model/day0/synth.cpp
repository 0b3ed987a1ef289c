// Random weights with which activations stay of order one, for a dry run before the real ones are public.
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "base/dtype.h"
#include "model/day0/documents.h"

namespace dgpu::model {
namespace {
namespace fs = std::filesystem;

constexpr uint64_t kShardBytes = 5ull << 30;

// splitmix64 (Steele, Lea, Flood 2014): one stream per tensor, so that a tensor's values depend on seed and name alone.
struct Random {
  uint64_t state;
  uint64_t next() {
    uint64_t z = (state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  // Sum of four 16-bit uniforms: mean 0, variance 1, tails cut at 3.5.
  float normal() {
    const uint64_t r = next();
    const auto sum = static_cast<float>((r & 0xffff) + ((r >> 16) & 0xffff) + ((r >> 32) & 0xffff) + (r >> 48));
    return (sum / 65536.0f - 2.0f + 2.0f / 65536.0f) * 1.7320508f;
  }
};

uint64_t fnv1a(const std::string& text) {
  uint64_t h = 0xcbf29ce484222325ull;
  for (const unsigned char c : text) h = (h ^ c) * 0x100000001b3ull;
  return h;
}

struct Law {
  float mean = 0, deviation = 1;
  int64_t below = 1;  // integers: uniform in [0, below)
};

// What a tensor is used for decides its law: see each case.
class Laws {
 public:
  explicit Laws(const graph::Program& p) : p_(p), laws_(p.tensors.size()), set_(p.tensors.size(), false) {
    for (const auto& node : p.nodes)
      for (const auto& b : node.inputs) use(node, b);
    for (size_t i = 0; i < laws_.size(); ++i)
      if (!set_[i]) laws_[i] = {0, 1 / std::sqrt(static_cast<float>(fan_in(p.tensors[i]))), experts()};
  }
  const Law& of(size_t tensor) const { return laws_[tensor]; }

 private:
  static int64_t fan_in(const graph::Tensor& t) { return t.shape.empty() ? 1 : std::max<int64_t>(1, t.shape.back()); }

  void use(const graph::Node& node, const graph::Binding& b) {
    const auto& root = p_.values[p_.root(b.value)];
    if (root.origin != graph::Origin::Weight) return;
    const auto& weight = p_.weights[root.index];
    Law law;
    const bool norm = node.op == "rms_norm" || node.op == "layer_norm";
    if (norm && b.port == "weight") {
      law = {1 - static_cast<float>(attr(node, "weight_offset")), 0.1f};
    } else if (b.port.find("bias") != std::string::npos || b.port == "sinks") {
      law = {0, 0.02f};
    } else if (node.op == "embedding") {
      law = {0, 1};
    } else {
      // A product of K terms keeps the variance with 1/sqrt(K); what is added to the residual stream 2 * layers times
      // is made smaller, so that the sum keeps it, too.
      const int64_t k = contraction(node, b.port, weight);
      law.deviation = 1 / std::sqrt(static_cast<float>(std::max<int64_t>(1, k)));
      if (weight.tp == "row") law.deviation /= std::sqrt(2.0f * static_cast<float>(std::max<int64_t>(1, p_.layers)));
    }
    law.below = experts();
    for (const auto& block : weight.blocks) {
      if (set_[block.tensor] && node.op != "embedding") continue;
      laws_[block.tensor] = law;
      set_[block.tensor] = true;
    }
  }

  static double attr(const graph::Node& node, const char* name) {
    const auto it = node.attrs.find(name);
    if (it == node.attrs.end()) return 0;
    if (const auto* d = std::get_if<double>(&it->second)) return *d;
    if (const auto* i = std::get_if<int64_t>(&it->second)) return static_cast<double>(*i);
    return 0;
  }

  static int64_t contraction(const graph::Node& node, const std::string& port, const graph::Weight& weight) {
    if (weight.shape.empty()) return 1;
    const auto it = node.attrs.find("transpose_b");
    const bool kn = node.op == "matmul" && port == "b" && (it == node.attrs.end() || !std::get<bool>(it->second));
    if (kn && weight.shape.size() >= 2) return weight.shape[weight.shape.size() - 2];
    return weight.shape.back();
  }

  int64_t experts() const {
    for (const auto& node : p_.nodes) {
      const auto port = node.op == "moe_route" ? "logits" : "";
      const auto id = *port ? node.input(port) : graph::kNone;
      if (id != graph::kNone) return std::max<int64_t>(1, p_.values[id].shape.back().value);
    }
    return 1;
  }

  const graph::Program& p_;
  std::vector<Law> laws_;
  std::vector<bool> set_;
};

template <typename Convert>
Status emit(const std::function<Status(const void*, size_t)>& sink, int64_t count, size_t width, Convert&& convert) {
  std::vector<uint8_t> piece(size_t{1} << 20);
  const auto per_piece = static_cast<int64_t>(piece.size() / width);
  for (int64_t done = 0; done < count;) {
    const int64_t n = std::min(per_piece, count - done);
    for (int64_t i = 0; i < n; ++i) convert(piece.data() + i * width);
    DGPU_TRY(sink(piece.data(), static_cast<size_t>(n) * width));
    done += n;
  }
  return DGPU_STATUS_SUCCESS;
}

Status produce(const graph::Tensor& tensor, dgpuDtype_t dtype, const Law& law, uint64_t seed,
               const std::function<Status(const void*, size_t)>& sink) {
  Random random{seed * 0x9e3779b97f4a7c15ull ^ fnv1a(tensor.name)};
  const int64_t count = graph::element_count(tensor.shape);
  const auto value = [&] { return law.mean + law.deviation * random.normal(); };
  switch (dtype) {
    case DGPU_DTYPE_I64:
      return emit(sink, count, 8, [&](uint8_t* p) {
        const auto v = static_cast<int64_t>(random.next() % static_cast<uint64_t>(law.below));
        std::memcpy(p, &v, 8);
      });
    case DGPU_DTYPE_F32:
      return emit(sink, count, 4, [&](uint8_t* p) {
        const float v = value();
        std::memcpy(p, &v, 4);
      });
    case DGPU_DTYPE_F16:
      return emit(sink, count, 2, [&](uint8_t* p) {
        const uint16_t v = f32_to_f16(value());
        std::memcpy(p, &v, 2);
      });
    default:
      return emit(sink, count, 2, [&](uint8_t* p) {
        const uint16_t v = f32_to_bf16(value());
        std::memcpy(p, &v, 2);
      });
  }
}

Status copy_config(const std::string& from, const fs::path& to) {
  std::error_code ec;
  fs::copy_file(from, to, fs::copy_options::overwrite_existing, ec);
  if (ec) return fail(DGPU_STATUS_IO_ERROR, to.string(), "cannot copy {} to {}: {}", from, to.string(), ec.message());
  return DGPU_STATUS_SUCCESS;
}

Status write_index(const fs::path& path, const std::map<std::string, std::string>& where, uint64_t bytes) {
  std::ofstream out(path);
  out << JsonDoc{{"metadata", {{"total_size", bytes}}}, {"weight_map", where}}.dump(1) << '\n';
  if (!out.flush()) return fail(DGPU_STATUS_IO_ERROR, path.string(), "{}: cannot write", path.string());
  return DGPU_STATUS_SUCCESS;
}

// Takes back what was written, unless the work was finished: a directory that is not whole has no use, and stands in
// the way of the next try.
class Draft {
 public:
  explicit Draft(fs::path directory) : directory_(std::move(directory)) {}
  Draft(const Draft&) = delete;
  ~Draft() {
    std::error_code ec;
    for (const auto& file : files_) fs::remove(file, ec);
    if (created_) fs::remove(directory_, ec);
  }
  Status open() {
    std::error_code ec;
    const auto name = directory_.string();
    if (name.empty()) return fail(DGPU_STATUS_INVALID_ARGUMENT, "out_directory", "the name of the output is empty");
    if (fs::exists(directory_, ec) && !fs::is_directory(directory_, ec))
      return fail(DGPU_STATUS_ALREADY_EXISTS, name, "{}: exists and is not a directory; name a new one", name);
    if (fs::exists(directory_, ec) && !fs::is_empty(directory_, ec))
      return fail(DGPU_STATUS_ALREADY_EXISTS, name, "{}: exists and is not empty; name a new directory", name);
    created_ = fs::create_directories(directory_, ec);
    if (ec) return fail(DGPU_STATUS_IO_ERROR, name, "{}: cannot create: {}", name, ec.message());
    return DGPU_STATUS_SUCCESS;
  }
  fs::path file(const std::string& name) { return files_.emplace_back(directory_ / name); }
  void keep() {
    files_.clear();
    created_ = false;
  }

 private:
  const fs::path directory_;
  std::vector<fs::path> files_;
  bool created_ = false;
};

}  // namespace

Status synthesize(const graph::Program& program, const std::string& config_file, const std::string& directory,
                  uint64_t seed, const Progress& progress, Document& out) {
  Draft draft(directory);
  DGPU_TRY(draft.open());
  const Laws laws(program);
  const dgpuDtype_t plain = program.checkpoint_dtype ? program.checkpoint_dtype : dgpuDtype_t{DGPU_DTYPE_BF16};
  std::vector<std::vector<TensorSource>> shards(1);
  uint64_t total = 0, shard_bytes = 0, done = 0;
  for (size_t i = 0; i < program.tensors.size(); ++i) {
    const auto& t = program.tensors[i];
    dgpuDtype_t dtype = t.kept ? t.kept : plain;
    if (t.cls == graph::TensorClass::Integer) dtype = DGPU_DTYPE_I64;
    const uint64_t bytes = static_cast<uint64_t>(graph::element_count(t.shape)) * dtype_bits(dtype) / 8;
    if (shard_bytes && shard_bytes + bytes > kShardBytes) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    shard_bytes += bytes;
    total += bytes;
    shards.back().push_back({t.name, dtype, t.shape, [&, i, dtype](const auto& sink) {
                               return produce(program.tensors[i], dtype, laws.of(i), seed,
                                              [&](const void* p, size_t n) -> Status {
                                                done += n;
                                                if (progress && !progress(done, total, program.tensors[i].name))
                                                  return fail(DGPU_STATUS_CANCELLED, directory, "cancelled");
                                                return sink(p, n);
                                              });
                             }});
  }
  std::map<std::string, std::string> where;
  for (size_t s = 0; s < shards.size(); ++s) {
    const std::string name = shards.size() == 1 ? "model.safetensors"
                                                : fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, shards.size());
    for (const auto& t : shards[s]) where[t.name] = name;
    DGPU_TRY(write_safetensors(draft.file(name).string(), shards[s], {{"format", "pt"}}));
  }
  if (shards.size() > 1) DGPU_TRY(write_index(draft.file("model.safetensors.index.json"), where, total));
  DGPU_TRY(copy_config(config_file, draft.file("config.json")));
  draft.keep();
  out.json = new_document("synth");
  out.json["family"] = program.family;
  out.json["directory"] = directory;
  out.json["seed"] = seed;
  out.json["tensors"] = program.tensors.size();
  out.json["bytes"] = total;
  finish(out);
  return DGPU_STATUS_SUCCESS;
}

}  // namespace dgpu::model
