// How commands get into a stream: one or several at once, all or none.
//
//   Submission submission(stream, "dgpuMemFillAsync");
//   DGPU_TRY(submission.begin());                       // locks; QUEUE_FULL is a positive status, test for it
//   if (status != DGPU_STATUS_SUCCESS) return status;
//   Location dst;
//   DGPU_TRY(submission.locate(address, size, "dst", dst));
//   Slot& slot = submission.add(DGPU_COMMAND_FILL, "", nullptr);
//   slot.fill = {...};
//   submission.commit();
//
// Addresses are resolved between begin and commit, under the stream's submit lock, so that a free in another thread
// either comes first (INVALID_ADDRESS) or waits for the command.
#pragma once
#include <functional>
#include <mutex>

#include "runtime/address_table.h"
#include "runtime/stream.h"

namespace dgpu {

// One execution of a backend's plan.
struct OpArguments {
  dgpuBackendPlan* plan = nullptr;
  Object* keep = nullptr;  // owner of the plan and of `op`; a reference is held until the command has retired
  const char* op = "";     // name for error records
  const dgpuAddr_t* addresses = nullptr;
  const uint64_t* bytes = nullptr;     // extent of each port from its address on; 0: the address may be null
  const char* const* names = nullptr;  // of the ports, for error texts; may be null
  uint32_t port_count = 0;
  const int64_t* symbols = nullptr;
  uint32_t symbol_count = 0;
  dgpuAddr_t workspace = 0;
  uint64_t workspace_bytes = 0;
};

class Submission {
 public:
  // `function`: the API function, static storage.
  Submission(Stream& stream, const char* function) : stream_(stream), function_(function) {}
  ~Submission();  // drops what was not committed
  Submission(const Submission&) = delete;
  Submission& operator=(const Submission&) = delete;

  // Locks the stream for `commands` commands with `argument_bytes` (see op_bytes) in all. SUCCESS, QUEUE_FULL, or why
  // the stream takes nothing (STREAM_FAILED, DEVICE_LOST, ...). A blocking stream waits for room.
  Status begin(uint32_t commands = 1, size_t argument_bytes = 0, bool accept_failed = false);

  // Between begin and commit.
  Status locate(dgpuAddr_t address, uint64_t bytes, const char* argument, Location& out) const;
  // What the stream's device gets for a location: its own memory, or host memory that it can reach.
  Status device_ref(const Location& location, const char* argument, dgpuBackendRef& out) const;
  // Part of the argument_bytes, aligned to 16. Lives until all commands of this submission have retired.
  void* arguments(size_t bytes);

  // The caller fills the payload (slot.copy, ...); command.payload is set here. `op` lives as long as `keep`.
  Slot& add(uint32_t command_kind, const char* op = "", Object* keep = nullptr);
  Status add_op(const OpArguments& arguments);
  void add_marker(Stamp* stamp);  // timed; the stamp is referenced
  void add_wait(Timeline* timeline, uint64_t value);
  void add_signal(Timeline* timeline, uint64_t value);
  void add_callback(dgpuHostCallback callback, void* user);
  void add_task(const HostTask& task, const char* op = "", Object* keep = nullptr);
  // Convenience that allocates.
  void add_task(std::function<Status()> body, const char* op = "", Object* keep = nullptr);

  // Publishes and starts; returns the value of the last command.
  uint64_t commit();

  static size_t op_bytes(uint32_t ports, uint32_t symbols) {
    return round16(ports * sizeof(dgpuBackendRef)) + round16(symbols * sizeof(int64_t));
  }
  static size_t kernel_bytes(uint32_t count) {
    return count ? round16(count * sizeof(dgpuBackendRef)) + round16(count * sizeof(uint64_t)) +
                       round16(count * sizeof(uint32_t))
                 : 0;
  }

 private:
  static constexpr size_t round16(size_t n) { return (n + 15) & ~size_t{15}; }
  Slot& next(SlotKind kind, const char* op, Object* keep);
  Status wait_for_room(uint64_t needed);

  Stream& stream_;
  const char* const function_;
  std::unique_lock<std::mutex> lock_;
  uint64_t base_ = 0;  // last value before this submission
  uint32_t room_ = 0;
  uint32_t added_ = 0;
  uint64_t arena_before_ = 0;
  std::byte* bytes_ = nullptr;
  size_t bytes_left_ = 0;
};

// One command by itself.
Status submit_wait(Stream& stream, const char* function, Timeline* timeline, uint64_t value);
Status submit_signal(Stream& stream, const char* function, Timeline* timeline, uint64_t value);
Status submit_callback(Stream& stream, const char* function, dgpuHostCallback callback, void* user);

}  // namespace dgpu
