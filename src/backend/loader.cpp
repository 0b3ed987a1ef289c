#include "backend/loader.h"

#include <dlfcn.h>
#include <elf.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "backend/table.h"
#include "base/file.h"

namespace dgpu::backend {
namespace {

constexpr uint64_t kMaxManifest = 1u << 20;  // bytes

Status refused(const char* object, const std::string& text) {
  return fail_text(DGPU_STATUS_BACKEND_REFUSED, object, text);
}

// True if the bytes are there.
bool read(const File& file, void* out, size_t size, uint64_t offset) {
  return ::pread(file.fd(), out, size, static_cast<off_t>(offset)) == static_cast<ssize_t>(size);
}

#if defined(__x86_64__)
constexpr uint16_t kMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr uint16_t kMachine = EM_AARCH64;
#elif defined(__riscv)
constexpr uint16_t kMachine = EM_RISCV;
#else
#error "add the ELF machine of this architecture"
#endif

Status check_segments(const File& file, const Elf64_Ehdr& header, uint64_t file_size) {
  if (header.e_phentsize != sizeof(Elf64_Phdr)) return refused("file", "its ELF program headers are malformed");
  for (uint16_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    if (!read(file, &segment, sizeof(segment), header.e_phoff + uint64_t{i} * sizeof(segment))) {
      return refused("file", "the ELF file is truncated in its program headers");
    }
    if (segment.p_type != PT_LOAD) continue;
    if (segment.p_filesz > file_size || segment.p_offset > file_size - segment.p_filesz) {
      return refused("file", fmt::format("the ELF file is truncated: it has {} bytes, a segment ends at {}", file_size,
                                         segment.p_offset + segment.p_filesz));
    }
  }
  return DGPU_STATUS_SUCCESS;
}

}  // namespace

Status check_elf(const std::string& path) {
  File file;
  if (file.open(path) < 0) return refused("file", last_error().message);
  Elf64_Ehdr header;
  unsigned char magic[SELFMAG];
  if (!read(file, magic, SELFMAG, 0) || std::memcmp(magic, ELFMAG, SELFMAG) != 0) {
    return refused("file", "it is not an ELF file");
  }
  if (!read(file, &header, sizeof(header), 0)) return refused("file", "the ELF file is truncated in its header");
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB) {
    return refused("file", "it is not a 64-bit little-endian ELF file");
  }
  if (header.e_machine != kMachine) {
    return refused("file", fmt::format("it was built for another processor (ELF machine {}, this one is {})",
                                       header.e_machine, kMachine));
  }
  if (header.e_type != ET_DYN) return refused("file", "it is not a shared object");
  return check_segments(file, header, file.size());
}

Status open_code(const std::string& path, void** out_code, dgpuBackendQueryFunction* out_query) {
  void* code = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!code) {
    const char* text = ::dlerror();
    return refused("file", fmt::format("the dynamic linker refuses it: {}", text ? text : "no reason given"));
  }
  auto query = reinterpret_cast<dgpuBackendQueryFunction>(::dlsym(code, "dgpuBackendQuery"));
  if (!query) {
    ::dlclose(code);
    return refused("dgpuBackendQuery", "it does not export dgpuBackendQuery; is it a dgpu backend?");
  }
  *out_code = code;
  *out_query = query;
  return DGPU_STATUS_SUCCESS;
}

namespace {

Status read_probe(const nlohmann::json& doc, Manifest& out) {
  constexpr uint64_t kLongest = 600000;  // ms
  if (const auto probe = doc.find("probe"); probe != doc.end()) {
    if (*probe == "none")
      out.probe = Probe::none;
    else if (*probe == "query")
      out.probe = Probe::query;
    else if (*probe != "start")
      return refused("probe", fmt::format("the manifest says \"probe\": {}; accepted: \"start\", \"query\", \"none\"",
                                          probe->dump(-1, ' ', true)));
  }
  const auto timeout = doc.find("probe_timeout_ms");
  if (timeout == doc.end()) return DGPU_STATUS_SUCCESS;
  if (!timeout->is_number_unsigned() || timeout->get<uint64_t>() < 1 || timeout->get<uint64_t>() > kLongest) {
    return refused("probe_timeout_ms",
                   fmt::format("the manifest says \"probe_timeout_ms\": {}; accepted: milliseconds from 1 to {}",
                               timeout->dump(-1, ' ', true), kLongest));
  }
  out.probe_timeout_ms = static_cast<int64_t>(timeout->get<uint64_t>());
  return DGPU_STATUS_SUCCESS;
}

}  // namespace

Status read_manifest(const std::string& path, Manifest& out) {
  std::string content;
  if (read_file(path, kMaxManifest, content) < 0) return refused("manifest", last_error().message);
  const nlohmann::json doc = nlohmann::json::parse(content, nullptr, /*allow_exceptions=*/false);
  if (!doc.is_object()) return refused("manifest", "the manifest is not a JSON object");
  const auto text = [&](const char* key) {
    const auto found = doc.find(key);
    return found != doc.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  out.name = text("name");
  DGPU_TRY(check_backend_name(out.name));
  const std::string library = text("library");
  if (library.empty()) return refused("library", "the manifest does not name its \"library\"");
  const auto major = doc.find("abi_major");
  if (major == doc.end() || !major->is_number_unsigned()) {
    return refused("abi_major", "the manifest does not say \"abi_major\", a whole number");
  }
  if (major->get<uint64_t>() != DGPU_BACKEND_ABI_MAJOR) {
    return refused("abi_major",
                   fmt::format("the manifest says backend ABI {}, this library speaks {}; majors must match",
                               major->get<uint64_t>(), DGPU_BACKEND_ABI_MAJOR));
  }
  const std::string load = text("load");
  if (!load.empty() && load != "auto" && load != "explicit") {
    return refused("load", fmt::format("the manifest says \"load\": \"{}\"; accepted: auto, explicit", load));
  }
  out.explicit_only = load == "explicit";
  DGPU_TRY(read_probe(doc, out));
  const std::filesystem::path file(library);
  out.library = file.is_absolute() ? library : (std::filesystem::path(path).parent_path() / file).string();
  return DGPU_STATUS_SUCCESS;
}

std::string installed_directory() {
  Dl_info info{};
  if (!::dladdr(reinterpret_cast<void*>(&installed_directory), &info) || !info.dli_fname) return "";
  std::error_code error;
  const auto file = std::filesystem::weakly_canonical(info.dli_fname, error);
  return error ? "" : (file.parent_path() / "dgpu" / "backends").string();
}

}  // namespace dgpu::backend
