// dgpu-smi: one model of what was read, several renderings of it. Uses the public header only.
#pragma once
#include <dgpu.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace smi {

using Json = nlohmann::ordered_json;

// Documented in --help; the same for every command.
enum Exit : int { kOk = 0, kInternal = 1, kUsage = 2, kNoDevice = 5, kNotFound = 6, kPartial = 7, kLibrary = 9 };

// A value, or the reason why there is none. Never a magic number in a value's place.
struct Value {
  Json value;  // null when absent
  // "unsupported", "denied", "not sampled yet", "device lost", "timeout", "not a number", or what the library said;
  // empty when present.
  std::string absent;
};

struct Field {
  std::string name;  // "memory.used"
  std::string unit;  // "bytes", "" for texts
  std::string help;
  bool metric;  // read from the device, so it may be absent
  uint32_t id;  // DGPU_METRIC_*, or which part of dgpuDeviceInfo
};
const std::vector<Field>& fields();
const Field* find_field(const std::string& name);

struct Link {
  dgpuLinkInfo info = DGPU_LINK_INFO_INIT;
  std::string absent;  // why info does not count; empty if it does
};

// What a device said before the time was over. Its parts arrive one by one, and what has arrived counts.
struct Device {
  uint32_t ordinal = 0;
  bool described = false;  // info counts
  bool answered = false;   // it said all that it was asked for
  std::string error;       // why its info could not be read
  dgpuDeviceInfo info = DGPU_DEVICE_INFO_INIT;
  std::vector<Value> metrics;  // by DGPU_METRIC_* id
  std::vector<Link> links;     // to every device, where asked for
};

struct Wanted {
  std::vector<uint32_t> metrics;  // DGPU_METRIC_*
  bool links = false;
  std::string selector;  // "0", "index:0", "uuid:...", "name:...", "pci:..." or a UUID; empty: every device
};
// Looks for backends and devices, in a thread of its own. False if that takes longer.
bool discover(uint32_t timeout_ms);
// Reads every device in a thread of its own; one that does not answer within `timeout_ms` costs its row alone.
// Of devices that are not selected only the identity is read.
std::vector<Device> collect(const Wanted& wanted, uint32_t timeout_ms);
Value value_of(const Device& device, const Field& field);
// The first device that the selector means, or -1.
int select(const std::vector<Device>& devices, const std::string& selector);

enum class Format { table, json, csv };

// Rows of cells under a heading; what every list view is.
struct Sheet {
  std::string schema;                 // "dgpu.smi.list/1"
  std::string rows_name = "devices";  // key of the rows in JSON
  std::vector<std::string> columns;
  std::vector<std::string> units;  // per column, may be empty
  std::vector<std::vector<Value>> rows;
};
void print(const Sheet& sheet, Format format);
void print_error(const std::string& message, int exit, Format format);
void complain(const std::string& message);  // on standard error, after the output
std::string human_bytes(double bytes);

// Everything for standard output is gathered here and goes out with flush().
void write(const std::string& text);
// Empty, or why it could not be written. A reader that has gone is no failure.
std::string flush();
void flush_complaints();

// text.cpp
// For a terminal: what is not UTF-8 and what could steer the terminal is written as \xNN or \u{NNNN}. Names come from
// plugins and files that others wrote.
std::string printable(const std::string& text);
// Bytes that are not UTF-8 become U+FFFD.
std::string utf8(const std::string& text);
size_t columns_of(const std::string& text);  // places that it takes on a terminal
size_t terminal_width();                     // 0: standard output is no terminal

struct Options {
  Format format = Format::table;
  std::vector<std::string> fields;
  std::string device;
  uint32_t timeout_ms = 2000;
  uint32_t discovery_ms = 30000;
  bool list_fields = false;
  bool why = false;
  bool matrix = false;
};
int overview(const Options& options);
int list(const Options& options);
int query(const Options& options);
int topo(const Options& options);
int config(const Options& options);
int backends(const Options& options);

}  // namespace smi
