/* Backends, devices, contexts. SPDX-License-Identifier: Apache-2.0 */
#ifndef DGPU_DEVICE_H
#define DGPU_DEVICE_H

#include "dgpu/base.h"

DGPU_EXTERN_C_BEGIN

/* ---- Backends ---------------------------------------------------------------------------------------------------
 * `cpu` is built in. Others are found through JSON manifests in the directories of DGPU_BACKEND_PATH, then in the
 * installed directory, or are loaded by path. A backend is looked for at the first call that asks for devices. */

typedef struct dgpuBackendInfo {
  size_t struct_size;
  const char *name;      /* "cpu"; as the texts below: valid until the backend is unloaded or the library shut down */
  const char *version;   /* the backend's own version */
  const char *path;      /* file it was loaded from, "" if built in */
  const char *vendor;
  uint32_t abi_major;    /* negotiated version of dgpu/backend.h */
  uint32_t abi_minor;
  uint32_t device_count;
  uint32_t built_in;     /* 1: part of the library, cannot be unloaded */
} dgpuBackendInfo;
#define DGPU_BACKEND_INFO_INIT {sizeof(dgpuBackendInfo), 0, 0, 0, 0, 0, 0, 0, 0}

/* Number of loaded backends; index order is load order. Discovers on first use. */
DGPU_API dgpuStatus_t dgpuBackendCount(uint32_t *out_count);
DGPU_API dgpuStatus_t dgpuBackendGet(uint32_t index, dgpuBackend_t *out_backend);
DGPU_API dgpuStatus_t dgpuBackendGetInfo(dgpuBackend_t backend, dgpuBackendInfo *out_info);

/* Loads a plugin from a shared object or a JSON manifest. DGPU_STATUS_BACKEND_REFUSED tells why not: not an ELF file,
 * no dgpuBackendQuery, another ABI major, a crash inside its query, and so on; the library stays usable.
 * DGPU_STATUS_ALREADY_EXISTS if a backend of that name is loaded. Blocks for the plugin's own initialisation. */
DGPU_API dgpuStatus_t dgpuBackendLoad(const char *path, dgpuBackend_t *out_backend);

/* Drains and unloads: new work on its devices is refused, queued work finishes within timeout_ns or is cancelled, its
 * handles become invalid, then its code is unmapped. DGPU_STATUS_BUSY, with the list in the message, while its memory
 * is allocated: nothing has changed then. DGPU_STATUS_TIMEOUT if a command or call that cannot be cancelled still runs
 * a second later: the handles are invalid, and the code is unmapped when it has ended and a backend is loaded or
 * unloaded, or at shutdown. Built-in backends: DGPU_STATUS_NOT_PERMITTED. */
DGPU_API dgpuStatus_t dgpuBackendUnload(dgpuBackend_t backend, uint64_t timeout_ns);

typedef struct dgpuBackendAttempt {
  size_t struct_size;
  char path[256];      /* manifest, directory or shared object that was tried */
  char name[32];       /* backend name where known */
  char reason[384];    /* "loaded", or why it was refused */
  uint32_t accepted;   /* 1: loaded */
  dgpuStatus_t status; /* status of a refusal */
} dgpuBackendAttempt;
#define DGPU_BACKEND_ATTEMPT_INIT {sizeof(dgpuBackendAttempt), {0}, {0}, {0}, 0, 0}

/* What discovery and dgpuBackendLoad tried, in order. */
DGPU_API dgpuStatus_t dgpuBackendAttemptCount(uint32_t *out_count);
DGPU_API dgpuStatus_t dgpuBackendAttemptGet(uint32_t index, dgpuBackendAttempt *out_attempt);

/* ---- Devices ---------------------------------------------------------------------------------------------------- */

enum { DGPU_DEVICE_KIND_CPU = 1, DGPU_DEVICE_KIND_GPU = 2, DGPU_DEVICE_KIND_NPU = 3, DGPU_DEVICE_KIND_OTHER = 4 };

typedef struct dgpuDeviceInfo {
  size_t struct_size;
  char name[96];
  char uuid[40];             /* "xxxxxxxx-xxxx-...": stable over runs on one machine */
  char backend[32];
  char pci[16];              /* "0000:3b:00.0", "" if none */
  uint32_t kind;             /* DGPU_DEVICE_KIND_* */
  uint32_t ordinal;          /* index in dgpuDeviceGet */
  uint32_t backend_ordinal;  /* index inside its backend */
  uint32_t compute_units;    /* cores, SMs, ...: what the device may use at most */
  int32_t numa_node;         /* -1: unknown */
  uint32_t host_accessible;  /* 1: its allocations report a host pointer */
  uint64_t memory_bytes;     /* capacity of the device's memory */
  uint64_t max_alloc_bytes;  /* largest single allocation */
} dgpuDeviceInfo;
#define DGPU_DEVICE_INFO_INIT {sizeof(dgpuDeviceInfo), {0}, {0}, {0}, {0}, 0, 0, 0, 0, 0, 0, 0, 0}

