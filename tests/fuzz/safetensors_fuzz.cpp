// The header parser on arbitrary bytes: whatever it accepts must describe tensors inside the file.
#include <cstdlib>

#include "model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dgpu::model;
  std::map<std::string, TensorInfo> tensors;
  std::map<std::string, std::string> metadata;
  // The first byte chooses how much data the file has after the header.
  const uint64_t start = 8 + size;
  const uint64_t file_size = start + (size ? data[0] * 8u : 0);
  if (SafetensorsFile::parse_header(reinterpret_cast<const char*>(data), size, start, file_size, "fuzz", tensors,
                                    metadata) != 0)
    return 0;
  for (const auto& [name, t] : tensors)
    if (t.offset < start || t.offset > file_size || t.bytes > file_size - t.offset) std::abort();
  return 0;
}
