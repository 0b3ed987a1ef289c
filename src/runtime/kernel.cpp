#include "runtime/kernel.h"

#include <cstring>

#include "runtime/runtime.h"
#include "runtime/submission.h"

namespace dgpu {

namespace {
struct ParamName {
  std::string_view name;
  uint32_t code;
};
constexpr ParamName kParams[] = {
    {"i32", DGPU_ARG_I32}, {"u32", DGPU_ARG_U32}, {"i64", DGPU_ARG_I64},     {"u64", DGPU_ARG_U64},
    {"f32", DGPU_ARG_F32}, {"f64", DGPU_ARG_F64}, {"ptr", DGPU_ARG_PTR},     {"gx", DGPU_PARAM_GX},
    {"gy", DGPU_PARAM_GY}, {"gz", DGPU_PARAM_GZ}, {"user", DGPU_PARAM_USER},
};

std::string_view trim(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

uint32_t param_code(std::string_view name) {
  for (const ParamName& row : kParams) {
    if (row.name == name) return row.code;
  }
  return 0;
}
}  // namespace

const char* argument_type_name(uint32_t type) {
  for (const ParamName& row : kParams) {
    if (row.code == type) return row.name.data();
  }
  return "none";
}

Status parse_signature(std::string_view signature, std::vector<uint32_t>& params) {
  params.clear();
  std::string_view rest = trim(signature);
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string_view word = trim(rest.substr(0, comma));
    const uint32_t code = param_code(word);
    if (!code) {
      return fail(DGPU_STATUS_INVALID_ARGUMENT, "signature",
                  "parameter {} of the signature is '{}'; known are user gx gy gz i32 u32 i64 u64 f32 f64 ptr",
                  params.size(), word);
    }
    if (code == DGPU_PARAM_USER && !params.empty()) {
      return fail(DGPU_STATUS_INVALID_ARGUMENT, "signature", "'user' can only be the first parameter");
    }
    if (params.size() == Kernel::kMaxParams) {
      return fail(DGPU_STATUS_INVALID_ARGUMENT, "signature", "the signature has more than {} parameters",
                  Kernel::kMaxParams);
    }
    params.push_back(code);
    if (comma == std::string_view::npos) return DGPU_STATUS_SUCCESS;
    rest = rest.substr(comma + 1);
    if (trim(rest).empty()) {
      return fail(DGPU_STATUS_INVALID_ARGUMENT, "signature", "the signature ends with a comma");
    }
  }
  return DGPU_STATUS_SUCCESS;
}

Kernel::Kernel(Ref<Context> context, std::string_view name, std::string_view signature, uint32_t flags)
    : Object(kKind), context_(std::move(context)), name_(name), signature_(signature), flags_(flags) {}

Status Kernel::create(Ref<Context> context, std::string_view name, dgpuKernelFunction function,
                      std::string_view signature, void* user, uint32_t flags, Ref<Kernel>& out) {
  if (flags & ~uint32_t{DGPU_KERNEL_MAY_BLOCK | DGPU_KERNEL_STATUS}) {
    return fail(DGPU_STATUS_INVALID_ARGUMENT, "flags", "flags {:#x} has bits besides DGPU_KERNEL_*", flags);
  }
  if (name.empty() || name.size() >= sizeof(dgpuKernelInfo::name)) {
    return fail(DGPU_STATUS_INVALID_ARGUMENT, "name", "the name has {} bytes; 1 to {} are possible", name.size(),
                sizeof(dgpuKernelInfo::name) - 1);
  }
  if (signature.size() >= sizeof(dgpuKernelInfo::signature)) {
    return fail(DGPU_STATUS_INVALID_ARGUMENT, "signature", "the signature has {} bytes, at most {} are possible",
                signature.size(), sizeof(dgpuKernelInfo::signature) - 1);
  }
  std::vector<uint32_t> params;
  DGPU_TRY(parse_signature(signature, params));
  auto kernel = Ref<Kernel>::adopt(new Kernel(std::move(context), name, signature, flags));
  for (uint32_t param : params) {
    if (param < DGPU_PARAM_USER) kernel->arguments_.push_back(param);
  }
  const dgpuBackendKernelDesc desc = {sizeof(dgpuBackendKernelDesc),
                                      kernel->name_.c_str(),
                                      function,
                                      params.data(),
                                      static_cast<uint32_t>(params.size()),
                                      flags,
                                      user};
  Context& owner = *kernel->context_;
  bool any = false;
  kernel->per_device_.assign(owner.device_count(), nullptr);
  for (uint32_t i = 0; i < owner.device_count(); ++i) {
    backend::Device& device = owner.device(i);
    if (!device.has_kernels() || device.lost()) continue;
    DGPU_TRY(device.kernel().create(device.opened(), &desc, &kernel->per_device_[i]));
    any = true;
  }
  if (!any) {
    return fail(DGPU_STATUS_UNSUPPORTED, "context",
                "no device of the context runs host functions; the cpu backend does");
  }
  out = std::move(kernel);
  return DGPU_STATUS_SUCCESS;
}

Kernel::~Kernel() {
  for (uint32_t i = 0; i < per_device_.size(); ++i) {
    if (per_device_[i]) context_->device(i).kernel().destroy(per_device_[i]);
  }
}

Status Kernel::check_arguments(const uint32_t* types, const uint64_t* values, uint32_t count) const {
  if (count != arguments_.size()) {
    return fail(DGPU_STATUS_INVALID_ARGUMENT, "count", "kernel {} takes {} arguments ({}), {} were given", name_,
                arguments_.size(), signature_, count);
  }
  if (count && (!types || !values)) {
    return fail(DGPU_STATUS_INVALID_ARGUMENT, types ? "values" : "types", "{} is null, kernel {} takes {} arguments",
                types ? "values" : "types", name_, count);
  }
  for (uint32_t i = 0; i < count; ++i) {
    if (types[i] != arguments_[i]) {
      return fail(DGPU_STATUS_INVALID_ARGUMENT, fmt::format("types[{}]", i),
                  "argument {} of kernel {} is {}, {} was given", i, name_, argument_type_name(arguments_[i]),
                  types[i] < DGPU_PARAM_USER ? argument_type_name(types[i]) : "none");
    }
  }
  return DGPU_STATUS_SUCCESS;
}

namespace {
// What errors call the arguments; one for each that a signature can have.
constexpr const char* kValueNames[] = {
    "values[0]",  "values[1]",  "values[2]",  "values[3]",  "values[4]",  "values[5]",  "values[6]",  "values[7]",
    "values[8]",  "values[9]",  "values[10]", "values[11]", "values[12]", "values[13]", "values[14]", "values[15]",
    "values[16]", "values[17]", "values[18]", "values[19]", "values[20]", "values[21]", "values[22]", "values[23]"};
static_assert(std::size(kValueNames) == Kernel::kMaxParams);

bool multiply_overflows(uint64_t x, uint64_t y, uint64_t z) {
  uint64_t product = 0;
  return __builtin_mul_overflow(x, y, &product) || __builtin_mul_overflow(product, z, &product);
}
}  // namespace

Status Kernel::launch(Stream& stream, const char* function, uint64_t grid_x, uint64_t grid_y, uint64_t grid_z,
                      const uint32_t* types, const uint64_t* values, uint32_t count) {
  DGPU_TRY(same_context(stream.context(), context_.get(), "kernel"));
  dgpuBackendKernel* const kernel = per_device_[stream.device_index()];
  if (!kernel) {
    return fail(DGPU_STATUS_UNSUPPORTED, "stream", "{} does not run host functions", stream.device().label());
  }
  DGPU_TRY(check_arguments(types, values, count));
  const bool empty = grid_x == 0 || grid_y == 0 || grid_z == 0;
  if (!empty && multiply_overflows(grid_x, grid_y, grid_z)) {
    return fail(DGPU_STATUS_INVALID_ARGUMENT, "grid_x", "the grid {} x {} x {} has more than 2^64 points", grid_x,
                grid_y, grid_z);
  }
  Submission submission(stream, function);
  const Status begun = submission.begin(1, Submission::kernel_bytes(count));
  if (begun != DGPU_STATUS_SUCCESS) return begun;
  dgpuBackendRef* refs = nullptr;
  uint64_t* bits = nullptr;
  uint32_t* kinds = nullptr;
  if (count) {
    refs = static_cast<dgpuBackendRef*>(submission.arguments(count * sizeof(dgpuBackendRef)));
    bits = static_cast<uint64_t*>(submission.arguments(count * sizeof(uint64_t)));
    kinds = static_cast<uint32_t*>(submission.arguments(count * sizeof(uint32_t)));
    for (uint32_t i = 0; i < count; ++i) {
      kinds[i] = types[i];
      bits[i] = values[i];
      refs[i] = {};
      if (types[i] != DGPU_ARG_PTR || values[i] == 0) continue;
      Location location;
      DGPU_TRY(submission.locate(values[i], 0, kValueNames[i], location));
      DGPU_TRY(submission.device_ref(location, kValueNames[i], refs[i]));
      bits[i] = refs[i].native;
    }
  }
  Slot& slot = submission.add(empty ? DGPU_COMMAND_MARKER : DGPU_COMMAND_KERNEL, name_.c_str(), this);
  slot.kernel = {sizeof(dgpuCommandKernel), kernel, {grid_x, grid_y, grid_z}, kinds, bits, refs, count, 0};
  submission.commit();
  return DGPU_STATUS_SUCCESS;
}

}  // namespace dgpu
