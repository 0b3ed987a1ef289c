/* The backend ABI: what a vendor implements. SPDX-License-Identifier: Apache-2.0
 *
 * A plugin is a shared object that exports one symbol, dgpuBackendQuery. It sees this header and nothing else of the
 * library. src/backends/null (installed as backend-template) is what to copy; its README says what to fill in first, and
 * how to check the result.
 *
 * Rules
 *  - Every struct starts with struct_size. Read min(struct_size, what you know); treat the rest as zero. Fill in the
 *    struct_size of what you hand out. A null entry or a missing group has a documented fallback.
 *  - Majors must match. The highest common minor wins; a minor only adds.
 *  - Entries may be called from any thread, except that calls on one queue never overlap with its destroy. They never
 *    abort, never throw, and block only where it says so. The core holds no lock that they could need.
 *  - Errors: return a negative status after services->fail(...) with a text that names the fault and the fix.
 *  - Pointers handed to an entry are valid during the call, unless it says otherwise. */
#ifndef DGPU_BACKEND_H
#define DGPU_BACKEND_H

#include "dgpu/device.h"
#include "dgpu/kernel.h"
#include "dgpu/types.h"

DGPU_EXTERN_C_BEGIN

#define DGPU_BACKEND_ABI_MAJOR 1
#define DGPU_BACKEND_ABI_MINOR 0

/* Opaque to the core, defined by the plugin. */
typedef struct dgpuBackendDevice_s dgpuBackendDevice;
typedef struct dgpuBackendQueue_s dgpuBackendQueue;
typedef struct dgpuBackendMemory_s dgpuBackendMemory;
typedef struct dgpuBackendKernel_s dgpuBackendKernel;
typedef struct dgpuBackendPlan_s dgpuBackendPlan;
/* Opaque to the plugin, defined by the core. */
typedef struct dgpuCore_s dgpuCore;
typedef struct dgpuCoreDevice_s dgpuCoreDevice;
typedef struct dgpuCoreQueue_s dgpuCoreQueue;

/* ---- Services: what the core offers to a plugin. Valid until dgpuBackendTable.shutdown returns. ------------------ */

typedef struct dgpuBackendServices {
  size_t struct_size;
  uint32_t abi_major; /* of the core */
  uint32_t abi_minor;
  dgpuCore *core;     /* first argument of the functions below */
  /* Reports that all commands of the queue up to `value` have retired, with outcome SUCCESS, or with the failure of
   * command `value` itself (earlier unreported values then count as SUCCESS). Once per value, in increasing order, from
   * any thread, also from inside submit. `message` may be null. Memory of reported commands must not be touched. */
  void (*advance)(dgpuCore *core, dgpuCoreQueue *queue, uint64_t value, dgpuStatus_t outcome, const char *message,
                  int32_t native_code);
  /* The device is gone: everything on it fails with DEVICE_LOST at once. Commands that the backend holds are still
   * reported as soon as their memory is not touched any more, if ever: memory and arguments of the others are kept, and
   * their queues are destroyed with them when the library shuts down or the backend is unloaded. */
  void (*device_lost)(dgpuCore *core, dgpuCoreDevice *device, const char *message);
  void (*log)(dgpuCore *core, uint32_t level, const char *component, const char *message);
  /* Fills the calling thread's error record and returns `status`, so that `return services->fail(...)` reads well. */
  dgpuStatus_t (*fail)(dgpuCore *core, dgpuStatus_t status, const char *object, const char *message,
                       int32_t native_code);
  void *(*allocate)(dgpuCore *core, size_t size, size_t alignment); /* host memory; null if none is left */
  void (*release)(dgpuCore *core, void *pointer);
  /* Value of a DGPU_* setting, by the two-call rule. */
  dgpuStatus_t (*config)(dgpuCore *core, const char *name, char *buffer, size_t size, size_t *needed);
  /* Told with inside = 1 by a thread that is about to call a function of the user's (a kernel on the host), and with 0
   * when it has returned. In between, calls of the library that can block answer NOT_PERMITTED on that thread: they
   * would wait for the command that makes them. */
  void (*user_code)(dgpuCore *core, int32_t inside);
} dgpuBackendServices;

/* ---- Devices ------------------------------------------------------------------------------------------------------ */

