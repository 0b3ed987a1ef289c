#include "model/json_text.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <unordered_set>

#include "base/file.h"

namespace dgpu::model {

const JsonNode* JsonNode::find(std::string_view key) const {
  for (const auto& [name, value] : members)
    if (name == key) return &value;
  return nullptr;
}

const char* type_name(JsonNode::Type type) {
  switch (type) {
    case JsonNode::Type::Null:
      return "null";
    case JsonNode::Type::Bool:
      return "a boolean";
    case JsonNode::Type::Int:
      return "an integer";
    case JsonNode::Type::Float:
      return "a number";
    case JsonNode::Type::String:
      return "a string";
    case JsonNode::Type::Array:
      return "a list";
    case JsonNode::Type::Object:
      return "an object";
  }
  return "?";
}

bool same(const JsonNode& a, const JsonNode& b) {
  using T = JsonNode::Type;
  const bool numbers = (a.is(T::Int) || a.is(T::Float)) && (b.is(T::Int) || b.is(T::Float));
  if (numbers) return a.number == b.number || (std::isnan(a.number) && std::isnan(b.number));
  if (a.type != b.type) return false;
  if (a.is(T::Bool)) return a.boolean == b.boolean;
  if (a.is(T::String)) return a.string == b.string;
  if (a.items.size() != b.items.size() || a.members.size() != b.members.size()) return false;
  for (size_t i = 0; i < a.items.size(); ++i)
    if (!same(a.items[i], b.items[i])) return false;
  for (const auto& [key, value] : a.members) {
    const JsonNode* other = b.find(key);
    if (!other || !same(value, *other)) return false;
  }
  return true;
}

std::string brief(const JsonNode& v) {
  using T = JsonNode::Type;
  switch (v.type) {
    case T::Null:
      return "null";
    case T::Bool:
      return v.boolean ? "true" : "false";
    case T::Int:
      return fmt::format("{}", v.integer);
    case T::Float:
      return fmt::format("{}", v.number);
    case T::String:
      return v.string.size() > 50 ? "\"" + v.string.substr(0, 50) + "...\"" : "\"" + v.string + "\"";
    case T::Array:
      return fmt::format("a list of {}", v.items.size());
    case T::Object:
      return fmt::format("an object of {} keys", v.members.size());
  }
  return "?";
}

namespace {

class Parser {
 public:
  Parser(std::string_view text, std::string_view file, const JsonLimits& limits)
      : text_(text), file_(file), limits_(limits) {}

  Status document(JsonNode& out) {
    DGPU_TRY(value(out, 0));
    space();
    if (at_ < text_.size()) return bad("the end of the file");
    return DGPU_STATUS_SUCCESS;
  }

 private:
  Status bad(std::string_view expected) {
    const auto [line, column] = where();
    const std::string found = at_ < text_.size() ? printable(text_[at_]) : "the end of the file";
    return fail(DGPU_STATUS_PARSE_ERROR, file_, "{}:{}:{}: expected {}, found {}", file_, line, column, expected,
                found);
  }
  static std::string printable(char c) {
    return c >= 32 && c < 127 ? fmt::format("'{}'", c) : fmt::format("byte 0x{:02x}", static_cast<unsigned char>(c));
  }
  std::pair<uint32_t, uint32_t> where() {
    for (; counted_ < at_ && counted_ < text_.size(); ++counted_) {
      if (text_[counted_] == '\n') ++line_, line_start_ = counted_ + 1;
    }
    return {line_, static_cast<uint32_t>(at_ - line_start_ + 1)};
  }
  void space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r'))
      ++at_;
  }
  bool word(std::string_view w) {
    if (text_.substr(at_, w.size()) != w) return false;
    at_ += w.size();
    return true;
  }

  Status value(JsonNode& out, uint32_t depth) {
    space();
    std::tie(out.line, out.column) = where();
    if (depth > limits_.max_depth) return bad(fmt::format("at most {} nested values", limits_.max_depth));
    if (++values_ > limits_.max_values) return bad(fmt::format("at most {} values in the file", limits_.max_values));
    if (at_ >= text_.size()) return bad("a value");
    switch (text_[at_]) {
      case '{':
        return map(out, depth);
      case '[':
        return list(out, depth);
      case '"':
        out.type = JsonNode::Type::String;
        return string(out.string);
      default:
        return scalar(out);
    }
  }

