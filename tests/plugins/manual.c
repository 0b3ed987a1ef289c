/* A backend whose commands run when the test says so, whose memory the host cannot touch, and which can fail, refuse
 * and lose its device on demand. The test finds the manual_* functions with dlsym. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "dgpu/backend.h"

typedef struct Item {
  struct Item* next;
  dgpuBackendQueue* queue;
  dgpuBackendCommand* command;
} Item;

struct dgpuBackendDevice_s {
  dgpuCoreDevice* core;
};
struct dgpuBackendMemory_s {
  unsigned char* bytes;
};
struct dgpuBackendQueue_s {
  dgpuCoreQueue* core;
  int failed;
};

static const dgpuBackendServices* services;
static dgpuBackendDevice* the_device;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static Item* first;
static Item** last = &first;
/* Set by the test's thread, used on whichever thread submits, runs or frees. */
static atomic_int run_at_once, live_queues, live_blocks, resets, misalign_next, report_twice, lose_in_submit;
static _Atomic dgpuStatus_t next_outcome, next_refusal;

static dgpuStatus_t run(const dgpuBackendCommand* command) {
  if (command->kind == DGPU_COMMAND_COPY) {
    const dgpuCommandCopy* copy = command->payload;
    for (uint64_t row = 0; row < copy->rows; ++row) {
      memcpy((unsigned char*)(uintptr_t)copy->dst.native + row * copy->dst_pitch,
             (const unsigned char*)(uintptr_t)copy->src.native + row * copy->src_pitch, copy->width);
    }
  } else if (command->kind == DGPU_COMMAND_FILL) {
    const dgpuCommandFill* fill = command->payload;
    for (uint64_t at = 0; at < fill->size; at += fill->pattern_size) {
      memcpy((unsigned char*)(uintptr_t)fill->dst.native + at, &fill->pattern, fill->pattern_size);
    }
  }
  return DGPU_STATUS_SUCCESS;
}

static void run_and_report(dgpuBackendQueue* queue, dgpuBackendCommand* command) {
  const uint64_t value = command->value;
  dgpuStatus_t outcome = atomic_exchange(&next_outcome, DGPU_STATUS_SUCCESS);
  if (queue->failed) {
    outcome = DGPU_STATUS_CANCELLED;
  } else if (outcome == DGPU_STATUS_SUCCESS) {
    outcome = run(command);
  } else {
    queue->failed = 1;
  }
  services->advance(services->core, queue->core, value, outcome, outcome < 0 ? "the manual device stumbled" : NULL, 42);
  if (report_twice) services->advance(services->core, queue->core, value, outcome, NULL, 0);
}

/* ---- for the test -------------------------------------------------------------------------------------------------- */

/* Runs up to `count` commands, oldest first; how many there were. */
DGPU_API int manual_run(int count) {
  int ran = 0;
  for (; ran < count; ++ran) {
    pthread_mutex_lock(&mutex);
    Item* item = first;
    if (item) {
      first = item->next;
      if (!first) last = &first;
    }
    pthread_mutex_unlock(&mutex);
    if (!item) break;
    run_and_report(item->queue, item->command);
    free(item);
  }
  return ran;
}
DGPU_API int manual_waiting(void) {
  int count = 0;
  pthread_mutex_lock(&mutex);
  for (Item* item = first; item; item = item->next) ++count;
  pthread_mutex_unlock(&mutex);
  return count;
}
DGPU_API void manual_run_at_once(int on) { run_at_once = on; }
DGPU_API void manual_fail_next(dgpuStatus_t status) { next_outcome = status; }
DGPU_API void manual_refuse_next(dgpuStatus_t status) { next_refusal = status; }
/* Bytes that the native address of the next block is off its alignment. */
DGPU_API void manual_misalign_next(int bytes) { misalign_next = bytes; }
DGPU_API void manual_report_twice(int on) { report_twice = on; }
DGPU_API void manual_lose(const char* message) { services->device_lost(services->core, the_device->core, message); }
/* The next submit takes its commands and loses the device before it returns. */
DGPU_API void manual_lose_in_submit(void) { lose_in_submit = 1; }
/* Forgets what it holds without ever reporting it. */
DGPU_API void manual_drop(void) {
  pthread_mutex_lock(&mutex);
  while (first) {
    Item* item = first;
    first = item->next;
    free(item);
  }
  last = &first;
  pthread_mutex_unlock(&mutex);
}
DGPU_API int manual_live_queues(void) { return live_queues; }
DGPU_API int manual_live_blocks(void) { return live_blocks; }
DGPU_API int manual_resets(void) { return resets; }

/* ---- entries --------------------------------------------------------------------------------------------------------- */

