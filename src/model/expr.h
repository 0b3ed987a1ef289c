// The language of templates: one small grammar for shapes, scalars and dataflow. docs/templates.md is its manual.
// Parsing and evaluation are bounded (depth, steps, sizes), since templates are user files.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"

namespace dgpu::model {

// ---- Errors --------------------------------------------------------------------------------------------------------

// Thrown inside the model room only; the room's entry points turn it into fail(status, object, message).
struct Fault {
  Status status = DGPU_STATUS_INVALID_ARGUMENT;
  std::string object;
  std::string message;
};

// Where an expression was written: "llama.json", "blocks.attn.flow[3]" and the text itself.
struct Source {
  std::string file, place, text;
};

// ---- Values --------------------------------------------------------------------------------------------------------

struct Expr;
class Val;
using List = std::vector<Val>;
using Map = std::vector<std::pair<std::string, Val>>;
struct Lambda {
  std::vector<std::string> params;
  const Expr* body = nullptr;  // owned by the template, which outlives evaluation
  std::vector<std::pair<std::string, Val>> captured;
};
struct Null {};
struct TensorRef {
  uint32_t id;
};  // value of the program under construction
struct DimRef {
  uint32_t symbol;
};  // symbolic extent
struct StateRef {
  uint32_t group;
};  // states of one declaration; see builder

class Val {
 public:
  using Variant = std::variant<Null, bool, int64_t, double, std::string, std::shared_ptr<const List>,
                               std::shared_ptr<const Map>, std::shared_ptr<const Lambda>, TensorRef, DimRef, StateRef>;
  Val();  // null
  // Not inline: small code, and no false alarms of the compiler about the variant.
  Val(const Val& other);
  Val(Val&& other) noexcept;
  Val& operator=(const Val& other);
  Val& operator=(Val&& other) noexcept;
  ~Val();
  Val(bool v) : v_(v) {}
  Val(int64_t v) : v_(v) {}
  Val(double v) : v_(v) {}
  Val(std::string v) : v_(std::move(v)) {}
  Val(const char* v) : v_(std::string(v)) {}
  Val(List v) : v_(std::make_shared<const List>(std::move(v))) {}
  Val(Map v) : v_(std::make_shared<const Map>(std::move(v))) {}
  Val(Lambda v) : v_(std::make_shared<const Lambda>(std::move(v))) {}
  Val(TensorRef v) : v_(v) {}
  Val(DimRef v) : v_(v) {}
  Val(StateRef v) : v_(v) {}

  template <typename T>
  const T* get() const {
    return std::get_if<T>(&v_);
  }
  const List* list() const { return ref<List>(); }
  const Map* map() const { return ref<Map>(); }
  const Lambda* lambda() const { return ref<Lambda>(); }
  bool null() const { return get<Null>() != nullptr; }
  bool number() const { return get<int64_t>() || get<double>(); }
  double as_double() const { return get<int64_t>() ? static_cast<double>(*get<int64_t>()) : *get<double>(); }
  const Val* field(std::string_view name) const;  // of a map

