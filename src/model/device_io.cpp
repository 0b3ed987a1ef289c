#include "model/device_io.h"

#include <utility>

namespace dgpu::model {
namespace {

// Repeats a submit until there is room; what the queue holds retires by itself.
template <typename F>
Status when_room(Stream& stream, F&& submit) {
  for (;;) {
    const Status s = submit();
    if (s != DGPU_STATUS_QUEUE_FULL) return s;
    const Status waited = stream.wait(stream.timeline()->settled() + 1, DGPU_TIMEOUT_INFINITE);
    if (waited == DGPU_STATUS_SHUTDOWN || waited == DGPU_STATUS_DEVICE_LOST) return waited;
  }
}

constexpr const char* kStep = "dgpuSessionStep";

}  // namespace

Status device_alloc(Context& context, uint32_t device, uint64_t bytes, const std::string& what, dgpuAddr_t& out) {
  const Status s = memory::allocate(context, device, bytes, out);
  if (s != DGPU_STATUS_OUT_OF_MEMORY) return s;
  const std::string cause = last_error().message;
  return fail(s, "memory", "{} bytes are needed for {}: {}", bytes, what, cause);
}

Status host_alloc(Context& context, uint64_t bytes, dgpuAddr_t& out, void*& pointer) {
  return memory::allocate_host(context, bytes, out, &pointer);
}

void device_free(Context& context, dgpuAddr_t address) { memory::free(context, address); }

void* host_pointer(Context& context, dgpuAddr_t address) {
  dgpuMemInfo info = DGPU_MEM_INFO_INIT;
  return memory::info(context, address, info) == DGPU_STATUS_SUCCESS ? info.host_pointer : nullptr;
}

Status copy(Stream& stream, dgpuAddr_t dst, dgpuAddr_t src, uint64_t bytes) {
  return when_room(stream, [&] { return memory::copy(stream, kStep, dst, src, bytes); });
}
Status copy_from_host(Stream& stream, dgpuAddr_t dst, const void* src, uint64_t bytes) {
  return when_room(stream, [&] { return memory::copy_from_host(stream, kStep, dst, src, bytes); });
}
Status copy_to_host(Stream& stream, void* dst, dgpuAddr_t src, uint64_t bytes) {
  return when_room(stream, [&] { return memory::copy_to_host(stream, kStep, dst, src, bytes); });
}
Status fill_zero(Stream& stream, dgpuAddr_t dst, uint64_t bytes) {
  return when_room(stream, [&] { return memory::fill(stream, kStep, dst, 0, 1, bytes); });
}
Status wait_timeline(Stream& stream, const Ref<Timeline>& timeline, uint64_t value) {
  return when_room(stream, [&] { return submit_wait(stream, kStep, timeline.get(), value); });
}

Status execute(Stream& stream, ops::Plan& plan, const std::vector<dgpuAddr_t>& addresses,
               const std::vector<int64_t>& symbols, dgpuAddr_t workspace) {
  return when_room(stream, [&] {
    return plan.execute(stream, kStep, addresses.data(), static_cast<uint32_t>(addresses.size()), symbols.data(),
                        plan.symbol_count(), workspace);
  });
}

Status first_failure(Stream& stream, Status status) {
  if (status != DGPU_STATUS_STREAM_FAILED) return status;
  const ErrorRecord first = stream.failure();
  return first ? raise(first) : status;
}

Status upload(Context& context, uint32_t device, dgpuAddr_t dst, const void* src, uint64_t bytes) {
  Ref<Stream> stream;
  DGPU_TRY(Stream::create(Ref<Context>::retain(&context), device, {16, 0, true}, stream));
  DGPU_TRY(copy_from_host(*stream, dst, src, bytes));
  return stream->synchronize(DGPU_TIMEOUT_INFINITE);
}

Stager::~Stager() {
  if (stream_) stream_->synchronize(DGPU_TIMEOUT_INFINITE);
  for (const auto a : address_) device_free(context_, a);
}

Status Stager::open(uint64_t bytes) {
  DGPU_TRY(Stream::create(Ref<Context>::retain(&context_), device_, {16, 0, true}, stream_));
  for (int i = 0; i < 2; ++i) DGPU_TRY(host_alloc(context_, bytes, address_[i], pointer_[i]));
  return DGPU_STATUS_SUCCESS;
}

Status Stager::acquire(void** buffer) {
  turn_ ^= 1;
  if (value_[turn_]) DGPU_TRY(stream_->wait(value_[turn_], DGPU_TIMEOUT_INFINITE));
  *buffer = pointer_[turn_];
  return DGPU_STATUS_SUCCESS;
}

Status Stager::send(dgpuAddr_t dst, uint64_t bytes) {
  DGPU_TRY(first_failure(*stream_, copy(*stream_, dst, address_[turn_], bytes)));
  value_[turn_] = stream_->submitted();
  return DGPU_STATUS_SUCCESS;
}

Status Stager::finish() { return stream_->synchronize(DGPU_TIMEOUT_INFINITE); }

}  // namespace dgpu::model
