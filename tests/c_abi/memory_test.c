/* Device memory, pinned host memory, copies, fill. */
#include "devices.h"

static dgpuStatus_t give_up(dgpuStatus_t status, void* user) {
  (void)status;
  (void)user;
  return -1;
}

static void addresses_are_checked(void** state) {
  dgpuDevice_t device = cpu_device(0);
  dgpuContext_t context = context_of(device);
  dgpuStream_t stream = stream_on(context, device);
  dgpuAddr_t memory = 0, host = 0;
  unsigned char bytes[1000];
  dgpuMemInfo info = DGPU_MEM_INFO_INIT;
  OK(dgpuMemAlloc(context, device, 1000, &memory));
  assert_int_equal(memory % 256, 0);
  OK(dgpuMemFillAsync(stream, memory, 0, 1, 1000));
  CHECK(DGPU_STATUS_INVALID_ADDRESS, dgpuMemFillAsync(stream, memory, 0, 1, 1001));
  MESSAGE("ends 1 bytes past the allocation of 1000 bytes");
  assert_string_equal(last_error().object, "dst");
  CHECK(DGPU_STATUS_INVALID_ADDRESS, dgpuMemFillAsync(stream, memory + 999, 0, 1, 2));
  CHECK(DGPU_STATUS_INVALID_ADDRESS, dgpuMemFillAsync(stream, memory, 0, 1, UINT64_MAX));
  CHECK(DGPU_STATUS_INVALID_ADDRESS, dgpuMemFillAsync(stream, memory - 1, 0, 1, 1));
  CHECK(DGPU_STATUS_INVALID_ADDRESS, dgpuMemCopyAsync(stream, memory, memory + 600, 500));
  assert_string_equal(last_error().object, "src");
  CHECK(DGPU_STATUS_INVALID_ADDRESS, dgpuMemFillAsync(stream, (dgpuAddr_t)(uintptr_t)bytes, 0, 1, 1));
  MESSAGE("not a device address");
  CHECK(DGPU_STATUS_INVALID_ADDRESS, dgpuMemFillAsync(stream, 0, 0, 1, 1));
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuMemCopyFromHostAsync(stream, memory, NULL, 1));
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuMemCopyToHostAsync(stream, NULL, memory, 1));
  OK(dgpuMemCopyFromHostAsync(stream, memory, NULL, 0)); /* nothing is nothing */
  OK(dgpuMemCopyAsync(stream, memory + 1000, memory, 0));

  OK(dgpuMemGetInfo(context, memory + 10, &info));
  assert_true(info.base == memory);
  assert_int_equal(info.size, 1000);
  assert_int_equal(info.kind, DGPU_MEMORY_KIND_DEVICE);
  assert_int_equal(info.device, 0);
  OK(dgpuMemGetInfo(context, memory + 999, &info));
  CHECK(DGPU_STATUS_INVALID_ADDRESS, dgpuMemGetInfo(context, memory + 1000, &info));
  CHECK(DGPU_STATUS_INVALID_ADDRESS, dgpuMemFree(context, memory + 10));
  MESSAGE("10 bytes inside");
  OK(dgpuMemFree(context, memory));
  CHECK(DGPU_STATUS_INVALID_ADDRESS, dgpuMemFree(context, memory));
  CHECK(DGPU_STATUS_INVALID_ADDRESS, dgpuMemFillAsync(stream, memory, 0, 1, 1));
  MESSAGE("freed");
  CHECK(DGPU_STATUS_INVALID_ADDRESS, dgpuMemGetInfo(context, memory, &info));
  OK(dgpuMemFree(context, 0));
  OK(dgpuMemFreeAsync(stream, 0));

  void* pointer = NULL;
  OK(dgpuMemAllocHost(context, 100, &host, &pointer));
  OK(dgpuMemGetInfo(context, host + 1, &info));
  assert_ptr_equal((char*)pointer + 1, info.host_pointer);
  assert_int_equal(info.kind, DGPU_MEMORY_KIND_HOST);
  assert_true(info.device == UINT32_MAX);
  OK(dgpuMemFree(context, host));
  OK(dgpuContextDestroy(context));
}

