/* Library life time, errors, log, settings. SPDX-License-Identifier: Apache-2.0 */
#ifndef DGPU_BASE_H
#define DGPU_BASE_H

#include "dgpu/types.h"

DGPU_EXTERN_C_BEGIN

/* ---- Handles ----------------------------------------------------------------------------------------------------
 * Opaque values, never real addresses: they encode kind, generation and slot, and each call checks and pins them.
 * Destroy invalidates a handle at once, never blocks and cancels nothing: the object itself goes with its last child,
 * queued command or running call. Children hold their parents, so handles may be destroyed in any order. */
typedef struct dgpuBackend_s *dgpuBackend_t;
typedef struct dgpuDevice_s *dgpuDevice_t;
typedef struct dgpuContext_s *dgpuContext_t;
typedef struct dgpuTimeline_s *dgpuTimeline_t;
typedef struct dgpuStream_s *dgpuStream_t;
typedef struct dgpuEvent_s *dgpuEvent_t;
typedef struct dgpuKernel_s *dgpuKernel_t;
typedef struct dgpuOpDesc_s *dgpuOpDesc_t;
typedef struct dgpuOpPlan_s *dgpuOpPlan_t;
typedef struct dgpuModel_s *dgpuModel_t;
typedef struct dgpuSession_s *dgpuSession_t;
typedef struct dgpuSequence_s *dgpuSequence_t;
typedef struct dgpuReport_s *dgpuReport_t;

/* ---- Library ---------------------------------------------------------------------------------------------------- */

/* Version of the loaded library, which may be newer than the header. Null pointers are skipped. Never fails. */
DGPU_API dgpuStatus_t dgpuGetVersion(uint32_t *out_major, uint32_t *out_minor, uint32_t *out_patch);

typedef struct dgpuInitOptions {
  size_t struct_size;
  uint32_t flags;       /* must be 0 */
  uint32_t cpu_threads; /* worker threads of the cpu backend; 0: setting DGPU_CPU_THREADS, else affinity and cgroup quota */
} dgpuInitOptions;
#define DGPU_INIT_OPTIONS_INIT {sizeof(dgpuInitOptions), 0, 0}

/* Makes the library usable. Reference-counted: each success needs one dgpuShutdown. Cheap: reads settings and lists
 * built-in backends; no driver is touched before a device is asked for. options may be null; options of a nested call
 * are ignored. After fork the child calls dgpuInit anew; handles of the parent answer DGPU_STATUS_FORKED. */
DGPU_API dgpuStatus_t dgpuInit(const dgpuInitOptions *options);

/* Undoes one dgpuInit. The last one invalidates all handles, wakes blocked calls with DGPU_STATUS_SHUTDOWN, lets
 * the commands that devices already hold finish, cancels the others, joins the library's threads and frees everything.
 * May block for the running commands. The last one is NOT_PERMITTED inside a host callback or a kernel. Nothing
 * runs at process exit: exiting without shutdown is fine; so is dlclose, after which the code stays mapped. */
DGPU_API dgpuStatus_t dgpuShutdown(void);

/* ---- Errors ----------------------------------------------------------------------------------------------------- */

/* "DGPU_STATUS_OUT_OF_MEMORY", or "DGPU_STATUS_UNKNOWN" for a code that this version does not know. Static storage. */
DGPU_API const char *dgpuStatusName(dgpuStatus_t status);
/* One sentence on the code in general. Static storage. */
DGPU_API const char *dgpuStatusText(dgpuStatus_t status);

enum {
  DGPU_STATUS_CLASS_OUTCOME = 0,
  DGPU_STATUS_CLASS_CALLER = 1,
  DGPU_STATUS_CLASS_RESOURCE = 2,
  DGPU_STATUS_CLASS_STREAM = 3,
  DGPU_STATUS_CLASS_DEVICE = 4,
  DGPU_STATUS_CLASS_PROCESS = 5
};
/* The blast radius of a code, DGPU_STATUS_CLASS_*; works for codes of later versions too. */
DGPU_API uint32_t dgpuStatusClass(dgpuStatus_t status);

