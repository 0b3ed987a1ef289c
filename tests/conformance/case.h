// One operator with its tensors, data and tolerance. The grid is made of these.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "dgpu.h"

namespace conformance {

using Attr = std::variant<int64_t, double, bool, std::string, std::vector<int64_t>>;
using Shape = std::vector<int64_t>;

enum class Layout { packed, padded, transposed, spread, broadcast };
const char* layout_name(Layout layout);

// A tensor's elements, row-major, as numbers; exactly representable in its type.
struct Values {
  Shape shape;
  std::vector<double> v;
};

struct Port {
  enum Direction { in, out, inout };
  std::string name;
  dgpuDtype_t dtype = DGPU_DTYPE_F32;
  Shape shape;
  Direction direction = in;
  Layout layout = Layout::packed;
  int symbol_dim = -1;        // this dimension is symbol 1
  double low = -1, high = 1;  // range of the generated numbers
  std::vector<double> given;  // instead of generated ones
};

struct Run;
// Allowed absolute error per element of an output, given all inputs and the reference.
using Bound = std::function<double(const Run& run, const Port& port, int64_t element)>;

struct Case {
  std::string op;
  std::vector<std::pair<std::string, Attr>> attrs;
  std::vector<Port> ports;
  std::function<void(Run& run)> prepare;  // fills run.magnitude before the comparison
  Bound bound;                            // unset: outputs must be equal, after rounding the reference to their type
  // Instead of comparing elements: true if the outputs are acceptable.
  std::function<bool(const Run& run, std::string& why)> judge;
  std::string alias_out, alias_in;  // the same memory

  Case& attr(std::string name, Attr value) {
    attrs.emplace_back(std::move(name), std::move(value));
    return *this;
  }
  Case& in(std::string name, dgpuDtype_t dtype, Shape shape, double low = -1, double high = 1);
  Case& data(std::string name, dgpuDtype_t dtype, Shape shape, std::vector<double> values);
  Case& out(std::string name, dgpuDtype_t dtype, Shape shape);
  Case& inout(std::string name, dgpuDtype_t dtype, Shape shape);
  Port& port(const std::string& name);
  bool has(const std::string& name) const;
  std::string text() const;
};

// What a bound sees.
struct Run {
  const Case* test = nullptr;
  std::map<std::string, Values> in;         // inputs as numbers
  std::map<std::string, Values> want;       // reference outputs
  std::map<std::string, Values> got;        // the backend's
  std::map<std::string, Values> magnitude;  // outputs of the case's magnitude run, if it has one
};

uint64_t hash(uint64_t x);
inline double uniform(uint64_t seed) { return static_cast<double>(hash(seed) >> 11) * 0x1p-53; }

// Conversions, independent of the library's.
double round_value(dgpuDtype_t dtype, double value);
double load(dgpuDtype_t dtype, const unsigned char* at);
void store(dgpuDtype_t dtype, unsigned char* at, double value);
int64_t element_bytes(dgpuDtype_t dtype);
bool is_int(dgpuDtype_t dtype);

// Runs the f64 reference of the case with other attributes and inputs; for magnitudes. Outputs are f64.
std::map<std::string, Values> reference(const Case& test, const std::map<std::string, Values>& inputs);

// ---- The grid: each adds the cases of some operators. `full` false: a reduced grid for sanitizers. ----

using Grid = std::vector<Case>;
void elementwise_grid(Grid& grid, bool full);
void norm_grid(Grid& grid, bool full);
void matmul_grid(Grid& grid, bool full);
void select_grid(Grid& grid, bool full);
void rope_grid(Grid& grid, bool full);
void attention_grid(Grid& grid, bool full);
void moe_grid(Grid& grid, bool full);
void sample_grid(Grid& grid, bool full);

constexpr dgpuDtype_t kFloats[] = {DGPU_DTYPE_F32, DGPU_DTYPE_BF16, DGPU_DTYPE_F16};

}  // namespace conformance
