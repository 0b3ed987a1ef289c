// What the model room needs of memory and streams: whole-buffer transfers, and submits that wait for room.
#pragma once
#include <string>

#include "memory/memory.h"
#include "ops/plan.h"
#include "runtime/stream.h"

namespace dgpu::model {

// `what` completes "... is needed for" in the text of OUT_OF_MEMORY.
Status device_alloc(Context& context, uint32_t device, uint64_t bytes, const std::string& what, dgpuAddr_t& out);
Status host_alloc(Context& context, uint64_t bytes, dgpuAddr_t& out, void*& pointer);
void device_free(Context& context, dgpuAddr_t address);
// Where the host may touch the address, null if it may not.
void* host_pointer(Context& context, dgpuAddr_t address);

// Submits; a full queue is waited for.
Status copy(Stream& stream, dgpuAddr_t dst, dgpuAddr_t src, uint64_t bytes);
Status copy_from_host(Stream& stream, dgpuAddr_t dst, const void* src, uint64_t bytes);
Status copy_to_host(Stream& stream, void* dst, dgpuAddr_t src, uint64_t bytes);
Status fill_zero(Stream& stream, dgpuAddr_t dst, uint64_t bytes);
Status wait_timeline(Stream& stream, const Ref<Timeline>& timeline, uint64_t value);
Status execute(Stream& stream, ops::Plan& plan, const std::vector<dgpuAddr_t>& addresses,
               const std::vector<int64_t>& symbols, dgpuAddr_t workspace);

// For calls that submit and wait: a submit that meets a stream which failed meanwhile gives STREAM_FAILED; the caller
// wants to know of the failure itself.
Status first_failure(Stream& stream, Status status);

// Brings bytes to the device and waits.
Status upload(Context& context, uint32_t device, dgpuAddr_t dst, const void* src, uint64_t bytes);

// Two pinned buffers that are filled and copied in turns.
class Stager {
 public:
  Stager(Context& context, uint32_t device) : context_(context), device_(device) {}
  ~Stager();
  Status open(uint64_t bytes);
  Status acquire(void** buffer);                // blocks until the older copy has ended
  Status send(dgpuAddr_t dst, uint64_t bytes);  // the buffer acquired last
  Status finish();

 private:
  Context& context_;
  uint32_t device_;
  Ref<Stream> stream_;
  dgpuAddr_t address_[2] = {0, 0};
  void* pointer_[2] = {nullptr, nullptr};
  uint64_t value_[2] = {0, 0};
  unsigned turn_ = 1;
};

}  // namespace dgpu::model
