// How a queue's commands are started, run and reported by the thread that owns it.
#include <cxxabi.h>

#include <new>

#include "backends/cpu/executor.h"
#include "backends/cpu/scenario.h"

namespace dgpu::cpu {
namespace {

constexpr uint64_t kShortNs = 10'000;  // user kernels shorter than this are not worth sharing
constexpr uint32_t kReportEvery = 64;  // markers that are reported together
constexpr uint32_t kLinger = 48;       // pauses, some hundred nanoseconds

}  // namespace

// Runs an owned queue until it is empty, its turn is over, or the running command is in other hands. On return the
// queue is not owned any more, except with turn.stay: then it is empty and still owned.
void Executor::drive(Queue& queue, Turn& turn) {
  if (!queue.busy_since.load(std::memory_order_relaxed))
    queue.busy_since.store(turn.begin_ns, std::memory_order_relaxed);
  if (queue.due_ns) {  // comes from the pacer
    queue.due_ns = 0;
    finish(queue, DGPU_STATUS_SUCCESS);
  }
  for (;;) {
    const dgpuBackendCommand* command = queue.front();
    if (!command) {
      report(queue);
      if (turn.mode == Mode::kWorker && linger(queue)) continue;
      queue.load->busy_ns.fetch_add(now_ns() - queue.busy_since.load(std::memory_order_relaxed));
      queue.busy_since.store(0, std::memory_order_relaxed);
      if (turn.mode == Mode::kWorker) {
        turn.stay = true;
        return;
      }
      if (let_go(queue)) return;
      queue.busy_since.store(now_ns(), std::memory_order_relaxed);
      continue;
    }
    if (!allowed(queue, *command, turn) || expired(turn, queue)) {
      report(queue);
      schedule(queue);
      return;
    }
    queue.pop();
    if (!begin(queue, turn)) return;
  }
}

// The queue ran dry. Looking at it at once takes its word away from a thread that is just submitting, and brings one
// command; a moment later there may be several. Not while somebody waits for what has run: the next command comes after
// that. Nor while other queues want the thread. True if there is work.
bool Executor::linger(const Queue& queue) const {
  if (others_wait(queue)) return false;
  if (queue.awaited.load(std::memory_order_relaxed) + 1 >= queue.reported.load(std::memory_order_relaxed)) return false;
  for (uint32_t i = 0; i < kLinger; ++i) pause();
  return queue.incoming.load(std::memory_order_relaxed) > Queue::kDead;
}

bool Executor::allowed(Queue& queue, const dgpuBackendCommand& command, Turn& turn) const {
  switch (turn.mode) {
    case Mode::kWorker:
      return true;
    case Mode::kHelper:
      turn.refused = command.value > turn.helped_value || (command.kind == DGPU_COMMAND_KERNEL && !queue.failed);
      return !turn.refused;
    case Mode::kUserThread:
      break;
  }
  if (command.kind == DGPU_COMMAND_MARKER || queue.failed) return true;
  if (command.kind != DGPU_COMMAND_KERNEL) return false;
  const auto* kernel = static_cast<const dgpuCommandKernel*>(command.payload)->kernel;
  return reinterpret_cast<const HostKernel*>(kernel)->may_block();
}

// Starts the current command. False if it, and with it the queue, is in other hands now.
bool Executor::begin(Queue& queue, Turn& turn) {
  dgpuBackendCommand& command = *queue.current;
  if (command.flags & DGPU_COMMAND_TIMED) command.begin_ns = now_ns();
  if (queue.scenario && interfere(queue)) [[unlikely]]
    return true;
  if (queue.failed) {
    finish(queue, DGPU_STATUS_CANCELLED);
    return true;
  }
  if (command.kind == DGPU_COMMAND_MARKER) {
    finish(queue, DGPU_STATUS_SUCCESS);
    return true;
  }
  report(queue);  // the next command may take long
  queue.error_status.store(DGPU_STATUS_SUCCESS, std::memory_order_relaxed);
  if (command.kind == DGPU_COMMAND_KERNEL) {
    // A small launch is one call, which needs none of what follows.
    const KernelTask task(*static_cast<const dgpuCommandKernel*>(command.payload));
    if (!task.may_block() && task.chunks(0) == 1) {
      run_chunk(queue, task, 0, 0);
      return complete(queue);
    }
  }
  dgpuStatus_t status = DGPU_STATUS_OUT_OF_HOST_MEMORY;
  try {
    status = queue.slot.make(command);
    if (status < 0) queue.record_error(0, status, kit::failure().c_str());
  } catch (const std::bad_alloc&) {
    queue.record_error(0, status, "no host memory for the command's arguments");
  }
  if (status >= 0 && queue.slot.task()->may_block() && turn.mode != Mode::kUserThread) {
    if (user_threads_.post(queue)) return false;
    status = DGPU_STATUS_OUT_OF_HOST_MEMORY;
    queue.record_error(0, status, "no thread can be started for a kernel that may block");
  }
  if (status >= 0) return run_phases(queue, turn, 0);
  finish(queue, status);
  return true;
}

// What the scenario does to the current command. True if that was its end.
bool Executor::interfere(Queue& queue) {
  const Scenario::Verdict verdict = queue.scenario->before(queue.device_index, *queue.current, queue.failed);
  switch (verdict.what) {
    case Scenario::Verdict::What::kRun:
      queue.due_ns = verdict.due_ns;
      return false;
    case Scenario::Verdict::What::kDrop:
      queue.current = nullptr;
      return true;
    case Scenario::Verdict::What::kFail:
      break;
  }
  report(queue);
  queue.error_status.store(DGPU_STATUS_SUCCESS, std::memory_order_relaxed);
  queue.record_error(0, verdict.status, verdict.text);
  finish(queue, queue.failed ? DGPU_STATUS_CANCELLED : verdict.status);
  return true;
}

// Runs the phases from `phase` on. True if the command was finished here: the queue is still owned.
bool Executor::run_phases(Queue& queue, Turn& turn, uint32_t phase) {
  const Task* task = queue.slot.task();
  const auto failed = [&] { return queue.error_status.load(std::memory_order_acquire) < 0; };
  for (; !failed() && phase < task->phases(); ++phase) {
    const uint32_t chunks = chunks_of(queue, *task, phase);
    const uint32_t done = run_alone(queue, turn, *task, phase, chunks);
    if (done == chunks || failed()) continue;
    queue.phase = phase;
    queue.remaining.store(chunks - done, std::memory_order_relaxed);
    queue.claims.open(done, chunks, task->user());
    open_.add(queue.index);
    if (chunks - done > 1) wake(chunks - done - 1);
    if (!run_claimed(queue, turn, claim(queue, turn.mode == Mode::kWorker))) return false;
    // Others may have finished the phase before this thread claimed anything, and gone on: what it claimed, and now
    // owns, is whatever is current.
    phase = queue.phase;
    task = queue.slot.task();
  }
  return complete(queue);
}

// The current command has run. True if it was reported; otherwise the pacer has the queue now.
bool Executor::complete(Queue& queue) {
  const dgpuStatus_t status = queue.error_status.load(std::memory_order_acquire);
  if (queue.due_ns && status >= 0 && now_ns() < queue.due_ns) {
    pacer_.post(queue, queue.due_ns);
    return false;
  }
  queue.due_ns = 0;
  finish(queue, status);
  return true;
}

// Runs the chunks that are not worth sharing, or must not be; the number that was run. Short user kernels are found
// by running one chunk.
uint32_t Executor::run_alone(Queue& queue, const Turn& turn, const Task& task, uint32_t phase, uint32_t chunks) {
  uint32_t alone = chunks == 1 || turn.mode == Mode::kUserThread ? chunks : task.user() ? 1 : 0;
  if (alone > chunks) alone = chunks;
  const bool measure = alone == 1 && chunks > 1;
  const uint64_t begin = measure ? now_ns() : 0;
  uint32_t done = 0;
  while (done < alone && queue.error_status.load(std::memory_order_relaxed) >= 0) {
    run_chunk(queue, task, phase, done++);
    if (measure && done == 1 && (now_ns() - begin) * (chunks - 1) < kShortNs) alone = chunks;
  }
  return done;
}

// Runs claimed chunks until none is left. True if this thread finished the phase and owns the queue now.
bool Executor::run_claimed(Queue& queue, Turn& turn, Claims::Chunk chunk) {
  while (chunk.valid) {
    run_chunk(queue, *queue.slot.task(), queue.phase, chunk.index);
    uint32_t finished = 1;
    if (queue.error_status.load(std::memory_order_relaxed) < 0) finished += queue.claims.claim_rest();
    if (queue.remaining.fetch_sub(finished, std::memory_order_acq_rel) == finished) return true;
    if (expired(turn, queue)) return false;
    chunk = claim(queue, turn.mode == Mode::kWorker);
  }
  return false;
}

Claims::Chunk Executor::claim(Queue& queue, bool user_allowed) {
  const Claims::Chunk chunk = queue.claims.claim(user_allowed);
  if (chunk.last && open_.take(queue.index) == IndexSet::Take::kTakenSeen) wake(1);
  return chunk;
}

// no_sanitize: a handler of a forced unwind gets a null reference.
__attribute__((no_sanitize("null"))) void Executor::run_chunk(Queue& queue, const Task& task, uint32_t phase,
                                                              uint32_t chunk) {
  dgpuStatus_t status = DGPU_STATUS_INTERNAL;
  const char* text = nullptr;
  try {
    status = task.run(phase, chunk);
    if (status >= 0) return;
    text = kit::failure().c_str();
  } catch (const std::bad_alloc&) {
    status = DGPU_STATUS_OUT_OF_HOST_MEMORY;
    text = "no host memory for scratch";
  } catch (const abi::__forced_unwind&) {  // pthread_exit: to keep it here would be the C library's abort
    queue.record_error(chunk, DGPU_STATUS_CALLBACK_FAILED, "the kernel's function ended its thread");
    throw;
  } catch (...) {
    if (task.user()) status = DGPU_STATUS_CALLBACK_FAILED;
    text = task.user() ? "the kernel's function threw an exception" : "an exception left a chunk";
  }
  queue.record_error(chunk, status, text);
}

uint32_t Executor::chunks_of(Queue& queue, const Task& task, uint32_t phase) {
  try {
    const uint32_t chunks = task.chunks(phase);
    if (chunks <= Task::kMaxChunks) return chunks;
    queue.record_error(0, DGPU_STATUS_INTERNAL, "a phase has more chunks than the executor counts");
  } catch (...) {
    queue.record_error(0, DGPU_STATUS_INTERNAL, "an exception left the chunk count of a phase");
  }
  return 0;
}

void Executor::finish(Queue& queue, dgpuStatus_t status) {
  dgpuBackendCommand& command = *queue.current;
  queue.current = nullptr;
  if (command.flags & DGPU_COMMAND_TIMED) command.end_ns = now_ns();
  if (status >= 0) {
    queue.unreported = command.value;
    if (++queue.unreported_count >= kReportEvery) report(queue);
    return;
  }
  const uint64_t value = command.value;
  const char* text = queue.failed ? nullptr : queue.error_text;
  queue.failed = true;
  queue.unreported = 0;
  queue.unreported_count = 0;
  if (queue.muted()) return;
  services_.advance(queue.core_queue, value, status, text, 0);
  queue.reported.store(value, std::memory_order_release);
}

void Executor::report(Queue& queue) {
  if (!queue.unreported_count) return;
  const uint64_t value = queue.unreported;
  queue.unreported_count = 0;
  if (queue.muted()) return;
  services_.advance(queue.core_queue, value, DGPU_STATUS_SUCCESS, nullptr, 0);
  queue.reported.store(value, std::memory_order_release);
}

}  // namespace dgpu::cpu
