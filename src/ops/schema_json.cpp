#include "ops/schema_json.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "ops/schema.h"

namespace dgpu::ops {

namespace {

using nlohmann::ordered_json;

// JSON has no infinity: it is written as "inf".
ordered_json value_json(const AttrValue& value) {
  return std::visit(
      [](const auto& v) -> ordered_json {
        if constexpr (std::is_same_v<std::decay_t<decltype(v)>, double>)
          if (std::isinf(v)) return v > 0 ? "inf" : "-inf";
        return v;
      },
      value);
}

ordered_json attr_json(const AttrSchema& row) {
  ordered_json j{{"name", row.name}, {"type", attr_type_name(row.type)}, {"required", row.required}};
  if (row.def) j["default"] = value_json(*row.def);
  if (!row.values.empty()) j["values"] = row.values;
  j["help"] = row.help;
  return j;
}

ordered_json port_json(const PortSchema& row) {
  const char* direction = row.direction == DGPU_PORT_IN ? "in" : row.direction == DGPU_PORT_OUT ? "out" : "inout";
  ordered_json j{{"name", row.name}, {"direction", direction}, {"required", row.required}, {"repeated", row.repeated}};
  for (const auto d : row.dtypes) j["types"].push_back(dtype_name(d));
  j["help"] = row.help;
  return j;
}

}  // namespace

std::string schema_json(const Schema& schema) {
  ordered_json j{{"name", schema.name}, {"version", schema.version}, {"summary", schema.summary}};
  j["attributes"] = ordered_json::array();
  for (const auto& row : schema.attrs) j["attributes"].push_back(attr_json(row));
  for (const auto& row : schema.ports) j["ports"].push_back(port_json(row));
  j["aliases"] = ordered_json::array();
  for (const auto& [out, in] : schema.aliases) j["aliases"].push_back({out, in});
  return j.dump(1);
}

}  // namespace dgpu::ops
