#include "backend/registry.h"

#include <algorithm>
#include <filesystem>
#include <thread>

#include "backend/loader.h"
#include "backend/table.h"
#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"

// The built-in backend.
extern "C" dgpuStatus_t dgpuCpuBackendQuery(uint32_t core_major, uint32_t core_minor,
                                            const dgpuBackendTable** out_table);

namespace dgpu::backend {

namespace fs = std::filesystem;

namespace {
constexpr size_t kMaxAttempts = 512;
constexpr uint64_t kCancelGrace = 1'000'000'000;        // ns that cancelled work has to let go of the plugin
constexpr uint64_t kShutdownPatience = 10'000'000'000;  // ns until a held device is given up at shutdown
}  // namespace

Registry::~Registry() {
  if (!reap(now_ns() + kShutdownPatience)) {
    log(DGPU_LOG_ERROR, "backend", "an unloaded backend is still in use at shutdown; its code stays mapped");
    for (auto& backend : leaving_) backend.detach();
  }
  while (!backends_.empty()) {
    Ref<Backend> backend = std::move(backends_.back());
    backends_.pop_back();
    const uint64_t deadline = now_ns() + kShutdownPatience;
    while (backend->in_use() && now_ns() < deadline) std::this_thread::sleep_for(std::chrono::microseconds(200));
    if (backend->in_use()) {
      log(DGPU_LOG_ERROR, "backend", "backend {} is still in use at shutdown; its code stays mapped", backend->name());
      backend.detach();
      continue;
    }
    backend->stop();
  }
}

void Registry::stop() noexcept {
  std::lock_guard lock(mutex_);
  for (auto* list : {&backends_, &leaving_}) {
    for (auto& backend : *list) {
      for (auto& device : backend->devices_) device->drop_state();
    }
  }
}

std::vector<Ref<Backend>> Registry::backends() {
  discover();
  std::lock_guard lock(mutex_);
  return backends_;
}

std::vector<Ref<Device>> Registry::devices() {
  discover();
  std::vector<Ref<Device>> all;
  std::lock_guard lock(mutex_);
  for (const auto& backend : backends_) all.insert(all.end(), backend->devices_.begin(), backend->devices_.end());
  return all;
}

uint32_t Registry::ordinal(const Device& device) {
  uint32_t position = 0;
  std::lock_guard lock(mutex_);
  for (const auto& backend : backends_) {
    if (backend.get() == &device.backend()) return position + device.index();
    position += static_cast<uint32_t>(backend->devices_.size());
  }
  return UINT32_MAX;
}

std::vector<Attempt> Registry::attempts() {
  discover();
  std::lock_guard lock(mutex_);
  return attempts_;
}

void Registry::add_metric_source(MetricSource source) {
  std::lock_guard lock(mutex_);
  metric_sources_.push_back(source);
}

bool Registry::core_metric(Device& device, uint32_t metric, dgpuMetric& out) {
  std::vector<MetricSource> sources;
  {
    std::lock_guard lock(mutex_);
    sources = metric_sources_;
  }
  if (std::any_of(sources.begin(), sources.end(), [&](MetricSource source) { return source(device, metric, out); }))
    return true;
  // Before the memory room has started, this process holds nothing.
  if (metric != DGPU_METRIC_MEMORY_USED && metric != DGPU_METRIC_MEMORY_RESERVED) return false;
  out.value = 0;
  out.absent = DGPU_ABSENT_NO;
  return true;
}

void Registry::note(const std::string& path, const std::string& name, Status status) {
  Attempt attempt;
  attempt.path = path;
  attempt.name = name;
  attempt.accepted = status == DGPU_STATUS_SUCCESS;
  attempt.status = status;
  attempt.reason = attempt.accepted ? "loaded" : last_error().message;
  if (!attempt.accepted) log(DGPU_LOG_INFO, "backend", "{}: {}", path, attempt.reason);
  std::lock_guard lock(mutex_);
  if (attempts_.size() >= kMaxAttempts) attempts_.erase(attempts_.begin());
  attempts_.push_back(std::move(attempt));
}

// ---- Discovery --------------------------------------------------------------------------------------------------

void Registry::discover() {
  {
    std::lock_guard lock(mutex_);
    if (discovered_) return;
  }
  std::lock_guard loading(loading_);
  {
    std::lock_guard lock(mutex_);
    if (discovered_) return;
  }
  // What discovery refuses is not the failure of the call that triggered it.
  const dgpuErrorInfo before = last_error();
  const Status status = add(make_ref<Backend>(*this, "", nullptr, true), dgpuCpuBackendQuery, "cpu");
  if (status != DGPU_STATUS_SUCCESS)
    log(DGPU_LOG_ERROR, "backend", "the built-in cpu backend: {}", last_error().message);
  note("built in", "cpu", status);
  for (const auto& directory : config_paths("DGPU_BACKEND_PATH")) discover_directory(directory, true);
  if (const std::string installed = installed_directory(); !installed.empty()) discover_directory(installed, false);
  last_error() = before;
  std::lock_guard lock(mutex_);
  discovered_ = true;
}

void Registry::discover_directory(const std::string& directory, bool explicitly) {
  std::error_code error;
  std::vector<std::string> manifests;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().extension() == ".json") manifests.push_back(entry->path().string());
  }
  if (error) {
    // A missing installed directory is the normal case; one that the user named is not.
    if (explicitly)
      note(directory, "",
           fail(DGPU_STATUS_NOT_FOUND, "DGPU_BACKEND_PATH", "the directory cannot be read: {}", error.message()));
    return;
  }
  std::sort(manifests.begin(), manifests.end());
  for (const auto& path : manifests) {
    Ref<Backend> loaded;
    std::string name;
    Status status = DGPU_STATUS_INTERNAL;
    log(DGPU_LOG_INFO, "backend", "{}: trying", path);  // the last one of these names a plugin that does not return
    try {
      status = load_manifest(path, explicitly, name, loaded);
    } catch (const std::exception& caught) {
      status = fail_text(DGPU_STATUS_BACKEND_REFUSED, "manifest", caught.what());
    }
    note(path, name, status);
  }
}

