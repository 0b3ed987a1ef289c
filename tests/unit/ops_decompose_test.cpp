// Decompositions give what the whole operator gives, and claims cover what they say.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "ops/claims.h"
#include "ops/convert.h"
#include "ops/decompose.h"
#include "ops/extents.h"
#include "ops/philox.h"
#include "ops/schema.h"

namespace dgpu::ops {
namespace {

constexpr dgpuDtype_t kF32 = DGPU_DTYPE_F32, kBf16 = DGPU_DTYPE_BF16, kI32 = DGPU_DTYPE_I32;

Dims d(std::initializer_list<int64_t> extents) {
  Dims out;
  for (const int64_t n : extents) out.push_back({n, 0});
  return out;
}

struct Op {
  OpSpec spec;
  explicit Op(std::string name) { spec.name = std::move(name); }
  Op& a(std::string name, AttrValue value) {
    spec.attrs.insert_or_assign(std::move(name), std::move(value));
    return *this;
  }
  Op& s(std::string name, const char* value) { return a(std::move(name), std::string(value)); }
  Op& p(std::string name, dgpuDtype_t dtype, const Dims& shape) {
    spec.ports.insert_or_assign(std::move(name), packed(dtype, shape));
    return *this;
  }
};

using Buffer = std::vector<std::byte>;

// Deterministic numbers in [-3, 3).
Buffer filled(const dgpuTensorDesc& desc, uint64_t seed) {
  Buffer bytes(touched_bytes(desc, nullptr));
  const int64_t n = static_cast<int64_t>(bytes.size() * 8 / dtype_bits(desc.dtype));
  for (int64_t i = 0; i < n; ++i)
    store_float(desc.dtype, bytes.data(), i, 6 * philox_uniform(static_cast<int64_t>(seed), i) - 3);
  return bytes;
}

Status run(const OpSpec& spec, const std::map<std::string, void*>& memory) {
  std::vector<void*> pointers;
  for (const auto& port : port_order(spec)) pointers.push_back(memory.at(port));
  return run_reference(spec, pointers.data(), static_cast<uint32_t>(pointers.size()), nullptr, 0);
}

// Runs the steps, those that decompose further too, as a plan would.
void run_steps(const OpSpec& spec, const std::map<std::string, void*>& memory, int depth, int& count) {
  Decomposition parts;
  if (depth == 8 || !decompose(spec, parts)) {
    ++count;
    ASSERT_EQ(run(spec, memory), 0) << last_error().message;
    return;
  }
  std::vector<Buffer> temporaries;
  for (const auto& t : parts.temporaries) temporaries.push_back(filled(t, 99));
  for (const auto& step : parts.steps) {
    std::map<std::string, void*> inner;
    for (const auto& [port, value] : step.values) {
      void* base =
          value.tensor[0] == '%' ? temporaries[std::stoul(value.tensor.substr(1))].data() : memory.at(value.tensor);
      const uint64_t bytes = dtype_bits(step.spec.ports.at(port).dtype) / 8;
      inner[port] = static_cast<std::byte*>(base) + value.offset * static_cast<int64_t>(bytes);
    }
    run_steps(step.spec, inner, depth + 1, count);
  }
}

void agrees(Op op, int steps, double tolerance = 3e-6) {
  ASSERT_EQ(validate(op.spec), 0) << op.spec.name << ": " << last_error().message;
  const Schema* schema = find(op.spec.name);
  std::map<std::string, Buffer> whole;
  uint64_t seed = 1;
  for (const auto& [port, desc] : op.spec.ports) whole[port] = filled(desc, seed++);
  auto parts = whole;
  std::map<std::string, void*> whole_memory, parts_memory;
  for (auto& [port, bytes] : whole) whole_memory[port] = bytes.data();
  for (auto& [port, bytes] : parts) parts_memory[port] = bytes.data();
  ASSERT_EQ(run(op.spec, whole_memory), 0) << last_error().message;
  int count = 0;
  run_steps(op.spec, parts_memory, 0, count);
  EXPECT_EQ(count, steps) << op.spec.name;
  for (const auto& [port, desc] : op.spec.ports) {
    if (port_schema(*schema, port)->direction == DGPU_PORT_IN) continue;
    const bool floats = dtype_is_float(desc.dtype);
    const double room = desc.dtype == kBf16 ? 0x1p-7 : tolerance;  // one unit in the last place: rounding may flip
    for (int64_t i = 0; i < static_cast<int64_t>(whole[port].size() * 8 / dtype_bits(desc.dtype)); ++i) {
      const auto get = [&, &name = port](Buffer& b) {
        return floats ? load_float(desc.dtype, b.data(), i) : static_cast<double>(load_int(desc.dtype, b.data(), i));
      };
      const double want = get(whole[port]), got = get(parts[port]);
      ASSERT_NEAR(got, want, room * std::max(1.0, std::fabs(want))) << op.spec.name << " " << port << " " << i;
    }
  }
}

TEST(OpsDecompose, Matmul) {
  const auto matmul = [] {
    return Op("matmul")
        .a("transpose_b", true)
        .p("a", kF32, d({3, 5}))
        .p("b", kF32, d({4, 5}))
        .p("out", kF32, d({3, 4}));
  };
  Decomposition none;
  Op plain = matmul();
  ASSERT_EQ(validate(plain.spec), 0);
  EXPECT_FALSE(decompose(plain.spec, none));
  agrees(matmul().p("bias", kF32, d({4})), 2);
  agrees(matmul().s("activation", "gelu_tanh"), 2);
  agrees(matmul()
             .p("bias", kF32, d({4}))
             .s("activation", "silu")
             .p("gate", kF32, d({3, 4}))
             .p("residual", kBf16, d({3, 4})),
         5);
}

TEST(OpsDecompose, Norms) {
  const auto norm = [] {
    return Op("rms_norm")
        .a("eps", 1e-3)
        .a("weight_offset", 1.0)
        .s("cast", "before_weight")
        .p("x", kBf16, d({2, 2, 7}))
        .p("weight", kF32, d({7}))
        .p("out", kBf16, d({2, 2, 7}));
  };
  agrees(norm().p("residual", kBf16, d({2, 2, 7})), 2);
  agrees(norm().p("residual", kF32, d({2, 2, 7})).p("sum", kBf16, d({2, 2, 7})), 2);
  agrees(norm().p("sum", kF32, d({2, 2, 7})), 2);
  Op other = norm().p("residual", kF32, d({2, 2, 7})).p("sum", kF32, d({2, 2, 7}));
  ASSERT_EQ(validate(other.spec), 0);
  Decomposition none;
  EXPECT_FALSE(decompose(other.spec, none)) << "the normalised value would be rounded to the type of sum";
  const auto layer = [] { return Op("layer_norm").a("eps", 1e-3).p("x", kF32, d({3, 9})).p("out", kF32, d({3, 9})); };
  agrees(layer(), 9);  // each mean is a sum and a division
  agrees(layer().p("weight", kF32, d({9})).p("bias", kF32, d({9})), 11);
}

TEST(OpsDecompose, SoftmaxReduceArgmax) {
  agrees(Op("softmax").a("axis", int64_t{1}).p("x", kF32, d({2, 5, 3})).p("out", kF32, d({2, 5, 3})), 7);
  const auto reduce = [](const char* fn) {
    return Op("reduce")
        .s("fn", fn)
        .a("axes", std::vector<int64_t>{0, 2})
        .p("x", kF32, d({2, 5, 3}))
        .p("out", kF32, d({5}));
  };
  agrees(reduce("mean"), 2);
  agrees(reduce("sum_sq"), 2);
  agrees(Op("argmax").p("x", kF32, d({4, 6})).p("out", kI32, d({4})), 1);
}

TEST(OpsDecompose, SoftmaxOfMinusInfinityIsZero) {
  Op op = Op("softmax").p("x", kF32, d({1, 2})).p("out", kF32, d({1, 2}));
  ASSERT_EQ(validate(op.spec), 0);
  float x[2] = {-INFINITY, -INFINITY}, out[2] = {7, 7};
  int count = 0;
  run_steps(op.spec, {{"x", x}, {"out", out}}, 0, count);
  EXPECT_EQ(out[0], 0);
  EXPECT_EQ(out[1], 0);
}

TEST(OpsDecompose, Glu) {
  for (const char* layout : {"contiguous", "interleaved"}) {
    const auto glu = [&](const char* activation) {
      return Op("glu")
          .s("activation", activation)
          .s("layout", layout)
          .p("x", kF32, d({3, 10}))
          .p("out", kF32, d({3, 5}));
    };
    agrees(glu("gelu_tanh"), 4);
    agrees(glu("none"), 3);
    agrees(glu("silu").a("alpha", 1.702).a("gate_max", 1.0).a("up_clamp", 1.0).a("up_offset", 1.0), 10);
  }
  agrees(Op("glu")
             .s("activation", "silu")
             .s("layout", "separate")
             .p("x", kBf16, d({3, 5}))
             .p("up", kF32, d({3, 5}))
             .p("out", kF32, d({3, 5})),
         6);
}

// ---- Claims ----

struct Claim {
  std::vector<const char*> attributes, ports;
  dgpuBackendClaim row{};
  Claim(const char* op, std::vector<const char*> attrs, std::vector<const char*> names)
      : attributes(std::move(attrs)), ports(std::move(names)) {
    attributes.push_back(nullptr);
    ports.push_back(nullptr);
    row = {sizeof row, op, 1, 0, attributes.data(), ports.data()};
  }
};

std::string why(const Claim& claim, Op op) {
  EXPECT_EQ(validate(op.spec), 0) << last_error().message;
  std::string reason;
  return match_claim({&claim.row}, op.spec, reason) ? "" : reason;
}

TEST(OpsClaims, CoverWhatTheyName) {
  const auto norm = [] { return Op("rms_norm").a("eps", 1e-3).p("x", kF32, d({2, 7})).p("out", kF32, d({2, 7})); };
  const auto weighted = [&] {
    return norm().a("weight_offset", 0.0).s("cast", "after_weight").p("weight", kBf16, d({7}));
  };
  const Claim old("rms_norm", {"eps", "weight_offset", "cast=before_weight"}, {"x", "out", "weight=f32|bf16"});
  EXPECT_EQ(why(old, norm()), "");
  EXPECT_EQ(why(old, weighted().s("cast", "before_weight")), "");
  EXPECT_EQ(why(old, weighted()), "claim lacks attribute cast=after_weight");
  EXPECT_EQ(why(old, weighted().s("cast", "before_weight").p("weight", DGPU_DTYPE_F16, d({7}))),
            "claim lacks port weight=f16");
  // A misspelt name explains why nothing is offered.
  const Claim misspelt("rms_norm", {"eps", "weight_ofset"}, {"x", "out", "weight"});
  EXPECT_EQ(why(misspelt, weighted().a("weight_offset", 1.0)),
            "claim lacks attribute weight_offset=1 (it names attribute weight_ofset, which rms_norm does not have)");
  const Claim other("rms_norm", {"eps"}, {"input", "out"});
  EXPECT_EQ(why(other, norm()), "claim lacks port x=f32 (it names port input, which rms_norm does not have)");
  EXPECT_EQ(why(old, norm().p("residual", kF32, d({2, 7}))), "claim lacks port residual=f32");
  EXPECT_EQ(why(Claim("rms_norm", {}, {"x", "out"}), norm()), "claim lacks attribute eps=0.001");
  EXPECT_EQ(why(Claim("layer_norm", {"eps"}, {"x", "out"}), norm()), "the backend does not claim rms_norm");
  EXPECT_EQ(why(Claim("rms_norm", {"eps"}, {"x=bf16", "out"}), norm()), "claim lacks port x=f32");
  EXPECT_EQ(why(Claim("rms_norm", {"eps*"}, {"x", "out"}), norm()),
            "claim lacks attribute eps=0.001 (it names attribute eps*, which rms_norm does not have)")
      << "a star needs digits";
}

TEST(OpsClaims, DefaultsAndStars) {
  Op attention = Op("attention")
                     .a("scale", 0.5)
                     .a("causal", true)
                     .p("q", kF32, d({3, 4, 8}))
                     .p("k0", kF32, d({5, 2, 2, 8}))
                     .p("v0", kF32, d({5, 2, 2, 6}))
                     .p("table0", kI32, d({2, 3}))
                     .p("lengths0", kI32, d({2}))
                     .p("offsets", kI32, d({3}))
                     .p("positions", kI32, d({3}))
                     .p("out", kF32, d({3, 4, 6}));
  const Claim one("attention", {"scale", "causal=true"},
                  {"q", "k0", "v0", "table0", "lengths0", "offsets", "positions", "out"});
  const Claim any("attention", {"scale", "causal=true", "sources", "window"},
                  {"q", "k*=f32", "v*", "table*", "lengths*", "offsets", "positions", "out"});
  EXPECT_EQ(why(one, attention), "") << "window, chunk, every, ring, softcap and sources are at their defaults";
  EXPECT_EQ(why(any, attention), "");
  EXPECT_EQ(why(one, Op(attention).a("window", std::vector<int64_t>{4})), "claim lacks attribute window=[4]");
  EXPECT_EQ(why(any, Op(attention).a("window", std::vector<int64_t>{4})), "");
  EXPECT_EQ(why(any, Op(attention).a("ring", std::vector<int64_t>{1})), "claim lacks attribute ring=[1]");
  EXPECT_EQ(why(one, Op(attention).a("causal", false)), "claim lacks attribute causal=false");
  EXPECT_EQ(why(any, Op(attention).p("k_positions0", kI32, d({5, 2}))), "claim lacks port k_positions0=i32");
  EXPECT_EQ(why(any, Op(attention).p("k0", kBf16, d({5, 2, 2, 8}))), "claim lacks port k0=bf16");
  // Alternatives: the second claim takes what the first does not.
  std::string reason;
  ASSERT_EQ(validate(attention.a("window", std::vector<int64_t>{4}).spec), 0);
  EXPECT_EQ(match_claim({&one.row, &any.row}, attention.spec, reason), &any.row);
}

// ---- Extents ----

TEST(OpsExtents, TouchedBytesFollowSymbols) {
  dgpuTensorDesc t = packed(kF32, {{10, 1}, {4, 0}});
  t.strides[0] = 6;
  for (const auto& [rows, bytes] : {std::pair<int64_t, uint64_t>{0, 0}, {1, 16}, {3, 64}})
    EXPECT_EQ(touched_bytes(t, &rows), bytes);
  EXPECT_EQ(touched_bytes(packed(DGPU_DTYPE_U4, d({3, 3})), nullptr), 5u);
  EXPECT_EQ(touched_bytes(packed(kF32, {}), nullptr), 4u);
}

TEST(OpsExtents, ColumnsOfTheSameRowsAreDisjoint) {
  dgpuTensorDesc left = packed(kF32, d({4, 3})), right = packed(kF32, d({4, 5}));
  left.strides[0] = right.strides[0] = 8;
  const uint64_t l = touched_bytes(left, nullptr), r = touched_bytes(right, nullptr);
  EXPECT_TRUE(disjoint(left, 4096, l, right, 4096 + 12, r, nullptr));
  EXPECT_TRUE(disjoint(right, 4096 + 12, r, left, 4096, l, nullptr));
  EXPECT_TRUE(disjoint(left, 4096, l, right, 4096 + 12 + 32, r, nullptr)) << "a row further down";
  EXPECT_FALSE(disjoint(left, 4096, l, right, 4096 + 8, r, nullptr));
  EXPECT_FALSE(disjoint(left, 4096, l, right, 4096 + 16, r, nullptr)) << "the fifth column wraps into the next row";
  EXPECT_FALSE(disjoint(left, 4096, l, packed(kF32, d({4, 3})), 4096 + 12, 48, nullptr)) << "another pitch";
  EXPECT_TRUE(disjoint(left, 4096, l, right, 4096 + l, r, nullptr)) << "one after the other";
}

}  // namespace
}  // namespace dgpu::ops
