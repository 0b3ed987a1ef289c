// Timelines: outcomes of intervals, waiters, interrupts. Without a context, which they need only for the API.
#include "runtime/timeline.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/struct.h"
#include "runtime/context.h"

namespace dgpu {
namespace {

ErrorRecord record_of(Status status, const char* message) {
  auto record = std::make_shared<dgpuErrorInfo>();
  record->struct_size = sizeof(dgpuErrorInfo);
  record->status = status;
  copy_text(record->message, message);
  return record;
}

struct Count : TimelineWaiter {
  int fired = 0;
  Timeline* timeline = nullptr;
  uint64_t again = 0;
  Count() {
    fire = [](TimelineWaiter* waiter) {
      auto* self = static_cast<Count*>(waiter);
      ++self->fired;
      if (self->again) self->timeline->add_waiter(self, std::exchange(self->again, 0));
    };
  }
};

TEST(Timeline, WaitersFireOnceWhenTheirValueSettles) {
  auto timeline = make_ref<Timeline>(nullptr, Timeline::Owner::user, 0);
  Count a, b, c, gone;
  EXPECT_TRUE(timeline->add_waiter(&a, 5));
  EXPECT_TRUE(timeline->add_waiter(&b, 7));
  EXPECT_TRUE(timeline->add_waiter(&gone, 6));
  EXPECT_TRUE(timeline->remove_waiter(&gone));
  EXPECT_FALSE(timeline->remove_waiter(&gone));
  EXPECT_EQ(timeline->signal(4), DGPU_STATUS_SUCCESS);
  EXPECT_EQ(a.fired, 0);
  EXPECT_EQ(timeline->signal(6), DGPU_STATUS_SUCCESS);
  EXPECT_EQ(a.fired, 1);
  EXPECT_EQ(b.fired, 0);
  EXPECT_FALSE(timeline->add_waiter(&c, 6));
  EXPECT_EQ(timeline->signal(100), DGPU_STATUS_SUCCESS);
  EXPECT_EQ(a.fired, 1);
  EXPECT_EQ(b.fired, 1);
  EXPECT_EQ(gone.fired, 0);
}

TEST(Timeline, AWaiterMayRegisterAgainInsideFire) {
  auto timeline = make_ref<Timeline>(nullptr, Timeline::Owner::user, 0);
  Count a;
  a.timeline = timeline.get();
  a.again = 3;
  ASSERT_TRUE(timeline->add_waiter(&a, 1));
  ASSERT_EQ(timeline->signal(2), DGPU_STATUS_SUCCESS);
  EXPECT_EQ(a.fired, 1);
  ASSERT_EQ(timeline->signal(3), DGPU_STATUS_SUCCESS);
  EXPECT_EQ(a.fired, 2);
}

TEST(Timeline, AnOpenFailureEndsWhereItIsClosed) {
  auto timeline = make_ref<Timeline>(nullptr, Timeline::Owner::stream, 0);
  timeline->publish_submitted(20);
  timeline->open_failure(5, record_of(DGPU_STATUS_COMMAND_FAILED, "first"));
  timeline->retire(10);
  EXPECT_EQ(timeline->query(4), DGPU_STATUS_SUCCESS);
  EXPECT_EQ(timeline->query(5), DGPU_STATUS_COMMAND_FAILED);
  EXPECT_EQ(timeline->query(10), DGPU_STATUS_COMMAND_FAILED);
  EXPECT_EQ(timeline->query(11), DGPU_STATUS_NOT_READY);
  timeline->close_failure(10);
  timeline->retire(12);
  EXPECT_EQ(timeline->query(10), DGPU_STATUS_COMMAND_FAILED);
  EXPECT_EQ(timeline->query(11), DGPU_STATUS_SUCCESS);
  EXPECT_STREQ(last_error().message, "first");
  EXPECT_EQ(timeline->wait(21, 0), DGPU_STATUS_INVALID_ARGUMENT);
}

TEST(Timeline, OutcomesMaySettleBeforeMemoryRetires) {
  auto timeline = make_ref<Timeline>(nullptr, Timeline::Owner::stream, 0);
  timeline->publish_submitted(9);
  timeline->open_failure(3, record_of(DGPU_STATUS_DEVICE_LOST, "gone"));
  timeline->settle(9);
  EXPECT_EQ(timeline->wait(9, 0), DGPU_STATUS_DEVICE_LOST);
  EXPECT_EQ(timeline->retired(), 0u);
  timeline->retire(4);
  EXPECT_EQ(timeline->retired(), 4u);
  EXPECT_EQ(timeline->settled(), 9u);
}

// Years of failures do not grow without bound, and old values never turn into successes.
TEST(Timeline, OldFailuresKeepTheirStatus) {
  auto timeline = make_ref<Timeline>(nullptr, Timeline::Owner::user, 0);
  constexpr uint64_t kFailures = 40000;
  for (uint64_t i = 1; i <= kFailures; ++i) {
    ASSERT_EQ(timeline->fail(2 * i, record_of(DGPU_STATUS_DATA_OUT_OF_RANGE, "again")), DGPU_STATUS_SUCCESS);
  }
  EXPECT_EQ(timeline->query(2 * kFailures), DGPU_STATUS_DATA_OUT_OF_RANGE);
  EXPECT_STREQ(last_error().message, "again");
  EXPECT_EQ(timeline->query(2 * kFailures - 1000), DGPU_STATUS_DATA_OUT_OF_RANGE);
  EXPECT_LT(timeline->query(2), 0);
}

TEST(Timeline, AnInterruptEndsWaitsNowAndLater) {
  auto timeline = make_ref<Timeline>(nullptr, Timeline::Owner::user, 0);
  Status got = 0;
  std::thread waiter([&] { got = timeline->wait(1, DGPU_TIMEOUT_INFINITE); });
  timeline->interrupt(DGPU_STATUS_SHUTDOWN);
  waiter.join();
  EXPECT_EQ(got, DGPU_STATUS_SHUTDOWN);
  EXPECT_EQ(timeline->wait(1, DGPU_TIMEOUT_INFINITE), DGPU_STATUS_SHUTDOWN);
  EXPECT_EQ(timeline->wait(0, 0), DGPU_STATUS_SUCCESS);
}

TEST(Timeline, NoWakeUpIsLost) {
  auto timeline = make_ref<Timeline>(nullptr, Timeline::Owner::user, 0);
  constexpr uint64_t kValues = 20000;
  std::thread waiter([&] {
    for (uint64_t v = 1; v <= kValues; ++v) ASSERT_EQ(timeline->wait(v, DGPU_TIMEOUT_INFINITE), DGPU_STATUS_SUCCESS);
  });
  for (uint64_t v = 1; v <= kValues; ++v) ASSERT_EQ(timeline->signal(v), DGPU_STATUS_SUCCESS);
  waiter.join();
}

}  // namespace
}  // namespace dgpu
