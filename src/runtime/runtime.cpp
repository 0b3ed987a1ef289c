#include "runtime/runtime.h"

#include <chrono>
#include <new>
#include <thread>

#include "backend/registry.h"
#include "base/clock.h"
#include "base/log.h"
#include "runtime/context.h"
#include "runtime/counters.h"
#include "runtime/stream.h"

namespace dgpu {

namespace {
constexpr uint64_t kLostGrace = 2'000'000'000;  // ns in which a lost device may still report what it holds
constexpr uint64_t kWarnAfter = 10'000'000'000;

// DGPU_METRIC_COMMANDS: what the living streams of the device have retired, and those that are gone.
bool count_commands(backend::Device& device, uint32_t metric, dgpuMetric& out) {
  if (metric != DGPU_METRIC_COMMANDS) return false;
  uint64_t sum = device.state<DeviceCounters>().commands.load(std::memory_order_relaxed);
  for (const auto& context : runtime().contexts()) {
    for (const auto& stream : context->streams()) {
      if (&stream->device() == &device) sum += stream->timeline()->retired();
    }
  }
  out.value = static_cast<double>(sum);
  out.absent = DGPU_ABSENT_NO;
  return true;
}
}  // namespace

Runtime::Runtime() {
  // Asking for it here makes the registry older: it stops after the runtime.
  backend::registry().set_runtime(this);
  backend::registry().add_metric_source(count_commands);
}

Runtime& runtime() { return library().state<Runtime>(); }

void Runtime::add_context(Context* context) {
  std::lock_guard lock(mutex_);
  context->list_prev = nullptr;
  context->list_next = contexts_;
  if (contexts_) contexts_->list_prev = context;
  contexts_ = context;
}

void Runtime::remove_context(Context* context) {
  std::lock_guard lock(mutex_);
  (context->list_prev ? context->list_prev->list_next : contexts_) = context->list_next;
  if (context->list_next) context->list_next->list_prev = context->list_prev;
  changed_.notify_all();
}

std::vector<Ref<Context>> Runtime::contexts() {
  std::vector<Ref<Context>> out;
  std::lock_guard lock(mutex_);
  for (Context* context = contexts_; context; context = context->list_next) {
    if (context->try_ref()) out.push_back(Ref<Context>::adopt(context));
  }
  return out;
}

bool Runtime::has_leaving_context() {
  std::lock_guard lock(mutex_);
  for (Context* context = contexts_; context; context = context->list_next) {
    if (context->scope()->invalid()) return true;
  }
  return false;
}

namespace {
struct Funeral : Work {
  Object* object;
};
}  // namespace

void Runtime::unref_later(Object* object) {
  auto* funeral = new (std::nothrow) Funeral;
  if (!funeral) return;  // leaks one object rather than run its destructor here
  funeral->object = object;
  funeral->run = [](Work* work) {
    auto* mine = static_cast<Funeral*>(work);
    mine->object->unref();
    delete mine;
  };
  if (!reaper_.push(funeral)) funeral->run(funeral);
}

void Runtime::wake() noexcept {
  for (const auto& context : contexts()) context->interrupt(DGPU_STATUS_SHUTDOWN);
}

void Runtime::stop() noexcept {
  wake();  // contexts that were made while the first call ran
  // What runs on devices finishes and drops its streams, which drop their contexts. A device may get lost meanwhile.
  const auto gone = [&] {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::milliseconds(20), [&] { return contexts_ == nullptr; });
  };
  uint64_t lost_since = 0, warn_at = now_ns() + kWarnAfter;
  while (!gone()) {
    const uint64_t now = now_ns();
    if (lost_since == 0 || !waits_for_lost(contexts())) lost_since = now;
    if (now - lost_since > kLostGrace) {
      for (const auto& context : contexts()) abandon_lost(*context);
    }
    if (now < warn_at) continue;
    warn_at = now + kWarnAfter;
    log(DGPU_LOG_WARN, "runtime", "shutdown waits for running commands to finish");
  }
  callbacks_.stop();
  tasks_.stop();
  reaper_.stop();
}

bool Runtime::waits_for_lost(const std::vector<Ref<Context>>& contexts) noexcept {
  for (const auto& context : contexts) {
    for (const auto& stream : context->streams()) {
      if (stream->device().lost() && !stream->drained()) return true;
    }
  }
  return false;
}

void Runtime::abandon_lost(Context& context) noexcept {
  for (const auto& stream : context.streams()) {
    if (stream->device().lost()) stream->abandon();
  }
}

void Runtime::device_lost(backend::Device& device, std::string_view message) noexcept {
  for (const auto& context : contexts()) context->device_lost(device, message);
}

void Runtime::drain(backend::Backend& backend, uint64_t deadline) noexcept {
  std::vector<Ref<Context>> mine;
  for (auto& context : contexts()) {
    if (context->has_device_of(backend)) mine.push_back(std::move(context));
  }
  for (const auto& context : mine) {
    const uint64_t now = now_ns();
    context->synchronize(deadline > now ? deadline - now : 0);
  }
  for (const auto& context : mine) {
    context->scope()->invalidate();
    retire(context->handle(), Kind::context, "context");
    context->interrupt(DGPU_STATUS_CANCELLED);
  }
  const uint64_t give_up = now_ns() + kLostGrace;
  while (waits_for_lost(mine) && now_ns() < give_up) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  for (const auto& context : mine) abandon_lost(*context);
  mine.clear();
  flush_reaper();
}

}  // namespace dgpu
