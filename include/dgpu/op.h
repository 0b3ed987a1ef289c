/* Operators: descriptor, plan, execute. docs/operators.md (installed beside the license) lists every operator with its
 * ports and attributes. SPDX-License-Identifier: Apache-2.0 */
#ifndef DGPU_OP_H
#define DGPU_OP_H

#include "dgpu/base.h"

DGPU_EXTERN_C_BEGIN

/* ---- Schemas: what operators exist ------------------------------------------------------------------------------ */

DGPU_API dgpuStatus_t dgpuOpCount(uint32_t *out_count);
/* Name of operator `index`, in alphabetical order; static storage. */
DGPU_API dgpuStatus_t dgpuOpGetName(uint32_t index, const char **out_name);
/* The schema as a JSON document, by the two-call rule: version, summary, attributes (name, type, required, default,
 * accepted values, help) and ports (name, direction, required, accepted types, help). */
DGPU_API dgpuStatus_t dgpuOpGetSchema(const char *name, char *buffer, size_t size, size_t *out_needed);

/* ---- Descriptors ------------------------------------------------------------------------------------------------
 * A name, typed attributes and named ports. Setting a name that the schema does not have, or a value of another type
 * or outside its set, is INVALID_ATTRIBUTE (an integer is accepted for a float); setting again replaces. What depends on
 * other attributes or ports is checked by dgpuOpPlanCreate. Calls on one descriptor serialise, so concurrent setting is
 * safe but pointless. */

DGPU_API dgpuStatus_t dgpuOpDescCreate(const char *name, dgpuOpDesc_t *out_op);
DGPU_API dgpuStatus_t dgpuOpDescDestroy(dgpuOpDesc_t op);
DGPU_API dgpuStatus_t dgpuOpDescSetInt(dgpuOpDesc_t op, const char *attribute, int64_t value);
DGPU_API dgpuStatus_t dgpuOpDescSetFloat(dgpuOpDesc_t op, const char *attribute, double value);
DGPU_API dgpuStatus_t dgpuOpDescSetBool(dgpuOpDesc_t op, const char *attribute, uint32_t value);
DGPU_API dgpuStatus_t dgpuOpDescSetString(dgpuOpDesc_t op, const char *attribute, const char *value);
DGPU_API dgpuStatus_t dgpuOpDescSetInts(dgpuOpDesc_t op, const char *attribute, const int64_t *values, uint32_t count);
DGPU_API dgpuStatus_t dgpuOpDescSetFloats(dgpuOpDesc_t op, const char *attribute, const double *values,
                                          uint32_t count);
/* Binds a tensor to a port. Repeated ports are numbered from 0: "k0", "k1". Outputs must be bound, too. */
DGPU_API dgpuStatus_t dgpuOpDescSetTensor(dgpuOpDesc_t op, const char *port, const dgpuTensorDesc *desc);
/* Shape and type that an output port must have, from the attributes and input ports set so far; row-major strides.
 * The error of a missing or wrong one names operator, attribute or port, and what is expected. */
DGPU_API dgpuStatus_t dgpuOpDescInfer(dgpuOpDesc_t op, const char *port, dgpuTensorDesc *out_desc);

/* ---- Plans ------------------------------------------------------------------------------------------------------
 * Immutable: concurrent executions need nothing but separate workspaces. */

enum {
  DGPU_PLAN_NATIVE = 1,   /* one kernel of the backend */
  DGPU_PLAN_COMPOSED = 2, /* several operators of the backend */
  DGPU_PLAN_REFERENCE = 3 /* the library's f64 reference on the host: slow */
};
typedef struct dgpuPlanInfo {
  size_t struct_size;
  uint32_t mode;            /* DGPU_PLAN_* */
  uint32_t port_count;      /* bound ports: the number of addresses to give */
  uint32_t symbol_count;    /* highest symbol id: the number of symbol values to give */
  uint32_t deterministic;   /* 1: the same inputs give the same bits, whatever the number of threads */
  uint64_t workspace_bytes; /* device memory to pass to each execution, 256-aligned; 0: none */
  char algorithm[64];
  char reason[256];         /* why it is not native; "" if it is */
} dgpuPlanInfo;
#define DGPU_PLAN_INFO_INIT {sizeof(dgpuPlanInfo), 0, 0, 0, 0, 0, {0}, {0}}

/* Validates the descriptor, infers, and chooses an algorithm for the stated shapes and maxima. May take milliseconds;
 * does not block on the device. The descriptor may be changed or destroyed afterwards. */
DGPU_API dgpuStatus_t dgpuOpPlanCreate(dgpuContext_t context, dgpuDevice_t device, dgpuOpDesc_t op,
                                       dgpuOpPlan_t *out_plan);
DGPU_API dgpuStatus_t dgpuOpPlanDestroy(dgpuOpPlan_t plan);
DGPU_API dgpuStatus_t dgpuOpPlanGetInfo(dgpuOpPlan_t plan, dgpuPlanInfo *out_info);
/* Name of bound port `index`: ports are numbered in the schema's order, unset ones left out. Lives with the plan. */
DGPU_API dgpuStatus_t dgpuOpPlanGetPort(dgpuOpPlan_t plan, uint32_t index, const char **out_name);

/* Submits one execution: addresses[i] belongs to bound port i, symbols[j] to symbol id j + 1 (0 to its maximum), both
 * counts must equal the plan's. Each tensor must lie in one live allocation, on the stream's device or in pinned host
 * memory where the device can reach it. Allocates nothing. Out-of-range data (indices, lengths) fails the command with
 * DATA_OUT_OF_RANGE or is masked, as the schema says; nothing is ever written out of bounds. */
DGPU_API dgpuStatus_t dgpuOpPlanExecute(dgpuOpPlan_t plan, dgpuStream_t stream, const dgpuAddr_t *addresses,
                                        uint32_t address_count, const int64_t *symbols, uint32_t symbol_count,
                                        dgpuAddr_t workspace);

/* Runs the f64 reference of the operator on host memory, on the calling thread, blocking. pointers[i] belongs to bound
 * port i in the schema's order and holds the described type (f64 is accepted for every floating port, which gives
 * outputs in full precision). The oracle for backend conformance. */
DGPU_API dgpuStatus_t dgpuOpReference(dgpuOpDesc_t op, void *const *pointers, uint32_t pointer_count,
                                      const int64_t *symbols, uint32_t symbol_count);

DGPU_EXTERN_C_END
#endif /* DGPU_OP_H */
