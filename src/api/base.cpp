// Library life time, errors, log, settings, element types.
#include "dgpu/base.h"

#include "api/entry.h"
#include "base/config.h"
#include "base/dtype.h"
#include "base/log.h"

using namespace dgpu;

extern "C" {

dgpuStatus_t dgpuGetVersion(uint32_t* out_major, uint32_t* out_minor, uint32_t* out_patch) {
  if (out_major) *out_major = DGPU_VERSION_MAJOR;
  if (out_minor) *out_minor = DGPU_VERSION_MINOR;
  if (out_patch) *out_patch = DGPU_VERSION_PATCH;
  return DGPU_STATUS_SUCCESS;
}

dgpuStatus_t dgpuInit(const dgpuInitOptions* options) {
  return entry("dgpuInit", [&]() -> Status {
    dgpuInitOptions known = DGPU_INIT_OPTIONS_INIT;
    DGPU_TRY(read_optional(options, "dgpuInitOptions", known));
    if (known.flags) return fail(DGPU_STATUS_UNSUPPORTED_FIELD, "flags", "flags is {:#x}, must be 0", known.flags);
    return library_init(known);
  });
}

dgpuStatus_t dgpuShutdown(void) {
  return entry("dgpuShutdown", [] { return library_shutdown(); });
}

const char* dgpuStatusName(dgpuStatus_t status) {
  switch (status) {
#define ROW(name, value, cls, text) \
  case value:                       \
    return "DGPU_STATUS_" #name;
    DGPU_STATUS_LIST(ROW)
#undef ROW
    default:
      return "DGPU_STATUS_UNKNOWN";
  }
}

const char* dgpuStatusText(dgpuStatus_t status) {
  switch (status) {
#define ROW(name, value, cls, text) \
  case value:                       \
    return text;
    DGPU_STATUS_LIST(ROW)
#undef ROW
    default:
      return "a status that this version of the library does not know";
  }
}

uint32_t dgpuStatusClass(dgpuStatus_t status) {
  // The ranges are reserved: codes of later versions fall into them.
  if (status >= 0) return DGPU_STATUS_CLASS_OUTCOME;
  if (status > -100) return DGPU_STATUS_CLASS_CALLER;
  if (status > -200) return DGPU_STATUS_CLASS_RESOURCE;
  if (status > -300) return DGPU_STATUS_CLASS_STREAM;
  if (status > -400) return DGPU_STATUS_CLASS_DEVICE;
  return DGPU_STATUS_CLASS_PROCESS;
}

dgpuStatus_t dgpuGetLastError(dgpuErrorInfo* out_info) {
  // Reports its own misuse by the return value alone: the record is what the caller came for.
  if (!out_info || out_info->struct_size < sizeof(size_t)) return DGPU_STATUS_INVALID_ARGUMENT;
  return write_struct(out_info, "dgpuErrorInfo", last_error());
}

dgpuStatus_t dgpuLogSetCallback(dgpuLogCallback callback, void* user) {
  return entry("dgpuLogSetCallback", [&] { return log_set_callback(callback, user); });
}

dgpuStatus_t dgpuLogSetLevel(uint32_t level) {
  return entry("dgpuLogSetLevel", [&] { return log_set_level(level, LogLevelSource::call); });
}

dgpuStatus_t dgpuConfigCount(uint32_t* out_count) {
  return entry("dgpuConfigCount", [&]() -> Status {
    DGPU_TRY(clear_output(out_count, "out_count"));
    *out_count = static_cast<uint32_t>(config_rows().size());
    return DGPU_STATUS_SUCCESS;
  });
}

dgpuStatus_t dgpuConfigGetInfo(uint32_t index, dgpuConfigInfo* out_info) {
  return entry("dgpuConfigGetInfo", [&]() -> Status {
    zero_struct(out_info);
    if (index >= config_rows().size()) {
      return fail(DGPU_STATUS_NOT_FOUND, "index", "index is {}, there are {} settings", index, config_rows().size());
    }
    const ConfigRow& row = config_rows()[index];
    dgpuConfigInfo info = DGPU_CONFIG_INFO_INIT;
    info.name = row.name;
    info.def = row.def;
    info.help = row.help;
    info.type = config_type_text(row);
    info.source = config_source(row);
    return write_struct(out_info, "dgpuConfigInfo", info);
  });
}

dgpuStatus_t dgpuConfigGet(const char* name, char* buffer, size_t size, size_t* out_needed) {
  return entry("dgpuConfigGet", [&]() -> Status {
    if (out_needed) *out_needed = 0;
    if (buffer && size) buffer[0] = 0;
    DGPU_TRY(need(name, "name"));
    if (!config_find(name)) {
      return fail(DGPU_STATUS_NOT_FOUND, "name", "there is no setting '{}'; dgpu-smi config lists them", name);
    }
    return write_text(config_text(name), buffer, size, out_needed);
  });
}

dgpuStatus_t dgpuConfigSet(const char* name, const char* value) {
  return entry("dgpuConfigSet", [&]() -> Status {
    DGPU_TRY(need(name, "name"));
    return config_set(name, value);
  });
}

const char* dgpuDtypeName(dgpuDtype_t dtype) { return dtype_name(dtype); }

uint32_t dgpuDtypeBits(dgpuDtype_t dtype) { return dtype_bits(dtype); }

dgpuStatus_t dgpuDtypeFromName(const char* name, dgpuDtype_t* out_dtype) {
  return entry("dgpuDtypeFromName", [&]() -> Status {
    DGPU_TRY(clear_output(out_dtype, "out_dtype"));
    DGPU_TRY(need(name, "name"));
    *out_dtype = dtype_from_name(name);
    if (*out_dtype == DGPU_DTYPE_NONE) {
      return fail(DGPU_STATUS_NOT_FOUND, "name", "there is no element type '{}'; f32, bf16, i64 and the like exist",
                  name);
    }
    return DGPU_STATUS_SUCCESS;
  });
}

dgpuStatus_t dgpuTensorDescPack(dgpuTensorDesc* desc, dgpuDtype_t dtype, uint32_t rank, const int64_t* shape) {
  return entry("dgpuTensorDescPack", [&]() -> Status {
    DGPU_TRY(need(desc, "desc"));
    zero_struct(desc);
    if (!dtype_known(dtype)) return fail(DGPU_STATUS_INVALID_DTYPE, "dtype", "dtype {} does not exist", dtype);
    if (rank > DGPU_MAX_RANK) {
      return fail(DGPU_STATUS_INVALID_SHAPE, "rank", "rank is {}, at most {} is supported", rank, DGPU_MAX_RANK);
    }
    if (rank) DGPU_TRY(need(shape, "shape"));
    dgpuTensorDesc packed = DGPU_TENSOR_DESC_INIT;
    packed.dtype = dtype;
    packed.rank = rank;
    int64_t stride = 1;
    for (uint32_t i = rank; i-- > 0;) {
      if (shape[i] < 0) {
        return fail(DGPU_STATUS_INVALID_SHAPE, "shape", "shape[{}] is {}, must not be negative", i, shape[i]);
      }
      packed.shape[i] = shape[i];
      packed.strides[i] = stride;
      // Strides of an empty tensor are those with 1 in place of 0.
      if (__builtin_mul_overflow(stride, shape[i] ? shape[i] : 1, &stride)) {
        return fail(DGPU_STATUS_INVALID_SHAPE, "shape", "the tensor has more than 2^63 elements");
      }
    }
    return write_struct(desc, "dgpuTensorDesc", packed);
  });
}

}  // extern "C"
