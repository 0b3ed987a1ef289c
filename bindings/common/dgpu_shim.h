// Classes over the C handles for SWIG: constructors that throw, destructors that destroy, methods without output
// parameters. Header-only over the public C API; every language's interface file includes it. Errors are thrown as
// dgpu_binding::Error, made in the same native call that failed, since the last error is per thread.
#pragma once
#include <dgpu.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace dgpu_binding {

struct Error : std::runtime_error {
  Error(int32_t s, const std::string& text) : std::runtime_error(text), status(s) {}
  int32_t status;
  std::string object, function, op, backend;
};

[[noreturn]] inline void raise(dgpuStatus_t status) {
  dgpuErrorInfo info = DGPU_ERROR_INFO_INIT;
  dgpuGetLastError(&info);
  // Positive outcomes (a time-out) leave no record.
  const bool recorded = status < 0 && info.status == status && info.message[0];
  Error e(status, recorded ? info.message : dgpuStatusText(status));
  if (recorded) {
    e.object = info.object;
    e.function = info.function;
    e.op = info.op;
    e.backend = info.backend;
  }
  throw e;
}
inline void check(dgpuStatus_t status) {
  if (status != DGPU_STATUS_SUCCESS) raise(status);
}
// SUCCESS is true, NOT_READY false, everything else an error.
inline bool ready(dgpuStatus_t status) {
  if (status == DGPU_STATUS_NOT_READY) return false;
  check(status);
  return true;
}

// A buffer of the language, as its typemap hands it over: address and bytes, valid during the call.
struct ConstBytes {
  const void* data = nullptr;
  size_t size = 0;
};
struct MutableBytes {
  void* data = nullptr;
  size_t size = 0;
};

// Members of a class that owns one handle. close() destroys it now, idempotent; later uses answer INVALID_HANDLE.
#define DGPU_BINDING_HANDLE(Class, Type, Destroy)          \
 public:                                                   \
  Class(const Class&) = delete;                            \
  Class& operator=(const Class&) = delete;                 \
  ~Class() { close(); }                                    \
  void close() {                                           \
    if (handle_) Destroy(std::exchange(handle_, nullptr)); \
  }                                                        \
  bool closed() const { return handle_ == nullptr; }       \
  Type get() const { return handle_; }                     \
                                                           \
 private:                                                  \
  Type handle_ = nullptr;                                  \
                                                           \
 public:

class Device {
 public:
  explicit Device(uint32_t ordinal) { check(dgpuDeviceGet(ordinal, &handle_)); }
  dgpuDevice_t get() const { return handle_; }
  dgpuDeviceInfo info() const {
    dgpuDeviceInfo i = DGPU_DEVICE_INFO_INIT;
    check(dgpuDeviceGetInfo(handle_, &i));
    return i;
  }
  std::string name() const { return info().name; }
  std::string uuid() const { return info().uuid; }
  std::string backend() const { return info().backend; }
  uint32_t ordinal() const { return info().ordinal; }
  uint32_t compute_units() const { return info().compute_units; }
  uint64_t memory_bytes() const { return info().memory_bytes; }
  bool host_accessible() const { return info().host_accessible != 0; }

 private:
  dgpuDevice_t handle_ = nullptr;
};

inline uint32_t device_count() {
  uint32_t n = 0;
  check(dgpuDeviceCount(&n));
  return n;
}

class Context {
  DGPU_BINDING_HANDLE(Context, dgpuContext_t, dgpuContextDestroy)
  explicit Context(const std::vector<uint32_t>& ordinals) {
    std::vector<dgpuDevice_t> devices;
    for (const auto o : ordinals) devices.push_back(Device(o).get());
    check(dgpuContextCreate(devices.data(), static_cast<uint32_t>(devices.size()), nullptr, &handle_));
  }
  void synchronize(uint64_t timeout_ns) { check(dgpuContextSynchronize(handle_, timeout_ns)); }
};

