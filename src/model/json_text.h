// JSON of configs and templates: positions for messages, exact integers, duplicate keys refused, bare Infinity and NaN
// accepted (published configs contain them), bounded depth and size.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace dgpu::model {

struct JsonNode {
  enum class Type : uint8_t { Null, Bool, Int, Float, String, Array, Object };
  Type type = Type::Null;
  bool boolean = false;
  uint32_t line = 0, column = 0;  // where it starts, from 1
  int64_t integer = 0;
  double number = 0;  // also set for Int
  std::string string;
  std::vector<JsonNode> items;
  std::vector<std::pair<std::string, JsonNode>> members;  // in the file's order

  bool is(Type t) const { return type == t; }
  const JsonNode* find(std::string_view key) const;
};
const char* type_name(JsonNode::Type type);
bool same(const JsonNode& a, const JsonNode& b);  // equal content; 1 and 1.0 are equal
std::string brief(const JsonNode& value);         // for messages: at most about 60 characters

struct JsonLimits {
  size_t max_bytes = size_t{16} << 20;
  uint32_t max_depth = 64;
  uint32_t max_values = 1u << 18;
};
// PARSE_ERROR naming `file`, line and column. {"__float__": "Infinity"} becomes the number.
Status parse_json(std::string_view text, std::string_view file, JsonNode& out, const JsonLimits& limits = {});
// NOT_FOUND, IO_ERROR or PARSE_ERROR.
Status read_json(const std::string& path, JsonNode& out, const JsonLimits& limits = {});

}  // namespace dgpu::model
