// dgpu-day0: what is done with a model on the day it is released.
#include <fcntl.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <iostream>

#include "tool.h"

namespace day0 {
namespace {

const char* kFooter =
    "Exit status: 0 good, 1 verdict negative, 2 usage, 3 file not found or not readable or in the way, 4 bad config,\n"
    "checkpoint or request, 5 unsupported (architecture, operator, type), 6 out of memory or of another resource,\n"
    "7 execution failed. With --json an error is an object with \"error\" and \"exit\" on standard output.";

// A report of the library: prints it and turns the verdict into the exit status.
int finish(const Options& options, dgpuStatus_t status, Owned<dgpuReport_t>& report) {
  check(status);
  const char* text = nullptr;
  uint32_t good = 0;
  check(dgpuReportGetJson(report, &text));
  check(dgpuReportGetVerdict(report, &good));
  print(options, Json::parse(text));
  return good ? kGood : kNegative;
}

int inspect(const Options& o) {
  auto model = open_model(o, true);
  Owned<dgpuReport_t> report{dgpuReportDestroy};
  const auto status = dgpuDay0Inspect(model, report.out());
  return finish(o, status, report);
}

int audit(const Options& o) {
  auto model = open_model(o, false);
  Owned<dgpuReport_t> report{dgpuReportDestroy};
  const auto status = dgpuDay0Audit(model, report.out());
  return finish(o, status, report);
}

int coverage(const Options& o) {
  auto model = open_model(o, true);
  Owned<dgpuReport_t> report{dgpuReportDestroy};
  const auto status = dgpuDay0Coverage(model, pick_device(o.device), compute_dtype(o.dtype), report.out());
  return finish(o, status, report);
}

volatile std::sig_atomic_t g_signal = 0;  // that asks synth to end

uint32_t synth_progress(uint64_t done, uint64_t total, const char* what, void* user) {
  if (g_signal) return 1;
  return *static_cast<const bool*>(user) ? 0 : show_progress(done, total, what, nullptr);
}

int synth(const Options& o) {
  auto model = open_model(o, true);
  bool quiet = o.quiet;
  dgpuSynthOptions s = DGPU_SYNTH_OPTIONS_INIT;
  s.seed = o.seed;
  s.progress = synth_progress;
  s.user = &quiet;
  // The first signal lets the library take back what is written, a second one ends the program at once.
  struct sigaction action {};
  action.sa_handler = [](int number) { g_signal = number; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaction(number, &action, nullptr);
  std::signal(SIGXFSZ, SIG_IGN);  // a file above the limit is an error of the write, then
  Owned<dgpuReport_t> report{dgpuReportDestroy};
  const auto status = dgpuDay0Synth(model, o.output.c_str(), &s, report.out());
  if (status == DGPU_STATUS_CANCELLED && g_signal) std::raise(g_signal);
  return finish(o, status, report);
}

int baseline(const Options& o) {
  auto model = open_model(o, false);
  const auto lists = token_lists(o);
  if (lists.size() != 1) throw Error(kUsage, "baseline takes one list of tokens");
  dgpuSynthOptions s = DGPU_SYNTH_OPTIONS_INIT;
  s.progress = o.quiet ? nullptr : show_progress;
  Owned<dgpuReport_t> report{dgpuReportDestroy};
  const auto status = dgpuDay0Baseline(model, lists[0].data(), static_cast<uint32_t>(lists[0].size()), o.output.c_str(),
                                       &s, report.out());
  return finish(o, status, report);
}

int compare(const Options& o) {
  Loaded l;
  load_model(o, l);
  Owned<dgpuReport_t> report{dgpuReportDestroy};
  const auto status =
      dgpuDay0Compare(l.model, l.context, l.device, compute_dtype(o.dtype), o.baseline.c_str(), report.out());
  return finish(o, status, report);
}

struct Command {
  const char* name;
  const char* help;
  int (*run)(const Options&);
};
constexpr Command kCommands[] = {
    {"inspect", "parameters, bytes, operators and state bytes, from config and headers alone", inspect},
    {"audit", "missing, extra, wrong-shaped and wrong-typed tensors", audit},
    {"coverage", "operator by operator: native, composed, reference or missing", coverage},
    {"synth", "write a random checkpoint from a config.json alone", synth},
    {"run", "generate tokens", run_command},
    {"baseline", "run the f64 reference and write per-layer outputs", baseline},
    {"compare", "run and compare layer by layer with a baseline", compare},
};

// A validator for whole numbers; CLI11 alone takes -1 and numbers above the limit for some unsigned ones.
CLI::Validator whole(uint64_t low, uint64_t high) {
  return {[low, high](std::string& text) -> std::string {
            uint64_t value = 0;
            const char* end = text.data() + text.size();
            const auto [at, error] = std::from_chars(text.data(), end, value);
            if (error == std::errc() && at == end && value >= low && value <= high) return {};
            return "'" + text + "' is not a whole number from " + std::to_string(low) + " to " + std::to_string(high);
          },
          ""};
}

CLI::Validator number(double high, const std::string& expected) {
  return {[high, expected](std::string& text) -> std::string {
            double value = -1;
            const bool good = CLI::detail::lexical_cast(text, value) && value >= 0 && value <= high;
            return good ? std::string() : "'" + text + "' is not " + expected;
          },
          ""};
}

CLI::Validator not_empty() {
  return {[](std::string& text) { return text.empty() ? std::string("is empty") : std::string(); }, ""};
}

void add_options(CLI::App& c, const std::string& name, Options& o) {
  c.add_option("directory", o.directory, "model directory: config.json and safetensors")->required();
  c.add_option("--templates", o.templates, "directory with architecture templates; may be given several times")
      ->allow_extra_args(false);
  c.add_flag("--json", o.json, "print the document as JSON");
  c.add_flag("--quiet", o.quiet, "no progress on standard error");
  const auto is = [&](std::initializer_list<const char*> names) {
    return std::any_of(names.begin(), names.end(), [&](const char* n) { return name == n; });
  };
  if (is({"coverage", "run", "compare"})) {
    c.add_option("--device", o.device, "device ordinal, as dgpu-smi lists them")
        ->check(whole(0, UINT32_MAX))
        ->capture_default_str();
    c.add_option("--dtype", o.dtype, "compute type of activations")
        ->check(CLI::IsMember({"f32", "bf16", "f16"}))
        ->capture_default_str();
  }
  if (is({"run", "baseline"})) {
    c.add_option("--tokens", o.tokens, "token ids, as in 1,2,3; run: several times for a batch")
        ->allow_extra_args(false);
    c.add_option("--tokens-file", o.tokens_file, "file with token ids");
  }
  if (is({"synth", "baseline"}))
    c.add_option("-o,--output", o.output, name == "synth" ? "new directory to write" : "safetensors file to write")
        ->required();
  if (is({"synth", "run"}))
    c.add_option("--seed", o.seed, "seed of the random numbers")->check(whole(0, UINT64_MAX))->capture_default_str();
  if (name == "compare")
    c.add_option("--baseline", o.baseline, "safetensors file with input_ids and reference outputs")->required();
  if (name != "run") return;
  c.add_option("--max-new-tokens", o.max_new_tokens, "tokens to generate: exactly this many, unless --stop")
      ->check(whole(1, 1 << 20))
      ->capture_default_str();
  c.add_option("--stop", o.stop, "'eos' or token ids: a sequence ends after emitting one of them")->check(not_empty());
  c.add_option("--temperature", o.temperature, "0 is greedy")
      ->check(number(std::numeric_limits<double>::max(), "a number from 0"))
      ->capture_default_str();
  c.add_option("--top-k", o.top_k, "sample from the k likeliest tokens; 0: all")
      ->check(whole(0, UINT32_MAX))
      ->capture_default_str();
  c.add_option("--top-p", o.top_p, "sample from the smallest set with this probability; 0: all")
      ->check(number(1, "a number from 0 to 1"))
      ->capture_default_str();
  c.add_option("--chunk", o.chunk, "prompt tokens per step; 0: as many as fit")
      ->check(whole(0, UINT32_MAX))
      ->capture_default_str();
  c.add_option("--max-tokens", o.max_tokens, "cache size per sequence; 0: prompt plus new tokens")
      ->check(whole(0, UINT32_MAX))
      ->capture_default_str();
}

int report_error(const Options& o, int exit, const std::string& message) {
  if (o.json) std::cout << json_text({{"error", message}, {"exit", exit}}) << std::endl;
  std::cerr << "dgpu-day0: " << printable(message) << std::endl;
  return exit;
}

// What is wrong with the command line, or help and version, which are no errors.
int usage(const CLI::App& app, const CLI::ParseError& e, Options& o, int argc, char** argv) {
  if (e.get_exit_code() == 0) return app.exit(e);
  const std::string first = argc > 1 ? argv[1] : "";
  std::string message = e.what(), names, help = "dgpu-day0 --help";
  bool known = false;
  for (const auto& command : kCommands) {
    names += std::string(" ") + command.name;
    if (first == command.name) known = true;
  }
  if (known) help = "dgpu-day0 " + first + " --help";
  if (!known && !first.empty() && first[0] != '-')
    message = "there is no command '" + first + "'; commands are" + names;
  for (int i = 1; i < argc; ++i) o.json |= std::strcmp(argv[i], "--json") == 0;  // where parsing ended before it
  return report_error(o, kUsage, message + "; see `" + help + "`");
}

// A closed standard stream would hand its number to the next file that is opened: it is filled with what refuses
// writes.
void fill_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd)
    if (fcntl(fd, F_GETFD) == -1 && open("/dev/null", O_RDONLY) != fd) return;
}

// The exit status, or kNotFound if the output did not get out, on a full disk for example.
int close_output(int exit) {
  errno = 0;
  if (std::fflush(stdout) == 0 && !std::ferror(stdout)) return exit;
  std::cerr << "dgpu-day0: standard output: " << (errno ? std::strerror(errno) : "cannot write") << std::endl;
  return exit == kGood || exit == kNegative ? kNotFound : exit;
}

int guarded(const Command& command, const Options& options) {
  try {
    Library library;
    return command.run(options);
  } catch (const Error& e) {
    return report_error(options, e.exit, e.what());
  } catch (const std::exception& e) {
    return report_error(options, kFailed, e.what());
  }
}

}  // namespace
}  // namespace day0

int main(int argc, char** argv) {
  using namespace day0;
  fill_standard_streams();
  Options options;
  CLI::App app{"dgpu-day0: check, run and compare a model on the day it is released"};
  app.footer(kFooter);
  app.require_subcommand(1);
  uint32_t major = 0, minor = 0, patch = 0;
  dgpuGetVersion(&major, &minor, &patch);
  app.set_version_flag(
      "--version", "dgpu-day0 " + std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch));
  const Command* chosen = nullptr;
  for (const auto& command : kCommands) {
    auto* c = app.add_subcommand(command.name, command.help);
    c->footer(kFooter);
    add_options(*c, command.name, options);
    c->callback([&chosen, &command] { chosen = &command; });
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return close_output(usage(app, e, options, argc, argv));
  }
  return close_output(guarded(*chosen, options));
}
