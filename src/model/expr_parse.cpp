// Lexer and recursive-descent parser. Precedence, loosest first: if-else, or, and, not, comparison and in, + -,
// * / // %, unary -, **, then calls, indices and fields.
#include <charconv>
#include <cmath>
#include <cstring>

#include "model/expr.h"

namespace dgpu::model {

void fault(const Source& at, uint32_t column, std::string message, Status status) {
  throw Fault{status, at.file,
              fmt::format("{}: {}, column {}: {}; text: {}", at.file, at.place, column, message,
                          at.text.size() > 160 ? at.text.substr(0, 160) + "..." : at.text)};
}
void fault(const Expr& at, std::string message, Status status) {
  fault(*at.source, at.column, std::move(message), status);
}

namespace {

constexpr uint32_t kMaxDepth = 60;
constexpr size_t kMaxText = 20'000;

enum class Tok : uint8_t { End, Name, Int, Float, String, Punct };
struct Token {
  Tok kind = Tok::End;
  uint32_t begin = 0, end = 0;  // offsets in the text
  std::string text;             // of a string: unescaped
};

bool name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool digit(char c) { return c >= '0' && c <= '9'; }

class Parser {
 public:
  Parser(const Source& source, size_t from = 0) : src_(source), text_(source.text), at_(from) {
    if (text_.size() > kMaxText)
      fault(src_, 1, fmt::format("{} characters, expected at most {}", text_.size(), kMaxText),
            DGPU_STATUS_PARSE_ERROR);
    next();
  }

  [[noreturn]] void expected(std::string_view what) {
    const std::string found =
        tok_.kind == Tok::End ? "the end" : "'" + text_.substr(tok_.begin, tok_.end - tok_.begin) + "'";
    fault(src_, tok_.begin + 1, fmt::format("expected {}, found {}", what, found), DGPU_STATUS_PARSE_ERROR);
  }
  bool is(std::string_view p) const { return (tok_.kind == Tok::Punct || tok_.kind == Tok::Name) && tok_.text == p; }
  bool take(std::string_view p) {
    if (!is(p)) return false;
    next();
    return true;
  }
  void need(std::string_view p) {
    if (!take(p)) expected(fmt::format("'{}'", p));
  }
  bool at_end() const { return tok_.kind == Tok::End; }
  void need_end() {
    if (!at_end()) expected("the end");
  }
  uint32_t offset() const { return tok_.begin; }

  std::string identifier(std::string_view what) {
    if (tok_.kind != Tok::Name || reserved(tok_.text)) expected(what);
    std::string out = tok_.text;
    next();
    return out;
  }

  ExprPtr expr() {
    Deeper deeper(*this);
    ExprPtr then = logic_or();
    if (!is("if")) return then;
    const Mark mark = save();
    next();
    ExprPtr condition = logic_or();
    if (!is("else")) {  // a condition on the statement: left to the caller
      restore(mark);
      return then;
    }
    next();
    return node(Op::If, then->column, std::move(then), std::move(condition), expr());
  }

  // expr [@ name]
  ExprPtr tapped() {
    ExprPtr e = expr();
    while (is("@")) {
      auto tap = node(Op::Tap, tok_.begin + 1, std::move(e));
      next();
      tap->name = identifier("the name of a tap");
      while (take(".")) tap->name += "." + identifier("a name");
      e = std::move(tap);
    }
    return e;
  }

  ExprPtr logic_or_public() { return logic_or(); }
  ExprPtr list_public() {
    if (!is("[")) expected("'[' and the shape");
    return primary();
  }
  Token& token() { return tok_; }
  void advance() { next(); }

  static bool reserved(std::string_view w) {
    static const char* const words[] = {"if",     "else", "and",   "or",   "not",  "in",    "for", "lambda",
                                        "return", "true", "false", "null", "True", "False", "None"};
    for (const char* r : words)
      if (w == r) return true;
    return false;
  }

