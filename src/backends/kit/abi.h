// The struct_size rule of the ABI, for backends.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstring>

namespace dgpu::kit {

// Writes an output struct up to the struct_size that the caller filled in, and not beyond.
template <typename T>
void write_struct(T* out, T value) {
  value.struct_size = out->struct_size;
  std::memcpy(static_cast<void*>(out), &value, std::min(out->struct_size, sizeof(T)));
}

// Reads an input struct: what the caller does not know is zero.
template <typename T>
T read_struct(const T* in) {
  T value{};
  std::memcpy(static_cast<void*>(&value), in, std::min(in->struct_size, sizeof(T)));
  return value;
}

// Copies a text into a fixed array, cut if too long, always terminated.
template <size_t N>
void copy_text(char (&to)[N], const char* from) {
  const size_t length = std::min(std::strlen(from), N - 1);
  std::memcpy(to, from, length);
  to[length] = 0;
}

}  // namespace dgpu::kit
