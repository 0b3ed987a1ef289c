#include "base/handle.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "base/library.h"

namespace dgpu {
namespace {

struct Thing final : Object {
  static constexpr Kind kKind = Kind::stream;
  explicit Thing(std::atomic<int>* deaths) : Object(kKind), deaths_(deaths) {}
  ~Thing() override { deaths_->fetch_add(1); }
  void invalidated() override { invalidations.fetch_add(1); }
  std::atomic<int> invalidations{0};
  std::atomic<int>* deaths_;
};
struct Other final : Object {
  static constexpr Kind kKind = Kind::event;
  Other() : Object(kKind) {}
};

class HandleTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(library_init(DGPU_INIT_OPTIONS_INIT), 0); }
  void TearDown() override { ASSERT_EQ(library_shutdown(), 0); }
  uint64_t publish(HandleScope* scope = nullptr) {
    uint64_t handle = 0;
    EXPECT_EQ(handle_publish(Ref<Object>(make_ref<Thing>(&deaths_)), &handle, scope), 0);
    return handle;
  }
  std::atomic<int> deaths_{0};
};

TEST_F(HandleTest, IsNoAddressAndNamesItsKind) {
  const uint64_t handle = publish();
  EXPECT_EQ(handle >> 56, 0x80u | static_cast<unsigned>(Kind::stream));
  EXPECT_NE(handle, publish());
}

TEST_F(HandleTest, TellsNullWrongKindDestroyedAndForeign) {
  const uint64_t handle = publish();
  Pinned<Thing> thing;
  Pinned<Other> other;
  EXPECT_EQ(pin(handle, "s", thing), 0);
  EXPECT_EQ(thing->deaths_, &deaths_);
  EXPECT_EQ(pin(uint64_t{0}, "stream", thing), DGPU_STATUS_INVALID_HANDLE);
  EXPECT_STREQ(last_error().message, "stream is null; a stream handle is expected");
  EXPECT_STREQ(last_error().object, "stream");
  EXPECT_EQ(pin(handle, "event", other), DGPU_STATUS_INVALID_HANDLE);
  EXPECT_STREQ(last_error().message, "event is a stream handle; an event handle is expected");
  int local = 0;
  EXPECT_EQ(pin(reinterpret_cast<uint64_t>(&local), "stream", thing), DGPU_STATUS_INVALID_HANDLE);
  EXPECT_STREQ(last_error().message, "stream is not a handle of this library; a stream handle is expected");
  EXPECT_EQ(pin(handle | 0xffffff00u, "stream", thing), DGPU_STATUS_INVALID_HANDLE);
  EXPECT_EQ(pin(handle + (uint64_t{9} << 32), "stream", thing), DGPU_STATUS_INVALID_HANDLE);
  EXPECT_STREQ(last_error().message, "stream is not a handle of this library; a stream handle is expected");
  EXPECT_EQ(retire(handle, Kind::stream, "stream"), 0);
  EXPECT_EQ(retire(handle, Kind::stream, "stream"), DGPU_STATUS_INVALID_HANDLE);
  EXPECT_STREQ(last_error().message, "stream was destroyed");
}

TEST_F(HandleTest, AnObjectGoesWithItsLastPin) {
  const uint64_t handle = publish();
  {
    Pinned<Thing> thing;
    ASSERT_EQ(pin(handle, "stream", thing), 0);
    ASSERT_EQ(retire(handle, Kind::stream, "stream"), 0);
    EXPECT_EQ(thing->invalidations.load(), 1);
    EXPECT_EQ(deaths_.load(), 0);
    Pinned<Thing> again;
    EXPECT_EQ(pin(handle, "stream", again), DGPU_STATUS_INVALID_HANDLE);
  }
  EXPECT_EQ(deaths_.load(), 1);
}

