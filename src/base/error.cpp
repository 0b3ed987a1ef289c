#include "base/error.h"

#include <algorithm>
#include <cstring>

namespace dgpu {

dgpuErrorInfo& last_error() {
  thread_local dgpuErrorInfo record = DGPU_ERROR_INFO_INIT;
  return record;
}

namespace {
template <size_t N>
void copy_text(char (&dst)[N], std::string_view text) {
  const size_t n = std::min(N - 1, text.size());
  std::memcpy(dst, text.data(), n);
  dst[n] = 0;
}
}  // namespace

Status fail_text(Status status, std::string_view object, std::string_view message) {
  auto& record = last_error();
  record = DGPU_ERROR_INFO_INIT;
  record.status = status;
  copy_text(record.message, message);
  copy_text(record.object, object);
  return status;
}

}  // namespace dgpu
