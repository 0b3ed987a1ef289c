/* Day-0: what is done with a model on the day it is released. SPDX-License-Identifier: Apache-2.0
 *
 * Each call answers with a report: a versioned JSON document ("schema": "dgpu.day0.NAME/1") and a verdict. All block. */
#ifndef DGPU_DAY0_H
#define DGPU_DAY0_H

#include "dgpu/base.h"
#include "dgpu/model.h"

DGPU_EXTERN_C_BEGIN

/* The JSON text, NUL-terminated; lives as long as the report. */
DGPU_API dgpuStatus_t dgpuReportGetJson(dgpuReport_t report, const char **out_json);
/* 1: good, 0: negative; the document says why under "findings". */
DGPU_API dgpuStatus_t dgpuReportGetVerdict(dgpuReport_t report, uint32_t *out_good);
DGPU_API dgpuStatus_t dgpuReportDestroy(dgpuReport_t report);

/* Parameters, bytes, operators, state bytes per kind. From config and headers; config.json alone is enough. */
DGPU_API dgpuStatus_t dgpuDay0Inspect(dgpuModel_t model, dgpuReport_t *out_report);
/* Missing, extra, wrong-shaped and wrong-typed tensors. */
DGPU_API dgpuStatus_t dgpuDay0Audit(dgpuModel_t model, dgpuReport_t *out_report);
/* Operator by operator, for `dtype`: native, composed, reference or missing on the device. Negative if any is missing. */
DGPU_API dgpuStatus_t dgpuDay0Coverage(dgpuModel_t model, dgpuDevice_t device, dgpuDtype_t dtype,
                                       dgpuReport_t *out_report);

typedef struct dgpuSynthOptions {
  size_t struct_size;
  uint64_t seed;
  dgpuProgressCallback progress; /* may be null */
  void *user;
} dgpuSynthOptions;
#define DGPU_SYNTH_OPTIONS_INIT {sizeof(dgpuSynthOptions), 0, 0, 0}
/* Writes a random checkpoint with the model's config, names, shapes and types into the new directory `out_directory`;
 * the same seed gives the same bytes. Activations stay of order one through any number of layers. */
DGPU_API dgpuStatus_t dgpuDay0Synth(dgpuModel_t model, const char *out_directory, const dgpuSynthOptions *options,
                                    dgpuReport_t *out_report);

/* Runs the tokens through the f64 reference of every operator on the host, writes embedding, per-layer outputs and
 * logits as f32 safetensors. Slow; needs about twice the checkpoint's largest layer in host memory. */
DGPU_API dgpuStatus_t dgpuDay0Baseline(dgpuModel_t model, const int32_t *tokens, uint32_t count, const char *out_file,
                                       const dgpuSynthOptions *progress, dgpuReport_t *out_report);

/* Runs the baseline's input_ids on a loaded model and compares each tensor of the baseline with the tap of that name:
 * relative L2, max abs, cosine, per-token verdict; argmax agreement of logits. `context`, `device` and `dtype` must be
 * those of dgpuModelLoad (INVALID_DTYPE for another type). With bf16 and f16 every token goes to the experts that an
 * f32 run of ours chose, and each router says what it would have chosen: such flips are counted and judged by the f32
 * margin of the scores. The first tensor out of tolerance in execution order is named. */
DGPU_API dgpuStatus_t dgpuDay0Compare(dgpuModel_t model, dgpuContext_t context, dgpuDevice_t device, dgpuDtype_t dtype,
                                      const char *baseline_file, dgpuReport_t *out_report);

DGPU_EXTERN_C_END
#endif /* DGPU_DAY0_H */