TEST_F(HandleTest, AScopeTakesItsHandlesAlong) {
  auto scope = HandleScope::create();
  std::vector<uint64_t> handles;
  for (int i = 0; i < 100; ++i) handles.push_back(publish(scope.get()));
  const uint64_t outside = publish();
  ASSERT_EQ(retire(handles[7], Kind::stream, "stream"), 0);
  scope->invalidate();
  EXPECT_EQ(deaths_.load(), 100);
  Pinned<Thing> thing;
  for (uint64_t handle : handles) EXPECT_EQ(pin(handle, "stream", thing), DGPU_STATUS_INVALID_HANDLE);
  EXPECT_EQ(pin(outside, "stream", thing), 0);
  uint64_t late = 1;
  EXPECT_EQ(handle_publish(Ref<Object>(make_ref<Thing>(&deaths_)), &late, scope.get()), DGPU_STATUS_INVALID_HANDLE);
  EXPECT_EQ(late, 0u);
  EXPECT_EQ(scope->adopt(outside), DGPU_STATUS_INVALID_HANDLE);
}

TEST_F(HandleTest, AdoptMovesBetweenScopes) {
  auto first = HandleScope::create();
  auto second = HandleScope::create();
  const uint64_t handle = publish(first.get());
  ASSERT_EQ(second->adopt(handle), 0);
  first->invalidate();
  Pinned<Thing> thing;
  EXPECT_EQ(pin(handle, "stream", thing), 0);
  second->invalidate();
  EXPECT_EQ(pin(handle, "stream", thing), DGPU_STATUS_INVALID_HANDLE);
}

