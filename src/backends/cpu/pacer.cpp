#include "backends/cpu/pacer.h"

#include <algorithm>
#include <chrono>
#include <system_error>

#include "backends/cpu/executor.h"

namespace dgpu::cpu {

bool Pacer::start(size_t queues, std::string* error) {
  heap_.reserve(queues);
  try {
    thread_ = start_thread([this] { loop(); }, "dgpu-cpu-pacer");
    return true;
  } catch (const std::system_error& e) {
    *error = std::string("the thread that paces copies cannot be started: ") + e.what();
    return false;
  }
}

void Pacer::post(Queue& queue, uint64_t due_ns) {
  const std::lock_guard lock(mutex_);
  heap_.push_back({due_ns, &queue});
  std::push_heap(heap_.begin(), heap_.end());
  changed_.notify_one();
}

void Pacer::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (heap_.empty()) {
      if (stopping_) return;
      changed_.wait(lock);
      continue;
    }
    const Held first = heap_.front();
    const uint64_t now = now_ns();
    if (first.due_ns > now) {
      changed_.wait_for(lock, std::chrono::nanoseconds(first.due_ns - now));
      continue;
    }
    std::pop_heap(heap_.begin(), heap_.end());
    heap_.pop_back();
    lock.unlock();
    resume_(*first.queue);
    lock.lock();
  }
}

void Pacer::stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

}  // namespace dgpu::cpu
