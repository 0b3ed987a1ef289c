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
      {R"({"version": 1, "link": []})", "document: unknown key \"link\"; known are version, devices, default, links"},
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
