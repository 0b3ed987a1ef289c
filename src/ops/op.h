// Operators as data: schema, description, validation, inference, f64 reference. Knows no device.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/error.h"
#include "dgpu/backend.h"

namespace dgpu::ops {

using AttrValue = std::variant<int64_t, double, bool, std::string, std::vector<int64_t>, std::vector<double>>;

// An operator with its attributes and bound ports; what a dgpuOpDesc_t holds and what a graph node points to.
struct OpSpec {
  std::string name;
  std::map<std::string, AttrValue, std::less<>> attrs;
  std::map<std::string, dgpuTensorDesc, std::less<>> ports;

  bool has(std::string_view attr) const { return attrs.find(attr) != attrs.end(); }
  bool bound(std::string_view port) const { return ports.find(port) != ports.end(); }
  int64_t i(std::string_view attr, int64_t fallback = 0) const;
  double f(std::string_view attr, double fallback = 0) const;
  bool b(std::string_view attr, bool fallback = false) const;
  std::string s(std::string_view attr, std::string fallback = {}) const;
  std::vector<int64_t> ints(std::string_view attr) const;
};

struct AttrSchema {
  std::string name;
  uint32_t type = 0;  // DGPU_ATTR_*
  bool required = false;
  std::optional<AttrValue> def;     // absent: unset unless given
  std::vector<std::string> values;  // accepted strings; empty: any
  std::string help;
};

struct PortSchema {
  std::string name;        // a repeated port is one row, "k", with repeated = true; bound as "k0", "k1"
  uint32_t direction = 0;  // DGPU_PORT_*
  bool required = true;
  bool repeated = false;
  std::vector<dgpuDtype_t> dtypes;
  std::string help;
};

// A tensor of the reference: contiguous, row-major; floats as f64, integers as i64.
struct RefTensor {
  std::vector<int64_t> shape;
  std::vector<double> f;
  std::vector<int64_t> i;
  dgpuDtype_t dtype = 0;  // the port's type: rounding to it happens outside the reference
  bool is_int() const;
  int64_t size() const;
};
using RefTensors = std::map<std::string, RefTensor, std::less<>>;  // by port name; outputs come allocated and zeroed

struct Decomposition;

struct Schema {
  std::string name;
  uint32_t version = 1;
  std::string summary;
  std::vector<AttrSchema> attrs;
  std::vector<PortSchema> ports;
  // Checks the inputs against each other and the attributes, and describes every output (bound or not) by name.
  Status (*infer)(const OpSpec& spec, std::map<std::string, dgpuTensorDesc, std::less<>>& outputs) = nullptr;
  // Computes the bound outputs in f64. Ragged and symbolic extents are already resolved in the shapes.
  Status (*reference)(const OpSpec& spec, RefTensors& tensors) = nullptr;
  // Optional: relations between symbolic extents that `infer` cannot see (offsets has B + 1 entries). Called before
  // each submission with all symbol values in range; allocates nothing unless it fails.
  Status (*check)(const OpSpec& spec, const int64_t* symbols) = nullptr;
  // Optional: rewrites the operator as simpler ones; false where it is as simple as it gets. See decompose.h.
  bool (*decompose)(const OpSpec& spec, Decomposition& out) = nullptr;
  // Output and other port that may be the same memory if type, shape and strides are equal. All others must not
  // overlap.
  std::vector<std::pair<std::string, std::string>> aliases;
};

// All schemas, sorted by name; the schema of one operator or null.
const std::vector<const Schema*>& all();
const Schema* find(std::string_view name);

// Accepts an attribute or port into `spec` after checking name, type and value set. Errors name operator and attribute.
// An integer is accepted for a float.
Status set_attr(OpSpec& spec, std::string_view name, AttrValue value);
Status set_port(OpSpec& spec, std::string_view name, const dgpuTensorDesc& desc);

// Whole check: required attributes and ports, types, shapes; defaults are filled in; every bound output must equal the
// inferred shape (its type may be any that the port accepts).
Status validate(OpSpec& spec);
// One output, from what is set so far.
Status infer(const OpSpec& spec, std::string_view port, dgpuTensorDesc& out);
// Names of the bound ports in plan order: schema order, repeated ports by number.
std::vector<std::string> port_order(const OpSpec& spec);
// Schema row of a bound port ("k1" gives "k"), null if there is none.
const PortSchema* port_schema(const Schema& schema, std::string_view port);
// Highest symbol id of the bound ports.
uint32_t symbol_count(const OpSpec& spec);
// Extent of dimension `i` for these symbol values.
inline int64_t extent(const dgpuTensorDesc& d, uint32_t i, const int64_t* symbols) {
  return d.symbols[i] ? symbols[d.symbols[i] - 1] : d.shape[i];
}

// Runs the f64 reference on tensors whose shapes are concrete: inputs and inouts must be there, shapes are checked
// against each other, outputs that `spec` binds are made here, with the type that their port has in `spec` unless the
// tensor is there already. Results are not rounded to the type, except where the operator's meaning says so.
Status reference(const OpSpec& spec, RefTensors& tensors);
// Runs the reference on host memory: pointers in plan order, any strides and types; rounds once to the outputs' types.
Status run_reference(const OpSpec& spec, void* const* pointers, uint32_t count, const int64_t* symbols,
                     uint32_t symbol_count);

}  // namespace dgpu::ops
