#include "ops/schema.h"

#include <algorithm>
#include <cstring>

namespace dgpu::ops {

const Dtypes& floats() {
  static const auto* list = new Dtypes{DGPU_DTYPE_F32, DGPU_DTYPE_BF16, DGPU_DTYPE_F16, DGPU_DTYPE_F64};
  return *list;
}
const Dtypes& f32_only() {
  static const auto* list = new Dtypes{DGPU_DTYPE_F32, DGPU_DTYPE_F64};
  return *list;
}
const Dtypes& integers() {
  static const auto* list = new Dtypes{DGPU_DTYPE_I32, DGPU_DTYPE_I64};
  return *list;
}
const Dtypes& i32_only() {
  static const auto* list = new Dtypes{DGPU_DTYPE_I32};
  return *list;
}
const Dtypes& i64_only() {
  static const auto* list = new Dtypes{DGPU_DTYPE_I64};
  return *list;
}
const Dtypes& numbers() {
  static const auto* list =
      new Dtypes{DGPU_DTYPE_F32, DGPU_DTYPE_BF16, DGPU_DTYPE_F16, DGPU_DTYPE_F64, DGPU_DTYPE_I32, DGPU_DTYPE_I64};
  return *list;
}
const Dtypes& any_dtype() {
  static const auto* list = new Dtypes{
#define DGPU_DTYPE_ROW(name, value, bits, text) value,
      DGPU_DTYPE_LIST(DGPU_DTYPE_ROW)
#undef DGPU_DTYPE_ROW
  };
  return *list;
}

AttrSchema need(std::string name, uint32_t type, std::string help, std::vector<std::string> values) {
  return {std::move(name), type, true, std::nullopt, std::move(values), std::move(help)};
}
AttrSchema maybe(std::string name, uint32_t type, std::string help, std::vector<std::string> values) {
  return {std::move(name), type, false, std::nullopt, std::move(values), std::move(help)};
}
AttrSchema with(std::string name, AttrValue def, std::string help, std::vector<std::string> values) {
  const uint32_t type = attr_type(def);
  return {std::move(name), type, false, std::move(def), std::move(values), std::move(help)};
}

namespace {
PortSchema port(std::string name, uint32_t direction, bool required, const Dtypes& dtypes, std::string help) {
  return {std::move(name), direction, required, false, dtypes, std::move(help)};
}
}  // namespace

PortSchema in(std::string name, const Dtypes& dtypes, std::string help) {
  return port(std::move(name), DGPU_PORT_IN, true, dtypes, std::move(help));
}
PortSchema in_opt(std::string name, const Dtypes& dtypes, std::string help) {
  return port(std::move(name), DGPU_PORT_IN, false, dtypes, std::move(help));
}
PortSchema out(std::string name, const Dtypes& dtypes, std::string help) {
  return port(std::move(name), DGPU_PORT_OUT, true, dtypes, std::move(help));
}
PortSchema out_opt(std::string name, const Dtypes& dtypes, std::string help) {
  return port(std::move(name), DGPU_PORT_OUT, false, dtypes, std::move(help));
}
PortSchema inout(std::string name, const Dtypes& dtypes, std::string help) {
  return port(std::move(name), DGPU_PORT_INOUT, true, dtypes, std::move(help));
}
PortSchema repeated(PortSchema row) {
  row.repeated = true;
  return row;
}

uint32_t attr_type(const AttrValue& value) {
  constexpr uint32_t types[] = {DGPU_ATTR_INT,    DGPU_ATTR_FLOAT, DGPU_ATTR_BOOL,
                                DGPU_ATTR_STRING, DGPU_ATTR_INTS,  DGPU_ATTR_FLOATS};
  return types[value.index()];
}

const char* attr_type_name(uint32_t type) {
  switch (type) {
    case DGPU_ATTR_INT:
      return "int";
    case DGPU_ATTR_FLOAT:
      return "float";
    case DGPU_ATTR_BOOL:
      return "bool";
    case DGPU_ATTR_STRING:
      return "string";
    case DGPU_ATTR_INTS:
      return "ints";
    case DGPU_ATTR_FLOATS:
      return "floats";
  }
  return "unknown";
}

namespace {
template <typename T>
std::string list_text(const std::vector<T>& values) {
  std::string out = "[";
  for (const auto& v : values) out += fmt::format("{}{}", out.size() > 1 ? ", " : "", v);
  return out + "]";
}
}  // namespace

std::string attr_text(const AttrValue& value) {
  struct Text {
    std::string operator()(int64_t v) const { return fmt::format("{}", v); }
    std::string operator()(double v) const { return fmt::format("{}", v); }
    std::string operator()(bool v) const { return v ? "true" : "false"; }
    std::string operator()(const std::string& v) const { return v; }
    std::string operator()(const std::vector<int64_t>& v) const { return list_text(v); }
    std::string operator()(const std::vector<double>& v) const { return list_text(v); }
  };
  return std::visit(Text{}, value);
}

std::string dtypes_text(const Dtypes& dtypes) {
  std::string out;
  for (const auto d : dtypes) out += fmt::format("{}{}", out.empty() ? "" : " ", dtype_name(d));
  return out;
}

Status fail_op(Status status, const OpSpec& spec, std::string_view kind, std::string_view name, std::string_view text) {
  fail(status, name, "{}: {} {}: {}", spec.name, kind, name, text);
  auto& record = last_error();
  const size_t n = std::min(sizeof record.op - 1, spec.name.size());
  std::memcpy(record.op, spec.name.data(), n);
  record.op[n] = 0;
  return status;
}

std::string text(const Dim& dim) {
  return dim.symbol ? fmt::format("s{}<={}", dim.symbol, dim.extent) : fmt::format("{}", dim.extent);
}
std::string text(const Dims& dims) {
  std::string out = "[";
  for (const auto& d : dims) out += (out.size() > 1 ? ", " : "") + text(d);
  return out + "]";
}

const dgpuTensorDesc& desc(const OpSpec& spec, std::string_view port) { return spec.ports.find(port)->second; }
dgpuDtype_t dtype(const OpSpec& spec, std::string_view port) { return desc(spec, port).dtype; }

Dims dims(const OpSpec& spec, std::string_view port) {
  const auto& d = desc(spec, port);
  Dims out(d.rank);
  for (uint32_t i = 0; i < d.rank; ++i) out[i] = {d.shape[i], d.symbols[i]};
  return out;
}

dgpuTensorDesc packed(dgpuDtype_t dtype, const Dims& dims) {
  dgpuTensorDesc d = DGPU_TENSOR_DESC_INIT;
  d.dtype = dtype;
  d.rank = static_cast<uint32_t>(dims.size());
  int64_t stride = 1;
  for (uint32_t i = d.rank; i-- > 0;) {
    d.shape[i] = dims[i].extent;
    d.symbols[i] = dims[i].symbol;
    d.strides[i] = stride;
    stride *= std::max<int64_t>(dims[i].extent, 1);
  }
  return d;
}

Status expect_rank(const OpSpec& spec, std::string_view port, uint32_t low, uint32_t high) {
  if (!spec.bound(port)) return DGPU_STATUS_SUCCESS;
  const uint32_t rank = desc(spec, port).rank;
  if (rank >= low && rank <= high) return DGPU_STATUS_SUCCESS;
  if (low == high) return bad_shape(spec, port, "expected rank {}, got {} {}", low, rank, text(dims(spec, port)));
  return bad_shape(spec, port, "expected rank {} to {}, got {} {}", low, high, rank, text(dims(spec, port)));
}

Status expect_dims(const OpSpec& spec, std::string_view port, const Dims& want, std::string_view why) {
  if (!spec.bound(port)) return DGPU_STATUS_SUCCESS;
  const Dims got = dims(spec, port);
  if (got == want) return DGPU_STATUS_SUCCESS;
  return bad_shape(spec, port, "expected {} ({}), got {}", text(want), why, text(got));
}

Status need_attr(const OpSpec& spec, std::string_view attr, std::string_view because) {
  if (spec.has(attr)) return DGPU_STATUS_SUCCESS;
  const Schema* schema = find(spec.name);
  for (const auto& row : schema->attrs)
    if (row.name == attr) {
      std::string values;
      for (const auto& v : row.values) values += (values.empty() ? ", one of " : " ") + v;
      return bad_attr(spec, attr, "is required {} (expected {}{})", because, attr_type_name(row.type), values);
    }
  return bad_attr(spec, attr, "is required {}", because);
}

Status need_port(const OpSpec& spec, std::string_view port, std::string_view because) {
  return spec.bound(port) ? DGPU_STATUS_SUCCESS : bad_shape(spec, port, "is required {}, but is not bound", because);
}
Status no_port(const OpSpec& spec, std::string_view port, std::string_view because) {
  return spec.bound(port) ? bad_shape(spec, port, "must not be bound {}", because) : DGPU_STATUS_SUCCESS;
}

bool broadcast(const Dims& a, const Dims& b, Dims& out) {
  const size_t rank = std::max(a.size(), b.size());
  out.assign(rank, Dim{1, 0});
  for (size_t i = 0; i < rank; ++i) {
    const Dim da = i < a.size() ? a[a.size() - 1 - i] : Dim{1, 0};
    const Dim db = i < b.size() ? b[b.size() - 1 - i] : Dim{1, 0};
    if (!(da == db) && !da.is_one() && !db.is_one()) return false;
    out[rank - 1 - i] = da.is_one() ? db : da;
  }
  return true;
}

Status normal_axis(const OpSpec& spec, std::string_view attr, int64_t axis, uint32_t rank, uint32_t& out) {
  const int64_t n = rank;
  if (axis < -n || axis >= n)
    return bad_attr(spec, attr, "axis {} is outside a tensor of rank {}: expected {} to {}", axis, rank, -n, n - 1);
  out = static_cast<uint32_t>(axis < 0 ? axis + n : axis);
  return DGPU_STATUS_SUCCESS;
}

Status complete(OpSpec& spec, const Schema& schema) {
  for (const auto& row : schema.attrs) {
    if (spec.has(row.name)) continue;
    if (row.required) {
      std::string values;
      for (const auto& v : row.values) values += (values.empty() ? ", one of " : " ") + v;
      return bad_attr(spec, row.name, "is missing (expected {}{})", attr_type_name(row.type), values);
    }
    if (row.def) spec.attrs.emplace(row.name, *row.def);
  }
  for (const auto& row : schema.ports) {
    const std::string name = row.repeated ? row.name + "0" : row.name;
    if (row.required && row.direction != DGPU_PORT_OUT && !spec.bound(name))
      return bad_shape(spec, name, "is required, but is not bound (expected {})", dtypes_text(row.dtypes));
  }
  return DGPU_STATUS_SUCCESS;
}

}  // namespace dgpu::ops