static dgpuStatus_t device_count(void* backend, uint32_t* out_count) {
  *out_count = 1;
  return DGPU_STATUS_SUCCESS;
}
static dgpuStatus_t device_info(void* backend, uint32_t index, dgpuDeviceInfo* out_info) {
  strcpy(out_info->name, "manual");
  strcpy(out_info->uuid, "00000000-6d61-6e75-616c-000000000000");
  out_info->kind = DGPU_DEVICE_KIND_OTHER;
  out_info->compute_units = 1;
  out_info->numa_node = -1;
  out_info->memory_bytes = (uint64_t)1 << 30;
  out_info->max_alloc_bytes = (uint64_t)1 << 30;
  return DGPU_STATUS_SUCCESS;
}
static dgpuStatus_t device_open(void* backend, uint32_t index, dgpuCoreDevice* core_device,
                                dgpuBackendDevice** out_device) {
  the_device = malloc(sizeof(*the_device));
  the_device->core = core_device;
  *out_device = the_device;
  return DGPU_STATUS_SUCCESS;
}
static void device_close(dgpuBackendDevice* device) { free(device); }

static dgpuStatus_t memory_allocate(dgpuBackendDevice* device, uint64_t size, dgpuBackendAllocation* out) {
  out->memory = malloc(sizeof(*out->memory));
  out->memory->bytes = aligned_alloc(256, size);
  out->native = (uint64_t)(uintptr_t)out->memory->bytes + (uint64_t)atomic_exchange(&misalign_next, 0);
  out->host = NULL;
  ++live_blocks;
  return DGPU_STATUS_SUCCESS;
}
static void memory_free(dgpuBackendDevice* device, dgpuBackendMemory* memory) {
  free(memory->bytes);
  free(memory);
  --live_blocks;
}

static dgpuStatus_t queue_create(dgpuBackendDevice* device, dgpuCoreQueue* core_queue, int32_t priority,
                                 dgpuBackendQueue** out_queue) {
  dgpuBackendQueue* queue = calloc(1, sizeof(*queue));
  queue->core = core_queue;
  *out_queue = queue;
  ++live_queues;
  return DGPU_STATUS_SUCCESS;
}
static void queue_destroy(dgpuBackendQueue* queue) {
  free(queue);
  --live_queues;
}
static dgpuStatus_t queue_submit(dgpuBackendQueue* queue, dgpuBackendCommand* const* commands, uint32_t count) {
  const dgpuStatus_t refusal = atomic_exchange(&next_refusal, DGPU_STATUS_SUCCESS);
  if (refusal != DGPU_STATUS_SUCCESS) {
    return services->fail(services->core, refusal, "queue", "the manual device takes nothing today", 13);
  }
  for (uint32_t i = 0; i < count; ++i) {
    if (run_at_once) {
      run_and_report(queue, commands[i]);
      continue;
    }
    Item* item = malloc(sizeof(*item));
    item->next = NULL;
    item->queue = queue;
    item->command = commands[i];
    pthread_mutex_lock(&mutex);
    *last = item;
    last = &item->next;
    pthread_mutex_unlock(&mutex);
  }
  if (atomic_exchange(&lose_in_submit, 0)) manual_lose("lost in a submit");
  return DGPU_STATUS_SUCCESS;
}
static void queue_reset(dgpuBackendQueue* queue) {
  queue->failed = 0;
  ++resets;
}

static dgpuStatus_t initialize(const dgpuBackendServices* given, void** out_backend) {
  services = given;
  run_at_once = report_twice = lose_in_submit = 0;
  next_outcome = DGPU_STATUS_SUCCESS;
  next_refusal = DGPU_STATUS_SUCCESS;
  *out_backend = &mutex;
  return DGPU_STATUS_SUCCESS;
}
static void shut_down(void* backend) {}

static const dgpuBackendDeviceGroup device_group = {sizeof(device_group), device_count, device_info, device_open,
                                                    device_close, NULL};
static const dgpuBackendMemoryGroup memory_group = {sizeof(memory_group), memory_allocate, memory_free, NULL, NULL};
static const dgpuBackendQueueGroup queue_group = {sizeof(queue_group), queue_create, queue_destroy, queue_submit,
                                                  queue_reset, NULL, NULL};
static const dgpuBackendTable table = {.struct_size = sizeof(table),
                                       .abi_major = DGPU_BACKEND_ABI_MAJOR,
                                       .abi_minor = DGPU_BACKEND_ABI_MINOR,
                                       .name = "manual",
                                       .version = "1.0.0",
                                       .vendor = "libdgpu",
                                       .device = &device_group,
                                       .memory = &memory_group,
                                       .queue = &queue_group,
                                       .initialize = initialize,
                                       .shutdown = shut_down};

DGPU_API dgpuStatus_t dgpuBackendQuery(uint32_t core_major, uint32_t core_minor, const dgpuBackendTable** out_table);
DGPU_API dgpuStatus_t dgpuBackendQuery(uint32_t core_major, uint32_t core_minor, const dgpuBackendTable** out_table) {
  *out_table = &table;
  return DGPU_STATUS_SUCCESS;
}
