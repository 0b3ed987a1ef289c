#include "base/handle.h"

#include <condition_variable>
#include <mutex>
#include <new>
#include <string>

#include "base/library.h"

namespace dgpu {

namespace handle_detail {
std::atomic<uint32_t> fork_epoch{0};
std::atomic<Slot*> chunks[kChunks] = {};
}  // namespace handle_detail

using namespace handle_detail;

namespace {
std::atomic<uint64_t> objects_alive{0};
constexpr uint32_t kNoSlot = UINT32_MAX;
constexpr uint32_t kMaxGeneration = (1u << kGenerationBits) - 1;

uint32_t generation_of(uint64_t handle) { return static_cast<uint32_t>(handle >> 32) & kMaxGeneration; }
uint32_t epoch_of(uint64_t handle) { return static_cast<uint32_t>(handle >> (32 + kGenerationBits)) & 63u; }
Kind kind_of(uint64_t handle) { return static_cast<Kind>((handle >> 56) & 0x7f); }
}  // namespace

Object::Object(Kind kind) : kind_(kind) { objects_alive.fetch_add(1, std::memory_order_relaxed); }
Object::~Object() { objects_alive.fetch_sub(1, std::memory_order_relaxed); }
uint64_t Object::alive() { return objects_alive.load(std::memory_order_relaxed); }

// Slots outlive dgpuShutdown: their generations are what tells an old handle from a new one. Slots of a parent process
// are never touched again after fork; new ones are taken behind them.
struct HandleTable {
  std::mutex mutex;
  std::condition_variable emptied;
  uint32_t free_head = kNoSlot;  // first in, first out, so that a generation lasts as long as possible
  uint32_t free_tail = kNoSlot;
  uint64_t fresh = 0;  // slots below were used at least once
  uint64_t epoch_begin = 0;
  std::atomic<uint64_t> busy{0};  // slots that are live or pinned

  Slot* take_slot() {
    if (free_head != kNoSlot) {
      Slot* slot = slot_at(free_head);
      free_head = slot->next_free;
      if (free_head == kNoSlot) free_tail = kNoSlot;
      return slot;
    }
    if (fresh >= UINT32_MAX) return nullptr;
    const uint32_t index = static_cast<uint32_t>(fresh);
    Slot* slot = slot_at(index);
    if (!slot) {
      const unsigned k = 63 - static_cast<unsigned>(__builtin_clzll(fresh + (1u << kFirstChunkBits))) - kFirstChunkBits;
      Slot* chunk = new (std::nothrow) Slot[size_t{1} << (kFirstChunkBits + k)];
      if (!chunk) return nullptr;
      chunks[k].store(chunk, std::memory_order_release);
      slot = slot_at(index);
    }
    ++fresh;
    slot->index = index;
    slot->word.store(uint64_t{1} << 32, std::memory_order_relaxed);  // generation 1, no kind, not live
    return slot;
  }

  void put_slot(Slot* slot) {
    const uint32_t generation = generation_of(slot->word.load(std::memory_order_relaxed));
    if (generation == kMaxGeneration) return;  // used up: this slot is never used again
    slot->word.store(uint64_t{generation + 1} << 32, std::memory_order_relaxed);
    slot->next_free = kNoSlot;
    if (free_tail == kNoSlot) {
      free_head = slot->index;
    } else {
      slot_at(free_tail)->next_free = slot->index;
    }
    free_tail = slot->index;
  }

  static void link(Slot* slot, HandleScope* scope) {
    slot->scope = scope;
    slot->scope_prev = nullptr;
    slot->scope_next = scope->first_;
    if (scope->first_) scope->first_->scope_prev = slot;
    scope->first_ = slot;
    scope->ref();
  }

  // The caller drops the scope reference that the slot held, outside the mutex.
  static HandleScope* unlink(Slot* slot) {
    HandleScope* scope = slot->scope;
    if (!scope) return nullptr;
    (slot->scope_prev ? slot->scope_prev->scope_next : scope->first_) = slot->scope_next;
    if (slot->scope_next) slot->scope_next->scope_prev = slot->scope_prev;
    slot->scope = nullptr;
    return scope;
  }

