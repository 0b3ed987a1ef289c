// Handles: what dgpuStream_t and the like really are. One 64-bit value, never an address:
//   63..56  0x80 | kind      no user-space address has such a top byte; 0 as a whole is null
//   55..50  fork epoch       of the process that made it, modulo 64
//   49..32  generation       of the slot
//   31..0   slot
// A slot carries one atomic word {kind, epoch, generation | live | pins}, so that checking a handle and keeping its
// object alive during a call is one compare-and-swap. Retiring a handle clears `live`; whoever brings the word to
// "not live, no pins" drops the slot's reference to the object and gives the slot a new generation.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/object.h"

namespace dgpu {

class HandleScope;

namespace handle_detail {

struct Slot {
  std::atomic<uint64_t> word{0};  // upper half: that of the valid handle; bit 31: live; below: pins
  Object* object = nullptr;       // one reference while live or pinned
  HandleScope* scope = nullptr;   // list of the scope, under the table's mutex
  Slot* scope_next = nullptr;
  Slot* scope_prev = nullptr;
  uint32_t index = 0;
  uint32_t next_free = 0;
};

constexpr uint64_t kLive = uint64_t{1} << 31;
constexpr uint64_t kPins = kLive - 1;
constexpr unsigned kGenerationBits = 18;
constexpr unsigned kEpochBits = 6;
constexpr unsigned kFirstChunkBits = 10;  // chunk k holds 1024 << k slots
constexpr unsigned kChunks = 33 - kFirstChunkBits;

extern std::atomic<uint32_t> fork_epoch;  // modulo 64; bumped in a forked child
extern std::atomic<Slot*> chunks[kChunks];

inline Slot* slot_at(uint32_t index) {
  const uint64_t biased = uint64_t{index} + (1u << kFirstChunkBits);
  const unsigned top = 63 - static_cast<unsigned>(__builtin_clzll(biased));
  Slot* chunk = chunks[top - kFirstChunkBits].load(std::memory_order_acquire);
  return chunk ? chunk + (biased - (uint64_t{1} << top)) : nullptr;
}

// The pinned slot, or null if the handle is not valid now.
inline Slot* pin_slot(uint64_t handle, Kind kind) {
  const uint32_t upper = static_cast<uint32_t>(handle >> 32);
  if ((upper >> 24) != (0x80u | static_cast<uint32_t>(kind))) return nullptr;
  if (((upper >> kGenerationBits) & 63u) != fork_epoch.load(std::memory_order_relaxed)) return nullptr;
  Slot* slot = slot_at(static_cast<uint32_t>(handle));
  if (!slot) return nullptr;
  const uint64_t wanted = (uint64_t{upper} << 1) | 1;
  uint64_t word = slot->word.load(std::memory_order_relaxed);
  do {
    if ((word >> 31) != wanted) return nullptr;
  } while (!slot->word.compare_exchange_weak(word, word + 1, std::memory_order_acquire, std::memory_order_relaxed));
  return slot;
}

void finish_slot(Slot* slot);  // last pin of a retired handle went

inline void unpin_slot(Slot* slot) {
  const uint64_t before = slot->word.fetch_sub(1, std::memory_order_acq_rel);
  if (!(before & kLive) && (before & kPins) == 1) finish_slot(slot);
}

// Fails with the text that fits: null, wrong kind, destroyed, foreign, of the parent process, library not initialised.
Status explain(uint64_t handle, Kind wanted, const char* argument);

}  // namespace handle_detail

// Keeps the object of a checked handle alive for the length of a call.
template <typename T>
class Pinned {
 public:
  Pinned() = default;
  explicit Pinned(handle_detail::Slot* slot) : slot_(slot) {}
  Pinned(Pinned&& other) noexcept : slot_(std::exchange(other.slot_, nullptr)) {}
  Pinned& operator=(Pinned&& other) noexcept {
    std::swap(slot_, other.slot_);
    return *this;
  }
  ~Pinned() {
    if (slot_) handle_detail::unpin_slot(slot_);
  }
  explicit operator bool() const { return slot_ != nullptr; }
  T* get() const { return slot_ ? static_cast<T*>(slot_->object) : nullptr; }
  T* operator->() const { return static_cast<T*>(slot_->object); }
  T& operator*() const { return *static_cast<T*>(slot_->object); }
  // A reference that outlives the call.
  Ref<T> ref() const { return Ref<T>::retain(get()); }

 private:
  handle_detail::Slot* slot_ = nullptr;
};

// Checks and pins. T::kKind names the kind. `argument` is the parameter's name, for the error text.
template <typename T>
Status pin(uint64_t handle, const char* argument, Pinned<T>& out) {
  handle_detail::Slot* slot = handle_detail::pin_slot(handle, T::kKind);
  if (!slot) [[unlikely]]
    return handle_detail::explain(handle, T::kKind, argument);
  out = Pinned<T>(slot);
  return DGPU_STATUS_SUCCESS;
}
// The same for the C handle types.
template <typename T, typename H>
requires std::is_pointer_v<H> Status pin(H handle, const char* argument, Pinned<T>& out) {
  return pin<T>(static_cast<uint64_t>(reinterpret_cast<uintptr_t>(handle)), argument, out);
}

// Gives the object a handle. With a scope, invalidating the scope retires it; a scope that is already invalid answers
// INVALID_HANDLE. An object may have several handles; object->handle() is the first one.
Status handle_publish(Ref<Object> object, uint64_t* out_handle, HandleScope* scope = nullptr);
template <typename T, typename H>
Status handle_publish(Ref<T> object, H* out_handle, HandleScope* scope = nullptr) {
  uint64_t value = 0;
  const Status status = handle_publish(Ref<Object>(std::move(object)), &value, scope);
  *out_handle = reinterpret_cast<H>(static_cast<uintptr_t>(value));
  return status;
}

// Destroy: the handle is invalid when this returns; Object::invalidated() has run, once per handle. Never blocks.
Status retire(uint64_t handle, Kind kind, const char* argument);
template <typename T, typename H>
Status retire(H handle, const char* argument) {
  return retire(static_cast<uint64_t>(reinterpret_cast<uintptr_t>(handle)), T::kKind, argument);
}

// A set of handles that are invalidated together: a context's descendants, a backend's devices. Reference-counted by
// its slots, so it may go before or after its owner.
class HandleScope {
 public:
  static Ref<HandleScope> create() { return Ref<HandleScope>::adopt(new HandleScope); }
  // Retires every handle in it; from then on publishing into it fails. Idempotent.
  void invalidate();
  bool invalid() const { return invalid_.load(std::memory_order_acquire); }
  // Puts a published handle into this scope (moves it from another). For objects that join a context later.
  Status adopt(uint64_t handle);

  void ref() { refs_.fetch_add(1, std::memory_order_relaxed); }
  void unref() {
    if (refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

 private:
  friend struct HandleTable;
  std::atomic<uint32_t> refs_{1};
  std::atomic<bool> invalid_{false};
  handle_detail::Slot* first_ = nullptr;
};

// For the library object: retires all handles of this process, waits until no pin is left, says how many live.
void handles_retire_all();
void handles_wait_unpinned();
uint64_t handles_live();
// In a forked child, before anything else; takes no lock.
void handles_after_fork();

const char* kind_name(Kind kind);

}  // namespace dgpu

// DGPU_PIN(Stream, s, stream): a Pinned<Stream> s from the parameter `stream`, or returns the error.
#define DGPU_PIN(Type, variable, argument) \
  ::dgpu::Pinned<Type> variable;           \
  DGPU_TRY(::dgpu::pin<Type>(argument, #argument, variable))