 private:
  struct Deeper {
    explicit Deeper(Parser& parser) : p(parser) {
      if (++p.depth_ > kMaxDepth)
        fault(p.src_, p.tok_.begin + 1, fmt::format("nested more than {} deep", kMaxDepth), DGPU_STATUS_PARSE_ERROR);
    }
    ~Deeper() { --p.depth_; }
    Parser& p;
  };
  struct Mark {
    size_t at;
    Token tok;
  };
  Mark save() const { return {at_, tok_}; }
  void restore(const Mark& m) { at_ = m.at, tok_ = m.tok; }

  template <typename... Kids>
  ExprPtr node(Op op, uint32_t column, Kids&&... kids) {
    auto e = std::make_unique<Expr>();
    e->op = op, e->column = column, e->source = &src_;
    (e->kids.push_back(std::forward<Kids>(kids)), ...);
    return e;
  }

  void next() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n')) ++at_;
    tok_ = Token{};
    tok_.begin = tok_.end = static_cast<uint32_t>(at_);
    if (at_ >= text_.size()) return;
    const char c = text_[at_];
    if (name_start(c))
      lex_name();
    else if (digit(c))
      lex_number();
    else if (c == '\'' || c == '"')
      lex_string(c);
    else
      lex_punct();
    tok_.end = static_cast<uint32_t>(at_);
  }
  void lex_name() {
    const size_t from = at_;
    while (at_ < text_.size() && (name_start(text_[at_]) || digit(text_[at_]))) ++at_;
    tok_.kind = Tok::Name, tok_.text = text_.substr(from, at_ - from);
  }
  void lex_number() {
    const size_t from = at_;
    bool integer = true;
    while (at_ < text_.size() && digit(text_[at_])) ++at_;
    if (at_ + 1 < text_.size() && text_[at_] == '.' && digit(text_[at_ + 1])) {
      integer = false, ++at_;
      while (at_ < text_.size() && digit(text_[at_])) ++at_;
    }
    if (at_ < text_.size() && (text_[at_] == 'e' || text_[at_] == 'E')) {
      size_t p = at_ + 1;
      if (p < text_.size() && (text_[p] == '+' || text_[p] == '-')) ++p;
      if (p < text_.size() && digit(text_[p])) {
        integer = false;
        while (p < text_.size() && digit(text_[p])) ++p;
        at_ = p;
      }
    }
    tok_.kind = integer ? Tok::Int : Tok::Float, tok_.text = text_.substr(from, at_ - from);
  }
  void lex_string(char quote) {
    const size_t from = at_++;
    tok_.kind = Tok::String;
    while (at_ < text_.size() && text_[at_] != quote) {
      if (text_[at_] == '\\' && at_ + 1 < text_.size()) ++at_;
      tok_.text += text_[at_++];
    }
    if (at_ >= text_.size())
      fault(src_, static_cast<uint32_t>(from + 1), "the string is not closed", DGPU_STATUS_PARSE_ERROR);
    ++at_;
  }
  void lex_punct() {
    static const char* const two[] = {"**", "//", "==", "!=", "<=", ">="};
    tok_.kind = Tok::Punct;
    for (const char* p : two)
      if (text_.compare(at_, 2, p) == 0) {
        tok_.text = p, at_ += 2;
        return;
      }
    if (!std::strchr("+-*/%<>=()[]{},.:@\\|", text_[at_]))
      fault(src_, static_cast<uint32_t>(at_ + 1), fmt::format("'{}' has no meaning here", text_[at_]),
            DGPU_STATUS_PARSE_ERROR);
    tok_.text = text_[at_++];
  }

