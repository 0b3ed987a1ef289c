// Files from outside: checkpoints, configs, manifests, plugins.
#pragma once
#include <cstdint>
#include <string>
#include <utility>

#include "base/error.h"

namespace dgpu {

// A regular file that is open for reading; closed with the object.
class File {
 public:
  File() = default;
  ~File();
  File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)), size_(other.size_) {}
  File& operator=(File&& other) noexcept;

  // NOT_FOUND, IO_ERROR (the reason of the system) or PARSE_ERROR (not a regular file), with the path in the text.
  // Never waits for a file, as opening a pipe would.
  Status open(const std::string& path);
  int fd() const { return fd_; }
  uint64_t size() const { return size_; }  // bytes, when it was opened

  // All of it: IO_ERROR if the file has become shorter.
  Status read(void* out, uint64_t size, uint64_t offset, const std::string& path) const;

 private:
  int fd_ = -1;
  uint64_t size_ = 0;
};

// The whole file; PARSE_ERROR if it has more than `max_bytes`, else as File::open.
Status read_file(const std::string& path, uint64_t max_bytes, std::string& out);

}  // namespace dgpu
