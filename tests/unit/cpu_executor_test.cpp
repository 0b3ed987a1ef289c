// Semantics of the cpu backend's queues and executor, whatever the number of threads.
#include <atomic>
#include <cmath>
#include <numeric>
#include <thread>

#include "backends/cpu/executor.h"
#include "backends/kit/op_view.h"
#include "cpu_test_core.h"

namespace dgpu::cpu {
namespace {

class ExecutorTest : public testing::TestWithParam<int> {
 protected:
  TestCore core{{"DGPU_CPU_THREADS", std::to_string(GetParam())}, {"DGPU_CPU_DEVICES", "8"}};
};
INSTANTIATE_TEST_SUITE_P(Threads, ExecutorTest, testing::Values(1, 2, 5));

TEST_P(ExecutorTest, EveryChunkRunsOnceAndPhasesFollowEachOther) {
  TestStream& stream = make_stream(core, core.open(0));
  TestKernel kernel;
  kernel.chunk_counts = {7, 0, 1, 1000, 2};
  std::vector<std::vector<std::atomic<int>>> runs;
  for (const uint32_t n : kernel.chunk_counts) runs.emplace_back(n);
  std::atomic<bool> early{false};
  std::vector<std::atomic<uint32_t>> finished(kernel.chunk_counts.size());
  kernel.body = [&](uint32_t phase, uint32_t chunk, const Args&) {
    if (phase)
      for (auto& run : runs[phase - 1]) early = early || run.load() != 1;
    // With several threads the first chunk of a phase ends last, so that a thread runs out of chunks before the end.
    if (GetParam() > 1 && chunk == 0)
      while (finished[phase] + 1 < kernel.chunk_counts[phase]) std::this_thread::yield();
    ++runs[phase][chunk];
    ++finished[phase];
    return DGPU_STATUS_SUCCESS;
  };
  stream.run(&kernel);
  ASSERT_TRUE(stream.wait());
  EXPECT_FALSE(early) << "a chunk ran before the phase before it was complete";
  for (const auto& phase : runs)
    for (const auto& run : phase) EXPECT_EQ(run.load(), 1);
}

TEST_P(ExecutorTest, CommandsOfAQueueRunInOrderAndAreReportedInOrder) {
  TestStream& stream = make_stream(core, core.open(0));
  std::vector<std::unique_ptr<TestKernel>> kernels;
  std::atomic<uint32_t> position{0};
  std::atomic<bool> disorder{false};
  for (uint32_t i = 0; i < 300; ++i) {
    auto& kernel = kernels.emplace_back(std::make_unique<TestKernel>());
    kernel->chunk_counts = {1 + i % 4};
    kernel->body = [&, i](uint32_t, uint32_t, const Args&) {
      disorder = disorder || position.load() / 1000 != i;
      if (position.fetch_add(1) % 1000 == i % 4) position = (i + 1) * 1000;
      return DGPU_STATUS_SUCCESS;
    };
    stream.run(kernel.get());
    if (i % 3 == 0) stream.marker();
  }
  ASSERT_TRUE(stream.wait());
  EXPECT_FALSE(disorder);
  uint64_t last = 0;
  for (const auto& report : stream.queue.reports()) {
    EXPECT_GT(report.value, last);
    EXPECT_EQ(report.status, 0);
    last = report.value;
  }
  EXPECT_EQ(last, stream.value());
}

// Chunks so short that a thread which opened a phase may find the queue several phases or commands further on.
TEST_P(ExecutorTest, ShortPhasesOfManyCommandsRunEachChunkOnce) {
  constexpr uint32_t kCommands = 200'000;
  std::vector<TestStream*> streams;
  for (uint32_t i = 0; i < 8; ++i) streams.push_back(&make_stream(core, core.open(i)));
  std::atomic<uint32_t> counts[3]{};
  TestKernel kernel;
  kernel.chunk_counts = {4, 3, 2};
  kernel.body = [&](uint32_t phase, uint32_t, const Args&) { return ++counts[phase], DGPU_STATUS_SUCCESS; };
  for (uint32_t i = 0; i < kCommands; ++i) streams[i % streams.size()]->run(&kernel);
  for (auto& stream : streams) ASSERT_TRUE(stream->wait());
  EXPECT_EQ(counts[0], 4 * kCommands);
  EXPECT_EQ(counts[1], 3 * kCommands);
  EXPECT_EQ(counts[2], 2 * kCommands);
}

TEST_P(ExecutorTest, BatchesKeepTheirOrder) {
  TestStream& stream = make_stream(core, core.open(0));
  for (int round = 0; round < 200; ++round) {
    std::vector<dgpuBackendCommand*> batch;
    for (int i = 0; i <= round % 5; ++i) batch.push_back(stream.make(DGPU_COMMAND_MARKER, nullptr, 0));
    core.table().queue->submit(stream.handle(), batch.data(), static_cast<uint32_t>(batch.size()));
  }
  ASSERT_TRUE(stream.wait());
  uint64_t last = 0;
  for (const auto& report : stream.queue.reports()) {
    EXPECT_GT(report.value, last);
    last = report.value;
  }
  EXPECT_EQ(stream.queue.retired(), stream.value());
}

// Around the number of commands that a queue notes when it takes over what was submitted, and far beyond.
TEST_P(ExecutorTest, ABacklogOfAnyLengthRunsInOrder) {
  TestStream& stream = make_stream(core, core.open(0));
  constexpr uint32_t kLimit = Queue::kTaken;
  for (const uint32_t length : {1u, 2u, 3u, 4u, 5u, 7u, 64u, kLimit - 3, kLimit - 2, kLimit - 1, kLimit, kLimit + 1,
                                kLimit + 2, kLimit + 3, 3 * kLimit + 1}) {
    std::atomic<bool> released{false};
    TestKernel gate;
    gate.body = [&](uint32_t, uint32_t, const Args&) {
      while (!released) std::this_thread::yield();
      return DGPU_STATUS_SUCCESS;
    };
    stream.run(&gate);
    std::vector<TestKernel> kernels(length);
    std::atomic<uint32_t> next{0}, wrong{0};
    std::vector<dgpuBackendCommand*> batch;  // of 1 to 6
    for (uint32_t i = 0; i < length; ++i) {
      kernels[i].body = [&, i](uint32_t, uint32_t, const Args&) {
        wrong += next.fetch_add(1) != i;
        return DGPU_STATUS_SUCCESS;
      };
      batch.push_back(stream.make_run(&kernels[i]));
      if (i + 1 < length && batch.size() <= i / 7 % 6) continue;
      core.table().queue->submit(stream.handle(), batch.data(), static_cast<uint32_t>(batch.size()));
      batch.clear();
    }
    released = true;
    ASSERT_TRUE(stream.wait()) << length;
    EXPECT_EQ(next, length);
    EXPECT_EQ(wrong, 0u) << length;
  }
}

TEST_P(ExecutorTest, FailureCancelsWhatFollowsUntilReset) {
  TestStream& stream = make_stream(core, core.open(0));
  TestKernel good, bad, never;
  std::atomic<int> ran{0};
  std::atomic<bool> released{false};
  good.body = [&](uint32_t, uint32_t, const Args&) {
    while (!released) std::this_thread::yield();
    return DGPU_STATUS_SUCCESS;
  };
  bad.chunk_counts = {50, 3};
  bad.body = [&](uint32_t phase, uint32_t chunk, const Args&) {
    if (phase) ++ran;
    if (chunk < 20) return static_cast<dgpuStatus_t>(DGPU_STATUS_SUCCESS);
    return kit::fail(DGPU_STATUS_DATA_OUT_OF_RANGE, "ids[" + std::to_string(chunk) + "] is out of range");
  };
  never.body = [&](uint32_t, uint32_t, const Args&) { return ++ran, DGPU_STATUS_SUCCESS; };
  stream.run(&good);
  const uint64_t failed = stream.run(&bad);
  stream.run(&never);
  stream.marker();
  released = true;
  ASSERT_TRUE(stream.wait());
  EXPECT_EQ(stream.queue.outcome(1), DGPU_STATUS_SUCCESS);
  EXPECT_EQ(stream.queue.outcome(failed), DGPU_STATUS_DATA_OUT_OF_RANGE);
  EXPECT_EQ(stream.queue.outcome(failed + 1), DGPU_STATUS_CANCELLED);
  EXPECT_EQ(stream.queue.outcome(failed + 2), DGPU_STATUS_CANCELLED);
  EXPECT_EQ(ran, 0) << "a phase or command after the failure ran";
  for (const auto& report : stream.queue.reports()) {
    if (report.value == failed) {
      EXPECT_EQ(report.message, "ids[20] is out of range") << "the lowest failing chunk counts";
    }
  }
  core.table().queue->reset(stream.handle());
  const uint64_t after = stream.run(&never);
  ASSERT_TRUE(stream.wait());
  EXPECT_EQ(stream.queue.outcome(after), DGPU_STATUS_SUCCESS);
  EXPECT_EQ(ran, 1);
}

// Of several failing chunks the lowest is reported, whichever thread is first.
TEST_P(ExecutorTest, TheLowestFailingChunkIsReported) {
  if (GetParam() == 1) GTEST_SKIP() << "one thread runs the chunks in order and stops at the first that fails";
  TestStream& stream = make_stream(core, core.open(0));
  for (const uint32_t late : {20u, 21u}) {
    TestKernel kernel;
    std::atomic<bool> other_failed{false}, late_entered{false};
    kernel.chunk_counts = {50};
    kernel.body = [&](uint32_t, uint32_t chunk, const Args&) {
      if (chunk != 20 && chunk != 21) return static_cast<dgpuStatus_t>(DGPU_STATUS_SUCCESS);
      if (chunk != late) {
        while (!late_entered) std::this_thread::yield();  // or the late one would not be claimed at all
        other_failed = true;
      } else {
        late_entered = true;
        while (!other_failed) std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));  // likely after the other's record; either is right
      }
      return kit::fail(DGPU_STATUS_DATA_OUT_OF_RANGE, "chunk " + std::to_string(chunk));
    };
    stream.run(&kernel);
    ASSERT_TRUE(stream.wait());
    EXPECT_EQ(stream.queue.reports().back().message, "chunk 20") << "chunk " << late << " was late";
    core.table().queue->reset(stream.handle());
  }
}

