#include "runtime/context.h"

#include "backend/registry.h"
#include "runtime/deadline.h"
#include "runtime/runtime.h"
#include "runtime/stream.h"

namespace dgpu {

namespace {
// Doubly linked lists through members of the objects; the list holds no references.
template <typename T>
void link(T*& first, T* item) {
  item->list_prev = nullptr;
  item->list_next = first;
  if (first) first->list_prev = item;
  first = item;
}
template <typename T>
void unlink(T*& first, T* item) {
  if (!item->list_prev && first != item) return;  // was never linked
  (item->list_prev ? item->list_prev->list_next : first) = item->list_next;
  if (item->list_next) item->list_next->list_prev = item->list_prev;
}
}  // namespace

Context::Context(std::vector<Ref<backend::Device>> devices, uint32_t flags, Runtime& runtime)
    : Object(kKind), runtime_(runtime), devices_(std::move(devices)), flags_(flags) {}

Status Context::create(std::vector<Ref<backend::Device>> devices, uint32_t flags, Ref<Context>& out) {
  for (size_t i = 0; i < devices.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (devices[i] == devices[j]) {
        return fail(DGPU_STATUS_INVALID_ARGUMENT, "devices", "devices[{}] and devices[{}] are the same device, {}", j,
                    i, devices[i]->label());
      }
    }
    DGPU_TRY(devices[i]->check_usable());
    dgpuBackendDevice* opened = nullptr;
    DGPU_TRY(devices[i]->open(&opened));
  }
  auto context = Ref<Context>::adopt(new Context(std::move(devices), flags, dgpu::runtime()));
  context->runtime_.add_context(context.get());
  // Unloading looks at the list after it closed the devices: either it saw this context, or this sees the closing.
  for (const auto& device : context->devices_) DGPU_TRY(device->check_usable());
  out = std::move(context);
  return DGPU_STATUS_SUCCESS;
}

Context::~Context() {
  delete memory_.exchange(nullptr);
  runtime_.remove_context(this);
}

Status Context::device_index(const backend::Device& device, uint32_t& out) const {
  for (uint32_t i = 0; i < devices_.size(); ++i) {
    if (devices_[i].get() == &device) {
      out = i;
      return DGPU_STATUS_SUCCESS;
    }
  }
  return fail(DGPU_STATUS_INVALID_ARGUMENT, "device", "{} does not belong to the context", device.label());
}

bool Context::has_device_of(const backend::Backend& backend) const {
  for (const auto& device : devices_) {
    if (&device->backend() == &backend) return true;
  }
  return false;
}

std::vector<Ref<Stream>> Context::streams() const {
  std::vector<Ref<Stream>> out;
  std::lock_guard lock(mutex_);
  for (Stream* stream = streams_; stream; stream = stream->list_next) {
    if (stream->try_ref()) out.push_back(Ref<Stream>::adopt(stream));
  }
  return out;
}

std::vector<Context::Point> Context::pending(uint32_t born) const {
  std::vector<Point> out;
  std::lock_guard lock(mutex_);
  for (Stream* stream = streams_; stream; stream = stream->list_next) {
    // A stream on its way out has nothing in flight, and stays readable until it is unlinked.
    if (stream->lost_at() < born) continue;
    const uint64_t value = stream->submitted_locked();
    if (stream->timeline()->retired() < value) out.push_back({Ref<Timeline>::retain(stream->timeline()), value});
  }
  return out;
}

Status Context::synchronize(uint64_t timeout_ns) {
  const Deadline deadline(timeout_ns);
  struct Target {
    Ref<Stream> stream;
    uint64_t value;
  };
  std::vector<Target> targets;
  for (auto& stream : streams()) {
    const uint64_t value = stream->submitted();
    targets.push_back({std::move(stream), value});
  }
  for (const Target& target : targets) {
    const Status status = target.stream->wait(target.value, deadline.remaining_ns());
    // Failed work has retired; its failure is the stream's to tell.
    if (target.stream->timeline()->settled() < target.value) return status;
  }
  // Cancelled work has settled, too: the caller shall know that it did not run.
  if (const Status ended = interrupted_.load(std::memory_order_acquire)) {
    return fail(ended, "context", "the wait was ended: {}",
                ended == DGPU_STATUS_SHUTDOWN ? "the library is being shut down" : "a backend is being unloaded");
  }
  return DGPU_STATUS_SUCCESS;
}

void Context::interrupt(Status status) noexcept {
  interrupted_.store(status, std::memory_order_release);
  {
    std::lock_guard lock(mutex_);
    for (Timeline* timeline = timelines_; timeline; timeline = timeline->list_next) timeline->interrupt(status);
  }
  const char* const message = status == DGPU_STATUS_SHUTDOWN
                                  ? "the library was shut down before the work could start"
                                  : "the work was cancelled: a backend of its context was unloaded";
  for (const auto& stream : streams()) stream->abort(status, message);
}

void Context::device_lost(const backend::Device& device, std::string_view message) noexcept {
  for (const auto& stream : streams()) {
    if (&stream->device() == &device) stream->device_lost(message);
  }
  losses_.fetch_add(1, std::memory_order_acq_rel);
}

void Context::add_stream(Stream* stream) {
  std::lock_guard lock(mutex_);
  link(streams_, stream);
}
void Context::remove_stream(Stream* stream) {
  std::lock_guard lock(mutex_);
  unlink(streams_, stream);
}
void Context::add_timeline(Timeline* timeline) {
  std::lock_guard lock(mutex_);
  link(timelines_, timeline);
  // Created while the library goes down: nobody would wake its waiters later.
  if (const int32_t status = interrupted_.load(std::memory_order_acquire)) timeline->interrupt(status);
}
void Context::remove_timeline(Timeline* timeline) {
  std::lock_guard lock(mutex_);
  unlink(timelines_, timeline);
}

Status same_context(const Context* a, const Context* b, const char* argument) {
  if (a == b) [[likely]]
    return DGPU_STATUS_SUCCESS;
  return fail(DGPU_STATUS_CONTEXT_MISMATCH, argument, "{} belongs to another context", argument);
}

}  // namespace dgpu
