#include "ops/op.h"

#include <algorithm>
#include <numeric>

#include "ops/schema.h"

namespace dgpu::ops {

// ---- OpSpec ----

namespace {
template <typename T>
const T* get(const OpSpec& spec, std::string_view attr) {
  const auto it = spec.attrs.find(attr);
  return it == spec.attrs.end() ? nullptr : std::get_if<T>(&it->second);
}
}  // namespace

int64_t OpSpec::i(std::string_view attr, int64_t fallback) const {
  const auto* v = get<int64_t>(*this, attr);
  return v ? *v : fallback;
}
double OpSpec::f(std::string_view attr, double fallback) const {
  if (const auto* v = get<double>(*this, attr)) return *v;
  if (const auto* v = get<int64_t>(*this, attr)) return static_cast<double>(*v);
  return fallback;
}
bool OpSpec::b(std::string_view attr, bool fallback) const {
  const auto* v = get<bool>(*this, attr);
  return v ? *v : fallback;
}
std::string OpSpec::s(std::string_view attr, std::string fallback) const {
  const auto* v = get<std::string>(*this, attr);
  return v ? *v : fallback;
}
std::vector<int64_t> OpSpec::ints(std::string_view attr) const {
  const auto* v = get<std::vector<int64_t>>(*this, attr);
  return v ? *v : std::vector<int64_t>{};
}

bool RefTensor::is_int() const { return !dtype_is_float(dtype); }
int64_t RefTensor::size() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<int64_t>());
}

// ---- Building ----

