// Bulk memory operations of copy and fill commands.
#pragma once
#include <cstdint>

namespace dgpu::cpu {

void plain_copy(char* dst, const char* src, uint64_t size);
// Writes around the caches: for data much larger than they are.
void stream_copy(char* dst, const char* src, uint64_t size);
// size is a multiple of pattern_size; the low pattern_size bytes of the pattern repeat. pattern_size is 1 to 8.
void fill_pattern(char* dst, uint64_t pattern, uint32_t pattern_size, uint64_t size);

}  // namespace dgpu::cpu
