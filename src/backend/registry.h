// Backends and their devices: discovery, loading, negotiation, unloading.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "backend/device.h"
#include "base/library.h"

namespace dgpu::backend {

class Registry;
struct Manifest;

class Backend final : public Object {
 public:
  static constexpr Kind kKind = Kind::backend;
  // Takes over `code`, the dlopen handle (null if built in).
  Backend(Registry& registry, std::string path, void* code, bool built_in);
  ~Backend() override;

  Registry& registry() const { return registry_; }
  const std::string& name() const { return name_; }
  const std::string& version() const { return version_; }
  const std::string& vendor() const { return vendor_; }
  const std::string& path() const { return path_; }  // "" if built in
  bool built_in() const { return built_in_; }
  uint32_t abi_minor() const { return abi_minor_; }  // negotiated; the major is the core's
  const Table& table() const { return table_; }
  void* instance() const { return instance_; }  // first argument of the device, op and telemetry entries
  // For RuntimeLink and MemoryLink; others ask Registry::devices(), which leaves out what is being unloaded.
  const std::vector<Ref<Device>>& devices() const { return devices_; }
  uint32_t device_count() const { return device_count_; }
  // What it can run; empty without an op group. Lives as long as the backend.
  const std::vector<const dgpuBackendClaim*>& claims() const { return claims_; }
  // Passes a plugin's status on; gives a failure that the plugin did not explain a text, and adds the backend's name.
  Status checked(Status status, const char* entry);
  // True while it is being unloaded: nothing new may start on its devices.
  bool closing() const { return closing_.load(std::memory_order_acquire); }

 private:
  friend class Registry;
  Status negotiate(dgpuBackendQueryFunction query);
  Status start();  // initialise, list devices and claims, publish handles
  Status list_devices();
  void list_claims();
  bool in_use() const;   // someone besides the registry holds one of its devices
  void stop() noexcept;  // closes devices, shuts the plugin down, unmaps its code

  Registry& registry_;
  const std::string path_;
  void* code_;
  const bool built_in_;
  std::string name_, version_, vendor_;
  uint32_t abi_minor_ = 0;
  Table table_;
  dgpuBackendServices services_{};
  void* instance_ = nullptr;
  bool initialized_ = false;
  std::vector<Ref<Device>> devices_;
  uint32_t device_count_ = 0;
  std::vector<const dgpuBackendClaim*> claims_;
  std::atomic<bool> closing_{false};
  const Ref<HandleScope> scope_ = HandleScope::create();
};

struct Attempt {
  std::string path, name, reason;
  bool accepted = false;
  Status status = DGPU_STATUS_SUCCESS;
};

class Registry final : public LibraryState {
 public:
  Registry() = default;
  ~Registry() override;
  void stop() noexcept override;  // drops room state of all devices; plugins go with the destructor

  // Loaded backends in load order; discovers on first use. The references keep code mapped while they are held.
  std::vector<Ref<Backend>> backends();
  // Devices of all backends: backends in load order, then the backend's own order.
  std::vector<Ref<Device>> devices();
  // Position in devices(), or UINT32_MAX if it is not there any more.
  uint32_t ordinal(const Device& device);
  Status load(const std::string& path, Ref<Backend>& out);
  Status unload(Backend& backend, uint64_t timeout_ns);
  std::vector<Attempt> attempts();

  // Rooms above register once, when their library state is made.
  void set_runtime(RuntimeLink* link) { runtime_.store(link); }
  void set_memory(MemoryLink* link) { memory_.store(link); }
  void add_metric_source(MetricSource source);
  RuntimeLink* runtime() const { return runtime_.load(); }
  MemoryLink* memory() const { return memory_.load(); }
  bool core_metric(Device& device, uint32_t metric, dgpuMetric& out);

 private:
  void discover();
  void discover_directory(const std::string& directory, bool explicitly);
  Status load_file(const std::string& path, bool explicitly, std::string& name, Ref<Backend>& out);
  Status load_manifest(const std::string& path, bool explicitly, std::string& name, Ref<Backend>& out);
  Status load_library(const Manifest& manifest, std::string& name, Ref<Backend>& out);
  Status probe_once(const std::string& file, const Manifest& manifest);
  Status add(Ref<Backend> backend, dgpuBackendQueryFunction query, const std::string& expected_name);
  Status check_name_free(const std::string& name);
  void note(const std::string& path, const std::string& name, Status status);
  bool reap(uint64_t deadline);  // stops unloaded backends that nobody uses any more; true if none is left

  std::mutex loading_;  // one load or unload at a time; held while plugins initialise, never taken by entries of theirs
  std::mutex mutex_;    // the lists
  bool discovered_ = false;
  std::vector<Ref<Backend>> backends_;
  std::vector<Ref<Backend>> leaving_;  // unloaded, still used by a running call
  std::vector<Attempt> attempts_;
  std::set<std::string> probed_;  // files, with size and time, that a probe found sound; under loading_
  std::vector<MetricSource> metric_sources_;
  std::atomic<RuntimeLink*> runtime_{nullptr};
  std::atomic<MemoryLink*> memory_{nullptr};
};

inline Registry& registry() { return library().state<Registry>(); }

// The services of dgpu/backend.h for one backend; `core` is the Backend.
void fill_services(Backend& backend, dgpuBackendServices& out);

}  // namespace dgpu::backend
