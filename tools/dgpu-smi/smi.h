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
  Json value;          // null when absent
  std::string absent;  // "unsupported", "denied", "not sampled yet", "device lost", "timeout"; empty when present
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

struct Device {
  uint32_t ordinal = 0;
  bool answered = false;  // false: it did not answer within the time limit, or its info could not be read
  std::string error;
  dgpuDeviceInfo info = DGPU_DEVICE_INFO_INIT;
  std::vector<Value> metrics;       // by DGPU_METRIC_* id
  std::vector<dgpuLinkInfo> links;  // to every device, where asked for
};
// Reads every device in a thread of its own; one that does not answer within `timeout_ms` costs its row alone.
std::vector<Device> collect(bool links, uint32_t timeout_ms);
Value value_of(const Device& device, const Field& field);
// The device that "index:0", "0", "uuid:...", "name:..." or a UUID means, or -1.
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
std::string human_bytes(double bytes);

struct Options {
  Format format = Format::table;
  std::vector<std::string> fields;
  std::string device;
  uint32_t timeout_ms = 2000;
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
