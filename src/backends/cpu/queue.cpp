#include "backends/cpu/queue.h"

#include "backends/kit/abi.h"

namespace dgpu::cpu {

bool Queue::push(dgpuBackendCommand* const* commands, uint32_t count) {
  for (uint32_t i = 1; i < count; ++i) commands[i]->backend[0] = commands[i - 1];
  const auto top = reinterpret_cast<uintptr_t>(commands[count - 1]);
  uintptr_t old = incoming.load(std::memory_order_relaxed);
  do {
    commands[0]->backend[0] = old > kDead ? reinterpret_cast<void*>(old) : nullptr;
  } while (!incoming.compare_exchange_weak(old, top, std::memory_order_acq_rel, std::memory_order_relaxed));
  return old == kIdle;
}

dgpuBackendCommand* Queue::front() {
  if (pending) return pending;
  if (incoming.load(std::memory_order_relaxed) <= kDead) return nullptr;
  const uintptr_t top = incoming.exchange(kOwned, std::memory_order_acq_rel);
  if (top == kDead) {  // destroyed since the look, with a lost device
    incoming.store(kDead);
    return nullptr;
  }
  auto* newest = reinterpret_cast<dgpuBackendCommand*>(top);
  while (newest) {
    auto* older = static_cast<dgpuBackendCommand*>(newest->backend[0]);
    newest->backend[0] = pending;
    pending = newest;
    newest = older;
  }
  return pending;
}

void Queue::pop() {
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
