#include "runtime/submission.h"

#include <cstring>
#include <new>
#include <thread>

#include "base/thread.h"
#include "runtime/runtime.h"

namespace dgpu {

namespace {
constexpr unsigned kYields = 1000;  // for a pump on another thread, before a queue counts as full
constexpr uint64_t kAhead = 12;  // slots; by then the lines of a slot have come from the core that ran its last command

inline void prefetch_for_write(const void* address) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(address)));
#else
  __builtin_prefetch(address, 1);
#endif
}

// What a backend may have written of a slot, and what it leaves alone.
inline void prefetch_slot(const Slot& slot) {
  prefetch_for_write(&slot.command);
  prefetch_for_write(&slot.copy);
  prefetch_for_write(&slot.kind);
}
}  // namespace

Submission::~Submission() {
  if (!lock_.owns_lock()) return;
  std::vector<HostTask> tasks;
  for (uint32_t i = 1; i <= added_; ++i) {
    Slot& s = stream_.slot(base_ + i);
    if (s.kind == SlotKind::task && s.task.drop) tasks.push_back(s.task);
    if (s.stamp) s.stamp->unref();
    s.keep = nullptr;  // no reference was taken yet
  }
  if (bytes_) stream_.arena_.rewind(arena_before_);
  lock_.unlock();
  for (const HostTask& task : tasks) task.drop(task.data);
}

Status Submission::begin(uint32_t commands, size_t argument_bytes, bool accept_failed) {
  const uint64_t capacity = stream_.mask_ + 1;
  if (commands > capacity || argument_bytes > stream_.arena_.capacity() / 2) [[unlikely]] {
    return fail(DGPU_STATUS_CAPACITY, "stream",
                "{} commands with {} bytes of arguments must be submitted at once; the stream holds {} commands and "
                "takes {} bytes at once: create it with a larger capacity",
                commands, argument_bytes, capacity, stream_.arena_.capacity() / 2);
  }
  lock_ = std::unique_lock(stream_.submit_);
  for (;;) {
    const Status state = stream_.state_.load(std::memory_order_acquire);
    if (state != 0 && !(accept_failed && state == DGPU_STATUS_STREAM_FAILED)) [[unlikely]] {
      lock_.unlock();
      return stream_.refusal();
    }
    base_ = stream_.reserved_;
    const uint64_t reclaimed = stream_.reclaimed_.load(std::memory_order_acquire);
    const bool slots_free = base_ + commands - reclaimed <= capacity;
    if (slots_free) [[likely]] {
      if (argument_bytes == 0) break;
      arena_before_ = stream_.arena_.head();
      bytes_ = static_cast<std::byte*>(stream_.arena_.allocate(argument_bytes));
      if (bytes_) break;
    }
    DGPU_TRY(wait_for_room(slots_free ? reclaimed + 1 : base_ + commands - capacity));
    if (!lock_.owns_lock()) return DGPU_STATUS_QUEUE_FULL;
  }
  prefetch_slot(stream_.slot(base_ + kAhead));
  bytes_left_ = argument_bytes;
  room_ = commands;
  return DGPU_STATUS_SUCCESS;
}

// Comes back with the lock when `needed` was taken back, without it if the stream does not wait.
Status Submission::wait_for_room(uint64_t needed) {
  lock_.unlock();
  // What has retired is taken back by the pump. It runs here, unless another thread is at it.
  for (unsigned i = 0; i < kYields && stream_.timeline_->retired() >= needed; ++i) {
    if (i) std::this_thread::yield();
    stream_.tidy();
    if (stream_.reclaimed_.load(std::memory_order_acquire) < needed) continue;
    lock_.lock();
    return DGPU_STATUS_SUCCESS;
  }
  if (!stream_.blocking_submit_) return DGPU_STATUS_SUCCESS;
  if (in_user_code()) {
    return fail(DGPU_STATUS_NOT_PERMITTED, "stream",
                "the queue is full, and waiting for room is not permitted inside a host callback or a kernel");
  }
  const Status status = stream_.wait(needed, DGPU_TIMEOUT_INFINITE);
  // A failed value has retired all the same; what the stream's state says comes next.
  if (status < 0 && stream_.timeline_->settled() < needed) return status;
  lock_.lock();
  return DGPU_STATUS_SUCCESS;
}

Status Submission::locate(dgpuAddr_t address, uint64_t bytes, const char* argument, Location& out) const {
  const Context* context = stream_.context();
  return context->runtime().addresses().resolve(context, address, bytes, argument, out);
}

Status Submission::device_ref(const Location& location, const char* argument, dgpuBackendRef& out) const {
  const Segment* segment = location.segment;
  if (!segment) {
    out = {};
    return DGPU_STATUS_SUCCESS;
  }
  const uint32_t device = stream_.device_index();
  if (segment->device == device) [[likely]] {
    out = {segment->memory, location.offset, segment->native ? segment->native + location.offset : 0};
    return DGPU_STATUS_SUCCESS;
  }
  if (segment->device == Segment::kHost && device < segment->registered.size()) {
    const dgpuBackendAllocation& here = segment->registered[device];
    if (here.memory) {
      out = {here.memory, location.offset, here.native ? here.native + location.offset : 0};
      return DGPU_STATUS_SUCCESS;
    }
    return fail(DGPU_STATUS_INVALID_ADDRESS, argument,
                "{} lies in pinned host memory, which {} cannot reach except by copies; copy it to the device first",
                argument, stream_.device().label());
  }
  return fail(DGPU_STATUS_INVALID_ADDRESS, argument, "{} lies on {}, but the stream runs on {}; copy it there first",
              argument, stream_.context()->device(segment->device).label(), stream_.device().label());
}