  ExprPtr logic_or() {
    ExprPtr a = logic_and();
    while (is("or")) {
      next();
      a = node(Op::Or, a->column, std::move(a), logic_and());
    }
    return a;
  }
  ExprPtr logic_and() {
    ExprPtr a = logic_not();
    while (is("and")) {
      next();
      a = node(Op::And, a->column, std::move(a), logic_not());
    }
    return a;
  }
  ExprPtr logic_not() {
    if (!is("not")) return comparison();
    Deeper deeper(*this);
    const uint32_t column = tok_.begin + 1;
    next();
    return node(Op::Not, column, logic_not());
  }
  ExprPtr comparison() {
    ExprPtr a = sum();
    static const std::pair<const char*, Op> ops[] = {{"==", Op::Eq}, {"!=", Op::Ne}, {"<", Op::Lt},
                                                     {"<=", Op::Le}, {">", Op::Gt},  {">=", Op::Ge}};
    for (const auto& [text, op] : ops)
      if (tok_.kind == Tok::Punct && is(text)) {
        const uint32_t column = tok_.begin + 1;
        next();
        return node(op, column, std::move(a), sum());
      }
    const uint32_t column = tok_.begin + 1;
    if (take("in")) return node(Op::In, column, std::move(a), sum());
    if (is("not")) {
      next();
      need("in");
      return node(Op::NotIn, column, std::move(a), sum());
    }
    return a;
  }
  ExprPtr sum() {
    ExprPtr a = product();
    while (tok_.kind == Tok::Punct && (is("+") || is("-"))) {
      const Op op = is("+") ? Op::Add : Op::Sub;
      const uint32_t column = tok_.begin + 1;
      next();
      a = node(op, column, std::move(a), product());
    }
    return a;
  }
  ExprPtr product() {
    ExprPtr a = negation();
    static const std::pair<const char*, Op> ops[] = {
        {"*", Op::Mul}, {"/", Op::Div}, {"//", Op::FloorDiv}, {"%", Op::Mod}};
    for (bool more = true; more;) {
      more = false;
      for (const auto& [text, op] : ops) {
        if (tok_.kind != Tok::Punct || !is(text)) continue;
        const uint32_t column = tok_.begin + 1;
        next();
        a = node(op, column, std::move(a), negation());
        more = true;
        break;
      }
    }
    return a;
  }
  ExprPtr negation() {
    if (tok_.kind != Tok::Punct || !is("-")) return power();
    Deeper deeper(*this);
    const uint32_t column = tok_.begin + 1;
    next();
    return node(Op::Neg, column, negation());
  }
  ExprPtr power() {
    ExprPtr a = postfix();
    if (!is("**")) return a;
    Deeper deeper(*this);
    const uint32_t column = tok_.begin + 1;
    next();
    return node(Op::Pow, column, std::move(a), negation());  // binds to the right: 2 ** -x
  }

  ExprPtr postfix() {
    ExprPtr a = primary();
    for (;;) {
      const uint32_t column = tok_.begin + 1;
      if (take(".")) {
        auto f = node(Op::Field, column, std::move(a));
        f->name = identifier("the name of a field");
        a = std::move(f);
      } else if (tok_.kind == Tok::Punct && is("(")) {
        a = arguments(std::move(a));
      } else if (tok_.kind == Tok::Punct && is("[")) {
        a = subscript(std::move(a));
      } else {
        return a;
      }
    }
  }
  ExprPtr arguments(ExprPtr callee) {
    auto call = node(Op::Call, callee->column, std::move(callee));
    need("(");
    while (!take(")")) {
      if (call->kids.size() > 1) {
        need(",");
        if (take(")")) break;
      }
      call->kids.push_back(argument());
    }
    return call;
  }
  ExprPtr argument() {
    if (tok_.kind == Tok::Name && !reserved(tok_.text)) {
      const Mark mark = save();
      const std::string name = tok_.text;
      next();
      if (tok_.kind == Tok::Punct && tok_.text == "=") {
        auto named = node(Op::Named, mark.tok.begin + 1);
        next();
        named->name = name;
        named->kids.push_back(tapped());
        return named;
      }
      restore(mark);
    }
    return tapped();
  }
  // [i], [i,j] or [a:b:c]
  ExprPtr subscript(ExprPtr base) {
    const uint32_t column = tok_.begin + 1;
    need("[");
    ExprPtr first = is(":") ? nullptr : expr();
    if (!is(":")) {
      auto e = node(Op::Index, column, std::move(base), std::move(first));
      while (take(",")) e->kids.push_back(expr());
      need("]");
      return e;
    }
    need(":");
    ExprPtr stop = is("]") || is(":") ? nullptr : expr();
    ExprPtr step = take(":") && !is("]") ? expr() : nullptr;
    need("]");
    return node(Op::Slice, column, std::move(base), std::move(first), std::move(stop), std::move(step));
  }