  static bool scope_invalid(const HandleScope* scope) { return scope->invalid_.load(std::memory_order_relaxed); }
  static void mark_invalid(HandleScope* scope) { scope->invalid_.store(true, std::memory_order_release); }
  static Slot* first(const HandleScope* scope) { return scope->first_; }
  static void set_handle(Object* object, uint64_t handle) {
    uint64_t none = 0;
    object->handle_.compare_exchange_strong(none, handle, std::memory_order_relaxed);
  }
};

namespace {
// Lives in static storage and is never destroyed: nothing runs at process exit.
alignas(HandleTable) unsigned char table_storage[sizeof(HandleTable)];
HandleTable& table() {
  static HandleTable* const instance = new (table_storage) HandleTable;
  return *instance;
}

// Clears `live`; true for the one caller that did. The slot stays pinned by that caller.
bool kill(Slot* slot, uint64_t handle) {
  const uint64_t wanted = ((handle >> 32) << 1) | 1;
  uint64_t word = slot->word.load(std::memory_order_relaxed);
  do {
    if ((word >> 31) != wanted) return false;
  } while (!slot->word.compare_exchange_weak(word, (word & ~kLive) + 1, std::memory_order_acq_rel,
                                             std::memory_order_relaxed));
  return true;
}

bool retire_slot(Slot* slot, uint64_t handle) {
  if (!kill(slot, handle)) return false;
  slot->object->invalidated();
  unpin_slot(slot);
  return true;
}
}  // namespace

void handle_detail::finish_slot(Slot* slot) {
  // A pin that was taken before fork by the forking thread itself: the slot belongs to the parent.
  if (epoch_of(slot->word.load(std::memory_order_relaxed)) != fork_epoch.load(std::memory_order_relaxed)) return;
  HandleTable& t = table();
  Object* object = std::exchange(slot->object, nullptr);
  HandleScope* scope = nullptr;
  {
    std::lock_guard lock(t.mutex);
    scope = HandleTable::unlink(slot);
    t.put_slot(slot);
  }
  object->unref();
  if (scope) scope->unref();
  if (t.busy.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    std::lock_guard lock(t.mutex);
    t.emptied.notify_all();
  }
}

Status handle_publish(Ref<Object> object, uint64_t* out_handle, HandleScope* scope) {
  *out_handle = 0;
  HandleTable& t = table();
  std::lock_guard lock(t.mutex);
  if (scope && HandleTable::scope_invalid(scope)) {
    return fail(DGPU_STATUS_INVALID_HANDLE, kind_name(object->kind()),
                "what the new {} belongs to was destroyed during the call", kind_name(object->kind()));
  }
  if (library_closing()) return fail(DGPU_STATUS_SHUTDOWN, "", "the library is being shut down");
  Slot* slot = t.take_slot();
  if (!slot)
    return fail(DGPU_STATUS_OUT_OF_HANDLES, kind_name(object->kind()),
                "no handle slot is left; destroy unused handles");
  const uint64_t upper = (uint64_t{0x80} | static_cast<uint64_t>(object->kind())) << 24 |
                         uint64_t{fork_epoch.load(std::memory_order_relaxed)} << kGenerationBits |
                         generation_of(slot->word.load(std::memory_order_relaxed));
  const uint64_t handle = upper << 32 | slot->index;
  HandleTable::set_handle(object.get(), handle);
  slot->object = object.detach();
  if (scope) HandleTable::link(slot, scope);
  t.busy.fetch_add(1, std::memory_order_relaxed);
  slot->word.store(upper << 32 | kLive, std::memory_order_release);
  *out_handle = handle;
  return DGPU_STATUS_SUCCESS;
}

Status retire(uint64_t handle, Kind kind, const char* argument) {
  Slot* slot = pin_slot(handle, kind);
  if (!slot) return explain(handle, kind, argument);
  const bool mine = retire_slot(slot, handle);
  unpin_slot(slot);
  // Another thread destroyed it between the check and the kill.
  return mine ? DGPU_STATUS_SUCCESS : explain(handle, kind, argument);
}

void HandleScope::invalidate() {
  const auto self = Ref<HandleScope>::retain(this);
  HandleTable& t = table();
  for (;;) {
    Slot* slot = nullptr;
    HandleScope* held = nullptr;
    uint64_t word = 0;
    {
      std::lock_guard lock(t.mutex);
      HandleTable::mark_invalid(this);
      slot = HandleTable::first(this);
      if (!slot) return;
      held = HandleTable::unlink(slot);
      word = slot->word.load(std::memory_order_relaxed);
    }
    // If it is destroyed and reused meanwhile, the generation differs and nothing happens.
    retire_slot(slot, word);
    held->unref();
  }
}

Status HandleScope::adopt(uint64_t handle) {
  Slot* slot = pin_slot(handle, kind_of(handle));
  if (!slot) return explain(handle, kind_of(handle), "handle");
  HandleScope* before = nullptr;
  bool joined = false;
  {
    std::lock_guard lock(table().mutex);
    if (!HandleTable::scope_invalid(this)) {
      before = HandleTable::unlink(slot);
      HandleTable::link(slot, this);
      joined = true;
    }
  }
  if (before) before->unref();
  unpin_slot(slot);
  if (!joined) return fail(DGPU_STATUS_INVALID_HANDLE, "", "the context was destroyed during the call");
  return DGPU_STATUS_SUCCESS;
}

void handles_retire_all() {
  HandleTable& t = table();
  uint64_t end = 0;
  uint64_t begin = 0;
  {
    std::lock_guard lock(t.mutex);
    begin = t.epoch_begin;
    end = t.fresh;
  }
  for (uint64_t i = begin; i < end; ++i) {
    Slot* slot = slot_at(static_cast<uint32_t>(i));
    const uint64_t word = slot->word.load(std::memory_order_relaxed);
    if (word & kLive) retire_slot(slot, word);
  }
}

void handles_wait_unpinned() {
  HandleTable& t = table();
  std::unique_lock lock(t.mutex);
  t.emptied.wait(lock, [&] { return t.busy.load(std::memory_order_acquire) == 0; });
}

uint64_t handles_live() { return table().busy.load(std::memory_order_relaxed); }

void handles_after_fork() {
  HandleTable& t = table();
  fork_epoch.store((fork_epoch.load(std::memory_order_relaxed) + 1) & 63u, std::memory_order_relaxed);
  const uint64_t fresh = t.fresh;
  HandleTable* child = new (table_storage) HandleTable;  // the parent's mutex may be held: start anew
  child->fresh = child->epoch_begin = fresh;
  objects_alive.store(0, std::memory_order_relaxed);
}

namespace {
const char* article(Kind kind) {
  return kind == Kind::event || kind == Kind::op_desc || kind == Kind::op_plan ? "an" : "a";
}
}  // namespace

const char* kind_name(Kind kind) {
  static const char* const names[] = {"?",      "backend", "device",  "context", "timeline", "stream",   "event",
                                      "kernel", "op desc", "op plan", "model",   "session",  "sequence", "report"};
  static_assert(sizeof(names) / sizeof(names[0]) == static_cast<size_t>(Kind::count_));
  return kind < Kind::count_ ? names[static_cast<size_t>(kind)] : names[0];
}

Status handle_detail::explain(uint64_t handle, Kind wanted, const char* argument) {
  DGPU_TRY(library_check());
  const std::string kind = fmt::format("{} {}", article(wanted), kind_name(wanted));
  if (!handle) return fail(DGPU_STATUS_INVALID_HANDLE, argument, "{} is null; {} handle is expected", argument, kind);
  const Kind given = kind_of(handle);
  if (!(handle >> 63) || given == Kind{0} || given >= Kind::count_) {
    return fail(DGPU_STATUS_INVALID_HANDLE, argument, "{} is not a handle of this library; {} handle is expected",
                argument, kind);
  }
  if (epoch_of(handle) != fork_epoch.load(std::memory_order_relaxed)) {
    return fail(DGPU_STATUS_FORKED, argument, "{} belongs to the parent process; create {} in this one", argument,
                kind);
  }
  if (given != wanted) {
    return fail(DGPU_STATUS_INVALID_HANDLE, argument, "{} is {} {} handle; {} handle is expected", argument,
                article(given), kind_name(given), kind);
  }
  Slot* slot = slot_at(static_cast<uint32_t>(handle));
  const uint32_t now = slot ? generation_of(slot->word.load(std::memory_order_relaxed)) : 0;
  if (!slot || generation_of(handle) > now) {
    return fail(DGPU_STATUS_INVALID_HANDLE, argument, "{} is not a handle of this library; {} handle is expected",
                argument, kind);
  }
  return fail(DGPU_STATUS_INVALID_HANDLE, argument, "{} was destroyed", argument);
}

}  // namespace dgpu
