#include "backends/cpu/executor.h"

#include <cxxabi.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cfenv>
#include <system_error>

namespace dgpu::cpu {
namespace {

// How long a thread without work spins before it sleeps: a few times what waking it costs. On virtual machines an idle
// core takes 50 to 60 us to come back, and a caller that slept itself is back only then.
constexpr uint64_t kSpinNs = 150'000;
constexpr uint64_t kYieldAfterNs = 8'000;  // from then on a spinning thread offers its core to others
constexpr uint64_t kYieldSoonNs = 100;     // instead, where that brought the work last time: the caller shares the core
constexpr uint32_t kProbe = 16;            // every so many times it looks again whether that is still so
// A yield that took this long gave the core to somebody who needs it: no core is idle. For a while spinning ends before
// the first yield, as each one may cost a time slice of the system.
constexpr uint64_t kContendedNs = 30'000;
constexpr uint64_t kContendedForNs = 100'000'000;
constexpr uint64_t kQuantumNs = 300'000;            // with one queue while others wait
constexpr uint64_t kLostPatience = 10'000'000'000;  // ns for a running command to end after its device was lost

void futex_wait(std::atomic<uint32_t>& word, uint32_t value) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>& word, int count) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

thread_local uint64_t t_contended_until = 0;
thread_local bool t_inside = false;  // a worker, a user thread, or a thread that is helping already

}  // namespace

uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
}

Executor::Executor(const Services& services, uint32_t threads, uint32_t cores)
    : services_(services),
      thread_count_(threads),
      cores_(std::max(cores, threads)),
      user_threads_([this](Queue& queue) { user_thread(queue); }),
      pacer_([this](Queue& queue) { schedule(queue); }) {}

Executor::~Executor() { stop(); }

bool Executor::start(bool pacer, std::string* error) {
  const std::lock_guard lock(mutex_);
  if (!workers_.empty()) return true;
  if (pacer && !pacer_.start(kMaxQueues, error)) return false;
  const uint32_t wanted = thread_count_;
  workers_.reserve(wanted);
  for (uint32_t i = 0; i < wanted; ++i) {
    try {
      workers_.push_back(start_thread([this] { worker(); }, fmt::format("dgpu-cpu-{}", i).c_str()));
    } catch (const std::system_error& e) {
      *error = fmt::format("worker thread {} of {} cannot be started: {}", i + 1, wanted, e.what());
      break;
    }
  }
  thread_count_ = static_cast<uint32_t>(workers_.size());
  return !workers_.empty();
}

void Executor::stop() {
  std::vector<std::thread> workers;
  {
    const std::lock_guard lock(mutex_);
    workers.swap(workers_);
  }
  if (!workers.empty()) {
    for (uint32_t i = 0; i < used_; ++i) {
      const auto& incoming = at(i).incoming;
      while (incoming.load() != Queue::kIdle && incoming.load() != Queue::kDead) usleep(100);
    }
    stopping_.store(true);
    permits_.fetch_add(static_cast<uint32_t>(workers.size()));
    futex_wake(permits_, static_cast<int>(workers.size()));
    for (auto& thread : workers) thread.join();
  }
  user_threads_.stop();
  pacer_.stop();
}

// ---- Queues --------------------------------------------------------------------------------------------------------

Queue& Executor::at(uint32_t index) const { return blocks_[index / kBlock][index % kBlock]; }