typedef struct dgpuBackendDeviceGroup {
  size_t struct_size;
  dgpuStatus_t (*count)(void *backend, uint32_t *out_count);
  /* Fills what dgpuDeviceInfo asks for, except ordinal and backend. No driver context is created. */
  dgpuStatus_t (*info)(void *backend, uint32_t index, dgpuDeviceInfo *out_info);
  /* First use of a device. core_device is the token for device_lost. */
  dgpuStatus_t (*open)(void *backend, uint32_t index, dgpuCoreDevice *core_device, dgpuBackendDevice **out_device);
  void (*close)(dgpuBackendDevice *device); /* no queue, memory, kernel or plan of it lives any more */
  /* Optional. Link between two devices of this backend; without it: through the host, nothing known. */
  dgpuStatus_t (*link)(void *backend, uint32_t from, uint32_t to, dgpuLinkInfo *out_info);
} dgpuBackendDeviceGroup;

/* ---- Memory ------------------------------------------------------------------------------------------------------- */

typedef struct dgpuBackendAllocation {
  size_t struct_size;
  dgpuBackendMemory *memory; /* the block, for free and for commands */
  uint64_t native;           /* native address of its first byte, aligned to 256; 0 where blocks have none */
  void *host;                /* where the host may read and write it, null if it may not */
} dgpuBackendAllocation;

typedef struct dgpuBackendMemoryGroup {
  size_t struct_size;
  /* size > 0. OUT_OF_MEMORY when the device is full. The core sub-allocates; calls are rare. */
  dgpuStatus_t (*allocate)(dgpuBackendDevice *device, uint64_t size, dgpuBackendAllocation *out_allocation);
  void (*free)(dgpuBackendDevice *device, dgpuBackendMemory *memory);
  /* Optional. Lets the device reach host memory that the core allocated (pinning); the core calls it for pinned host
   * memory. Without it host memory is used as it is, and only by copies. */
  dgpuStatus_t (*register_host)(dgpuBackendDevice *device, void *pointer, uint64_t size,
                                dgpuBackendAllocation *out_allocation);
  void (*unregister_host)(dgpuBackendDevice *device, dgpuBackendMemory *memory);
} dgpuBackendMemoryGroup;

/* ---- Commands ----------------------------------------------------------------------------------------------------- */

/* A resolved device address: block, offset in it, native address (0 where the backend has none). Ordinary host memory
 * has memory == null and native = the host pointer. A null address has all three 0. */
typedef struct dgpuBackendRef {
  dgpuBackendMemory *memory;
  uint64_t offset;
  uint64_t native;
} dgpuBackendRef;

enum {
  DGPU_COMMAND_MARKER = 1, /* does nothing; payload null. Carries the time stamps of events */
  DGPU_COMMAND_COPY = 2,   /* payload dgpuCommandCopy */
  DGPU_COMMAND_FILL = 3,   /* payload dgpuCommandFill */
  DGPU_COMMAND_KERNEL = 4, /* payload dgpuCommandKernel */
  DGPU_COMMAND_OP = 5      /* payload dgpuCommandOp */
};
enum {
  DGPU_COMMAND_TIMED = 1 /* the backend writes begin_ns and end_ns before it reports the value */
};

/* Command and payload stay valid and unchanged (except for the fields named) until the value was reported. */
typedef struct dgpuBackendCommand {
  size_t struct_size;
  uint32_t kind;       /* DGPU_COMMAND_* */
  uint32_t flags;      /* DGPU_COMMAND_TIMED */
  uint64_t value;      /* reached when this command retires */
  const void *payload;
  void *backend[4];    /* for the backend: it may keep anything here while it holds the command */
  uint64_t begin_ns;   /* out, device clock */
  uint64_t end_ns;     /* out */
} dgpuBackendCommand;

/* rows of width bytes; a linear copy has rows = 1. Source and destination may be on two devices of this backend, or on
 * the host. */
typedef struct dgpuCommandCopy {
  size_t struct_size;
  dgpuBackendRef dst;
  dgpuBackendRef src;
  uint64_t dst_pitch;
  uint64_t src_pitch;
  uint64_t width;
  uint64_t rows;
  dgpuBackendDevice *dst_device; /* null: host memory */
  dgpuBackendDevice *src_device;
} dgpuCommandCopy;

typedef struct dgpuCommandFill {
  size_t struct_size;
  dgpuBackendRef dst;
  uint64_t pattern;
  uint64_t size; /* bytes, a multiple of pattern_size */
  uint32_t pattern_size;
  uint32_t reserved;
} dgpuCommandFill;

