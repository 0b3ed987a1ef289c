#include "harness.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>

namespace conformance {

namespace {

constexpr int64_t kGuard = 256;        // bytes before and after each tensor that must stay as they are
constexpr unsigned char kFill = 0xa5;  // of everything that is no element

std::string last_error() {
  dgpuErrorInfo info = DGPU_ERROR_INFO_INIT;
  (void)dgpuGetLastError(&info);
  return std::string(dgpuStatusName(info.status)) + ": " + info.message;
}

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "conformance: %s: %s\n", what, last_error().c_str());
  std::exit(2);
}
void ok(dgpuStatus_t status, const char* what) {
  if (status != DGPU_STATUS_SUCCESS) die(what);
}

int64_t count_of(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<int64_t>());
}

// Strides of the layout for these extents.
dgpuTensorDesc describe(const Port& p, bool packed) {
  dgpuTensorDesc d = DGPU_TENSOR_DESC_INIT;
  d.dtype = p.dtype;
  d.rank = static_cast<uint32_t>(p.shape.size());
  const Layout layout = packed ? Layout::packed : p.layout;
  for (uint32_t i = 0; i < d.rank; ++i) {
    d.shape[i] = p.shape[i];
    if (static_cast<int>(i) != p.symbol_dim) continue;
    d.symbols[i] = 1;
    d.shape[i] += 3;  // the stated maximum is larger than the value
  }
  int64_t stride = layout == Layout::spread ? 2 : 1;
  for (uint32_t n = 0; n < d.rank; ++n) {
    uint32_t i = d.rank - 1 - n;
    if (layout == Layout::transposed && d.rank >= 2) i = n == 0 ? d.rank - 2 : n == 1 ? d.rank - 1 : i;
    d.strides[i] = stride;
    stride *= std::max<int64_t>(d.shape[i], 1);
    if (n == 0 && layout == Layout::padded) stride += 5;
  }
  if (layout == Layout::broadcast && d.rank) d.strides[0] = 0;
  return d;
}

// Element offsets in row-major order.
std::vector<int64_t> offsets_of(const dgpuTensorDesc& d, const Shape& shape) {
  std::vector<int64_t> offsets(count_of(shape));
  std::vector<int64_t> at(shape.size(), 0);
  int64_t offset = 0;
  for (auto& o : offsets) {
    o = offset;
    for (size_t i = shape.size(); i-- > 0;) {
      offset += d.strides[i];
      if (++at[i] < shape[i]) break;
      offset -= d.strides[i] * at[i];
      at[i] = 0;
    }
  }
  return offsets;
}

// A tensor in host memory with its guards.
struct Image {
  dgpuTensorDesc desc = DGPU_TENSOR_DESC_INIT;
  std::vector<int64_t> offsets;
  std::vector<unsigned char> bytes;
  Image() = default;
  Image(const Port& p, bool packed) : desc(describe(p, packed)), offsets(offsets_of(desc, p.shape)) {
    const int64_t last = offsets.empty() ? -1 : *std::max_element(offsets.begin(), offsets.end());
    bytes.assign(static_cast<size_t>(2 * kGuard + (last + 1) * element_bytes(desc.dtype)), kFill);
  }
  unsigned char* at(int64_t element) { return bytes.data() + kGuard + offsets[element] * element_bytes(desc.dtype); }
  void put(const Values& values) {
    for (size_t i = 0; i < offsets.size(); ++i) store(desc.dtype, at(static_cast<int64_t>(i)), values.v[i]);
  }
  Values get(const Shape& shape) {
    Values out{shape, std::vector<double>(offsets.size())};
    for (size_t i = 0; i < offsets.size(); ++i) out.v[i] = load(desc.dtype, at(static_cast<int64_t>(i)));
    return out;
  }
  // True if every byte that is no element is as it was.
  bool clean() {
    std::vector<bool> element(bytes.size(), false);
    for (const int64_t o : offsets)
      for (int64_t b = 0; b < element_bytes(desc.dtype); ++b)
        element[kGuard + o * element_bytes(desc.dtype) + b] = true;
    for (size_t i = 0; i < bytes.size(); ++i)
      if (!element[i] && bytes[i] != kFill) return false;
    return true;
  }
};

