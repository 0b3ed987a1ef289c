// References against other implementations (tests/data/ops) and against properties that they must have.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "ops/convert.h"
#include "ops/op.h"
#include "ops/philox.h"
#include "ops/schema.h"

namespace dgpu::ops {
namespace {

using nlohmann::json;

std::string source_dir() {
  const char* dir = std::getenv("DGPU_SOURCE");
  return dir ? dir : ".";
}

double number(const json& v) {
  if (v.is_number()) return v.get<double>();
  const auto text = v.get<std::string>();
  if (text == "inf") return kInf;
  return text == "-inf" ? -kInf : std::numeric_limits<double>::quiet_NaN();
}

RefTensor tensor(const json& j) {
  RefTensor t;
  t.dtype = j["dtype"] == "f64" ? DGPU_DTYPE_F64 : j["dtype"] == "i32" ? DGPU_DTYPE_I32 : DGPU_DTYPE_I64;
  t.shape = j["shape"].get<std::vector<int64_t>>();
  for (const auto& v : j["data"])
    if (t.is_int())
      t.i.push_back(v.get<int64_t>());
    else
      t.f.push_back(number(v));
  return t;
}

dgpuTensorDesc describe(const RefTensor& t) {
  Dims dims;
  for (const int64_t n : t.shape) dims.push_back({n, 0});
  return packed(t.dtype, dims);
}

AttrValue attribute(const json& v) {
  if (v.is_boolean()) return v.get<bool>();
  if (v.is_number_integer()) return v.get<int64_t>();
  if (v.is_number()) return v.get<double>();
  if (v.is_string()) return v.get<std::string>();
  return v.get<std::vector<int64_t>>();
}

void compare(const std::string& where, const RefTensor& got, const RefTensor& want, double tolerance) {
  ASSERT_EQ(got.shape, want.shape) << where;
  for (int64_t i = 0; i < want.size(); ++i) {
    if (want.is_int()) {
      ASSERT_EQ(got.i[i], want.i[i]) << where << " element " << i;
      continue;
    }
    if (got.f[i] == want.f[i]) continue;  // infinities
    ASSERT_NEAR(got.f[i], want.f[i], tolerance * std::max(1.0, std::fabs(want.f[i]))) << where << " element " << i;
  }
}

// The reference of one case, through RefTensors.
void run_case(const json& c) {
  const std::string name = c["name"];
  OpSpec spec;
  spec.name = c["op"];
  for (const auto& [key, value] : c["attrs"].items()) ASSERT_EQ(set_attr(spec, key, attribute(value)), 0) << name;
  RefTensors tensors;
  for (const auto& [port, value] : c["inputs"].items()) {
    tensors[port] = tensor(value);
    ASSERT_EQ(set_port(spec, port, describe(tensors[port])), 0) << name << ": " << last_error().message;
  }
  for (const auto& [port, value] : c["outputs"].items()) {
    const auto want = tensor(value);
    dgpuTensorDesc inferred = DGPU_TENSOR_DESC_INIT;
    ASSERT_EQ(infer(spec, port, inferred), 0) << name << ": " << last_error().message;
    ASSERT_EQ(std::vector<int64_t>(inferred.shape, inferred.shape + inferred.rank), want.shape) << name << " " << port;
    ASSERT_EQ(set_port(spec, port, describe(want)), 0) << name << ": " << last_error().message;
  }
  ASSERT_EQ(validate(spec), 0) << name << ": " << last_error().message;
  ASSERT_EQ(reference(spec, tensors), 0) << name << ": " << last_error().message;
  for (const auto& [port, value] : c["outputs"].items())
    compare(name + " " + port, tensors[port], tensor(value), c["tolerance"]);
}

void run_cases(const std::string& name, size_t at_least) {
  std::ifstream file(source_dir() + "/tests/data/" + name);
  ASSERT_TRUE(file) << "tests/data/" << name << " is missing";
  const json cases = json::parse(file);
  ASSERT_GT(cases.size(), at_least);
  for (const auto& c : cases) run_case(c);
}

TEST(OpsReference, AgreesWithOtherImplementations) { run_cases("ops/references.json", 60); }

// Activations, expert routers and sampling as the published model code computes them.
TEST(OpsReference, AgreesWithTransformers) { run_cases("transformers/operators.json", 15); }

// Known answers of the Random123 distribution, tests/kat_vectors, philox4x32 10.
TEST(OpsReference, PhiloxKnownAnswers) {
  using Counter = std::array<uint32_t, 4>;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Counter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), (Counter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Counter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// ---- Helpers for the properties ----

RefTensor floats_of(std::vector<int64_t> shape, std::vector<double> data = {}) {
  RefTensor t;
  t.dtype = DGPU_DTYPE_F64;
  t.shape = std::move(shape);
  t.f = std::move(data);
  for (int64_t i = static_cast<int64_t>(t.f.size()); i < t.size(); ++i)
    t.f.push_back(philox_uniform(7, i + 1000 * t.size()) * 2 - 1);
  return t;
}
RefTensor ints_of(std::vector<int64_t> shape, std::vector<int64_t> data, dgpuDtype_t dtype = DGPU_DTYPE_I32) {
  RefTensor t;
  t.dtype = dtype;
  t.shape = std::move(shape);
  t.i = std::move(data);
  return t;
}

struct Example {
  OpSpec spec;
  RefTensors t;
  explicit Example(std::string name) { spec.name = std::move(name); }
  Example& attr(std::string_view name, AttrValue value) {
    EXPECT_EQ(set_attr(spec, name, std::move(value)), 0) << last_error().message;
    return *this;
  }
  Example& in(const std::string& port, RefTensor value) {
    t[port] = std::move(value);
    spec.ports[port] = describe(t[port]);
    return *this;
  }
  Example& out(const std::string& port, dgpuDtype_t dtype = DGPU_DTYPE_F64) {
    spec.ports[port] = packed(dtype, {});
    return *this;
  }
  Status operator()() { return reference(spec, t); }
};

TEST(OpsReference, RopeInverseUndoesRope) {
  for (const char* pairing : {"half", "interleave"})
    for (const char* at : {"head", "tail"}) {
      const auto x = floats_of({4, 2, 10});
      const auto turn = [&](const RefTensor& v, bool inverse) {
        Example run("rope");
        run.attr("pairing", std::string(pairing)).attr("at", std::string(at)).attr("angle", std::string("f32"));
        run.attr("inverse", inverse).in("x", v).in("positions", ints_of({4}, {0, 3, 77, 4000}));
        run.in("freqs", floats_of({3}, {1, 0.1, 0.01})).out("out");
        EXPECT_EQ(run(), 0) << last_error().message;
        return run.t["out"];
      };
      const auto turned = turn(x, false);
      const auto back = turn(turned, true);
      for (int64_t i = 0; i < x.size(); ++i) EXPECT_NEAR(back.f[i], x.f[i], 1e-14);
      const int64_t still = std::string(at) == "head" ? 9 : 0;  // 6 of 10 elements turn
      EXPECT_EQ(turned.f[60 + still], x.f[60 + still]);
      EXPECT_NE(turned.f[60 + 9 - still], x.f[60 + 9 - still]);
    }
}

// angle=f32 rounds the product to f32: at position 100003 and frequency 0.7 the difference is visible.
TEST(OpsReference, RopeAngleIsAnF32Product) {
  for (const char* angle : {"f32", "f64"}) {
    Example run("rope");
    run.attr("pairing", std::string("half")).attr("at", std::string("head")).attr("angle", std::string(angle));
    run.in("x", floats_of({1, 1, 2}, {1, 0})).in("positions", ints_of({1}, {100003}));
    run.in("freqs", floats_of({1}, {static_cast<double>(0.7f)})).out("out");
    ASSERT_EQ(run(), 0);
    const double exact = 100003 * static_cast<double>(0.7f);
    const double want = std::string(angle) == "f64" ? exact : static_cast<double>(100003.0f * 0.7f);
    EXPECT_DOUBLE_EQ(run.t["out"].f[0], std::cos(want));
    EXPECT_DOUBLE_EQ(run.t["out"].f[1], std::sin(want));
  }
}

TEST(OpsReference, SoftmaxOfMinusInfinityIsZeroElseSumsToOne) {
  Example run("softmax");
  run.in("x", floats_of({3, 4}, {-kInf, -kInf, -kInf, -kInf, 1e300, 1e300, -kInf, 0, 1, 2, 3, 4})).out("out");
  ASSERT_EQ(run(), 0);
  for (int r = 0; r < 3; ++r) {
    double sum = 0;
    for (int j = 0; j < 4; ++j) sum += run.t["out"].f[r * 4 + j];
    EXPECT_DOUBLE_EQ(sum, r == 0 ? 0 : 1);
  }
}

TEST(OpsReference, AttentionWithoutVisibleKeysGivesZeros) {
  Example run("attention");
  run.attr("scale", 1.0).attr("causal", true).attr("window", std::vector<int64_t>{1});
  run.in("q", floats_of({3, 1, 2})).in("k0", floats_of({1, 2, 1, 2})).in("v0", floats_of({1, 2, 1, 2}));
  run.in("table0", ints_of({1, 1}, {0})).in("lengths0", ints_of({1}, {2})).in("offsets", ints_of({2}, {0, 2}));
  run.in("positions", ints_of({3}, {1, 5, 0})).out("out").out("lse");
  ASSERT_EQ(run(), 0) << last_error().message;
  EXPECT_EQ(run.t["out"].f[0], run.t["v0"].f[2]);               // sees key 1 alone
  for (int i = 2; i < 6; ++i) EXPECT_EQ(run.t["out"].f[i], 0);  // nothing visible; then a row of no sequence
  EXPECT_EQ(run.t["lse"].f[1], -kInf);
  EXPECT_EQ(run.t["lse"].f[2], -kInf);
}

// A ring of two pages of two places after seven keys: page 1 holds keys 4 and 5, page 0 key 6 and still key 3.
TEST(OpsReference, AttentionOverARing) {
  const auto ring = [](int64_t position, int64_t window) {
    Example run("attention");
    run.attr("scale", 1.0).attr("causal", true).attr("window", std::vector<int64_t>{window});
    run.attr("ring", std::vector<int64_t>{1});
    run.in("q", floats_of({1, 1, 1}, {0})).in("k0", floats_of({2, 2, 1, 1}));
    run.in("v0", floats_of({2, 2, 1, 1}, {6, 3, 4, 5})).in("table0", ints_of({1, 2}, {1, 0}));
    run.in("lengths0", ints_of({1}, {7})).in("offsets", ints_of({2}, {0, 1}));
    return run.in("positions", ints_of({1}, {position})).out("out");
  };
  for (const auto& [position, window, want] : {std::tuple{6, 3, 5.0}, {6, 4, 4.5}, {5, 3, 4.0}, {6, 1, 6.0}}) {
    Example run = ring(position, window);
    ASSERT_EQ(run(), 0) << last_error().message;
    EXPECT_DOUBLE_EQ(run.t["out"].f[0], want) << "q = 0 weighs all equally";
  }
  Example lost = ring(5, 4);  // key 2 is visible and written over
  EXPECT_EQ(lost(), DGPU_STATUS_DATA_OUT_OF_RANGE);
  EXPECT_STREQ(last_error().object, "lengths0");
}

// Positions that the keys bring along: places 0..2 hold positions 3, 4, 2.
TEST(OpsReference, AttentionByKeyPositions) {
  Example run("attention");
  run.attr("scale", 1.0).attr("causal", true).attr("window", std::vector<int64_t>{2});
  run.in("q", floats_of({1, 1, 1}, {0})).in("k0", floats_of({1, 3, 1, 1})).in("v0", floats_of({1, 3, 1, 1}, {3, 4, 2}));
  run.in("table0", ints_of({1, 1}, {0})).in("lengths0", ints_of({1}, {3})).in("offsets", ints_of({2}, {0, 1}));
  run.in("k_positions0", ints_of({1, 3}, {3, 4, 2})).in("positions", ints_of({1}, {3})).out("out");
  ASSERT_EQ(run(), 0) << last_error().message;
  EXPECT_DOUBLE_EQ(run.t["out"].f[0], 2.5);  // the mean of positions 2 and 3: q = 0 weighs equally
}

TEST(OpsReference, ExpertMapMinusOneAndIdentity) {
  Example run("moe_experts");
  run.attr("activation", std::string("none"));
  run.in("x", floats_of({1, 2}, {3, 5})).in("indices", ints_of({1, 4}, {0, 1, 2, -1}));
  run.in("weights", floats_of({1, 4}, {10, 100, 1000, 1e9})).in("up", floats_of({1, 1, 2}, {1, 1}));
  run.in("down", floats_of({1, 2, 1}, {1, 2})).in("expert_map", ints_of({3}, {0, -1, -2})).out("out");
  ASSERT_EQ(run(), 0) << last_error().message;
  EXPECT_DOUBLE_EQ(run.t["out"].f[0], 10 * 8 + 1000 * 3);
  EXPECT_DOUBLE_EQ(run.t["out"].f[1], 10 * 16 + 1000 * 5);
}

TEST(OpsReference, SampleFollowsItsDistribution) {
  constexpr int64_t kDraws = 20000;
  Example run("sample");
  std::vector<double> logits, temperature(kDraws, 0.5), top_p(kDraws, 0.9);
  std::vector<int64_t> top_k(kDraws, 3), seeds(kDraws, 42), positions(kDraws);
  for (int64_t i = 0; i < kDraws; ++i) {
    for (const double p : {0.1, 0.4, 0.2, 0.3}) logits.push_back(0.5 * std::log(p));
    positions[i] = i;
  }
  run.in("logits", floats_of({kDraws, 4}, logits)).in("temperature", floats_of({kDraws}, temperature));
  run.in("top_k", ints_of({kDraws}, top_k)).in("top_p", floats_of({kDraws}, top_p));
  run.in("seeds", ints_of({kDraws}, seeds, DGPU_DTYPE_I64))
      .in("positions", ints_of({kDraws}, positions, DGPU_DTYPE_I64));
  run.out("out", DGPU_DTYPE_I32);
  ASSERT_EQ(run(), 0) << last_error().message;
  std::array<double, 4> share{};
  for (const int64_t v : run.t["out"].i) share[v] += 1.0 / kDraws;
  // top_k keeps 0.4, 0.3, 0.2; 0.7 of 0.9 is below 0.9 * 0.9, so all three stay. Standard error below 0.0036.
  EXPECT_EQ(share[0], 0);
  EXPECT_NEAR(share[1], 4.0 / 9, 0.018);
  EXPECT_NEAR(share[3], 3.0 / 9, 0.018);
  EXPECT_NEAR(share[2], 2.0 / 9, 0.018);
}

TEST(OpsReference, SampleTopPKeepsTheShortestPrefix) {
  for (const auto& [top_p, kept] : {std::pair{0.5, 1}, {0.51, 2}, {0.75, 2}, {0.76, 3}, {1.0, 3}, {0.0, 3}}) {
    int highest = 0;
    for (int64_t position = 0; position < 200; ++position) {
      Example run("sample");
      run.in("logits", floats_of({1, 3}, {std::log(0.5), std::log(0.25), std::log(0.25)}));
      run.in("temperature", floats_of({1}, {1})).in("top_k", ints_of({1}, {0})).in("top_p", floats_of({1}, {top_p}));
      run.in("seeds", ints_of({1}, {-5}, DGPU_DTYPE_I64)).in("positions", ints_of({1}, {position}, DGPU_DTYPE_I64));
      run.out("out", DGPU_DTYPE_I32);
      ASSERT_EQ(run(), 0) << last_error().message;
      highest = std::max(highest, static_cast<int>(run.t["out"].i[0]) + 1);
    }
    EXPECT_EQ(highest, kept) << top_p;
  }
}

TEST(OpsReference, TopKTakesNanAsLargest) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const bool largest : {true, false}) {
    Example run("top_k");
    run.attr("k", int64_t{4}).attr("largest", largest);
    run.in("x", floats_of({1, 4}, {1, nan, 3, nan})).out("values").out("indices", DGPU_DTYPE_I32);
    ASSERT_EQ(run(), 0);
    EXPECT_EQ(run.t["indices"].i, largest ? (std::vector<int64_t>{1, 3, 2, 0}) : (std::vector<int64_t>{0, 2, 1, 3}));
  }
  Example run("argmax");
  run.in("x", floats_of({2, 3}, {1, nan, nan, 2, 2, 1})).out("out", DGPU_DTYPE_I32);
  ASSERT_EQ(run(), 0);
  EXPECT_EQ(run.t["out"].i, (std::vector<int64_t>{1, 0}));
}

// ---- Data out of range ----

TEST(OpsReference, DataOutOfRangeNamesThePort) {
  const auto expect = [](Example run, const char* port) {
    EXPECT_EQ(run(), DGPU_STATUS_DATA_OUT_OF_RANGE) << run.spec.name;
    EXPECT_STREQ(last_error().object, port);
    EXPECT_STREQ(last_error().op, run.spec.name.c_str());
  };
  for (const int64_t id : {-1, 4}) {
    Example run("embedding");
    expect(run.in("table", floats_of({4, 2})).in("ids", ints_of({2}, {0, id})).out("out"), "ids");
  }
  for (const int64_t slot : {-2, 6}) {
    Example run("cache_append");
    expect(run.in("x", floats_of({2, 1})).in("slots", ints_of({2}, {0, slot})).in("cache", floats_of({2, 3, 1})),
           "slots");
    EXPECT_EQ(run.t["cache"].f, floats_of({2, 3, 1}).f) << "nothing is written";
  }
  const auto attention = [](int64_t length, int64_t page, int64_t end) {
    Example run("attention");
    run.attr("scale", 1.0).attr("causal", true);
    run.in("q", floats_of({2, 1, 2})).in("k0", floats_of({2, 2, 1, 2})).in("v0", floats_of({2, 2, 1, 2}));
    run.in("table0", ints_of({1, 2}, {0, page})).in("lengths0", ints_of({1}, {length}));
    run.in("offsets", ints_of({2}, {0, end})).in("positions", ints_of({2}, {2, 3})).out("out");
    return run;
  };
  EXPECT_EQ(attention(4, 1, 2)(), 0);
  expect(attention(5, 1, 2), "lengths0");
  expect(attention(-1, 1, 2), "lengths0");
  expect(attention(4, 2, 2), "table0");
  expect(attention(4, -1, 2), "table0");
  EXPECT_EQ(attention(2, -1, 2)(), 0) << "a page that no key needs is not looked at";
  expect(attention(4, 1, 3), "offsets");
}

// ---- Types, strides, symbols ----

// bf16 values are rounded once from f64: 1 + 2^-8 + 2^-30 is above the tie and must round up, also where a detour over
// f32 would make it a tie.
TEST(OpsReference, RoundsOnce) {
  const double v = 1 + 0x1p-8 + 0x1p-30;
  EXPECT_EQ(round_to(DGPU_DTYPE_BF16, v), 1 + 0x1p-7);
  EXPECT_EQ(round_to(DGPU_DTYPE_BF16, 1 + 0x1p-8), 1);
  EXPECT_EQ(round_to(DGPU_DTYPE_BF16, 1 + 3 * 0x1p-8), 1 + 0x1p-6);
  EXPECT_EQ(round_to(DGPU_DTYPE_F16, 1 + 0x1p-11 + 0x1p-40), 1 + 0x1p-10);
  EXPECT_EQ(round_to(DGPU_DTYPE_F16, 65520.0), kInf);
  EXPECT_EQ(round_to(DGPU_DTYPE_F16, 65519.0), 65504.0);
  EXPECT_EQ(round_to(DGPU_DTYPE_F16, 0x1p-25), 0);
  EXPECT_EQ(round_to(DGPU_DTYPE_F16, 0x1.8p-25), 0x1p-24);
  EXPECT_EQ(round_to(DGPU_DTYPE_BF16, 0x1p-133), 0x1p-133);
  EXPECT_EQ(round_to(DGPU_DTYPE_BF16, 3.4e38), kInf);
  EXPECT_EQ(round_to(DGPU_DTYPE_F8E4M3, 1000.0), 448);
  EXPECT_EQ(round_to(DGPU_DTYPE_F8E4M3, 17.0), 16);
  EXPECT_EQ(round_to(DGPU_DTYPE_F8E5M2, -1e9), -57344);
  EXPECT_EQ(round_to(DGPU_DTYPE_F4E2M1, 2.5), 2);
  EXPECT_EQ(round_to(DGPU_DTYPE_F4E2M1, -0.25), 0);
  EXPECT_TRUE(std::isnan(round_to(DGPU_DTYPE_BF16, std::numeric_limits<double>::quiet_NaN())));
}

// Every 16-bit pattern survives a round trip, every 8-bit one too.
TEST(OpsReference, PatternsRoundTrip) {
  for (const dgpuDtype_t dtype : {DGPU_DTYPE_F16, DGPU_DTYPE_BF16, DGPU_DTYPE_F8E4M3, DGPU_DTYPE_F8E5M2}) {
    const uint32_t count = dtype_bits(dtype) == 16 ? 65536 : 256;
    for (uint32_t bits = 0; bits < count; ++bits) {
      const uint32_t cell = bits;
      const double v = load_float(dtype, &cell, 0);
      uint32_t back = 0;
      if (std::isnan(v) || std::isinf(v)) continue;  // saturating types turn infinity into their largest
      store_float(dtype, &back, 0, v);
      ASSERT_EQ(back, bits) << dtype;
    }
  }
}

TEST(OpsReference, CastSaturatesAndTruncates) {
  EXPECT_EQ(float_to_int(DGPU_DTYPE_I8, -128.9), -128);
  EXPECT_EQ(float_to_int(DGPU_DTYPE_I8, -130), -128);
  EXPECT_EQ(float_to_int(DGPU_DTYPE_I8, 127.9), 127);
  EXPECT_EQ(float_to_int(DGPU_DTYPE_U8, -0.5), 0);
  EXPECT_EQ(float_to_int(DGPU_DTYPE_U8, -3), 0);
  EXPECT_EQ(float_to_int(DGPU_DTYPE_I64, 1e30), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(float_to_int(DGPU_DTYPE_I64, -1e30), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(float_to_int(DGPU_DTYPE_I32, std::numeric_limits<double>::quiet_NaN()), 0);
  EXPECT_EQ(float_to_int(DGPU_DTYPE_BOOL, 0.25), 1);
}

TEST(OpsReference, ReadsAndWritesThroughStridesAndSymbols) {
  OpSpec spec;
  spec.name = "binary";
  ASSERT_EQ(set_attr(spec, "fn", std::string("add")), 0);
  dgpuTensorDesc a = packed(DGPU_DTYPE_F32, {{4, 1}, {2, 0}}), b = a, out = a;
  a.strides[0] = 1, a.strides[1] = 4;  // columns
  b.strides[0] = 0;                    // one row for all
  out.strides[0] = 3;                  // a gap after each row
  ASSERT_EQ(set_port(spec, "a", a) + set_port(spec, "b", b) + set_port(spec, "out", out), 0) << last_error().message;
  const float av[8] = {1, 2, 3, 4, 5, 6, 7, 8}, bv[2] = {10, 20};
  float ov[12];
  std::fill(std::begin(ov), std::end(ov), -1.0f);
  void* pointers[] = {const_cast<float*>(av), const_cast<float*>(bv), ov};
  const int64_t rows = 3;
  ASSERT_EQ(run_reference(spec, pointers, 3, &rows, 1), 0) << last_error().message;
  EXPECT_EQ(std::vector<float>(ov, ov + 12), (std::vector<float>{11, 25, -1, 12, 26, -1, 13, 27, -1, -1, -1, -1}));
  const int64_t beyond = 5;
  EXPECT_EQ(run_reference(spec, pointers, 3, &beyond, 1), DGPU_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(run_reference(spec, pointers, 3, nullptr, 0), DGPU_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(run_reference(spec, pointers, 2, &rows, 1), DGPU_STATUS_INVALID_ARGUMENT);
}

// cache_append leaves every byte that it does not name alone, NaN patterns too.
TEST(OpsReference, CacheKeepsOtherBytes) {
  OpSpec spec;
  spec.name = "cache_append";
  set_port(spec, "x", packed(DGPU_DTYPE_F32, {{1, 0}}));
  set_port(spec, "slots", packed(DGPU_DTYPE_I64, {{1, 0}}));
  set_port(spec, "cache", packed(DGPU_DTYPE_F16, {{2, 0}, {2, 0}}));
  float x = 1.5f;
  int64_t slot = 2;
  uint16_t cache[4] = {0x7d01, 0xfc00, 0x0001, 0x8000};
  void* pointers[] = {&x, &slot, cache};
  ASSERT_EQ(run_reference(spec, pointers, 3, nullptr, 0), 0) << last_error().message;
  EXPECT_EQ(cache[0], 0x7d01);
  EXPECT_EQ(cache[1], 0xfc00);
  EXPECT_EQ(cache[2], 0x3e00);
  EXPECT_EQ(cache[3], 0x8000);
}

TEST(OpsReference, RmsNormRoundsWhereItSays) {
  const auto run = [](const char* cast) {
    Example r("rms_norm");
    r.attr("eps", 0.0).attr("weight_offset", 0.0).attr("cast", std::string(cast));
    auto x = floats_of({1, 2}, {1, 2}), w = floats_of({2}, {3, 3}), res = floats_of({1, 2}, {0x1p-9, 0});
    x.dtype = DGPU_DTYPE_BF16;
    r.in("x", x).in("weight", w).in("residual", res).out("out").out("sum", DGPU_DTYPE_F64);
    EXPECT_EQ(r(), 0) << last_error().message;
    EXPECT_EQ(r.t["sum"].f[0], 1 + 0x1p-9);  // rounded to the type of sum, f64, not to x's
    return r.t["out"].f[0];
  };
  const double a = 1 + 0x1p-9, y = a / std::sqrt((a * a + 4) / 2);
  EXPECT_DOUBLE_EQ(run("after_weight"), 3 * y);
  EXPECT_DOUBLE_EQ(run("before_weight"), 3 * round_to(DGPU_DTYPE_BF16, y));
}

}  // namespace
}  // namespace dgpu::ops