// ---- Loading ----------------------------------------------------------------------------------------------------

Status Registry::load(const std::string& path, Ref<Backend>& out) {
  discover();
  std::lock_guard loading(loading_);
  reap(0);
  std::string name;
  const Status status = load_file(path, true, name, out);
  note(path, name, status);
  return status;
}

Status Registry::load_file(const std::string& path, bool explicitly, std::string& name, Ref<Backend>& out) {
  if (fs::path(path).extension() == ".json") return load_manifest(path, explicitly, name, out);
  Manifest alone;
  alone.library = path;
  return load_library(alone, name, out);
}

Status Registry::load_manifest(const std::string& path, bool explicitly, std::string& name, Ref<Backend>& out) {
  Manifest manifest;
  const Status status = read_manifest(path, manifest);
  name = manifest.name;
  DGPU_TRY(status);
  if (manifest.explicit_only && !explicitly) {
    return fail(DGPU_STATUS_BACKEND_REFUSED, "load",
                "its manifest says \"load\": \"explicit\": it is loaded by path or through DGPU_BACKEND_PATH only");
  }
  DGPU_TRY(check_name_free(manifest.name));
  return load_library(manifest, name, out);
}

// A file that passed is not probed again while it stays as it is: loading a plugin anew costs one start, not two.
Status Registry::probe_once(const std::string& file, const Manifest& manifest) {
  std::error_code error;
  const auto size = fs::file_size(file, error);
  const auto written = fs::last_write_time(file, error).time_since_epoch().count();
  const std::string key = fmt::format("{} {} {} {}", size, written, static_cast<int>(manifest.probe), file);
  if (!error && probed_.count(key)) return DGPU_STATUS_SUCCESS;
  DGPU_TRY(probe(file, manifest.probe, manifest.probe_timeout_ms));
  if (!error) probed_.insert(key);
  return DGPU_STATUS_SUCCESS;
}

Status Registry::load_library(const Manifest& manifest, std::string& name, Ref<Backend>& out) {
  // dlopen searches for names without a slash; a path is what was asked for.
  std::error_code error;
  const std::string file = fs::absolute(manifest.library, error).string();
  DGPU_TRY(check_elf(file));
  if (config_flag("DGPU_BACKEND_PROBE")) DGPU_TRY(probe_once(file, manifest));
  void* code = nullptr;
  dgpuBackendQueryFunction query = nullptr;
  DGPU_TRY(open_code(file, &code, &query));
  auto backend = make_ref<Backend>(*this, file, code, false);
  const Status status = add(backend, query, name);
  if (name.empty()) name = backend->name();
  DGPU_TRY(status);
  out = std::move(backend);
  return DGPU_STATUS_SUCCESS;
}

