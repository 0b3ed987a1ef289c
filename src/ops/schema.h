// What the operator files are written with: rows of a schema, dimensions, errors.
#pragma once
#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "ops/registry.h"

namespace dgpu::ops {

using Outputs = std::map<std::string, dgpuTensorDesc, std::less<>>;

// ---- Rows of a schema ----

using Dtypes = std::vector<dgpuDtype_t>;
const Dtypes& floats();    // f32 bf16 f16, and f64 for the reference
const Dtypes& f32_only();  // f32, and f64 for the reference
const Dtypes& integers();  // i32 i64
const Dtypes& i32_only();
const Dtypes& i64_only();
const Dtypes& numbers();  // floats and integers
const Dtypes& any_dtype();

constexpr double kInf = std::numeric_limits<double>::infinity();

// Required attributes have no default; `maybe` attributes are unset unless given.
AttrSchema need(std::string name, uint32_t type, std::string help, std::vector<std::string> values = {});
AttrSchema maybe(std::string name, uint32_t type, std::string help, std::vector<std::string> values = {});
AttrSchema with(std::string name, AttrValue def, std::string help, std::vector<std::string> values = {});

PortSchema in(std::string name, const Dtypes& dtypes, std::string help);
PortSchema in_opt(std::string name, const Dtypes& dtypes, std::string help);
PortSchema out(std::string name, const Dtypes& dtypes, std::string help);
PortSchema out_opt(std::string name, const Dtypes& dtypes, std::string help);
PortSchema inout(std::string name, const Dtypes& dtypes, std::string help);
PortSchema repeated(PortSchema row);

uint32_t attr_type(const AttrValue& value);     // DGPU_ATTR_*
const char* attr_type_name(uint32_t type);      // "int"
std::string attr_text(const AttrValue& value);  // as in an error message
std::string dtypes_text(const Dtypes& dtypes);  // "f32 bf16 f16 f64"

// ---- Errors: "rms_norm: attribute eps: ..." ----

Status fail_op(Status status, const OpSpec& spec, std::string_view kind, std::string_view name, std::string_view text);

template <typename... Args>
Status bad_attr(const OpSpec& spec, std::string_view attr, fmt::format_string<Args...> format, Args&&... args) {
  return fail_op(DGPU_STATUS_INVALID_ATTRIBUTE, spec, "attribute", attr,
                 fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
Status bad_shape(const OpSpec& spec, std::string_view port, fmt::format_string<Args...> format, Args&&... args) {
  return fail_op(DGPU_STATUS_INVALID_SHAPE, spec, "port", port, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
Status bad_dtype(const OpSpec& spec, std::string_view port, fmt::format_string<Args...> format, Args&&... args) {
  return fail_op(DGPU_STATUS_INVALID_DTYPE, spec, "port", port, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
Status bad_data(const OpSpec& spec, std::string_view port, fmt::format_string<Args...> format, Args&&... args) {
  return fail_op(DGPU_STATUS_DATA_OUT_OF_RANGE, spec, "port", port, fmt::format(format, std::forward<Args>(args)...));
}

// ---- Dimensions ----

// Two dimensions agree when both have the same symbol, or are fixed with the same extent.
struct Dim {
  int64_t extent = 0;  // fixed extent, or the symbol's maximum
  uint32_t symbol = 0;
  bool operator==(const Dim& o) const { return symbol == o.symbol && (symbol || extent == o.extent); }
  bool is_one() const { return !symbol && extent == 1; }
};
using Dims = std::vector<Dim>;

std::string text(const Dim& dim);    // "16", or "s2<=512"
std::string text(const Dims& dims);  // "[3, 16]"

// Dimensions of a bound port.
Dims dims(const OpSpec& spec, std::string_view port);
const dgpuTensorDesc& desc(const OpSpec& spec, std::string_view port);
dgpuDtype_t dtype(const OpSpec& spec, std::string_view port);
// A row-major description; strides by the maxima.
dgpuTensorDesc packed(dgpuDtype_t dtype, const Dims& dims);

// The port, if bound, has the rank; has these dimensions (`why` says where they come from).
Status expect_rank(const OpSpec& spec, std::string_view port, uint32_t low, uint32_t high = DGPU_MAX_RANK);
Status expect_dims(const OpSpec& spec, std::string_view port, const Dims& want, std::string_view why);
// Required and forbidden depending on other content: "is required with weight".
Status need_attr(const OpSpec& spec, std::string_view attr, std::string_view because);
Status need_port(const OpSpec& spec, std::string_view port, std::string_view because);
Status no_port(const OpSpec& spec, std::string_view port, std::string_view because);
// NumPy broadcasting of two shapes; false if they do not fit.
bool broadcast(const Dims& a, const Dims& b, Dims& out);
// Axis in [0, rank) from one that may count from the end.
Status normal_axis(const OpSpec& spec, std::string_view attr, int64_t axis, uint32_t rank, uint32_t& out);

// Fills in defaults and checks that what is required unconditionally is there.
Status complete(OpSpec& spec, const Schema& schema);

}  // namespace dgpu::ops
