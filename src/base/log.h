// The log: one line per message, to standard error or to the embedder's callback.
#pragma once
#include <fmt/core.h>

#include <string_view>

#include "base/error.h"

namespace dgpu {

enum class LogLevelSource { setting, call };

bool log_enabled(uint32_t level);
// `component` is the room or backend: "runtime", "cpu".
void log_text(uint32_t level, const char* component, std::string_view message);

template <typename... Args>
void log(uint32_t level, const char* component, fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(level)) log_text(level, component, fmt::format(format, std::forward<Args>(args)...));
}

// A level from dgpuLogSetLevel beats the setting.
Status log_set_level(uint32_t level, LogLevelSource source);
// Returns when no thread is inside the old callback. NOT_PERMITTED inside a callback.
Status log_set_callback(dgpuLogCallback callback, void* user);

}  // namespace dgpu