  ExprPtr primary() {
    Deeper deeper(*this);
    const uint32_t column = tok_.begin + 1;
    switch (tok_.kind) {
      case Tok::Int:
        return integer(column);
      case Tok::Float:
        return literal(column, Val(std::strtod(tok_.text.c_str(), nullptr)));
      case Tok::String:
        return literal(column, Val(tok_.text));
      case Tok::Name:
        return word(column);
      default:
        break;
    }
    if (take("(")) return parenthesised(column);
    if (is("[")) return list(column);
    if (is("{")) return map(column);
    if (take("\\")) return lambda(column);
    expected("a value");
  }
  ExprPtr literal(uint32_t column, Val value) {
    auto e = node(Op::Literal, column);
    e->literal = std::move(value);
    next();
    return e;
  }
  ExprPtr integer(uint32_t column) {
    int64_t v = 0;
    const char *b = tok_.text.data(), *end = b + tok_.text.size();
    if (std::from_chars(b, end, v).ec != std::errc()) expected("an integer of 64 bits");
    return literal(column, Val(v));
  }
  ExprPtr word(uint32_t column) {
    const std::string w = tok_.text;
    if (w == "true" || w == "True") return literal(column, Val(true));
    if (w == "false" || w == "False") return literal(column, Val(false));
    if (w == "null" || w == "None") return literal(column, Val());
    if (w == "lambda") return next(), lambda(column);
    if (reserved(w)) expected("a value");
    auto e = node(Op::Name, column);
    e->name = w;
    next();
    return e;
  }
  ExprPtr parenthesised(uint32_t column) {
    ExprPtr first = tapped();
    if (!is(",")) {
      need(")");
      return first;
    }
    auto tuple = node(Op::MakeList, column, std::move(first));
    while (take(",") && !is(")")) tuple->kids.push_back(tapped());
    need(")");
    return tuple;
  }
  ExprPtr list(uint32_t column) {
    need("[");
    auto out = node(Op::MakeList, column);
    if (take("]")) return out;
    out->kids.push_back(tapped());
    if (is("for")) return comprehension(column, std::move(out->kids[0]));
    while (take(",") && !is("]")) out->kids.push_back(tapped());
    need("]");
    return out;
  }
  // kids: element, sequence, condition or null
  ExprPtr comprehension(uint32_t column, ExprPtr element) {
    need("for");
    auto out = node(Op::Comprehension, column, std::move(element));
    do out->names.push_back(identifier("a variable"));
    while (take(","));
    need("in");
    out->kids.push_back(logic_or());
    out->kids.push_back(take("if") ? logic_or() : nullptr);
    need("]");
    return out;
  }
  ExprPtr map(uint32_t column) {
    need("{");
    auto out = node(Op::MakeMap, column);
    while (!take("}")) {
      if (!out->kids.empty()) {
        need(",");
        if (take("}")) break;
      }
      out->kids.push_back(expr());
      need(":");
      out->kids.push_back(expr());
    }
    return out;
  }
  ExprPtr lambda(uint32_t column) {
    auto out = node(Op::MakeLambda, column);
    while (!is(":")) {
      if (!out->names.empty()) need(",");
      out->names.push_back(identifier("a parameter or ':'"));
    }
    need(":");
    out->kids.push_back(expr());
    return out;
  }

  const Source& src_;
  const std::string& text_;
  size_t at_;
  Token tok_;
  uint32_t depth_ = 0;
};

}  // namespace

ExprPtr parse_expr(const Source& source) {
  Parser p(source);
  ExprPtr e = p.tapped();
  p.need_end();
  return e;
}

