/* The smallest backend: memory is host memory, commands run inside submit. Copy this folder to start your own; README.md
 * says what to fill in first. SPDX-License-Identifier: Apache-2.0 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dgpu/backend.h"

#define NULL_MEMORY_BYTES ((uint64_t)64 << 20)
#define NULL_ALIGNMENT 256

/* ---- State. A real backend keeps its driver handles here. -------------------------------------------------------- */

typedef struct {
  const dgpuBackendServices *services;
  _Atomic uint64_t used; /* bytes allocated on the one device */
} NullBackend;

struct dgpuBackendDevice_s {
  NullBackend *backend;
  dgpuCoreDevice *core; /* for services->device_lost */
};

struct dgpuBackendMemory_s {
  unsigned char *bytes;
  uint64_t size;
};

struct dgpuBackendQueue_s {
  NullBackend *backend;
  dgpuCoreQueue *core; /* for services->advance */
  int failed;
};

static dgpuStatus_t fail(NullBackend *backend, dgpuStatus_t status, const char *object, const char *message) {
  return backend->services->fail(backend->services->core, status, object, message, 0);
}

/* ---- 1. Devices --------------------------------------------------------------------------------------------------- */

static dgpuStatus_t device_count(void *backend, uint32_t *out_count) {
  (void)backend;
  *out_count = 1;
  return DGPU_STATUS_SUCCESS;
}

static dgpuStatus_t device_info(void *backend, uint32_t index, dgpuDeviceInfo *out_info) {
  (void)backend;
  (void)index;
  strcpy(out_info->name, "null");
  strcpy(out_info->uuid, "00000000-6e75-6c6c-0000-000000000000");
  out_info->kind = DGPU_DEVICE_KIND_OTHER;
  out_info->compute_units = 1;
  out_info->numa_node = -1;
  out_info->host_accessible = 1;
  out_info->memory_bytes = NULL_MEMORY_BYTES;
  out_info->max_alloc_bytes = NULL_MEMORY_BYTES;
  return DGPU_STATUS_SUCCESS;
}

static dgpuStatus_t device_open(void *backend, uint32_t index, dgpuCoreDevice *core_device,
                                dgpuBackendDevice **out_device) {
  (void)index;
  dgpuBackendDevice *device = malloc(sizeof(*device));
  if (!device) return fail(backend, DGPU_STATUS_OUT_OF_HOST_MEMORY, "device", "no host memory for the device");
  device->backend = backend;
  device->core = core_device;
  *out_device = device;
  return DGPU_STATUS_SUCCESS;
}

static void device_close(dgpuBackendDevice *device) { free(device); }

/* ---- 2. Memory ---------------------------------------------------------------------------------------------------- */

static dgpuStatus_t memory_allocate(dgpuBackendDevice *device, uint64_t size, dgpuBackendAllocation *out) {
  NullBackend *backend = device->backend;
  const uint64_t used = atomic_fetch_add(&backend->used, size) + size;
  if (size > NULL_MEMORY_BYTES || used > NULL_MEMORY_BYTES) {
    atomic_fetch_sub(&backend->used, size);
    return fail(backend, DGPU_STATUS_OUT_OF_MEMORY, "size", "the null device has 64 MiB; free memory first");
  }
  dgpuBackendMemory *memory = malloc(sizeof(*memory));
  void *bytes = backend->services->allocate(backend->services->core, size, NULL_ALIGNMENT);
  if (!memory || !bytes) {
    free(memory);
    if (bytes) backend->services->release(backend->services->core, bytes);
    atomic_fetch_sub(&backend->used, size);
    return fail(backend, DGPU_STATUS_OUT_OF_MEMORY, "size", "the host has no memory for the null device");
  }
  memory->bytes = bytes;
  memory->size = size;
  out->memory = memory;
  out->native = (uint64_t)(uintptr_t)bytes;
  out->host = bytes;
  return DGPU_STATUS_SUCCESS;
}

static void memory_free(dgpuBackendDevice *device, dgpuBackendMemory *memory) {
  NullBackend *backend = device->backend;
  backend->services->release(backend->services->core, memory->bytes);
  atomic_fetch_sub(&backend->used, memory->size);
  free(memory);
}

/* ---- 3. Queues: markers, copies, fills ---------------------------------------------------------------------------- */

static unsigned char *resolve(const dgpuBackendRef *ref) { return (unsigned char *)(uintptr_t)ref->native; }

static void run_copy(const dgpuCommandCopy *copy) {
  unsigned char *dst = resolve(&copy->dst);
  const unsigned char *src = resolve(&copy->src);
  for (uint64_t row = 0; row < copy->rows; ++row) {
    memmove(dst + row * copy->dst_pitch, src + row * copy->src_pitch, copy->width);
  }
}