Queue* Executor::create(const QueueOf& owner, dgpuCoreQueue* core_queue, int32_t priority) {
  const std::lock_guard lock(mutex_);
  uint32_t index = used_;
  if (!free_.empty()) {
    index = free_.back();
  } else {
    if (used_ == kMaxQueues) return nullptr;
    if (!blocks_[used_ / kBlock]) blocks_[used_ / kBlock] = std::make_unique_for_overwrite<Queue[]>(kBlock);
    free_.reserve(used_ + 1);  // so that release cannot fail
  }
  Queue& queue = at(index);
  if (index == used_) {
    ++used_;
    queue.index = index;  // for good: a thread may still look at a slot that was released and taken again
  } else {
    free_.pop_back();
  }
  queue.priority_class = priority > 0 ? 0 : priority == 0 ? 1 : 2;
  queue.core_queue = core_queue;
  queue.load = owner.load;
  queue.scenario = owner.scenario;
  queue.device_index = owner.index;
  queue.taken_count = 0;
  queue.pending = queue.current = nullptr;
  queue.unreported = 0;
  queue.failed = false;
  queue.due_ns = 0;
  queue.reported.store(0);
  queue.awaited.store(0);
  queue.busy_since.store(0);
  queue.incoming.store(Queue::kIdle);
  queue.device.store(owner.device);
  return &queue;
}

// The core may destroy a queue inside the report of its last command, while a thread still owns it: the owner then
// releases the slot. A queue of a lost device may even hold commands: what runs ends before this returns, as its memory
// goes next, and the rest is forgotten.
void Executor::destroy(Queue& queue) {
  const void* const device = queue.device.load();
  const bool may_be_lost = queue.scenario != nullptr;
  if (queue.incoming.exchange(Queue::kDead) == Queue::kIdle) return release(queue);
  if (!may_be_lost || t_inside) return;
  const uint64_t give_up = now_ns() + kLostPatience;
  while (queue.device.load() == device && queue.incoming.load() == Queue::kDead && now_ns() < give_up) usleep(100);
}

void Executor::release(Queue& queue) {
  const std::lock_guard lock(mutex_);
  queue.device.store(nullptr);
  free_.push_back(queue.index);
}

// The owner lets an empty queue go. False if there is new work.
bool Executor::let_go(Queue& queue) {
  uintptr_t state = Queue::kOwned;
  if (queue.incoming.compare_exchange_strong(state, Queue::kIdle)) return true;
  if (state != Queue::kDead) return false;
  release(queue);
  return true;
}

void Executor::submit(Queue& queue, dgpuBackendCommand* const* commands, uint32_t count) {
  if (count && queue.push(commands, count)) schedule(queue);
}

void Executor::reset(Queue& queue) { queue.failed = false; }

void Executor::schedule(Queue& queue) {
  ready_[queue.priority_class].add(queue.index);
  wake(1);
}

bool Executor::take_ready(Queue& queue) {
  const auto taken = ready_[queue.priority_class].take(queue.index);
  if (taken == IndexSet::Take::kTakenSeen) wake(1);
  return taken != IndexSet::Take::kAbsent;
}

uint64_t Executor::busy_ns(const void* device, const DeviceLoad& load) {
  const std::lock_guard lock(mutex_);
  uint64_t sum = load.busy_ns.load();
  const uint64_t now = now_ns();
  for (uint32_t i = 0; i < used_; ++i) {
    const Queue& queue = at(i);
    const uint64_t since = queue.busy_since.load();
    if (queue.device.load() == device && since && since < now) sum += now - since;
  }
  return sum;
}

// ---- Threads -------------------------------------------------------------------------------------------------------

void Executor::worker() {
  t_inside = true;
  Self self;
  while (!stopping_.load(std::memory_order_relaxed)) {
    // Mostly ready queues first, as each brings work of its own; sometimes open chunks, so that none starves.
    const bool worked = ++self.picks % 4 ? run_ready(self) || run_open(self) : run_open(self) || run_ready(self);
    if (worked) continue;
    if (!self.tired) {
      self.tired = spin(nullptr) == Spin::kEnough;
    } else {
      sleep();
      self.tired = false;
    }
    self.fresh = true;
  }
}

bool Executor::run_ready(Self& self) {
  for (auto& set : ready_) {
    const int32_t index = set.next(self.cursor);
    if (index < 0) continue;
    self.cursor = static_cast<uint32_t>(index);
    Queue& queue = at(self.cursor);
    if (!take_ready(queue)) return true;  // another thread was faster; look again
    took_work(self, 0);
    Turn turn{Mode::kWorker, now_ns()};
    drive(queue, turn);
    stay(queue, turn, self);
    return true;
  }
  return false;
}

