#include "backends/cpu/copy.h"

#include <cstring>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace dgpu::cpu {

void plain_copy(char* dst, const char* src, uint64_t size) { std::memcpy(dst, src, size); }

void stream_copy(char* dst, const char* src, uint64_t size) {
#if defined(__SSE2__)
  const uint64_t head = (64 - reinterpret_cast<uintptr_t>(dst) % 64) % 64;
  if (size >= head + 64) {
    std::memcpy(dst, src, head);
    dst += head;
    src += head;
    size -= head;
    const uint64_t lines = size / 64;
    for (uint64_t i = 0; i < lines; ++i, dst += 64, src += 64) {
      const auto* from = reinterpret_cast<const __m128i*>(src);
      auto* to = reinterpret_cast<__m128i*>(dst);
      const __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
      const __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
      _mm_stream_si128(to, a);
      _mm_stream_si128(to + 1, b);
      _mm_stream_si128(to + 2, c);
      _mm_stream_si128(to + 3, d);
    }
    _mm_sfence();
    size -= lines * 64;
  }
#endif
  std::memcpy(dst, src, size);
}

void fill_pattern(char* dst, uint64_t pattern, uint32_t pattern_size, uint64_t size) {
  if (pattern_size == 1) {
    std::memset(dst, static_cast<int>(pattern & 0xff), size);
    return;
  }
  // Doubles the filled part up to a block that stays in the first cache, then repeats the block.
  constexpr uint64_t kBlock = 4096;
  uint64_t filled = size < pattern_size ? size : pattern_size;
  std::memcpy(dst, &pattern, filled);
  while (filled < size && filled < kBlock) {
    const uint64_t n = filled < size - filled ? filled : size - filled;
    std::memcpy(dst + filled, dst, n);
    filled += n;
  }
  const uint64_t block = filled;
  while (filled < size) {
    const uint64_t n = block < size - filled ? block : size - filled;
    std::memcpy(dst + filled, dst, n);
    filled += n;
  }
}

}  // namespace dgpu::cpu
