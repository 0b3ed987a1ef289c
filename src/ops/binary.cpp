// binary: a function of two tensors, or of a tensor and a number, with broadcasting.
#include <cmath>

#include "ops/broadcast.h"
#include "ops/schema.h"

namespace dgpu::ops::schemas {
namespace {

bool integer_fn(std::string_view fn) { return fn != "div" && fn != "pow"; }
bool float_fn(std::string_view fn) { return fn != "floordiv" && fn != "mod"; }

Status infer(const OpSpec& spec, Outputs& outputs) {
  const bool ints = !dtype_is_float(dtype(spec, "a"));
  const std::string fn = spec.s("fn");
  if (ints && !integer_fn(fn))
    return bad_dtype(spec, "a", "fn={} expects floats, got {}", fn, dtype_name(dtype(spec, "a")));
  if (!ints && !float_fn(fn))
    return bad_dtype(spec, "a", "fn={} expects integers, got {}", fn, dtype_name(dtype(spec, "a")));
  Dims shape = dims(spec, "a");
  if (!spec.bound("b")) {
    DGPU_TRY(need_attr(spec, "scalar", "without port b"));
    const double s = spec.f("scalar");
    if (ints && (s != std::floor(s) || std::fabs(s) > 9007199254740992.0))
      return bad_attr(spec, "scalar", "expected an integer as a is {}, got {}", dtype_name(dtype(spec, "a")), s);
    if (s == 0 && (fn == "floordiv" || fn == "mod")) return bad_attr(spec, "scalar", "expected not 0 for fn={}", fn);
  } else {
    if (spec.has("scalar")) return bad_attr(spec, "scalar", "must not be set when port b is bound");
    if (dtype_is_float(dtype(spec, "b")) == ints)
      return bad_dtype(spec, "b", "expected {} like a, got {}", ints ? "integers" : "floats",
                       dtype_name(dtype(spec, "b")));
    if (!broadcast(dims(spec, "a"), dims(spec, "b"), shape))
      return bad_shape(spec, "b", "{} does not broadcast with a {}", text(dims(spec, "b")), text(dims(spec, "a")));
  }
  outputs["out"] = packed(dtype(spec, "a"), shape);
  return DGPU_STATUS_SUCCESS;
}

double nan_max(double a, double b) { return std::isnan(a) || a > b ? a : b; }
double nan_min(double a, double b) { return std::isnan(a) || a < b ? a : b; }

using FloatFn = double (*)(double, double);
FloatFn float_op(std::string_view fn) {
  if (fn == "add") return [](double a, double b) { return a + b; };
  if (fn == "sub") return [](double a, double b) { return a - b; };
  if (fn == "mul") return [](double a, double b) { return a * b; };
  if (fn == "div") return [](double a, double b) { return a / b; };
  if (fn == "max") return nan_max;
  if (fn == "min") return nan_min;
  return [](double a, double b) { return std::pow(a, b); };
}

// Two's complement, as the hardware does; b is not 0 for floordiv and mod.
using IntFn = int64_t (*)(int64_t, int64_t);
int64_t floordiv(int64_t a, int64_t b) {
  if (b == -1) return static_cast<int64_t>(0 - static_cast<uint64_t>(a));
  return a / b - ((a % b != 0) && ((a < 0) != (b < 0)));
}
IntFn int_op(std::string_view fn) {
  using U = uint64_t;
  if (fn == "add") return [](int64_t a, int64_t b) { return static_cast<int64_t>(U(a) + U(b)); };
  if (fn == "sub") return [](int64_t a, int64_t b) { return static_cast<int64_t>(U(a) - U(b)); };
  if (fn == "mul") return [](int64_t a, int64_t b) { return static_cast<int64_t>(U(a) * U(b)); };
  if (fn == "max") return [](int64_t a, int64_t b) { return a > b ? a : b; };
  if (fn == "min") return [](int64_t a, int64_t b) { return a < b ? a : b; };
  if (fn == "floordiv") return floordiv;
  return [](int64_t a, int64_t b) { return static_cast<int64_t>(U(a) - U(floordiv(a, b)) * U(b)); };
}

Status reference(const OpSpec& spec, RefTensors& t) {
  const auto& a = t.find("a")->second;
  const RefTensor* b = spec.bound("b") ? &t.find("b")->second : nullptr;
  auto& out = t.find("out")->second;
  const double scalar = spec.f("scalar");
  const std::string fn = spec.s("fn");
  const FloatFn float_fn_ = float_op(fn);
  const IntFn int_fn = int_op(fn);
  const bool divides = fn == "floordiv" || fn == "mod";
  BroadcastIndex ia(a.shape, out.shape), ib(b ? b->shape : std::vector<int64_t>{}, out.shape);
  const int64_t n = out.size();
  for (int64_t i = 0; i < n; ++i, ia.next(), ib.next()) {
    if (a.is_int()) {
      const int64_t rhs = b ? b->i[ib.offset()] : static_cast<int64_t>(scalar);
      if (divides && rhs == 0)
        return bad_data(spec, "b", "element {} is 0: expected a divisor that is not 0", ib.offset());
      out.i[i] = int_fn(a.i[ia.offset()], rhs);
    } else {
      out.f[i] = float_fn_(a.f[ia.offset()], b ? b->f[ib.offset()] : scalar);
    }
  }
  return DGPU_STATUS_SUCCESS;
}

}  // namespace

const Schema& binary() {
  static const auto* schema =
      new Schema{"binary",
                 1,
                 "A function of two tensors, or of a tensor and a number, with broadcasting.",
                 {need("fn", DGPU_ATTR_STRING, "the function",
                       {"add", "sub", "mul", "div", "max", "min", "pow", "floordiv", "mod"}),
                  maybe("scalar", DGPU_ATTR_FLOAT, "stands for b; required without b")},
                 {in("a", numbers(), "left"), in_opt("b", numbers(), "right"), out("out", numbers(), "fn(a, b)")},
                 infer,
                 reference,
                 nullptr,
                 nullptr,
                 {{"out", "a"}, {"out", "b"}}};
  return *schema;
}

}  // namespace dgpu::ops::schemas
