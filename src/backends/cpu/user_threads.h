// Threads for kernels that may block: as many as run at once, made on demand, kept for later.
#pragma once
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace dgpu::cpu {

struct Queue;

class UserThreads {
 public:
  explicit UserThreads(std::function<void(Queue&)> run) : run_(std::move(run)) {}
  ~UserThreads() { stop(); }
  // Hands the queue to a thread of its own. False if no thread can be started; the caller keeps the queue then.
  bool post(Queue& queue);
  void stop();  // joins; nothing may be posted any more

 private:
  void loop();
  std::function<void(Queue&)> run_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Queue* first_ = nullptr;  // waiting for a thread, through next_user
  Queue* last_ = nullptr;
  size_t waiting_ = 0;
  size_t idle_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

// Starts a thread with all signals blocked. Throws std::system_error.
std::thread start_thread(std::function<void()> body, const char* name);

}  // namespace dgpu::cpu
