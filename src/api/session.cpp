#include "model/session.h"
#include "api/entry.h"
#include "backend/registry.h"
#include "dgpu/model.h"
#include "model/generate.h"
#include "model/open_model.h"

using namespace dgpu;
using dgpu::model::OpenModel;
using dgpu::model::Sequence;
using dgpu::model::Session;

namespace {

Status compute_type(dgpuDtype_t given, dgpuDtype_t& out) {
  out = given ? given : dgpuDtype_t{DGPU_DTYPE_F32};
  if (out == DGPU_DTYPE_F32 || out == DGPU_DTYPE_BF16 || out == DGPU_DTYPE_F16) return DGPU_STATUS_SUCCESS;
  return fail(DGPU_STATUS_INVALID_DTYPE, "dtype", "dtype must be f32, bf16 or f16");
}

// Pins for the length of a call; the vectors are as long as the caller's array.
Status pin_sequences(const dgpuSequence_t* handles, uint32_t count, std::vector<Pinned<Sequence>>& pins,
                     std::vector<Sequence*>& out) {
  if (count && !handles) return fail(DGPU_STATUS_INVALID_ARGUMENT, "sequences", "sequences is null");
  for (uint32_t i = 0; i < count; ++i) {
    Pinned<Sequence> p;
    if (const Status status = pin<Sequence>(handles[i], "sequences", p); status < 0) [[unlikely]] {
      return pin<Sequence>(handles[i], fmt::format("sequences[{}]", i).c_str(), p);
    }
    out.push_back(p.get());
    pins.push_back(std::move(p));
  }
  return DGPU_STATUS_SUCCESS;
}

}  // namespace

dgpuStatus_t dgpuModelLoad(dgpuModel_t model, dgpuContext_t context, dgpuDevice_t device,
                           const dgpuLoadOptions* options) {
  return entry("dgpuModelLoad", [&]() -> Status {
    dgpuLoadOptions o = DGPU_LOAD_OPTIONS_INIT;
    DGPU_TRY(read_optional(options, "dgpuLoadOptions", o));
    DGPU_TRY(may_block("dgpuModelLoad"));
    DGPU_PIN(OpenModel, m, model);
    DGPU_PIN(Context, c, context);
    DGPU_PIN(backend::Device, d, device);
    uint32_t index = 0;
    DGPU_TRY(c->device_index(*d, index));
    if (o.flags & ~static_cast<uint32_t>(DGPU_LOAD_MAPPED))
      return fail(DGPU_STATUS_INVALID_ARGUMENT, "flags", "flags is {:#x}; only DGPU_LOAD_MAPPED is known", o.flags);
    dgpu::model::PlacementOptions p;
    p.mapped = (o.flags & DGPU_LOAD_MAPPED) != 0;
    DGPU_TRY(compute_type(o.dtype, p.compute));
    if (o.max_host_bytes) p.max_host_bytes = o.max_host_bytes;
    if (o.progress)
      p.progress = [&](uint64_t done, uint64_t total, const char* what) {
        return o.progress(done, total, what, o.user) == 0;
      };
    return m->load(c.ref(), index, p);
  });
}

dgpuStatus_t dgpuSessionCreate(dgpuModel_t model, const dgpuSessionOptions* options, dgpuSession_t* out_session) {
  return entry("dgpuSessionCreate", [&]() -> Status {
    DGPU_TRY(clear_output(out_session, "out_session"));
    dgpuSessionOptions o = DGPU_SESSION_OPTIONS_INIT;
    DGPU_TRY(read_optional(options, "dgpuSessionOptions", o));
    DGPU_TRY(may_block("dgpuSessionCreate"));
    DGPU_PIN(OpenModel, m, model);
    dgpu::model::SessionLimits limits;
    limits.max_sequences = o.max_sequences;
    limits.max_tokens = o.max_tokens;
    limits.max_batch_tokens = o.max_batch_tokens;
    limits.max_logit_rows = o.max_logit_rows;
    if (o.taps) limits.taps = o.taps;
    Ref<Session> session;
    DGPU_TRY(Session::create(m.ref(), limits, session));
    auto* scope = session->scope();
    return handle_publish(std::move(session), out_session, scope);
  });
}