static void empty_allocations_are_distinct(void** state) {
  dgpuDevice_t device = cpu_device(0);
  dgpuContext_t context = context_of(device);
  dgpuMemStats stats = DGPU_MEM_STATS_INIT;
  dgpuAddr_t a = 0, b = 0;
  OK(dgpuMemAlloc(context, device, 0, &a));
  OK(dgpuMemAlloc(context, device, 0, &b));
  assert_true(a && b && a != b);
  OK(dgpuMemGetStats(context, device, &stats));
  assert_int_equal(stats.used_bytes, 0);
  assert_int_equal(stats.allocations, 2);
  OK(dgpuMemFree(context, a));
  OK(dgpuMemFree(context, b));
  OK(dgpuContextDestroy(context));
}

static void statistics_are_exact(void** state) {
  dgpuDevice_t device = cpu_device(1);
  dgpuContext_t context = context_of(device);
  dgpuMemStats stats = DGPU_MEM_STATS_INIT;
  dgpuAddr_t a = 0, b = 0, big = 77;
  OK(dgpuMemAlloc(context, device, 1001, &a));
  OK(dgpuMemAlloc(context, device, 33 << 20, &b));
  OK(dgpuMemGetStats(context, device, &stats));
  assert_int_equal(stats.used_bytes, 1001 + (33 << 20));
  assert_int_equal(stats.allocations, 2);
  assert_int_equal(stats.capacity_bytes, 256 << 20);
  assert_true(stats.reserved_bytes >= stats.used_bytes);
  assert_true(stats.reserved_bytes <= stats.capacity_bytes);
  CHECK(DGPU_STATUS_OUT_OF_MEMORY, dgpuMemAlloc(context, device, 400 << 20, &big));
  assert_int_equal(big, 0);
  MESSAGE("cpu device 1");
  MESSAGE("419430400 bytes asked for");
  MESSAGE("34604009 are used by 2 allocations");
  CHECK(DGPU_STATUS_OUT_OF_MEMORY, dgpuMemAlloc(context, device, SIZE_MAX, &big));
  OK(dgpuMemFree(context, b));
  OK(dgpuMemFree(context, a));
  OK(dgpuMemGetStats(context, device, &stats));
  assert_int_equal(stats.used_bytes, 0);
  assert_int_equal(stats.peak_used_bytes, 1001 + (33 << 20));
  OK(dgpuMemTrim(context, device, 0));
  OK(dgpuMemGetStats(context, device, &stats));
  assert_int_equal(stats.reserved_bytes, 0);
  /* The whole device in one piece, once everything was given back. */
  OK(dgpuMemAlloc(context, device, 256 << 20, &big));
  OK(dgpuMemFree(context, big));
  OK(dgpuContextDestroy(context));
}

static void a_cached_block_makes_room(void** state) {
  dgpuDevice_t device = cpu_device(0);
  dgpuContext_t context = context_of(device);
  dgpuAddr_t address = 0, small[100];
  /* Sizes grow, so that no cached segment fits: they must be given back by themselves. */
  for (size_t mib = 100; mib <= 250; mib += 10) {
    OK(dgpuMemAlloc(context, device, mib << 20, &address));
    OK(dgpuMemFree(context, address));
  }
  /* Small ones come out of the cached 250 MiB when the device has nothing else. */
  for (int i = 0; i < 100; ++i) OK(dgpuMemAlloc(context, device, 1 << 20, &small[i]));
  for (int i = 0; i < 100; ++i) OK(dgpuMemFree(context, small[i]));
  OK(dgpuMemAlloc(context, device, 250u << 20, &address));
  OK(dgpuContextDestroy(context));
}

