// dgpu-day0: what is done with a model on the day it is released.
#include <CLI/CLI.hpp>
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

int synth(const Options& o) {
  auto model = open_model(o, true);
  dgpuSynthOptions s = DGPU_SYNTH_OPTIONS_INIT;
  s.seed = o.seed;
  s.progress = o.quiet ? nullptr : show_progress;
  Owned<dgpuReport_t> report{dgpuReportDestroy};
  const auto status = dgpuDay0Synth(model, o.output.c_str(), &s, report.out());
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

void add_options(CLI::App& c, const std::string& name, Options& o) {
  c.add_option("directory", o.directory, "model directory: config.json and safetensors")->required();
  c.add_option("--templates", o.templates, "directory with architecture templates; may be given several times");
  c.add_flag("--json", o.json, "print the document as JSON");
  c.add_flag("--quiet", o.quiet, "no progress on standard error");
  const auto is = [&](std::initializer_list<const char*> names) {
    return std::any_of(names.begin(), names.end(), [&](const char* n) { return name == n; });
  };
  if (is({"coverage", "run", "compare"})) {
    c.add_option("--device", o.device, "device ordinal, as dgpu-smi lists them")->capture_default_str();
    c.add_option("--dtype", o.dtype, "compute type of activations")
        ->check(CLI::IsMember({"f32", "bf16", "f16"}))
        ->capture_default_str();
  }
  if (is({"run", "baseline"})) {
    c.add_option("--tokens", o.tokens, "token ids, as in 1,2,3; run: several times for a batch");
    c.add_option("--tokens-file", o.tokens_file, "file with token ids");
  }
  if (is({"synth", "baseline"}))
    c.add_option("-o,--output", o.output, name == "synth" ? "new directory to write" : "safetensors file to write")
        ->required();
  if (is({"synth", "run"})) c.add_option("--seed", o.seed, "seed of the random numbers")->capture_default_str();
  if (name == "compare")
    c.add_option("--baseline", o.baseline, "safetensors file with input_ids and reference outputs")->required();
  if (name != "run") return;
  c.add_option("--max-new-tokens", o.max_new_tokens, "tokens to generate: exactly this many, unless --stop")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  c.add_option("--stop", o.stop, "'eos' or token ids: a sequence ends after emitting one of them");
  c.add_option("--temperature", o.temperature, "0 is greedy")->check(CLI::NonNegativeNumber)->capture_default_str();
  c.add_option("--top-k", o.top_k, "sample from the k likeliest tokens; 0: all")->capture_default_str();
  c.add_option("--top-p", o.top_p, "sample from the smallest set with this probability; 0: all")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  c.add_option("--chunk", o.chunk, "prompt tokens per step; 0: as many as fit")->capture_default_str();
  c.add_option("--max-tokens", o.max_tokens, "cache size per sequence; 0: prompt plus new tokens")
      ->capture_default_str();
}

int report_error(const Options& o, int exit, const std::string& message) {
  if (o.json) std::cout << Json{{"error", message}, {"exit", exit}}.dump(2) << std::endl;
  std::cerr << "dgpu-day0: " << message << std::endl;
  return exit;
}

}  // namespace
}  // namespace day0

int main(int argc, char** argv) {
  using namespace day0;
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
    const int code = app.exit(e);
    return code == 0 ? kGood : kUsage;
  }
  try {
    Library library;
    return chosen->run(options);
  } catch (const Error& e) {
    return report_error(options, e.exit, e.what());
  } catch (const std::exception& e) {
    return report_error(options, kFailed, e.what());
  }
}