namespace {

Status schema_of(const OpSpec& spec, const Schema*& schema) {
  schema = find(spec.name);
  if (schema) return DGPU_STATUS_SUCCESS;
  std::string names;
  for (const auto* s : all()) names += " " + s->name;
  return fail(DGPU_STATUS_NOT_FOUND, spec.name, "operator {} does not exist; known are:{}", spec.name, names);
}

Status check_attr(const OpSpec& spec, const AttrSchema& row, AttrValue& value) {
  if (row.type == DGPU_ATTR_FLOAT)
    if (const auto* v = std::get_if<int64_t>(&value)) value = static_cast<double>(*v);
  if (row.type == DGPU_ATTR_FLOATS)
    if (const auto* v = std::get_if<std::vector<int64_t>>(&value)) value = std::vector<double>(v->begin(), v->end());
  if (attr_type(value) != row.type)
    return bad_attr(spec, row.name, "expected {}, got {} {}", attr_type_name(row.type),
                    attr_type_name(attr_type(value)), attr_text(value));
  const auto* s = std::get_if<std::string>(&value);
  if (s && !row.values.empty() && std::find(row.values.begin(), row.values.end(), *s) == row.values.end()) {
    std::string values;
    for (const auto& v : row.values) values += " " + v;
    return bad_attr(spec, row.name, "expected one of{}, got {}", values, *s);
  }
  return DGPU_STATUS_SUCCESS;
}

// Elements of an output must not overlap: each stride must step over everything that smaller strides reach.
bool overlaps(const dgpuTensorDesc& d) {
  std::vector<std::pair<int64_t, int64_t>> steps;  // stride, extent
  for (uint32_t i = 0; i < d.rank; ++i) {
    if (d.shape[i] == 0) return false;
    if (d.shape[i] > 1) steps.emplace_back(d.strides[i], d.shape[i]);
  }
  std::sort(steps.begin(), steps.end());
  int64_t reach = 0;
  for (const auto& [stride, extent] : steps) {
    if (stride <= reach) return true;
    reach += stride * (extent - 1);
  }
  return false;
}

Status check_extents(const OpSpec& spec, std::string_view port, const dgpuTensorDesc& d) {
  constexpr int64_t kLimit = int64_t{1} << 47;  // elements that a tensor may span: no address space is larger
  int64_t reach = 1;
  for (uint32_t i = 0; i < d.rank; ++i) {
    if (d.shape[i] < 0 || d.shape[i] > kLimit)
      return bad_shape(spec, port, "shape[{}] = {} is out of range: expected 0 to {}", i, d.shape[i], kLimit);
    if (d.strides[i] < 0 || d.strides[i] > kLimit)
      return bad_shape(spec, port, "strides[{}] = {} is out of range: expected 0 to {}", i, d.strides[i], kLimit);
    int64_t step = 0;
    if (__builtin_mul_overflow(d.strides[i], std::max<int64_t>(d.shape[i] - 1, 0), &step) ||
        __builtin_add_overflow(reach, step, &reach) || reach > kLimit)
      return bad_shape(spec, port, "shape {} with its strides spans more than {} elements", text(dims(spec, port)),
                       kLimit);
  }
  return DGPU_STATUS_SUCCESS;
}

Status check_desc(const OpSpec& spec, std::string_view port, const PortSchema& row, const dgpuTensorDesc& d) {
  if (std::find(row.dtypes.begin(), row.dtypes.end(), d.dtype) == row.dtypes.end())
    return bad_dtype(spec, port, "expected {}, got {}", dtypes_text(row.dtypes), dtype_name(d.dtype));
  if (d.rank > DGPU_MAX_RANK) return bad_shape(spec, port, "expected rank 0 to {}, got {}", DGPU_MAX_RANK, d.rank);
  if (d.layout != 0) return bad_shape(spec, port, "expected layout 0 (strided), got {}", d.layout);
  if (d.flags != 0) return bad_shape(spec, port, "expected flags 0, got {}", d.flags);
  OpSpec one;  // for the text of the shape
  one.name = spec.name;
  one.ports.emplace(std::string(port), d);
  DGPU_TRY(check_extents(one, port, d));
  constexpr uint32_t kSymbols = 64;
  for (uint32_t i = 0; i < d.rank; ++i)
    if (d.symbols[i] > kSymbols)
      return bad_shape(spec, port, "symbols[{}] = {}: expected 0 to {}", i, d.symbols[i], kSymbols);
  if (dtype_bits(d.dtype) < 8 && d.rank > 0 && d.shape[d.rank - 1] > 1 && d.strides[d.rank - 1] != 1)
    return bad_shape(spec, port, "expected innermost stride 1 for {}, got {}", dtype_name(d.dtype),
                     d.strides[d.rank - 1]);
  if (row.direction != DGPU_PORT_IN && overlaps(d))
    return bad_shape(spec, port, "strides let elements of an output overlap: shape {}", text(dims(one, port)));
  return DGPU_STATUS_SUCCESS;
}

Status unknown_port(const OpSpec& spec, const Schema& schema, std::string_view port) {
  std::string names;
  for (const auto& row : schema.ports) names += " " + row.name + (row.repeated ? "0.." : "");
  return fail_op(DGPU_STATUS_INVALID_ATTRIBUTE, spec, "port", port, "does not exist; expected one of" + names);
}

// One symbol has one maximum.
Status check_symbols(const OpSpec& spec) {
  std::vector<std::pair<int64_t, std::string_view>> maxima;
  for (const auto& [port, d] : spec.ports)
    for (uint32_t i = 0; i < d.rank; ++i) {
      const uint32_t id = d.symbols[i];
      if (id == 0) continue;
      if (maxima.size() < id) maxima.resize(id, {-1, {}});
      auto& [extent, where] = maxima[id - 1];
      if (extent >= 0 && extent != d.shape[i])
        return bad_shape(spec, port, "symbol {} has the maximum {} here, but {} in port {}", id, d.shape[i], extent,
                         where);
      extent = d.shape[i];
      where = port;
    }
  return DGPU_STATUS_SUCCESS;
}

}  // namespace

Status set_attr(OpSpec& spec, std::string_view name, AttrValue value) {
  const Schema* schema = nullptr;
  DGPU_TRY(schema_of(spec, schema));
  for (const auto& row : schema->attrs) {
    if (row.name != name) continue;
    DGPU_TRY(check_attr(spec, row, value));
    spec.attrs.insert_or_assign(row.name, std::move(value));
    return DGPU_STATUS_SUCCESS;
  }
  std::string names;
  for (const auto& row : schema->attrs) names += " " + row.name;
  return bad_attr(spec, name, "does not exist; expected {}{}", names.empty() ? "none" : "one of", names);
}

Status set_port(OpSpec& spec, std::string_view name, const dgpuTensorDesc& d) {
  const Schema* schema = nullptr;
  DGPU_TRY(schema_of(spec, schema));
  const PortSchema* row = port_schema(*schema, name);
  if (!row) return unknown_port(spec, *schema, name);
  DGPU_TRY(check_desc(spec, name, *row, d));
  spec.ports.insert_or_assign(std::string(name), d);
  return DGPU_STATUS_SUCCESS;
}