static void a_freed_block_is_reused_on_its_stream_at_once(void** state) {
  dgpuDevice_t device = cpu_device(0);
  dgpuContext_t context = context_of(device);
  dgpuStream_t mine = stream_on(context, device), other = stream_on(context, device);
  dgpuTimeline_t gate = NULL;
  dgpuMemStats stats = DGPU_MEM_STATS_INIT;
  dgpuAddr_t a = 0, b = 0, c = 0;
  const size_t size = 150 << 20; /* the device holds one, not two */
  OK(dgpuTimelineCreate(context, 0, &gate));
  OK(dgpuMemAllocAsync(mine, size, &a));
  OK(dgpuStreamWaitTimeline(mine, gate, 1));
  OK(dgpuMemFillAsync(mine, a, 1, 1, size));
  OK(dgpuMemFreeAsync(mine, a));
  CHECK(DGPU_STATUS_INVALID_ADDRESS, dgpuMemFillAsync(mine, a, 1, 1, size));
  CHECK(DGPU_STATUS_OUT_OF_MEMORY, dgpuMemAlloc(context, device, size, &b)); /* still in use */
  OK(dgpuMemGetStats(context, device, &stats));
  assert_int_equal(stats.used_bytes, 0);
  assert_int_equal(stats.pending_bytes, size);
  OK(dgpuMemAllocAsync(mine, size, &b));
  assert_true(a != b); /* another address, the same bytes */
  OK(dgpuMemFillAsync(mine, b, 2, 1, size));
  OK(dgpuMemFreeAsync(mine, b));
  /* Another stream gets it, too, and waits by itself. */
  unsigned char got = 0;
  OK(dgpuMemAllocAsync(other, size, &c));
  OK(dgpuMemFillAsync(other, c, 3, 1, size));
  OK(dgpuMemCopyToHostAsync(other, &got, c, 1));
  CHECK(DGPU_STATUS_TIMEOUT, dgpuStreamSynchronize(other, 20000000));
  OK(dgpuTimelineSignal(gate, 1));
  OK(dgpuStreamSynchronize(other, LONG_TIME));
  assert_int_equal(got, 3);
  OK(dgpuContextSynchronize(context, LONG_TIME));
  OK(dgpuTimelineDestroy(gate));
  OK(dgpuContextDestroy(context));
}

static void a_free_waits_for_submitted_work(void** state) {
  dgpuDevice_t device = cpu_device(0);
  dgpuContext_t context = context_of(device);
  dgpuStream_t stream = stream_on(context, device);
  dgpuTimeline_t gate = NULL;
  dgpuAddr_t a = 0, b = 0;
  dgpuMemStats stats = DGPU_MEM_STATS_INIT;
  const size_t size = 200 << 20;
  OK(dgpuTimelineCreate(context, 0, &gate));
  OK(dgpuMemAlloc(context, device, size, &a));
  OK(dgpuStreamWaitTimeline(stream, gate, 1));
  OK(dgpuMemFillAsync(stream, a, 1, 1, size));
  OK(dgpuMemFree(context, a));
  OK(dgpuMemGetStats(context, device, &stats));
  assert_int_equal(stats.pending_bytes, size);
  CHECK(DGPU_STATUS_OUT_OF_MEMORY, dgpuMemAlloc(context, device, size, &b));
  MESSAGE("wait for running work");
  OK(dgpuTimelineSignal(gate, 1));
  OK(dgpuStreamSynchronize(stream, LONG_TIME));
  OK(dgpuMemAlloc(context, device, size, &b));
  OK(dgpuTimelineDestroy(gate));
  OK(dgpuContextDestroy(context));
}

/* What one context has freed and keeps for itself is given to the other that needs it. */
static void contexts_share_the_free_memory_of_a_device(void** state) {
  dgpuDevice_t device = cpu_device(0);
  dgpuContext_t first = context_of(device), second = context_of(device);
  dgpuMemStats stats = DGPU_MEM_STATS_INIT;
  dgpuAddr_t a = 0, b = 0;
  const size_t size = 200 << 20; /* of 256 MiB */
  OK(dgpuMemAlloc(first, device, size, &a));
  CHECK(DGPU_STATUS_OUT_OF_MEMORY, dgpuMemAlloc(second, device, size, &b));
  char held[64];
  OK(dgpuMemGetStats(first, device, &stats));
  snprintf(held, sizeof(held), "%llu are held by other contexts", (unsigned long long)stats.reserved_bytes);
  MESSAGE(held);
  OK(dgpuMemFree(first, a));
  OK(dgpuMemGetStats(first, device, &stats));
  assert_true(stats.reserved_bytes >= size);
  OK(dgpuMemAlloc(second, device, size, &b));
  OK(dgpuContextDestroy(first));
  OK(dgpuContextDestroy(second));
}

/* ---- copies --------------------------------------------------------------------------------------------------------- */

enum { kBytes = 100000 };

