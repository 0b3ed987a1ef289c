/* Models: open, load, session, sequence, ragged step, generate. SPDX-License-Identifier: Apache-2.0
 *
 * A model is a directory with config.json and safetensors files; its dataflow comes from an architecture template.
 * A session holds plans, limits and the cache pool; a sequence owns all its states and is opaque; one step runs a
 * ragged batch of sequences, prompts and single tokens mixed. */
#ifndef DGPU_MODEL_H
#define DGPU_MODEL_H

#include "dgpu/base.h"

DGPU_EXTERN_C_BEGIN

/* ---- Model ------------------------------------------------------------------------------------------------------ */

typedef struct dgpuModelOptions {
  size_t struct_size;
  const char *template_path; /* directories with templates, ':' between; before DGPU_TEMPLATE_PATH and built-in ones;
                                may be null */
  uint32_t flags;            /* DGPU_MODEL_* */
  uint32_t reserved;
} dgpuModelOptions;
#define DGPU_MODEL_OPTIONS_INIT {sizeof(dgpuModelOptions), 0, 0, 0}
enum {
  DGPU_MODEL_CONFIG_ONLY = 1 /* weights need not be there: for inspect, coverage and synth */
};

/* Reads config and weight headers, not the weights. Errors: NOT_FOUND (no config), PARSE_ERROR (which file, where),
 * UNSUPPORTED (no template for the architecture; the message lists the known ones), INVALID_ARGUMENT (a config key
 * that is unknown, out of range or contradictory; object names it). Weights are checked by dgpuModelLoad. */
DGPU_API dgpuStatus_t dgpuModelOpen(const char *directory, const dgpuModelOptions *options, dgpuModel_t *out_model);
/* Sessions keep the model alive. */
DGPU_API dgpuStatus_t dgpuModelDestroy(dgpuModel_t model);

typedef struct dgpuModelInfo {
  size_t struct_size;
  char family[64];         /* template that matched, "llama" */
  uint64_t parameters;     /* elements of all weights that the template names, tied ones once */
  uint64_t weight_bytes;   /* bytes of the checkpoint's tensors; 0 with CONFIG_ONLY */
  uint64_t vocab_size;
  uint64_t hidden_size;
  uint64_t max_positions;  /* that the config declares; longer sequences run where the family allows; 0: none */
  uint32_t layers;
  uint32_t loaded;         /* 1 after dgpuModelLoad */
} dgpuModelInfo;
#define DGPU_MODEL_INFO_INIT {sizeof(dgpuModelInfo), {0}, 0, 0, 0, 0, 0, 0, 0}
DGPU_API dgpuStatus_t dgpuModelGetInfo(dgpuModel_t model, dgpuModelInfo *out_info);

/* Bytes done and in total; returning non-zero cancels the load (CANCELLED). Called on the loading thread. */
typedef uint32_t (*dgpuProgressCallback)(uint64_t done, uint64_t total, const char *what, void *user);

typedef struct dgpuLoadOptions {
  size_t struct_size;
  dgpuDtype_t dtype;             /* compute type of activations: F32, BF16 or F16; 0: F32. Values that the template
                                    keeps in f32 stay f32 */
  uint32_t flags;                /* DGPU_LOAD_* */
  dgpuProgressCallback progress; /* may be null */
  void *user;
  uint64_t max_host_bytes;       /* cap on host memory used for staging; 0: 256 MiB. Mapped file pages do not count */
} dgpuLoadOptions;
#define DGPU_LOAD_OPTIONS_INIT {sizeof(dgpuLoadOptions), 0, 0, 0, 0, 0}
enum {
  /* Where the device computes on host memory (cpu), tensors that need no conversion are used in the mapped file instead
   * of being copied: loading fills no memory, processes share the pages, and device memory is not charged. The caller
   * promises that the files stay as they are while the model lives: a file that is overwritten changes the weights, and
   * one that is cut ends the process (SIGBUS). Without the flag a loaded model needs its files no more. */
  DGPU_LOAD_MAPPED = 1
};

/* Checks all tensors against the template, then brings the weights to the device. Blocks. Once per model
 * (INVALID_STATE). Fails as a whole: OUT_OF_MEMORY says how much is missing and nothing stays allocated. */
DGPU_API dgpuStatus_t dgpuModelLoad(dgpuModel_t model, dgpuContext_t context, dgpuDevice_t device,
                                    const dgpuLoadOptions *options);

