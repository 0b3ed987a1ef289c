#include "base/struct.h"

#include <algorithm>

namespace dgpu {

Status struct_detail::read(const void* in, size_t least, size_t known, const char* name, void* out) {
  if (!in) return fail(DGPU_STATUS_INVALID_ARGUMENT, name, "the {} is null", name);
  size_t size = 0;
  std::memcpy(&size, in, sizeof(size));
  if (size < least) {
    return fail(DGPU_STATUS_INVALID_ARGUMENT, name,
                "struct_size of the {} is {}, at least {} is needed; fill it in with its _INIT macro", name, size,
                least);
  }
  const auto* bytes = static_cast<const unsigned char*>(in);
  for (size_t i = known; i < size; ++i) {
    if (bytes[i] == 0) continue;
    return fail(DGPU_STATUS_UNSUPPORTED_FIELD, name,
                "{} sets a field at byte {} that this version of the library ({}.{}) does not know; it knows {} bytes",
                name, i, DGPU_VERSION_MAJOR, DGPU_VERSION_MINOR, known);
  }
  const size_t copied = std::min(size, known);
  std::memcpy(out, in, copied);
  std::memset(static_cast<unsigned char*>(out) + copied, 0, known - copied);
  std::memcpy(out, &known, sizeof(known));
  return DGPU_STATUS_SUCCESS;
}

Status struct_detail::write(void* out, size_t known, const char* name, const void* value) {
  if (!out) return fail(DGPU_STATUS_INVALID_ARGUMENT, name, "the {} is null", name);
  size_t size = 0;
  std::memcpy(&size, out, sizeof(size));
  if (size < sizeof(size)) {
    return fail(DGPU_STATUS_INVALID_ARGUMENT, name, "struct_size of the {} is {}; fill it in with its _INIT macro",
                name, size);
  }
  const size_t copied = std::min(size, known);
  std::memcpy(static_cast<unsigned char*>(out) + sizeof(size), static_cast<const unsigned char*>(value) + sizeof(size),
              copied - sizeof(size));
  return DGPU_STATUS_SUCCESS;
}

Status write_text(std::string_view text, char* buffer, size_t size, size_t* needed) {
  if (needed) *needed = text.size() + 1;
  if (!buffer) {
    return needed ? DGPU_STATUS_SUCCESS
                  : fail(DGPU_STATUS_INVALID_ARGUMENT, "buffer", "buffer and out_needed are both null");
  }
  if (size <= text.size()) {
    if (size) buffer[0] = 0;
    return fail(DGPU_STATUS_BUFFER_TOO_SMALL, "buffer", "the buffer holds {} bytes, {} are needed", size,
                text.size() + 1);
  }
  std::memcpy(buffer, text.data(), text.size());
  buffer[text.size()] = 0;
  return DGPU_STATUS_SUCCESS;
}

void copy_text(char* dst, size_t size, std::string_view text) {
  size_t n = std::min(size - 1, text.size());
  if (n < text.size()) {
    while (n > 0 && (static_cast<unsigned char>(text[n]) & 0xC0) == 0x80) --n;
  }
  std::memcpy(dst, text.data(), n);
  dst[n] = 0;
}

}  // namespace dgpu
