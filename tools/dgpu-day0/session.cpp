#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tool.h"

namespace day0 {
namespace {

int exit_of(dgpuStatus_t status) {
  switch (status) {
    case DGPU_STATUS_NOT_FOUND:
    case DGPU_STATUS_IO_ERROR:
    case DGPU_STATUS_ALREADY_EXISTS:
      return kNotFound;
    case DGPU_STATUS_UNSUPPORTED:
      return kUnsupported;
    default:
      break;
  }
  switch (dgpuStatusClass(status)) {
    case DGPU_STATUS_CLASS_CALLER:
      return kBadInput;
    case DGPU_STATUS_CLASS_RESOURCE:
      return kResource;
    default:
      return kFailed;
  }
}

}  // namespace

void check(dgpuStatus_t status) {
  if (status >= 0) return;
  dgpuErrorInfo info = DGPU_ERROR_INFO_INIT;
  dgpuGetLastError(&info);
  std::string text = info.message[0] ? info.message : dgpuStatusText(status);
  if (info.op[0] && text.find(info.op) == std::string::npos) text = std::string(info.op) + ": " + text;
  throw Error(exit_of(status), text + " (" + dgpuStatusName(status) + ")");
}

Owned<dgpuModel_t> open_model(const Options& options, bool config_only) {
  std::string path;
  for (const auto& t : options.templates) {
    std::error_code ec;
    if (!std::filesystem::is_directory(t, ec)) throw Error(kNotFound, "--templates: '" + t + "' is not a directory");
    path += (path.empty() ? "" : ":") + t;
  }
  dgpuModelOptions o = DGPU_MODEL_OPTIONS_INIT;
  o.template_path = path.empty() ? nullptr : path.c_str();
  o.flags = config_only ? DGPU_MODEL_CONFIG_ONLY : 0;
  Owned<dgpuModel_t> model{dgpuModelDestroy};
  check(dgpuModelOpen(options.directory.c_str(), &o, model.out()));
  return model;
}

dgpuDevice_t pick_device(uint32_t ordinal) {
  uint32_t count = 0;
  check(dgpuDeviceCount(&count));
  if (count == 0) throw Error(kResource, "there is no device; `dgpu-smi backends --why` tells what was tried");
  if (ordinal >= count)
    throw Error(kUsage, "--device " + std::to_string(ordinal) + ": the devices are 0 to " + std::to_string(count - 1));
  dgpuDevice_t device = nullptr;
  check(dgpuDeviceGet(ordinal, &device));
  return device;
}

dgpuDtype_t compute_dtype(const std::string& name) {
  dgpuDtype_t dtype = DGPU_DTYPE_NONE;
  check(dgpuDtypeFromName(name.c_str(), &dtype));
  return dtype;
}

void load_model(const Options& options, Loaded& out) {
  out.device = pick_device(options.device);
  check(dgpuContextCreate(&out.device, 1, nullptr, out.context.out()));
  out.model = open_model(options, false);
  dgpuStreamOptions stream = DGPU_STREAM_OPTIONS_INIT;
  stream.flags = DGPU_STREAM_BLOCKING_SUBMIT;
  check(dgpuStreamCreate(out.context, out.device, &stream, out.stream.out()));
  dgpuLoadOptions load = DGPU_LOAD_OPTIONS_INIT;
  load.dtype = compute_dtype(options.dtype);
  load.progress = options.quiet ? nullptr : show_progress;
  const auto start = std::chrono::steady_clock::now();
  check(dgpuModelLoad(out.model, out.context, out.device, &load));
  out.load_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::vector<int32_t> parse_tokens(const std::string& text, const std::string& where) {
  std::vector<int32_t> out;
  std::string word;
  std::string cleaned = text;
  for (auto& c : cleaned)
    if (c == ',' || c == '[' || c == ']' || c == '\n' || c == '\r' || c == '\t') c = ' ';
  std::istringstream in(cleaned);
  while (in >> word) {
    size_t used = 0;
    long value = -1;
    try {
      value = std::stol(word, &used);
    } catch (const std::exception&) {
    }
    if (used != word.size() || value < 0 || value > INT32_MAX)
      throw Error(kUsage, where + ": '" + word + "' is not a token id (expected numbers such as 1,2,3)");
    out.push_back(static_cast<int32_t>(value));
  }
  if (out.empty()) throw Error(kUsage, where + ": no token ids");
  return out;
}

std::vector<std::vector<int32_t>> token_lists(const Options& options) {
  std::vector<std::vector<int32_t>> lists;
  for (const auto& t : options.tokens) lists.push_back(parse_tokens(t, "--tokens"));
  if (!options.tokens_file.empty()) {
    std::ifstream in(options.tokens_file);
    std::error_code ec;
    if (!in || std::filesystem::is_directory(options.tokens_file, ec))
      throw Error(kNotFound, "--tokens-file: cannot read '" + options.tokens_file + "'");
    std::string text;
    for (char piece[65536]; in.read(piece, sizeof piece), in.gcount() > 0;) {
      text.append(piece, static_cast<size_t>(in.gcount()));
      if (text.size() > size_t{64} << 20)  // ends what has no end, such as /dev/zero
        throw Error(kUsage, "--tokens-file: '" + options.tokens_file + "' has more than 64 MiB");
    }
    lists.push_back(parse_tokens(text, options.tokens_file));
  }
  if (lists.empty()) throw Error(kUsage, "give the prompt with --tokens 1,2,3 or --tokens-file FILE");
  return lists;
}

uint32_t show_progress(uint64_t done, uint64_t total, const char* what, void*) {
  static const bool terminal = isatty(STDERR_FILENO) == 1;
  static auto last = std::chrono::steady_clock::now();
  const auto now = std::chrono::steady_clock::now();
  if (!terminal || (now - last < std::chrono::milliseconds(100) && done != total)) return 0;
  last = now;
  std::fprintf(stderr, "\r\033[K%3.0f%% %s",
               total ? 100.0 * static_cast<double>(done) / static_cast<double>(total) : 100.0, what);
  if (done == total) std::fprintf(stderr, "\r\033[K");
  std::fflush(stderr);
  return 0;
}

}  // namespace day0
