// Running references: on tensors in f64, and on host memory of any type and strides.
#include <algorithm>
#include <bit>
#include <cmath>

#include "ops/convert.h"
#include "ops/schema.h"

namespace dgpu::ops {

namespace {

// The tensor's concrete description, with the type that its port accepts.
dgpuTensorDesc concrete(const RefTensor& t) {
  Dims dims;
  for (const int64_t n : t.shape) dims.push_back({n, 0});
  return packed(t.dtype, dims);
}

void allocate(RefTensor& t, const dgpuTensorDesc& d) {
  t.shape.assign(d.shape, d.shape + d.rank);
  t.f.assign(t.is_int() ? 0 : t.size(), 0.0);
  t.i.assign(t.is_int() ? t.size() : 0, 0);
}

Status check_input(const OpSpec& spec, const std::string& port, const PortSchema* row, const RefTensors& tensors) {
  if (!row) return bad_shape(spec, port, "does not exist");
  const auto it = tensors.find(port);
  if (it == tensors.end()) return bad_shape(spec, port, "is bound, but no tensor was given");
  const auto& t = it->second;
  const auto kind = [&](dgpuDtype_t d) { return dtype_is_float(d) == !t.is_int(); };
  if (std::none_of(row->dtypes.begin(), row->dtypes.end(), kind))
    return bad_dtype(spec, port, "expected {}, got {}", dtypes_text(row->dtypes), dtype_name(t.dtype));
  const auto have = static_cast<int64_t>(t.is_int() ? t.i.size() : t.f.size());
  if (t.shape.size() > DGPU_MAX_RANK || have != t.size())
    return bad_shape(spec, port, "expected {} elements for its shape, got {}", t.size(), have);
  return DGPU_STATUS_SUCCESS;
}

}  // namespace

Status reference(const OpSpec& spec, RefTensors& tensors) {
  const Schema* schema = find(spec.name);
  if (!schema) return fail(DGPU_STATUS_NOT_FOUND, spec.name, "operator {} does not exist", spec.name);
  OpSpec plain;  // the same with concrete shapes
  plain.name = spec.name;
  plain.attrs = spec.attrs;
  std::vector<const std::string*> outputs;
  for (const auto& [port, d] : spec.ports) {
    const PortSchema* row = port_schema(*schema, port);
    if (row && row->direction == DGPU_PORT_OUT) {
      outputs.push_back(&port);
      auto& t = tensors[port];
      if (t.dtype == DGPU_DTYPE_NONE) t.dtype = d.dtype;
      plain.ports[port] = packed(t.dtype, {});
    } else {
      DGPU_TRY(check_input(spec, port, row, tensors));
      plain.ports[port] = concrete(tensors.find(port)->second);
    }
  }
  DGPU_TRY(complete(plain, *schema));
  Outputs inferred;
  DGPU_TRY(schema->infer(plain, inferred));
  for (const auto* port : outputs) {
    const auto it = inferred.find(*port);
    if (it == inferred.end()) return bad_shape(spec, *port, "must not be bound with these attributes and ports");
    allocate(tensors.find(*port)->second, it->second);
  }
  return schema->reference(plain, tensors);
}

// ---- Host memory ----

namespace {

// Visits the elements of a strided tensor in row-major order with their element offsets.
template <typename F>
void visit(const dgpuTensorDesc& d, const std::vector<int64_t>& shape, F&& f) {
  int64_t count = 1;
  for (const int64_t n : shape) count *= n;
  std::vector<int64_t> at(d.rank, 0);
  int64_t offset = 0;
  for (int64_t n = 0; n < count; ++n) {
    f(n, offset);
    for (uint32_t i = d.rank; i-- > 0;) {
      offset += d.strides[i];
      if (++at[i] < shape[i]) break;
      offset -= d.strides[i] * at[i];
      at[i] = 0;
    }
  }
}

std::vector<int64_t> resolved(const dgpuTensorDesc& d, const int64_t* symbols) {
  std::vector<int64_t> shape(d.rank);
  for (uint32_t i = 0; i < d.rank; ++i) shape[i] = extent(d, i, symbols);
  return shape;
}

RefTensor read_tensor(const dgpuTensorDesc& d, const void* data, const int64_t* symbols) {
  RefTensor t;
  t.dtype = d.dtype;
  t.shape = resolved(d, symbols);
  if (t.is_int()) {
    t.i.resize(t.size());
    visit(d, t.shape, [&](int64_t n, int64_t at) { t.i[n] = load_int(d.dtype, data, at); });
  } else {
    t.f.resize(t.size());
    visit(d, t.shape, [&](int64_t n, int64_t at) { t.f[n] = load_float(d.dtype, data, at); });
  }
  return t;
}

// Writes the elements that differ from `old`, all of them if it is null: a cache that others use at the same time is
// touched only where the operator changes it.
void write_tensor(const dgpuTensorDesc& d, void* data, const RefTensor& t, const RefTensor* old) {
  const auto same = [](double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b); };
  visit(d, t.shape, [&](int64_t n, int64_t at) {
    if (t.is_int()) {
      if (!old || t.i[n] != old->i[n]) store_int(d.dtype, data, at, t.i[n]);
    } else if (!old || !same(t.f[n], old->f[n])) {
      store_float(d.dtype, data, at, t.f[n]);
    }
  });
}

Status check_symbol_values(const OpSpec& spec, const int64_t* symbols, uint32_t count) {
  const uint32_t want = symbol_count(spec);
  if (count != want)
    return fail_op(DGPU_STATUS_INVALID_ARGUMENT, spec, "argument", "symbol_count",
                   fmt::format("expected {} values, got {}", want, count));
  for (const auto& [port, d] : spec.ports)
    for (uint32_t i = 0; i < d.rank; ++i) {
      if (d.symbols[i] == 0) continue;
      const int64_t value = symbols[d.symbols[i] - 1];
      if (value < 0 || value > d.shape[i])
        return fail_op(DGPU_STATUS_INVALID_ARGUMENT, spec, "symbol", std::to_string(d.symbols[i]),
                       fmt::format("expected 0 to {}, got {}", d.shape[i], value));
    }
  return DGPU_STATUS_SUCCESS;
}

}  // namespace

