// A command in a stream's ring, and the ring of bytes that long argument lists live in. Both are allocated with the
// stream, so that submitting allocates nothing.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "dgpu/backend.h"
#include "dgpu/stream.h"
#include "runtime/timeline.h"
#include "runtime/worker.h"

namespace dgpu {

// Time stamps of one record of an event; written before the value settles.
struct Stamp {
  std::atomic<uint32_t> refs{1};
  uint64_t begin_ns = 0;
  uint64_t end_ns = 0;
  void ref() { refs.fetch_add(1, std::memory_order_relaxed); }
  void unref() {
    if (refs.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
  bool unique() const { return refs.load(std::memory_order_acquire) == 1; }
};

// A host task: runs on a thread of the runtime when all earlier commands have retired. `run` returns the outcome, with
// its text in the thread's error record; it does not run on a failed stream. `drop` (may be null) runs exactly once,
// after `run` or instead of it.
struct HostTask {
  Status (*run)(void* data);
  void (*drop)(void* data);
  void* data;
};

enum class SlotKind : uint8_t { backend, wait, signal, callback, task };

struct WaitPoint {
  Timeline* timeline;  // the slot's `keep` holds the reference
  uint64_t value;
};

struct alignas(64) Slot {
  // The command of the backend; `value` and `kind` are set for all kinds of slots.
  dgpuBackendCommand command;
  union {
    dgpuCommandCopy copy;
    dgpuCommandFill fill;
    dgpuCommandKernel kernel;
    dgpuCommandOp op_command;
    WaitPoint wait;  // also signal
    struct {
      dgpuHostCallback function;
      void* user;
    } callback;
    HostTask task;
  };
  // From here on a line that no backend looks at.
  alignas(64) SlotKind kind;
  bool skipped;          // retires without having run
  bool done;             // not of the backend: has run; atomic, see is_done and set_done
  Status result;         // with done: SUCCESS or the failure
  ErrorRecord* error;    // with a failed result
  Object* keep;          // reference dropped when the slot is taken back; atomic, see take_keep
  Stamp* stamp;          // likewise
  const char* function;  // API function that submitted it; static storage
  const char* op;        // operator or kernel, "" if none; lives as long as `keep`
  uint64_t arena_end;    // position in the arena when everything up to here has retired
  Work work;             // of callbacks and tasks
  void* stream;          // for work

  // Takes the reference out, by the pump or by the submitter of the next command. A command that needs the same object
  // as the one before takes over its reference: it retires later, and a counter is spared.
  Object* take_keep() {
    std::atomic_ref<Object*> shared(keep);
    return shared.load(std::memory_order_relaxed) ? shared.exchange(nullptr, std::memory_order_acq_rel) : nullptr;
  }
  bool take_keep_of(Object* object) {
    std::atomic_ref<Object*> shared(keep);
    return shared.load(std::memory_order_relaxed) == object &&
           shared.compare_exchange_strong(object, nullptr, std::memory_order_acq_rel);
  }
  bool is_done() { return std::atomic_ref<bool>(done).load(std::memory_order_acquire); }
  void set_done() { std::atomic_ref<bool>(done).store(true, std::memory_order_release); }
};
// Rings of slots come zeroed from the system and are never constructed.
static_assert(std::is_trivially_default_constructible_v<Slot> && std::is_trivially_destructible_v<Slot>);

// Zeroed pages that cost nothing until they are touched. Throws std::bad_alloc.
void* map_pages(size_t bytes);
void unmap_pages(void* pages, size_t bytes);

// Bytes handed out and taken back in order. One side allocates, the other frees.
class ArgumentArena {
 public:
  explicit ArgumentArena(size_t bytes);
  ~ArgumentArena();
  ArgumentArena(const ArgumentArena&) = delete;
  ArgumentArena& operator=(const ArgumentArena&) = delete;

  size_t capacity() const { return capacity_; }
  // Aligned to 16; null if there is no room now. `head` is the position to go back to.
  void* allocate(size_t bytes);
  uint64_t head() const { return head_; }
  void rewind(uint64_t head) {
    const uint64_t tail = tail_.load(std::memory_order_acquire);
    head_ = head < tail ? tail : head;  // allocate may have skipped to the beginning of the ring
  }
  // Everything up to the position is free again. Any thread, one at a time.
  void release(uint64_t position) { tail_.store(position, std::memory_order_release); }
  void abandon() { base_ = nullptr; }  // leaves the bytes to a backend that may still read them

 private:
  std::byte* base_;
  const size_t capacity_;  // power of two
  uint64_t head_ = 0;      // grows for ever; the place is head modulo capacity
  std::atomic<uint64_t> tail_{0};
};

}  // namespace dgpu
