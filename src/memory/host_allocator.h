// Host pages for pinned memory, from mimalloc where it is installed, else from the C library.
#pragma once
#include <cstddef>

namespace dgpu::memory {

// Null if none is left. `alignment` is a power of two.
void* host_allocate(size_t size, size_t alignment) noexcept;
void host_release(void* pointer) noexcept;

}  // namespace dgpu::memory
