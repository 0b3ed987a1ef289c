// Documents as text for people. The JSON is the stable form.
#include <fmt/core.h>

#include <algorithm>
#include <iostream>

#include "tool.h"

namespace day0 {
namespace {

std::string cell(const Json& v) {
  if (v.is_string()) return printable(v.get<std::string>());
  if (v.is_number_float()) return fmt::format("{:.4g}", v.get<double>());
  if (v.is_null()) return "-";
  return v.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string title(std::string key) {
  std::replace(key.begin(), key.end(), '_', ' ');
  return key;
}

// An array of flat objects as a table; columns in the order of the first appearance.
void table(const Json& rows) {
  std::vector<std::string> columns;
  for (const auto& row : rows)
    for (const auto& [key, value] : row.items())
      if (std::find(columns.begin(), columns.end(), key) == columns.end()) columns.push_back(key);
  std::vector<size_t> width;
  for (const auto& c : columns) {
    size_t w = c.size();
    for (const auto& row : rows)
      if (row.contains(c)) w = std::max(w, cell(row[c]).size());
    width.push_back(w);
  }
  const auto line = [&](auto&& text) {
    std::string out = "  ";
    for (size_t i = 0; i < columns.size(); ++i) out += fmt::format("{:<{}}  ", text(columns[i]), width[i]);
    while (!out.empty() && out.back() == ' ') out.pop_back();
    fmt::print("{}\n", out);
  };
  line([](const std::string& c) { return title(c); });
  for (const auto& row : rows)
    line([&](const std::string& c) { return row.contains(c) ? cell(row[c]) : std::string(); });
}

bool is_table(const Json& v) {
  return v.is_array() && !v.empty() && std::all_of(v.begin(), v.end(), [](const Json& r) { return r.is_object(); });
}

void section(const std::string& key, const Json& value) {
  if (is_table(value)) {
    fmt::print("{}:\n", title(key));
    table(value);
  } else if (value.is_object()) {
    fmt::print("{}:\n", title(key));
    for (const auto& [k, v] : value.items()) fmt::print("  {}: {}\n", title(k), cell(v));
  } else if (value.is_array() && value.empty()) {
    fmt::print("{}: none\n", title(key));
  } else {
    fmt::print("{}: {}\n", title(key), cell(value));
  }
}

}  // namespace

std::string json_text(const Json& document) { return document.dump(2, ' ', false, Json::error_handler_t::replace); }

std::string printable(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0u;
    const bool c1 = c == 0xc2 && next >= 0x80 && next < 0xa0;  // U+0080 to U+009F, some of which start sequences, too
    if (c < 0x20 || c == 0x7f || c1) {
      out += fmt::format("\\x{:02x}", c1 ? next : c);
      i += c1;
    } else {
      out += text[i];
    }
  }
  return out;
}

void print(const Options& options, const Json& document) {
  if (options.json) {
    std::cout << json_text(document) << std::endl;
    return;
  }
  for (const auto& [key, value] : document.items())
    if (key != "schema" && key != "verdict") section(key, value);
  if (document.contains("verdict")) fmt::print("verdict: {}\n", cell(document["verdict"]));
  std::fflush(stdout);
}

}  // namespace day0