  Status scalar(JsonNode& out) {
    const double inf = std::numeric_limits<double>::infinity();
    out.type = JsonNode::Type::Bool;
    if (word("true")) return out.boolean = true, DGPU_STATUS_SUCCESS;
    if (word("false")) return DGPU_STATUS_SUCCESS;
    out.type = JsonNode::Type::Null;
    if (word("null")) return DGPU_STATUS_SUCCESS;
    out.type = JsonNode::Type::Float;
    if (word("Infinity")) return out.number = inf, DGPU_STATUS_SUCCESS;
    if (word("-Infinity")) return out.number = -inf, DGPU_STATUS_SUCCESS;
    if (word("NaN")) return out.number = std::numeric_limits<double>::quiet_NaN(), DGPU_STATUS_SUCCESS;
    return numeral(out);
  }

  Status numeral(JsonNode& out) {
    const size_t start = at_;
    size_t p = at_;
    auto digits = [&] {
      const size_t from = p;
      while (p < text_.size() && text_[p] >= '0' && text_[p] <= '9') ++p;
      return p > from;
    };
    if (p < text_.size() && text_[p] == '-') ++p;
    const size_t first = p;
    if (!digits()) return bad("a value");
    if (text_[first] == '0' && p - first > 1) return bad("a number without leading zero");
    bool integer = true;
    if (p < text_.size() && text_[p] == '.') {
      integer = false, ++p;
      if (!digits()) return at_ = p, bad("a digit after the point");
    }
    if (p < text_.size() && (text_[p] == 'e' || text_[p] == 'E')) {
      integer = false, ++p;
      if (p < text_.size() && (text_[p] == '+' || text_[p] == '-')) ++p;
      if (!digits()) return at_ = p, bad("a digit in the exponent");
    }
    const char *begin = text_.data() + start, *end = text_.data() + p;
    out.type = integer ? JsonNode::Type::Int : JsonNode::Type::Float;
    if (integer && std::from_chars(begin, end, out.integer).ec != std::errc()) return bad("an integer of 64 bits");
    if (std::from_chars(begin, end, out.number).ec != std::errc()) {
      if (integer) return bad("an integer of 64 bits");
      out.number = std::strtod(std::string(begin, end).c_str(), nullptr);  // rounds to 0 or infinity
    }
    at_ = p;
    return DGPU_STATUS_SUCCESS;
  }

  Status list(JsonNode& out, uint32_t depth) {
    out.type = JsonNode::Type::Array;
    ++at_;
    space();
    if (word("]")) return DGPU_STATUS_SUCCESS;
    for (;;) {
      DGPU_TRY(value(out.items.emplace_back(), depth + 1));
      space();
      if (word("]")) return DGPU_STATUS_SUCCESS;
      if (!word(",")) return bad("',' or ']'");
    }
  }

  Status map(JsonNode& out, uint32_t depth) {
    out.type = JsonNode::Type::Object;
    ++at_;
    space();
    std::unordered_set<std::string> seen;
    if (!word("}")) {
      for (;;) {
        space();
        if (at_ >= text_.size() || text_[at_] != '"') return bad("a key in quotes");
        const size_t key_at = at_;
        std::string key;
        DGPU_TRY(string(key));
        if (!seen.insert(key).second) return at_ = key_at, duplicate(key);
        space();
        if (!word(":")) return bad("':'");
        out.members.emplace_back(std::move(key), JsonNode{});
        DGPU_TRY(value(out.members.back().second, depth + 1));
        space();
        if (word("}")) break;
        if (!word(",")) return bad("',' or '}'");
      }
    }
    return wrapped_float(out);
  }
  Status duplicate(const std::string& key) {
    const auto [line, column] = where();
    return fail(DGPU_STATUS_PARSE_ERROR, key, "{}:{}:{}: key \"{}\" appears twice in one object; remove one", file_,
                line, column, key);
  }
  Status wrapped_float(JsonNode& out) {
    if (out.members.size() != 1 || out.members[0].first != "__float__") return DGPU_STATUS_SUCCESS;
    const std::string text = out.members[0].second.string;
    JsonNode number;
    number.type = JsonNode::Type::Float, number.line = out.line, number.column = out.column;
    if (text == "Infinity")
      number.number = std::numeric_limits<double>::infinity();
    else if (text == "-Infinity")
      number.number = -std::numeric_limits<double>::infinity();
    else if (text == "NaN")
      number.number = std::numeric_limits<double>::quiet_NaN();
    else
      return bad("\"Infinity\", \"-Infinity\" or \"NaN\" in \"__float__\"");
    out = std::move(number);
    return DGPU_STATUS_SUCCESS;
  }