void* Submission::arguments(size_t bytes) {
  bytes = round16(bytes);
  if (bytes > bytes_left_) throw std::bad_alloc();  // the caller asked for too little in begin
  void* here = bytes_;
  bytes_ += bytes;
  bytes_left_ -= bytes;
  return here;
}

Slot& Submission::next(SlotKind kind, const char* op, Object* keep) {
  if (added_ == room_) throw std::bad_alloc();  // likewise
  Slot& s = stream_.slot(base_ + ++added_);
  s.command = {};
  s.command.struct_size = sizeof(dgpuBackendCommand);
  s.command.value = base_ + added_;
  s.kind = kind;
  s.skipped = false;
  s.done = false;
  s.result = DGPU_STATUS_SUCCESS;
  s.error = nullptr;
  s.keep = keep;  // the caller holds it until commit
  s.stamp = nullptr;
  s.function = function_;
  s.op = op;
  s.arena_end = 0;
  return s;
}

Slot& Submission::add(uint32_t command_kind, const char* op, Object* keep) {
  Slot& s = next(SlotKind::backend, op, keep);
  s.command.kind = command_kind;
  s.command.payload = command_kind == DGPU_COMMAND_MARKER ? nullptr : static_cast<const void*>(&s.copy);
  return s;
}

Status Submission::add_op(const OpArguments& a) {
  auto* ports = static_cast<dgpuBackendRef*>(arguments(a.port_count * sizeof(dgpuBackendRef)));
  for (uint32_t i = 0; i < a.port_count; ++i) {
    const char* name = a.names ? a.names[i] : "addresses";
    Location location;
    if (a.addresses[i] || a.bytes[i]) DGPU_TRY(locate(a.addresses[i], a.bytes[i], name, location));
    DGPU_TRY(device_ref(location, name, ports[i]));
  }
  dgpuBackendRef workspace{};
  if (a.workspace_bytes) {
    Location location;
    DGPU_TRY(locate(a.workspace, a.workspace_bytes, "workspace", location));
    DGPU_TRY(device_ref(location, "workspace", workspace));
  }
  auto* symbols = static_cast<int64_t*>(arguments(a.symbol_count * sizeof(int64_t)));
  if (a.symbol_count) std::memcpy(symbols, a.symbols, a.symbol_count * sizeof(int64_t));
  Slot& s = add(DGPU_COMMAND_OP, a.op, a.keep);
  s.op_command = {sizeof(dgpuCommandOp), a.plan, ports, symbols, a.port_count, a.symbol_count, workspace};
  return DGPU_STATUS_SUCCESS;
}

void Submission::add_marker(Stamp* stamp) {
  Slot& s = add(DGPU_COMMAND_MARKER);
  s.command.flags = DGPU_COMMAND_TIMED;
  stamp->ref();
  s.stamp = stamp;
}

void Submission::add_wait(Timeline* timeline, uint64_t value) {
  next(SlotKind::wait, "", timeline).wait = {timeline, value};
}

void Submission::add_signal(Timeline* timeline, uint64_t value) {
  next(SlotKind::signal, "", timeline).wait = {timeline, value};
}

void Submission::add_callback(dgpuHostCallback callback, void* user) {
  Slot& s = next(SlotKind::callback, "", nullptr);
  s.callback.function = callback;
  s.callback.user = user;
}

void Submission::add_task(const HostTask& task, const char* op, Object* keep) {
  next(SlotKind::task, op, keep).task = task;
}

void Submission::add_task(std::function<Status()> body, const char* op, Object* keep) {
  auto owned = std::make_unique<std::function<Status()>>(std::move(body));
  HostTask task;
  task.run = [](void* data) { return (*static_cast<std::function<Status()>*>(data))(); };
  task.drop = [](void* data) { delete static_cast<std::function<Status()>*>(data); };
  task.data = owned.get();
  add_task(task, op, keep);
  owned.release();
}

uint64_t Submission::commit() {
  const uint64_t last = base_ + added_;
  for (uint64_t value = base_ + 1; value <= last; ++value) {
    Object* const keep = stream_.slot(value).keep;
    if (keep && !stream_.slot(value - 1).take_keep_of(keep)) keep->ref();
  }
  if (bytes_) stream_.slot(last).arena_end = stream_.arena_.head();
  stream_.reserved_ = last;
  stream_.timeline_->publish_submitted(last);
  lock_.unlock();
  stream_.request(1);
  return last;
}

// ---- one command ---------------------------------------------------------------------------------------------------

namespace {
// SUCCESS goes on; QUEUE_FULL and errors go back to the caller.
#define BEGIN_OR_RETURN(...) \
  if (const Status begun = submission.begin(__VA_ARGS__); begun != DGPU_STATUS_SUCCESS) return begun
}  // namespace

Status submit_wait(Stream& stream, const char* function, Timeline* timeline, uint64_t value) {
  DGPU_TRY(timeline->check_waitable(value));
  Submission submission(stream, function);
  BEGIN_OR_RETURN();
  submission.add_wait(timeline, value);
  submission.commit();
  return DGPU_STATUS_SUCCESS;
}

Status submit_signal(Stream& stream, const char* function, Timeline* timeline, uint64_t value) {
  Submission submission(stream, function);
  BEGIN_OR_RETURN();
  if (!timeline->add_mover()) return fail(DGPU_STATUS_INVALID_HANDLE, "timeline", "timeline was destroyed");
  submission.add_signal(timeline, value);
  submission.commit();
  return DGPU_STATUS_SUCCESS;
}

Status submit_callback(Stream& stream, const char* function, dgpuHostCallback callback, void* user) {
  Submission submission(stream, function);
  BEGIN_OR_RETURN();
  submission.add_callback(callback, user);
  submission.commit();
  return DGPU_STATUS_SUCCESS;
}

}  // namespace dgpu
