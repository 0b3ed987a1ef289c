#include "backends/cpu/services.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstring>

namespace dgpu::cpu {

Services::Services(const dgpuBackendServices& table) : table_{} {
  std::memcpy(&table_, &table, std::min(table.struct_size, sizeof table_));
}

dgpuStatus_t Services::fail_text(dgpuStatus_t status, const char* object, const std::string& message) const {
  return table_.fail ? table_.fail(table_.core, status, object, message.c_str(), 0) : status;
}

void Services::log(uint32_t level, const std::string& message) const {
  if (table_.log) table_.log(table_.core, level, "cpu", message.c_str());
}

void Services::device_lost(dgpuCoreDevice* device, const std::string& message) const {
  if (table_.device_lost) table_.device_lost(table_.core, device, message.c_str());
}

std::string Services::text(const char* name) const {
  size_t needed = 0;
  if (!table_.config) return {};
  const dgpuStatus_t status = table_.config(table_.core, name, nullptr, 0, &needed);
  if ((status < 0 && status != DGPU_STATUS_BUFFER_TOO_SMALL) || needed == 0) return {};
  std::string value(needed, '\0');
  if (table_.config(table_.core, name, value.data(), value.size(), &needed) < 0) return {};
  value.resize(std::strlen(value.c_str()));
  return value;
}

dgpuStatus_t Services::integer(const char* name, uint64_t fallback, uint64_t low, uint64_t high, uint64_t* out) const {
  *out = fallback;
  const std::string value = text(name);
  if (value.empty()) return DGPU_STATUS_SUCCESS;
  uint64_t parsed = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), parsed);
  if (error != std::errc() || end != value.data() + value.size() || parsed < low || parsed > high)
    return fail(DGPU_STATUS_INVALID_ARGUMENT, name, "{}={} is not a whole number from {} to {}", name, value, low,
                high);
  *out = parsed;
  return DGPU_STATUS_SUCCESS;
}

dgpuStatus_t Services::bytes(const char* name, std::optional<uint64_t>* out) const {
  out->reset();
  const std::string value = text(name);
  if (value.empty()) return DGPU_STATUS_SUCCESS;
  *out = parse_bytes(value);
  if (!*out)
    return fail(DGPU_STATUS_INVALID_ARGUMENT, name, "{}={} is not a size such as 512M, 16G or 1048576", name, value);
  return DGPU_STATUS_SUCCESS;
}

std::optional<uint64_t> parse_bytes(const std::string& text) {
  uint64_t value = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  if (error != std::errc()) return std::nullopt;
  std::string suffix(end, last);
  for (char& c : suffix) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  uint32_t shift = 0;
  if (!suffix.empty() && suffix[0] != 'B') {
    const char* const kUnits = "KMGT";
    const char* unit = std::strchr(kUnits, suffix[0]);
    if (!unit) return std::nullopt;
    shift = 10 * static_cast<uint32_t>(unit - kUnits + 1);
    suffix.erase(0, 1);
  }
  if (suffix != "" && suffix != "B" && suffix != "IB") return std::nullopt;
  if (suffix == "IB" && shift == 0) return std::nullopt;
  if (shift && value >> (64 - shift)) return std::nullopt;
  return value << shift;
}

}  // namespace dgpu::cpu
