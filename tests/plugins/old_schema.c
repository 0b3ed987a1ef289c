/* Knows rms_norm as it was before `residual`, `sum` and cast=after_weight: it claims x, weight and out in f32, and
 * cast=before_weight only; and attention as it was before `ring`, which it looks at and then leaves to others. What
 * lies outside must never be offered: it aborts then, because a real old plugin would silently compute something else.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "null_base.h"

struct dgpuBackendPlan_s {
  const dgpuBackendServices* services;
  double eps;
  double offset;
  int64_t shape[DGPU_MAX_RANK];
  uint32_t symbols[DGPU_MAX_RANK];
  int64_t x_strides[DGPU_MAX_RANK];
  int64_t out_strides[DGPU_MAX_RANK];
  uint32_t rank;
  int x, weight, out; /* positions among the bound ports, -1: not bound */
  int64_t weight_stride;
};

static const char* const attributes[] = {"eps", "weight_offset", "cast=before_weight", NULL};
static const char* const ports[] = {"x=f32", "weight=f32", "out=f32", NULL};
static const dgpuBackendClaim rms_norm_claim = {
    sizeof(dgpuBackendClaim), "rms_norm", 1, 0, attributes, ports,
};

static const char* const attention_attributes[] = {"scale", "causal", "window", NULL};
static const char* const attention_ports[] = {"q=f32",       "k*=f32",        "v*=f32",  "table*=i32", "lengths*=i32",
                                              "offsets=i32", "positions=i32", "out=f32", NULL};
static const dgpuBackendClaim attention_claim = {
    sizeof(dgpuBackendClaim), "attention", 1, 0, attention_attributes, attention_ports,
};

static const dgpuBackendClaim* claim(void* backend, uint32_t index) {
  return index == 0 ? &rms_norm_claim : index == 1 ? &attention_claim : NULL;
}

static void offered_too_much(const char* what, const char* name) {
  fprintf(stderr, "old_schema was offered the %s %s, which it does not know\n", what, name);
  abort();
}

static dgpuStatus_t look_at_attention(const dgpuBackendOp* op, dgpuBackendPlanInfo* info) {
  /* Attributes that it does not know come at their defaults: an empty list for a ring. */
  for (uint32_t i = 0; i < op->attr_count; ++i)
    if (strcmp(op->attrs[i]->name, "ring") == 0 && op->attrs[i]->count) offered_too_much("attribute", "ring");
  strcpy(info->reason, "old_schema was offered this attention");
  return DGPU_STATUS_UNSUPPORTED;
}

static dgpuStatus_t plan(dgpuBackendDevice* device, const dgpuBackendOp* op, dgpuBackendPlanInfo* info,
                         dgpuBackendPlan** out_plan) {
  if (strcmp(op->name, "attention") == 0) return look_at_attention(op, info);
  dgpuBackendPlan* made = calloc(1, sizeof(*made));
  if (!made) return DGPU_STATUS_OUT_OF_HOST_MEMORY;
  if (strcmp(op->name, "rms_norm") != 0) offered_too_much("operator", op->name);
  made->services = device->backend->services;
  made->x = made->weight = made->out = -1;
  for (uint32_t i = 0; i < op->attr_count; ++i) {
    const dgpuBackendAttr* attr = op->attrs[i];
    if (strcmp(attr->name, "eps") == 0) {
      made->eps = attr->floats[0];
    } else if (strcmp(attr->name, "weight_offset") == 0) {
      made->offset = attr->floats[0];
    } else if (strcmp(attr->name, "cast") == 0) {
      if (strcmp(attr->string, "before_weight") != 0) offered_too_much("cast", attr->string);
    } else {
      offered_too_much("attribute", attr->name);
    }
  }
  for (uint32_t i = 0; i < op->port_count; ++i) {
    const dgpuBackendPort* port = op->ports[i];
    if (port->desc->dtype != DGPU_DTYPE_F32) offered_too_much("element type of", port->name);
    if (strcmp(port->name, "x") == 0) {
      made->x = (int)i;
      made->rank = port->desc->rank;
      memcpy(made->shape, port->desc->shape, sizeof(made->shape));
      memcpy(made->symbols, port->desc->symbols, sizeof(made->symbols));
      memcpy(made->x_strides, port->desc->strides, sizeof(made->x_strides));
    } else if (strcmp(port->name, "weight") == 0) {
      made->weight = (int)i;
      made->weight_stride = port->desc->strides[0];
    } else if (strcmp(port->name, "out") == 0) {
      made->out = (int)i;
      memcpy(made->out_strides, port->desc->strides, sizeof(made->out_strides));
    } else {
      offered_too_much("port", port->name);
    }
  }
  strcpy(info->algorithm, "old_schema");
  info->deterministic = 1;
  *out_plan = made;
  return DGPU_STATUS_SUCCESS;
}

