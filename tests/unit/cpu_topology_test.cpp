// Claimed topology, settings' texts and the limits of the host.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "backends/cpu/isa.h"
#include "backends/cpu/machine.h"
#include "backends/cpu/services.h"
#include "backends/cpu/topology.h"
#include "cpu_test_core.h"

namespace dgpu::cpu {
namespace {

TEST(CpuTopology, WithoutAFileAllIsThroughTheHost) {
  Topology topology(2);
  EXPECT_EQ(topology.link(0, 0).kind, uint32_t{DGPU_LINK_SAME});
  EXPECT_EQ(topology.link(0, 0).hops, 0u);
  EXPECT_EQ(topology.link(0, 1).kind, uint32_t{DGPU_LINK_HOST});
  EXPECT_FALSE(topology.link(0, 1).claimed);
}

TEST(CpuTopology, ClaimsAreTakenOver) {
  Topology topology(4);
  std::string error;
  ASSERT_TRUE(topology.parse(R"({"version": 1, "devices": 4,
    "default": {"kind": "pcie", "bandwidth_bytes_per_s": 25000000000, "latency_ns": 2500, "hops": 2},
    "links": [{"from": 0, "to": 1, "kind": "fabric", "bandwidth_bytes_per_s": 400000000000, "latency_ns": 700},
              {"from": 2, "to": 3, "kind": "network", "both_ways": false, "peer_access": false}]})",
                             &error))
      << error;
  for (const auto& link : {topology.link(0, 1), topology.link(1, 0)}) {
    EXPECT_EQ(link.kind, uint32_t{DGPU_LINK_FABRIC});
    EXPECT_EQ(link.bandwidth_bytes_per_s, 400'000'000'000u);
    EXPECT_EQ(link.latency_ns, 700u);
    EXPECT_EQ(link.hops, 1u);
    EXPECT_TRUE(link.peer_access);
    EXPECT_TRUE(link.claimed);
  }
  EXPECT_EQ(topology.link(2, 3).kind, uint32_t{DGPU_LINK_NETWORK});
  EXPECT_FALSE(topology.link(2, 3).peer_access);
  EXPECT_EQ(topology.link(3, 2).kind, uint32_t{DGPU_LINK_PCIE});
  EXPECT_EQ(topology.link(3, 2).hops, 2u);
}

TEST(CpuTopology, ErrorsNameThePlaceAndLeaveTheTopologyAlone) {
  const struct {
    const char *text, *error;
  } cases[] = {
      {R"({"links": []})", "version: must be 1"},
      {R"([])", "document: must be an object"},
      {R"({"version": 1, "link": []})",
       "document: unknown key \"link\"; known are version, devices, pacing, default, links, faults"},
      {R"({"version": 1, "devices": 3})", "devices: the file is for 3 devices, but DGPU_CPU_DEVICES is 2"},
      {R"({"version": 1, "links": {}})", "links: must be an array"},
      {R"({"version": 1, "links": [{"to": 1, "kind": "pcie"}]})", "links[0]: \"from\" is missing"},
      {R"({"version": 1, "links": [{"from": 0, "to": 2, "kind": "pcie"}]})",
       "links[0].to: must be a device index from 0 to 1; DGPU_CPU_DEVICES is 2"},
      {R"({"version": 1, "links": [{"from": 0, "to": -1, "kind": "pcie"}]})",
       "links[0].to: must be a device index from 0 to 1; DGPU_CPU_DEVICES is 2"},
      {R"({"version": 1, "links": [{"from": 1, "to": 1, "kind": "pcie"}]})", "links[0]: links device 1 with itself"},
      {R"({"version": 1, "links": [{"from": 0, "to": 1, "kind": "nvlink"}]})",
       "links[0].kind: \"nvlink\" is not one of host, pcie, fabric, network"},
      {R"({"version": 1, "links": [{"from": 0, "to": 1}]})",
       "links[0].kind: must be one of host, pcie, fabric, network"},
      {R"({"version": 1, "links": [{"from": 0, "to": 1, "kind": "pcie", "latency_ns": 1.5}]})",
       "links[0].latency_ns: must be a whole number from 0 to 18446744073709551615"},
      {R"({"version": 1, "links": [{"from": 0, "to": 1, "kind": "pcie", "hops": 0}]})",
       "links[0].hops: must be at least 1 between different devices"},
      {R"({"version": 1, "links": [{"from": 0, "to": 1, "kind": "pcie", "peer_access": 1}]})",
       "links[0].peer_access: must be true or false"},
      {R"({"version": 1, "links": [{"from": 0, "to": 1, "kind": "pcie"}, {"from": 1, "to": 0, "kind": "pcie"}]})",
       "links[1]: the link from 1 to 0 is given twice"},
      {R"({"version": 1, "version": 1})", "document: the key \"version\" is given twice in one object"},
      {R"({"version": 1, "pacing": 1})", "document.pacing: must be true or false"},
      {R"({"version": 1, "pacing": true, "links": [{"from": 0, "to": 1, "kind": "pcie"}]})",
       "pacing: no link claims a bandwidth or a latency, so no copy would be paced; add them or leave it out"},
      {R"({"version": 1, "pacing": true, "default": {"kind": "pcie", "bandwidth_bytes_per_s": 999999}})",
       "default.bandwidth_bytes_per_s: must be at least 1000000 with pacing"},
      {R"({"version": 1, "pacing": true, "default": {"kind": "pcie", "latency_ns": 1000000001}})",
       "default.latency_ns: must be at most 1000000000 with pacing"},
      {R"({"version": 1, "default": {"kind": "pcie", "from": 0}})",
       "default: unknown key \"from\"; known are kind, hops, peer_access, bandwidth_bytes_per_s, latency_ns"},
  };
  for (const auto& c : cases) {
    Topology topology(2);
    std::string error;
    EXPECT_FALSE(topology.parse(c.text, &error)) << c.text;
    EXPECT_EQ(error, c.error);
    EXPECT_FALSE(topology.link(0, 1).claimed);
  }
  Topology topology(2);
  std::string error;
  EXPECT_FALSE(topology.parse("{\"version\": 1,", &error));
  EXPECT_NE(error.find("parse error"), std::string::npos) << error;
  EXPECT_FALSE(topology.load("/no/such/file.json", &error));
  EXPECT_NE(error.find("cannot be read"), std::string::npos) << error;
}

TEST(CpuTopology, FaultsAreTakenOver) {
  Topology topology(3);
  std::string error;
  ASSERT_TRUE(topology.parse(R"({"version": 1, "faults": [
    {"fail": "command", "device": 2, "at": 7, "count": 3, "status": "DATA_OUT_OF_RANGE", "message": "bit rot"},
    {"fail": "copy", "from": 0, "to": 1},
    {"fail": "allocation", "device": 1, "after_bytes": 4096},
    {"fail": "device", "device": 0, "after": 5, "reports": false}]})",
                             &error))
      << error;
  const auto& faults = topology.faults();
  ASSERT_EQ(faults.size(), 4u);
  EXPECT_EQ(faults[0].site, FaultSite::kCommand);
  EXPECT_EQ(faults[0].device, 2u);
  EXPECT_EQ(faults[0].at, 7u);
  EXPECT_EQ(faults[0].count, 3u);
  EXPECT_EQ(faults[0].status, DGPU_STATUS_DATA_OUT_OF_RANGE);
  EXPECT_EQ(faults[0].text, "bit rot (injected by faults[0]: command 7 to 9 of cpu device 2 fails)");
  EXPECT_EQ(faults[1].text, "injected by faults[1]: copy 1 from cpu device 0 to 1 fails");
  EXPECT_EQ(faults[1].status, DGPU_STATUS_COMMAND_FAILED);
  EXPECT_TRUE(faults[2].by_bytes);
  EXPECT_EQ(faults[2].after_bytes, 4096u);
  EXPECT_EQ(faults[2].status, DGPU_STATUS_OUT_OF_MEMORY);
  EXPECT_EQ(faults[3].at, 6u) << "the first command that is not run any more";
  EXPECT_FALSE(faults[3].reports);
  EXPECT_FALSE(topology.pacing());
}