Values generate(const Port& p, uint64_t seed) {
  Values out{p.shape, std::vector<double>(count_of(p.shape))};
  const int64_t n = static_cast<int64_t>(out.v.size());
  const int64_t period = p.layout == Layout::broadcast && !p.shape.empty() && p.shape[0] ? n / p.shape[0] : n;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t at = period ? i % period : i;
    const double v =
        p.given.empty() ? p.low + (p.high - p.low) * uniform(hash(seed) + static_cast<uint64_t>(at)) : p.given[at];
    out.v[i] = is_int(p.dtype) && p.given.empty() ? std::floor(v) : round_value(p.dtype, v);
  }
  return out;
}

void set_attrs(const Case& test, dgpuOpDesc_t op) {
  for (const auto& [name, value] : test.attrs) {
    const char* n = name.c_str();
    dgpuStatus_t status = 0;
    if (const auto* i = std::get_if<int64_t>(&value)) status = dgpuOpDescSetInt(op, n, *i);
    if (const auto* f = std::get_if<double>(&value)) status = dgpuOpDescSetFloat(op, n, *f);
    if (const auto* b = std::get_if<bool>(&value)) status = dgpuOpDescSetBool(op, n, *b);
    if (const auto* s = std::get_if<std::string>(&value)) status = dgpuOpDescSetString(op, n, s->c_str());
    if (const auto* l = std::get_if<std::vector<int64_t>>(&value))
      status = dgpuOpDescSetInts(op, n, l->data(), static_cast<uint32_t>(l->size()));
    if (status) die((test.text() + ": " + name).c_str());
  }
}

// Bound ports in plan order: the schema's, repeated ports by number.
std::vector<size_t> schema_order(const Case& test) {
  static std::map<std::string, std::vector<std::string>> orders;
  auto& rows = orders[test.op];
  if (rows.empty()) {
    std::vector<char> json(65536);
    ok(dgpuOpGetSchema(test.op.c_str(), json.data(), json.size(), nullptr), test.op.c_str());
    // Names in the "ports" list, in order: a full parser is not needed for that.
    const std::string text = json.data();
    for (size_t at = text.find("\"ports\""); (at = text.find("\"name\": \"", at)) != std::string::npos;) {
      at += 9;
      rows.push_back(text.substr(at, text.find('"', at) - at));
    }
  }
  std::vector<size_t> order;
  for (const auto& row : rows)
    for (int number = -1; number < 8; ++number) {
      const std::string name = number < 0 ? row : row + std::to_string(number);
      for (size_t i = 0; i < test.ports.size(); ++i)
        if (test.ports[i].name == name) order.push_back(i);
    }
  if (order.size() != test.ports.size()) die((test.text() + ": a port is not in the schema").c_str());
  return order;
}

// Whether the reference of this output is taken in f64: everything but what others depend on after its rounding.
bool widen(const Case& test, const Port& p) {
  return p.direction == Port::out && !is_int(p.dtype) && test.bound && !(test.op == "rms_norm" && p.name == "sum");
}

}  // namespace

std::map<std::string, Values> reference(const Case& test, const std::map<std::string, Values>& inputs) {
  dgpuOpDesc_t op = nullptr;
  ok(dgpuOpDescCreate(test.op.c_str(), &op), test.op.c_str());
  set_attrs(test, op);
  std::map<std::string, Image> images;
  int64_t symbol = 0;
  uint32_t symbols = 0;
  for (const auto& p : test.ports) {
    Port wide = p;
    if (widen(test, p)) wide.dtype = DGPU_DTYPE_F64;
    Image image(wide, true);
    if (p.direction != Port::out) image.put(inputs.at(p.name));
    if (p.symbol_dim >= 0) symbol = p.shape[p.symbol_dim], symbols = 1;
    ok(dgpuOpDescSetTensor(op, p.name.c_str(), &image.desc), test.text().c_str());
    images.emplace(p.name, std::move(image));
  }
  std::vector<void*> pointers;
  for (const size_t i : schema_order(test)) pointers.push_back(images[test.ports[i].name].bytes.data() + kGuard);
  ok(dgpuOpReference(op, pointers.data(), static_cast<uint32_t>(pointers.size()), &symbol, symbols),
     (test.text() + ": reference").c_str());
  std::map<std::string, Values> outputs;
  for (const auto& p : test.ports)
    if (p.direction != Port::in) outputs[p.name] = images[p.name].get(p.shape);
  (void)dgpuOpDescDestroy(op);
  return outputs;
}

