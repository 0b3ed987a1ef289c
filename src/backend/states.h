// Typed state that a room hangs on an object of a lower room, which does not know it. Made on first use, destroyed in
// reverse order.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

namespace dgpu::backend {

struct DeviceState {
  virtual ~DeviceState() = default;
};

template <typename Owner, typename Base, unsigned kMax = 16>
class States {
 public:
  States() = default;
  States(const States&) = delete;
  States& operator=(const States&) = delete;
  ~States() { clear(); }

  template <typename T>
  T& get(Owner& owner) {
    static const unsigned index = next().fetch_add(1);
    if (index >= kMax) throw std::bad_alloc();
    Base* found = slots_[index].load(std::memory_order_acquire);
    if (!found) [[unlikely]] {
      std::lock_guard lock(mutex_);
      found = slots_[index].load(std::memory_order_relaxed);
      if (!found) {
        auto made = std::make_unique<T>(owner);
        order_.reserve(kMax);
        order_.push_back(index);
        found = made.release();
        slots_[index].store(found, std::memory_order_release);
      }
    }
    return *static_cast<T*>(found);
  }

  void clear() {
    while (!order_.empty()) {
      const unsigned index = order_.back();
      order_.pop_back();
      delete slots_[index].exchange(nullptr);
    }
  }

 private:
  static std::atomic<unsigned>& next() {
    static std::atomic<unsigned> counter{0};
    return counter;
  }
  std::recursive_mutex mutex_;
  std::vector<unsigned> order_;
  std::atomic<Base*> slots_[kMax] = {};
};

}  // namespace dgpu::backend