TEST(CpuTopology, FaultsAreReadStrictly) {
  const struct {
    const char *fault, *error;
  } cases[] = {
      {"7", "faults[0]: must be an object"},
      {"{}", "faults[0].fail: must be one of command, copy, allocation, pin, stream, plan, kernel, open, device"},
      {R"({"fail": "cosmic ray"})",
       "faults[0].fail: must be one of command, copy, allocation, pin, stream, plan, kernel, open, device"},
      {R"({"fail": "command"})", "faults[0]: \"device\" is missing"},
      {R"({"fail": "command", "device": 2})",
       "faults[0].device: must be a device index from 0 to 1; DGPU_CPU_DEVICES is 2"},
      {R"({"fail": "command", "device": 0, "at": 0})",
       "faults[0].at: must be a whole number from 1 to 1000000000000000"},
      {R"({"fail": "command", "device": 0, "count": -1})",
       "faults[0].count: must be a whole number from 0 to 1000000000000000"},
      {R"({"fail": "command", "device": 0, "after": 3})",
       "faults[0]: unknown key \"after\"; known are fail, device, at, count, status, message"},
      {R"({"fail": "command", "device": 0, "after_bytes": 3})",
       "faults[0]: unknown key \"after_bytes\"; known are fail, device, at, count, status, message"},
      {R"({"fail": "command", "device": 0, "message": 1})", "faults[0].message: must be a text of at most 200 bytes"},
      {R"({"fail": "allocation", "device": 0, "after_bytes": 1, "at": 2})",
       "faults[0]: unknown key \"at\"; known are fail, device, after_bytes, status, message"},
      {R"({"fail": "copy", "from": 0, "to": 0})", "faults[0]: copies inside device 0 use no link"},
      {R"({"fail": "copy", "device": 0})",
       "faults[0]: unknown key \"device\"; known are fail, from, to, at, count, status, message"},
      {R"({"fail": "device", "device": 0, "status": "DEVICE_LOST"})",
       "faults[0]: unknown key \"status\"; known are fail, device, after, reports, message"},
      {R"({"fail": "device", "device": 0}, {"fail": "device", "device": 0})",
       "faults[1]: device 0 is lost by faults[0] already"},
  };
  const auto error_of = [](const std::string& faults) {
    Topology topology(2);
    std::string error;
    EXPECT_FALSE(topology.parse("{\"version\": 1, \"faults\": " + faults + "}", &error)) << faults;
    EXPECT_TRUE(topology.faults().empty());
    return error;
  };
  for (const auto& c : cases) EXPECT_EQ(error_of("[" + std::string(c.fault) + "]"), c.error);
  EXPECT_EQ(error_of("{}"), "faults: must be an array");
  for (const char* status : {"SUCCESS", "TIMEOUT", "DEVICE_LOST", "STREAM_FAILED", "SHUTDOWN", "nonsense", "-5"}) {
    const std::string error =
        error_of("[{\"fail\": \"command\", \"device\": 0, \"status\": \"" + std::string(status) + "\"}]");
    EXPECT_EQ(error.rfind("faults[0].status: must be one of UNSUPPORTED, OUT_OF_MEMORY, ", 0), 0u) << error;
    EXPECT_NE(error.find("COMMAND_FAILED"), std::string::npos) << error;
  }
}