static void fill_pattern(unsigned char* bytes, unsigned seed) {
  for (size_t i = 0; i < kBytes; ++i) bytes[i] = (unsigned char)((i * 2654435761u + seed) >> 13);
}

/* host -> pinned -> first -> second -> pinned -> host, every hop an address pair of another kind. */
static void round_trip(dgpuContext_t context, dgpuDevice_t first, dgpuDevice_t second, dgpuDevice_t runs_on) {
  static unsigned char in[kBytes], out[kBytes];
  dgpuStream_t stream = stream_on(context, runs_on);
  dgpuAddr_t pinned_in = 0, pinned_out = 0, a = 0, b = 0;
  void* pointer = NULL;
  fill_pattern(in, 7);
  memset(out, 0, sizeof(out));
  OK(dgpuMemAllocHost(context, kBytes, &pinned_in, NULL));
  OK(dgpuMemAllocHost(context, kBytes, &pinned_out, &pointer));
  OK(dgpuMemAlloc(context, first, kBytes, &a));
  OK(dgpuMemAlloc(context, second, kBytes, &b));
  OK(dgpuMemCopyFromHostAsync(stream, pinned_in, in, kBytes));
  OK(dgpuMemCopyAsync(stream, a, pinned_in, kBytes));
  OK(dgpuMemFillAsync(stream, b, 0xee, 1, kBytes));
  OK(dgpuMemCopyAsync(stream, b + 1, a + 3, kBytes - 3));
  OK(dgpuMemCopyAsync(stream, pinned_out, b, kBytes));
  OK(dgpuMemCopyToHostAsync(stream, out, pinned_out, kBytes));
  OK(dgpuStreamSynchronize(stream, LONG_TIME));
  assert_int_equal(out[0], 0xee);
  assert_memory_equal(out + 1, in + 3, kBytes - 3);
  assert_int_equal(out[kBytes - 2], 0xee);
  assert_memory_equal(pointer, out, kBytes);
  OK(dgpuMemFree(context, pinned_in));
  OK(dgpuMemFree(context, pinned_out));
  OK(dgpuMemFree(context, a));
  OK(dgpuMemFree(context, b));
  OK(dgpuStreamDestroy(stream));
}

static void copies_go_in_all_directions(void** state) {
  dgpuContext_t context = context_of_two(cpu_device(0), cpu_device(1));
  for (uint32_t i = 0; i < 8; ++i) round_trip(context, cpu_device(i & 1), cpu_device(i >> 1 & 1), cpu_device(i >> 2 & 1));
  OK(dgpuContextDestroy(context));
}

static void copies_go_between_backends(void** state) {
  dgpuDevice_t devices[2] = {cpu_device(0), null_device()};
  dgpuContext_t context = context_of_two(devices[0], devices[1]);
  for (uint32_t i = 0; i < 8; ++i) round_trip(context, devices[i & 1], devices[i >> 1 & 1], devices[i >> 2 & 1]);
  OK(dgpuContextDestroy(context));
}