Harness::Harness(const std::string& wanted) {
  ok(dgpuInit(nullptr), "dgpuInit");
  std::string backend = wanted;
  if (wanted.find('/') != std::string::npos) {
    dgpuBackend_t plugin = nullptr;
    dgpuBackendInfo loaded = DGPU_BACKEND_INFO_INIT;
    ok(dgpuBackendLoad(wanted.c_str(), &plugin), wanted.c_str());
    ok(dgpuBackendGetInfo(plugin, &loaded), "dgpuBackendGetInfo");
    backend = loaded.name;
  }
  uint32_t count = 0;
  ok(dgpuDeviceCount(&count), "dgpuDeviceCount");
  for (uint32_t i = 0; i < count && !device_; ++i) {
    dgpuDeviceInfo info = DGPU_DEVICE_INFO_INIT;
    dgpuDevice_t device = nullptr;
    ok(dgpuDeviceGet(i, &device), "dgpuDeviceGet");
    ok(dgpuDeviceGetInfo(device, &info), "dgpuDeviceGetInfo");
    if (backend != info.backend) continue;
    device_ = device;
    device_name_ = info.name;
  }
  if (!device_) {
    std::fprintf(stderr, "conformance: backend %s has no device\n", backend.c_str());
    std::exit(2);
  }
  ok(dgpuContextCreate(&device_, 1, nullptr, &context_), "dgpuContextCreate");
  ok(dgpuStreamCreate(context_, device_, nullptr, &stream_), "dgpuStreamCreate");
}

Harness::~Harness() {
  (void)dgpuMemFree(context_, arena_);
  (void)dgpuStreamDestroy(stream_);
  (void)dgpuContextDestroy(context_);
  (void)dgpuShutdown();
}

bool Harness::run(const Case& test, std::string& why) {
  Run run;
  run.test = &test;
  uint64_t seed = 0;
  for (const char c : test.text()) seed = hash(seed ^ static_cast<unsigned char>(c));
  for (const auto& p : test.ports) {
    if (p.direction == Port::out) continue;
    for (const char c : p.name) seed = hash(seed ^ static_cast<unsigned char>(c));
    run.in[p.name] = generate(p, seed);
  }
  run.want = reference(test, run.in);
  dgpuOpDesc_t op = nullptr;
  ok(dgpuOpDescCreate(test.op.c_str(), &op), test.op.c_str());
  set_attrs(test, op);
  const bool good = plan(test, op, run, why) && compare(test, run, why);
  (void)dgpuOpDescDestroy(op);
  return good;
}

