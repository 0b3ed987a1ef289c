#include "backends/cpu/user_threads.h"

#include <pthread.h>
#include <signal.h>

#include <system_error>

#include "backends/cpu/queue.h"

namespace dgpu::cpu {

std::thread start_thread(std::function<void()> body, const char* name) {
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);  // inherited by the new thread
  try {
    std::thread thread(std::move(body));
    pthread_setname_np(thread.native_handle(), name);
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
    return thread;
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
    throw;
  }
}

bool UserThreads::post(Queue& queue) {
  const std::lock_guard lock(mutex_);
  if (idle_ <= waiting_) {
    try {
      threads_.reserve(threads_.size() + 1);
      threads_.push_back(start_thread([this] { loop(); }, "dgpu-cpu-user"));
    } catch (const std::exception&) {
      return false;
    }
  }
  queue.next_user = nullptr;
  (last_ ? last_->next_user : first_) = &queue;
  last_ = &queue;
  ++waiting_;
  changed_.notify_one();
  return true;
}

void UserThreads::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    changed_.wait(lock, [this] { return first_ || stopping_; });
    --idle_;
    if (!first_) return;
    Queue& queue = *first_;
    first_ = queue.next_user;
    if (!first_) last_ = nullptr;
    --waiting_;
    lock.unlock();
    run_(queue);
    lock.lock();
  }
}

void UserThreads::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  for (auto& thread : threads_) thread.join();
  threads_.clear();
}

}  // namespace dgpu::cpu
