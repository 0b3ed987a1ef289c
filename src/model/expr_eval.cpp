#include <cmath>

#include "model/expr.h"

namespace dgpu::model {

static const char* op_text(Op op) {
  switch (op) {
    case Op::Neg:
    case Op::Sub:
      return "-";
    case Op::Add:
      return "+";
    case Op::Mul:
      return "*";
    case Op::Div:
      return "/";
    case Op::FloorDiv:
      return "//";
    case Op::Mod:
      return "%";
    case Op::Pow:
      return "**";
    case Op::Lt:
      return "<";
    case Op::Le:
      return "<=";
    case Op::Gt:
      return ">";
    case Op::Ge:
      return ">=";
    default:
      return "this operator";
  }
}

// ---- Host defaults -------------------------------------------------------------------------------------------------

Val Host::unary(Op op, const Val& x, const Expr& at) {
  fault(at, fmt::format("{} does not work on {}", op_text(op), type_of(x)));
}
Val Host::binary(Op op, const Val& a, const Val& b, const Expr& at) {
  fault(at, fmt::format("{} does not work on {} and {}", op_text(op), type_of(a), type_of(b)));
}
Val Host::field(const Val& x, const std::string& name, const Expr& at) {
  fault(at, fmt::format("{} has no field {}", type_of(x), name));
}
Val Host::index(const Val& x, const std::vector<Val>&, const Expr& at) {
  fault(at, fmt::format("{} cannot be indexed", type_of(x)));
}
Val Host::tap(const Val&, const std::string&, const Expr& at) { fault(at, "a tap belongs to dataflow"); }

// ---- Bounds --------------------------------------------------------------------------------------------------------

struct Evaluator::Nested {
  Nested(Evaluator& e, const Expr& at) : eval(e) {
    if (++eval.depth_ > eval.limits_.depth) {
      --eval.depth_;
      fault(at, fmt::format("evaluation nested more than {} deep", eval.limits_.depth));
    }
  }
  ~Nested() { --eval.depth_; }
  Evaluator& eval;
};

void Evaluator::step(const Expr& at) {
  if (++steps_ > limits_.steps) fault(at, fmt::format("more than {} steps of evaluation", limits_.steps));
}
void Evaluator::charge(uint64_t elements, const Expr& at) {
  if (elements > limits_.elements || (elements_ += elements) > limits_.elements)
    fault(at, fmt::format("more than {} list elements", limits_.elements));
}

// ---- Expressions ---------------------------------------------------------------------------------------------------

Val Evaluator::eval(const Expr& e) {
  Nested nested(*this, e);
  step(e);
  return eval_inner(e);
}

Val Evaluator::eval_inner(const Expr& e) {
  switch (e.op) {
    case Op::Literal:
      return e.literal;
    case Op::Name:
      return name(e);
    case Op::MakeList: {
      List out;
      charge(e.kids.size(), e);
      for (const auto& kid : e.kids) out.push_back(eval(*kid));
      return Val(std::move(out));
    }
    case Op::MakeMap: {
      Map out;
      charge(e.kids.size(), e);
      for (size_t i = 0; i + 1 < e.kids.size(); i += 2) {
        const Val key = eval(*e.kids[i]);
        if (!key.get<std::string>())
          fault(*e.kids[i], fmt::format("a key of a map must be a string, got {}", type_of(key)));
        out.emplace_back(*key.get<std::string>(), eval(*e.kids[i + 1]));
      }
      return Val(std::move(out));
    }
    case Op::Comprehension:
      return comprehension(e);
    case Op::MakeLambda:
      return Val(Lambda{e.names, e.kids[0].get(), locals_});
    case Op::Index:
      return index(e);
    case Op::Slice:
      return slice(e);
    case Op::Field:
      return field(e);
    case Op::Call:
      return call(e);
    case Op::Named:
      fault(e, "a named argument belongs to a call");
    case Op::Not:
      return Val(!truth(*e.kids[0]));
    case Op::And:
      return truth(*e.kids[0]) ? Val(truth(*e.kids[1])) : Val(false);
    case Op::Or:
      return truth(*e.kids[0]) ? Val(true) : Val(truth(*e.kids[1]));
    case Op::If:
      return truth(*e.kids[1]) ? eval(*e.kids[0]) : eval(*e.kids[2]);
    case Op::Tap:
      return host_.tap(eval(*e.kids[0]), e.name, e);
    default:
      return binary(e);
  }
}

bool Evaluator::truth(const Expr& e) {
  const Val v = eval(e);
  if (const bool* b = v.get<bool>()) return *b;
  fault(e, fmt::format("expected true or false, got {}", text_of(v)));
}

int64_t Evaluator::integer(const Expr& e) {
  const Val v = eval(e);
  if (const int64_t* i = v.get<int64_t>()) return *i;
  fault(e, fmt::format("expected an integer, got {}", text_of(v)));
}

Val Evaluator::name(const Expr& e) {
  for (size_t i = locals_.size(); i-- > 0;)
    if (locals_[i].first == e.name) return locals_[i].second;
  Val out;
  if (host_.lookup(e.name, e, out)) return out;
  fault(e, fmt::format("unknown name {}", e.name));
}

Val Evaluator::comprehension(const Expr& e) {
  const Val sequence = eval(*e.kids[1]);
  const List* items = sequence.list();
  if (!items) fault(*e.kids[1], fmt::format("expected a list to go through, got {}", type_of(sequence)));
  List out;
  for (const Val& item : *items) {
    step(e);
    const List* parts = item.list();
    if (e.names.size() > 1 && (!parts || parts->size() != e.names.size()))
      fault(e, fmt::format("expected lists of {}, got {}", e.names.size(), text_of(item)));
    for (size_t k = 0; k < e.names.size(); ++k) push(e.names[k], e.names.size() > 1 ? (*parts)[k] : item);
    if (!e.kids[2] || truth(*e.kids[2])) {
      charge(1, e);
      out.push_back(eval(*e.kids[0]));
    }
    pop(e.names.size());
  }
  return Val(std::move(out));
}

Val Evaluator::apply(const Lambda& f, const Args& args, const Expr& at) {
  if (!args.named.empty() || args.positional.size() != f.params.size())
    fault(at,
          fmt::format("expected {} arguments, got {}", f.params.size(), args.positional.size() + args.named.size()));
  Nested nested(*this, at);
  std::vector<std::pair<std::string, Val>> saved = f.captured;
  for (size_t i = 0; i < f.params.size(); ++i) saved.emplace_back(f.params[i], args.positional[i]);
  locals_.swap(saved);
  Val out = eval(*f.body);
  locals_.swap(saved);
  return out;
}

Val Evaluator::call(const Expr& e) {
  const Expr& callee = *e.kids[0];
  Args args;
  auto read = [&] {
    for (size_t i = 1; i < e.kids.size(); ++i) {
      const Expr& kid = *e.kids[i];
      if (kid.op == Op::Named) {
        if (args.find(kid.name)) fault(kid, fmt::format("argument {} is given twice", kid.name));
        args.named.emplace_back(kid.name, eval(*kid.kids[0]));
      } else if (!args.named.empty()) {
        fault(kid, "an argument without name after one with a name");
      } else {
        args.positional.push_back(eval(kid));
      }
    }
  };
  if (callee.op == Op::Name) {
    bool local = false;
    for (const auto& [name, value] : locals_) local |= name == callee.name;
    if (!local && host_.callable(callee.name)) {
      read();
      return host_.call(callee.name, args, e);
    }
    if (!local) {
      bool found = false;
      for (const std::string& f : builtin_functions()) found |= f == callee.name;
      if (found) {
        read();
        return builtin(callee.name, args, e, found);
      }
    }
  }
  Val f;
  if (callee.op == Op::Name) {
    bool known = false;
    for (size_t i = locals_.size(); i-- > 0 && !known;)
      if (locals_[i].first == callee.name) f = locals_[i].second, known = true;
    if (!known && !host_.lookup(callee.name, callee, f))
      fault(e, fmt::format("{} is no operator, block or function", callee.name));
  } else {
    f = eval(callee);
  }
  if (!f.lambda()) fault(callee, fmt::format("{} cannot be called", type_of(f)));
  const Val hold = f;  // keeps the function alive
  read();
  return apply(*hold.lambda(), args, e);
}

// ---- Lists, strings, maps ------------------------------------------------------------------------------------------

static int64_t normal(int64_t i, size_t size, const Expr& at) {
  const int64_t n = static_cast<int64_t>(size);
  const int64_t k = i < 0 ? i + n : i;
  if (k < 0 || k >= n) fault(at, fmt::format("index {} is outside 0..{}", i, n - 1));
  return k;
}

Val Evaluator::index(const Expr& e) {
  const Val base = eval(*e.kids[0]);
  std::vector<Val> at;
  for (size_t i = 1; i < e.kids.size(); ++i) at.push_back(eval(*e.kids[i]));
  const int64_t* i = at[0].get<int64_t>();
  const std::string* key = at[0].get<std::string>();
  if (at.size() == 1 && i) {
    if (const List* l = base.list()) return (*l)[normal(*i, l->size(), e)];
    if (const std::string* s = base.get<std::string>()) return Val(std::string(1, (*s)[normal(*i, s->size(), e)]));
  }
  if (at.size() == 1 && key && base.map()) {
    if (const Val* v = base.field(*key)) return *v;
    fault(e, fmt::format("the map has no key '{}'", *key));
  }
  if (base.get<TensorRef>()) return host_.index(base, at, e);
  fault(e, fmt::format("{} cannot be indexed with {}", type_of(base), text_of(at[0])));
}

Val Evaluator::slice(const Expr& e) {
  const Val base = eval(*e.kids[0]);
  const List* list = base.list();
  const std::string* str = base.get<std::string>();
  if (!list && !str) fault(e, fmt::format("{} cannot be sliced", type_of(base)));
  const int64_t n = static_cast<int64_t>(list ? list->size() : str->size());
  const int64_t stride = e.kids[3] ? integer(*e.kids[3]) : 1;
  if (stride < 1) fault(e, "the step of a slice must be positive");
  auto bound = [&](const ExprPtr& x, int64_t otherwise) {
    if (!x) return otherwise;
    const int64_t v = integer(*x);
    const int64_t k = v < 0 ? v + n : v;
    return k < 0 ? int64_t{0} : k > n ? n : k;
  };
  const int64_t from = bound(e.kids[1], 0), to = bound(e.kids[2], n);
  List items;
  std::string text;
  for (int64_t i = from; i<to; i += stride> n ? n + 1 : stride) {
    charge(1, e);
    if (list)
      items.push_back((*list)[i]);
    else
      text += (*str)[i];
  }
  return list ? Val(std::move(items)) : Val(std::move(text));
}

Val Evaluator::field(const Expr& e) {
  const Val base = eval(*e.kids[0]);
  if (base.map()) {
    if (const Val* v = base.field(e.name)) return *v;
    fault(e, fmt::format("no field {} in {}", e.name, text_of(base)));
  }
  return host_.field(base, e.name, e);
}

// ---- Arithmetic ----------------------------------------------------------------------------------------------------

namespace {

Val integer_op(Op op, int64_t a, int64_t b, const Expr& at) {
  int64_t r = 0;
  bool overflow = false;
  if ((op == Op::FloorDiv || op == Op::Mod) && b == 0) fault(at, "division by zero");
  switch (op) {
    case Op::Add:
      overflow = __builtin_add_overflow(a, b, &r);
      break;
    case Op::Sub:
      overflow = __builtin_sub_overflow(a, b, &r);
      break;
    case Op::Mul:
      overflow = __builtin_mul_overflow(a, b, &r);
      break;
    case Op::FloorDiv:
      if (b == -1)
        overflow = __builtin_sub_overflow(int64_t{0}, a, &r);
      else
        r = a / b - (a % b != 0 && (a < 0) != (b < 0));
      break;
    case Op::Mod:
      r = b == -1 ? 0 : a % b;
      if (r != 0 && (r < 0) != (b < 0)) r += b;
      break;
    default: {  // Pow with b >= 0
      r = 1;
      for (int64_t base = a, e = b; e > 0 && !overflow; e >>= 1) {
        if (e & 1) overflow = __builtin_mul_overflow(r, base, &r);
        if (e > 1 && !overflow) overflow = __builtin_mul_overflow(base, base, &base);
      }
    }
  }
  if (overflow) fault(at, fmt::format("{} {} {} leaves 64 bits", a, op_text(op), b));
  return Val(r);
}

Val number_op(Op op, const Val& a, const Val& b, const Expr& at) {
  const int64_t *i = a.get<int64_t>(), *j = b.get<int64_t>();
  if (i && j && op != Op::Div && (op != Op::Pow || *j >= 0)) return integer_op(op, *i, *j, at);
  const double x = a.as_double(), y = b.as_double();
  if ((op == Op::Div || op == Op::FloorDiv || op == Op::Mod) && y == 0) fault(at, "division by zero");
  switch (op) {
    case Op::Add:
      return Val(x + y);
    case Op::Sub:
      return Val(x - y);
    case Op::Mul:
      return Val(x * y);
    case Op::Div:
      return Val(x / y);
    case Op::FloorDiv:
      return Val(std::floor(x / y));
    case Op::Mod:
      return Val(x - y * std::floor(x / y));
    default:
      return Val(std::pow(x, y));
  }
}

bool order(Op op, const Val& a, const Val& b, const Expr& at) {
  const std::string *s = a.get<std::string>(), *t = b.get<std::string>();
  double d = 0;
  if (s && t)
    d = s->compare(*t);
  else if (a.number() && b.number()) {
    const double x = a.as_double(), y = b.as_double();
    d = x < y ? -1 : x > y ? 1 : x == y ? 0 : NAN;
  } else {
    fault(at, fmt::format("{} does not compare {} and {}", op_text(op), type_of(a), type_of(b)));
  }
  switch (op) {
    case Op::Lt:
      return d < 0;
    case Op::Le:
      return d <= 0;
    case Op::Gt:
      return d > 0;
    default:
      return d >= 0;
  }
}

bool contains(const Val& item, const Val& in, const Expr& at) {
  if (const List* l = in.list()) {
    for (const Val& v : *l)
      if (equal(v, item)) return true;
    return false;
  }
  const std::string* s = item.get<std::string>();
  if (s && in.map()) return in.field(*s) != nullptr;
  if (s && in.get<std::string>()) return in.get<std::string>()->find(*s) != std::string::npos;
  fault(at, fmt::format("expected a list, map or string after in, got {}", type_of(in)));
}

}  // namespace

Val Evaluator::binary(const Expr& e) {
  const Val a = eval(*e.kids[0]);
  if (e.op == Op::Neg) {
    if (const int64_t* i = a.get<int64_t>()) return integer_op(Op::Sub, 0, *i, e);
    if (const double* d = a.get<double>()) return Val(-*d);
    return host_.unary(e.op, a, e);
  }
  const Val b = eval(*e.kids[1]);
  switch (e.op) {
    case Op::Eq:
      return Val(equal(a, b));
    case Op::Ne:
      return Val(!equal(a, b));
    case Op::In:
      return Val(contains(a, b, e));
    case Op::NotIn:
      return Val(!contains(a, b, e));
    case Op::Lt:
    case Op::Le:
    case Op::Gt:
    case Op::Ge:
      return Val(order(e.op, a, b, e));
    default:
      break;
  }
  if (a.number() && b.number()) return number_op(e.op, a, b, e);
  if (e.op == Op::Add && a.get<std::string>() && b.get<std::string>()) {
    charge((a.get<std::string>()->size() + b.get<std::string>()->size()) / 16 + 1, e);
    return Val(*a.get<std::string>() + *b.get<std::string>());
  }
  if (e.op == Op::Add && a.list() && b.list()) {
    charge(a.list()->size() + b.list()->size(), e);
    List out = *a.list();
    out.insert(out.end(), b.list()->begin(), b.list()->end());
    return Val(std::move(out));
  }
  return host_.binary(e.op, a, b, e);
}

// ---- Functions on plain values -------------------------------------------------------------------------------------

const std::vector<std::string>& builtin_functions() {
  static const std::vector<std::string> names = {"ln",  "exp",   "sqrt", "floor", "ceil", "abs", "min", "max", "sum",
                                                 "len", "range", "int",  "float", "str",  "any", "all", "zip", "error"};
  return names;
}

static Val extreme(const std::string& name, const Args& args, const Expr& at) {
  const List list =
      args.positional.size() == 1 && args.positional[0].list() ? *args.positional[0].list() : args.positional;
  if (list.empty()) fault(at, fmt::format("{} of nothing", name));
  Val best = list[0];
  for (const Val& v : list) {
    if (!v.number()) fault(at, fmt::format("{} needs numbers, got {}", name, type_of(v)));
    if (name == "min" ? v.as_double() < best.as_double() : v.as_double() > best.as_double()) best = v;
  }
  return best;
}

static Val to_integer(double d, const Expr& at) {
  if (!(d > -9.2e18 && d < 9.2e18)) fault(at, fmt::format("{} is no integer of 64 bits", d));
  return Val(static_cast<int64_t>(d));
}

static Val one_number(const std::string& name, const Val& v, const Expr& at) {
  if (!v.number()) fault(at, fmt::format("{} needs a number, got {}", name, type_of(v)));
  const double d = v.as_double();
  if (name == "abs" && v.get<int64_t>())
    return *v.get<int64_t>() < 0 ? integer_op(Op::Sub, 0, *v.get<int64_t>(), at) : v;
  if (name == "abs") return Val(std::fabs(d));
  if (name == "exp") return Val(std::exp(d));
  if (name == "float") return Val(d);
  if (name == "floor" || name == "ceil" || name == "int")
    return v.get<int64_t>() ? v
                            : to_integer(name == "floor"  ? std::floor(d)
                                         : name == "ceil" ? std::ceil(d)
                                                          : std::trunc(d),
                                         at);
  if (name == "ln" && !(d > 0)) fault(at, fmt::format("ln of {}", d));
  if (name == "sqrt" && !(d >= 0)) fault(at, fmt::format("sqrt of {}", d));
  return Val(name == "ln" ? std::log(d) : std::sqrt(d));
}

static List as_list(const Val& v, const std::string& fn, const Expr& at) {
  if (!v.list()) fault(at, fmt::format("{} needs a list, got {}", fn, type_of(v)));
  return *v.list();
}

Val Evaluator::builtin(const std::string& name, const Args& args, const Expr& at, bool&) {
  if (!args.named.empty()) fault(at, fmt::format("{} takes no named arguments", name));
  const auto& p = args.positional;
  if (name == "min" || name == "max") return extreme(name, args, at);
  if (name == "range") {
    if (p.empty() || p.size() > 2) fault(at, "range takes one or two integers");
    for (const Val& v : p)
      if (!v.get<int64_t>()) fault(at, fmt::format("range needs integers, got {}", type_of(v)));
    const int64_t from = p.size() == 2 ? *p[0].get<int64_t>() : 0, to = *p.back().get<int64_t>();
    if (to <= from) return Val(List{});
    charge(static_cast<uint64_t>(to) - static_cast<uint64_t>(from), at);
    List out;
    for (int64_t i = from; i < to; ++i) out.push_back(Val(i));
    return Val(std::move(out));
  }
  if (name == "zip") {
    if (p.size() != 2) fault(at, "zip takes two lists");
    const List a = as_list(p[0], name, at), b = as_list(p[1], name, at);
    List out;
    charge(3 * std::min(a.size(), b.size()), at);
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) out.push_back(Val(List{a[i], b[i]}));
    return Val(std::move(out));
  }
  if (p.size() != 1) fault(at, fmt::format("{} takes one argument, got {}", name, p.size()));
  const Val& v = p[0];
  if (name == "error") fault(at, v.get<std::string>() ? *v.get<std::string>() : text_of(v));
  if (name == "str")
    return v.get<std::string>() ? v : Val(v.get<int64_t>() ? fmt::format("{}", *v.get<int64_t>()) : text_of(v));
  if (name == "len") {
    if (v.list()) return Val(static_cast<int64_t>(v.list()->size()));
    if (v.map()) return Val(static_cast<int64_t>(v.map()->size()));
    if (v.get<std::string>()) return Val(static_cast<int64_t>(v.get<std::string>()->size()));
    fault(at, fmt::format("{} has no length", type_of(v)));
  }
  if (name == "any" || name == "all") {
    for (const Val& item : as_list(v, name, at)) {
      if (!item.get<bool>()) fault(at, fmt::format("{} needs booleans, got {}", name, type_of(item)));
      if (*item.get<bool>() == (name == "any")) return Val(name == "any");
    }
    return Val(name == "all");
  }
  if (name == "sum") {
    Val total(int64_t{0});
    for (const Val& item : as_list(v, name, at)) {
      if (!item.number()) fault(at, fmt::format("sum needs numbers, got {}", type_of(item)));
      total = number_op(Op::Add, total, item, at);
    }
    return total;
  }
  if (name == "int" && v.get<std::string>()) {
    try {
      return Val(static_cast<int64_t>(std::stoll(*v.get<std::string>())));
    } catch (const std::exception&) {
      fault(at, fmt::format("{} is no integer", text_of(v)));
    }
  }
  if ((name == "exp" || name == "sqrt" || name == "abs") && v.get<TensorRef>()) return host_.call(name, args, at);
  return one_number(name, v, at);
}

std::string Evaluator::interpolate(const Interpolated& t) {
  std::string out = t.text[0];
  for (size_t i = 0; i < t.exprs.size(); ++i) {
    const Val v = eval(*t.exprs[i]);
    if (const std::string* s = v.get<std::string>())
      out += *s;
    else if (const int64_t* n = v.get<int64_t>())
      out += fmt::format("{}", *n);
    else
      fault(*t.exprs[i], fmt::format("expected a string or an integer in a name, got {}", type_of(v)));
    out += t.text[i + 1];
    if (out.size() > 4096) fault(*t.exprs[i], "a name longer than 4096 characters");
  }
  return out;
}

}  // namespace dgpu::model
