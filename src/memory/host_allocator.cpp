#include "memory/host_allocator.h"

#include <dlfcn.h>

#include <cstdlib>

namespace dgpu::memory {

namespace {
// The shared mimalloc exports malloc and free: linking it would replace the allocator of the whole process, which an
// embedded library must not do. Opened with local scope it serves us alone.
struct Allocator {
  void* (*allocate)(size_t size, size_t alignment) = nullptr;
  void (*release)(void*) = nullptr;
};

void* libc_allocate(size_t size, size_t alignment) {
  return std::aligned_alloc(alignment, (size + alignment - 1) & ~(alignment - 1));
}

Allocator choose() {
  Allocator chosen{libc_allocate, std::free};
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  // Never closed: mimalloc keeps thread-local state.
  if (void* library = dlopen("libmimalloc.so.2", RTLD_NOW | RTLD_LOCAL)) {
    auto allocate = reinterpret_cast<void* (*)(size_t, size_t)>(dlsym(library, "mi_malloc_aligned"));
    auto release = reinterpret_cast<void (*)(void*)>(dlsym(library, "mi_free"));
    if (allocate && release) chosen = {allocate, release};
  }
#endif
  return chosen;
}

const Allocator& allocator() {
  static const Allocator chosen = choose();
  return chosen;
}
}  // namespace

void* host_allocate(size_t size, size_t alignment) noexcept { return allocator().allocate(size, alignment); }
void host_release(void* pointer) noexcept { allocator().release(pointer); }

}  // namespace dgpu::memory