dgpuStatus_t dgpuSessionDestroy(dgpuSession_t session) {
  return entry("dgpuSessionDestroy", [&] { return retire<Session>(session, "session"); });
}

dgpuStatus_t dgpuSequenceCreate(dgpuSession_t session, dgpuSequence_t* out_sequence) {
  return entry("dgpuSequenceCreate", [&]() -> Status {
    DGPU_TRY(clear_output(out_sequence, "out_sequence"));
    DGPU_PIN(Session, s, session);
    Ref<Sequence> sequence;
    DGPU_TRY(Sequence::create(*s, sequence));
    return handle_publish(std::move(sequence), out_sequence, s->scope());
  });
}

dgpuStatus_t dgpuSequenceDestroy(dgpuSequence_t sequence) {
  return entry("dgpuSequenceDestroy", [&] { return retire<Sequence>(sequence, "sequence"); });
}

dgpuStatus_t dgpuSequenceGetLength(dgpuSequence_t sequence, uint64_t* out_length) {
  return entry("dgpuSequenceGetLength", [&]() -> Status {
    DGPU_TRY(clear_output(out_length, "out_length"));
    DGPU_PIN(Sequence, s, sequence);
    *out_length = s->length();
    return DGPU_STATUS_SUCCESS;
  });
}

dgpuStatus_t dgpuSequenceFork(dgpuSequence_t sequence, dgpuStream_t stream, dgpuSequence_t* out_sequence) {
  return entry("dgpuSequenceFork", [&]() -> Status {
    DGPU_TRY(clear_output(out_sequence, "out_sequence"));
    DGPU_PIN(Sequence, s, sequence);
    DGPU_PIN(Stream, q, stream);
    Ref<Sequence> made;
    DGPU_TRY(s->fork(*q, made));
    return handle_publish(std::move(made), out_sequence, s->session().scope());
  });
}

dgpuStatus_t dgpuSequenceTruncate(dgpuSequence_t sequence, uint64_t length) {
  return entry("dgpuSequenceTruncate", [&]() -> Status {
    DGPU_PIN(Sequence, s, sequence);
    return s->truncate(length);
  });
}

dgpuStatus_t dgpuSequenceSave(dgpuSequence_t sequence, dgpuStream_t stream, void* buffer, size_t size,
                              size_t* out_needed) {
  return entry("dgpuSequenceSave", [&]() -> Status {
    DGPU_TRY(clear_output(out_needed, "out_needed"));
    DGPU_TRY(may_block("dgpuSequenceSave"));
    DGPU_PIN(Sequence, s, sequence);
    DGPU_PIN(Stream, q, stream);
    return s->save(*q, buffer, size, out_needed);
  });
}

dgpuStatus_t dgpuSequenceRestore(dgpuSequence_t sequence, dgpuStream_t stream, const void* buffer, size_t size) {
  return entry("dgpuSequenceRestore", [&]() -> Status {
    DGPU_TRY(need(buffer, "buffer"));
    DGPU_TRY(may_block("dgpuSequenceRestore"));
    DGPU_PIN(Sequence, s, sequence);
    DGPU_PIN(Stream, q, stream);
    return s->restore(*q, buffer, size);
  });
}

dgpuStatus_t dgpuSequenceDescribe(dgpuSequence_t sequence, char* buffer, size_t size, size_t* out_needed) {
  return entry("dgpuSequenceDescribe", [&]() -> Status {
    DGPU_TRY(clear_output(out_needed, "out_needed"));
    DGPU_PIN(Sequence, s, sequence);
    return write_text(s->describe(), buffer, size, out_needed);
  });
}