bool Executor::run_open(Self& self) {
  const int32_t index = open_.next(self.cursor);
  if (index < 0) return false;
  self.cursor = static_cast<uint32_t>(index);
  Queue& queue = at(self.cursor);
  const Claims::Chunk chunk = claim(queue, true);
  if (!chunk.valid) {  // left over from a phase whose last chunk was claimed before the queue got into the set
    open_.take(self.cursor);
    if (queue.claims.any(true)) open_.add(self.cursor);
    return true;
  }
  took_work(self, chunk.left);
  Turn turn{Mode::kWorker, now_ns()};
  if (run_claimed(queue, turn, chunk) && run_phases(queue, turn, queue.phase + 1)) {
    drive(queue, turn);
    stay(queue, turn, self);
  }
  return true;
}

// Keeps an empty queue for a while: a submit that follows soon needs no scheduling.
void Executor::stay(Queue& queue, Turn& turn, Self& self) {
  while (turn.stay) {
    turn.stay = false;
    const Spin end = spin(&queue);
    self.tired = end == Spin::kEnough;
    self.fresh = true;
    if (end != Spin::kQueue) return;
    took_work(self, 0);
    turn.begin_ns = now_ns();
    drive(queue, turn);
  }
}

// A thread that came out of idling has found work: others may have relied on it for theirs.
void Executor::took_work(Self& self, uint32_t more) {
  self.tired = false;
  if (more) wake(more);
  if (!self.fresh) return;
  self.fresh = false;
  if (!more && split(counts_.load()).spinning == 0 && any_work()) wake(1);
}

bool Executor::any_work() const { return ready_[0].any() || ready_[1].any() || ready_[2].any() || open_.any(); }

bool Executor::others_wait(const Queue& queue) const {
  return ready_[0].any() || ready_[1].any() || ready_[2].any() || (open_.any() && open_.any_other(queue.index));
}

bool Executor::expired(const Turn& turn, const Queue& queue) const {
  switch (turn.mode) {
    case Mode::kWorker:
      return others_wait(queue) && now_ns() - turn.begin_ns > kQuantumNs;
    case Mode::kHelper:
      return queue.reported.load(std::memory_order_relaxed) >= turn.helped_value;
    case Mode::kUserThread:
      break;
  }
  return false;
}

// Spins for new work, on `queue` (owned and empty) too if it is given. kQueue: it has work and is still owned.
// Otherwise it was let go.
Executor::Spin Executor::spin(Queue* queue) {
  uint64_t word = counts_.load();
  bool may = false;
  do {
    const Counts c = split(word);
    may = busy(c) + c.spinning <= cores_;
  } while (may && !counts_.compare_exchange_weak(word, word + kSpinning));
  Spin end = Spin::kEnough;
  if (may) {
    end = spin_loop(queue);
    counts_.fetch_sub(kSpinning);
  }
  if (queue && end != Spin::kQueue && !let_go(*queue)) end = Spin::kQueue;
  return end;
}

Executor::Spin Executor::spin_loop(Queue* queue) {
  const uint64_t begin = now_ns();
  const uint64_t limit = begin < t_contended_until ? kYieldAfterNs : kSpinNs;
  thread_local bool yield_soon = false;
  thread_local uint32_t spins = 0;
  const bool soon = yield_soon && ++spins % kProbe != 0;
  uint64_t next_yield = begin + (soon ? kYieldSoonNs : kYieldAfterNs);
  uint32_t yields = 0;
  for (uint32_t i = 1;; ++i) {
    const bool queued = queue && queue->incoming.load(std::memory_order_relaxed) > Queue::kDead;
    if (queued || any_work()) {
      yield_soon = yields == 1 || yields == 2;
      return queued ? Spin::kQueue : Spin::kWork;
    }
    pause();
    if (i % (soon ? 2 : 8)) continue;
    if (stopping_.load(std::memory_order_relaxed)) return Spin::kEnough;
    const Counts c = split(counts_.load());
    const uint64_t now = now_ns();
    if (now - begin > limit || busy(c) + c.spinning > cores_) return Spin::kEnough;
    if (now < next_yield) continue;
    sched_yield();
    ++yields;
    const uint64_t back = now_ns();
    next_yield = back + (soon ? kYieldSoonNs : kYieldAfterNs / 4);
    if (back - now < kContendedNs) continue;
    t_contended_until = back + kContendedForNs;
    return Spin::kEnough;
  }
}

