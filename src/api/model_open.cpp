#include "api/entry.h"
#include "dgpu/day0.h"
#include "dgpu/model.h"
#include "model/open_model.h"

using namespace dgpu;
using dgpu::model::Model;
using dgpu::model::OpenModel;

dgpuStatus_t dgpuModelOpen(const char* directory, const dgpuModelOptions* options, dgpuModel_t* out_model) {
  return library_entry("dgpuModelOpen", [&]() -> Status {
    DGPU_TRY(clear_output(out_model, "out_model"));
    DGPU_TRY(need(directory, "directory"));
    dgpuModelOptions o = DGPU_MODEL_OPTIONS_INIT;
    DGPU_TRY(read_optional(options, "dgpuModelOptions", o));
    if (!*directory) return fail(DGPU_STATUS_INVALID_ARGUMENT, "directory", "directory is empty");
    if (o.flags & ~uint32_t{DGPU_MODEL_CONFIG_ONLY} || o.reserved) {
      return fail(DGPU_STATUS_INVALID_ARGUMENT, o.reserved ? "reserved" : "flags",
                  "flags is {:#x}, only DGPU_MODEL_CONFIG_ONLY is known; reserved must be 0", o.flags);
    }
    std::shared_ptr<const Model> model;
    DGPU_TRY(Model::open(directory, o.template_path ? o.template_path : "", o.flags & DGPU_MODEL_CONFIG_ONLY, model));
    return handle_publish(make_ref<OpenModel>(std::move(model)), out_model);
  });
}

dgpuStatus_t dgpuModelDestroy(dgpuModel_t model) {
  return entry("dgpuModelDestroy", [&] { return retire<OpenModel>(model, "model"); });
}

dgpuStatus_t dgpuModelGetInfo(dgpuModel_t model, dgpuModelInfo* out_info) {
  return entry("dgpuModelGetInfo", [&]() -> Status {
    DGPU_TRY(need(out_info, "out_info"));
    zero_struct(out_info);
    DGPU_PIN(OpenModel, m, model);
    const auto& p = m->program();
    dgpuModelInfo info = DGPU_MODEL_INFO_INIT;
    copy_text(info.family, p.family);
    info.parameters = m->model().parameters();
    info.weight_bytes = m->model().weight_bytes();
    info.vocab_size = static_cast<uint64_t>(p.vocab);
    info.hidden_size = static_cast<uint64_t>(p.hidden);
    info.max_positions = static_cast<uint64_t>(p.max_positions);
    info.layers = static_cast<uint32_t>(p.layers);
    info.loaded = m->placement() ? 1 : 0;
    return write_struct(out_info, "dgpuModelInfo", info);
  });
}