class Memory {
 public:
  Memory(const Context& context, const Device& device, uint64_t size) : context_(context.get()), size_(size) {
    check(dgpuMemAlloc(context_, device.get(), size, &address_));
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { close(); }
  void close() {
    if (address_) dgpuMemFree(context_, std::exchange(address_, 0));
  }
  uint64_t address() const { return address_; }
  uint64_t size() const { return size_; }

 private:
  dgpuContext_t context_;
  dgpuAddr_t address_ = 0;
  uint64_t size_;
};

class Stream {
  DGPU_BINDING_HANDLE(Stream, dgpuStream_t, dgpuStreamDestroy)
  Stream(const Context& context, const Device& device) {
    dgpuStreamOptions o = DGPU_STREAM_OPTIONS_INIT;
    o.flags = DGPU_STREAM_BLOCKING_SUBMIT;
    check(dgpuStreamCreate(context.get(), device.get(), &o, &handle_));
  }
  void synchronize(uint64_t timeout_ns) { check(dgpuStreamSynchronize(handle_, timeout_ns)); }
  bool query() { return ready(dgpuStreamQuery(handle_)); }
  void reset(uint64_t timeout_ns) { check(dgpuStreamReset(handle_, timeout_ns)); }
  uint64_t value() const {
    uint64_t v = 0;
    check(dgpuStreamGetValue(handle_, &v));
    return v;
  }
  // Newest value that has retired.
  uint64_t retired() const {
    dgpuTimeline_t t = nullptr;
    uint64_t v = 0;
    check(dgpuStreamGetTimeline(handle_, &t));
    const dgpuStatus_t s = dgpuTimelineGetValue(t, &v);
    dgpuTimelineDestroy(t);
    check(s);
    return v;
  }
  void copy(uint64_t dst, uint64_t src, uint64_t size) { check(dgpuMemCopyAsync(handle_, dst, src, size)); }
  // The caller keeps the buffer alive and untouched until the command has retired.
  void copy_from(uint64_t dst, ConstBytes src) { check(dgpuMemCopyFromHostAsync(handle_, dst, src.data, src.size)); }
  void copy_to(MutableBytes dst, uint64_t src) { check(dgpuMemCopyToHostAsync(handle_, dst.data, src, dst.size)); }
  void fill(uint64_t dst, uint64_t pattern, uint32_t pattern_size, uint64_t size) {
    check(dgpuMemFillAsync(handle_, dst, pattern, pattern_size, size));
  }
};

class Event {
  DGPU_BINDING_HANDLE(Event, dgpuEvent_t, dgpuEventDestroy)
  Event(const Context& context, bool timing) {
    check(dgpuEventCreate(context.get(), timing ? DGPU_EVENT_TIMING : 0, &handle_));
  }
  void record(Stream& stream) { check(dgpuEventRecord(handle_, stream.get())); }
  void synchronize(uint64_t timeout_ns) { check(dgpuEventSynchronize(handle_, timeout_ns)); }
  bool query() { return ready(dgpuEventQuery(handle_)); }
  void wait(Stream& stream) { check(dgpuStreamWaitEvent(stream.get(), handle_)); }
  // Nanoseconds from `start` to this event.
  int64_t elapsed_ns(const Event& start) const {
    int64_t ns = 0;
    check(dgpuEventElapsed(start.get(), handle_, &ns));
    return ns;
  }
};

inline dgpuDtype_t dtype_of(const std::string& name) {
  dgpuDtype_t d = 0;
  check(dgpuDtypeFromName(name.c_str(), &d));
  return d;
}

struct TensorDesc {
  std::string dtype;
  std::vector<int64_t> shape;
  uint64_t address = 0;
};
inline TensorDesc described(const dgpuTensorDesc& d, dgpuAddr_t address) {
  return {dgpuDtypeName(d.dtype), std::vector<int64_t>(d.shape, d.shape + d.rank), address};
}

class Op {
  DGPU_BINDING_HANDLE(Op, dgpuOpDesc_t, dgpuOpDescDestroy)
  explicit Op(const std::string& name) { check(dgpuOpDescCreate(name.c_str(), &handle_)); }
  void set_int(const std::string& a, int64_t v) { check(dgpuOpDescSetInt(handle_, a.c_str(), v)); }
  void set_float(const std::string& a, double v) { check(dgpuOpDescSetFloat(handle_, a.c_str(), v)); }
  void set_bool(const std::string& a, bool v) { check(dgpuOpDescSetBool(handle_, a.c_str(), v)); }
  void set_string(const std::string& a, const std::string& v) {
    check(dgpuOpDescSetString(handle_, a.c_str(), v.c_str()));
  }
  void set_ints(const std::string& a, const std::vector<int64_t>& v) {
    check(dgpuOpDescSetInts(handle_, a.c_str(), v.data(), static_cast<uint32_t>(v.size())));
  }
  void set_floats(const std::string& a, const std::vector<double>& v) {
    check(dgpuOpDescSetFloats(handle_, a.c_str(), v.data(), static_cast<uint32_t>(v.size())));
  }
  void set_tensor(const std::string& port, const std::string& dtype, const std::vector<int64_t>& shape) {
    dgpuTensorDesc d = DGPU_TENSOR_DESC_INIT;
    check(dgpuTensorDescPack(&d, dtype_of(dtype), static_cast<uint32_t>(shape.size()), shape.data()));
    check(dgpuOpDescSetTensor(handle_, port.c_str(), &d));
  }
  TensorDesc infer(const std::string& port) const {
    dgpuTensorDesc d = DGPU_TENSOR_DESC_INIT;
    check(dgpuOpDescInfer(handle_, port.c_str(), &d));
    return described(d, 0);
  }
};

class Plan {
  DGPU_BINDING_HANDLE(Plan, dgpuOpPlan_t, dgpuOpPlanDestroy)
  Plan(const Context& context, const Device& device, const Op& op) {
    check(dgpuOpPlanCreate(context.get(), device.get(), op.get(), &handle_));
  }
  dgpuPlanInfo info() const {
    dgpuPlanInfo i = DGPU_PLAN_INFO_INIT;
    check(dgpuOpPlanGetInfo(handle_, &i));
    return i;
  }
  std::string mode() const {
    switch (info().mode) {
      case DGPU_PLAN_NATIVE:
        return "native";
      case DGPU_PLAN_COMPOSED:
        return "composed";
      default:
        return "reference";
    }
  }
  std::string algorithm() const { return info().algorithm; }
  std::string reason() const { return info().reason; }
  uint64_t workspace_bytes() const { return info().workspace_bytes; }
  std::vector<std::string> ports() const {
    std::vector<std::string> out;
    for (uint32_t i = 0; i < info().port_count; ++i) {
      const char* name = nullptr;
      check(dgpuOpPlanGetPort(handle_, i, &name));
      out.emplace_back(name);
    }
    return out;
  }
  void execute(Stream& stream, const std::vector<uint64_t>& addresses, const std::vector<int64_t>& symbols,
               uint64_t workspace) {
    check(dgpuOpPlanExecute(handle_, stream.get(), addresses.data(), static_cast<uint32_t>(addresses.size()),
                            symbols.data(), static_cast<uint32_t>(symbols.size()), workspace));
  }
};

inline std::vector<std::string> op_names() {
  uint32_t n = 0;
  check(dgpuOpCount(&n));
  std::vector<std::string> out;
  for (uint32_t i = 0; i < n; ++i) {
    const char* name = nullptr;
    check(dgpuOpGetName(i, &name));
    out.emplace_back(name);
  }
  return out;
}

// Text by the two-call rule.
template <typename F>
std::string text_of(F&& call) {
  size_t needed = 0;
  check(call(nullptr, size_t{0}, &needed));
  std::string s(needed, '\0');
  check(call(s.data(), s.size(), &needed));
  s.resize(needed ? needed - 1 : 0);
  return s;
}
inline std::string op_schema(const std::string& name) {
  return text_of([&](char* b, size_t n, size_t* needed) { return dgpuOpGetSchema(name.c_str(), b, n, needed); });
}

// A C function as a kernel; `function` is its address, which stays valid until the kernel's launches have retired.
class Kernel {
  DGPU_BINDING_HANDLE(Kernel, dgpuKernel_t, dgpuKernelDestroy)
  Kernel(const Context& context, const std::string& name, uint64_t function, const std::string& signature,
         bool may_block) {
    check(dgpuKernelCreate(context.get(), name.c_str(),
                           reinterpret_cast<dgpuKernelFunction>(static_cast<uintptr_t>(function)), signature.c_str(),
                           nullptr, may_block ? DGPU_KERNEL_MAY_BLOCK : 0, &handle_));
  }
  std::vector<uint32_t> arg_types() const {
    dgpuKernelInfo info = DGPU_KERNEL_INFO_INIT;
    check(dgpuKernelGetInfo(handle_, &info));
    std::vector<uint32_t> out(info.arg_count);
    for (uint32_t i = 0; i < info.arg_count; ++i) check(dgpuKernelGetArgType(handle_, i, &out[i]));
    return out;
  }
  // values[i] holds the bits of argument i.
  void launch(Stream& stream, uint64_t x, uint64_t y, uint64_t z, const std::vector<uint32_t>& types,
              const std::vector<uint64_t>& values) {
    if (types.size() != values.size()) raise(DGPU_STATUS_INVALID_ARGUMENT);
    check(dgpuKernelLaunch(stream.get(), handle_, x, y, z, types.data(), values.data(),
                           static_cast<uint32_t>(types.size())));
  }
};

class Model {
  DGPU_BINDING_HANDLE(Model, dgpuModel_t, dgpuModelDestroy)
  Model(const std::string& directory, const std::string& template_path, bool config_only) {
    dgpuModelOptions o = DGPU_MODEL_OPTIONS_INIT;
    o.template_path = template_path.empty() ? nullptr : template_path.c_str();
    o.flags = config_only ? DGPU_MODEL_CONFIG_ONLY : 0;
    check(dgpuModelOpen(directory.c_str(), &o, &handle_));
  }
  void load(const Context& context, const Device& device, const std::string& dtype) {
    dgpuLoadOptions o = DGPU_LOAD_OPTIONS_INIT;
    o.dtype = dtype_of(dtype);
    check(dgpuModelLoad(handle_, context.get(), device.get(), &o));
  }
  dgpuModelInfo info() const {
    dgpuModelInfo i = DGPU_MODEL_INFO_INIT;
    check(dgpuModelGetInfo(handle_, &i));
    return i;
  }
  std::string family() const { return info().family; }
  uint64_t parameters() const { return info().parameters; }
  uint64_t vocab_size() const { return info().vocab_size; }
  uint64_t hidden_size() const { return info().hidden_size; }
  uint32_t layers() const { return info().layers; }
  bool loaded() const { return info().loaded != 0; }
  std::string inspect() const {
    return report([&](dgpuReport_t* r) { return dgpuDay0Inspect(handle_, r); });
  }
  std::string audit() const {
    return report([&](dgpuReport_t* r) { return dgpuDay0Audit(handle_, r); });
  }
  std::string compare(const Context& context, const Device& device, const std::string& dtype,
                      const std::string& baseline) const {
    return report([&](dgpuReport_t* r) {
      return dgpuDay0Compare(handle_, context.get(), device.get(), dtype_of(dtype), baseline.c_str(), r);
    });
  }

