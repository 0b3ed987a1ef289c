// dgpu-smi: what the library sees of this machine.
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>
#include <sstream>

#include "smi.h"

namespace {

const char* kFooter =
    "Exit status: 0 good, 1 internal (also: standard output cannot be written), 2 usage, 5 no device (overview only),\n"
    "6 device not found, 7 some devices or backends did not answer in time (what they did say is shown), 9 the "
    "library\n"
    "could not be initialised. A reader that leaves early, as head does, is no error.\n"
    "On a terminal, a table that is too wide is shown as one block per row (COLUMNS, if set, is the width).\n"
    "JSON documents carry \"schema\" with a version and only grow within it; absent values are null with the reason\n"
    "under \"absent\". CSV is quoted as RFC 4180 says, absent values are empty. Memory and load are those of the "
    "process\n"
    "that asks, here dgpu-smi itself, unless the backend knows more.";

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
  if (command != smi::config && !options.list_fields && !smi::discover(options.discovery_ms)) {
    smi::print_error(fmt::format("a backend did not start within {} ms; DGPU_LOG_LEVEL=info shows which one is tried, "
                                 "--discovery-timeout gives it more time",
                                 options.discovery_ms),
                     smi::kPartial, options.format);
    return smi::kPartial;
  }
  return command(options);
}

// What is wrong with the command line, or help and version, which are no errors.
int usage(const CLI::App& app, const CLI::ParseError& e, smi::Format format, int argc, char** argv) {
  if (e.get_exit_code() == 0) {
    std::ostringstream text;
    app.exit(e, text, text);
    smi::write(text.str());
    return smi::kOk;
  }
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
  const std::string error = smi::flush();
  if (!error.empty()) smi::complain("standard output: " + error);
  smi::flush_complaints();
  return exit == smi::kOk && !error.empty() ? smi::kInternal : exit;
}

}  // namespace

int main(int argc, char** argv) {
  fill_standard_streams();
  std::setlocale(LC_CTYPE, "C.UTF-8");  // for the width of characters alone
  std::signal(SIGPIPE, SIG_IGN);        // a reader that leaves is no failure
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
    c.add_option("--discovery-timeout", options.discovery_ms, "milliseconds to wait for the backends to start")
        ->capture_default_str();
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
  _exit(close_output(exit));  // a thread may still be waiting for a device that does not answer
}
