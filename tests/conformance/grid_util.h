// Pieces that several grids use.
#pragma once
#include <cmath>

#include "case.h"
#include "tolerance.h"

namespace conformance {

// magnitude: reference of the case on absolute values, with attributes replaced.
inline std::function<void(Run&)> absolute_run(std::vector<std::pair<std::string, Attr>> replace = {}) {
  return [replace](Run& run) {
    Case other = *run.test;
    for (const auto& [name, value] : replace) {
      bool found = false;
      for (auto& [n, v] : other.attrs)
        if (n == name) v = value, found = true;
      if (!found) other.attrs.emplace_back(name, value);
    }
    auto inputs = run.in;
    for (auto& p : other.ports)
      if (p.direction != Port::out && !is_int(p.dtype))
        for (double& v : inputs[p.name].v) v = std::fabs(v);
    run.magnitude = reference(other, inputs);
  };
}

// |got - want| <= u_out |want| + factor u (magnitude run).
inline Bound by_magnitude(double factor) {
  return [factor](const Run& run, const Port& p, int64_t i) {
    return allowed(p.dtype, run.want.at(p.name).v[i], factor, run.magnitude.at(p.name).v[i]);
  };
}

// |got - want| <= u_out |want| + factor u (|want| + extra).
inline Bound relative(double factor, double extra = 0) {
  return [factor, extra](const Run& run, const Port& p, int64_t i) {
    const double want = run.want.at(p.name).v[i];
    return allowed(p.dtype, want, factor, std::fabs(want) + extra);
  };
}

inline double largest(const Values& values) {
  double top = 0;
  for (const double v : values.v) top = std::fmax(top, std::fabs(v));
  return top;
}

inline std::vector<double> integers(int64_t n, int64_t limit, uint64_t seed) {
  std::vector<double> out;
  for (int64_t i = 0; i < n; ++i)
    out.push_back(static_cast<double>(hash(seed + static_cast<uint64_t>(i)) % static_cast<uint64_t>(limit)));
  return out;
}

// The dtype pairs worth crossing: same in and out, and mixed.
struct Types {
  dgpuDtype_t in, out;
};
inline std::vector<Types> type_pairs(bool full) {
  std::vector<Types> pairs;
  for (const auto d : kFloats) pairs.push_back({d, d});
  if (full)
    pairs.insert(
        pairs.end(),
        {{DGPU_DTYPE_BF16, DGPU_DTYPE_F32}, {DGPU_DTYPE_F32, DGPU_DTYPE_BF16}, {DGPU_DTYPE_F16, DGPU_DTYPE_F32}});
  return pairs;
}

}  // namespace conformance
