// The runtime's part of the library object: its threads, and the list of contexts that shutdown has to wake.
#pragma once
#include <condition_variable>
#include <mutex>
#include <vector>

#include "backend/sinks.h"
#include "base/library.h"
#include "base/object.h"
#include "runtime/address_table.h"
#include "runtime/worker.h"

namespace dgpu {

class Context;

class Runtime final : public LibraryState, public backend::RuntimeLink {
 public:
  Runtime();
  void wake() noexcept override;
  void stop() noexcept override;
  void device_lost(backend::Device& device, std::string_view message) noexcept override;
  void drain(backend::Backend& backend, uint64_t deadline) noexcept override;

  WorkerThreads& callbacks() { return callbacks_; }  // one thread: host callbacks
  WorkerThreads& tasks() { return tasks_; }          // host tasks; they may block
  // Drops a reference on the reaper thread. For threads of a backend, where destructors, which call the backend, must
  // not run.
  void unref_later(Object* object);
  // Waits until everything given to unref_later before has gone.
  void flush_reaper() { reaper_.flush(); }

  void add_context(Context* context);
  void remove_context(Context* context);
  std::vector<Ref<Context>> contexts();
  // A context was destroyed by its owner and is not gone yet.
  bool has_leaving_context();
  AddressTable& addresses() { return addresses_; }

 private:
  // A lost device still holds commands of these contexts.
  static bool waits_for_lost(const std::vector<Ref<Context>>& contexts) noexcept;
  static void abandon_lost(Context& context) noexcept;

  WorkerThreads callbacks_{"dgpu-callback", 1};
  WorkerThreads tasks_{"dgpu-task", 2};
  WorkerThreads reaper_{"dgpu-reaper", 1};
  std::mutex mutex_;
  std::condition_variable changed_;
  Context* contexts_ = nullptr;
  AddressTable addresses_;
};

// The current library's runtime.
Runtime& runtime();

}  // namespace dgpu