/* ---- Session ---------------------------------------------------------------------------------------------------- */

typedef struct dgpuSessionOptions {
  size_t struct_size;
  uint32_t max_sequences;    /* live at once; 0: 8 */
  uint32_t max_tokens;       /* tokens per sequence; 0: the model's max_positions, at most 4096. Layers with a sliding
                                window keep the window and the largest step only, however long a sequence gets */
  uint32_t max_batch_tokens; /* tokens of one step, the largest; 0: 512 */
  uint32_t max_logit_rows;   /* rows of logits of one step; 0: max_sequences; max_batch_tokens at most */
  const char *taps;          /* names of intermediate values to keep, ',' between, "*" for all; may be null */
} dgpuSessionOptions;
#define DGPU_SESSION_OPTIONS_INIT {sizeof(dgpuSessionOptions), 0, 0, 0, 0, 0}

/* Plans every operator and allocates caches and workspace: steps plan and allocate nothing. INVALID_STATE before
 * dgpuModelLoad; UNSUPPORTED names operators that are missing; OUT_OF_MEMORY says how much. */
DGPU_API dgpuStatus_t dgpuSessionCreate(dgpuModel_t model, const dgpuSessionOptions *options,
                                        dgpuSession_t *out_session);
DGPU_API dgpuStatus_t dgpuSessionDestroy(dgpuSession_t session);

/* ---- Sequence --------------------------------------------------------------------------------------------------- */

/* A new, empty sequence; CAPACITY when max_sequences are live. */
DGPU_API dgpuStatus_t dgpuSequenceCreate(dgpuSession_t session, dgpuSequence_t *out_sequence);
DGPU_API dgpuStatus_t dgpuSequenceDestroy(dgpuSequence_t sequence);
/* Tokens that it holds, those of submitted steps included. */
DGPU_API dgpuStatus_t dgpuSequenceGetLength(dgpuSequence_t sequence, uint64_t *out_length);
/* A second sequence with the same states, copied in the order of `stream`. */
DGPU_API dgpuStatus_t dgpuSequenceFork(dgpuSequence_t sequence, dgpuStream_t stream, dgpuSequence_t *out_sequence);
/* Forgets tokens from `length` on. UNSUPPORTED where a state cannot rewind: some can only forget all; layers with a
 * sliding window can forget max_batch_tokens + 1 tokens, and more until they have overwritten something. The message
 * says how many. */
DGPU_API dgpuStatus_t dgpuSequenceTruncate(dgpuSequence_t sequence, uint64_t length);
/* All states as bytes, by the two-call rule; waits for submitted steps. Restore accepts them in an empty sequence of a
 * session of the same model and compute type (VERSION_MISMATCH, PARSE_ERROR otherwise) with enough max_tokens (CAPACITY);
 * other limits may differ. Both block. */
DGPU_API dgpuStatus_t dgpuSequenceSave(dgpuSequence_t sequence, dgpuStream_t stream, void *buffer, size_t size,
                                       size_t *out_needed);
DGPU_API dgpuStatus_t dgpuSequenceRestore(dgpuSequence_t sequence, dgpuStream_t stream, const void *buffer,
                                          size_t size);
/* States by kind and cap, as JSON by the two-call rule: count, fixed bytes, bytes per token, cap in tokens (null: those
 * of the session), and the bytes that are allocated for this sequence. */
DGPU_API dgpuStatus_t dgpuSequenceDescribe(dgpuSequence_t sequence, char *buffer, size_t size, size_t *out_needed);

/* ---- Step ------------------------------------------------------------------------------------------------------- */

