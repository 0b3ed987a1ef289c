// Temporary memory of one chunk: bump allocation from blocks that the thread keeps.
#pragma once
#include <cstddef>
#include <cstdint>

namespace dgpu::cpu {

// At most one is alive per thread. What take() returns is 64-byte aligned, uninitialised, valid until destruction.
class Scratch {
 public:
  Scratch();
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  template <class T>
  T* take(int64_t count) {
    return static_cast<T*>(bytes(static_cast<size_t>(count < 0 ? 0 : count) * sizeof(T)));
  }

 private:
  void* bytes(size_t size);
};

}  // namespace dgpu::cpu
