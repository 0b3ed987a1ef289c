#include "ops/claims.h"

#include <algorithm>

#include "ops/schema.h"

namespace dgpu::ops {

namespace {

// The row of a claim's list that names `name`: "name", "name=a|b", or "na*" where the star stands for digits. Null if
// there is none.
const char* row_of(const char* const* rows, std::string_view name) {
  for (; rows && *rows; ++rows) {
    const std::string_view row = *rows;
    const std::string_view key = row.substr(0, row.find('='));
    if (key == name) return *rows;
    if (key.empty() || key.back() != '*') continue;
    const std::string_view stem = key.substr(0, key.size() - 1);
    if (name.size() > stem.size() && name.substr(0, stem.size()) == stem &&
        name.find_first_not_of("0123456789", stem.size()) == std::string_view::npos)
      return *rows;
  }
  return nullptr;
}

// Whether "name" or "name=a|b" accepts the value.
bool accepts(std::string_view row, std::string_view value) {
  const size_t equal = row.find('=');
  if (equal == std::string_view::npos) return true;
  for (std::string_view rest = row.substr(equal + 1);;) {
    const size_t bar = rest.find('|');
    if (rest.substr(0, bar) == value) return true;
    if (bar == std::string_view::npos) return false;
    rest.remove_prefix(bar + 1);
  }
}

// A name in the claim that the schema does not have, most likely misspelt; "" if there is none. A plugin that knows a
// newer schema may name more.
std::string unknown_name(const dgpuBackendClaim& claim, const Schema& schema) {
  if (claim.schema_version > schema.version) return "";
  for (const char* const* row = claim.attributes; row && *row; ++row) {
    const std::string_view name = std::string_view(*row).substr(0, std::string_view(*row).find('='));
    const auto known = [&](const AttrSchema& attr) { return attr.name == name; };
    if (std::none_of(schema.attrs.begin(), schema.attrs.end(), known)) return fmt::format("attribute {}", name);
  }
  for (const char* const* row = claim.ports; row && *row; ++row) {
    const std::string_view name = std::string_view(*row).substr(0, std::string_view(*row).find('='));
    const auto known = [&](const PortSchema& port) {
      return port.name == (port.repeated ? name.substr(0, name.find_first_of("*0123456789")) : name);
    };
    if (std::none_of(schema.ports.begin(), schema.ports.end(), known)) return fmt::format("port {}", name);
  }
  return "";
}

bool is_default(const AttrSchema& row, const AttrValue& value) { return row.def && *row.def == value; }

}  // namespace

bool covers(const dgpuBackendClaim& claim, const OpSpec& spec, std::string& reason) {
  const Schema* schema = find(spec.name);
  for (const auto& row : schema->attrs) {
    const auto it = spec.attrs.find(row.name);
    if (it == spec.attrs.end() || is_default(row, it->second)) continue;
    const std::string value = attr_text(it->second);
    const char* claimed = row_of(claim.attributes, row.name);
    if (claimed && accepts(claimed, value)) continue;
    reason = fmt::format("claim lacks attribute {}={}", row.name, value);
    return false;
  }
  for (const auto& [port, d] : spec.ports) {
    const char* claimed = row_of(claim.ports, port);
    if (claimed && accepts(claimed, dtype_name(d.dtype))) continue;
    reason = fmt::format("claim lacks port {}={}", port, dtype_name(d.dtype));
    return false;
  }
  return true;
}

namespace {
std::string with_unknown(std::string why, const dgpuBackendClaim& claim) {
  const std::string unknown = unknown_name(claim, *find(claim.op));
  if (!unknown.empty()) why += fmt::format(" (it names {}, which {} does not have)", unknown, claim.op);
  return why;
}
}  // namespace

const dgpuBackendClaim* match_claim(const std::vector<const dgpuBackendClaim*>& claims, const OpSpec& spec,
                                    std::string& reason) {
  reason.clear();
  for (const auto* claim : claims) {
    if (!claim || !claim->op || spec.name != claim->op) continue;
    std::string why;
    if (covers(*claim, spec, why)) return claim;
    if (reason.empty()) reason = with_unknown(std::move(why), *claim);
  }
  if (reason.empty()) reason = fmt::format("the backend does not claim {}", spec.name);
  return nullptr;
}

}  // namespace dgpu::ops
