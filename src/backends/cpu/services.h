// The core's services, with formatted errors and parsed settings.
#pragma once
#include <fmt/core.h>

#include <optional>
#include <string>

#include "dgpu/backend.h"

namespace dgpu::cpu {

class Services {
 public:
  explicit Services(const dgpuBackendServices& table);

  template <typename... Args>
  dgpuStatus_t fail(dgpuStatus_t status, const char* object, fmt::format_string<Args...> format, Args&&... args) const {
    return fail_text(status, object, fmt::format(format, std::forward<Args>(args)...));
  }
  dgpuStatus_t fail_text(dgpuStatus_t status, const char* object, const std::string& message) const;

  void advance(dgpuCoreQueue* queue, uint64_t value, dgpuStatus_t outcome, const char* message,
               int32_t native_code) const {
    table_.advance(table_.core, queue, value, outcome, message, native_code);
  }
  void log(uint32_t level, const std::string& message) const;
  void user_code(bool inside) const {
    if (table_.user_code) table_.user_code(table_.core, inside);
  }
  void device_lost(dgpuCoreDevice* device, const std::string& message) const;

  // Value of a setting; empty where it is unset or unknown to the core.
  std::string text(const char* name) const;
  // A whole number in [low, high], the fallback where it is unset. Fails with a text that names the setting.
  dgpuStatus_t integer(const char* name, uint64_t fallback, uint64_t low, uint64_t high, uint64_t* out) const;
  // A size such as 512M, 16GiB or 1048576; nothing where it is unset.
  dgpuStatus_t bytes(const char* name, std::optional<uint64_t>* out) const;

 private:
  dgpuBackendServices table_;
};

// Bytes of a text: digits and an optional suffix K, M, G or T (powers of 1024), "iB" or "B" after it accepted.
std::optional<uint64_t> parse_bytes(const std::string& text);

}  // namespace dgpu::cpu