bool Harness::plan(const Case& test, dgpuOpDesc_t op, Run& run, std::string& why) {
  std::map<std::string, Image> images;
  int64_t symbol = 0;
  for (const auto& p : test.ports) {
    Image image(p, false);
    if (p.direction != Port::out) image.put(run.in[p.name]);
    if (p.symbol_dim >= 0) symbol = p.shape[p.symbol_dim];
    ok(dgpuOpDescSetTensor(op, p.name.c_str(), &image.desc), test.text().c_str());
    images.emplace(p.name, std::move(image));
  }
  dgpuOpPlan_t plan = nullptr;
  ok(dgpuOpPlanCreate(context_, device_, op, &plan), test.text().c_str());
  dgpuPlanInfo info = DGPU_PLAN_INFO_INIT;
  ok(dgpuOpPlanGetInfo(plan, &info), "dgpuOpPlanGetInfo");
  auto& count = counts_[test.op];
  ++(info.mode == DGPU_PLAN_NATIVE ? count.native : info.mode == DGPU_PLAN_COMPOSED ? count.composed : count.reference);
  if (info.mode == DGPU_PLAN_REFERENCE) count.why_reference = info.reason;

  const auto aligned = [](uint64_t n) { return (n + 255) / 256 * 256; };
  uint64_t total = aligned(info.workspace_bytes);
  for (auto& [name, image] : images) total += aligned(image.bytes.size());
  if (total > arena_bytes_) {
    (void)dgpuMemFree(context_, arena_);
    ok(dgpuMemAlloc(context_, device_, total, &arena_), "dgpuMemAlloc");
    arena_bytes_ = total;
  }
  std::map<std::string, dgpuAddr_t> addresses;
  uint64_t at = aligned(info.workspace_bytes);
  for (auto& [name, image] : images) {
    addresses[name] = arena_ + at;
    ok(dgpuMemCopyFromHostAsync(stream_, arena_ + at, image.bytes.data(), image.bytes.size()), "upload");
    at += aligned(image.bytes.size());
  }
  if (!test.alias_out.empty()) addresses[test.alias_out] = addresses[test.alias_in];
  std::vector<dgpuAddr_t> in_order;
  for (uint32_t i = 0; i < info.port_count; ++i) {
    const char* name = nullptr;
    ok(dgpuOpPlanGetPort(plan, i, &name), "dgpuOpPlanGetPort");
    in_order.push_back(images[name].offsets.empty() ? 0 : addresses[name] + kGuard);
  }
  dgpuStatus_t status = dgpuOpPlanExecute(plan, stream_, in_order.data(), info.port_count, &symbol, info.symbol_count,
                                          info.workspace_bytes ? arena_ : 0);
  if (status == DGPU_STATUS_SUCCESS) status = dgpuStreamSynchronize(stream_, 60'000'000'000u);
  bool good = status == DGPU_STATUS_SUCCESS;
  if (!good) why = std::string(dgpuStatusName(status)) + " " + last_error() + " (" + info.algorithm + ")";
  if (!good) (void)dgpuStreamReset(stream_, 1'000'000'000u);
  for (const auto& p : test.ports) {
    auto& image = images[p.name];
    const auto before = image.bytes;
    if (!good) break;
    ok(dgpuMemCopyToHostAsync(stream_, image.bytes.data(), addresses[p.name], image.bytes.size()), "download");
    ok(dgpuStreamSynchronize(stream_, 60'000'000'000u), "download");
    if (p.direction != Port::in) run.got[p.name] = image.get(p.shape);
    if (p.direction == Port::in && p.name != test.alias_in && before != image.bytes)
      good = false, why = "input " + p.name + " was changed";
    if (!image.clean()) good = false, why = "bytes beside the elements of " + p.name + " were written";
    if (!good) why += std::string(" (") + info.algorithm + ")";
  }
  (void)dgpuOpPlanDestroy(plan);
  return good;
}

bool Harness::compare(const Case& test, Run& run, std::string& why) {
  if (test.prepare) test.prepare(run);
  if (test.judge) return test.judge(run, why);
  auto& count = counts_[test.op];
  for (const auto& p : test.ports) {
    if (p.direction == Port::in) continue;
    const auto &got = run.got[p.name].v, &want = run.want[p.name].v;
    double worst = -1;
    int64_t where = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      if (got[i] == want[i] || (std::isnan(got[i]) && std::isnan(want[i]))) continue;
      const bool exact = !test.bound || is_int(p.dtype) || p.direction == Port::inout;
      const double room = exact ? 0 : test.bound(run, p, static_cast<int64_t>(i));
      double error = std::fabs(got[i] - want[i]) / room;  // inf where nothing is allowed
      if (std::isinf(want[i]) && got[i] != want[i]) error = INFINITY;
      if (std::isnan(error)) error = INFINITY;
      // A value whose rounding to the output's type overflows may be infinite.
      if (std::isinf(got[i]) && std::isinf(round_value(p.dtype, want[i] * (1 + 1e-5)))) error = 0;
      if (error > worst) worst = error, where = static_cast<int64_t>(i);
    }
    double& most = p.dtype == DGPU_DTYPE_F32 ? count.worst : count.worst_narrow;
    if (std::isfinite(worst)) most = std::max(most, worst);
    if (worst <= 1) continue;
    std::string index;
    int64_t rest = where;
    for (size_t d = p.shape.size(); d-- > 0; rest /= p.shape[d])
      index = std::to_string(rest % p.shape[d]) + (index.empty() ? "" : ",") + index;
    char text[256];
    std::snprintf(text, sizeof text, "%s[%s]: got %.9g, expected %.9g, error %.3g times what is allowed",
                  p.name.c_str(), index.c_str(), got[where], want[where], worst);
    why = text;
    return false;
  }
  return true;
}

}  // namespace conformance
