#include "backends/cpu/topology.h"

#include <fmt/core.h>

#include <fstream>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

namespace dgpu::cpu {
namespace {

using nlohmann::json;

[[noreturn]] void reject(const std::string& where, const std::string& why) {
  throw std::runtime_error(where + ": " + why);
}

void check_keys(const json& object, const std::string& where, std::initializer_list<const char*> known) {
  if (!object.is_object()) reject(where, "must be an object");
  for (const auto& [key, value] : object.items()) {
    bool found = false;
    std::string list;
    for (const char* name : known) {
      found = found || key == name;
      list += list.empty() ? name : std::string(", ") + name;
    }
    if (!found) reject(where, fmt::format("unknown key \"{}\"; known are {}", key, list));
  }
}

uint64_t whole(const json& object, const std::string& where, const char* key, uint64_t fallback, uint64_t high) {
  if (!object.contains(key)) return fallback;
  const json& value = object[key];
  if (!value.is_number_unsigned() || value.get<uint64_t>() > high)
    reject(where + "." + key, fmt::format("must be a whole number from 0 to {}", high));
  return value.get<uint64_t>();
}

bool flag(const json& object, const std::string& where, const char* key, bool fallback) {
  if (!object.contains(key)) return fallback;
  if (!object[key].is_boolean()) reject(where + "." + key, "must be true or false");
  return object[key].get<bool>();
}

uint32_t kind(const json& object, const std::string& where) {
  if (!object.contains("kind") || !object["kind"].is_string())
    reject(where + ".kind", "must be one of host, pcie, fabric, network");
  const std::string name = object["kind"];
  if (name == "host") return DGPU_LINK_HOST;
  if (name == "pcie") return DGPU_LINK_PCIE;
  if (name == "fabric") return DGPU_LINK_FABRIC;
  if (name == "network") return DGPU_LINK_NETWORK;
  reject(where + ".kind", fmt::format("\"{}\" is not one of host, pcie, fabric, network", name));
}

uint32_t device(const json& object, const std::string& where, const char* key, uint32_t devices) {
  if (!object.contains(key)) reject(where, fmt::format("\"{}\" is missing", key));
  const json& value = object[key];
  if (!value.is_number_unsigned() || value.get<uint64_t>() >= devices)
    reject(where + "." + key,
           fmt::format("must be a device index from 0 to {}; DGPU_CPU_DEVICES is {}", devices - 1, devices));
  return value.get<uint32_t>();
}

Link parse_link(const json& object, const std::string& where) {
  Link link;
  link.claimed = true;
  link.kind = kind(object, where);
  link.hops = static_cast<uint32_t>(whole(object, where, "hops", 1, 1000));
  if (link.hops == 0) reject(where + ".hops", "must be at least 1 between different devices");
  link.peer_access = flag(object, where, "peer_access", link.kind != DGPU_LINK_HOST);
  link.bandwidth_bytes_per_s = whole(object, where, "bandwidth_bytes_per_s", 0, UINT64_MAX);
  link.latency_ns = whole(object, where, "latency_ns", 0, UINT64_MAX);
  return link;
}

void parse_document(const json& document, uint32_t devices, std::vector<Link>& links) {
  check_keys(document, "document", {"version", "devices", "default", "links"});
  if (!document.contains("version") || document["version"] != 1) reject("version", "must be 1");
  if (whole(document, "document", "devices", devices, UINT32_MAX) != devices)
    reject("devices", fmt::format("the file is for {} devices, but DGPU_CPU_DEVICES is {}",
                                  document["devices"].get<uint64_t>(), devices));
  if (document.contains("default")) {
    const json& object = document["default"];
    check_keys(object, "default", {"kind", "hops", "peer_access", "bandwidth_bytes_per_s", "latency_ns"});
    const Link link = parse_link(object, "default");
    for (uint32_t from = 0; from < devices; ++from)
      for (uint32_t to = 0; to < devices; ++to)
        if (from != to) links[from * devices + to] = link;
  }
  if (!document.contains("links")) return;
  if (!document["links"].is_array()) reject("links", "must be an array");
  std::vector<bool> seen(links.size());
  for (size_t i = 0; i < document["links"].size(); ++i) {
    const std::string where = fmt::format("links[{}]", i);
    const json& object = document["links"][i];
    check_keys(object, where,
               {"from", "to", "both_ways", "kind", "hops", "peer_access", "bandwidth_bytes_per_s", "latency_ns"});
    const uint32_t from = device(object, where, "from", devices);
    const uint32_t to = device(object, where, "to", devices);
    if (from == to) reject(where, fmt::format("links device {} with itself", from));
    const Link link = parse_link(object, where);
    const auto set = [&](uint32_t a, uint32_t b) {
      if (seen[a * devices + b]) reject(where, fmt::format("the link from {} to {} is given twice", a, b));
      seen[a * devices + b] = true;
      links[a * devices + b] = link;
    };
    set(from, to);
    if (flag(object, where, "both_ways", true)) set(to, from);
  }
}

}  // namespace

Topology::Topology(uint32_t devices) : devices_(devices), links_(size_t{devices} * devices) {
  for (uint32_t i = 0; i < devices; ++i) {
    Link& self = links_[i * devices + i];
    self.kind = DGPU_LINK_SAME;
    self.hops = 0;
  }
}

bool Topology::parse(const std::string& text, std::string* error) {
  try {
    std::vector<Link> links = links_;
    parse_document(json::parse(text), devices_, links);
    links_ = std::move(links);
    return true;
  } catch (const std::exception& e) {
    *error = e.what();
    return false;
  }
}

bool Topology::load(const std::string& path, std::string* error) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) {
    *error = "cannot be read; name a JSON file, see src/backends/cpu/README.md";
    return false;
  }
  return parse(text.str(), error);
}

}  // namespace dgpu::cpu
