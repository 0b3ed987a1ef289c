/* Every kind of handle: as null, as another kind, as an address, destroyed, destroyed twice, after its context; and
 * eight threads that use what others destroy. */
#include <pthread.h>
#include <stdatomic.h>

#include "devices.h"

enum {
  BACKEND,
  DEVICE,
  CONTEXT,
  TIMELINE,
  STREAM,
  EVENT,
  KERNEL,
  OP_DESC,
  OP_PLAN,
  MODEL,
  SESSION,
  SEQUENCE,
  REPORT,
  KINDS
};

static const char* const kind_text[KINDS] = {"a backend", "a device",   "a context",  "a timeline", "a stream",
                                             "an event",  "a kernel",   "an op desc", "an op plan", "a model",
                                             "a session", "a sequence", "a report"};

static dgpuStatus_t use(int kind, void* handle) {
  uint32_t number = 0;
  uint64_t value = 0;
  switch (kind) {
    case BACKEND: {
      dgpuBackendInfo info = DGPU_BACKEND_INFO_INIT;
      return dgpuBackendGetInfo(handle, &info);
    }
    case DEVICE: {
      dgpuDeviceInfo info = DGPU_DEVICE_INFO_INIT;
      return dgpuDeviceGetInfo(handle, &info);
    }
    case CONTEXT:
      return dgpuContextDeviceCount(handle, &number);
    case TIMELINE:
      return dgpuTimelineGetValue(handle, &value);
    case STREAM:
      return dgpuStreamQuery(handle);
    case EVENT:
      return dgpuEventQuery(handle);
    case KERNEL: {
      dgpuKernelInfo info = DGPU_KERNEL_INFO_INIT;
      return dgpuKernelGetInfo(handle, &info);
    }
    case OP_DESC:
      return dgpuOpDescSetString(handle, "fn", "exp");
    case OP_PLAN: {
      dgpuPlanInfo info = DGPU_PLAN_INFO_INIT;
      return dgpuOpPlanGetInfo(handle, &info);
    }
    case MODEL: {
      dgpuModelInfo info = DGPU_MODEL_INFO_INIT;
      return dgpuModelGetInfo(handle, &info);
    }
    case SESSION:
      return dgpuSessionTapCount(handle, &number);
    case SEQUENCE:
      return dgpuSequenceGetLength(handle, &value);
    case REPORT:
      return dgpuReportGetVerdict(handle, &number);
    default:
      return DGPU_STATUS_INTERNAL;
  }
}

/* SUCCESS for kinds that are never destroyed by the caller. */
static dgpuStatus_t destroy(int kind, void* handle) {
  switch (kind) {
    case CONTEXT:
      return dgpuContextDestroy(handle);
    case TIMELINE:
      return dgpuTimelineDestroy(handle);
    case STREAM:
      return dgpuStreamDestroy(handle);
    case EVENT:
      return dgpuEventDestroy(handle);
    case KERNEL:
      return dgpuKernelDestroy(handle);
    case OP_DESC:
      return dgpuOpDescDestroy(handle);
    case OP_PLAN:
      return dgpuOpPlanDestroy(handle);
    case MODEL:
      return dgpuModelDestroy(handle);
    case SESSION:
      return dgpuSessionDestroy(handle);
    case SEQUENCE:
      return dgpuSequenceDestroy(handle);
    case REPORT:
      return dgpuReportDestroy(handle);
    default:
      return DGPU_STATUS_SUCCESS;
  }
}

static int destroyable(int kind) { return kind >= CONTEXT; }

static void nothing(void) {}

static void make_models(void** out, dgpuContext_t context, dgpuDevice_t device) {
  char directory[512];
  snprintf(directory, sizeof(directory), "%s/tests/data/models/adder", need_env("DGPU_SOURCE"));
  OK(dgpuModelOpen(directory, NULL, (dgpuModel_t*)&out[MODEL]));
  OK(dgpuDay0Inspect(out[MODEL], (dgpuReport_t*)&out[REPORT]));
  OK(dgpuModelLoad(out[MODEL], context, device, NULL));
  OK(dgpuSessionCreate(out[MODEL], NULL, (dgpuSession_t*)&out[SESSION]));
  OK(dgpuSequenceCreate(out[SESSION], (dgpuSequence_t*)&out[SEQUENCE]));
}