TEST_P(ExecutorTest, ExceptionsBecomeStatuses) {
  TestStream& stream = make_stream(core, core.open(0));
  TestKernel memory, other;
  memory.chunk_counts = {4};
  memory.body = [](uint32_t, uint32_t, const Args&) -> dgpuStatus_t { throw std::bad_alloc(); };
  other.body = [](uint32_t, uint32_t, const Args&) -> dgpuStatus_t { throw 7; };
  const uint64_t first = stream.run(&memory);
  ASSERT_TRUE(stream.wait());
  EXPECT_EQ(stream.queue.outcome(first), DGPU_STATUS_OUT_OF_HOST_MEMORY);
  core.table().queue->reset(stream.handle());
  const uint64_t second = stream.run(&other);
  ASSERT_TRUE(stream.wait());
  EXPECT_EQ(stream.queue.outcome(second), DGPU_STATUS_INTERNAL);
}

// A sum whose rounding depends on the partition: the same bits for 1, 2 and 5 threads and for a plain loop over chunks.
TEST_P(ExecutorTest, ResultsDoNotDependOnTheThreads) {
  TestStream& stream = make_stream(core, core.open(0));
  constexpr uint32_t kChunks = 97, kPerChunk = 1013;
  const auto part = [](uint32_t chunk) {
    float sum = 0;
    for (uint32_t i = 0; i < kPerChunk; ++i) sum += std::sin(0.37f * static_cast<float>(chunk * kPerChunk + i));
    return sum;
  };
  std::vector<float> parts(kChunks);
  float total = 0, expected = 0;
  TestKernel kernel;
  kernel.chunk_counts = {kChunks, 1};
  kernel.body = [&](uint32_t phase, uint32_t chunk, const Args&) {
    if (phase == 0)
      parts[chunk] = part(chunk);
    else
      total = std::accumulate(parts.begin(), parts.end(), 0.f);
    return DGPU_STATUS_SUCCESS;
  };
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) expected += part(chunk);
  for (int round = 0; round < 20; ++round) {
    total = 0;
    stream.run(&kernel);
    ASSERT_TRUE(stream.wait());
    EXPECT_EQ(total, expected);
  }
}