// ---- Whole checks ----

namespace {

// Attributes and ports that were put into the maps directly pass the same checks as through set_attr and set_port.
Status check_content(OpSpec& spec, const Schema& schema) {
  for (auto& [name, value] : spec.attrs) {
    const auto row = std::find_if(schema.attrs.begin(), schema.attrs.end(),
                                  [&, &key = name](const AttrSchema& r) { return r.name == key; });
    if (row == schema.attrs.end()) return bad_attr(spec, name, "does not exist");
    DGPU_TRY(check_attr(spec, *row, value));
  }
  for (const auto& [name, d] : spec.ports) {
    const PortSchema* row = port_schema(schema, name);
    if (!row) return unknown_port(spec, schema, name);
    DGPU_TRY(check_desc(spec, name, *row, d));
  }
  return check_symbols(spec);
}

Status check_outputs(const OpSpec& spec, const Schema& schema, const Outputs& outputs) {
  for (const auto& row : schema.ports) {
    if (row.direction != DGPU_PORT_OUT) continue;
    if (!spec.bound(row.name)) {
      if (!row.required) continue;
      return bad_shape(spec, row.name, "is required, but is not bound (expected {})", dtypes_text(row.dtypes));
    }
    const auto it = outputs.find(row.name);
    if (it == outputs.end()) return bad_shape(spec, row.name, "must not be bound with these attributes and ports");
    Dims want(it->second.rank);
    for (uint32_t i = 0; i < it->second.rank; ++i) want[i] = {it->second.shape[i], it->second.symbols[i]};
    DGPU_TRY(expect_dims(spec, row.name, want, "from the inputs"));
    if (dtype_is_float(it->second.dtype) != dtype_is_float(dtype(spec, row.name)))
      return bad_dtype(spec, row.name, "expected the kind of {}, got {}", dtype_name(it->second.dtype),
                       dtype_name(dtype(spec, row.name)));
  }
  return DGPU_STATUS_SUCCESS;
}

}  // namespace

Status validate(OpSpec& spec) {
  const Schema* schema = nullptr;
  DGPU_TRY(schema_of(spec, schema));
  DGPU_TRY(complete(spec, *schema));
  DGPU_TRY(check_content(spec, *schema));
  Outputs outputs;
  DGPU_TRY(schema->infer(spec, outputs));
  return check_outputs(spec, *schema, outputs);
}

Status infer(const OpSpec& spec, std::string_view port, dgpuTensorDesc& out) {
  const Schema* schema = nullptr;
  DGPU_TRY(schema_of(spec, schema));
  const PortSchema* row = port_schema(*schema, port);
  if (!row) return unknown_port(spec, *schema, port);
  if (row->direction != DGPU_PORT_OUT)
    return fail_op(DGPU_STATUS_INVALID_ARGUMENT, spec, "port", port, "is an input; only outputs are inferred");
  OpSpec full = spec;
  DGPU_TRY(complete(full, *schema));
  DGPU_TRY(check_content(full, *schema));
  Outputs outputs;
  DGPU_TRY(schema->infer(full, outputs));
  const auto it = outputs.find(port);
  if (it == outputs.end()) return bad_shape(spec, port, "does not exist with these attributes and ports");
  out = it->second;
  return DGPU_STATUS_SUCCESS;
}

std::vector<std::string> port_order(const OpSpec& spec) {
  std::vector<std::string> order;
  const Schema* schema = find(spec.name);
  if (!schema) return order;
  for (const auto& row : schema->ports) {
    if (!row.repeated) {
      if (spec.bound(row.name)) order.push_back(row.name);
      continue;
    }
    for (int n = 0; n < 100; ++n)
      if (auto name = row.name + std::to_string(n); spec.bound(name)) order.push_back(std::move(name));
  }
  return order;
}

uint32_t symbol_count(const OpSpec& spec) {
  uint32_t count = 0;
  for (const auto& [port, d] : spec.ports)
    for (uint32_t i = 0; i < d.rank; ++i) count = std::max(count, d.symbols[i]);
  return count;
}

}  // namespace dgpu::ops
