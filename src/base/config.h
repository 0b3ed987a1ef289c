// Settings: one table of rows, one row per DGPU_* knob. To add one, add a row to the table in config.cpp.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace dgpu {

enum class ConfigType { integer, bytes, boolean, path, paths, text, choice };

struct ConfigRow {
  const char* name;
  ConfigType type;
  const char* choices;  // "a|b|c" for choice, else null
  const char* def;
  const char* help;
  int64_t low = INT64_MIN;  // of an integer, both included
  int64_t high = INT64_MAX;
};

// The effective value: a call, else the environment (ignored in set-user-id programs), else the default. Between
// dgpuInit and dgpuShutdown values do not change. Asking for a name without a row, or as a wrong type, is a bug.
std::string config_text(std::string_view name);  // any type
int64_t config_integer(std::string_view name);
bool config_flag(std::string_view name);
size_t config_choice(std::string_view name);                   // position in the row's choices
std::vector<std::string> config_paths(std::string_view name);  // split at ':', empty parts dropped

// For the API.
const std::vector<ConfigRow>& config_rows();  // sorted by name
const ConfigRow* config_find(std::string_view name);
const char* config_type_text(const ConfigRow& row);
uint32_t config_source(const ConfigRow& row);  // DGPU_CONFIG_SOURCE_*
Status config_set(std::string_view name, const char* value);
// INVALID_ARGUMENT with the accepted form if the text is not a value of that row.
Status config_check(const ConfigRow& row, std::string_view value);

// Library life time: takes a snapshot. cpu_threads != 0 beats every other source until config_thaw().
Status config_freeze(uint32_t cpu_threads);
void config_thaw();

}  // namespace dgpu