typedef struct dgpuCommandKernel {
  size_t struct_size;
  dgpuBackendKernel *kernel;
  uint64_t grid[3];
  const uint32_t *types;      /* DGPU_ARG_* per launch argument */
  const uint64_t *values;     /* bits; for DGPU_ARG_PTR the native address */
  const dgpuBackendRef *refs; /* per launch argument; all zero where it is not a pointer */
  uint32_t count;
  uint32_t reserved;
} dgpuCommandKernel;

typedef struct dgpuCommandOp {
  size_t struct_size;
  dgpuBackendPlan *plan;
  const dgpuBackendRef *ports; /* per bound port of the plan */
  const int64_t *symbols;
  uint32_t port_count;
  uint32_t symbol_count;
  dgpuBackendRef workspace;
} dgpuCommandOp;

/* ---- Queues ------------------------------------------------------------------------------------------------------- */

typedef struct dgpuBackendQueueGroup {
  size_t struct_size;
  dgpuStatus_t (*create)(dgpuBackendDevice *device, dgpuCoreQueue *core_queue, int32_t priority,
                         dgpuBackendQueue **out_queue);
  /* The queue is empty. */
  void (*destroy)(dgpuBackendQueue *queue);
  /* Takes commands in order; they run one after the other. Must not block and must not allocate. Calls on one queue
   * do not overlap. Takes all of them: a stream holds up to 65536, to be chained through dgpuBackendCommand.backend
   * where the device's own ring is shorter. Any status but SUCCESS refuses them all, and the stream fails with it.
   * After a command failed the queue retires all it holds with CANCELLED, without running them, until reset; the
   * core submits nothing in between. */
  dgpuStatus_t (*submit)(dgpuBackendQueue *queue, dgpuBackendCommand *const *commands, uint32_t count);
  /* Makes a failed, empty queue usable again. */
  void (*reset)(dgpuBackendQueue *queue);
  /* Optional. The calling thread waits for `value` and offers to work: run short, non-blocking pieces of this queue's
   * commands until the value was reported or nothing is left to pick up. Never runs user code. Returns 1 if it
   * did anything. */
  uint32_t (*help)(dgpuBackendQueue *queue, uint64_t value);
  /* Optional. A hint that the core will hold no further submit back: start work that submit only gathered. */
  void (*flush)(dgpuBackendQueue *queue);
} dgpuBackendQueueGroup;

/* ---- Kernels (optional group: without it dgpuKernelCreate answers UNSUPPORTED) -------------------------------------- */

typedef struct dgpuBackendKernelDesc {
  size_t struct_size;
  const char *name;
  dgpuKernelFunction function;
  const uint32_t *params; /* DGPU_ARG_*, or DGPU_PARAM_* below, in the function's order; with DGPU_KERNEL_STATUS a negative
                             result fails the command with CALLBACK_FAILED */
  uint32_t param_count;
  uint32_t flags;         /* DGPU_KERNEL_* */
  void *user;
} dgpuBackendKernelDesc;
enum { DGPU_PARAM_USER = 64, DGPU_PARAM_GX = 65, DGPU_PARAM_GY = 66, DGPU_PARAM_GZ = 67 };

typedef struct dgpuBackendKernelGroup {
  size_t struct_size;
  dgpuStatus_t (*create)(dgpuBackendDevice *device, const dgpuBackendKernelDesc *desc, dgpuBackendKernel **out_kernel);
  void (*destroy)(dgpuBackendKernel *kernel);
} dgpuBackendKernelGroup;

/* ---- Operators (optional group: without it operators run as the f64 reference on the host) -------------------------- */

enum { DGPU_ATTR_INT = 1, DGPU_ATTR_FLOAT = 2, DGPU_ATTR_BOOL = 3, DGPU_ATTR_STRING = 4, DGPU_ATTR_INTS = 5,
       DGPU_ATTR_FLOATS = 6 };
typedef struct dgpuBackendAttr {
  size_t struct_size;
  const char *name;
  uint32_t type;        /* DGPU_ATTR_* */
  uint32_t count;       /* elements of ints or floats; 1 for scalars */
  const int64_t *ints;  /* INT, BOOL (0 or 1), INTS */
  const double *floats; /* FLOAT, FLOATS */
  const char *string;   /* STRING */
} dgpuBackendAttr;

