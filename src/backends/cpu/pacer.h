// Holds queues whose command has run but may not be reported yet. One thread, which only sleeps and hands queues back.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace dgpu::cpu {

struct Queue;

class Pacer {
 public:
  // `resume` gets a queue when its time has come; called on the pacer's thread.
  explicit Pacer(std::function<void(Queue&)> resume) : resume_(std::move(resume)) {}
  ~Pacer() { stop(); }
  // Once. False with `error` set if no thread can be started.
  bool start(size_t queues, std::string* error);
  // Takes over an owned queue until `due_ns` (now_ns clock). Allocates nothing.
  void post(Queue& queue, uint64_t due_ns);
  void stop();  // joins; nothing is held any more

 private:
  struct Held {
    uint64_t due_ns;
    Queue* queue;
    bool operator<(const Held& other) const { return due_ns > other.due_ns; }  // the earliest on top
  };
  void loop();
  const std::function<void(Queue&)> resume_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Held> heap_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace dgpu::cpu
