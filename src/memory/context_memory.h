// The memory room's part of a context.
#pragma once
#include <memory>
#include <vector>

#include "memory/import.h"
#include "memory/pool.h"

namespace dgpu::memory {

class Memory final : public ContextMemory {
 public:
  explicit Memory(Context& context);
  void stream_gone() noexcept override;
  // Segment::kHost: pinned host memory.
  Pool& pool(uint32_t device) { return device == Segment::kHost ? *host_ : *devices_[device]; }
  Imports& imports() { return *imports_; }

 private:
  std::vector<std::unique_ptr<Pool>> devices_;
  std::unique_ptr<Pool> host_;
  std::unique_ptr<Imports> imports_;
};

inline Memory& of(Context& context) { return static_cast<Memory&>(*context.memory()); }

}  // namespace dgpu::memory
