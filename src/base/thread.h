// Threads of the library.
#pragma once
#include <functional>
#include <thread>

namespace dgpu {

// Starts a thread that blocks all signals except those that a fault raises, and carries `name` (up to 15 bytes) in
// debuggers and /proc. thread_is_ours() is true on it.
std::thread spawn_thread(const char* name, std::function<void()> body);

// True on threads from spawn_thread, and inside a ThreadIsOurs scope.
bool thread_is_ours();

// True while a host callback runs on this thread: calls that would block answer DGPU_STATUS_NOT_PERMITTED.
bool in_host_callback();

class HostCallbackScope {
 public:
  HostCallbackScope();
  ~HostCallbackScope();
  HostCallbackScope(const HostCallbackScope&) = delete;
  HostCallbackScope& operator=(const HostCallbackScope&) = delete;
};

}  // namespace dgpu