static void make_all(void** out) {
  const int64_t shape[1] = {4};
  dgpuTensorDesc tensor = DGPU_TENSOR_DESC_INIT;
  memset(out, 0, KINDS * sizeof(*out));
  OK(dgpuBackendGet(0, (dgpuBackend_t*)&out[BACKEND]));
  out[DEVICE] = cpu_device(0);
  out[CONTEXT] = context_of(out[DEVICE]);
  out[STREAM] = stream_on(out[CONTEXT], out[DEVICE]);
  OK(dgpuTimelineCreate(out[CONTEXT], 0, (dgpuTimeline_t*)&out[TIMELINE]));
  OK(dgpuEventCreate(out[CONTEXT], 0, (dgpuEvent_t*)&out[EVENT]));
  OK(dgpuEventRecord(out[EVENT], out[STREAM]));
  OK(dgpuStreamSynchronize(out[STREAM], LONG_TIME));
  OK(dgpuKernelCreate(out[CONTEXT], "nothing", nothing, "", NULL, 0, (dgpuKernel_t*)&out[KERNEL]));
  OK(dgpuOpDescCreate("unary", (dgpuOpDesc_t*)&out[OP_DESC]));
  OK(dgpuOpDescSetString(out[OP_DESC], "fn", "exp"));
  OK(dgpuTensorDescPack(&tensor, DGPU_DTYPE_F32, 1, shape));
  OK(dgpuOpDescSetTensor(out[OP_DESC], "x", &tensor));
  OK(dgpuOpDescSetTensor(out[OP_DESC], "out", &tensor));
  OK(dgpuOpPlanCreate(out[CONTEXT], out[DEVICE], out[OP_DESC], (dgpuOpPlan_t*)&out[OP_PLAN]));
  make_models(out, out[CONTEXT], out[DEVICE]);
}

static void every_kind_is_checked(void** state) {
  void* handles[KINDS];
  char text[128];
  int local = 0;
  make_all(handles);
  for (int kind = 0; kind < KINDS; ++kind) {
    OK(use(kind, handles[kind]));
    CHECK(DGPU_STATUS_INVALID_HANDLE, use(kind, NULL));
    MESSAGE("is null");
    CHECK(DGPU_STATUS_INVALID_HANDLE, use(kind, &local));
    MESSAGE("not a handle of this library");
    CHECK(DGPU_STATUS_INVALID_HANDLE, use(kind, (void*)UINTPTR_MAX));
    for (int other = 0; other < KINDS; ++other) {
      if (other == kind || !handles[other]) continue;
      CHECK(DGPU_STATUS_INVALID_HANDLE, use(kind, handles[other]));
      snprintf(text, sizeof(text), "is %s handle; %s handle is expected", kind_text[other], kind_text[kind]);
      MESSAGE(text);
      if (destroyable(kind)) CHECK(DGPU_STATUS_INVALID_HANDLE, destroy(kind, handles[other]));
    }
    if (destroyable(kind)) CHECK(DGPU_STATUS_INVALID_HANDLE, destroy(kind, NULL));
    OK(use(kind, handles[kind]));
  }
  for (int kind = KINDS - 1; kind >= 0; --kind) {
    if (!destroyable(kind)) continue;
    OK(destroy(kind, handles[kind]));
    CHECK(DGPU_STATUS_INVALID_HANDLE, use(kind, handles[kind]));
    MESSAGE("was destroyed");
    CHECK(DGPU_STATUS_INVALID_HANDLE, destroy(kind, handles[kind]));
    MESSAGE("was destroyed");
  }
}

/* Garbage collectors destroy in any order: here parents go first, and children stay usable or at least harmless. */
static void parents_may_go_first(void** state) {
  void* handles[KINDS];
  make_all(handles);
  for (int kind = KINDS - 1; kind > CONTEXT; --kind) {
    if (kind != MODEL && kind != SESSION && kind != OP_DESC) continue;
    OK(destroy(kind, handles[kind]));
  }
  OK(use(SEQUENCE, handles[SEQUENCE]));
  OK(use(OP_PLAN, handles[OP_PLAN]));
  OK(dgpuContextDestroy(handles[CONTEXT]));
  for (int kind = TIMELINE; kind <= OP_PLAN; ++kind) {
    if (kind == OP_DESC) continue; /* belongs to no context; destroyed above */
    CHECK(DGPU_STATUS_INVALID_HANDLE, use(kind, handles[kind]));
    CHECK(DGPU_STATUS_INVALID_HANDLE, destroy(kind, handles[kind]));
  }
  CHECK(DGPU_STATUS_INVALID_HANDLE, use(SEQUENCE, handles[SEQUENCE]));
  OK(destroy(REPORT, handles[REPORT]));
}

/* ---- Threads ---- */

enum { THREADS = 8, CELLS = 4, ROUNDS = 400 };
typedef struct {
  dgpuContext_t context;
  dgpuDevice_t devices[2];
  _Atomic(dgpuStream_t) streams[CELLS];
  _Atomic(dgpuEvent_t) events[CELLS];
} Arena;
typedef struct {
  Arena* arena;
  uint32_t seed;
} Hammer;