TEST_F(HandleTest, AnExhaustedSlotIsRetired) {
  // A child process has an empty free list, so that all handles come from one slot until it is used up.
  const pid_t child = fork();
  if (child == 0) {
    if (library_init(DGPU_INIT_OPTIONS_INIT) != 0) _exit(1);
    const uint64_t first = publish();
    retire(first, Kind::stream, "stream");
    const uint32_t generations = (1u << handle_detail::kGenerationBits) - 1;  // 1 to all ones
    uint64_t last = first;
    for (uint32_t i = 1; i < generations; ++i) {
      const uint64_t handle = publish();
      if (static_cast<uint32_t>(handle) != static_cast<uint32_t>(first) || handle <= last) _exit(2);
      retire(handle, Kind::stream, "stream");
      last = handle;
    }
    const uint64_t next = publish();
    if (static_cast<uint32_t>(next) == static_cast<uint32_t>(first)) _exit(3);
    Pinned<Thing> thing;
    if (pin(first, "stream", thing) != DGPU_STATUS_INVALID_HANDLE) _exit(4);
    if (pin(last, "stream", thing) != DGPU_STATUS_INVALID_HANDLE) _exit(5);
    if (pin(next, "stream", thing) != 0) _exit(6);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(HandleTest, EightThreadsUseWhatOthersDestroy) {
  constexpr int kThreads = 8;
  constexpr int kRounds = 3000;
  std::atomic<uint64_t> shared[4] = {};
  std::atomic<int> made{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRounds; ++i) {
        auto& cell = shared[(t + i) % 4];
        if (t % 2 == 0) {
          const uint64_t mine = publish();
          made.fetch_add(1);
          const uint64_t old = cell.exchange(mine);
          if (old) retire(old, Kind::stream, "stream");
        } else {
          Pinned<Thing> thing;
          if (pin(cell.load(), "stream", thing) == 0) {
            EXPECT_EQ(thing->deaths_, &deaths_);
          }
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (auto& cell : shared) retire(cell.load(), Kind::stream, "stream");
  EXPECT_EQ(deaths_.load(), made.load());
  EXPECT_EQ(handles_live(), 0u);
}

TEST_F(HandleTest, DestroyedTwiceAtOnceSucceedsOnce) {
  for (int i = 0; i < 300; ++i) {
    const uint64_t handle = publish();
    std::atomic<int> successes{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&] { successes.fetch_add(retire(handle, Kind::stream, "stream") == 0); });
    }
    for (auto& thread : threads) thread.join();
    ASSERT_EQ(successes.load(), 1);
  }
  EXPECT_EQ(deaths_.load(), 300);
}

TEST_F(HandleTest, AChildProcessStartsAnew) {
  const uint64_t handle = publish();
  const pid_t child = fork();
  if (child == 0) {
    Pinned<Thing> thing;
    int bad = 0;
    bad |= pin(handle, "stream", thing) != DGPU_STATUS_FORKED ? 1 : 0;
    bad |= library_init(DGPU_INIT_OPTIONS_INIT) != 0 ? 2 : 0;
    bad |= pin(handle, "stream", thing) != DGPU_STATUS_FORKED ? 4 : 0;
    const uint64_t own = publish();
    bad |= pin(own, "stream", thing) != 0 ? 8 : 0;
    thing = {};
    bad |= library_shutdown() != 0 ? 16 : 0;
    bad |= deaths_.load() != 1 ? 32 : 0;
    _exit(bad);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  Pinned<Thing> thing;
  EXPECT_EQ(pin(handle, "stream", thing), 0);
}

TEST(LibraryTest, ShutdownRetiresWakesStopsAndDestroysInOrder) {
  static std::vector<std::string> steps;
  steps.clear();
  struct Lower : LibraryState {
    ~Lower() override { steps.push_back("~lower"); }
    void wake() noexcept override { steps.push_back("wake lower"); }
    void stop() noexcept override { steps.push_back("stop lower"); }
  };
  struct Upper : LibraryState {
    Upper() { library().state<Lower>(); }
    ~Upper() override { steps.push_back("~upper"); }
    void wake() noexcept override { steps.push_back("wake upper"); }
    void stop() noexcept override { steps.push_back("stop upper"); }
  };
  ASSERT_EQ(library_init(DGPU_INIT_OPTIONS_INIT), 0);
  library().state<Upper>();
  EXPECT_EQ(&library().state<Lower>(), &library().state<Lower>());
  std::atomic<int> deaths{0};
  uint64_t handle = 0;
  ASSERT_EQ(handle_publish(Ref<Object>(make_ref<Thing>(&deaths)), &handle), 0);
  ASSERT_EQ(library_init(DGPU_INIT_OPTIONS_INIT), 0);
  ASSERT_EQ(library_shutdown(), 0);
  EXPECT_TRUE(steps.empty());
  ASSERT_EQ(library_shutdown(), 0);
  EXPECT_EQ(deaths.load(), 1);
  EXPECT_EQ(steps,
            (std::vector<std::string>{"wake upper", "wake lower", "stop upper", "stop lower", "~upper", "~lower"}));
  Pinned<Thing> thing;
  EXPECT_EQ(pin(handle, "stream", thing), DGPU_STATUS_SHUTDOWN);
  EXPECT_EQ(library_shutdown(), DGPU_STATUS_SHUTDOWN);
  ASSERT_EQ(library_init(DGPU_INIT_OPTIONS_INIT), 0);
  EXPECT_EQ(pin(handle, "stream", thing), DGPU_STATUS_INVALID_HANDLE);
  ASSERT_EQ(library_shutdown(), 0);
}

TEST(LibraryTest, ShutdownWaitsForCallsAndPins) {
  ASSERT_EQ(library_init(DGPU_INIT_OPTIONS_INIT), 0);
  std::atomic<int> deaths{0};
  uint64_t handle = 0;
  ASSERT_EQ(handle_publish(Ref<Object>(make_ref<Thing>(&deaths)), &handle), 0);
  std::atomic<int> inside{0};
  std::atomic<bool> left{false};
  std::thread caller([&] {
    LibraryUse use;
    Pinned<Thing> thing;
    EXPECT_EQ(use.enter(), 0);
    EXPECT_EQ(pin(handle, "stream", thing), 0);
    inside = 1;
    while (!library_closing()) std::this_thread::yield();
    EXPECT_EQ(deaths.load(), 0);
    left = true;
  });
  while (!inside) std::this_thread::yield();
  EXPECT_EQ(library_shutdown(), 0);
  EXPECT_TRUE(left.load());
  EXPECT_EQ(deaths.load(), 1);
  caller.join();
}

}  // namespace
}  // namespace dgpu