static void plan_destroy(dgpuBackendPlan* p) { free(p); }

static void normalise_row(const dgpuBackendPlan* p, const float* x, const float* weight, float* out, int64_t width) {
  const uint32_t last = p->rank - 1;
  double square = 0;
  for (int64_t j = 0; j < width; ++j) {
    const double v = x[j * p->x_strides[last]];
    square += v * v;
  }
  const double inverse = 1 / sqrt(square / (double)width + p->eps);
  for (int64_t j = 0; j < width; ++j) {
    const float y = (float)(x[j * p->x_strides[last]] * inverse);
    out[j * p->out_strides[last]] = weight ? (float)(y * (weight[j * p->weight_stride] + p->offset)) : y;
  }
}

static void run_op(const dgpuCommandOp* op) {
  const dgpuBackendPlan* p = op->plan;
  const float* x = (const float*)(uintptr_t)op->ports[p->x].native;
  const float* weight = p->weight < 0 ? NULL : (const float*)(uintptr_t)op->ports[p->weight].native;
  float* out = (float*)(uintptr_t)op->ports[p->out].native;
  int64_t extent[DGPU_MAX_RANK], at[DGPU_MAX_RANK] = {0};
  int64_t rows = 1;
  for (uint32_t d = 0; d < p->rank; ++d) {
    extent[d] = p->symbols[d] ? op->symbols[p->symbols[d] - 1] : p->shape[d];
    if (d + 1 < p->rank) rows *= extent[d];
  }
  for (int64_t row = 0; row < rows; ++row) {
    int64_t x_at = 0, out_at = 0;
    for (uint32_t d = 0; d + 1 < p->rank; ++d) {
      x_at += at[d] * p->x_strides[d];
      out_at += at[d] * p->out_strides[d];
    }
    normalise_row(p, x + x_at, weight, out + out_at, extent[p->rank - 1]);
    for (uint32_t d = p->rank - 1; d-- > 0;) {
      if (++at[d] < extent[d]) break;
      at[d] = 0;
    }
  }
}

static dgpuStatus_t submit(dgpuBackendQueue* queue, dgpuBackendCommand* const* commands, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    if (commands[i]->kind != DGPU_COMMAND_OP || queue->failed) {
      const dgpuStatus_t status = queue_submit(queue, &commands[i], 1);
      if (status != DGPU_STATUS_SUCCESS) return status;
      continue;
    }
    const uint64_t value = commands[i]->value;
    if (commands[i]->flags & DGPU_COMMAND_TIMED) commands[i]->begin_ns = clock_ns();
    run_op(commands[i]->payload);
    if (commands[i]->flags & DGPU_COMMAND_TIMED) commands[i]->end_ns = clock_ns();
    queue->backend->services->advance(queue->backend->services->core, queue->core, value, DGPU_STATUS_SUCCESS, NULL, 0);
  }
  return DGPU_STATUS_SUCCESS;
}

dgpuStatus_t dgpuBackendQuery(uint32_t core_major, uint32_t core_minor, const dgpuBackendTable** out_table) {
  static dgpuBackendTable mine;
  static dgpuBackendQueueGroup queue;
  static const dgpuBackendOpGroup op = {sizeof(op), claim, plan, plan_destroy};
  queue = queue_group;
  queue.submit = submit;
  mine = table;
  mine.name = "old_schema";
  mine.queue = &queue;
  mine.op = &op;
  *out_table = &mine;
  return core_major == DGPU_BACKEND_ABI_MAJOR ? DGPU_STATUS_SUCCESS : DGPU_STATUS_VERSION_MISMATCH;
}
