// docs/operators.md lists exactly the operators, ports and attributes of the schemas.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <regex>
#include <set>

#include "ops/schema.h"

namespace dgpu::ops {
namespace {

struct Row {
  std::string ports, attributes;
};

std::map<std::string, Row> table() {
  const char* dir = std::getenv("DGPU_SOURCE");
  std::ifstream file(std::string(dir ? dir : ".") + "/docs/operators.md");
  EXPECT_TRUE(file) << "docs/operators.md is missing";
  std::map<std::string, Row> rows;
  const std::regex row(R"(\| (\w+) \| (.*) \| (.*) \|)");
  std::smatch match;
  for (std::string line; std::getline(file, line);)
    if (std::regex_match(line, match, row) && match[1] != "operator") rows[match[1]] = {match[2], match[3]};
  return rows;
}

// "k0.." is the repeated port k; "bias?" is optional; after ";" come outputs; "inout" says so itself.
std::map<std::string, std::string> documented_ports(const std::string& text) {
  std::map<std::string, std::string> ports;
  const std::regex item(R"(\b(?!or )(\w+?)(0\.\.)?(\?)? (inout )?((?:F|I|f32|I32|I64|any)(?:/I)?)\b)");
  const size_t semicolon = text.find(';');
  for (std::sregex_iterator it(text.begin(), text.end(), item), end; it != end; ++it) {
    const bool out = static_cast<size_t>(it->position()) > semicolon;
    std::string kind = (*it)[4].matched && !out ? "inout" : out ? "out" : "in";
    if ((*it)[4].matched) kind = "inout";
    ports[(*it)[1]] =
        kind + ((*it)[2].matched ? " repeated" : "") + ((*it)[3].matched ? " optional" : "") + " " + (*it)[5].str();
  }
  return ports;
}

std::string types_of(const PortSchema& row) {
  if (row.dtypes == floats()) return "F";
  if (row.dtypes == f32_only()) return "f32";
  if (row.dtypes == integers()) return "I";
  if (row.dtypes == i32_only()) return "I32";
  if (row.dtypes == i64_only()) return "I64";
  return row.dtypes == numbers() ? "F/I" : "any";
}

TEST(OpsDocs, PortsAreTheSchemas) {
  const auto rows = table();
  ASSERT_EQ(rows.size(), all().size());
  for (const auto* schema : all()) {
    ASSERT_TRUE(rows.count(schema->name)) << schema->name;
    const auto documented = documented_ports(rows.at(schema->name).ports);
    EXPECT_EQ(documented.size(), schema->ports.size()) << schema->name;
    for (const auto& port : schema->ports) {
      const char* kind = port.direction == DGPU_PORT_IN ? "in" : port.direction == DGPU_PORT_OUT ? "out" : "inout";
      const std::string want = std::string(kind) + (port.repeated ? " repeated" : "") +
                               (port.required ? "" : " optional") + " " + types_of(port);
      ASSERT_TRUE(documented.count(port.name)) << schema->name << " " << port.name;
      EXPECT_EQ(documented.at(port.name), want) << schema->name << " " << port.name;
    }
  }
}

TEST(OpsDocs, AttributesAreTheSchemas) {
  const auto rows = table();
  for (const auto* schema : all()) {
    ASSERT_TRUE(rows.count(schema->name)) << schema->name;
    // "name=default (values)" or "name (remark or values)", separated by commas outside parentheses.
    const std::string text = rows.at(schema->name).attributes;
    std::map<std::string, std::pair<std::string, std::string>> documented;
    const std::regex item(R"((\w+)(?:=(\[\]|[\w.-]+))? ?(?:\(([^)]*)\))?(?:, |,? *$|,))");
    if (text != "-")
      for (std::sregex_iterator it(text.begin(), text.end(), item), end; it != end; ++it)
        documented[(*it)[1]] = {(*it)[2], (*it)[3]};
    EXPECT_EQ(documented.size(), schema->attrs.size()) << schema->name;
    for (const auto& row : schema->attrs) {
      ASSERT_TRUE(documented.count(row.name)) << schema->name << " " << row.name;
      const auto& [def, remark] = documented.at(row.name);
      EXPECT_EQ(def, row.def ? attr_text(*row.def) : "") << schema->name << " " << row.name;
      for (const auto& value : row.values)
        EXPECT_NE((" " + remark + " ").find(value), std::string::npos)
            << schema->name << " " << row.name << " lacks " << value;
    }
  }
}

}  // namespace
}  // namespace dgpu::ops
