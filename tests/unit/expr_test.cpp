// The language of templates: values, messages, bounds.
#include "model/expr.h"

#include <gtest/gtest.h>

#include <map>

namespace dgpu::model {
namespace {

class Names : public Host {
 public:
  std::map<std::string, Val, std::less<>> values;
  bool lookup(std::string_view name, const Expr&, Val& out) override {
    const auto it = values.find(name);
    if (it == values.end()) return false;
    out = it->second;
    return true;
  }
  Val call(const std::string& name, const Args&, const Expr& at) override { fault(at, "no call of " + name); }
  bool callable(std::string_view) const override { return false; }
};

// The value as text, or the message of the fault.
std::string run(const std::string& text, std::map<std::string, Val, std::less<>> values = {}, Limits limits = {}) {
  Names host;
  host.values = std::move(values);
  const Source source{"t.json", "let.x", text};
  try {
    const ExprPtr e = parse_expr(source);
    Evaluator eval(host, limits);
    return text_of(eval.eval(*e));
  } catch (const Fault& f) {
    return "! " + f.message;
  }
}
bool fails_with(const std::string& result, const std::string& part) {
  return result.substr(0, 1) == "!" && result.find(part) != std::string::npos;
}

TEST(Expr, Arithmetic) {
  EXPECT_EQ(run("1 + 2 * 3 - 4"), "3");
  EXPECT_EQ(run("(1 + 2) * 3"), "9");
  EXPECT_EQ(run("7 // 2"), "3");
  EXPECT_EQ(run("-7 // 2"), "-4");
  EXPECT_EQ(run("-7 % 3"), "2");
  EXPECT_EQ(run("7 / 2"), "3.5");
  EXPECT_EQ(run("2 ** 10"), "1024");
  EXPECT_EQ(run("16 ** -0.5"), "0.25");
  EXPECT_EQ(run("-2 ** 2"), "-4");
  EXPECT_EQ(run("2 ** 3 ** 2"), "512");
  EXPECT_EQ(run("1e-5 * 2"), "2e-05");
  EXPECT_EQ(run("floor(2.7) + ceil(2.1) + int(-1.5)"), "4");
  EXPECT_EQ(run("sqrt(2.25) + ln(exp(1.0))"), "2.5");
  EXPECT_TRUE(fails_with(run("9223372036854775807 + 1"), "leaves 64 bits"));
  EXPECT_TRUE(fails_with(run("3 ** 99"), "leaves 64 bits"));
  EXPECT_TRUE(fails_with(run("1 // 0"), "division by zero"));
  EXPECT_TRUE(fails_with(run("1.0 / 0"), "division by zero"));
  EXPECT_TRUE(fails_with(run("ln(0)"), "ln of 0"));
}

TEST(Expr, LogicAndConditions) {
  EXPECT_EQ(run("1 if 2 > 1 else 1 // 0"), "1");
  EXPECT_EQ(run("true or 1 // 0 == 1"), "true");
  EXPECT_EQ(run("false and 1 // 0 == 1"), "false");
  EXPECT_EQ(run("not 1 == 2"), "true");
  EXPECT_EQ(run("2 in [1, 2] and 3 not in [1, 2]"), "true");
  EXPECT_EQ(run("'ab' in 'cab'"), "true");
  EXPECT_EQ(run("null == None and 1 == 1.0"), "true");
  EXPECT_TRUE(fails_with(run("1 if 2 else 3"), "expected true or false"));
  EXPECT_TRUE(fails_with(run("1 < 'a'"), "does not compare"));
}

TEST(Expr, ListsStringsMapsFunctions) {
  EXPECT_EQ(run("[j * j for j in range(5) if j % 2 == 0]"), "[0, 4, 16]");
  EXPECT_EQ(run("[a + b for a, b in zip([1, 2], [10, 20])]"), "[11, 22]");
  EXPECT_EQ(run("'ME*-M'[2]"), "'*'");
  EXPECT_EQ(run("'ME*-M'[-1] + 'x'"), "'Mx'");
  EXPECT_EQ(run("[1, 2, 3, 4, 5][1:4:2]"), "[2, 4]");
  EXPECT_EQ(run("{'a': 1, 'b': [2]}.b[0]"), "2");
  EXPECT_EQ(run("{'a': 1}['a']"), "1");
  EXPECT_EQ(run("(\\x, y: x * y + z)(2, 3)", {{"z", Val(int64_t{1})}}), "7");
  EXPECT_EQ(run("[f(2) for f in [lambda x: x + 1, lambda x: x * 5]]"), "[3, 10]");
  EXPECT_EQ(run("[(\\x: x + j)(10) for j in range(3)]"), "[10, 11, 12]");
  EXPECT_EQ(run("max([1, 5, 3]) + min(4, 2) + sum([1, 2]) + len('abc')"), "13");
  EXPECT_EQ(run("any([false, true]) and all([])"), "true");
  EXPECT_TRUE(fails_with(run("[1][3]"), "outside 0..0"));
  EXPECT_TRUE(fails_with(run("{'a': 1}.b"), "no field b"));
  EXPECT_TRUE(fails_with(run("error('this size')"), "this size"));
}

TEST(Expr, MessagesNamePlaceColumnAndExpectation) {
  EXPECT_TRUE(fails_with(run("1 + "), "t.json: let.x, column 5: expected a value, found the end"));
  EXPECT_TRUE(fails_with(run("(1, 2"), "expected ')', found the end"));
  EXPECT_TRUE(fails_with(run("a + 1"), "column 1: unknown name a"));
  EXPECT_TRUE(fails_with(run("1 $ 2"), "column 3: '$' has no meaning here"));
  EXPECT_TRUE(fails_with(run("'abc"), "column 1: the string is not closed"));
  EXPECT_TRUE(fails_with(run("f(x=1, x=2)", {{"f", Val()}}), "cannot be called"));
  EXPECT_TRUE(fails_with(run("99999999999999999999"), "expected an integer of 64 bits"));
}

TEST(Expr, HostileTextIsBounded) {
  EXPECT_TRUE(fails_with(run(std::string(5000, '(')), "nested more than"));
  EXPECT_TRUE(fails_with(run(std::string(5000, '-') + "1"), "nested more than"));
  EXPECT_TRUE(fails_with(run(std::string(30000, ' ') + "1"), "characters"));
  EXPECT_TRUE(fails_with(run("len(range(1000000000000))"), "list elements"));
  EXPECT_TRUE(fails_with(run("range(-9223372036854775807, 9223372036854775807)"), "list elements"));
  EXPECT_TRUE(fails_with(run("[[k for k in range(3000)] for j in range(3000)]"), "more than"));
  EXPECT_TRUE(fails_with(run("[1 for a in range(2000) for b in [1]]"), "expected"));
  EXPECT_TRUE(fails_with(run("(\\f: f(f))(\\f: f(f))"), "nested more than"));
  EXPECT_TRUE(fails_with(run("len([1 for j in range(100000)])", {}, Limits{1000, 1000000, 100}), "steps"));
}

TEST(Expr, Statements) {
  const Source a{"t", "flow", "k, v = append(c, k, v) @kv if on"};
  const Statement s = parse_statement(a);
  EXPECT_EQ(s.targets, (std::vector<std::string>{"k", "v"}));
  EXPECT_TRUE(s.condition != nullptr);
  EXPECT_EQ(s.values[0]->op, Op::Tap);
  const Source b{"t", "flow", "return a if on else b, c"};
  const Statement r = parse_statement(b);
  EXPECT_TRUE(r.is_return);
  EXPECT_EQ(r.values.size(), 2u);
  EXPECT_TRUE(r.condition == nullptr);
  const Source w{"t", "weights", "experts.{e}.w.weight [I,H] each e < E tp=expert f32 | transpose(1, 0) if on"};
  const WeightText t = parse_weight(w);
  EXPECT_EQ(t.name, "experts.{e}.w.weight");
  EXPECT_EQ(t.each, "e");
  EXPECT_EQ(t.tp, "expert");
  EXPECT_EQ(t.dtype, "f32");
  EXPECT_EQ(t.steps.size(), 1u);
  EXPECT_TRUE(t.condition != nullptr);
}

}  // namespace
}  // namespace dgpu::model