Statement parse_statement(const Source& source) {
  Statement out;
  Parser p(source);
  if (p.take("return")) {
    out.is_return = true;
    if (!p.at_end() && !p.is("if")) {
      do out.values.push_back(p.tapped());
      while (p.take(","));
    }
  } else {
    // Targets are names up to '='; anything else is an expression for its effect.
    const size_t eq = [&] {
      size_t at = 0;
      const std::string& t = source.text;
      while (at < t.size() && (name_start(t[at]) || digit(t[at]) || t[at] == ' ' || t[at] == ',')) ++at;
      return at > 0 && at < t.size() && t[at] == '=' && t.compare(at, 2, "==") != 0 ? at : std::string::npos;
    }();
    if (eq != std::string::npos) {
      do out.targets.push_back(p.identifier("the name of a value"));
      while (p.take(","));
      p.need("=");
    }
    out.values.push_back(p.tapped());
  }
  if (p.take("if")) out.condition = p.logic_or_public();
  p.need_end();
  return out;
}

// End of a weight's name: the first blank outside braces.
static size_t name_end(const std::string& text, size_t from) {
  int depth = 0;
  size_t at = from;
  for (; at < text.size(); ++at) {
    if (text[at] == '{') ++depth;
    if (text[at] == '}') --depth;
    if (text[at] == ' ' && depth <= 0) break;
  }
  return at;
}

WeightText parse_weight(const Source& source) {
  WeightText out;
  const size_t start = source.text.find_first_not_of(' ');
  if (start == std::string::npos) fault(source, 1, "expected the name of a checkpoint tensor", DGPU_STATUS_PARSE_ERROR);
  const size_t end = name_end(source.text, start);
  out.name = source.text.substr(start, end - start);
  Parser p(source, end);
  out.shape = p.list_public();
  while (!p.at_end()) {
    if (p.take("|")) {
      WeightText::Step& step = out.steps.emplace_back();
      step.fn = p.identifier("slice, transpose or reshape");
      if (step.fn != "slice" && step.fn != "transpose" && step.fn != "reshape")
        fault(source, p.offset() + 1, fmt::format("expected slice, transpose or reshape, found {}", step.fn),
              DGPU_STATUS_PARSE_ERROR);
      p.need("(");
      while (!p.take(")")) {
        if (!step.args.empty()) p.need(",");
        step.args.push_back(p.expr());
      }
    } else if (p.take("each")) {
      out.each = p.identifier("the variable of each");
      p.need("<");
      out.each_count = p.logic_or_public();
    } else if (p.take("tp")) {
      p.need("=");
      const uint32_t column = p.offset() + 1;
      bool known = false;
      out.tp = p.identifier("col, row, vocab, expert or head");
      for (const char* hint : {"col", "row", "vocab", "expert", "head"}) known |= out.tp == hint;
      if (!known)
        fault(source, column, fmt::format("expected col, row, vocab, expert or head, found {}", out.tp),
              DGPU_STATUS_PARSE_ERROR);
    } else if (p.is("f32") || p.is("i64") || p.is("i32")) {
      out.dtype = p.identifier("a type");
    } else if (p.take("if")) {
      out.condition = p.logic_or_public();
    } else {
      p.expected("tp=, f32, i64, each, |, if or the end");
    }
  }
  return out;
}

Interpolated parse_interpolated(const Source& source) {
  Interpolated out;
  const std::string& t = source.text;
  size_t at = 0;
  for (;;) {
    const size_t open = t.find('{', at);
    out.text.push_back(t.substr(at, open == std::string::npos ? std::string::npos : open - at));
    if (open == std::string::npos) return out;
    Parser p(source, open + 1);
    out.exprs.push_back(p.expr());
    if (!p.is("}")) p.expected("'}'");
    at = p.offset() + 1;
  }
}

void collect_names(const Expr& e, std::vector<std::string>& used, std::vector<std::string>& bound) {
  if (e.op == Op::Name) used.push_back(e.name);
  bound.insert(bound.end(), e.names.begin(), e.names.end());
  for (const auto& kid : e.kids)
    if (kid) collect_names(*kid, used, bound);
}

}  // namespace dgpu::model
