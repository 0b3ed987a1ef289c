// Documents as text for people. The JSON is the stable form.
#include <fmt/core.h>

#include <algorithm>
#include <iostream>

#include "tool.h"

namespace day0 {
namespace {

std::string cell(const Json& v) {
  if (v.is_string()) return v.get<std::string>();
  if (v.is_number_float()) return fmt::format("{:.4g}", v.get<double>());
  if (v.is_null()) return "-";
  return v.dump();
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

void print(const Options& options, const Json& document) {
  if (options.json) {
    std::cout << document.dump(2) << std::endl;
    return;
  }
  for (const auto& [key, value] : document.items())
    if (key != "schema" && key != "verdict") section(key, value);
  if (document.contains("verdict")) fmt::print("verdict: {}\n", cell(document["verdict"]));
  std::fflush(stdout);
}

}  // namespace day0
