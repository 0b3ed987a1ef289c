#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/dtype.h"
#include "model/safetensors.h"

namespace dgpu::model {
namespace {

class Output {
 public:
  explicit Output(std::string path) : path_(std::move(path)), file_(std::fopen(path_.c_str(), "wbe")) {}
  ~Output() {
    if (file_) std::fclose(file_);
    if (!done_) ::unlink(path_.c_str());
  }
  Status write(const void* data, size_t size) {
    if (size == 0) return DGPU_STATUS_SUCCESS;
    if (!file_ || std::fwrite(data, 1, size, file_) != size) return error();
    written_ += size;
    return DGPU_STATUS_SUCCESS;
  }
  Status finish(const std::string& final_path) {
    const int closed = file_ ? std::fclose(file_) : -1;
    file_ = nullptr;
    if (closed != 0 || std::rename(path_.c_str(), final_path.c_str()) != 0) return error();
    done_ = true;
    return DGPU_STATUS_SUCCESS;
  }
  uint64_t written() const { return written_; }

 private:
  Status error() const { return fail(DGPU_STATUS_IO_ERROR, path_, "{}: cannot write: {}", path_, strerror(errno)); }
  std::string path_;
  std::FILE* file_;
  uint64_t written_ = 0;
  bool done_ = false;
};

uint64_t byte_size(const TensorSource& t) {
  uint64_t bits = dtype_bits(t.dtype);
  for (const auto d : t.shape) bits *= static_cast<uint64_t>(d);
  return bits / 8;
}

}  // namespace

Status write_safetensors(const std::string& path, const std::vector<TensorSource>& tensors,
                         const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header;
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t at = 0;
  for (const auto& t : tensors) {
    const char* dtype = safetensors_dtype(t.dtype);
    if (!dtype)
      return fail(DGPU_STATUS_INVALID_DTYPE, t.name, "{}: the format has no type for {}", t.name, dtype_name(t.dtype));
    const auto bytes = byte_size(t);
    header[t.name] = {{"dtype", dtype}, {"shape", t.shape}, {"data_offsets", {at, at + bytes}}};
    at += bytes;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // data starts 8-byte aligned, as the published writer does
  const uint64_t length = text.size();
  Output out(path + ".tmp");
  DGPU_TRY(out.write(&length, 8));
  DGPU_TRY(out.write(text.data(), text.size()));
  for (const auto& t : tensors) {
    const auto start = out.written();
    DGPU_TRY(t.produce([&](const void* data, size_t size) { return out.write(data, size); }));
    if (out.written() - start != byte_size(t))
      return fail(DGPU_STATUS_INTERNAL, t.name, "{}: {} bytes were produced, {} declared", t.name,
                  out.written() - start, byte_size(t));
  }
  return out.finish(path);
}

}  // namespace dgpu::model