Status Registry::check_name_free(const std::string& name) {
  std::lock_guard lock(mutex_);
  for (const auto& other : backends_) {
    if (other->name() == name) {
      return fail(DGPU_STATUS_ALREADY_EXISTS, "name", "a backend '{}' is loaded already ({})", name,
                  other->path().empty() ? "built in" : other->path());
    }
  }
  for (const auto& other : leaving_) {
    if (other->name() == name) {
      return fail(DGPU_STATUS_BUSY, "name", "the unloaded backend '{}' is still used by a running call", name);
    }
  }
  return DGPU_STATUS_SUCCESS;
}

Status Registry::add(Ref<Backend> backend, dgpuBackendQueryFunction query, const std::string& expected_name) {
  Status status = backend->negotiate(query);
  if (status == DGPU_STATUS_SUCCESS && !expected_name.empty() && backend->name() != expected_name) {
    status = fail(DGPU_STATUS_BACKEND_REFUSED, "name", "its manifest says '{}', its table says '{}'", expected_name,
                  backend->name());
  }
  if (status == DGPU_STATUS_SUCCESS) status = check_name_free(backend->name());
  if (status == DGPU_STATUS_SUCCESS) {
    status = backend->start();
    if (status < 0 && status != DGPU_STATUS_BACKEND_REFUSED) {
      const std::string text = last_error().message;
      const std::string object = last_error().object;
      status = fail(DGPU_STATUS_BACKEND_REFUSED, object, "it does not start: {}", text);
    }
  }
  if (status != DGPU_STATUS_SUCCESS) {
    const dgpuErrorInfo reason = last_error();
    backend->scope_->invalidate();
    backend->stop();
    last_error() = reason;
    return status;
  }
  std::lock_guard lock(mutex_);
  backends_.push_back(std::move(backend));
  return DGPU_STATUS_SUCCESS;
}

// ---- Unloading --------------------------------------------------------------------------------------------------

Status Registry::unload(Backend& backend, uint64_t timeout_ns) {
  if (backend.built_in()) {
    return fail(DGPU_STATUS_NOT_PERMITTED, "backend", "backend {} is part of the library and cannot be unloaded",
                backend.name());
  }
  const uint64_t deadline = deadline_ns(timeout_ns);
  std::lock_guard loading(loading_);
  if (backend.closing_.exchange(true)) return fail(DGPU_STATUS_INVALID_HANDLE, "backend", "backend was unloaded");
  if (MemoryLink* memory_room = memory()) {
    if (const std::string live = memory_room->live(backend); !live.empty()) {
      backend.closing_.store(false);
      return fail(DGPU_STATUS_BUSY, "backend", "memory of backend {} is still allocated: {}", backend.name(), live);
    }
  }
  {
    std::lock_guard lock(mutex_);
    const auto found = std::find_if(backends_.begin(), backends_.end(), [&](auto& b) { return b.get() == &backend; });
    leaving_.push_back(std::move(*found));
    backends_.erase(found);
  }
  if (RuntimeLink* runtime_room = runtime()) runtime_room->drain(backend, deadline);
  backend.scope_->invalidate();
  if (MemoryLink* memory_room = memory()) memory_room->release(backend);
  return reap(std::max(deadline, deadline_ns(kCancelGrace))) ? DGPU_STATUS_SUCCESS : DGPU_STATUS_TIMEOUT;
}

bool Registry::reap(uint64_t deadline) {
  for (;;) {
    std::vector<Ref<Backend>> free;
    bool left = false;
    {
      std::lock_guard lock(mutex_);
      const auto split = std::stable_partition(leaving_.begin(), leaving_.end(), [](auto& b) { return b->in_use(); });
      free.assign(std::make_move_iterator(split), std::make_move_iterator(leaving_.end()));
      leaving_.erase(split, leaving_.end());
      left = !leaving_.empty();
    }
    for (auto& backend : free) {
      backend->stop();
    }
    if (!left) return true;
    if (now_ns() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

}  // namespace dgpu::backend
