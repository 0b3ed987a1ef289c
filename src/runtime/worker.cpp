#include "runtime/worker.h"

#include <exception>

#include "base/thread.h"

namespace dgpu {

bool WorkerThreads::start_locked() {
  try {
    threads_.push_back(spawn_thread(name_, [this] { loop(); }));
    return true;
  } catch (const std::exception&) {
    return false;  // no thread or no memory left: those that run, or stop, take the work
  }
}

bool WorkerThreads::push(Work* work) {
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return false;
    work->next = nullptr;
    (tail_ ? tail_->next : head_) = work;
    tail_ = work;
    ++taken_;
    if (waiting_ == 0 && threads_.size() < limit_) start_locked();
    // Under the lock: once it is released, the work may run, and with it everything may go that this belongs to.
    pushed_.notify_one();
  }
  return true;
}

void WorkerThreads::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    while (!head_ && !stopping_) {
      ++waiting_;
      pushed_.wait(lock);
      --waiting_;
    }
    if (!head_) return;
    Work* work = head_;
    head_ = work->next;
    if (!head_) tail_ = nullptr;
    lock.unlock();
    work->run(work);
    lock.lock();
    ++ended_;
    idle_.notify_all();
  }
}

void WorkerThreads::flush() {
  std::unique_lock lock(mutex_);
  const uint64_t target = taken_;
  if (head_ && threads_.empty() && !start_locked()) return;
  idle_.wait(lock, [&] { return ended_ >= target; });
}

void WorkerThreads::stop() {
  std::vector<std::thread> threads;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    threads.swap(threads_);
  }
  pushed_.notify_all();
  for (std::thread& thread : threads) thread.join();
  for (Work* work = head_; work;) {  // no thread could ever be started
    Work* next = work->next;
    work->run(work);
    work = next;
  }
  head_ = tail_ = nullptr;
}

}  // namespace dgpu