dgpuStatus_t dgpuSessionStep(dgpuSession_t session, dgpuStream_t stream, const dgpuStep* step) {
  return entry("dgpuSessionStep", [&]() -> Status {
    dgpuStep in = DGPU_STEP_INIT;
    DGPU_TRY(need(step, "step"));
    DGPU_TRY(read_struct(step, "dgpuStep", in));
    if (in.reserved) return fail(DGPU_STATUS_INVALID_ARGUMENT, "reserved", "reserved must be 0");
    DGPU_PIN(Session, s, session);
    DGPU_PIN(Stream, q, stream);
    std::vector<Pinned<Sequence>> pins;
    Session::Step run;
    DGPU_TRY(pin_sequences(in.sequences, in.sequence_count, pins, run.sequences));
    run.tokens = in.tokens;
    run.token_count = in.token_count;
    run.offsets = in.offsets;
    run.logit_rows = in.logit_rows;
    run.logit_row_count = in.logit_row_count;
    run.statuses = in.statuses;
    return s->step(*q, run);
  });
}

dgpuStatus_t dgpuSessionGetLogits(dgpuSession_t session, dgpuTensorDesc* out_desc, dgpuAddr_t* out_address) {
  return entry("dgpuSessionGetLogits", [&]() -> Status {
    DGPU_TRY(clear_output(out_address, "out_address"));
    DGPU_TRY(need(out_desc, "out_desc"));
    zero_struct(out_desc);
    DGPU_PIN(Session, s, session);
    dgpuTensorDesc desc = DGPU_TENSOR_DESC_INIT;
    DGPU_TRY(s->logits(desc, *out_address));
    return write_struct(out_desc, "dgpuTensorDesc", desc);
  });
}

dgpuStatus_t dgpuSessionTapCount(dgpuSession_t session, uint32_t* out_count) {
  return entry("dgpuSessionTapCount", [&]() -> Status {
    DGPU_TRY(clear_output(out_count, "out_count"));
    DGPU_PIN(Session, s, session);
    *out_count = static_cast<uint32_t>(s->taps().size());
    return DGPU_STATUS_SUCCESS;
  });
}

dgpuStatus_t dgpuSessionGetTap(dgpuSession_t session, uint32_t index, const char** out_name, dgpuTensorDesc* out_desc,
                               dgpuAddr_t* out_address) {
  return entry("dgpuSessionGetTap", [&]() -> Status {
    DGPU_TRY(clear_output(out_name, "out_name"));
    DGPU_TRY(clear_output(out_address, "out_address"));
    DGPU_TRY(need(out_desc, "out_desc"));
    zero_struct(out_desc);
    DGPU_PIN(Session, s, session);
    dgpuTensorDesc desc = DGPU_TENSOR_DESC_INIT;
    dgpuAddr_t address = 0;
    DGPU_TRY(s->tap(index, desc, address));
    *out_name = s->taps()[index].name.c_str();
    *out_address = address;
    return write_struct(out_desc, "dgpuTensorDesc", desc);
  });
}

