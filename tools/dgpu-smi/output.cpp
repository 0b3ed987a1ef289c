#include <fmt/core.h>

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <utility>

#include "smi.h"

namespace smi {
namespace {

std::string plain(const Json& v) {
  if (v.is_string()) return v.get<std::string>();
  if (v.is_boolean()) return v.get<bool>() ? "yes" : "no";
  if (v.is_number_float()) {
    const double d = v.get<double>();
    return std::abs(d) < 1e15 && d == std::trunc(d) ? fmt::format("{:.0f}", d) : fmt::format("{:.6g}", d);
  }
  return v.is_null() ? "" : v.dump();
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

std::string& pending() {
  static std::string text;
  return text;
}
std::string& complaints() {
  static std::string text;
  return text;
}

using Lines = std::vector<std::vector<std::string>>;

std::string padded(const std::string& text, size_t width) {
  return text + std::string(width - std::min(width, columns_of(text)), ' ');
}

// Too wide for the terminal: a block of "column  value" lines per row.
void print_blocks(const std::vector<std::string>& columns, const Lines& rows) {
  size_t width = 0;
  for (const auto& c : columns) width = std::max(width, columns_of(c));
  for (size_t r = 0; r < rows.size(); ++r) {
    if (r) write("\n");
    for (size_t i = 0; i < rows[r].size(); ++i)
      write(rows[r][i].empty() ? columns[i] + "\n" : padded(columns[i], width + 2) + rows[r][i] + "\n");
  }
}

void print_table(const Sheet& s) {
  Lines cells;
  std::vector<size_t> width;
  for (const auto& c : s.columns) width.push_back(columns_of(c));
  for (const auto& row : s.rows) {
    cells.emplace_back();
    for (size_t i = 0; i < row.size(); ++i) {
      cells.back().push_back(shown(row[i], s.units.empty() ? "" : s.units[i]));
      width[i] = std::max(width[i], columns_of(cells.back().back()));
    }
  }
  size_t total = 0;
  for (const size_t w : width) total += total ? w + 2 : w;
  const size_t room = terminal_width();
  if (room && total > room && !cells.empty()) return print_blocks(s.columns, cells);
  const auto line = [&](const std::vector<std::string>& row) {
    std::string out;
    for (size_t i = 0; i < row.size(); ++i) out += i + 1 == row.size() ? row[i] : padded(row[i], width[i] + 2);
    write(out + "\n");
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
    write(out + "\n");
  };
  line([&](size_t i) { return s.columns[i]; }, s.columns.size());
  for (const auto& row : s.rows)
    line([&](size_t i) { return row[i].absent.empty() ? utf8(plain(row[i].value)) : std::string(); }, row.size());
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
  write(json_text(doc) + "\n");
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
}

void complain(const std::string& message) { complaints() += "dgpu-smi: " + printable(message) + "\n"; }

void print_error(const std::string& message, int exit, Format format) {
  if (format == Format::json)
    write(json_text({{"schema", "dgpu.smi.error/1"}, {"error", message}, {"exit", exit}}) + "\n");
  complain(message);
}

void write(const std::string& text) { pending() += text; }

std::string flush() {
  const std::string text = std::exchange(pending(), "");
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(STDOUT_FILENO, text.data() + done, text.size() - done);
    if (n >= 0)
      done += static_cast<size_t>(n);
    else if (errno == EPIPE)
      break;
    else if (errno != EINTR)
      return std::strerror(errno);
  }
  return "";
}

void flush_complaints() {
  std::fputs(std::exchange(complaints(), "").c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace smi
