// A checkpoint directory as one set of tensors.
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/file.h"
#include "model/safetensors.h"

namespace dgpu::model {
namespace {
namespace fs = std::filesystem;
constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr uint64_t kMaxIndex = 256u << 20;

// The index's weight_map: tensor name -> shard file name.
Status read_index(const fs::path& path, std::map<std::string, std::string>& out) {
  const std::string name = path.string();
  std::string text;
  DGPU_TRY(read_file(name, kMaxIndex, text));
  const auto root = nlohmann::json::parse(text, nullptr, false);
  if (root.is_discarded()) return fail(DGPU_STATUS_PARSE_ERROR, name, "{}: not valid JSON", name);
  if (!root.is_object() || !root.contains("weight_map") || !root["weight_map"].is_object())
    return fail(DGPU_STATUS_PARSE_ERROR, name, "{}: 'weight_map' (an object of tensor name to file name) is missing",
                name);
  for (const auto& [tensor, file] : root["weight_map"].items()) {
    if (!file.is_string())
      return fail(DGPU_STATUS_PARSE_ERROR, name, "{}: weight_map['{}'] is not a file name", name, tensor);
    const auto shard = file.get<std::string>();
    if (shard.empty() || shard.find('/') != std::string::npos)
      return fail(DGPU_STATUS_PARSE_ERROR, name, "{}: weight_map['{}'] = '{}' must name a file of the same directory",
                  name, tensor, shard);
    out[tensor] = shard;
  }
  return DGPU_STATUS_SUCCESS;
}
}  // namespace

bool Checkpoint::exists(const std::string& directory) {
  std::error_code ec;
  return fs::exists(fs::path(directory) / kSingle, ec) || fs::exists(fs::path(directory) / kIndex, ec);
}

Status Checkpoint::open(const std::string& directory, Checkpoint& out) {
  const fs::path dir(directory);
  std::error_code ec;
  std::shared_ptr<SafetensorsFile> file;
  if (!fs::exists(dir / kIndex, ec)) {
    if (!fs::exists(dir / kSingle, ec))
      return fail(DGPU_STATUS_NOT_FOUND, directory, "{}: neither {} nor {} is there", directory, kSingle, kIndex);
    DGPU_TRY(SafetensorsFile::open((dir / kSingle).string(), file));
    return out.add(std::move(file));
  }
  std::map<std::string, std::string> map;
  DGPU_TRY(read_index(dir / kIndex, map));
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : map) shards.insert(shard);
  for (const auto& shard : shards) {
    DGPU_TRY(SafetensorsFile::open((dir / shard).string(), file));
    for (const auto& [name, info] : file->tensors()) {
      const auto it = map.find(name);
      if (it == map.end() || it->second != shard)
        return fail(DGPU_STATUS_PARSE_ERROR, shard, "{}: holds tensor '{}', which the index {}", shard, name,
                    it == map.end() ? "does not list" : "places in " + it->second);
    }
    DGPU_TRY(out.add(std::move(file)));
  }
  for (const auto& [tensor, shard] : map)
    if (!out.find(tensor))
      return fail(DGPU_STATUS_PARSE_ERROR, kIndex, "{}: tensor '{}' is not in {}", kIndex, tensor, shard);
  return DGPU_STATUS_SUCCESS;
}

Status Checkpoint::add(std::shared_ptr<SafetensorsFile> file) {
  const auto index = static_cast<uint32_t>(files_.size());
  for (auto [name, info] : file->tensors()) {
    info.file = index;
    if (!tensors_.emplace(name, std::move(info)).second)
      return fail(DGPU_STATUS_PARSE_ERROR, file->path(), "{}: tensor '{}' is in another shard, too", file->path(),
                  name);
  }
  files_.push_back(std::move(file));
  return DGPU_STATUS_SUCCESS;
}

const TensorInfo* Checkpoint::find(const std::string& name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

uint64_t Checkpoint::bytes() const {
  uint64_t total = 0;
  for (const auto& [name, info] : tensors_) total += info.bytes;
  return total;
}

}  // namespace dgpu::model
