// Strict reading of the topology file: every error is an exception whose text names the place and the accepted form.
#pragma once
#include <fmt/core.h>

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace dgpu::cpu {

using nlohmann::json;

[[noreturn]] inline void reject(const std::string& where, const std::string& why) {
  throw std::runtime_error(where + ": " + why);
}

inline void check_keys(const json& object, const std::string& where, std::initializer_list<const char*> known) {
  if (!object.is_object()) reject(where, "must be an object");
  std::string list;
  for (const char* name : known) list += list.empty() ? name : std::string(", ") + name;
  for (const auto& [key, value] : object.items()) {
    bool found = false;
    for (const char* name : known) found = found || key == name;
    if (!found) reject(where, fmt::format("unknown key \"{}\"; known are {}", key, list));
  }
}

inline uint64_t whole(const json& object, const std::string& where, const char* key, uint64_t fallback, uint64_t low,
                      uint64_t high) {
  if (!object.contains(key)) return fallback;
  const json& value = object[key];
  if (!value.is_number_unsigned() || value.get<uint64_t>() < low || value.get<uint64_t>() > high)
    reject(where + "." + key, fmt::format("must be a whole number from {} to {}", low, high));
  return value.get<uint64_t>();
}

inline bool flag(const json& object, const std::string& where, const char* key, bool fallback) {
  if (!object.contains(key)) return fallback;
  if (!object[key].is_boolean()) reject(where + "." + key, "must be true or false");
  return object[key].get<bool>();
}

inline uint32_t device_index(const json& object, const std::string& where, const char* key, uint32_t devices) {
  if (!object.contains(key)) reject(where, fmt::format("\"{}\" is missing", key));
  const json& value = object[key];
  if (!value.is_number_unsigned() || value.get<uint64_t>() >= devices)
    reject(where + "." + key,
           fmt::format("must be a device index from 0 to {}; DGPU_CPU_DEVICES is {}", devices - 1, devices));
  return value.get<uint32_t>();
}

}  // namespace dgpu::cpu
