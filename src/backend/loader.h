// Getting a plugin's code into the process.
#pragma once
#include <string>

#include "base/error.h"
#include "dgpu/backend.h"

namespace dgpu::backend {

// Refuses what is not a complete shared object of this machine, before the dynamic linker sees it.
Status check_elf(const std::string& path);
// Loads the file in a short-lived child process and calls its query there: a crash or hang ends the child, not us.
Status probe(const std::string& path);
// dlopen(RTLD_NOW | RTLD_LOCAL) and dlsym(dgpuBackendQuery). On failure nothing stays loaded.
Status open_code(const std::string& path, void** out_code, dgpuBackendQueryFunction* out_query);

struct Manifest {
  std::string name;
  std::string library;  // absolute
  bool explicit_only = false;
};
Status read_manifest(const std::string& path, Manifest& out);

// Where installed plugins live: dgpu/backends beside the library's own file. "" if that cannot be told.
std::string installed_directory();

}  // namespace dgpu::backend