/* Tokens offsets[b] to offsets[b+1]-1 extend sequences[b]. Arrays are read before the call returns. */
typedef struct dgpuStep {
  size_t struct_size;
  const int32_t *tokens;            /* [token_count] */
  const uint32_t *offsets;          /* [sequence_count + 1], offsets[0] = 0, non-decreasing */
  const dgpuSequence_t *sequences;  /* [sequence_count], each at most once */
  const uint32_t *logit_rows;       /* token indices whose logits are wanted, ascending; null: the last token of each
                                       sequence that has tokens */
  dgpuStatus_t *statuses;           /* [sequence_count], out, may be null: SUCCESS or why that one did not take part:
                                       CAPACITY (cache full), INVALID_ARGUMENT (token id out of range), INVALID_STATE (an
                                       earlier step of it failed) */
  uint32_t token_count;
  uint32_t sequence_count;
  uint32_t logit_row_count;         /* counts only with logit_rows */
  uint32_t reserved;
} dgpuStep;
#define DGPU_STEP_INIT {sizeof(dgpuStep), 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* Submits one step; waits for room only while four steps are under way or the stream's queue is full. Steps of one
 * session run in submission order; the session's outputs (logits, taps) belong to the last one and are overwritten by
 * the next. If some sequences cannot take part the others proceed and the call returns SUCCESS with the reasons in
 * `statuses`; if `statuses` is null the call fails instead and nothing runs. Rows of left-out sequences are left out of
 * the logits. CAPACITY if the whole exceeds the session's limits.
 * Lengths count the tokens at once. A step that fails after the call, with its stream, leaves tokens in its sequences whose states were never computed:
 * steps, fork and save refuse such a sequence with INVALID_STATE until dgpuSequenceTruncate takes it back to what it
 * held before (the message says how many tokens; 0 always works), and logits and taps answer the failure. Sequences
 * that took no part go on, on the stream after dgpuStreamReset or on another one. */
DGPU_API dgpuStatus_t dgpuSessionStep(dgpuSession_t session, dgpuStream_t stream, const dgpuStep *step);
/* Logits of the last step: f32 [rows, vocab] on the device, valid until the next step. */
DGPU_API dgpuStatus_t dgpuSessionGetLogits(dgpuSession_t session, dgpuTensorDesc *out_desc, dgpuAddr_t *out_address);
DGPU_API dgpuStatus_t dgpuSessionTapCount(dgpuSession_t session, uint32_t *out_count);
/* Tap `index` in execution order. The name lives with the session. Shape: [tokens of the last step, ...]. */
DGPU_API dgpuStatus_t dgpuSessionGetTap(dgpuSession_t session, uint32_t index, const char **out_name,
                                        dgpuTensorDesc *out_desc, dgpuAddr_t *out_address);

/* ---- Generate --------------------------------------------------------------------------------------------------- */

typedef struct dgpuSampling {
  size_t struct_size;
  double temperature; /* 0: greedy, ties to the lowest id */
  double top_p;       /* 0 or 1: off */
  uint64_t seed;      /* the same seed gives the same tokens, whatever else is in the batch */
  uint32_t top_k;     /* 0, or the vocabulary and more: off */
  uint32_t reserved;
} dgpuSampling;
#define DGPU_SAMPLING_INIT {sizeof(dgpuSampling), 0, 0, 0, 0, 0}

/* Return non-zero to stop this sequence. Called on the calling thread after each token. */
typedef uint32_t (*dgpuTokenCallback)(uint32_t sequence_index, int32_t token, void *user);

typedef struct dgpuGenerate {
  size_t struct_size;
  const dgpuSequence_t *sequences;     /* [sequence_count]; prompts are appended to what they hold */
  const int32_t *prompt_tokens;        /* all prompts, one after the other */
  const uint32_t *prompt_offsets;      /* [sequence_count + 1] */
  const dgpuSampling *const *sampling; /* [sequence_count] or null: greedy */
  const int32_t *stop_ids;             /* a sequence ends after emitting one of these */
  int32_t *out_tokens;                 /* [sequence_count * max_new_tokens], row per sequence */
  uint32_t *out_counts;                /* [sequence_count] */
  dgpuTokenCallback callback;          /* may be null */
  void *user;
  uint64_t out_first_token_ns;         /* out: from the call to the first token of the batch */
  uint32_t sequence_count;
  uint32_t stop_count;
  uint32_t max_new_tokens;
  uint32_t chunk_tokens;               /* prompt tokens per step; 0: as many as the session takes */
} dgpuGenerate;
#define DGPU_GENERATE_INIT {sizeof(dgpuGenerate), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* Prompt and new tokens of several sequences in ragged batches, until max_new_tokens or a stop id. Blocks. The last
 * token of each sequence is not fed back: the sequence holds prompt + count - 1 tokens. */
DGPU_API dgpuStatus_t dgpuSessionGenerate(dgpuSession_t session, dgpuStream_t stream, dgpuGenerate *request);

DGPU_EXTERN_C_END
#endif /* DGPU_MODEL_H */
