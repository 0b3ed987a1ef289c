#include "dgpu/day0.h"

#include "api/entry.h"
#include "backend/registry.h"
#include "base/dtype.h"
#include "memory/memory.h"
#include "model/day0/compare.h"
#include "model/day0/documents.h"
#include "model/day0/overview.h"
#include "model/day0/report.h"
#include "model/open_model.h"
#include "runtime/context.h"

using namespace dgpu;
using dgpu::model::Document;
using dgpu::model::OpenModel;
using dgpu::model::Report;

namespace {

Status publish(const Document& document, dgpuReport_t* out) { return handle_publish(make_ref<Report>(document), out); }

model::Progress progress_of(dgpuProgressCallback callback, void* user) {
  if (!callback) return nullptr;
  return [=](uint64_t done, uint64_t total, const std::string& what) {
    return callback(done, total, what.c_str(), user) == 0;
  };
}

Status checkpoint_of(const OpenModel& m, const model::Checkpoint*& out) {
  out = &m.model().checkpoint();
  if (m.model().has_checkpoint()) return DGPU_STATUS_SUCCESS;
  return fail(DGPU_STATUS_NOT_FOUND, "model", "{}: no weights; the model was opened from its config alone",
              m.model().directory());
}

Status read_tokens(const int32_t* tokens, uint32_t count, std::vector<int32_t>& out) {
  if (!tokens || !count) return fail(DGPU_STATUS_INVALID_ARGUMENT, "tokens", "at least one token is needed");
  out.assign(tokens, tokens + count);
  return DGPU_STATUS_SUCCESS;
}

}  // namespace

dgpuStatus_t dgpuReportGetJson(dgpuReport_t report, const char** out_json) {
  return entry("dgpuReportGetJson", [&]() -> Status {
    DGPU_TRY(clear_output(out_json, "out_json"));
    DGPU_PIN(Report, r, report);
    *out_json = r->json().c_str();
    return DGPU_STATUS_SUCCESS;
  });
}

dgpuStatus_t dgpuReportGetVerdict(dgpuReport_t report, uint32_t* out_good) {
  return entry("dgpuReportGetVerdict", [&]() -> Status {
    DGPU_TRY(clear_output(out_good, "out_good"));
    DGPU_PIN(Report, r, report);
    *out_good = r->good() ? 1 : 0;
    return DGPU_STATUS_SUCCESS;
  });
}

dgpuStatus_t dgpuReportDestroy(dgpuReport_t report) {
  return entry("dgpuReportDestroy", [&] { return retire<Report>(report, "report"); });
}

dgpuStatus_t dgpuDay0Audit(dgpuModel_t model, dgpuReport_t* out_report) {
  return entry("dgpuDay0Audit", [&]() -> Status {
    DGPU_TRY(clear_output(out_report, "out_report"));
    DGPU_PIN(OpenModel, m, model);
    const dgpu::model::Checkpoint* checkpoint = nullptr;
    DGPU_TRY(checkpoint_of(*m, checkpoint));
    Document document;
    DGPU_TRY(dgpu::model::audit(m->program(), *checkpoint, document));
    return publish(document, out_report);
  });
}

dgpuStatus_t dgpuDay0Synth(dgpuModel_t model, const char* out_directory, const dgpuSynthOptions* options,
                           dgpuReport_t* out_report) {
  return entry("dgpuDay0Synth", [&]() -> Status {
    DGPU_TRY(clear_output(out_report, "out_report"));
    DGPU_TRY(need(out_directory, "out_directory"));
    dgpuSynthOptions o = DGPU_SYNTH_OPTIONS_INIT;
    DGPU_TRY(read_optional(options, "dgpuSynthOptions", o));
    DGPU_TRY(may_block("dgpuDay0Synth"));
    DGPU_PIN(OpenModel, m, model);
    Document document;
    DGPU_TRY(dgpu::model::synthesize(m->program(), m->model().directory() + "/config.json", out_directory, o.seed,
                                     progress_of(o.progress, o.user), document));
    return publish(document, out_report);
  });
}