static void two_dimensional_copies(void** state) {
  enum { kRows = 37, kWidth = 53, kDst = 71, kSrc = 64 };
  dgpuDevice_t device = cpu_device(0);
  dgpuContext_t context = context_of(device);
  dgpuStream_t stream = stream_on(context, device);
  static unsigned char in[kRows * kSrc], out[kRows * kDst];
  dgpuAddr_t a = 0, b = 0;
  for (size_t i = 0; i < sizeof(in); ++i) in[i] = (unsigned char)(i * 31 + i / 64);
  OK(dgpuMemAlloc(context, device, sizeof(in), &a));
  OK(dgpuMemAlloc(context, device, sizeof(out), &b));
  OK(dgpuMemCopyFromHostAsync(stream, a, in, sizeof(in)));
  OK(dgpuMemFillAsync(stream, b, 0x5a, 1, sizeof(out)));
  OK(dgpuMemCopy2DAsync(stream, b + 2, kDst, a + 5, kSrc, kWidth, kRows));
  OK(dgpuMemCopyToHostAsync(stream, out, b, sizeof(out)));
  OK(dgpuStreamSynchronize(stream, LONG_TIME));
  for (size_t row = 0; row < kRows; ++row) {
    assert_int_equal(out[row * kDst], 0x5a);
    assert_memory_equal(out + row * kDst + 2, in + row * kSrc + 5, kWidth);
    for (size_t i = 2 + kWidth; i < kDst; ++i) assert_int_equal(out[row * kDst + i], 0x5a);
  }
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuMemCopy2DAsync(stream, b, kWidth - 1, a, kSrc, kWidth, kRows));
  assert_string_equal(last_error().object, "dst_pitch");
  CHECK(DGPU_STATUS_INVALID_ADDRESS, dgpuMemCopy2DAsync(stream, b, kDst, a, kSrc, kWidth, kRows + 2));
  CHECK(DGPU_STATUS_INVALID_ADDRESS, dgpuMemCopy2DAsync(stream, b, UINT64_MAX / 2, a, kSrc, kWidth, kRows));
  OK(dgpuMemCopy2DAsync(stream, b, kDst, a, kSrc, 0, kRows));
  OK(dgpuMemCopy2DAsync(stream, b, kDst, a, kSrc, kWidth, 0));
  /* Left half to right half of one matrix: the extents interleave, no byte is read and written. */
  OK(dgpuMemCopy2DAsync(stream, a + 32, kSrc, a, kSrc, 32, kRows));
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuMemCopy2DAsync(stream, a + 31, kSrc, a, kSrc, 32, kRows - 1));
  MESSAGE("overlap");
  CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuMemCopyAsync(stream, a + 10, a, 11));
  OK(dgpuMemCopyAsync(stream, a + 10, a, 10));
  OK(dgpuStreamSynchronize(stream, LONG_TIME));
  OK(dgpuContextDestroy(context));
}

static void fills_repeat_their_pattern(void** state) {
  dgpuDevice_t devices[2] = {cpu_device(0), null_device()};
  dgpuContext_t context = context_of_two(devices[0], devices[1]);
  const uint64_t pattern = 0x1122334455667788u;
  for (int d = 0; d < 2; ++d) {
    dgpuStream_t stream = stream_on(context, devices[d]);
    dgpuAddr_t memory = 0;
    OK(dgpuMemAlloc(context, devices[d], 4096, &memory));
    for (uint32_t size = 1; size <= 8; size *= 2) {
      unsigned char out[4096], wanted[8];
      memcpy(wanted, &pattern, 8);
      OK(dgpuMemFillAsync(stream, memory, 0, 1, 4096));
      OK(dgpuMemFillAsync(stream, memory + 8, pattern, size, 4080));
      OK(dgpuMemCopyToHostAsync(stream, out, memory, 4096));
      OK(dgpuStreamSynchronize(stream, LONG_TIME));
      for (uint32_t i = 0; i < 4096; ++i) {
        assert_int_equal(out[i], i < 8 || i >= 4088 ? 0 : wanted[(i - 8) % size]);
      }
    }
    CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuMemFillAsync(stream, memory, 0, 3, 3));
    CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuMemFillAsync(stream, memory, 0, 4, 6));
    CHECK(DGPU_STATUS_INVALID_ARGUMENT, dgpuMemFillAsync(stream, memory + 2, 0, 4, 8));
    /* Memory of the other device, and pinned memory: the library finds a way. */
    dgpuAddr_t other = 0, host = 0;
    unsigned char out[8];
    void* pointer = NULL;
    OK(dgpuMemAlloc(context, devices[!d], 8, &other));
    OK(dgpuMemAllocHost(context, 8, &host, &pointer));
    OK(dgpuMemFillAsync(stream, other, pattern, 8, 8));
    OK(dgpuMemFillAsync(stream, host, pattern, 8, 8));
    OK(dgpuMemCopyToHostAsync(stream, out, other, 8));
    OK(dgpuStreamSynchronize(stream, LONG_TIME));
    assert_memory_equal(out, &pattern, 8);
    assert_memory_equal(pointer, &pattern, 8);
  }
  OK(dgpuContextDestroy(context));
}

