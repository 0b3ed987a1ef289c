// Out-of-process probe. The child of a multi-threaded process may only do a little: it loads the plugin, calls its
// query, writes one record into a pipe and leaves by _exit. The result comes through the pipe, not through the exit
// status, because the host may reap our child in its own SIGCHLD handling.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "backend/loader.h"
#include "base/clock.h"
#include "base/config.h"
#include "base/struct.h"

namespace dgpu::backend {
namespace {

enum class Stage : uint32_t { loading, querying, done };

struct Record {
  Stage stage = Stage::loading;
  Status status = DGPU_STATUS_SUCCESS;
  char object[64] = {};
  char message[384] = {};
};
static_assert(sizeof(Record) <= 512);  // PIPE_BUF: one write is one record

void say(int pipe, const Record& record) {
  const ssize_t written = ::write(pipe, &record, sizeof(record));
  (void)written;
}

[[noreturn]] void child(int pipe, const std::string& path) {
  for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS, SIGTERM}) ::signal(signal, SIG_DFL);
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  if (const int null = ::open("/dev/null", O_RDWR); null >= 0) {
    ::dup2(null, STDOUT_FILENO);
    ::dup2(null, STDERR_FILENO);
  }
  Record record;
  say(pipe, record);
  void* code = nullptr;
  dgpuBackendQueryFunction query = nullptr;
  record.status = open_code(path, &code, &query);
  if (record.status == DGPU_STATUS_SUCCESS) {
    record.stage = Stage::querying;
    say(pipe, record);
    const dgpuBackendTable* table = nullptr;
    (void)query(DGPU_BACKEND_ABI_MAJOR, DGPU_BACKEND_ABI_MINOR, &table);
    // Reading what negotiation will read: a table that points nowhere ends the child here.
    if (table) {
      const volatile uint32_t major = table->abi_major;
      const volatile char first = major == DGPU_BACKEND_ABI_MAJOR && table->name ? table->name[0] : 0;
      (void)first;
    }
  } else {
    copy_text(record.object, last_error().object);
    copy_text(record.message, last_error().message);
  }
  record.stage = Stage::done;
  say(pipe, record);
  ::_exit(0);
}

// Reads records until `done`, end of file or the deadline. True if the child is still running.
bool follow(int pipe, uint64_t deadline, Record& last) {
  for (;;) {
    const uint64_t now = now_ns();
    if (now >= deadline) return true;
    pollfd waiting{pipe, POLLIN, 0};
    const int ready =
        ::poll(&waiting, 1, static_cast<int>(std::min<uint64_t>((deadline - now) / 1000000 + 1, 1 << 30)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) continue;
    Record record;
    const ssize_t n = ::read(pipe, &record, sizeof(record));
    if (n < 0 && errno == EINTR) continue;
    if (n != static_cast<ssize_t>(sizeof(record))) return false;
    last = record;
    if (record.stage == Stage::done) return false;
  }
}

// The signal that ended the child, 0 if that cannot be told.
int reap(pid_t pid) {
  int status = 0;
  pid_t got = 0;
  do {
    got = ::waitpid(pid, &status, 0);
  } while (got < 0 && errno == EINTR);
  return got == pid && WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

const char* doing(Stage stage) { return stage == Stage::loading ? "while it was loaded" : "in its dgpuBackendQuery"; }

}  // namespace

Status probe(const std::string& path) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return fail(DGPU_STATUS_BACKEND_REFUSED, "probe", "no pipe for the probing process: {}", std::strerror(errno));
  }
  const int64_t timeout_ms = std::max<int64_t>(config_integer("DGPU_BACKEND_PROBE_TIMEOUT_MS"), 1);
  const pid_t pid = ::fork();
  if (pid == 0) child(ends[1], path);
  const int fork_error = errno;
  ::close(ends[1]);
  if (pid < 0) {
    ::close(ends[0]);
    return fail(DGPU_STATUS_BACKEND_REFUSED, "probe", "no probing process could be started: {}",
                std::strerror(fork_error));
  }
  Record last;
  const bool hangs = follow(ends[0], now_ns() + static_cast<uint64_t>(timeout_ms) * 1000000u, last);
  if (hangs) ::kill(pid, SIGKILL);
  ::close(ends[0]);
  const int signal = reap(pid);
  if (hangs) {
    return fail(DGPU_STATUS_BACKEND_REFUSED, "probe", "it did not answer within {} ms {}", timeout_ms,
                doing(last.stage));
  }
  if (last.stage != Stage::done) {
    return fail(DGPU_STATUS_BACKEND_REFUSED, "probe", "it crashed {} ({})", doing(last.stage),
                signal ? strsignal(signal) : "the process ended");
  }
  if (last.status != DGPU_STATUS_SUCCESS) return fail_text(last.status, last.object, last.message);
  return DGPU_STATUS_SUCCESS;
}

}  // namespace dgpu::backend
