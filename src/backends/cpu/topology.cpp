#include "backends/cpu/topology.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "backends/cpu/json_fields.h"

namespace dgpu::cpu {
namespace {

// Limits of paced links: beyond them a copy would look as if it hung.
constexpr uint64_t kSlowest = 1'000'000;      // bytes per second
constexpr uint64_t kLongest = 1'000'000'000;  // ns

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

class Reader {
 public:
  Reader(const json& document, uint32_t devices) : document_(document), devices_(devices) {}

  // Overwrites what the document claims.
  void read(std::vector<Link>& links) {
    check_keys(document_, "document", {"version", "devices", "pacing", "default", "links", "faults"});
    if (!document_.contains("version") || document_["version"] != 1) reject("version", "must be 1");
    if (whole(document_, "document", "devices", devices_, 0, UINT32_MAX) != devices_)
      reject("devices", fmt::format("the file is for {} devices, but DGPU_CPU_DEVICES is {}",
                                    document_["devices"].get<uint64_t>(), devices_));
    pacing = flag(document_, "document", "pacing", false);
    if (document_.contains("default")) read_default(document_["default"], links);
    if (document_.contains("links")) read_links(document_["links"], links);
    if (pacing && !timed_)
      reject("pacing", "no link claims a bandwidth or a latency, so no copy would be paced; add them or leave it out");
    if (document_.contains("faults")) faults = parse_faults(document_["faults"], devices_);
  }

  bool pacing = false;
  std::vector<Fault> faults;

 private:
  Link read_link(const json& object, const std::string& where) {
    Link link;
    link.claimed = true;
    link.kind = kind(object, where);
    link.hops = static_cast<uint32_t>(whole(object, where, "hops", 1, 0, 1000));
    if (link.hops == 0) reject(where + ".hops", "must be at least 1 between different devices");
    link.peer_access = flag(object, where, "peer_access", link.kind != DGPU_LINK_HOST);
    link.bandwidth_bytes_per_s = whole(object, where, "bandwidth_bytes_per_s", 0, 0, UINT64_MAX);
    link.latency_ns = whole(object, where, "latency_ns", 0, 0, UINT64_MAX);
    if (link.bandwidth_bytes_per_s || link.latency_ns) timed_ = true;
    if (pacing && link.bandwidth_bytes_per_s && link.bandwidth_bytes_per_s < kSlowest)
      reject(where + ".bandwidth_bytes_per_s", fmt::format("must be at least {} with pacing", kSlowest));
    if (pacing && link.latency_ns > kLongest)
      reject(where + ".latency_ns", fmt::format("must be at most {} with pacing", kLongest));
    return link;
  }

  void read_default(const json& object, std::vector<Link>& links) {
    check_keys(object, "default", {"kind", "hops", "peer_access", "bandwidth_bytes_per_s", "latency_ns"});
    const Link link = read_link(object, "default");
    for (uint32_t from = 0; from < devices_; ++from)
      for (uint32_t to = 0; to < devices_; ++to)
        if (from != to) links[from * devices_ + to] = link;
  }

  void read_links(const json& array, std::vector<Link>& links) {
    if (!array.is_array()) reject("links", "must be an array");
    std::vector<bool> seen(links.size());
    for (size_t i = 0; i < array.size(); ++i) {
      const std::string where = fmt::format("links[{}]", i);
      const json& object = array[i];
      check_keys(object, where,
                 {"from", "to", "both_ways", "kind", "hops", "peer_access", "bandwidth_bytes_per_s", "latency_ns"});
      const uint32_t from = device_index(object, where, "from", devices_);
      const uint32_t to = device_index(object, where, "to", devices_);
      if (from == to) reject(where, fmt::format("links device {} with itself", from));
      const Link link = read_link(object, where);
      const auto set = [&](uint32_t a, uint32_t b) {
        if (seen[a * devices_ + b]) reject(where, fmt::format("the link from {} to {} is given twice", a, b));
        seen[a * devices_ + b] = true;
        links[a * devices_ + b] = link;
      };
      set(from, to);
      if (flag(object, where, "both_ways", true)) set(to, from);
    }
  }

  const json& document_;
  const uint32_t devices_;
  bool timed_ = false;
};

// As json::parse, but a key that is given twice is an error, not overwritten.
json parse_strictly(const std::string& text) {
  std::vector<std::set<std::string>> keys;
  return json::parse(text, [&](int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second)
      reject("document", fmt::format("the key {} is given twice in one object", parsed.dump()));
    return true;
  });
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
    const json document = parse_strictly(text);
    Reader reader(document, devices_);
    reader.read(links);
    links_ = std::move(links);
    pacing_ = reader.pacing;
    faults_ = std::move(reader.faults);
    return true;
  } catch (const std::exception& e) {
    *error = e.what();
    return false;
  }
}

bool Topology::load(const std::string& path, std::string* error) {
  std::error_code unknown;
  std::ifstream in;
  if (std::filesystem::is_regular_file(path, unknown)) in.open(path);
  std::ostringstream text;
  if (in.is_open()) text << in.rdbuf();
  if (!in.is_open() || !in) {
    *error = "cannot be read; name a JSON file as docs/virtual-devices.md describes";
    return false;
  }
  return parse(text.str(), error);
}

}  // namespace dgpu::cpu
