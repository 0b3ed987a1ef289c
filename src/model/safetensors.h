// safetensors: reading with full validation, writing. Format: https://huggingface.co/docs/safetensors
// (8-byte little-endian header length, JSON header, data; offsets relative to the data, contiguous, no holes).
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"

namespace dgpu::model {

struct TensorInfo {
  dgpuDtype_t dtype = DGPU_DTYPE_NONE;  // NONE: a type of the format that the library does not compute with
  std::string dtype_name;               // as in the file, "BF16"
  std::vector<int64_t> shape;
  uint64_t offset = 0;  // bytes from the start of the file
  uint64_t bytes = 0;
  uint32_t file = 0;  // which shard of the checkpoint
  int64_t elements() const;
};

// One file: header in memory, data mapped on first use. Immutable after open; safe to share between threads.
class SafetensorsFile {
 public:
  static Status open(const std::string& path, std::shared_ptr<SafetensorsFile>& out);
  // Validates a header alone. `file_size` bounds the data; `path` is for messages. For tests and fuzzers.
  static Status parse_header(const char* json, size_t size, uint64_t data_start, uint64_t file_size,
                             const std::string& path, std::map<std::string, TensorInfo>& tensors,
                             std::map<std::string, std::string>& metadata);
  ~SafetensorsFile();  // where Mapping is known
  const std::string& path() const { return path_; }
  const std::map<std::string, TensorInfo>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  uint64_t size() const { return file_.size(); }
  // The whole file as memory that may be written: what is written stays in this process. Lives as long as the file
  // object. Touching it after the file was cut ends the process (SIGBUS): only for those who were told that it will not
  // be. Null with an error if it cannot be mapped.
  uint8_t* map();
  // Brings part of a tensor's mapping into memory, so that errors of the disk show here. Blocks.
  Status populate(const TensorInfo& tensor, uint64_t begin, uint64_t bytes);
  // Reads part of a tensor without mapping it. Blocks.
  Status read(const TensorInfo& tensor, uint64_t begin, uint64_t bytes, void* dst) const;

 private:
  std::string path_;
  std::map<std::string, TensorInfo> tensors_;
  std::map<std::string, std::string> metadata_;
  File file_;
  struct Mapping;
  std::unique_ptr<Mapping> mapping_;
};

// One tensor to be written: `produce` appends its bytes through the sink in pieces, so that nothing is held whole.
struct TensorSource {
  std::string name;
  dgpuDtype_t dtype;
  std::vector<int64_t> shape;
  std::function<Status(const std::function<Status(const void*, size_t)>&)> produce;
};
// Writes beside `path` and renames at the end: a broken run leaves no half file under the final name. ALREADY_EXISTS if
// something other than a regular file has that name.
Status write_safetensors(const std::string& path, const std::vector<TensorSource>& tensors,
                         const std::map<std::string, std::string>& metadata);
// Whether write_safetensors can write there: asked before long work whose result goes there.
Status check_output(const std::string& path);

const char* safetensors_dtype(dgpuDtype_t dtype);  // "BF16"; null if the format has no such type

// A checkpoint directory: model.safetensors, or the shards that model.safetensors.index.json lists.
class Checkpoint {
 public:
  static Status open(const std::string& directory, Checkpoint& out);
  static bool exists(const std::string& directory);
  const std::map<std::string, TensorInfo>& tensors() const { return tensors_; }
  const TensorInfo* find(const std::string& name) const;
  SafetensorsFile& file(const TensorInfo& tensor) const { return *files_[tensor.file]; }
  const std::vector<std::shared_ptr<SafetensorsFile>>& files() const { return files_; }
  uint64_t bytes() const;

 private:
  Status add(std::shared_ptr<SafetensorsFile> file);
  std::vector<std::shared_ptr<SafetensorsFile>> files_;
  std::map<std::string, TensorInfo> tensors_;
};

}  // namespace dgpu::model
