#include <fmt/format.h>

#include <cmath>

#include "model/expr.h"

namespace dgpu::model {

Val::Val() = default;
Val::Val(const Val& other) = default;
Val::Val(Val&& other) noexcept = default;
Val& Val::operator=(const Val& other) = default;
Val& Val::operator=(Val&& other) noexcept = default;
Val::~Val() = default;

const Val* Val::field(std::string_view name) const {
  if (const Map* m = map())
    for (const auto& [key, value] : *m)
      if (key == name) return &value;
  return nullptr;
}

const Val* Args::find(std::string_view name) const {
  for (const auto& [key, value] : named)
    if (key == name) return &value;
  return nullptr;
}

std::string type_of(const Val& v) {
  if (v.null()) return "null";
  if (v.get<bool>()) return "a boolean";
  if (v.get<int64_t>()) return "an integer";
  if (v.get<double>()) return "a number";
  if (v.get<std::string>()) return "a string";
  if (v.list()) return "a list";
  if (v.map()) return "a map";
  if (v.lambda()) return "a function";
  if (v.get<TensorRef>()) return "a tensor";
  if (v.get<DimRef>()) return "a symbolic extent";
  return "a state";
}

static void write(const Val& v, std::string& out, size_t limit) {
  if (out.size() > limit) return;
  if (v.null())
    out += "null";
  else if (const bool* b = v.get<bool>())
    out += *b ? "true" : "false";
  else if (const int64_t* i = v.get<int64_t>())
    out += fmt::format("{}", *i);
  else if (const double* d = v.get<double>())
    out += fmt::format("{}", *d);
  else if (const std::string* s = v.get<std::string>())
    out += "'" + s->substr(0, limit) + "'";
  else if (const List* l = v.list()) {
    out += "[";
    for (size_t k = 0; k < l->size() && out.size() <= limit; ++k) {
      if (k) out += ", ";
      write((*l)[k], out, limit);
    }
    out += "]";
  } else if (const Map* m = v.map()) {
    out += "{";
    for (size_t k = 0; k < m->size() && out.size() <= limit; ++k) {
      out += (k ? ", '" : "'") + (*m)[k].first + "': ";
      write((*m)[k].second, out, limit);
    }
    out += "}";
  } else {
    out += type_of(v);
  }
}

std::string text_of(const Val& v) {
  std::string out;
  write(v, out, 200);
  if (out.size() > 200) out = out.substr(0, 200) + "...";
  return out;
}

bool equal(const Val& a, const Val& b) {
  if (a.number() && b.number()) {
    const int64_t *i = a.get<int64_t>(), *j = b.get<int64_t>();
    return i && j ? *i == *j : a.as_double() == b.as_double();
  }
  if (a.null() || b.null()) return a.null() && b.null();
  if (const auto* x = a.get<bool>(), *y = b.get<bool>(); x && y) return *x == *y;
  if (const auto* x = a.get<std::string>(), *y = b.get<std::string>(); x && y) return *x == *y;
  if (const List* x = a.list(), *y = b.list(); x && y) {
    if (x->size() != y->size()) return false;
    for (size_t i = 0; i < x->size(); ++i)
      if (!equal((*x)[i], (*y)[i])) return false;
    return true;
  }
  if (const Map* x = a.map(), *y = b.map(); x && y) {
    if (x->size() != y->size()) return false;
    for (const auto& [key, value] : *x) {
      const Val* other = b.field(key);
      if (!other || !equal(value, *other)) return false;
    }
    return true;
  }
  if (const auto* x = a.get<TensorRef>(), *y = b.get<TensorRef>(); x && y) return x->id == y->id;
  if (const auto* x = a.get<DimRef>(), *y = b.get<DimRef>(); x && y) return x->symbol == y->symbol;
  return false;
}

}  // namespace dgpu::model