namespace {

Status check_generate(const dgpuGenerate& g) {
  const auto bad = [](const char* field, const char* text) {
    return fail(DGPU_STATUS_INVALID_ARGUMENT, field, "{}", text);
  };
  if (!g.sequence_count) return bad("sequence_count", "at least one sequence is needed");
  if (!g.prompt_offsets) return bad("prompt_offsets", "prompt_offsets is null");
  if (g.prompt_offsets[0] != 0) return bad("prompt_offsets", "prompt_offsets[0] must be 0");
  for (uint32_t i = 0; i < g.sequence_count; ++i)
    if (g.prompt_offsets[i + 1] <= g.prompt_offsets[i])
      return bad("prompt_offsets", "every prompt needs at least one token");
  if (!g.prompt_tokens) return bad("prompt_tokens", "prompt_tokens is null");
  if (!g.max_new_tokens) return bad("max_new_tokens", "max_new_tokens must be at least 1");
  if (!g.out_tokens) return bad("out_tokens", "out_tokens is null");
  if (!g.out_counts) return bad("out_counts", "out_counts is null");
  if (g.stop_count && !g.stop_ids) return bad("stop_ids", "stop_ids is null");
  return DGPU_STATUS_SUCCESS;
}

Status read_sampling(const dgpuGenerate& g, std::vector<dgpuSampling>& out) {
  for (uint32_t i = 0; i < g.sequence_count; ++i) {
    dgpuSampling s = DGPU_SAMPLING_INIT;
    if (g.sampling) DGPU_TRY(read_optional(g.sampling[i], "dgpuSampling", s));
    if (s.reserved) return fail(DGPU_STATUS_INVALID_ARGUMENT, "reserved", "sampling[{}]: reserved must be 0", i);
    if (!(s.temperature >= 0))
      return fail(DGPU_STATUS_INVALID_ARGUMENT, "temperature", "temperature is {}, must be at least 0", s.temperature);
    if (!(s.top_p >= 0 && s.top_p <= 1))
      return fail(DGPU_STATUS_INVALID_ARGUMENT, "top_p", "top_p is {}, must be from 0 to 1", s.top_p);
    out.push_back(s);
  }
  return DGPU_STATUS_SUCCESS;
}

// Before the first step: a prompt that is refused leaves its sequence as it was.
Status check_prompts(const dgpuGenerate& g, int64_t vocab) {
  for (uint32_t i = 0; i < g.sequence_count; ++i) {
    for (uint32_t k = g.prompt_offsets[i]; k < g.prompt_offsets[i + 1]; ++k) {
      const int32_t token = g.prompt_tokens[k];
      if (token >= 0 && token < vocab) continue;
      return fail(DGPU_STATUS_INVALID_ARGUMENT, "prompt_tokens", "token {} of prompt {} is {}, the vocabulary has {}",
                  k - g.prompt_offsets[i], i, token, vocab);
    }
  }
  return DGPU_STATUS_SUCCESS;
}

}  // namespace

dgpuStatus_t dgpuSessionGenerate(dgpuSession_t session, dgpuStream_t stream, dgpuGenerate* request) {
  return entry("dgpuSessionGenerate", [&]() -> Status {
    dgpuGenerate g = DGPU_GENERATE_INIT;
    DGPU_TRY(need(request, "request"));
    DGPU_TRY(read_struct(request, "dgpuGenerate", g));
    DGPU_TRY(check_generate(g));
    std::vector<dgpuSampling> sampling;
    DGPU_TRY(read_sampling(g, sampling));
    DGPU_TRY(may_block("dgpuSessionGenerate"));
    DGPU_PIN(Session, s, session);
    DGPU_PIN(Stream, q, stream);
    std::vector<Pinned<Sequence>> pins;
    std::vector<Sequence*> sequences;
    DGPU_TRY(pin_sequences(g.sequences, g.sequence_count, pins, sequences));
    for (size_t i = 0; i < sequences.size(); ++i) {
      if (&sequences[i]->session() != s.get())
        return fail(DGPU_STATUS_INVALID_ARGUMENT, "sequences", "sequence {} belongs to another session", i);
      const uint64_t total =
          sequences[i]->length() + (g.prompt_offsets[i + 1] - g.prompt_offsets[i]) + g.max_new_tokens - 1;
      if (total > s->limits().max_tokens)
        return fail(DGPU_STATUS_CAPACITY, "max_new_tokens", "sequence {} would hold {} tokens, its cache {}", i, total,
                    s->limits().max_tokens);
    }
    DGPU_TRY(check_prompts(g, s->program().vocab));
    DGPU_TRY(dgpu::model::generate(*s, *q, sequences, sampling, g));
    return write_struct(request, "dgpuGenerate", g);
  });
}
