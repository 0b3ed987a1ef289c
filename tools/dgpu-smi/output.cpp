#include <fmt/core.h>

#include <algorithm>
#include <cstdio>

#include "smi.h"

namespace smi {
namespace {

std::string plain(const Json& v) {
  if (v.is_string()) return v.get<std::string>();
  if (v.is_boolean()) return v.get<bool>() ? "yes" : "no";
  if (v.is_number_float()) {
    const double d = v.get<double>();
    return d == static_cast<double>(static_cast<int64_t>(d)) ? fmt::format("{:.0f}", d) : fmt::format("{:.6g}", d);
  }
  return v.is_null() ? "" : v.dump();
}

// `text` with control characters written as \xNN, for a terminal: names come from plugins and files that others wrote.
std::string printable(const std::string& text) {
  std::string out;
  for (const char c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    else
      out += c;
  return out;
}

std::string json_text(const Json& document) { return document.dump(2, ' ', false, Json::error_handler_t::replace); }

// Text for people: bytes get a unit, absent values a dash.
std::string shown(const Value& v, const std::string& unit) {
  if (!v.absent.empty()) return "-";
  if (unit == "bytes" && v.value.is_number()) return human_bytes(v.value.get<double>());
  if (unit == "ratio" && v.value.is_number()) return fmt::format("{:.0f} %", v.value.get<double>() * 100);
  if (unit == "hertz" && v.value.is_number()) return fmt::format("{:.0f} MHz", v.value.get<double>() / 1e6);
  return printable(plain(v.value));
}

void print_table(const Sheet& s) {
  std::vector<std::vector<std::string>> cells;
  std::vector<size_t> width;
  for (const auto& c : s.columns) width.push_back(c.size());
  for (const auto& row : s.rows) {
    cells.emplace_back();
    for (size_t i = 0; i < row.size(); ++i) {
      cells.back().push_back(shown(row[i], s.units.empty() ? "" : s.units[i]));
      width[i] = std::max(width[i], cells.back().back().size());
    }
  }
  const auto line = [&](const std::vector<std::string>& row) {
    std::string out;
    for (size_t i = 0; i < row.size(); ++i)
      out += i + 1 == row.size() ? row[i] : fmt::format("{:<{}}  ", row[i], width[i]);
    fmt::print("{}\n", out);
  };
  line(s.columns);
  for (const auto& row : cells) line(row);
}

void print_csv(const Sheet& s) {
  const auto quoted = [](const std::string& text) {
    if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
    std::string out = "\"";
    for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
    return out + "\"";
  };
  const auto line = [&](auto&& cell, size_t n) {
    std::string out;
    for (size_t i = 0; i < n; ++i) out += (i ? "," : "") + quoted(cell(i));
    fmt::print("{}\n", out);
  };
  line([&](size_t i) { return s.columns[i]; }, s.columns.size());
  for (const auto& row : s.rows)
    line([&](size_t i) { return row[i].absent.empty() ? plain(row[i].value) : std::string(); }, row.size());
}

void print_json(const Sheet& s) {
  Json rows = Json::array();
  for (const auto& row : s.rows) {
    Json r = Json::object(), absent = Json::object();
    for (size_t i = 0; i < row.size(); ++i) {
      r[s.columns[i]] = row[i].value;
      if (!row[i].absent.empty()) absent[s.columns[i]] = row[i].absent;
    }
    if (!absent.empty()) r["absent"] = absent;
    rows.push_back(r);
  }
  Json doc = {{"schema", s.schema}};
  Json units = Json::object();
  for (size_t i = 0; i < s.units.size(); ++i)
    if (!s.units[i].empty()) units[s.columns[i]] = s.units[i];
  if (!units.empty()) doc["units"] = units;
  doc[s.rows_name] = rows;
  fmt::print("{}\n", json_text(doc));
}

}  // namespace

std::string human_bytes(double bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t u = 0;
  while (bytes >= 1024 && u + 1 < std::size(units)) {
    bytes /= 1024;
    ++u;
  }
  return u == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.1f} {}", bytes, units[u]);
}

void print(const Sheet& sheet, Format format) {
  switch (format) {
    case Format::table:
      print_table(sheet);
      break;
    case Format::csv:
      print_csv(sheet);
      break;
    case Format::json:
      print_json(sheet);
      break;
  }
  std::fflush(stdout);
}

void print_error(const std::string& message, int exit, Format format) {
  if (format == Format::json)
    fmt::print("{}\n", json_text({{"schema", "dgpu.smi.error/1"}, {"error", message}, {"exit", exit}}));
  fmt::print(stderr, "dgpu-smi: {}\n", printable(message));
  std::fflush(stdout);
}

}  // namespace smi