enum { DGPU_PORT_IN = 1, DGPU_PORT_OUT = 2, DGPU_PORT_INOUT = 3 };
typedef struct dgpuBackendPort {
  size_t struct_size;
  const char *name;
  const dgpuTensorDesc *desc;
  uint32_t direction; /* DGPU_PORT_* */
  uint32_t reserved;
} dgpuBackendPort;

/* A validated operator: attributes with defaults filled in, bound ports in plan order. */
typedef struct dgpuBackendOp {
  size_t struct_size;
  const char *name;
  uint32_t schema_version;
  uint32_t attr_count;
  const dgpuBackendAttr *const *attrs;
  const dgpuBackendPort *const *ports;
  uint32_t port_count;
  uint32_t symbol_count;
} dgpuBackendOp;

/* What a backend can run, as data. The core offers only operators whose content lies inside a claim: the schema version
 * is the claimed one or newer with nothing outside it used, each attribute is named or has its default, each bound port
 * is named with an accepted type. Lists end with null. Several claims of one operator are alternatives. */
typedef struct dgpuBackendClaim {
  size_t struct_size;
  const char *op;
  uint32_t schema_version;
  uint32_t reserved;
  const char *const *attributes; /* "name": any value; "name=a|b": these values */
  const char *const *ports;      /* "name": any accepted type; "name=f32|bf16"; a repeated port as "k*" */
} dgpuBackendClaim;

typedef struct dgpuBackendPlanInfo {
  size_t struct_size;
  uint64_t workspace_bytes;
  char algorithm[64];
  char reason[256]; /* with UNSUPPORTED: why */
  uint32_t deterministic;
  uint32_t reserved;
} dgpuBackendPlanInfo;
#define DGPU_BACKEND_PLAN_INFO_INIT {sizeof(dgpuBackendPlanInfo), 0, {0}, {0}, 0, 0}

typedef struct dgpuBackendOpGroup {
  size_t struct_size;
  /* Claim `index`, null past the last; static storage. */
  const dgpuBackendClaim *(*claim)(void *backend, uint32_t index);
  /* UNSUPPORTED with a reason makes the core compose or fall back. Everything needed later must be copied. */
  dgpuStatus_t (*plan)(dgpuBackendDevice *device, const dgpuBackendOp *op, dgpuBackendPlanInfo *out_info,
                       dgpuBackendPlan **out_plan);
  void (*plan_destroy)(dgpuBackendPlan *plan);
} dgpuBackendOpGroup;

/* ---- Telemetry (optional) ------------------------------------------------------------------------------------------ */

typedef struct dgpuBackendTelemetryGroup {
  size_t struct_size;
  /* Value of DGPU_METRIC_*; memory metrics and command counts come from the core. Must answer within 100 ms. */
  dgpuStatus_t (*metric)(void *backend, uint32_t index, uint32_t metric, dgpuMetric *out_metric);
} dgpuBackendTelemetryGroup;

/* ---- The table ------------------------------------------------------------------------------------------------------ */

typedef struct dgpuBackendTable {
  size_t struct_size;
  uint32_t abi_major;
  uint32_t abi_minor;  /* what the plugin was built for */
  const char *name;    /* "acme": lower case, unique; all texts static */
  const char *version;
  const char *vendor;
  const dgpuBackendDeviceGroup *device; /* required, as memory and queue */
  const dgpuBackendMemoryGroup *memory;
  const dgpuBackendQueueGroup *queue;
  const dgpuBackendKernelGroup *kernel;
  const dgpuBackendOpGroup *op;
  const dgpuBackendTelemetryGroup *telemetry;
  /* Called once after negotiation; `*out_backend` is the first argument of the entries above. */
  dgpuStatus_t (*initialize)(const dgpuBackendServices *services, void **out_backend);
  /* Joins all threads of the plugin. After it returns no code of the plugin runs. May block for running commands. */
  void (*shutdown)(void *backend);
} dgpuBackendTable;

/* The one exported symbol: `dgpuStatus_t dgpuBackendQuery(uint32_t major, uint32_t minor, const dgpuBackendTable **)`.
 * Gets the core's version, hands out a static table, or VERSION_MISMATCH. Touches no hardware, starts no thread. */
typedef dgpuStatus_t (*dgpuBackendQueryFunction)(uint32_t core_major, uint32_t core_minor,
                                                 const dgpuBackendTable **out_table);

DGPU_EXTERN_C_END
#endif /* DGPU_BACKEND_H */