// What the documentation points to.
TEST(CpuTopology, TheSamplesAreRight) {
  const char* source = std::getenv("DGPU_SOURCE");
  ASSERT_TRUE(source) << "run by ctest";
  const std::string folder = std::string(source) + "/tests/data/topology/";
  std::string error;
  Topology paced(8), bad_day(4);
  EXPECT_TRUE(paced.load(folder + "paced_nodes.json", &error)) << error;
  EXPECT_TRUE(paced.pacing());
  EXPECT_EQ(paced.link(7, 6).kind, uint32_t{DGPU_LINK_NETWORK});
  EXPECT_TRUE(bad_day.load(folder + "bad_day.json", &error)) << error;
  EXPECT_EQ(bad_day.faults().size(), 5u);
  EXPECT_FALSE(bad_day.load(folder, &error)) << "a directory";
}

TEST(CpuTopology, ABadFileStopsTheBackendWithItsPath) {
  TestCore core{{"DGPU_CPU_TOPOLOGY", "/no/such/file.json"}};
  EXPECT_EQ(core.status(), DGPU_STATUS_PARSE_ERROR);
  EXPECT_EQ(core.message().rfind("DGPU_CPU_TOPOLOGY=/no/such/file.json: cannot be read", 0), 0u) << core.message();
}