/* Details of a failure. Texts are UTF-8, NUL-terminated, cut if too long, empty where unknown. */
typedef struct dgpuErrorInfo {
  size_t struct_size;
  dgpuStatus_t status;
  int32_t native_code; /* the backend's own code, 0 if none */
  uint64_t value;      /* timeline value of the failed command, 0 for a failure of the call itself */
  char message[512];   /* what is wrong and what to do about it */
  char object[128];    /* the argument, field, tensor or file at fault */
  char function[64];   /* the API function that failed, or that submitted the failed command */
  char op[64];         /* the operator or kernel at fault */
  char backend[32];    /* name of the backend concerned */
} dgpuErrorInfo;
#define DGPU_ERROR_INFO_INIT {sizeof(dgpuErrorInfo), 0, 0, 0, {0}, {0}, {0}, {0}, {0}}

/* The last failure of a call of this thread. Successful calls leave it alone; positive outcomes do not set it. A call
 * that waits for failed work carries the record of the command that failed first. Before any failure: status 0. */
DGPU_API dgpuStatus_t dgpuGetLastError(dgpuErrorInfo *out_info);

/* ---- Log -------------------------------------------------------------------------------------------------------- */

enum { DGPU_LOG_OFF = 0, DGPU_LOG_ERROR = 1, DGPU_LOG_WARN = 2, DGPU_LOG_INFO = 3, DGPU_LOG_DEBUG = 4 };

/* Called from any thread, several at once; must not call the library. message lives during the call. */
typedef void (*dgpuLogCallback)(uint32_t level, const char *component, const char *message, void *user);

/* Replaces standard error as the target; null goes back to it. Returns when no thread is inside the old callback. */
DGPU_API dgpuStatus_t dgpuLogSetCallback(dgpuLogCallback callback, void *user);
/* Messages above `level` are dropped. Start value: setting DGPU_LOG_LEVEL (default warn). */
DGPU_API dgpuStatus_t dgpuLogSetLevel(uint32_t level);

/* ---- Settings ---------------------------------------------------------------------------------------------------
 * Every DGPU_* knob is one row of one table: environment variable, default, help. */

typedef struct dgpuConfigInfo {
  size_t struct_size;
  const char *name;    /* "DGPU_CPU_DEVICES"; static storage, as the next three */
  const char *def;     /* default, as text */
  const char *help;    /* one sentence with the unit and the accepted values */
  const char *type;    /* "integer", "bytes", "bool", "path", "paths", "text" or "a|b|c" */
  uint32_t source;     /* DGPU_CONFIG_SOURCE_* */
  uint32_t reserved;
} dgpuConfigInfo;
#define DGPU_CONFIG_INFO_INIT {sizeof(dgpuConfigInfo), 0, 0, 0, 0, 0, 0}
enum { DGPU_CONFIG_SOURCE_DEFAULT = 0, DGPU_CONFIG_SOURCE_ENVIRONMENT = 1, DGPU_CONFIG_SOURCE_CALL = 2 };

/* Number of settings. */
DGPU_API dgpuStatus_t dgpuConfigCount(uint32_t *out_count);
/* Row `index` of the table, 0 to count - 1, in alphabetical order. */
DGPU_API dgpuStatus_t dgpuConfigGetInfo(uint32_t index, dgpuConfigInfo *out_info);
/* The effective value as text, by the two-call rule. Works before dgpuInit. */
DGPU_API dgpuStatus_t dgpuConfigGet(const char *name, char *buffer, size_t size, size_t *out_needed);
/* Sets a value before dgpuInit; afterwards DGPU_STATUS_INVALID_STATE. Beats the environment; null undoes. A value
 * that does not parse or is out of range is DGPU_STATUS_INVALID_ARGUMENT and names the accepted form; dgpuInit says
 * the same of the environment's values. */
DGPU_API dgpuStatus_t dgpuConfigSet(const char *name, const char *value);

/* ---- Element types ---------------------------------------------------------------------------------------------- */

/* "bf16"; "none" for 0 and for unknown values. Static storage. */
DGPU_API const char *dgpuDtypeName(dgpuDtype_t dtype);
/* Bits per element, 0 for unknown values. */
DGPU_API uint32_t dgpuDtypeBits(dgpuDtype_t dtype);
/* The type with that name, DGPU_DTYPE_NONE and DGPU_STATUS_NOT_FOUND if there is none. */
DGPU_API dgpuStatus_t dgpuDtypeFromName(const char *name, dgpuDtype_t *out_dtype);
/* Fills rank, shape and row-major strides; symbols become 0. */
DGPU_API dgpuStatus_t dgpuTensorDescPack(dgpuTensorDesc *desc, dgpuDtype_t dtype, uint32_t rank, const int64_t *shape);

DGPU_EXTERN_C_END
#endif /* DGPU_BASE_H */
