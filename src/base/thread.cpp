#include "base/thread.h"

#include <pthread.h>
#include <signal.h>

#include <string>

namespace dgpu {
namespace {
thread_local bool ours = false;
thread_local unsigned user_code = 0;  // depth
}  // namespace

bool thread_is_ours() { return ours || user_code > 0; }
bool in_user_code() { return user_code > 0; }
void enter_user_code() { ++user_code; }
void leave_user_code() { --user_code; }

std::thread spawn_thread(const char* name, std::function<void()> body) {
  // A blocked fault signal would kill the process without the host's handler (Java and Go have one).
  sigset_t blocked;
  sigset_t before;
  sigfillset(&blocked);
  for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT}) sigdelset(&blocked, fault);
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  struct Restore {
    const sigset_t& mask;
    ~Restore() { pthread_sigmask(SIG_SETMASK, &mask, nullptr); }
  } restore{before};
  return std::thread([label = std::string(name).substr(0, 15), body = std::move(body)] {
    pthread_setname_np(pthread_self(), label.c_str());
    ours = true;
    body();
  });
}

}  // namespace dgpu