// While one queue holds a long series of commands, another's short one is served: the long series is far from its end
// when the short one retires. Commands of the series are gated, so that this does not depend on speed.
TEST_P(ExecutorTest, QueuesTakeTurns) {
  dgpuBackendDevice* first = core.open(0);
  dgpuBackendDevice* second = core.open(1);
  TestStream& longs = make_stream(core, first);
  TestStream& shorts = make_stream(core, second);
  TestKernel slow, quick;
  std::atomic<uint32_t> chunks{0};
  std::atomic<bool> quick_done{false};
  // Endless until the quick one has run: if queues did not take turns, the wait below would time out.
  slow.chunk_counts = {4};
  slow.body = [&](uint32_t, uint32_t, const Args&) {
    ++chunks;
    const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(100);
    while (std::chrono::steady_clock::now() < end) {
    }
    return DGPU_STATUS_SUCCESS;
  };
  quick.body = [&](uint32_t, uint32_t, const Args&) { return quick_done = true, DGPU_STATUS_SUCCESS; };
  std::mutex submit_mutex;
  uint64_t submitted = 0;
  const auto more = [&] {
    const std::lock_guard lock(submit_mutex);
    if (!quick_done && submitted < 100'000) ++submitted, longs.run(&slow);
  };
  longs.queue.on_advance = [&](const Report&) { more(); };  // the queue never runs dry
  for (int i = 0; i < 20; ++i) more();
  while (chunks < 10) std::this_thread::yield();
  shorts.run(&quick);
  EXPECT_TRUE(shorts.wait());
  EXPECT_TRUE(quick_done);
  std::unique_lock lock(submit_mutex);
  const uint64_t last = longs.value();
  lock.unlock();
  EXPECT_LT(submitted, 100'000u) << "the short command was served only when the series had ended";
  EXPECT_TRUE(longs.queue.wait(last));
  core.shutdown();  // no report is inside the lambdas any more
}

TEST_P(ExecutorTest, ManyQueuesOfManyDevicesAllFinish) {
  std::vector<TestStream*> streams;
  std::atomic<uint64_t> sum{0};
  TestKernel kernel;
  kernel.chunk_counts = {3, 2};
  kernel.body = [&](uint32_t, uint32_t chunk, const Args&) { return sum += chunk + 1, DGPU_STATUS_SUCCESS; };
  for (uint32_t i = 0; i < 200; ++i)
    streams.push_back(&make_stream(core, core.open(i % 8), static_cast<int32_t>(i % 3) - 1));
  for (int round = 0; round < 20; ++round)
    for (auto& stream : streams) {
      stream->run(&kernel);
      if (round % 4 == 0) stream->marker();
    }
  for (auto& stream : streams) ASSERT_TRUE(stream->wait());
  EXPECT_EQ(sum, 200u * 20u * 9u);
}

TEST_P(ExecutorTest, SubmitFromInsideAReport) {
  TestStream& a = make_stream(core, core.open(0));
  TestStream& b = make_stream(core, core.open(1));
  std::atomic<int> hops{0};
  // Each report of one queue submits to the other: 1000 hops.
  a.queue.on_advance = [&](const Report&) {
    if (++hops < 1000) b.marker();
  };
  b.queue.on_advance = [&](const Report&) {
    if (++hops < 1000) a.marker();
  };
  a.marker();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (hops < 1000 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  EXPECT_EQ(hops, 1000);
  core.shutdown();  // no report is inside the lambdas any more
}

TEST_P(ExecutorTest, DestroyInsideTheLastReport) {
  dgpuBackendDevice* device = core.open(0);
  for (int round = 0; round < 200; ++round) {
    TestStream& stream = make_stream(core, device);
    stream.queue.on_advance = [&stream](const Report& report) {
      if (report.value == 3) stream.destroy();
    };
    for (int i = 0; i < 3; ++i) stream.marker();
    ASSERT_TRUE(stream.queue.wait(3));
  }
}

TEST_P(ExecutorTest, TimedCommandsCarryTheirPeriod) {
  TestStream& stream = make_stream(core, core.open(0));
  TestKernel kernel;
  kernel.chunk_counts = {4};
  std::atomic<uint64_t> first{UINT64_MAX}, last{0};
  kernel.body = [&](uint32_t, uint32_t, const Args&) {
    const uint64_t now = now_ns();
    for (uint64_t f = first; now < f && !first.compare_exchange_weak(f, now);) {
    }
    for (uint64_t l = last; now > l && !last.compare_exchange_weak(l, now);) {
    }
    return DGPU_STATUS_SUCCESS;
  };
  const uint64_t before = stream.marker(DGPU_COMMAND_TIMED);
  const uint64_t value = stream.run(&kernel, DGPU_COMMAND_TIMED);
  ASSERT_TRUE(stream.wait());
  EXPECT_LE(stream.command(before).end_ns, stream.command(value).begin_ns);
  EXPECT_LE(stream.command(value).begin_ns, first);
  EXPECT_GE(stream.command(value).end_ns, last);
}

TEST_P(ExecutorTest, HelpRunsOnlyBuiltInWorkAndNotBeyondTheValue) {
  TestStream& stream = make_stream(core, core.open(0));
  TestKernel kernel;
  const std::thread::id me = std::this_thread::get_id();
  std::atomic<int> mine{0}, beyond{0};
  kernel.chunk_counts = {64};
  kernel.body = [&](uint32_t, uint32_t, const Args&) {
    if (std::this_thread::get_id() == me) ++mine;
    std::this_thread::yield();
    return DGPU_STATUS_SUCCESS;
  };
  TestKernel later;
  later.body = [&](uint32_t, uint32_t, const Args&) {
    if (std::this_thread::get_id() == me) ++beyond;
    return DGPU_STATUS_SUCCESS;
  };
  for (int round = 0; round < 200; ++round) {
    const uint64_t value = stream.run(&kernel);
    stream.run(&later);
    core.table().queue->help(stream.handle(), value);
    ASSERT_TRUE(stream.wait());
  }
  EXPECT_EQ(beyond, 0);
}

TEST_P(ExecutorTest, HelpingAloneFinishesWhenNoWorkerIsFree) {
  // All workers are held by commands of other queues; the helper alone completes its queue's command.
  std::atomic<bool> released{false};
  std::atomic<int> held{0};
  TestKernel holder, work;
  holder.body = [&](uint32_t, uint32_t, const Args&) {
    ++held;
    while (!released) std::this_thread::yield();
    return DGPU_STATUS_SUCCESS;
  };
  std::vector<TestStream*> holders;
  for (int i = 0; i < GetParam(); ++i) {
    holders.push_back(&make_stream(core, core.open(0)));
    holders.back()->run(&holder);
  }
  while (held < GetParam()) std::this_thread::yield();
  TestStream& stream = make_stream(core, core.open(1));
  std::atomic<int> ran{0};
  work.chunk_counts = {5, 2};
  work.body = [&](uint32_t, uint32_t, const Args&) { return ++ran, DGPU_STATUS_SUCCESS; };
  const uint64_t value = stream.run(&work);
  const bool helped = core.table().queue->help(stream.handle(), value);
  // With fewer workers than cores a core is free for the helper; otherwise it must not add to the load.
  if (helped) {
    EXPECT_EQ(ran, 7);
    EXPECT_EQ(stream.queue.outcome(value), DGPU_STATUS_SUCCESS);
  } else {
    EXPECT_EQ(ran, 0);
  }
  released = true;
  ASSERT_TRUE(stream.wait());
  for (auto* held_stream : holders) ASSERT_TRUE(held_stream->wait());
  EXPECT_EQ(ran, 7);
}

TEST_P(ExecutorTest, ShutdownFinishesWhatIsQueued) {
  std::atomic<int> ran{0};
  TestKernel kernel;
  kernel.chunk_counts = {8, 3};
  kernel.body = [&](uint32_t, uint32_t, const Args&) { return ++ran, DGPU_STATUS_SUCCESS; };
  std::vector<TestStream*> streams;
  for (uint32_t i = 0; i < 8; ++i) streams.push_back(&make_stream(core, core.open(i)));
  for (int round = 0; round < 50; ++round)
    for (auto& stream : streams) stream->run(&kernel);
  core.shutdown(false);
  EXPECT_EQ(ran, 8 * 50 * 11);
  for (auto& stream : streams) EXPECT_EQ(stream->queue.retired(), stream->value());
}

}  // namespace
}  // namespace dgpu::cpu
