#include "backends/cpu/queue.h"

#include <cstddef>
#include <utility>

#include "backends/kit/abi.h"

namespace dgpu::cpu {

namespace {
// A command that is to run soon: its lines come to this core as if to be written to. If two cores shared them, the core
// that fills the slot next time would have to ask for each anew, one round trip after the other.
inline void claim_lines(dgpuBackendCommand& command) {
  static_assert(offsetof(dgpuBackendCommand, backend) < 64 && offsetof(dgpuBackendCommand, begin_ns) >= 64);
  // Through volatile, as nobody reads what is written.
  static_cast<void* volatile&>(command.backend[Queue::kLinks]) = nullptr;
  static_cast<volatile uint64_t&>(command.begin_ns) = 0;
}
}  // namespace

// Each command names the three before it, so that the thread that takes the list waits for one line in three.
bool Queue::push(dgpuBackendCommand* const* commands, uint32_t count) {
  dgpuBackendCommand *a, *b, *c;
  uintptr_t old = incoming.load(std::memory_order_relaxed);
  do {
    // A list is only ever taken as a whole: what was pushed last is still in it, or it is empty.
    const bool fresh = old <= kDead;
    a = fresh ? nullptr : listed[0];
    b = fresh ? nullptr : listed[1];
    c = fresh ? nullptr : listed[2];
    for (uint32_t i = 0; i < count; ++i) {
      void** const links = commands[i]->backend;
      links[0] = a;
      links[1] = b;
      links[2] = c;
      c = std::exchange(b, std::exchange(a, commands[i]));
    }
  } while (!incoming.compare_exchange_weak(old, reinterpret_cast<uintptr_t>(a), std::memory_order_acq_rel,
                                           std::memory_order_relaxed));
  listed[0] = a;
  listed[1] = b;
  listed[2] = c;
  return old == kIdle;
}

dgpuBackendCommand* Queue::front() {
  if (taken_count) return taken[taken_count - 1];
  if (pending) return pending;
  if (incoming.load(std::memory_order_relaxed) <= kDead) return nullptr;
  const uintptr_t top = incoming.exchange(kOwned, std::memory_order_acq_rel);
  if (top == kDead) {  // destroyed since the look, with a lost device
    incoming.store(kDead);
    return nullptr;
  }
  take(reinterpret_cast<dgpuBackendCommand*>(top));
  return taken_count ? taken[taken_count - 1] : pending;
}

void Queue::take(dgpuBackendCommand* newest) {
  const auto link = [](dgpuBackendCommand* command, uint32_t k) {
    return static_cast<dgpuBackendCommand*>(command->backend[k]);
  };
  claim_lines(*newest);
  taken[0] = newest;
  uint32_t count = 1;
  for (dgpuBackendCommand* last = newest; last && count + kLinks <= kTaken;) {
    dgpuBackendCommand* const older[kLinks] = {link(last, 0), link(last, 1), link(last, 2)};
    last = older[kLinks - 1];
    for (uint32_t k = 0; k < kLinks && older[k]; ++k) {
      claim_lines(*older[k]);
      taken[count++] = older[k];
    }
  }
  taken_count = count;
  dgpuBackendCommand* rest = link(taken[count - 1], 0);
  if (!rest) return;
  // A longer list is turned round in place.
  taken_count = 0;
  for (dgpuBackendCommand* command = newest; command;) {
    auto* const older = link(command, 0);
    command->backend[0] = pending;
    pending = command;
    command = older;
  }
}

void Queue::pop() {
  if (taken_count) {
    current = taken[--taken_count];
    return;
  }
  current = pending;
  pending = static_cast<dgpuBackendCommand*>(pending->backend[0]);
}

void Queue::record_error(uint32_t chunk, dgpuStatus_t status, const char* text) {
  const std::lock_guard lock(error_mutex);
  if (error_status.load(std::memory_order_relaxed) < 0 && error_chunk <= chunk) return;
  error_chunk = chunk;
  kit::copy_text(error_text, text);
  error_status.store(status, std::memory_order_release);
}

}  // namespace dgpu::cpu