  Status string(std::string& out) {
    ++at_;
    for (;;) {
      if (at_ >= text_.size()) return bad("a closing '\"'");
      const char c = text_[at_];
      if (c == '"') return ++at_, DGPU_STATUS_SUCCESS;
      if (static_cast<unsigned char>(c) < 32) return bad("an escaped control character");
      if (c != '\\') {
        out += c, ++at_;
        continue;
      }
      ++at_;
      DGPU_TRY(escape(out));
    }
  }
  Status escape(std::string& out) {
    static constexpr std::string_view from = "\"\\/bfnrt", to = "\"\\/\b\f\n\r\t";
    const char c = at_ < text_.size() ? text_[at_] : 0;
    if (const size_t i = from.find(c); c && i != std::string_view::npos)
      return out += to[i], ++at_, DGPU_STATUS_SUCCESS;
    if (c != 'u') return bad("an escape");
    uint32_t code = 0;
    DGPU_TRY(hex4(code));
    if (code >= 0xd800 && code < 0xdc00) {
      uint32_t low = 0;
      if (text_.substr(at_, 2) != "\\u") return bad("the second half of a surrogate pair");
      ++at_;
      DGPU_TRY(hex4(low));
      if (low < 0xdc00 || low > 0xdfff) return bad("the second half of a surrogate pair");
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    } else if (code >= 0xdc00 && code < 0xe000) {
      return bad("the first half of a surrogate pair");
    }
    utf8(code, out);
    return DGPU_STATUS_SUCCESS;
  }
  Status hex4(uint32_t& code) {
    ++at_;
    if (at_ + 4 > text_.size()) return bad("four hexadecimal digits");
    const auto [p, ec] = std::from_chars(text_.data() + at_, text_.data() + at_ + 4, code, 16);
    if (ec != std::errc() || p != text_.data() + at_ + 4) return bad("four hexadecimal digits");
    at_ += 4;
    return DGPU_STATUS_SUCCESS;
  }
  static void utf8(uint32_t c, std::string& out) {
    auto add = [&](uint32_t byte) { out += static_cast<char>(byte); };
    if (c < 0x80)
      add(c);
    else if (c < 0x800)
      add(0xc0 | c >> 6), add(0x80 | (c & 63));
    else if (c < 0x10000)
      add(0xe0 | c >> 12), add(0x80 | (c >> 6 & 63)), add(0x80 | (c & 63));
    else
      add(0xf0 | c >> 18), add(0x80 | (c >> 12 & 63)), add(0x80 | (c >> 6 & 63)), add(0x80 | (c & 63));
  }

  std::string_view text_, file_;
  const JsonLimits& limits_;
  size_t at_ = 0, counted_ = 0, line_start_ = 0;
  uint32_t line_ = 1, values_ = 0;
};

}  // namespace

Status parse_json(std::string_view text, std::string_view file, JsonNode& out, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes)
    return fail(DGPU_STATUS_PARSE_ERROR, file, "{}: {} bytes, expected at most {}", file, text.size(),
                limits.max_bytes);
  out = JsonNode{};
  return Parser(text, file, limits).document(out);
}

Status read_json(const std::string& path, JsonNode& out, const JsonLimits& limits) {
  std::string text;
  DGPU_TRY(read_file(path, limits.max_bytes, text));
  return parse_json(text, path, out, limits);
}

}  // namespace dgpu::model
