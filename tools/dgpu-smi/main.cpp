// dgpu-smi: what the library sees of this machine.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>

#include "smi.h"

namespace {

const char* kFooter =
    "Exit status: 0 good, 1 internal, 2 usage, 5 no device (overview only), 6 device not found, 7 some devices did "
    "not\n"
    "answer (their rows are empty), 9 the library could not be initialised. JSON documents carry \"schema\" with a\n"
    "version and only grow within it; absent values are null with the reason under \"absent\". CSV is quoted as RFC "
    "4180\n"
    "says, absent values are empty.";

struct Command {
  const char* name;
  const char* help;
  int (*run)(const smi::Options&);
};
constexpr Command kCommands[] = {
    {"list", "one line per device", smi::list},
    {"query", "chosen fields of every device", smi::query},
    {"topo", "links between devices", smi::topo},
    {"config", "every setting with value, source, default and meaning", smi::config},
    {"backends", "loaded backends", smi::backends},
};

int run(int (*command)(const smi::Options&), const smi::Options& options) {
  const dgpuStatus_t status = dgpuInit(nullptr);
  if (status != DGPU_STATUS_SUCCESS) {
    dgpuErrorInfo info = DGPU_ERROR_INFO_INIT;
    dgpuGetLastError(&info);
    smi::print_error(std::string("cannot initialise libdgpu: ") + info.message, smi::kLibrary, options.format);
    return smi::kLibrary;
  }
  return command(options);
}

// What is wrong with the command line, or help and version, which are no errors.
int usage(const CLI::App& app, const CLI::ParseError& e, smi::Format format, int argc, char** argv) {
  if (e.get_exit_code() == 0) return app.exit(e);
  std::string message = e.what();
  for (int i = 1; i < argc; ++i)  // where parsing ended before it
    if (!std::strcmp(argv[i], "--format=json") ||
        (i + 1 < argc && !std::strcmp(argv[i], "--format") && !std::strcmp(argv[i + 1], "json")))
      format = smi::Format::json;
  smi::print_error(message + "; see `dgpu-smi --help`", smi::kUsage, format);
  return smi::kUsage;
}

// A closed standard stream would hand its number to the next file that is opened: it is filled with what refuses
// writes.
void fill_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd)
    if (fcntl(fd, F_GETFD) == -1 && open("/dev/null", O_RDONLY) != fd) return;
}

// The exit status, or kInternal if the output did not get out, on a full disk for example.
int close_output(int exit) {
  errno = 0;
  if (std::fflush(stdout) == 0 && !std::ferror(stdout)) return exit;
  std::fprintf(stderr, "dgpu-smi: standard output: %s\n", errno ? std::strerror(errno) : "cannot write");
  return exit == smi::kOk ? smi::kInternal : exit;
}

}  // namespace

int main(int argc, char** argv) {
  fill_standard_streams();
  smi::Options options;
  std::string format = "table";
  CLI::App app{"dgpu-smi: devices, links, settings and backends of this machine; without a command: an overview"};
  app.footer(kFooter);
  app.require_subcommand(0, 1);
  uint32_t major = 0, minor = 0, patch = 0;
  dgpuGetVersion(&major, &minor, &patch);
  app.set_version_flag("--version",
                       "dgpu-smi " + std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch));
  int (*chosen)(const smi::Options&) = smi::overview;
  const std::map<std::string, smi::Format> formats = {
      {"table", smi::Format::table}, {"json", smi::Format::json}, {"csv", smi::Format::csv}};
  const auto common = [&](CLI::App& c) {
    c.add_option("--format", format, "table, json or csv")
        ->check(CLI::Validator(
            [&formats](std::string& text) {
              return formats.count(text) ? std::string() : "'" + text + "' is none of table, json and csv";
            },
            ""))
        ->type_name("FORMAT");
    c.add_option("--device", options.device, "only this one: index, uuid:..., name:... or pci:...");
    c.add_option("--timeout", options.timeout_ms, "milliseconds to wait for a device")->capture_default_str();
  };
  common(app);
  for (const auto& command : kCommands) {
    auto* c = app.add_subcommand(command.name, command.help);
    c->footer(kFooter);
    common(*c);
    c->callback([&chosen, &command] { chosen = command.run; });
    const std::string name = command.name;
    if (name == "query") {
      c->add_option("--fields", options.fields, "fields in the order of the columns, ',' between; all without")
          ->delimiter(',');
      c->add_flag("--list-fields", options.list_fields, "names, units and meanings of the fields");
    }
    if (name == "topo") c->add_flag("-m,--matrix", options.matrix, "as a matrix");
    if (name == "backends") c->add_flag("--why", options.why, "what was tried, and why it was taken or refused");
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return close_output(usage(app, e, formats.count(format) ? formats.at(format) : smi::Format::table, argc, argv));
  }
  options.format = formats.at(format);
  int exit = smi::kInternal;
  try {
    exit = run(chosen, options);
  } catch (const std::exception& e) {
    smi::print_error(e.what(), smi::kInternal, options.format);
  }
  exit = close_output(exit);
  std::fflush(stderr);
  _exit(exit);  // a thread may still be waiting for a device that does not answer
}
