#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/dtype.h"
#include "model/safetensors.h"

namespace dgpu::model {
namespace {

// A file that appears under its name when it is whole, and not before. What it replaces must be a regular file: a
// rename over a device or a pipe would remove it.
class Output {
 public:
  explicit Output(const std::string& path) : path_(path), target_(path) {}
  Output(const Output&) = delete;
  ~Output() {
    if (file_) std::fclose(file_);
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
  }

  Status open() {
    if (path_.empty()) return fail(DGPU_STATUS_INVALID_ARGUMENT, "file", "the name of the output is empty");
    struct stat st {};
    if (::stat(path_.c_str(), &st) == 0) {
      if (!S_ISREG(st.st_mode))
        return fail(DGPU_STATUS_ALREADY_EXISTS, path_, "{}: exists and is not a regular file; name another output",
                    path_);
      std::error_code ec;
      const auto real = std::filesystem::canonical(path_, ec);  // the file behind a symbolic link, not the link
      if (!ec) target_ = real.string();
    }
    int fd = -1;
    static std::atomic<uint32_t> serial{0};  // names differ between writers of one process and between processes
    std::string name;
    do {
      name = fmt::format("{}.{}.{}.tmp", target_, ::getpid(), serial.fetch_add(1, std::memory_order_relaxed));
      fd = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (fd < 0 && errno == EEXIST);
    if (fd < 0) return error();
    temporary_ = name;
    file_ = ::fdopen(fd, "wb");
    if (file_) return DGPU_STATUS_SUCCESS;
    const int reason = errno;
    ::close(fd);
    errno = reason;
    return error();
  }
  Status write(const void* data, size_t size) {
    if (size == 0) return DGPU_STATUS_SUCCESS;
    if (std::fwrite(data, 1, size, file_) != size) return error();
    written_ += size;
    return DGPU_STATUS_SUCCESS;
  }
  Status finish() {
    const int closed = std::fclose(std::exchange(file_, nullptr));
    if (closed != 0 || std::rename(temporary_.c_str(), target_.c_str()) != 0) return error();
    temporary_.clear();
    return DGPU_STATUS_SUCCESS;
  }
  uint64_t written() const { return written_; }

 private:
  Status error() const { return fail(DGPU_STATUS_IO_ERROR, path_, "{}: cannot write: {}", path_, strerror(errno)); }
  const std::string path_;  // as the caller says it
  std::string target_;
  std::string temporary_;  // empty: none is there
  std::FILE* file_ = nullptr;
  uint64_t written_ = 0;
};

uint64_t byte_size(const TensorSource& t) {
  uint64_t bits = dtype_bits(t.dtype);
  for (const auto d : t.shape) bits *= static_cast<uint64_t>(d);
  return bits / 8;
}

}  // namespace

Status check_output(const std::string& path) { return Output(path).open(); }

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
  Output out(path);
  DGPU_TRY(out.open());
  DGPU_TRY(out.write(&length, 8));
  DGPU_TRY(out.write(text.data(), text.size()));
  for (const auto& t : tensors) {
    const auto start = out.written();
    DGPU_TRY(t.produce([&](const void* data, size_t size) { return out.write(data, size); }));
    if (out.written() - start != byte_size(t))
      return fail(DGPU_STATUS_INTERNAL, t.name, "{}: {} bytes were produced, {} declared", t.name,
                  out.written() - start, byte_size(t));
  }
  return out.finish();
}

}  // namespace dgpu::model