/* Devices of all backends, in a stable order: backends in load order, then the backend's own order. */
DGPU_API dgpuStatus_t dgpuDeviceCount(uint32_t *out_count);
DGPU_API dgpuStatus_t dgpuDeviceGet(uint32_t ordinal, dgpuDevice_t *out_device);
DGPU_API dgpuStatus_t dgpuDeviceGetInfo(dgpuDevice_t device, dgpuDeviceInfo *out_info);

enum {
  DGPU_LINK_SAME = 0,    /* the device itself */
  DGPU_LINK_HOST = 1,    /* through host memory */
  DGPU_LINK_PCIE = 2,
  DGPU_LINK_FABRIC = 3,  /* a direct link of the vendor */
  DGPU_LINK_NETWORK = 4
};
typedef struct dgpuLinkInfo {
  size_t struct_size;
  uint32_t kind;                  /* DGPU_LINK_* */
  uint32_t hops;                  /* 0 for the device itself */
  uint32_t peer_access;           /* 1: copies need no staging in the host */
  uint32_t claimed;               /* 1: as declared (topology file, driver), 0: measured */
  uint64_t bandwidth_bytes_per_s; /* one direction; 0: unknown */
  uint64_t latency_ns;            /* 0: unknown */
} dgpuLinkInfo;
#define DGPU_LINK_INFO_INIT {sizeof(dgpuLinkInfo), 0, 0, 0, 0, 0, 0}
DGPU_API dgpuStatus_t dgpuDeviceGetLink(dgpuDevice_t from, dgpuDevice_t to, dgpuLinkInfo *out_info);

/* Metrics. X(name, value, unit, text). */
#define DGPU_METRIC_LIST(X)                                                                                  \
  X(MEMORY_USED, 1, "bytes", "device memory held by allocations of this process")                            \
  X(MEMORY_RESERVED, 2, "bytes", "device memory held by pools of this process, free blocks included")        \
  X(UTILIZATION, 3, "ratio", "share of the last sampling window in which commands of this process ran, 0-1") \
  X(COMMANDS, 4, "count", "commands retired since start")                                                    \
  X(TEMPERATURE, 5, "celsius", "hottest sensor of the device")                                               \
  X(POWER, 6, "watts", "power drawn now")                                                                    \
  X(CLOCK, 7, "hertz", "compute clock now")                                                                  \
  X(ECC_UNCORRECTED, 8, "count", "uncorrected memory errors since boot")
enum {
#define DGPU_METRIC_ENUM_ROW(name, value, unit, text) DGPU_METRIC_##name = value,
  DGPU_METRIC_LIST(DGPU_METRIC_ENUM_ROW)
#undef DGPU_METRIC_ENUM_ROW
      DGPU_METRIC_FORCE_INT32_ = 0x7fffffff
};
/* Why a value is absent. There is never a magic number in its place. */
enum {
  DGPU_ABSENT_NO = 0,
  DGPU_ABSENT_UNSUPPORTED = 1,
  DGPU_ABSENT_DENIED = 2,
  DGPU_ABSENT_NOT_SAMPLED = 3,
  DGPU_ABSENT_DEVICE_LOST = 4
};
typedef struct dgpuMetric {
  size_t struct_size;
  double value;
  uint32_t absent;   /* DGPU_ABSENT_*; value counts only when 0 */
  uint32_t reserved;
} dgpuMetric;
#define DGPU_METRIC_INIT {sizeof(dgpuMetric), 0, 0, 0}
DGPU_API dgpuStatus_t dgpuDeviceGetMetric(dgpuDevice_t device, uint32_t metric, dgpuMetric *out_metric);

/* ---- Contexts ---------------------------------------------------------------------------------------------------
 * A set of devices that share pools and plans. Objects of different contexts do not mix
 * (DGPU_STATUS_CONTEXT_MISMATCH). Destroying it invalidates all its descendants; queued work still finishes, except what
 * waits for a user-owned timeline that nothing can move any more. */

typedef struct dgpuContextOptions {
  size_t struct_size;
  uint32_t flags; /* DGPU_CONTEXT_* */
  uint32_t reserved;
} dgpuContextOptions;
#define DGPU_CONTEXT_OPTIONS_INIT {sizeof(dgpuContextOptions), 0, 0}
enum {
  DGPU_CONTEXT_NO_HELPING = 1 /* threads that synchronise never run chunks of the work that they wait for */
};
/* devices: 1 to 64 different devices. options may be null. */
DGPU_API dgpuStatus_t dgpuContextCreate(const dgpuDevice_t *devices, uint32_t count, const dgpuContextOptions *options,
                                        dgpuContext_t *out_context);
DGPU_API dgpuStatus_t dgpuContextDestroy(dgpuContext_t context);
DGPU_API dgpuStatus_t dgpuContextDeviceCount(dgpuContext_t context, uint32_t *out_count);
DGPU_API dgpuStatus_t dgpuContextGetDevice(dgpuContext_t context, uint32_t index, dgpuDevice_t *out_device);
/* Waits until everything submitted to the context's streams before the call has retired. Failures of streams are
 * reported by the streams, not here. */
DGPU_API dgpuStatus_t dgpuContextSynchronize(dgpuContext_t context, uint64_t timeout_ns);

DGPU_EXTERN_C_END
#endif /* DGPU_DEVICE_H */
