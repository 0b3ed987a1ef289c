// Host memory that somebody else made, a mapped file for one, as device addresses of a context.
#pragma once
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "dgpu/types.h"
#include "runtime/address_table.h"
#include "runtime/context.h"

namespace dgpu::memory {

// Tells every device of the context that wants to know about pages on the host, and that they go.
void register_host(Context& context, Segment& segment);
void unregister_host(Context& context, Segment& segment) noexcept;

// One range: a segment of its own, kept until the work that may use it has retired.
struct Import {
  Segment segment;
  std::shared_ptr<const void> owner;   // keeps the memory; null: not in use
  dgpuAddr_t address = 0;              // 0: freed
  std::vector<Context::Point> points;  // to wait for once it is freed
};

class Imports {
 public:
  Imports(Context& context, AddressTable& addresses) : context_(context), addresses_(addresses) {}
  ~Imports();
  Imports(const Imports&) = delete;
  Imports& operator=(const Imports&) = delete;

  Status import(void* pointer, uint64_t size, std::shared_ptr<const void> owner, dgpuAddr_t& out);
  // The address has been retired; `import` is its Location::allocation.
  void free(Import* import, std::vector<Context::Point> points);
  void settle() noexcept;  // lets go what has retired

 private:
  void release(Import& import) noexcept;
  Context& context_;  // owns this
  AddressTable& addresses_;
  std::mutex mutex_;
  std::deque<Import> store_;  // descriptors stay readable as long as the context lives; reused
};

}  // namespace dgpu::memory
