// Out-of-process probe. The child of a multi-threaded process may only do a little: it loads the plugin, calls what
// loading it here will call, writes one record into a pipe before each of these calls, and leaves by _exit. The result
// comes through the pipe, not through the exit status, because the host may reap our child in its own SIGCHLD handling.
//
// Only a crash and a hang count. What the plugin answers in the child does not: a driver may refuse a forked child of a
// process that uses it already, and loading the plugin here tells its errors anyway.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "backend/device.h"
#include "backend/loader.h"
#include "backend/probe_services.h"
#include "backend/table.h"
#include "base/clock.h"
#include "base/config.h"
#include "base/struct.h"

namespace dgpu::backend {
namespace {

enum class Stage : uint32_t { loading, querying, initializing, counting, describing, shutting_down, done };

struct Record {
  Stage stage = Stage::loading;
  Status status = DGPU_STATUS_SUCCESS;
  char object[64] = {};
  char message[384] = {};
};
static_assert(sizeof(Record) <= 512);  // PIPE_BUF: one write is one record

class Reporter {
 public:
  explicit Reporter(int pipe) : pipe_(pipe) {}
  void at(Stage stage) {
    record_.stage = stage;
    const ssize_t written = ::write(pipe_, &record_, sizeof(record_));
    (void)written;
  }
  void refuse(Status status) {
    record_.status = status;
    copy_text(record_.object, last_error().object);
    copy_text(record_.message, last_error().message);
  }

 private:
  const int pipe_;
  Record record_;
};

void isolate(pid_t parent) {
  for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS, SIGTERM}) ::signal(signal, SIG_DFL);
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a hang does not outlive its parent
  if (::getppid() != parent) ::_exit(0);
  if (const int null = ::open("/dev/null", O_RDWR); null >= 0) {
    ::dup2(null, STDIN_FILENO);
    ::dup2(null, STDOUT_FILENO);
    ::dup2(null, STDERR_FILENO);
  }
}

// What Backend::start does, without keeping anything of it.
void start_and_stop(const Table& table, Reporter& reporter) {
  const dgpuBackendServices services = probe_services();
  void* backend = nullptr;
  reporter.at(Stage::initializing);
  if (table.top.initialize(&services, &backend) < 0) return;
  reporter.at(Stage::counting);
  uint32_t count = 0;
  if (table.device.count(backend, &count) >= 0 && count <= kMaxDevices) {
    for (uint32_t i = 0; i < count; ++i) {
      reporter.at(Stage::describing);
      dgpuDeviceInfo info = DGPU_DEVICE_INFO_INIT;
      if (table.device.info(backend, i, &info) < 0) break;
    }
  }
  reporter.at(Stage::shutting_down);
  table.top.shutdown(backend);
}

[[noreturn]] void child(int pipe, pid_t parent, const std::string& path, Probe depth) {
  isolate(parent);
  Reporter reporter(pipe);
  reporter.at(Stage::loading);
  void* code = nullptr;
  dgpuBackendQueryFunction query = nullptr;
  if (const Status status = open_code(path, &code, &query); status < 0) {
    reporter.refuse(status);
  } else {
    reporter.at(Stage::querying);
    Table table;
    uint32_t minor = 0;
    const bool complete = negotiate_table(query, table, minor) == DGPU_STATUS_SUCCESS;
    if (complete && depth == Probe::start) start_and_stop(table, reporter);
  }
  reporter.at(Stage::done);
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

const char* doing(Stage stage) {
  switch (stage) {
    case Stage::loading:
      return "while it was loaded";
    case Stage::querying:
      return "in its dgpuBackendQuery";
    case Stage::initializing:
      return "in its initialize";
    case Stage::counting:
      return "in its device.count";
    case Stage::describing:
      return "in its device.info";
    default:
      return "in its shutdown";
  }
}

// What a user can do about a plugin that is only slow, or must not be started twice.
std::string advice(Stage stage, int64_t timeout_ms) {
  if (stage == Stage::loading || stage == Stage::querying) return "";
  return fmt::format(
      "; if it is only slow, give it more than {} ms in \"probe_timeout_ms\" of its manifest or in "
      "DGPU_BACKEND_PROBE_TIMEOUT_MS; if it must not be started twice, say \"probe\": \"query\" there",
      timeout_ms);
}

}  // namespace

Status probe(const std::string& path, Probe depth, int64_t timeout_ms) {
  if (depth == Probe::none) return DGPU_STATUS_SUCCESS;
  if (timeout_ms <= 0) timeout_ms = std::max<int64_t>(config_integer("DGPU_BACKEND_PROBE_TIMEOUT_MS"), 1);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return fail(DGPU_STATUS_BACKEND_REFUSED, "probe", "no pipe for the probing process: {}", std::strerror(errno));
  }
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) child(ends[1], parent, path, depth);
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
    return fail(DGPU_STATUS_BACKEND_REFUSED, "probe", "it did not answer within {} ms {}{}", timeout_ms,
                doing(last.stage), advice(last.stage, timeout_ms));
  }
  if (last.stage != Stage::done) {
    return fail(DGPU_STATUS_BACKEND_REFUSED, "probe", "it crashed {} ({})", doing(last.stage),
                signal ? strsignal(signal) : "the process ended");
  }
  if (last.status != DGPU_STATUS_SUCCESS) return fail_text(last.status, last.object, last.message);
  return DGPU_STATUS_SUCCESS;
}

}  // namespace dgpu::backend
