// What the commands of dgpu-day0 share: errors, exit codes, handles, the loaded model. Uses the public header only.
#pragma once
#include <dgpu.h>

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace day0 {

using Json = nlohmann::ordered_json;

// Documented in --help.
enum Exit : int {
  kGood = 0,
  kNegative = 1,
  kUsage = 2,
  kNotFound = 3,
  kBadInput = 4,
  kUnsupported = 5,
  kResource = 6,
  kFailed = 7
};

struct Error : std::runtime_error {
  Error(int code, const std::string& message) : std::runtime_error(message), exit(code) {}
  int exit;
};

// Throws an Error with the library's message and the exit code of the status.
void check(dgpuStatus_t status);

// Owns a handle; destroys it at the end of its scope.
template <typename H>
class Owned {
 public:
  explicit Owned(dgpuStatus_t (*destroy)(H)) : destroy_(destroy) {}
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  Owned(Owned&& o) noexcept : destroy_(o.destroy_), handle_(std::exchange(o.handle_, nullptr)) {}
  Owned& operator=(Owned&& o) noexcept {
    std::swap(handle_, o.handle_);
    return *this;
  }
  ~Owned() {
    if (handle_) destroy_(handle_);
  }
  H* out() { return &handle_; }
  operator H() const { return handle_; }

 private:
  dgpuStatus_t (*destroy_)(H);
  H handle_ = nullptr;
};

struct Options {
  std::string directory;
  std::vector<std::string> templates;
  bool json = false;
  bool quiet = false;
  uint32_t device = 0;
  std::string dtype = "f32";
  std::string output;
  std::string baseline;
  uint64_t seed = 0;
  std::vector<std::string> tokens;
  std::string tokens_file;
  uint32_t max_new_tokens = 16;
  std::string stop;
  double temperature = 0;
  double top_p = 0;
  uint32_t top_k = 0;
  uint32_t chunk = 0;
  uint32_t max_tokens = 0;
};

// dgpuInit for the length of its scope.
struct Library {
  Library() { check(dgpuInit(nullptr)); }
  ~Library() { dgpuShutdown(); }
};

Owned<dgpuModel_t> open_model(const Options& options, bool config_only);

// Context, stream and the weights on one device.
struct Loaded {
  Owned<dgpuContext_t> context{dgpuContextDestroy};
  Owned<dgpuModel_t> model{dgpuModelDestroy};
  Owned<dgpuStream_t> stream{dgpuStreamDestroy};
  dgpuDevice_t device = nullptr;
  double load_seconds = 0;
};
void load_model(const Options& options, Loaded& out);
dgpuDevice_t pick_device(uint32_t ordinal);
dgpuDtype_t compute_dtype(const std::string& name);  // f32, bf16 or f16

// Token ids from "1,2,3" (spaces allowed) or from a file with the same, or a JSON array.
std::vector<int32_t> parse_tokens(const std::string& text, const std::string& where);
std::vector<std::vector<int32_t>> token_lists(const Options& options);

// Progress on standard error, only where that is a terminal.
uint32_t show_progress(uint64_t done, uint64_t total, const char* what, void* user);

int run_command(const Options& options);

// The text of a document. Bytes that are no UTF-8, in the names of files and tensors, become U+FFFD.
std::string json_text(const Json& document);
// `text` with control characters written as \xNN: names come from files that others wrote.
std::string printable(const std::string& text);

// Prints a document: as JSON, or as text for people.
void print(const Options& options, const Json& document);

}  // namespace day0
