// The library object: everything between dgpuInit and dgpuShutdown, and the only global state besides the handle table,
// the log target and the settings. Rooms hang their own state on it without base knowing them:
//
//   struct Runtime : LibraryState { void wake() noexcept override; void stop() noexcept override; };
//   Runtime& runtime = library().state<Runtime>();   // made on first use, in the order of first completed use
//
// Shutdown: new calls are refused, all handles retired, wake() on every state, wait for running calls, stop() in
// reverse order of creation, destructors in reverse order.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "base/error.h"

namespace dgpu {

class LibraryState {
 public:
  virtual ~LibraryState() = default;
  // Blocked calls must return DGPU_STATUS_SHUTDOWN now: library_closing() is true from here on. Must not block.
  virtual void wake() noexcept {}
  // No call is inside the library any more, no handle is valid. Finish or cancel what runs, join threads.
  virtual void stop() noexcept {}
};

class Library {
 public:
  static constexpr unsigned kMaxStates = 32;
  explicit Library(const dgpuInitOptions& options) : options_(options) {}
  ~Library();
  const dgpuInitOptions& options() const { return options_; }

  // The library's T, made on first use. T has a constructor T() or T(Library&); it may ask for other states, which then
  // outlive it.
  template <typename T>
  T& state() {
    static const unsigned index = allocate_index();
    LibraryState* found = states_[index].load(std::memory_order_acquire);
    if (!found) [[unlikely]] {
      std::lock_guard lock(mutex_);
      found = states_[index].load(std::memory_order_relaxed);
      if (!found) found = keep(index, new T());
    }
    return *static_cast<T*>(found);
  }
  // Shutdown's steps.
  void wake() noexcept;
  void stop() noexcept;

 private:
  static unsigned allocate_index();
  LibraryState* keep(unsigned index, LibraryState* state);

  const dgpuInitOptions options_;
  std::recursive_mutex mutex_;
  std::vector<unsigned> order_;
  std::atomic<LibraryState*> states_[kMaxStates] = {};
};

// The current library. Only where a pinned handle or a LibraryUse guarantees that it lives, or on a library thread that
// stop() joins.
Library& library();
// SUCCESS, or NOT_INITIALIZED, FORKED or SHUTDOWN with its text.
Status library_check();
// True once dgpuShutdown has begun, until it is done: blocked calls return DGPU_STATUS_SHUTDOWN.
bool library_closing();

// Keeps the library from going while a call without a pinned handle uses it.
class LibraryUse {
 public:
  LibraryUse() = default;
  LibraryUse(const LibraryUse&) = delete;
  LibraryUse& operator=(const LibraryUse&) = delete;
  ~LibraryUse();
  Status enter();

 private:
  int shard_ = -1;
  uint32_t epoch_ = 0;
};

Status library_init(const dgpuInitOptions& options);
Status library_shutdown();

// For state outside the library object (log, settings): runs in a forked child, takes no lock, allocates nothing.
void on_fork_child(void (*handler)());
// Installs the fork handler of the process, once.
void watch_forks();

}  // namespace dgpu
