// The struct_size rule of the ABI. A struct that comes in is read up to min(struct_size, known); what it does not have
// is zero, and a longer one must be zero in the part that this version does not know. A struct that goes out is written
// up to its struct_size and not beyond.
#pragma once
#include <cstddef>
#include <cstring>

#include "base/error.h"

namespace dgpu {

namespace struct_detail {
// Type-erased, so that each struct costs no code of its own.
Status read(const void* in, size_t least, size_t known, const char* name, void* out);
Status write(void* out, size_t known, const char* name, const void* value);
}  // namespace struct_detail

// Copies the caller's struct. `least` is the end of the fields that the first published version had to have.
template <typename T>
Status read_struct(const T* in, const char* name, T& out, size_t least = sizeof(size_t)) {
  return struct_detail::read(in, least, sizeof(T), name, &out);
}
// The same for options that may be null: `out` keeps the defaults that it holds.
template <typename T>
Status read_optional(const T* in, const char* name, T& out, size_t least = sizeof(size_t)) {
  return in ? read_struct(in, name, out, least) : DGPU_STATUS_SUCCESS;
}
// Copies a result into the caller's struct and keeps its struct_size.
template <typename T>
Status write_struct(T* out, const char* name, const T& value) {
  return struct_detail::write(out, sizeof(T), name, &value);
}
// Zeroes an output, for failures; does nothing if it is null or has no size.
template <typename T>
void zero_struct(T* out) {
  const T zero{};
  if (out && out->struct_size >= sizeof(size_t)) struct_detail::write(out, sizeof(T), "", &zero);
}

// Null check of a plain output or input parameter.
inline Status need(const void* pointer, const char* argument) {
  if (pointer) [[likely]]
    return DGPU_STATUS_SUCCESS;
  return fail(DGPU_STATUS_INVALID_ARGUMENT, argument, "{} is null", argument);
}

// Two-call rule for texts: *needed receives the size with the final NUL; a null buffer only asks; a buffer that is too
// small is left empty.
Status write_text(std::string_view text, char* buffer, size_t size, size_t* needed);

// Copies with a final NUL, cut at a UTF-8 character if too long.
void copy_text(char* dst, size_t size, std::string_view text);
template <size_t N>
void copy_text(char (&dst)[N], std::string_view text) {
  copy_text(dst, N, text);
}

}  // namespace dgpu
