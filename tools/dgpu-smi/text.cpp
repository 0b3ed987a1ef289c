#include <fmt/core.h>

#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

#include <algorithm>
#include <cstdlib>

#include "smi.h"

namespace smi {
namespace {

struct Char {
  uint32_t code = 0;
  size_t size = 0;  // bytes; 0: the byte is not part of a UTF-8 character
};

// As RFC 3629 says: no overlong forms, no surrogates, nothing above U+10FFFF.
Char decode(const std::string& text, size_t at) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const uint32_t first = byte(at);
  if (first < 0x80) return {first, 1};
  const size_t size = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4) return {};
  uint32_t code = first & (0x7fu >> size);
  for (size_t i = 1; i < size; ++i) {
    if ((byte(at + i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(at + i) & 0x3f);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kLeast[size] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return {};
  return {code, size};
}

// Places of a character, negative for one that steers instead of showing: controls, line separators, and the marks that
// turn the direction of what follows.
int places(uint32_t code) {
  const bool known = MB_CUR_MAX > 1;  // main() could set a UTF-8 locale
  if (code < 0x20 || (code >= 0x7f && code < 0xa0)) return -1;
  if (code == 0x2028 || code == 0x2029 || (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069))
    return -1;
  return code < 0x7f || !known ? 1 : ::wcwidth(static_cast<wchar_t>(code));
}

// `good` for each character, `bad` for each byte that belongs to none.
template <class Good, class Bad>
void walk(const std::string& text, Good&& good, Bad&& bad) {
  for (size_t at = 0; at < text.size();) {
    const Char c = decode(text, at);
    if (c.size)
      good(c.code, text.substr(at, c.size));
    else
      bad(static_cast<unsigned char>(text[at]));
    at += c.size ? c.size : 1;
  }
}

}  // namespace

std::string printable(const std::string& text) {
  std::string out;
  walk(
      text,
      [&](uint32_t code, const std::string& bytes) {
        if (places(code) >= 0)
          out += bytes;
        else
          out += code < 0x80 ? fmt::format("\\x{:02x}", code) : fmt::format("\\u{{{:x}}}", code);
      },
      [&](unsigned char byte) { out += fmt::format("\\x{:02x}", byte); });
  return out;
}

std::string utf8(const std::string& text) {
  std::string out;
  walk(
      text, [&](uint32_t, const std::string& bytes) { out += bytes; }, [&](unsigned char) { out += "\xef\xbf\xbd"; });
  return out;
}

size_t columns_of(const std::string& text) {
  int sum = 0;
  walk(
      text, [&](uint32_t code, const std::string&) { sum += std::max(0, places(code)); },
      [&](unsigned char) { ++sum; });
  return static_cast<size_t>(sum);
}

size_t terminal_width() {
  if (!isatty(STDOUT_FILENO)) return 0;
  if (const char* columns = std::getenv("COLUMNS"))
    if (const long given = std::strtol(columns, nullptr, 10); given > 0) return static_cast<size_t>(given);
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

}  // namespace smi