static uint32_t draw(Hammer* hammer) {
  hammer->seed ^= hammer->seed << 13;
  hammer->seed ^= hammer->seed >> 17;
  hammer->seed ^= hammer->seed << 5;
  return hammer->seed;
}

static dgpuStatus_t one_action(Hammer* hammer) {
  Arena* arena = hammer->arena;
  const uint32_t cell = draw(hammer) % CELLS;
  const dgpuStream_t stream = atomic_load(&arena->streams[cell]);
  const dgpuEvent_t event = atomic_load(&arena->events[draw(hammer) % CELLS]);
  switch (draw(hammer) % 9) {
    case 0: {
      dgpuStream_t made = NULL;
      const dgpuStatus_t status = dgpuStreamCreate(arena->context, arena->devices[cell % 2], NULL, &made);
      if (status != DGPU_STATUS_SUCCESS) return status;
      return dgpuStreamDestroy(atomic_exchange(&arena->streams[cell], made));
    }
    case 1: {
      dgpuEvent_t made = NULL;
      const dgpuStatus_t status = dgpuEventCreate(arena->context, 0, &made);
      if (status != DGPU_STATUS_SUCCESS) return status;
      return dgpuEventDestroy(atomic_exchange(&arena->events[cell], made));
    }
    case 2:
      return dgpuStreamDestroy(stream); /* somebody is using it, or destroys it too */
    case 3:
      return dgpuStreamSynchronize(stream, LONG_TIME);
    case 4:
      return dgpuStreamQuery(stream);
    case 5:
      return dgpuStreamWaitEvent(stream, event);
    case 6:
      return dgpuEventSynchronize(event, LONG_TIME);
    default:
      return dgpuEventRecord(event, stream);
  }
}

static void* hammer(void* user) {
  Hammer* mine = user;
  for (int i = 0; i < ROUNDS; ++i) {
    const dgpuStatus_t status = one_action(mine);
    switch (status) {
      case DGPU_STATUS_SUCCESS:
      case DGPU_STATUS_NOT_READY:
      case DGPU_STATUS_QUEUE_FULL:
      case DGPU_STATUS_INVALID_HANDLE:
      case DGPU_STATUS_INVALID_STATE:
        break; /* an event that was not recorded yet */
      default:
        fprintf(stderr, "%s: %s\n", dgpuStatusName(status), last_error().message);
        return (void*)1;
    }
  }
  return NULL;
}

static void threads_use_what_others_destroy(void** state) {
  Arena arena = {0};
  Hammer hammers[THREADS];
  pthread_t threads[THREADS];
  arena.devices[0] = cpu_device(0);
  arena.devices[1] = null_device();
  arena.context = context_of_two(arena.devices[0], arena.devices[1]);
  for (int i = 0; i < THREADS; ++i) {
    hammers[i].arena = &arena;
    hammers[i].seed = 0x9E3779B9u * (uint32_t)(i + 1);
    assert_int_equal(pthread_create(&threads[i], NULL, hammer, &hammers[i]), 0);
  }
  for (int i = 0; i < THREADS; ++i) {
    void* result = NULL;
    pthread_join(threads[i], &result);
    assert_null(result);
  }
  OK(dgpuContextDestroy(arena.context));
}

/* The context goes while eight threads work in it. */
static void the_context_goes_while_threads_work(void** state) {
  for (int round = 0; round < 10; ++round) {
    Arena arena = {0};
    Hammer hammers[THREADS];
    pthread_t threads[THREADS];
    arena.devices[0] = cpu_device(0);
    arena.devices[1] = cpu_device(1);
    arena.context = context_of_two(arena.devices[0], arena.devices[1]);
    for (int i = 0; i < THREADS; ++i) {
      hammers[i].arena = &arena;
      hammers[i].seed = 0x85EBCA6Bu * (uint32_t)(i + 1 + round * THREADS);
      assert_int_equal(pthread_create(&threads[i], NULL, hammer, &hammers[i]), 0);
    }
    OK(dgpuContextDestroy(arena.context));
    for (int i = 0; i < THREADS; ++i) {
      void* result = NULL;
      pthread_join(threads[i], &result);
      assert_null(result);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_kind_is_checked),
      cmocka_unit_test(parents_may_go_first),
      cmocka_unit_test(threads_use_what_others_destroy),
      cmocka_unit_test(the_context_goes_while_threads_work),
  };
  return cmocka_run_group_tests(tests, setup_devices, teardown_library);
}
