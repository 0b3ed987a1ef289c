// Threads of the library that run work from a first-in-first-out list: host callbacks, host tasks, late destruction.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace dgpu {

// One piece of work; lives inside what it works for, so that queueing allocates nothing.
struct Work {
  void (*run)(Work*);
  Work* next;
};

class WorkerThreads {
 public:
  // Threads start with the first push, at most `threads`; `name` shows in debuggers (15 characters).
  WorkerThreads(const char* name, unsigned threads) : name_(name), limit_(threads) {}
  ~WorkerThreads() { stop(); }

  // False after stop: the work is not taken.
  bool push(Work* work);
  // Waits until as much has run as was pushed before: with one thread, everything pushed before. Not from one of these
  // threads.
  void flush();
  // Runs what is queued, then joins. Idempotent.
  void stop();

 private:
  void loop();
  bool start_locked();

  const char* const name_;
  const unsigned limit_;
  std::mutex mutex_;
  std::condition_variable pushed_;
  std::condition_variable idle_;
  Work* head_ = nullptr;
  Work* tail_ = nullptr;
  unsigned waiting_ = 0;
  uint64_t taken_ = 0;  // work items pushed
  uint64_t ended_ = 0;  // work items that have run
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace dgpu