TEST(CpuServices, SizesAreReadWithTheirSuffix) {
  EXPECT_EQ(parse_bytes("0"), 0u);
  EXPECT_EQ(parse_bytes("1048576"), 1048576u);
  EXPECT_EQ(parse_bytes("512M"), 512u << 20);
  EXPECT_EQ(parse_bytes("2GiB"), uint64_t{2} << 30);
  EXPECT_EQ(parse_bytes("3kb"), 3072u);
  EXPECT_EQ(parse_bytes("4T"), uint64_t{4} << 40);
  for (const char* wrong : {"", "M", "-1", "1.5G", "12Q", "1MM", "1iB", "99999999999999T", "1 G"})
    EXPECT_FALSE(parse_bytes(wrong)) << wrong;
}

// A tree of files as the kernel shows it, below a directory of this test.
class CgroupTree : public testing::Test {
 protected:
  CgroupTree() {
    root_ = std::filesystem::temp_directory_path() / ("dgpu-cgroup-" + std::to_string(getpid()));
    std::filesystem::remove_all(root_);
  }
  ~CgroupTree() override { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    const auto file = root_ / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::filesystem::path root_;
};

TEST_F(CgroupTree, TheTightestQuotaOfAllAncestorsCounts) {
  write("a/b/cpu.max", "max 100000\n");
  write("a/cpu.max", "150000 100000\n");
  write("a/b/memory.max", "1073741824\n");
  write("a/memory.max", "max\n");
  EXPECT_EQ(cgroup_cpu_quota(root_, "0::/a/b\n"), 1.5);
  EXPECT_EQ(cgroup_memory_limit(root_, "0::/a/b\n"), uint64_t{1} << 30);
  EXPECT_EQ(cgroup_cpu_quota(root_, "0::/c\n"), 0);
  EXPECT_EQ(cgroup_cpu_quota(root_, ""), 0);
}

TEST_F(CgroupTree, VersionOneIsRead) {
  const std::string self = "5:memory:/box\n4:cpuacct,cpu:/box/inner\n0::/\n";
  write("cpu/box/cpu.cfs_quota_us", "50000\n");
  write("cpu/box/cpu.cfs_period_us", "100000\n");
  write("cpu/box/inner/cpu.cfs_quota_us", "-1\n");
  write("cpu/box/inner/cpu.cfs_period_us", "100000\n");
  write("memory/box/memory.limit_in_bytes", "4096\n");
  EXPECT_EQ(cgroup_cpu_quota(root_, self), 0.5);
  EXPECT_EQ(cgroup_memory_limit(root_, self), 4096u);
}

TEST(CpuMachine, IsPlausible) {
  EXPECT_GE(usable_cores(), 1u);
  EXPECT_GE(usable_memory(), 1u << 20);
  EXPECT_GE(machine().cores, 1u);
  EXPECT_GE(machine().pus, machine().packages);
  EXPECT_EQ(device_uuid(0), device_uuid(0));
  EXPECT_NE(device_uuid(0), device_uuid(1));
}

TEST(CpuIsa, LimitsAreUpperBounds) {
  std::string error;
  const Isa best = isa();
  for (const char* name : {"scalar", "sse4", "avx2", "avx512"}) {
    ASSERT_TRUE(set_isa(name, &error));
    EXPECT_LE(isa(), best);
    EXPECT_LE(std::string(isa_name(isa())).size(), 6u);
  }
  ASSERT_TRUE(set_isa("scalar", &error));
  EXPECT_EQ(isa(), Isa::kScalar);
  EXPECT_FALSE(has_bf16_dot());
  EXPECT_FALSE(set_isa("sse5", &error));
  EXPECT_EQ(isa(), Isa::kScalar) << "a wrong value changes nothing";
  ASSERT_TRUE(set_isa("auto", &error));
  EXPECT_EQ(isa(), best);
  ASSERT_TRUE(set_bf16_mode("fma", &error));
  EXPECT_EQ(bf16_mode(), Bf16Mode::kFma);
  ASSERT_TRUE(set_bf16_mode("auto", &error));
}

}  // namespace
}  // namespace dgpu::cpu