 private:
  template <typename T>
  const T* ref() const {
    const auto* p = std::get_if<std::shared_ptr<const T>>(&v_);
    return p ? p->get() : nullptr;
  }
  Variant v_;
};
std::string type_of(const Val& v);  // "an integer"
std::string text_of(const Val& v);  // as it would be written; at most about 200 characters
bool equal(const Val& a, const Val& b);

// ---- Syntax --------------------------------------------------------------------------------------------------------

enum class Op : uint8_t {
  Literal,
  Name,
  MakeList,
  MakeMap,
  Comprehension,
  MakeLambda,
  Index,
  Slice,
  Field,
  Call,
  Named,  // Named: an argument name=value
  Neg,
  Not,
  Add,
  Sub,
  Mul,
  Div,
  FloorDiv,
  Mod,
  Pow,
  Eq,
  Ne,
  Lt,
  Le,
  Gt,
  Ge,
  In,
  NotIn,
  And,
  Or,
  If,
  Tap
};

struct Expr {
  Op op = Op::Literal;
  uint32_t column = 0;  // in source->text, from 1
  std::string name;     // Name, Field, Named, Tap
  Val literal;
  std::vector<std::string> names;           // parameters of a lambda or comprehension
  std::vector<std::unique_ptr<Expr>> kids;  // null where optional and left out
  const Source* source = nullptr;
};
using ExprPtr = std::unique_ptr<Expr>;

// x, y = expr [if cond]  |  return a, b [if cond]  |  expr [if cond]
struct Statement {
  std::vector<std::string> targets;
  std::vector<ExprPtr> values;  // more than one only with return
  ExprPtr condition;
  bool is_return = false;
};

// name [shape] options: one checkpoint tensor (or a stack of them) as a weight.
struct WeightText {
  struct Step {
    std::string fn;  // slice, transpose, reshape
    std::vector<ExprPtr> args;
  };
  std::string name;  // with {expr}
  ExprPtr shape;
  std::vector<Step> steps;
  std::string each;  // stacked over this variable
  ExprPtr each_count;
  std::string tp, dtype;  // dtype: "", "f32", "i64", "i32"
  ExprPtr condition;
};

// Text with {expr} in it.
struct Interpolated {
  std::vector<std::string> text;  // one more than exprs
  std::vector<ExprPtr> exprs;
};

// All throw Fault (PARSE_ERROR). `source` must outlive the result.
ExprPtr parse_expr(const Source& source);
Statement parse_statement(const Source& source);
WeightText parse_weight(const Source& source);
Interpolated parse_interpolated(const Source& source);
// Every name that the expression mentions freely, and the names that it binds itself.
void collect_names(const Expr& expr, std::vector<std::string>& used, std::vector<std::string>& bound);

[[noreturn]] void fault(const Expr& at, std::string message, Status status = DGPU_STATUS_INVALID_ARGUMENT);
[[noreturn]] void fault(const Source& at, uint32_t column, std::string message,
                        Status status = DGPU_STATUS_INVALID_ARGUMENT);

// ---- Evaluation ----------------------------------------------------------------------------------------------------

struct Args {
  std::vector<Val> positional;
  std::vector<std::pair<std::string, Val>> named;
  const Val* find(std::string_view name) const;
};

struct Limits {
  uint64_t steps = 30'000'000;    // expression nodes evaluated for one model
  uint64_t elements = 4'000'000;  // list elements and string bytes / 16 made for one model
  uint32_t depth = 200;           // nested evaluations
};

class Scope;

// What names mean outside an expression. The builder's host also does tensors.
class Host {
 public:
  virtual ~Host() = default;
  virtual bool lookup(std::string_view name, const Expr& at, Val& out) = 0;
  virtual Val call(const std::string& name, const Args& args, const Expr& at) = 0;
  virtual bool callable(std::string_view name) const = 0;
  // Operators on tensors and symbolic extents; the default refuses.
  virtual Val unary(Op op, const Val& x, const Expr& at);
  virtual Val binary(Op op, const Val& a, const Val& b, const Expr& at);
  virtual Val field(const Val& x, const std::string& name, const Expr& at);
  virtual Val index(const Val& x, const std::vector<Val>& indices, const Expr& at);
  virtual Val tap(const Val& x, const std::string& name, const Expr& at);
};

class Evaluator {
 public:
  explicit Evaluator(Host& host, const Limits& limits = {}) : host_(host), limits_(limits) {}
  Val eval(const Expr& expr);
  std::string interpolate(const Interpolated& text);
  Val apply(const Lambda& lambda, const Args& args, const Expr& at);
  int64_t integer(const Expr& expr);  // evaluates and checks
  bool truth(const Expr& expr);
  // Variables of comprehensions, lambdas and `each`, innermost last.
  void push(std::string name, Val value) { locals_.emplace_back(std::move(name), std::move(value)); }
  void pop(size_t count = 1) { locals_.resize(locals_.size() - count); }
  void charge(uint64_t elements, const Expr& at);
  void step(const Expr& at);
  Host& host() { return host_; }
  // While it lives, variables of the surrounding expression are out of sight: a named scalar or a block means the same
  // wherever it is mentioned.
  class Isolation {
   public:
    explicit Isolation(Evaluator& e) : eval_(e) { saved_.swap(e.locals_); }
    ~Isolation() { saved_.swap(eval_.locals_); }
    Isolation(const Isolation&) = delete;

   private:
    Evaluator& eval_;
    std::vector<std::pair<std::string, Val>> saved_;
  };

 private:
  struct Nested;
  Val eval_inner(const Expr& e);
  Val name(const Expr& e);
  Val call(const Expr& e);
  Val comprehension(const Expr& e);
  Val index(const Expr& e);
  Val slice(const Expr& e);
  Val field(const Expr& e);
  Val binary(const Expr& e);
  Val builtin(const std::string& name, const Args& args, const Expr& at, bool& found);
  Host& host_;
  Limits limits_;
  uint64_t steps_ = 0, elements_ = 0;
  uint32_t depth_ = 0;
  std::vector<std::pair<std::string, Val>> locals_;
};

// Names of the functions on plain values that the language has itself.
const std::vector<std::string>& builtin_functions();

}  // namespace dgpu::model
