// What the core offers to a plugin.
#include <cstdlib>

#include "backend/probe_services.h"
#include "backend/registry.h"
#include "base/config.h"
#include "base/log.h"
#include "base/struct.h"
#include "base/thread.h"

namespace dgpu::backend {
namespace {

Backend& from(dgpuCore* core) { return *reinterpret_cast<Backend*>(core); }

void advance(dgpuCore*, dgpuCoreQueue* queue, uint64_t value, dgpuStatus_t outcome, const char* message,
             int32_t native_code) {
  sink(queue)->advance(value, outcome, message, native_code);
}

void device_lost(dgpuCore*, dgpuCoreDevice* device, const char* message) {
  reinterpret_cast<Device*>(device)->report_lost(message);
}

void log_message(dgpuCore*, uint32_t level, const char* component, const char* message) {
  if (message) log_text(level, component ? component : "backend", message);
}

dgpuStatus_t fail_call(dgpuCore* core, dgpuStatus_t status, const char* object, const char* message,
                       int32_t native_code) {
  fail_text(status, object ? object : "", message ? message : "");
  last_error().native_code = native_code;
  copy_text(last_error().backend, from(core).name());
  return status;
}

void* allocate(dgpuCore*, size_t size, size_t alignment) {
  void* pointer = nullptr;
  if (alignment < sizeof(void*)) alignment = sizeof(void*);
  return ::posix_memalign(&pointer, alignment, size ? size : 1) == 0 ? pointer : nullptr;
}

void release(dgpuCore*, void* pointer) { std::free(pointer); }

dgpuStatus_t config(dgpuCore*, const char* name, char* buffer, size_t size, size_t* needed) {
  if (needed) *needed = 0;
  if (!name || !config_find(name)) {
    return fail(DGPU_STATUS_NOT_FOUND, "name", "there is no setting '{}'", name ? name : "");
  }
  return write_text(config_text(name), buffer, size, needed);
}

void user_code(dgpuCore*, int32_t inside) { inside ? enter_user_code() : leave_user_code(); }

}  // namespace

dgpuBackendServices probe_services() {
  dgpuBackendServices out{};
  out.struct_size = sizeof(out);
  out.abi_major = DGPU_BACKEND_ABI_MAJOR;
  out.abi_minor = DGPU_BACKEND_ABI_MINOR;
  out.advance = [](dgpuCore*, dgpuCoreQueue*, uint64_t, dgpuStatus_t, const char*, int32_t) {};
  out.device_lost = [](dgpuCore*, dgpuCoreDevice*, const char*) {};
  out.log = [](dgpuCore*, uint32_t, const char*, const char*) {};
  out.fail = [](dgpuCore*, dgpuStatus_t status, const char*, const char*, int32_t) { return status; };
  out.allocate = allocate;
  out.release = release;
  out.config = config;
  out.user_code = user_code;
  return out;
}

void fill_services(Backend& backend, dgpuBackendServices& out) {
  out.struct_size = sizeof(out);
  out.abi_major = DGPU_BACKEND_ABI_MAJOR;
  out.abi_minor = DGPU_BACKEND_ABI_MINOR;
  out.core = reinterpret_cast<dgpuCore*>(&backend);
  out.advance = advance;
  out.device_lost = device_lost;
  out.log = log_message;
  out.fail = fail_call;
  out.allocate = allocate;
  out.release = release;
  out.config = config;
  out.user_code = user_code;
}

}  // namespace dgpu::backend