static void pinned_memory_is_counted(void** state) {
  dgpuContext_t context = context_of(cpu_device(0));
  dgpuMemStats stats = DGPU_MEM_STATS_INIT;
  dgpuAddr_t host = 0;
  void* pointer = NULL;
  OK(dgpuMemAllocHost(context, 12345, &host, &pointer));
  memset(pointer, 1, 12345);
  OK(dgpuMemGetStats(context, NULL, &stats));
  assert_int_equal(stats.used_bytes, 12345);
  assert_int_equal(stats.capacity_bytes, 0);
  OK(dgpuMemFree(context, host));
  OK(dgpuMemTrim(context, NULL, 0));
  OK(dgpuMemGetStats(context, NULL, &stats));
  assert_int_equal(stats.used_bytes, 0);
  assert_int_equal(stats.reserved_bytes, 0);
  OK(dgpuContextDestroy(context));
}

/* Random allocations, fills and frees on two streams, each block checked before it goes. */
static void blocks_never_share_bytes(void** state) {
  enum { kLive = 64, kSteps = 4000 };
  struct {
    dgpuAddr_t address;
    uint32_t words, tag;
    int stream;
  } live[kLive] = {0};
  dgpuDevice_t device = cpu_device(0);
  dgpuContext_t context = context_of(device);
  dgpuStream_t streams[2] = {stream_on(context, device), stream_on(context, device)};
  static uint32_t out[1 << 16];
  uint64_t seed = 88172645463325252u;
  for (uint32_t step = 0; step < kSteps; ++step) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    const uint32_t i = seed % kLive;
    if (live[i].address) {
      dgpuStream_t stream = streams[live[i].stream];
      OK(dgpuMemCopyToHostAsync(stream, out, live[i].address, live[i].words * 4));
      OK(dgpuStreamSynchronize(stream, LONG_TIME));
      for (uint32_t w = 0; w < live[i].words; ++w) {
        if (out[w] != live[i].tag) fail_msg("step %u: word %u is %u, not %u", step, w, out[w], live[i].tag);
      }
      if (seed >> 62) {
        OK(dgpuMemFreeAsync(stream, live[i].address));
      } else {
        OK(dgpuMemFree(context, live[i].address));
      }
      live[i].address = 0;
    } else {
      live[i].words = 1 + (uint32_t)(seed >> 40) % (1u << (seed >> 20) % 16);
      live[i].tag = step;
      live[i].stream = seed >> 33 & 1;
      OK(dgpuMemAllocAsync(streams[live[i].stream], live[i].words * 4, &live[i].address));
      OK(dgpuMemFillAsync(streams[live[i].stream], live[i].address, step, 4, live[i].words * 4));
    }
  }
  OK(dgpuContextDestroy(context));
}

static void memory_calls_on_a_failed_stream(void** state) {
  dgpuDevice_t device = cpu_device(0);
  dgpuContext_t context = context_of(device);
  dgpuStream_t stream = stream_on(context, device);
  dgpuAddr_t a = 0, b = 0;
  OK(dgpuMemAllocAsync(stream, 64, &a));
  OK(dgpuStreamHostCallback(stream, give_up, NULL));
  CHECK(DGPU_STATUS_CALLBACK_FAILED, dgpuStreamSynchronize(stream, LONG_TIME));
  CHECK(DGPU_STATUS_STREAM_FAILED, dgpuMemFillAsync(stream, a, 0, 1, 64));
  OK(dgpuMemFreeAsync(stream, a));
  OK(dgpuMemAllocAsync(stream, 64, &b));
  OK(dgpuMemFree(context, b));
  OK(dgpuContextDestroy(context));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(addresses_are_checked),
      cmocka_unit_test(empty_allocations_are_distinct),
      cmocka_unit_test(statistics_are_exact),
      cmocka_unit_test(a_cached_block_makes_room),
      cmocka_unit_test(a_freed_block_is_reused_on_its_stream_at_once),
      cmocka_unit_test(a_free_waits_for_submitted_work),
      cmocka_unit_test(contexts_share_the_free_memory_of_a_device),
      cmocka_unit_test(copies_go_in_all_directions),
      cmocka_unit_test(copies_go_between_backends),
      cmocka_unit_test(two_dimensional_copies),
      cmocka_unit_test(fills_repeat_their_pattern),
      cmocka_unit_test(pinned_memory_is_counted),
      cmocka_unit_test(blocks_never_share_bytes),
      cmocka_unit_test(memory_calls_on_a_failed_stream),
  };
  return cmocka_run_group_tests(tests, setup_devices, teardown_library);
}
