#include "base/library.h"

#include <pthread.h>

#include <functional>
#include <new>
#include <thread>

#include "base/config.h"
#include "base/handle.h"
#include "base/log.h"
#include "base/thread.h"

namespace dgpu {
namespace {

enum class Phase : uint32_t { never, running, closing, down, forked };

struct alignas(64) UseShard {
  std::atomic<int64_t> count{0};
};
constexpr unsigned kShards = 16;
constexpr unsigned kMaxForkHandlers = 16;

// Constant-initialised, never destroyed.
std::atomic<Phase> phase{Phase::never};
std::atomic<Library*> current{nullptr};
UseShard uses[kShards];
std::atomic<uint32_t> use_left{0};  // bumped by calls that leave while the library closes
std::atomic<uint32_t> init_count{0};
Library* left_behind = nullptr;  // of the parent process; kept reachable, never touched
alignas(std::mutex) unsigned char lifecycle_storage[sizeof(std::mutex)];
std::atomic<void (*)()> fork_handlers[kMaxForkHandlers];
std::atomic<unsigned> fork_handler_count{0};

std::mutex& lifecycle() {
  static std::mutex* const made = new (lifecycle_storage) std::mutex;
  return *made;
}

void after_fork_in_child() {
  handles_after_fork();
  new (lifecycle_storage) std::mutex;
  for (auto& shard : uses) shard.count.store(0, std::memory_order_relaxed);
  if (phase.load(std::memory_order_relaxed) != Phase::never) phase.store(Phase::forked, std::memory_order_relaxed);
  left_behind = current.exchange(nullptr, std::memory_order_relaxed);
  init_count = 0;
  const unsigned count = fork_handler_count.load(std::memory_order_acquire);
  for (unsigned i = 0; i < count; ++i) {
    if (auto handler = fork_handlers[i].load(std::memory_order_acquire)) handler();
  }
}

// Threads of the library never take lifecycle(): whoever closes holds it and waits for them. They may change the count
// as long as that neither opens nor closes the library. False if it would.
bool count_up() {
  uint32_t count = init_count.load();
  while (count != 0) {
    if (init_count.compare_exchange_weak(count, count + 1)) return true;
  }
  return false;
}
bool count_down() {
  uint32_t count = init_count.load();
  while (count > 1) {
    if (init_count.compare_exchange_weak(count, count - 1)) return true;
  }
  return false;
}

unsigned my_shard() {
  thread_local const unsigned shard =
      static_cast<unsigned>(std::hash<std::thread::id>{}(std::this_thread::get_id()) % kShards);
  return shard;
}

void wait_for_calls() {
  for (;;) {
    const uint32_t seen = use_left.load();
    bool idle = true;
    for (auto& shard : uses) idle = idle && shard.count.load() == 0;
    if (idle) return;
    use_left.wait(seen);
  }
}

}  // namespace

void on_fork_child(void (*handler)()) {
  const unsigned index = fork_handler_count.fetch_add(1);
  if (index < kMaxForkHandlers) fork_handlers[index].store(handler, std::memory_order_release);
}

void watch_forks() {
  static const int installed = pthread_atfork(nullptr, nullptr, after_fork_in_child);
  (void)installed;
}

Library::~Library() {
  while (!order_.empty()) {
    const unsigned index = order_.back();
    order_.pop_back();
    delete states_[index].exchange(nullptr);
  }
}

unsigned Library::allocate_index() {
  static std::atomic<unsigned> next{0};
  return next.fetch_add(1);  // kMaxStates is checked by keep()
}

LibraryState* Library::keep(unsigned index, LibraryState* state) {
  std::unique_ptr<LibraryState> owned(state);
  if (index >= kMaxStates) throw std::bad_alloc();
  order_.push_back(index);
  states_[index].store(owned.get(), std::memory_order_release);
  return owned.release();
}

void Library::wake() noexcept {
  std::lock_guard lock(mutex_);
  for (size_t i = order_.size(); i-- > 0;) states_[order_[i]].load()->wake();
}

void Library::stop() noexcept {
  for (size_t i = order_.size(); i-- > 0;) states_[order_[i]].load()->stop();
}

Library& library() { return *current.load(std::memory_order_acquire); }

bool library_closing() { return phase.load(std::memory_order_acquire) == Phase::closing; }

Status library_check() {
  switch (phase.load(std::memory_order_acquire)) {
    case Phase::running:
      return DGPU_STATUS_SUCCESS;
    case Phase::never:
      return fail(DGPU_STATUS_NOT_INITIALIZED, "", "the library is not initialised; call dgpuInit first");
    case Phase::forked:
      return fail(DGPU_STATUS_FORKED, "", "this process was forked from one that used the library; call dgpuInit anew");
    case Phase::closing:
      return fail(DGPU_STATUS_SHUTDOWN, "", "the library is being shut down by another thread");
    case Phase::down:
      break;
  }
  return fail(DGPU_STATUS_SHUTDOWN, "", "the library was shut down; call dgpuInit to use it again");
}

Status LibraryUse::enter() {
  const unsigned shard = my_shard();
  uses[shard].count.fetch_add(1);
  shard_ = static_cast<int>(shard);
  epoch_ = handle_detail::fork_epoch.load(std::memory_order_relaxed);
  if (phase.load() == Phase::running) [[likely]]
    return DGPU_STATUS_SUCCESS;
  return library_check();
}

LibraryUse::~LibraryUse() {
  if (shard_ < 0 || epoch_ != handle_detail::fork_epoch.load(std::memory_order_relaxed)) return;
  uses[shard_].count.fetch_sub(1);
  if (phase.load() == Phase::closing) [[unlikely]] {
    use_left.fetch_add(1);
    use_left.notify_all();
  }
}

Status library_init(const dgpuInitOptions& options) {
  watch_forks();
  if (thread_is_ours()) {
    if (count_up()) return DGPU_STATUS_SUCCESS;
    return fail(DGPU_STATUS_SHUTDOWN, "",
                "the library is being shut down; dgpuInit cannot run inside its callbacks now");
  }
  std::lock_guard lock(lifecycle());
  if (count_up()) return DGPU_STATUS_SUCCESS;
  DGPU_TRY(config_freeze(options.cpu_threads));
  log_set_level(static_cast<uint32_t>(config_choice("DGPU_LOG_LEVEL")), LogLevelSource::setting);
  current.store(new Library(options), std::memory_order_release);
  phase.store(Phase::running);
  init_count = 1;
  return DGPU_STATUS_SUCCESS;
}

Status library_shutdown() {
  if (thread_is_ours()) {
    if (count_down()) return DGPU_STATUS_SUCCESS;
    return fail(DGPU_STATUS_NOT_PERMITTED, "",
                "the last dgpuShutdown would wait for the callback or kernel that calls it; call it elsewhere");
  }
  std::lock_guard lock(lifecycle());
  if (phase.load() != Phase::running) return library_check();
  if (--init_count > 0) return DGPU_STATUS_SUCCESS;  // from here to the end no count_up succeeds
  phase.store(Phase::closing);
  Library* const closing = current.load();
  handles_retire_all();
  closing->wake();
  wait_for_calls();
  handles_wait_unpinned();
  closing->stop();
  delete closing;
  current.store(nullptr);
  config_thaw();
  phase.store(Phase::down);
  return DGPU_STATUS_SUCCESS;
}

}  // namespace dgpu
