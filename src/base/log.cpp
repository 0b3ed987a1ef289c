#include "base/log.h"

#include <unistd.h>

#include <atomic>
#include <mutex>
#include <new>
#include <string>

#include "base/library.h"

namespace dgpu {
namespace {

// Two targets take turns: loggers enter the current one without a lock, the replacer waits until the old one is empty.
struct Target {
  dgpuLogCallback callback = nullptr;
  void* user = nullptr;
  std::atomic<uint32_t> inside{0};
};
Target targets[2];
std::atomic<uint32_t> active{0};
std::atomic<uint32_t> level_limit{DGPU_LOG_WARN};
std::atomic<bool> level_by_call{false};
alignas(std::mutex) unsigned char replace_storage[sizeof(std::mutex)];
thread_local uint32_t depth = 0;

void after_fork() {
  new (replace_storage) std::mutex;
  // Threads of the parent are not here; only this one may be inside the callback.
  targets[0].inside.store(0);
  targets[1].inside.store(0);
  if (depth) targets[active.load()].inside.store(1);
}

std::mutex& replace_mutex() {
  static std::mutex* const made = [] {
    on_fork_child(after_fork);
    watch_forks();
    return new (replace_storage) std::mutex;
  }();
  return *made;
}

const char* level_name(uint32_t level) {
  switch (level) {
    case DGPU_LOG_ERROR:
      return "error";
    case DGPU_LOG_WARN:
      return "warn";
    case DGPU_LOG_INFO:
      return "info";
    default:
      return "debug";
  }
}

void to_stderr(uint32_t level, const char* component, std::string_view message) {
  const std::string line = fmt::format("dgpu [{}] {}: {}\n", level_name(level), component, message);
  const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());  // one write: lines do not mix
  (void)written;
}

Target& enter() {
  for (;;) {
    const uint32_t index = active.load();
    Target& target = targets[index];
    target.inside.fetch_add(1);
    if (active.load() == index) return target;
    if (target.inside.fetch_sub(1) == 1) target.inside.notify_all();
  }
}

}  // namespace

bool log_enabled(uint32_t level) { return level <= level_limit.load(std::memory_order_relaxed) && level > 0; }

void log_text(uint32_t level, const char* component, std::string_view message) {
  if (!log_enabled(level) || depth) return;
  Target& target = enter();
  ++depth;
  if (target.callback) {
    const std::string text(message);
    target.callback(level, component, text.c_str(), target.user);
  } else {
    to_stderr(level, component, message);
  }
  --depth;
  if (target.inside.fetch_sub(1) == 1) target.inside.notify_all();
}

Status log_set_level(uint32_t level, LogLevelSource source) {
  if (level > DGPU_LOG_DEBUG) {
    return fail(DGPU_STATUS_INVALID_ARGUMENT, "level",
                "level is {}; accepted are DGPU_LOG_OFF (0) to DGPU_LOG_DEBUG (4)", level);
  }
  if (source == LogLevelSource::call) level_by_call.store(true);
  if (source == LogLevelSource::setting && level_by_call.load()) return DGPU_STATUS_SUCCESS;
  level_limit.store(level);
  return DGPU_STATUS_SUCCESS;
}

Status log_set_callback(dgpuLogCallback callback, void* user) {
  if (depth) return fail(DGPU_STATUS_NOT_PERMITTED, "callback", "a log callback must not call the library");
  std::lock_guard lock(replace_mutex());
  Target& old = targets[active.load()];
  Target& next = targets[active.load() ^ 1u];
  // A logger that read the old index may still touch the idle target's counter, but never its callback.
  next.callback = callback;
  next.user = user;
  active.store(active.load() ^ 1u);
  for (uint32_t n = old.inside.load(); n != 0; n = old.inside.load()) old.inside.wait(n);
  return DGPU_STATUS_SUCCESS;
}

}  // namespace dgpu