 private:
  template <typename F>
  static std::string report(F&& call) {
    dgpuReport_t r = nullptr;
    check(call(&r));
    const char* text = nullptr;
    const dgpuStatus_t s = dgpuReportGetJson(r, &text);
    std::string out = s == DGPU_STATUS_SUCCESS ? text : "";
    dgpuReportDestroy(r);
    check(s);
    return out;
  }
};

class Session {
  DGPU_BINDING_HANDLE(Session, dgpuSession_t, dgpuSessionDestroy)
  Session(const Model& model, uint32_t max_sequences, uint32_t max_tokens, uint32_t max_batch_tokens,
          uint32_t max_logit_rows, const std::string& taps) {
    dgpuSessionOptions o = DGPU_SESSION_OPTIONS_INIT;
    o.max_sequences = max_sequences;
    o.max_tokens = max_tokens;
    o.max_batch_tokens = max_batch_tokens;
    o.max_logit_rows = max_logit_rows;
    o.taps = taps.empty() ? nullptr : taps.c_str();
    check(dgpuSessionCreate(model.get(), &o, &handle_));
  }
  TensorDesc logits() const {
    dgpuTensorDesc d = DGPU_TENSOR_DESC_INIT;
    dgpuAddr_t at = 0;
    check(dgpuSessionGetLogits(handle_, &d, &at));
    return described(d, at);
  }
};

class Sequence {
  DGPU_BINDING_HANDLE(Sequence, dgpuSequence_t, dgpuSequenceDestroy)
  explicit Sequence(const Session& session) { check(dgpuSequenceCreate(session.get(), &handle_)); }
  uint64_t length() const {
    uint64_t n = 0;
    check(dgpuSequenceGetLength(handle_, &n));
    return n;
  }
  void truncate(uint64_t length) { check(dgpuSequenceTruncate(handle_, length)); }
  std::string describe() const {
    return text_of([&](char* b, size_t n, size_t* needed) { return dgpuSequenceDescribe(handle_, b, n, needed); });
  }
};

// One step of one sequence; the last token's logits are in session.logits().
inline void step(Session& session, Stream& stream, Sequence& sequence, const std::vector<int32_t>& tokens) {
  const uint32_t offsets[2] = {0, static_cast<uint32_t>(tokens.size())};
  const dgpuSequence_t s = sequence.get();
  dgpuStep st = DGPU_STEP_INIT;
  st.tokens = tokens.data();
  st.token_count = offsets[1];
  st.offsets = offsets;
  st.sequences = &s;
  st.sequence_count = 1;
  check(dgpuSessionStep(session.get(), stream.get(), &st));
}

// Generates for one sequence.
inline std::vector<int32_t> generate(Session& session, Stream& stream, Sequence& sequence,
                                     const std::vector<int32_t>& prompt, uint32_t max_new_tokens,
                                     const std::vector<int32_t>& stop, double temperature, uint32_t top_k, double top_p,
                                     uint64_t seed) {
  const dgpuSequence_t s = sequence.get();
  const uint32_t offsets[2] = {0, static_cast<uint32_t>(prompt.size())};
  dgpuSampling sampling = DGPU_SAMPLING_INIT;
  sampling.temperature = temperature;
  sampling.top_k = top_k;
  sampling.top_p = top_p;
  sampling.seed = seed;
  const dgpuSampling* samplings[1] = {&sampling};
  std::vector<int32_t> out(max_new_tokens);
  uint32_t count = 0;
  dgpuGenerate g = DGPU_GENERATE_INIT;
  g.sequences = &s;
  g.sequence_count = 1;
  g.prompt_tokens = prompt.data();
  g.prompt_offsets = offsets;
  g.sampling = samplings;
  g.stop_ids = stop.data();
  g.stop_count = static_cast<uint32_t>(stop.size());
  g.out_tokens = out.data();
  g.out_counts = &count;
  g.max_new_tokens = max_new_tokens;
  check(dgpuSessionGenerate(session.get(), stream.get(), &g));
  out.resize(count);
  return out;
}

inline void init() { check(dgpuInit(nullptr)); }
inline void shutdown() { check(dgpuShutdown()); }
inline std::string version() {
  uint32_t a = 0, b = 0, c = 0;
  check(dgpuGetVersion(&a, &b, &c));
  return std::to_string(a) + "." + std::to_string(b) + "." + std::to_string(c);
}
// "NAME value class" per status: what a language makes its exception classes of.
inline std::vector<std::string> statuses() {
  std::vector<std::string> out;
#define DGPU_BINDING_STATUS(name, value, cls, text) out.push_back(#name " " #value " " #cls);
  DGPU_STATUS_LIST(DGPU_BINDING_STATUS)
#undef DGPU_BINDING_STATUS
  return out;
}
inline std::string status_name(int32_t status) { return dgpuStatusName(status); }
inline void config_set(const std::string& name, const std::string& value) {
  check(dgpuConfigSet(name.c_str(), value.c_str()));
}
inline std::string config_get(const std::string& name) {
  return text_of([&](char* b, size_t n, size_t* needed) { return dgpuConfigGet(name.c_str(), b, n, needed); });
}

}  // namespace dgpu_binding
