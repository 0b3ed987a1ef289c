#include "base/config.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

#include "base/library.h"

namespace dgpu {
namespace {

// Sorted by name. `help` is one sentence with the unit and the accepted values.
const std::vector<ConfigRow> kRows = {
    {"DGPU_BACKEND_PATH", ConfigType::paths, nullptr, "",
     "Directories searched for backend manifests (*.json) before the installed one, ':' between."},
    {"DGPU_BACKEND_PROBE", ConfigType::boolean, nullptr, "1",
     "1: a plugin is first loaded and started in a short-lived child process, so that a crash or hang in it cannot hurt "
     "this one."},
    {"DGPU_BACKEND_PROBE_TIMEOUT_MS", ConfigType::integer, nullptr, "5000",
     "Milliseconds that the probing child process may take before the plugin is refused, 1 to 3600000.", 1, 3600000},
    {"DGPU_CPU_BF16", ConfigType::choice, "auto|dot|fma", "auto",
     "How the cpu backend multiplies bf16: dot uses the bf16 dot unit, fma widens to f32, auto measures which is "
     "faster."},
    {"DGPU_CPU_DEVICES", ConfigType::integer, nullptr, "1", "Number of virtual devices of the cpu backend, 1 to 64.", 1,
     64},
    {"DGPU_CPU_HELPING", ConfigType::boolean, nullptr, "1",
     "1: a thread that synchronises runs chunks of the work it waits for; 0: it only sleeps."},
    {"DGPU_CPU_ISA", ConfigType::choice, "auto|scalar|sse4|avx2|avx512", "auto",
     "Upper limit of the instructions that the cpu backend uses; what the machine lacks is never used."},
    {"DGPU_CPU_MEMORY", ConfigType::bytes, nullptr, "0",
     "Memory of each virtual device in bytes, suffixes K M G T accepted; 0: the machine's memory, shared by all."},
    {"DGPU_CPU_THREADS", ConfigType::integer, nullptr, "0",
     "Worker threads of the cpu backend, at most 4096; 0: as many as affinity and cgroup quota allow.", 0, 4096},
    {"DGPU_CPU_TOPOLOGY", ConfigType::path, nullptr, "",
     "JSON file with claimed links between virtual devices, paced copies and injected faults "
     "(docs/virtual-devices.md); empty: all through host memory, nothing fails."},
    {"DGPU_DETERMINISTIC", ConfigType::boolean, nullptr, "0",
     "1: reduction trees are fixed, results are the same bits on every run and batch."},
    {"DGPU_LOG_LEVEL", ConfigType::choice, "off|error|warn|info|debug", "warn",
     "Messages above this level are dropped."},
    {"DGPU_TEMPLATE_PATH", ConfigType::paths, nullptr, "",
     "Directories searched for architecture templates before the built-in ones, ':' between."},
};

std::map<std::string, std::string, std::less<>>& calls() {
  static auto* const made = new std::map<std::string, std::string, std::less<>>;
  return *made;
}
struct Snapshot {
  std::string text;
  uint32_t source;
};
std::map<std::string, Snapshot, std::less<>>* frozen = nullptr;
alignas(std::mutex) unsigned char mutex_storage[sizeof(std::mutex)];

void after_fork() {
  new (mutex_storage) std::mutex;
  frozen = nullptr;  // the parent's library is left behind, its snapshot too
}
std::mutex& mutex() {
  static std::mutex* const made = [] {
    on_fork_child(after_fork);
    return new (mutex_storage) std::mutex;
  }();
  return *made;
}

std::optional<int64_t> parse_integer(std::string_view text) {
  int64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc() || result.ptr != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

std::optional<uint64_t> parse_bytes(std::string_view text) {
  unsigned shift = 0;
  if (!text.empty()) {
    const char* const suffixes = "KMGT";
    for (unsigned i = 0; i < 4; ++i) {
      if ((text.back() & ~0x20) == suffixes[i]) shift = 10 * (i + 1);
    }
    if (shift) text.remove_suffix(1);
  }
  const auto value = parse_integer(text);
  if (!value || *value < 0 || static_cast<uint64_t>(*value) > (UINT64_MAX >> shift)) return std::nullopt;
  return static_cast<uint64_t>(*value) << shift;
}

std::optional<bool> parse_flag(std::string_view text) {
  for (const char* yes : {"1", "on", "true", "yes"}) {
    if (text == yes) return true;
  }
  for (const char* no : {"0", "off", "false", "no"}) {
    if (text == no) return false;
  }
  return std::nullopt;
}

std::optional<size_t> parse_choice(std::string_view choices, std::string_view text) {
  for (size_t index = 0; !choices.empty(); ++index) {
    const size_t bar = std::min(choices.find('|'), choices.size());
    if (choices.substr(0, bar) == text) return index;
    choices.remove_prefix(std::min(bar + 1, choices.size()));
  }
  return std::nullopt;
}

Snapshot evaluate(const ConfigRow& row) {
  if (const auto set = calls().find(row.name); set != calls().end()) return {set->second, DGPU_CONFIG_SOURCE_CALL};
  if (const char* env = secure_getenv(row.name)) return {env, DGPU_CONFIG_SOURCE_ENVIRONMENT};
  return {row.def, DGPU_CONFIG_SOURCE_DEFAULT};
}

Snapshot effective(std::string_view name) {
  std::lock_guard lock(mutex());
  if (frozen) {
    const auto row = frozen->find(name);
    return row == frozen->end() ? Snapshot{"", 0} : row->second;
  }
  const ConfigRow* row = config_find(name);
  return row ? evaluate(*row) : Snapshot{"", 0};
}

}  // namespace

const std::vector<ConfigRow>& config_rows() { return kRows; }

const ConfigRow* config_find(std::string_view name) {
  const auto row = std::lower_bound(kRows.begin(), kRows.end(), name, [](const ConfigRow& r, std::string_view n) {
    return std::string_view(r.name) < n;
  });
  return row != kRows.end() && row->name == name ? &*row : nullptr;
}

const char* config_type_text(const ConfigRow& row) {
  switch (row.type) {
    case ConfigType::integer:
      return "integer";
    case ConfigType::bytes:
      return "bytes";
    case ConfigType::boolean:
      return "bool";
    case ConfigType::path:
      return "path";
    case ConfigType::paths:
      return "paths";
    case ConfigType::text:
      return "text";
    case ConfigType::choice:
      return row.choices;
  }
  return "text";
}

Status config_check(const ConfigRow& row, std::string_view value) {
  const char* accepted = nullptr;
  std::string range;
  switch (row.type) {
    case ConfigType::integer: {
      const auto number = parse_integer(value);
      if (number && *number >= row.low && *number <= row.high) break;
      range = fmt::format("a whole number from {} to {}", row.low, row.high);
      accepted = range.c_str();
      break;
    }
    case ConfigType::bytes:
      if (!parse_bytes(value)) accepted = "bytes, with an optional suffix K, M, G or T (512M)";
      break;
    case ConfigType::boolean:
      if (!parse_flag(value)) accepted = "1, on, true, yes or 0, off, false, no";
      break;
    case ConfigType::choice:
      if (!parse_choice(row.choices, value)) accepted = row.choices;
      break;
    default:
      break;
  }
  if (!accepted) return DGPU_STATUS_SUCCESS;
  return fail(DGPU_STATUS_INVALID_ARGUMENT, row.name, "{} is '{}'; accepted: {}", row.name, value, accepted);
}

uint32_t config_source(const ConfigRow& row) { return effective(row.name).source; }

// Getters fall back to the default where the environment holds nonsense: dgpuInit has refused that by then.
std::string config_text(std::string_view name) { return effective(name).text; }

int64_t config_integer(std::string_view name) {
  const ConfigRow* row = config_find(name);
  if (const auto value = parse_integer(config_text(name))) return *value;
  return row ? parse_integer(row->def).value_or(0) : 0;
}

bool config_flag(std::string_view name) { return parse_flag(config_text(name)).value_or(false); }

size_t config_choice(std::string_view name) {
  const ConfigRow* row = config_find(name);
  if (!row || !row->choices) return 0;
  return parse_choice(row->choices, config_text(name)).value_or(parse_choice(row->choices, row->def).value_or(0));
}

std::vector<std::string> config_paths(std::string_view name) {
  const std::string text = config_text(name);
  std::vector<std::string> parts;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(':', begin), text.size());
    if (end > begin) parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

Status config_set(std::string_view name, const char* value) {
  const ConfigRow* row = config_find(name);
  if (!row) return fail(DGPU_STATUS_NOT_FOUND, "name", "there is no setting '{}'; dgpu-smi config lists them", name);
  if (value) DGPU_TRY(config_check(*row, value));
  std::lock_guard lock(mutex());
  if (frozen) {
    return fail(DGPU_STATUS_INVALID_STATE, row->name,
                "settings are fixed while the library is initialised; set {} before dgpuInit", row->name);
  }
  if (value) {
    calls()[row->name] = value;
  } else {
    calls().erase(row->name);
  }
  return DGPU_STATUS_SUCCESS;
}

Status config_freeze(uint32_t cpu_threads) {
  std::lock_guard lock(mutex());
  auto snapshot = std::make_unique<std::map<std::string, Snapshot, std::less<>>>();
  for (const ConfigRow& row : kRows) {
    Snapshot value = evaluate(row);
    if (cpu_threads && std::string_view(row.name) == "DGPU_CPU_THREADS") {
      value = {std::to_string(cpu_threads), DGPU_CONFIG_SOURCE_CALL};
    }
    DGPU_TRY(config_check(row, value.text));
    snapshot->emplace(row.name, std::move(value));
  }
  frozen = snapshot.release();
  return DGPU_STATUS_SUCCESS;
}

void config_thaw() {
  std::lock_guard lock(mutex());
  delete std::exchange(frozen, nullptr);
}

}  // namespace dgpu