dgpuStatus_t dgpuDay0Baseline(dgpuModel_t model, const int32_t* tokens, uint32_t count, const char* out_file,
                              const dgpuSynthOptions* options, dgpuReport_t* out_report) {
  return entry("dgpuDay0Baseline", [&]() -> Status {
    DGPU_TRY(clear_output(out_report, "out_report"));
    DGPU_TRY(need(out_file, "out_file"));
    dgpuSynthOptions o = DGPU_SYNTH_OPTIONS_INIT;
    DGPU_TRY(read_optional(options, "dgpuSynthOptions", o));
    std::vector<int32_t> ids;
    DGPU_TRY(read_tokens(tokens, count, ids));
    DGPU_TRY(may_block("dgpuDay0Baseline"));
    DGPU_PIN(OpenModel, m, model);
    const dgpu::model::Checkpoint* checkpoint = nullptr;
    DGPU_TRY(checkpoint_of(*m, checkpoint));
    Document document;
    DGPU_TRY(
        dgpu::model::baseline(m->program(), *checkpoint, ids, out_file, progress_of(o.progress, o.user), document));
    return publish(document, out_report);
  });
}

dgpuStatus_t dgpuDay0Compare(dgpuModel_t model, dgpuContext_t context, dgpuDevice_t device, dgpuDtype_t dtype,
                             const char* baseline_file, dgpuReport_t* out_report) {
  return entry("dgpuDay0Compare", [&]() -> Status {
    DGPU_TRY(clear_output(out_report, "out_report"));
    DGPU_TRY(need(baseline_file, "baseline_file"));
    DGPU_TRY(may_block("dgpuDay0Compare"));
    DGPU_PIN(OpenModel, m, model);
    DGPU_PIN(Context, c, context);
    DGPU_PIN(backend::Device, d, device);
    const auto placement = m->placement();
    if (!placement)
      return fail(DGPU_STATUS_INVALID_STATE, "model", "the model is not loaded; call dgpuModelLoad first");
    DGPU_TRY(same_context(c.get(), &placement->context(), "context"));
    if (dtype != DGPU_DTYPE_F32 && dtype != DGPU_DTYPE_BF16 && dtype != DGPU_DTYPE_F16)
      return fail(DGPU_STATUS_INVALID_DTYPE, "dtype", "dtype must be f32, bf16 or f16");
    if (dtype != placement->compute())
      return fail(DGPU_STATUS_INVALID_DTYPE, "dtype", "dtype is {}, the model was loaded for {}; load it for that type",
                  dtype_name(dtype), dtype_name(placement->compute()));
    if (d.get() != &c->device(placement->device()))
      return fail(DGPU_STATUS_INVALID_ARGUMENT, "device", "device is {}, the model was loaded to {}", d->label(),
                  c->device(placement->device()).label());
    Document document;
    DGPU_TRY(dgpu::model::compare(m.ref(), dtype, baseline_file, document));
    return publish(document, out_report);
  });
}

dgpuStatus_t dgpuDay0Inspect(dgpuModel_t model, dgpuReport_t* out_report) {
  return entry("dgpuDay0Inspect", [&]() -> Status {
    DGPU_TRY(clear_output(out_report, "out_report"));
    DGPU_PIN(OpenModel, m, model);
    Document document;
    DGPU_TRY(dgpu::model::inspect(m->model(), document));
    return publish(document, out_report);
  });
}

dgpuStatus_t dgpuDay0Coverage(dgpuModel_t model, dgpuDevice_t device, dgpuDtype_t dtype, dgpuReport_t* out_report) {
  return entry("dgpuDay0Coverage", [&]() -> Status {
    DGPU_TRY(clear_output(out_report, "out_report"));
    DGPU_TRY(may_block("dgpuDay0Coverage"));
    DGPU_PIN(OpenModel, m, model);
    DGPU_PIN(backend::Device, d, device);
    if (dtype != DGPU_DTYPE_F32 && dtype != DGPU_DTYPE_BF16 && dtype != DGPU_DTYPE_F16)
      return fail(DGPU_STATUS_INVALID_DTYPE, "dtype", "dtype must be f32, bf16 or f16");
    Ref<Context> context;
    DGPU_TRY(Context::create({d.ref()}, 0, context));
    DGPU_TRY(memory::attach(*context));
    Document document;
    DGPU_TRY(dgpu::model::coverage(m->model(), std::move(context), 0, dtype, document));
    return publish(document, out_report);
  });
}
