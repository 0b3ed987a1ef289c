#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace dgpu {

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

File& File::operator=(File&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(size_, other.size_);
  return *this;
}

Status File::open(const std::string& path) {
  const auto failed = [&](const char* what) {
    const int error = errno;
    return fail(error == ENOENT || error == ENOTDIR ? DGPU_STATUS_NOT_FOUND : DGPU_STATUS_IO_ERROR, path, "{}: {}: {}",
                path, what, std::strerror(error));
  };
  File file;
  file.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file.fd_ < 0) return failed("cannot open");
  struct stat info {};
  if (::fstat(file.fd_, &info) != 0) return failed("cannot stat");
  if (!S_ISREG(info.st_mode)) return fail(DGPU_STATUS_PARSE_ERROR, path, "{}: not a regular file", path);
  file.size_ = static_cast<uint64_t>(info.st_size);
  *this = std::move(file);
  return DGPU_STATUS_SUCCESS;
}

Status File::read(void* out, uint64_t size, uint64_t offset, const std::string& path) const {
  auto* const bytes = static_cast<char*>(out);
  for (uint64_t done = 0; done < size;) {
    const auto n = ::pread(fd_, bytes + done, size - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail(DGPU_STATUS_IO_ERROR, path, "{}: cannot read: {}", path, std::strerror(errno));
    if (n == 0) return fail(DGPU_STATUS_IO_ERROR, path, "{}: the file became shorter while it was read", path);
    done += static_cast<uint64_t>(n);
  }
  return DGPU_STATUS_SUCCESS;
}

Status read_file(const std::string& path, uint64_t max_bytes, std::string& out) {
  File file;
  DGPU_TRY(file.open(path));
  if (file.size() > max_bytes)
    return fail(DGPU_STATUS_PARSE_ERROR, path, "{}: {} bytes, expected at most {}", path, file.size(), max_bytes);
  out.resize(file.size());
  return file.read(out.data(), out.size(), 0, path);
}

}  // namespace dgpu
