#include "model/expr_text.h"

#include <fmt/format.h>

#include <algorithm>

namespace dgpu::model {
namespace {

class Writer {
 public:
  Writer(const Lambda& lambda, const std::function<Val(const Expr&)>& value) : lambda_(lambda), value_(value) {}

  std::string text() {
    std::string out = "\\";
    for (size_t i = 0; i < lambda_.params.size(); ++i) out += (i ? "," : "") + lambda_.params[i];
    return out + ": " + write(*lambda_.body);
  }

 private:
  std::string write(const Expr& e) {
    switch (e.op) {
      case Op::Literal:
        return plain(e.literal, e);
      case Op::Name:
        return name(e);
      case Op::Neg:
        return "(-" + write(*e.kids[0]) + ")";
      case Op::Not:
        return "(not " + write(*e.kids[0]) + ")";
      case Op::If:
        return "(" + write(*e.kids[0]) + " if " + write(*e.kids[1]) + " else " + write(*e.kids[2]) + ")";
      case Op::Call:
        return call(e);
      default:
        break;
    }
    static const std::pair<Op, const char*> ops[] = {
        {Op::Add, " + "},       {Op::Sub, " - "}, {Op::Mul, " * "}, {Op::Div, " / "},   {Op::Pow, " ** "},
        {Op::FloorDiv, " // "}, {Op::Mod, " % "}, {Op::Lt, " < "},  {Op::Le, " <= "},   {Op::Gt, " > "},
        {Op::Ge, " >= "},       {Op::Eq, " == "}, {Op::Ne, " != "}, {Op::And, " and "}, {Op::Or, " or "}};
    for (const auto& [op, text] : ops)
      if (op == e.op) return "(" + write(*e.kids[0]) + text + write(*e.kids[1]) + ")";
    fault(e, "a function given to an operator may use arithmetic, comparison, if-else and calls only");
  }
  std::string name(const Expr& e) {
    if (std::find(lambda_.params.begin(), lambda_.params.end(), e.name) != lambda_.params.end()) return e.name;
    for (auto it = lambda_.captured.rbegin(); it != lambda_.captured.rend(); ++it)
      if (it->first == e.name) return plain(it->second, e);
    return plain(value_(e), e);
  }
  static std::string plain(const Val& v, const Expr& e) {
    if (v.number() || v.get<bool>()) return text_of(v);
    fault(e, fmt::format("a function given to an operator may use numbers only, got {}", text_of(v)));
  }
  std::string call(const Expr& e) {
    if (e.kids[0]->op != Op::Name) fault(e, "only a named function can be called here");
    std::string out = e.kids[0]->name + "(";
    for (size_t i = 1; i < e.kids.size(); ++i) out += (i > 1 ? ", " : "") + write(*e.kids[i]);
    return out + ")";
  }

  const Lambda& lambda_;
  const std::function<Val(const Expr&)>& value_;
};

}  // namespace

std::string to_text(const Lambda& lambda, const std::function<Val(const Expr&)>& value) {
  return Writer(lambda, value).text();
}

}  // namespace dgpu::model
