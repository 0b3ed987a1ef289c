// What every operator refuses, and that the text names operator, attribute or port, and what is expected.
#include <gtest/gtest.h>

#include "ops/schema.h"

namespace dgpu::ops {
namespace {

constexpr dgpuDtype_t kF32 = DGPU_DTYPE_F32, kBf16 = DGPU_DTYPE_BF16, kI32 = DGPU_DTYPE_I32, kI64 = DGPU_DTYPE_I64;

struct Op {
  OpSpec spec;
  explicit Op(std::string name) { spec.name = std::move(name); }
  Op& a(std::string name, AttrValue value) {
    spec.attrs.insert_or_assign(std::move(name), std::move(value));
    return *this;
  }
  Op& s(std::string name, const char* value) { return a(std::move(name), std::string(value)); }
  Op& p(std::string name, dgpuDtype_t dtype, Dims shape) {
    spec.ports.insert_or_assign(std::move(name), packed(dtype, shape));
    return *this;
  }
  Op& without(std::string_view name) {
    if (const auto it = spec.attrs.find(name); it != spec.attrs.end()) spec.attrs.erase(it);
    if (const auto it = spec.ports.find(name); it != spec.ports.end()) spec.ports.erase(it);
    return *this;
  }
};

Dims d(std::initializer_list<int64_t> extents) {
  Dims out;
  for (const int64_t n : extents) out.push_back({n, 0});
  return out;
}

// A valid description of each operator.
std::map<std::string, Op> valid() {
  std::map<std::string, Op> ops;
  const auto add = [&](Op op) { ops.emplace(op.spec.name, std::move(op)); };
  add(Op("argmax").p("x", kF32, d({2, 3})).p("out", kI32, d({2})));
  add(Op("attention")
          .a("scale", 0.5)
          .a("causal", true)
          .p("q", kF32, d({3, 4, 8}))
          .p("k0", kF32, d({5, 2, 2, 8}))
          .p("v0", kF32, d({5, 2, 2, 6}))
          .p("table0", kI32, d({2, 3}))
          .p("lengths0", kI32, d({2}))
          .p("offsets", kI32, d({3}))
          .p("positions", kI32, d({3}))
          .p("out", kF32, d({3, 4, 6})));
  add(Op("binary").s("fn", "add").p("a", kF32, d({2, 3})).p("b", kBf16, d({3})).p("out", kF32, d({2, 3})));
  add(Op("cache_append").p("x", kF32, d({2, 3})).p("slots", kI64, d({2})).p("cache", kBf16, d({4, 2, 3})));
  add(Op("cast").p("x", kF32, d({2})).p("out", DGPU_DTYPE_I8, d({2})));
  add(Op("embedding").p("table", kBf16, d({7, 3})).p("ids", kI32, d({2, 2})).p("out", kF32, d({2, 2, 3})));
  add(Op("glu").s("activation", "silu").s("layout", "contiguous").p("x", kF32, d({2, 6})).p("out", kF32, d({2, 3})));
  add(Op("layer_norm").a("eps", 1e-5).p("x", kF32, d({2, 3})).p("weight", kF32, d({3})).p("out", kF32, d({2, 3})));
  add(Op("matmul").p("a", kF32, d({2, 3})).p("b", kF32, d({3, 4})).p("out", kF32, d({2, 4})));
  add(Op("moe_experts")
          .s("activation", "silu")
          .p("x", kF32, d({2, 3}))
          .p("indices", kI32, d({2, 2}))
          .p("weights", kF32, d({2, 2}))
          .p("gate", kF32, d({4, 5, 3}))
          .p("up", kF32, d({4, 5, 3}))
          .p("down", kF32, d({4, 3, 5}))
          .p("out", kF32, d({2, 3})));
  add(Op("moe_route")
          .a("top_k", int64_t{2})
          .s("scoring", "softmax")
          .s("order", "score_then_select")
          .a("renormalise", true)
          .p("logits", kF32, d({3, 8}))
          .p("weights", kF32, d({3, 2}))
          .p("indices", kI32, d({3, 2})));
  add(Op("reduce").s("fn", "mean").a("axes", std::vector<int64_t>{-1}).p("x", kF32, d({2, 3})).p("out", kF32, d({2})));
  add(Op("rms_norm")
          .a("eps", 1e-6)
          .a("weight_offset", 0.0)
          .s("cast", "after_weight")
          .p("x", kF32, d({2, 3}))
          .p("weight", kF32, d({3}))
          .p("out", kF32, d({2, 3})));
  add(Op("rope")
          .s("pairing", "half")
          .s("at", "head")
          .s("angle", "f32")
          .p("x", kF32, d({2, 2, 8}))
          .p("positions", kI32, d({2}))
          .p("freqs", kF32, d({4}))
          .p("out", kF32, d({2, 2, 8})));
  add(Op("rope_freqs")
          .s("type", "default")
          .a("dim", int64_t{8})
          .a("theta", 1e4)
          .p("freqs", kF32, d({4}))
          .p("scale", kF32, d({1})));
  add(Op("sample")
          .p("logits", kF32, d({2, 9}))
          .p("temperature", kF32, d({2}))
          .p("top_k", kI32, d({2}))
          .p("top_p", kF32, d({2}))
          .p("seeds", kI64, d({2}))
          .p("positions", kI64, d({2}))
          .p("out", kI32, d({2})));
  add(Op("softmax").p("x", kF32, d({2, 3})).p("out", kF32, d({2, 3})));
  add(Op("top_k")
          .a("k", int64_t{2})
          .p("x", kF32, d({2, 3}))
          .p("values", kF32, d({2, 2}))
          .p("indices", kI32, d({2, 2})));
  add(Op("unary").s("fn", "exp").p("x", kF32, d({2})).p("out", kF32, d({2})));
  return ops;
}
Op valid(const std::string& name) { return valid().at(name); }

// The operator is refused, naming the thing at fault and each of the texts.
void refused(Op op, Status status, const char* object, std::initializer_list<const char*> texts) {
  const std::string name = op.spec.name;
  ASSERT_EQ(validate(op.spec), status) << name << " " << object << ": " << last_error().message;
  EXPECT_STREQ(last_error().object, object) << last_error().message;
  EXPECT_STREQ(last_error().op, name.c_str());
  const std::string message = last_error().message;
  EXPECT_NE(message.find(name + ": "), std::string::npos) << message;
  EXPECT_NE(message.find(object), std::string::npos) << message;
  for (const char* text : texts) EXPECT_NE(message.find(text), std::string::npos) << message << "\nlacks: " << text;
}
constexpr Status kAttr = DGPU_STATUS_INVALID_ATTRIBUTE, kShape = DGPU_STATUS_INVALID_SHAPE,
                 kDtype = DGPU_STATUS_INVALID_DTYPE;

TEST(OpsValidate, TheListIsWholeAndValid) {
  auto ops = valid();
  ASSERT_EQ(ops.size(), all().size());
  for (const auto* schema : all()) {
    ASSERT_TRUE(ops.count(schema->name)) << schema->name;
    EXPECT_EQ(validate(ops.at(schema->name).spec), 0) << last_error().message;
  }
}

TEST(OpsValidate, MissingAttributes) {
  for (const auto* schema : all())
    for (const auto& row : schema->attrs)
      if (row.required) {
        Op op = valid(schema->name);
        refused(op.without(row.name), kAttr, row.name.c_str(), {"missing", attr_type_name(row.type)});
        for (const auto& value : row.values)
          EXPECT_NE(std::string(last_error().message).find(value), std::string::npos);
      }
}

TEST(OpsValidate, MissingPorts) {
  for (const auto* schema : all())
    for (const auto& row : schema->ports)
      if (row.required) {
        const std::string port = row.repeated ? row.name + "0" : row.name;
        Op op = valid(schema->name);
        refused(op.without(port), kShape, port.c_str(), {"required", "not bound"});
      }
}

TEST(OpsValidate, UnknownAttributesAndPorts) {
  for (auto& [name, op] : valid()) {
    EXPECT_EQ(set_attr(op.spec, "nonsense", int64_t{1}), kAttr);
    EXPECT_NE(std::string(last_error().message).find(name + ": attribute nonsense: does not exist"), std::string::npos);
    EXPECT_EQ(set_port(op.spec, "nonsense", packed(kF32, d({1}))), kAttr);
    EXPECT_NE(std::string(last_error().message).find(name + ": port nonsense: does not exist"), std::string::npos);
    Op direct = op;
    refused(direct.a("nonsense", 1.0), kAttr, "nonsense", {});
  }
  OpSpec spec;
  spec.name = "nonsense";
  EXPECT_EQ(set_attr(spec, "eps", 1.0), DGPU_STATUS_NOT_FOUND);
  EXPECT_NE(std::string(last_error().message).find("rms_norm"), std::string::npos) << "known operators are listed";
}

TEST(OpsValidate, WrongTypeOrValueOfAttributes) {
  for (const auto* schema : all())
    for (const auto& row : schema->attrs) {
      Op op = valid(schema->name);
      if (row.type == DGPU_ATTR_STRING) {
        EXPECT_EQ(set_attr(op.spec, row.name, 1.0), kAttr);
        if (row.values.empty()) continue;
        EXPECT_EQ(set_attr(op.spec, row.name, std::string("nonsense")), kAttr);
        const std::string message = last_error().message;
        EXPECT_NE(message.find("expected one of"), std::string::npos) << message;
        EXPECT_NE(message.find("nonsense"), std::string::npos) << message;
        for (const auto& value : row.values) EXPECT_NE(message.find(value), std::string::npos) << message;
      } else {
        EXPECT_EQ(set_attr(op.spec, row.name, std::string("text")), kAttr);
        EXPECT_NE(std::string(last_error().message).find(std::string("expected ") + attr_type_name(row.type)),
                  std::string::npos)
            << last_error().message;
      }
    }
  OpSpec spec;
  spec.name = "rms_norm";
  EXPECT_EQ(set_attr(spec, "eps", int64_t{1}), 0) << "an integer is accepted for a float";
  EXPECT_EQ(spec.f("eps"), 1.0);
}

TEST(OpsValidate, WrongTypesOfPorts) {
  for (const auto* schema : all())
    for (const auto& row : schema->ports) {
      if (row.dtypes.size() == any_dtype().size()) continue;
      Op op = valid(schema->name);
      const std::string port = row.repeated ? row.name + "0" : row.name;
      EXPECT_EQ(set_port(op.spec, port, packed(DGPU_DTYPE_U8, d({1}))), kDtype) << schema->name;
      const std::string message = last_error().message;
      EXPECT_NE(message.find(schema->name + ": port " + port + ": expected " + dtypes_text(row.dtypes) + ", got u8"),
                std::string::npos)
          << message;
    }
}

TEST(OpsValidate, WrongShapes) {
  refused(valid("argmax").p("x", kF32, d({2, 0})), kShape, "x", {"at least 1", "got 0"});
  refused(valid("argmax").p("out", kI32, d({3})), kShape, "out", {"[2]", "[3]"});
  refused(valid("attention").p("v0", kF32, d({5, 2, 1, 6})), kShape, "v0", {"[5, 2, 2, 6]", "[5, 2, 1, 6]"});
  refused(valid("attention").p("k0", kF32, d({5, 2, 3, 8})), kShape, "k0", {"divide the 4 heads"});
  refused(valid("attention").p("offsets", kI32, d({2})), kShape, "offsets", {"expected 3"});
  refused(valid("attention").p("lengths0", kI32, d({3})), kShape, "lengths0", {"[2]", "[3]"});
  refused(valid("attention").p("sinks", kF32, d({2})), kShape, "sinks", {"[4]"});
  refused(valid("attention").p("bias", kF32, d({2, 3, 9})), kShape, "bias", {"[4, 3, 9]"});
  refused(valid("attention").p("lse", kF32, d({3, 6})), kShape, "lse", {"[3, 4]"});
  refused(valid("binary").p("b", kF32, d({2})), kShape, "b", {"[2]", "[2, 3]"});
  refused(valid("cache_append").p("cache", kF32, d({4, 2, 5})), kShape, "cache", {"[4, 2, 3]"});
  refused(valid("cache_append").p("cache", kF32, d({4, 0, 3})), kShape, "cache", {"at least 1"});
  refused(valid("cast").p("out", kF32, d({3})), kShape, "out", {"[2]", "[3]"});
  refused(valid("embedding").p("table", kF32, {}), kShape, "table", {"rank", "got 0"});
  refused(valid("glu").p("x", kF32, d({2, 5})), kShape, "x", {"even", "[2, 5]"});
  refused(valid("glu").s("layout", "separate"), kShape, "up", {"required with layout=separate"});
  refused(valid("layer_norm").p("weight", kF32, d({4})), kShape, "weight", {"[3]", "[4]"});
  refused(valid("matmul").p("b", kF32, d({4, 4})), kShape, "b", {"inner extent 3", "got 4"});
  refused(valid("matmul").p("bias", kF32, d({2})), kShape, "bias", {"[4]"});
  refused(valid("matmul").p("a", kF32, d({3})), kShape, "a", {"rank"});
  refused(valid("moe_experts").p("gate", kF32, d({4, 6, 3})), kShape, "gate", {"[4, 5, 3]"});
  refused(valid("moe_experts").p("gate_up", kF32, d({4, 10, 3})).s("layout", "contiguous"), kShape, "gate",
          {"must not be bound with gate_up"});
  refused(valid("moe_experts").without("up"), kShape, "up", {"required without gate_up"});
  refused(valid("moe_route").p("weights", kF32, d({3, 3})), kShape, "weights", {"[3, 2]", "[3, 3]"});
  refused(valid("reduce").p("x", kF32, d({2, 0})), kShape, "x", {"mean", "nothing"});
  refused(valid("rms_norm").p("residual", kF32, d({3})), kShape, "residual", {"[2, 3]", "[3]"});
  refused(valid("rope").p("freqs", kF32, d({5})), kShape, "freqs", {"at most 4", "got 5"});
  refused(valid("rope").p("freqs", kF32, d({2, 4})), kShape, "rows", {"required with two-dimensional freqs"});
  refused(valid("rope_freqs").p("freqs", kF32, d({3})), kShape, "freqs", {"[4]", "[3]"});
  refused(valid("sample").p("top_k", kI32, d({1})), kShape, "top_k", {"[2]", "[1]"});
  refused(valid("softmax").p("out", kF32, d({3, 2})), kShape, "out", {"[2, 3]", "[3, 2]"});
  refused(valid("top_k").p("indices", kI32, d({2, 3})), kShape, "indices", {"[2, 2]"});
  refused(valid("unary").p("out", kF32, d({2, 1})), kShape, "out", {"[2]"});
}

TEST(OpsValidate, WrongValuesAndCombinations) {
  const auto ints = [](std::initializer_list<int64_t> v) { return std::vector<int64_t>(v); };
  refused(valid("attention").a("window", ints({1, 2})), kAttr, "window", {"entry per source, 1", "got 2"});
  refused(valid("attention").a("chunk", ints({-1})), kAttr, "chunk", {"at least 0"});
  refused(valid("attention").a("ring", ints({1, 0})), kAttr, "ring", {"entry per source, 1", "got 2"});
  refused(valid("attention").a("ring", ints({2})), kAttr, "ring", {"0 or 1", "got 2"});
  refused(valid("attention").a("ring", ints({1})).p("k_positions0", kI32, d({5, 2})), kShape, "k_positions0",
          {"must not be bound with ring"});
  refused(valid("attention").a("softcap", -1.0), kAttr, "softcap", {"at least 0"});
  refused(valid("attention").a("sources", int64_t{2}), kShape, "k1", {"required with sources=2"});
  refused(valid("attention").p("k1", kF32, d({5, 2, 2, 8})), kShape, "k1", {"must not be bound with sources=1"});
  refused(valid("binary").without("b"), kAttr, "scalar", {"required without port b"});
  refused(valid("binary").a("scalar", 1.0), kAttr, "scalar", {"must not be set"});
  refused(valid("binary").s("fn", "mod"), kDtype, "a", {"mod expects integers", "f32"});
  refused(valid("binary").p("b", kI32, d({3})), kDtype, "b", {"floats", "i32"});
  refused(valid("glu").s("activation", "relu").a("alpha", 1.7), kAttr, "alpha", {"only silu"});
  refused(valid("moe_experts").without("gate").a("up_offset", 1.0), kAttr, "up_offset", {"without gate"});
  refused(valid("moe_experts").s("layout", "contiguous"), kAttr, "layout", {"without gate_up"});
  refused(valid("moe_route").a("top_k", int64_t{9}), kAttr, "top_k", {"8 experts", "got 9"});
  refused(valid("moe_route").a("groups", int64_t{3}), kAttr, "groups", {"divisor of the 8", "got 3"});
  refused(valid("moe_route").a("groups", int64_t{4}).a("group_top_k", int64_t{5}), kAttr, "group_top_k",
          {"1 to groups=4"});
  refused(valid("moe_route").a("groups", int64_t{4}), kAttr, "group_score", {"required with groups>1", "max top2_sum"});
  refused(valid("moe_route").a("groups", int64_t{4}).s("group_score", "max"), kAttr, "masked_fill", {"neg_inf zero"});
  refused(valid("moe_route").p("bias", kF32, d({8})), kAttr, "bias_on", {"required with bias", "score logit"});
  refused(valid("reduce").a("axes", ints({2})), kAttr, "axes", {"-2 to 1"});
  refused(valid("reduce").a("axes", ints({1, -1})), kAttr, "axes", {"twice"});
  refused(valid("reduce").a("axes", ints({})), kAttr, "axes", {"at least one"});
  refused(valid("rms_norm").without("cast"), kAttr, "cast", {"required with weight", "before_weight after_weight"});
  refused(valid("rms_norm").without("weight_offset"), kAttr, "weight_offset", {"required with weight"});
  refused(valid("rope_freqs").a("dim", int64_t{7}), kAttr, "dim", {"even", "got 7"});
  refused(valid("rope_freqs").a("factor", 2.0), kAttr, "factor", {"must not be set with type=default"});
  refused(valid("rope_freqs").s("type", "linear"), kAttr, "factor", {"required with type=linear"});
  refused(valid("rope_freqs").s("type", "dynamic").a("factor", 2.0).a("max_position", int64_t{8}), kShape, "lengths",
          {"required with type=dynamic"});
  refused(valid("rope_freqs").s("type", "llama3").a("factor", 8.0), kAttr, "low_freq_factor",
          {"required with type=llama3"});
  refused(valid("softmax").a("axis", int64_t{2}), kAttr, "axis", {"-2 to 1"});
  refused(valid("top_k").a("k", int64_t{4}), kAttr, "k", {"at most 3", "got 4"});
  OpSpec spec;
  spec.name = "rope_freqs";
  EXPECT_EQ(set_attr(spec, "type", std::string("longrope")), kAttr);
  EXPECT_NE(std::string(last_error().message).find("longrope"), std::string::npos);
}

TEST(OpsValidate, Descriptions) {
  OpSpec spec;
  spec.name = "unary";
  const auto bad = [&](auto change, const char* text, const char* port = "x") {
    dgpuTensorDesc t = packed(kF32, d({2, 3}));
    change(t);
    EXPECT_EQ(set_port(spec, port, t), kShape) << text;
    EXPECT_NE(std::string(last_error().message).find(text), std::string::npos) << last_error().message;
  };
  bad([](auto& t) { t.rank = 9; }, "rank 0 to 8");
  bad([](auto& t) { t.shape[0] = -1; }, "shape[0] = -1");
  bad([](auto& t) { t.strides[1] = -1; }, "strides[1] = -1");
  bad([](auto& t) { t.shape[0] = int64_t{1} << 46, t.strides[0] = 8; }, "spans more");
  bad([](auto& t) { t.layout = 1; }, "layout 0");
  bad([](auto& t) { t.flags = 1; }, "flags 0");
  bad([](auto& t) { t.symbols[0] = 65; }, "symbols[0] = 65");
  bad([](auto& t) { t.strides[0] = 2; }, "overlap", "out");
  bad([](auto& t) { t.strides[0] = 0; }, "overlap", "out");
  dgpuTensorDesc t = packed(kF32, d({2, 3}));
  t.strides[0] = 0;
  EXPECT_EQ(set_port(spec, "x", t), 0) << "an input may repeat rows";
}

TEST(OpsValidate, SymbolsPropagateAndMustAgree) {
  OpSpec spec;
  spec.name = "matmul";
  const Dims tokens{{512, 3}, {16, 0}};
  ASSERT_EQ(set_port(spec, "a", packed(kBf16, tokens)), 0);
  ASSERT_EQ(set_port(spec, "b", packed(kBf16, d({16, 4}))), 0);
  dgpuTensorDesc out = DGPU_TENSOR_DESC_INIT;
  ASSERT_EQ(infer(spec, "out", out), 0) << last_error().message;
  EXPECT_EQ(out.symbols[0], 3u);
  EXPECT_EQ(out.shape[0], 512);
  EXPECT_EQ(out.symbols[1], 0u);
  EXPECT_EQ(out.strides[0], 4);
  EXPECT_EQ(out.dtype, kBf16);
  ASSERT_EQ(set_port(spec, "residual", packed(kF32, d({512, 4}))), 0);
  EXPECT_EQ(infer(spec, "out", out), kShape) << "a fixed extent is not a symbol, whatever its maximum";
  EXPECT_NE(std::string(last_error().message).find("s3<=512"), std::string::npos) << last_error().message;
  ASSERT_EQ(set_port(spec, "residual", packed(kF32, {{512, 2}, {4, 0}})), 0);
  EXPECT_EQ(infer(spec, "out", out), kShape) << "another symbol";
  ASSERT_EQ(set_port(spec, "residual", packed(kF32, {{256, 3}, {4, 0}})), 0);
  EXPECT_EQ(infer(spec, "out", out), kShape) << "one symbol, two maxima";
  EXPECT_NE(std::string(last_error().message).find("maximum"), std::string::npos) << last_error().message;
}

TEST(OpsValidate, PortOrderIsTheSchemas) {
  Op op = valid("attention").a("sources", int64_t{2});
  for (const char* stem : {"k", "v", "table", "lengths"})
    op.spec.ports[std::string(stem) + "1"] = op.spec.ports[std::string(stem) + "0"];
  ASSERT_EQ(validate(op.spec), 0) << last_error().message;
  EXPECT_EQ(port_order(op.spec), (std::vector<std::string>{"q", "k0", "k1", "v0", "v1", "table0", "table1", "lengths0",
                                                           "lengths1", "offsets", "positions", "out"}));
}

}  // namespace
}  // namespace dgpu::ops
