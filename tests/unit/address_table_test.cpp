// Device addresses: encoding, bounds, reuse, lookups while others publish and retire.
#include "runtime/address_table.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

namespace dgpu {
namespace {

Context* context_at(uintptr_t n) { return reinterpret_cast<Context*>(n * 64); }  // identity only

struct Fixture : testing::Test {
  AddressTable table;
  Segment segment;
  Fixture() { segment.context = context_at(1); }
};
using AddressTableTest = Fixture;

TEST_F(AddressTableTest, EverySizeIsFoundWholeAndNotBeyond) {
  const Context* context = segment.context;
  for (uint64_t size : {uint64_t{0}, uint64_t{1}, uint64_t{255}, uint64_t{256}, uint64_t{511}, uint64_t{512},
                        (uint64_t{1} << 20) + 3, uint64_t{1} << 32, (uint64_t{1} << 46) + 5}) {
    const uint64_t address = table.publish(&segment, 4096, size, nullptr);
    ASSERT_NE(address, 0u) << size;
    EXPECT_EQ(address % 256, 0u);
    EXPECT_EQ(address >> 56, 0x0du);
    Location at;
    ASSERT_TRUE(table.find(context, address, size, at)) << size;
    EXPECT_EQ(at.offset, 4096u);
    EXPECT_EQ(at.base, address);
    EXPECT_EQ(at.size, size);
    EXPECT_FALSE(table.find(context, address, size + 1, at));
    EXPECT_FALSE(table.find(context, address, UINT64_MAX, at));
    EXPECT_TRUE(table.find(context, address + size, 0, at));
    EXPECT_FALSE(table.find(context, address + size, 1, at));
    EXPECT_FALSE(table.find(context, address + size + 1, 0, at));
    EXPECT_FALSE(table.find(context_at(2), address, 0, at));
    if (size > 7) {
      ASSERT_TRUE(table.find(context, address + 7, size - 7, at));
      EXPECT_EQ(at.offset, 4103u);
    }
    EXPECT_FALSE(table.retire(context_at(2), address, at));
    EXPECT_FALSE(table.retire(context, address + 1, at));
    ASSERT_TRUE(table.retire(context, address, at));
    EXPECT_FALSE(table.retire(context, address, at));
    EXPECT_FALSE(table.find(context, address, 0, at));
  }
}

TEST_F(AddressTableTest, AnAddressIsNotHandedOutAgainSoon) {
  std::set<uint64_t> seen;
  Location at;
  for (int i = 0; i < 10000; ++i) {
    const uint64_t address = table.publish(&segment, 0, 1000, nullptr);
    EXPECT_TRUE(seen.insert(address).second) << "after " << i;
    ASSERT_TRUE(table.retire(segment.context, address, at));
  }
}

TEST_F(AddressTableTest, LiveRangesNeverOverlap) {
  std::set<uint64_t> starts;
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (uint64_t i = 0; i < 3000; ++i) {
    const uint64_t size = (i * 7919) % 5000;
    ranges.emplace_back(table.publish(&segment, 0, size, nullptr), size);
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i) ASSERT_LT(ranges[i - 1].first + ranges[i - 1].second, ranges[i].first);
}

TEST_F(AddressTableTest, AClassThatIsFullOverflowsIntoTheNext) {
  // Of the largest class only a few fit.
  std::vector<uint64_t> addresses;
  for (;;) {
    const uint64_t address = table.publish(&segment, 0, uint64_t{1} << 44, nullptr);
    if (!address) break;
    addresses.push_back(address);
    ASSERT_LT(addresses.size(), 1000u);
  }
  EXPECT_GE(addresses.size(), 16u);
  Location at;
  for (uint64_t address : addresses) EXPECT_TRUE(table.find(segment.context, address, uint64_t{1} << 44, at));
  ASSERT_TRUE(table.retire(segment.context, addresses[3], at));
  EXPECT_NE(table.publish(&segment, 0, uint64_t{1} << 44, nullptr), 0u);
}

TEST_F(AddressTableTest, TextsNameTheAllocationNearby) {
  const uint64_t address = table.publish(&segment, 0, 100, nullptr);
  Location at;
  EXPECT_EQ(table.resolve(segment.context, address + 90, 20, "src", at), DGPU_STATUS_INVALID_ADDRESS);
  EXPECT_NE(std::string(last_error().message).find("ends 10 bytes past the allocation of 100 bytes"),
            std::string::npos);
  const uint64_t gone = table.publish(&segment, 0, 100, nullptr);
  ASSERT_TRUE(table.retire(segment.context, gone, at));
  EXPECT_EQ(table.resolve(segment.context, gone, 1, "src", at), DGPU_STATUS_INVALID_ADDRESS);
  EXPECT_NE(std::string(last_error().message).find(fmt::format("{:#x}, 100 bytes", address)), std::string::npos);
  EXPECT_EQ(table.resolve(context_at(2), address, 1, "src", at), DGPU_STATUS_CONTEXT_MISMATCH);
  EXPECT_EQ(table.resolve(segment.context, 0x7fff12345678, 1, "src", at), DGPU_STATUS_INVALID_ADDRESS);
}

// A reader never sees a mixture of two uses of an entry.
TEST_F(AddressTableTest, LookupsWhileOthersPublishAndRetire) {
  std::atomic<uint64_t> shared{0};
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    while (!stop.load()) {
      const uint64_t address = shared.load();
      Location at;
      if (address && table.find(segment.context, address, 0, at)) {
        ASSERT_EQ(at.base, address);
        ASSERT_EQ(at.offset, at.size * 256);
      }
    }
  });
  for (uint64_t i = 1; i < 100000; ++i) {
    const uint64_t size = i % 500;
    const uint64_t address = table.publish(&segment, size * 256, size, nullptr);
    shared.store(address);
    Location at;
    ASSERT_TRUE(table.retire(segment.context, address, at));
  }
  stop = true;
  reader.join();
}

}  // namespace
}  // namespace dgpu