void Executor::sleep() {
  counts_.fetch_add(kSleeping);
  if (any_work() || stopping_.load()) {
    // Undo, unless a waker has already counted this thread (or another sleeper in its place) as awake.
    uint64_t word = counts_.load();
    while (split(word).sleeping)
      if (counts_.compare_exchange_weak(word, word - kSleeping)) return;
  }
  for (;;) {
    uint32_t permits = permits_.load();
    if (permits && permits_.compare_exchange_weak(permits, permits - 1)) break;
    if (!permits) futex_wait(permits_, 0);
  }
  counts_.fetch_sub(kSpinning);  // its waker counted it as spinning
}

// Wakes at most two threads, and none where enough spin already or no core is idle.
void Executor::wake(uint32_t wanted) {
  for (uint32_t i = 0; i < 2; ++i) {
    uint64_t word = counts_.load();
    do {
      const Counts c = split(word);
      if (!c.sleeping || c.spinning >= wanted || busy(c) + c.spinning >= cores_) return;
    } while (!counts_.compare_exchange_weak(word, word - kSleeping + kSpinning));
    permits_.fetch_add(1);
    futex_wake(permits_, 1);
  }
}

__attribute__((no_sanitize("null"))) void Executor::user_thread(Queue& queue) {
  t_inside = true;
  Turn turn{Mode::kUserThread, now_ns()};
  try {
    if (run_phases(queue, turn, 0)) drive(queue, turn);
  } catch (const abi::__forced_unwind&) {
    // The kernel's function ended this thread, as Python does to threads that enter it while it exits. Its command has
    // failed, and a worker goes on with the queue.
    queue.due_ns = 0;
    finish(queue, queue.error_status.load(std::memory_order_acquire));
    schedule(queue);
    throw;
  }
}

bool Executor::help(Queue& queue, uint64_t value) {
  if (t_inside) return false;
  if (queue.awaited.load(std::memory_order_relaxed) < value) queue.awaited.store(value, std::memory_order_relaxed);
  std::fenv_t saved;
  bool entered = false, did = false;
  while (queue.reported.load() < value) {
    // Looking costs the busy threads nothing; the shared counts are touched only when there is something to take.
    if (!ready_[queue.priority_class].contains(queue.index) && !queue.claims.any(false)) break;
    uint64_t word = counts_.load();
    bool may = false;
    do {
      may = busy(split(word)) < cores_;
    } while (may && !counts_.compare_exchange_weak(word, word + kHelping));
    if (!may) break;
    if (!entered) {
      std::fegetenv(&saved);
      std::fesetenv(FE_DFL_ENV);
      entered = t_inside = true;
    }
    Turn turn{Mode::kHelper, 0, value};
    const uint64_t before = queue.reported.load();
    bool worked = true;
    if (take_ready(queue)) {
      turn.begin_ns = now_ns();
      drive(queue, turn);
    } else if (const Claims::Chunk chunk = claim(queue, false); chunk.valid) {
      if (run_claimed(queue, turn, chunk) && run_phases(queue, turn, queue.phase + 1)) drive(queue, turn);
    } else {
      worked = false;
    }
    counts_.fetch_sub(kHelping);
    if (any_work()) wake(1);
    // A queue whose next command is user code was only taken and given back.
    did = did || (worked && (!turn.refused || queue.reported.load() != before));
    if (!worked || turn.refused) break;
  }
  if (entered) {
    t_inside = false;
    std::fesetenv(&saved);
  }
  return did;
}

}  // namespace dgpu::cpu