static void run_fill(const dgpuCommandFill *fill) {
  unsigned char *dst = resolve(&fill->dst);
  for (uint64_t at = 0; at + fill->pattern_size <= fill->size; at += fill->pattern_size) {
    memcpy(dst + at, &fill->pattern, fill->pattern_size);
  }
}

static uint64_t clock_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static dgpuStatus_t run(const dgpuBackendCommand *command) {
  switch (command->kind) {
    case DGPU_COMMAND_MARKER: return DGPU_STATUS_SUCCESS;
    case DGPU_COMMAND_COPY: run_copy(command->payload); return DGPU_STATUS_SUCCESS;
    case DGPU_COMMAND_FILL: run_fill(command->payload); return DGPU_STATUS_SUCCESS;
    default: return DGPU_STATUS_UNSUPPORTED; /* no kernel and no op group, so none is ever sent */
  }
}

static dgpuStatus_t queue_create(dgpuBackendDevice *device, dgpuCoreQueue *core_queue, int32_t priority,
                                 dgpuBackendQueue **out_queue) {
  (void)priority;
  dgpuBackendQueue *queue = malloc(sizeof(*queue));
  if (!queue) return fail(device->backend, DGPU_STATUS_OUT_OF_HOST_MEMORY, "queue", "no host memory for the queue");
  queue->backend = device->backend;
  queue->core = core_queue;
  queue->failed = 0;
  *out_queue = queue;
  return DGPU_STATUS_SUCCESS;
}

static void queue_destroy(dgpuBackendQueue *queue) { free(queue); }

static dgpuStatus_t queue_submit(dgpuBackendQueue *queue, dgpuBackendCommand *const *commands, uint32_t count) {
  const dgpuBackendServices *services = queue->backend->services;
  for (uint32_t i = 0; i < count; ++i) {
    dgpuBackendCommand *command = commands[i];
    const uint64_t value = command->value; /* after advance the command is no longer ours */
    if (command->flags & DGPU_COMMAND_TIMED) command->begin_ns = clock_ns();
    const dgpuStatus_t outcome = queue->failed ? DGPU_STATUS_CANCELLED : run(command);
    if (command->flags & DGPU_COMMAND_TIMED) command->end_ns = clock_ns();
    if (outcome != DGPU_STATUS_SUCCESS) queue->failed = 1;
    services->advance(services->core, queue->core, value, outcome,
                      outcome == DGPU_STATUS_UNSUPPORTED ? "the null backend runs markers, copies and fills only" : NULL,
                      0);
  }
  return DGPU_STATUS_SUCCESS;
}

static void queue_reset(dgpuBackendQueue *queue) { queue->failed = 0; }

/* ---- The table ---------------------------------------------------------------------------------------------------- */

static dgpuStatus_t initialize(const dgpuBackendServices *services, void **out_backend) {
  NullBackend *backend = calloc(1, sizeof(*backend));
  if (!backend) return DGPU_STATUS_OUT_OF_HOST_MEMORY;
  backend->services = services;
  *out_backend = backend;
  return DGPU_STATUS_SUCCESS;
}

static void shut_down(void *backend) { free(backend); }

static const dgpuBackendDeviceGroup device_group = {
    .struct_size = sizeof(device_group),
    .count = device_count,
    .info = device_info,
    .open = device_open,
    .close = device_close,
};
static const dgpuBackendMemoryGroup memory_group = {
    .struct_size = sizeof(memory_group),
    .allocate = memory_allocate,
    .free = memory_free,
};
static const dgpuBackendQueueGroup queue_group = {
    .struct_size = sizeof(queue_group),
    .create = queue_create,
    .destroy = queue_destroy,
    .submit = queue_submit,
    .reset = queue_reset,
};
static const dgpuBackendTable table = {
    .struct_size = sizeof(table),
    .abi_major = DGPU_BACKEND_ABI_MAJOR,
    .abi_minor = DGPU_BACKEND_ABI_MINOR,
    .name = "null",
    .version = "1.0.0",
    .vendor = "libdgpu",
    .device = &device_group,
    .memory = &memory_group,
    .queue = &queue_group,
    .initialize = initialize,
    .shutdown = shut_down,
};

DGPU_API dgpuStatus_t dgpuBackendQuery(uint32_t core_major, uint32_t core_minor, const dgpuBackendTable **out_table);

DGPU_API dgpuStatus_t dgpuBackendQuery(uint32_t core_major, uint32_t core_minor, const dgpuBackendTable **out_table) {
  (void)core_minor; /* a newer or older minor of the core is fine: it reads what both know */
  if (core_major != DGPU_BACKEND_ABI_MAJOR) return DGPU_STATUS_VERSION_MISMATCH;
  *out_table = &table;
  return DGPU_STATUS_SUCCESS;
}