Status run_reference(const OpSpec& given, void* const* pointers, uint32_t count, const int64_t* symbols,
                     uint32_t symbols_given) {
  OpSpec spec = given;
  DGPU_TRY(validate(spec));
  const Schema* schema = find(spec.name);
  const auto order = port_order(spec);
  if (count != order.size())
    return fail_op(DGPU_STATUS_INVALID_ARGUMENT, spec, "argument", "pointer_count",
                   fmt::format("expected {}, one per bound port, got {}", order.size(), count));
  DGPU_TRY(check_symbol_values(spec, symbols, symbols_given));
  if (schema->check) DGPU_TRY(schema->check(spec, symbols));
  RefTensors tensors, before;
  for (uint32_t i = 0; i < count; ++i) {
    const auto& d = desc(spec, order[i]);
    const auto shape = resolved(d, symbols);
    const bool empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
    if (!pointers[i] && !empty)
      return fail_op(DGPU_STATUS_INVALID_ARGUMENT, spec, "port", order[i], "its pointer is null, but it has elements");
    const uint32_t direction = port_schema(*schema, order[i])->direction;
    if (direction == DGPU_PORT_OUT) continue;
    tensors[order[i]] = read_tensor(d, pointers[i], symbols);
    if (direction == DGPU_PORT_INOUT) before[order[i]] = tensors[order[i]];
  }
  DGPU_TRY(reference(spec, tensors));
  for (uint32_t i = 0; i < count; ++i) {
    if (port_schema(*schema, order[i])->direction == DGPU_PORT_IN) continue;
    const auto old = before.find(order[i]);
    write_tensor(desc(spec, order[i]), pointers[i], tensors.find(order[i])->second,
                 old == before.end() ? nullptr : &old->second);
  }
  return DGPU_STATUS_SUCCESS;
}

}  // namespace dgpu::ops
