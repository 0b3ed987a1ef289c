// Threads of the library.
#pragma once
#include <functional>
#include <thread>

namespace dgpu {

// Starts a thread that blocks all signals except those that a fault raises, and carries `name` (up to 15 bytes) in
// debuggers and /proc. thread_is_ours() is true on it.
std::thread spawn_thread(const char* name, std::function<void()> body);

// True on threads from spawn_thread, and in user code.
bool thread_is_ours();

// True while a host callback or a user's kernel runs on this thread: calls that would block answer
// DGPU_STATUS_NOT_PERMITTED.
bool in_user_code();
void enter_user_code();
void leave_user_code();

class UserCodeScope {
 public:
  UserCodeScope() { enter_user_code(); }
  ~UserCodeScope() { leave_user_code(); }
  UserCodeScope(const UserCodeScope&) = delete;
  UserCodeScope& operator=(const UserCodeScope&) = delete;
};

}  // namespace dgpu
