// What a handle stands for: a reference-counted object of a known kind. References are held by its handles' slots, by
// children (a Ref to the parent is a member), by queued commands and by running calls.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace dgpu {

enum class Kind : uint8_t {
  backend = 1,
  device,
  context,
  timeline,
  stream,
  event,
  kernel,
  op_desc,
  op_plan,
  model,
  session,
  sequence,
  report,
  count_
};

// Intrusive pointer: T has ref() and unref().
template <typename T>
class Ref {
 public:
  Ref() = default;
  Ref(std::nullptr_t) {}
  // Takes over the reference that the pointer already counts.
  static Ref adopt(T* pointer) {
    Ref r;
    r.pointer_ = pointer;
    return r;
  }
  // Adds a reference.
  static Ref retain(T* pointer) {
    if (pointer) pointer->ref();
    return adopt(pointer);
  }
  Ref(const Ref& other) : pointer_(other.pointer_) {
    if (pointer_) pointer_->ref();
  }
  Ref(Ref&& other) noexcept : pointer_(std::exchange(other.pointer_, nullptr)) {}
  template <typename U>
  Ref(const Ref<U>& other) : pointer_(other.get()) {
    if (pointer_) pointer_->ref();
  }
  template <typename U>
  Ref(Ref<U>&& other) noexcept : pointer_(other.detach()) {}
  Ref& operator=(Ref other) noexcept {
    std::swap(pointer_, other.pointer_);
    return *this;
  }
  ~Ref() {
    if (pointer_) pointer_->unref();
  }
  T* get() const { return pointer_; }
  T* operator->() const { return pointer_; }
  T& operator*() const { return *pointer_; }
  explicit operator bool() const { return pointer_ != nullptr; }
  // Gives the reference away.
  T* detach() { return std::exchange(pointer_, nullptr); }
  void reset() { *this = Ref(); }
  friend bool operator==(const Ref& a, const Ref& b) { return a.pointer_ == b.pointer_; }

 private:
  T* pointer_ = nullptr;
};

template <typename T, typename... Args>
Ref<T> make_ref(Args&&... args) {
  return Ref<T>::adopt(new T(std::forward<Args>(args)...));
}

class Object {
 public:
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  Kind kind() const { return kind_; }
  void ref() { refs_.fetch_add(1, std::memory_order_relaxed); }
  void unref() {
    if (refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
  // For a reader of a list that does not count references: false if the object is on its way out already.
  bool try_ref() {
    uint32_t refs = refs_.load(std::memory_order_relaxed);
    while (refs != 0) {
      if (refs_.compare_exchange_weak(refs, refs + 1, std::memory_order_acquire, std::memory_order_relaxed)) return true;
    }
    return false;
  }
  // For threads that must not run destructors: drops the reference unless it is the last one; false then.
  bool unref_unless_last() {
    uint32_t refs = refs_.load(std::memory_order_relaxed);
    while (refs > 1) {
      if (refs_.compare_exchange_weak(refs, refs - 1, std::memory_order_release, std::memory_order_relaxed)) return true;
    }
    return false;
  }
  // The first handle published for it, 0 before.
  uint64_t handle() const { return handle_.load(std::memory_order_relaxed); }
  // A handle of it was retired: by its destroy function, by its scope, or by shutdown. Runs on that thread, while calls
  // in other threads may still be using the object; must not block. The object lives on until its last reference goes.
  virtual void invalidated() {}
  // For waiting until nobody else holds it; another thread may change it at once.
  uint32_t references() const { return refs_.load(std::memory_order_acquire); }
  // Objects alive in this process.
  static uint64_t alive();

 protected:
  explicit Object(Kind kind);
  virtual ~Object();

 private:
  friend struct HandleTable;
  std::atomic<uint32_t> refs_{1};  // the creator's, see Ref::adopt
  const Kind kind_;
  std::atomic<uint64_t> handle_{0};
};

}  // namespace dgpu
