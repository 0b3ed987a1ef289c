// Getting a plugin's code into the process.
#pragma once
#include <string>

#include "base/error.h"
#include "dgpu/backend.h"

namespace dgpu::backend {

// Refuses what is not a complete shared object of this machine, before the dynamic linker sees it.
Status check_elf(const std::string& path);
// How far a plugin goes in a short-lived child process before it is loaded here, so that a crash or a hang ends the
// child and not us: not at all; loaded and queried; also initialised, its devices listed, and shut down again.
enum class Probe { none, query, start };
// timeout_ms 0: as the setting says.
Status probe(const std::string& path, Probe depth, int64_t timeout_ms);
// dlopen(RTLD_NOW | RTLD_LOCAL) and dlsym(dgpuBackendQuery). On failure nothing stays loaded.
Status open_code(const std::string& path, void** out_code, dgpuBackendQueryFunction* out_query);

struct Manifest {
  std::string name;
  std::string library;  // absolute
  bool explicit_only = false;
  Probe probe = Probe::start;
  int64_t probe_timeout_ms = 0;  // 0: as the setting says
};
Status read_manifest(const std::string& path, Manifest& out);

// Where installed plugins live: dgpu/backends beside the library's own file. "" if that cannot be told.
std::string installed_directory();

}  // namespace dgpu::backend
