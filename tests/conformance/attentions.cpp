// attention.
#include <algorithm>

#include "grid_util.h"

namespace conformance {

namespace {

struct Problem {
  std::vector<int64_t> queries, keys;  // per sequence
  int64_t heads, kv_heads, width, value_width, page;
  int64_t ring = 0;  // pages per sequence of a ring, 0: all keys have places of their own
};

// Pages of all sequences, dealt out backwards so that no sequence has them in order.
Case build(const Problem& p, Types types, int64_t sources) {
  Case test{.op = "attention"};
  const auto sequences = static_cast<int64_t>(p.queries.size());
  int64_t tokens = 0;
  std::vector<double> offsets{0}, positions;
  for (int64_t b = 0; b < sequences; ++b) {
    for (int64_t t = 0; t < p.queries[b]; ++t) positions.push_back(static_cast<double>(p.keys[b] - p.queries[b] + t));
    tokens += p.queries[b];
    offsets.push_back(static_cast<double>(tokens));
  }
  test.attr("scale", 1 / std::sqrt(static_cast<double>(p.width))).attr("sources", sources);
  test.in("q", types.in, {tokens, p.heads, p.width}, -2, 2);
  for (int64_t s = 0; s < sources; ++s) {
    const std::string n = std::to_string(s);
    int64_t columns = 1, pages = 1;
    std::vector<double> lengths;
    for (const int64_t k : p.keys) {
      const int64_t length = s ? k / 4 : k;
      lengths.push_back(static_cast<double>(length));
      const int64_t used = (length + p.page - 1) / p.page;
      columns = std::max(columns, p.ring ? p.ring : used);
      pages += p.ring ? std::min(p.ring, used) : used;
    }
    std::vector<double> table(static_cast<size_t>(sequences * columns), -1);
    int64_t next = pages - 1;
    for (int64_t b = 0; b < sequences; ++b)
      for (int64_t c = 0; c < columns && c * p.page < lengths[b]; ++c)
        table[b * columns + c] = static_cast<double>(next--);
    test.in("k" + n, types.in, {pages, p.page, p.kv_heads, p.width}, -2, 2);
    test.in("v" + n, types.in, {pages, p.page, p.kv_heads, p.value_width});
    test.data("table" + n, DGPU_DTYPE_I32, {sequences, columns}, table)
        .data("lengths" + n, DGPU_DTYPE_I32, {sequences}, lengths);
  }
  test.data("offsets", DGPU_DTYPE_I32, {sequences + 1}, offsets).data("positions", DGPU_DTYPE_I32, {tokens}, positions);
  test.out("out", types.out, {tokens, p.heads, p.value_width});
  return test;
}

// Scores are sums of D products: their absolute error, kLambda sqrt(D) u |q||k| scale, is a relative one of each
// weight; exp adds the rounding of its argument, the sums over L keys theirs. Sixteen-bit weights may be rounded before
// the product with v.
void finish(Case& test, const Problem& p, Types types, double softcap) {
  int64_t keys = 1;
  for (const int64_t k : p.keys) keys = std::max(keys, k);
  const double d = static_cast<double>(p.width), l = static_cast<double>(keys);
  // |q| <= 2, |k| <= 2 uniform: the sum of magnitudes is near d, its sign-free maximum 4 d / sqrt(d) after the scale.
  const double scores = softcap > 0 ? softcap : 2 * std::sqrt(d) + 4;
  const double score_error = sum_factor(d) * std::sqrt(d) * 1.5 + 4 * scores;
  const double weights = types.in == DGPU_DTYPE_F32 ? 0 : 2 * unit_roundoff(types.in);
  test.bound = [=](const Run& run, const Port& port, int64_t i) {
    const double want = run.want.at(port.name).v[i];
    if (port.name == "lse")
      return allowed(port.dtype, want, score_error + sum_factor(l) + kUlps, 1) + 4 * kU32 * std::fabs(want);
    return allowed(port.dtype, want, 2 * score_error + 2 * sum_factor(l) + 2 * kUlps, 1) + weights;
  };
}

void add(Grid& grid, const Problem& p, Types types, const std::function<void(Case&)>& change, int64_t sources = 1,
         double softcap = 0) {
  Case test = build(p, types, sources);
  change(test);
  if (softcap > 0) test.attr("softcap", softcap);
  finish(test, p, types, softcap);
  grid.push_back(test);
}

using List = std::vector<int64_t>;
const Problem kPrefill{{13, 5}, {13, 9}, 4, 2, 32, 32, 4};
const Problem kDecode{{1, 1, 1}, {1, 40, 17}, 6, 2, 64, 64, 16};
const Problem kMixed{{1, 9, 0, 3}, {21, 9, 4, 30}, 4, 1, 24, 40, 8};

void causal_shapes(Grid& grid, bool full) {
  std::vector<Problem> problems = {kPrefill, kDecode, kMixed, {{1}, {1}, 1, 1, 1, 1, 1}, {{2}, {0}, 2, 2, 8, 8, 4}};
  if (full)
    problems.insert(problems.end(), {{{70}, {70}, 2, 2, 128, 128, 16},
                                     {{33}, {300}, 2, 1, 80, 80, 32},
                                     {{1}, {700}, 4, 1, 128, 128, 64},
                                     {{3}, {20}, 2, 1, 192, 128, 16},
                                     {{4}, {9}, 2, 1, 512, 512, 8},
                                     {{130, 1}, {130, 257}, 8, 8, 16, 16, 128}});
  for (const auto& p : problems)
    for (const auto& types : type_pairs(full))
      for (const bool causal : {true, false})
        add(grid, p, types, [&](Case& c) {
          c.attr("causal", causal);
          if (causal) c.out("lse", DGPU_DTYPE_F32, {c.port("q").shape[0], p.heads});
        });
}

void variants(Grid& grid, bool full) {
  for (const auto& p : {kPrefill, kDecode, kMixed})
    for (const auto& types : type_pairs(false)) {
      if (!full && types.in == DGPU_DTYPE_F16) continue;
      const int64_t tokens = build(p, types, 1).port("q").shape[0];
      const auto lse = [&](Case& c) { c.attr("causal", true).out("lse", DGPU_DTYPE_F32, {tokens, p.heads}); };
      for (const int64_t window : {1, 4, 100})
        add(grid, p, types, [&](Case& c) { lse(c), c.attr("window", List{window}); });
      add(grid, p, types, [&](Case& c) { lse(c), c.attr("chunk", List{6}); });
      add(grid, p, types, [&](Case& c) { lse(c), c.in("sinks", DGPU_DTYPE_F32, {p.heads}, -3, 3); });
      add(grid, p, types,
          [&](Case& c) { lse(c), c.in("sinks", types.in, {p.heads}, -3, 3), c.attr("window", List{3}); });
      add(grid, p, types, lse, 1, 5.0);
      const int64_t columns = *std::max_element(p.keys.begin(), p.keys.end());
      for (const int64_t rows : {int64_t{1}, p.heads})
        add(grid, p, types, [&](Case& c) {
          c.attr("causal", false)
              .in("bias", rows == 1 ? dgpuDtype_t{DGPU_DTYPE_F32} : types.in, {rows, tokens, columns});
        });
      add(
          grid, p, types,
          [&](Case& c) {
            lse(c), c.attr("window", List{4, 0}).attr("every", List{0, 4}).in("sinks", DGPU_DTYPE_F32, {p.heads});
          },
          2);
      add(grid, p, types, [&](Case& c) {
        lse(c);
        std::vector<double> picks;  // of the first keys, some twice, some none
        for (int64_t t = 0; t < tokens; ++t)
          for (int64_t n = 0; n < 5; ++n) {
            int64_t b = 0, first = 0;
            while (t >= first + p.queries[b]) first += p.queries[b++];
            const int64_t pick = static_cast<int64_t>(hash(static_cast<uint64_t>(t * 5 + n)) % 12) - 2;
            picks.push_back(static_cast<double>(pick < 0 || pick >= p.keys[b] ? -1 : pick));
          }
        c.data("pick0", DGPU_DTYPE_I32, {tokens, 5}, picks);
      });
      add(grid, p, types, [&](Case& c) {  // keys carry their positions
        lse(c);
        const auto& shape = c.port("k0").shape;
        c.attr("window", List{8})
            .data("k_positions0", DGPU_DTYPE_I32, {shape[0], shape[1]}, integers(shape[0] * shape[1], 24, 17));
      });
    }
}

// Windows over rings of 16 places, most of them written over before; the last step as long as the ring allows.
void rings(Grid& grid, bool full) {
  const Problem ring_decode{{1, 1, 1}, {1, 40, 17}, 6, 2, 64, 64, 16, 1};
  const Problem ring_mixed{{1, 9, 0, 3}, {21, 9, 4, 30}, 4, 1, 24, 40, 8, 2};
  const Problem ring_prefill{{13, 12, 1}, {13, 29, 1000}, 4, 2, 32, 32, 4, 4};
  for (const auto& p : {ring_decode, ring_mixed, ring_prefill})
    for (const auto& types : type_pairs(full))
      for (const char* rule : {"window", "chunk"})
        add(grid, p, types, [&](Case& c) {
          c.attr("causal", true).attr("ring", List{1}).attr(rule, List{4});
          c.out("lse", DGPU_DTYPE_F32, {c.port("q").shape[0], p.heads});
        });
  add(
      grid, ring_mixed, {DGPU_DTYPE_F32, DGPU_DTYPE_F32},
      [&](Case& c) {
        c.attr("causal", true).attr("window", List{4, 0}).attr("every", List{0, 4}).attr("ring", List{1, 0});
      },
      2);
}

void layouts(Grid& grid) {
  for (const auto& types : {Types{DGPU_DTYPE_F32, DGPU_DTYPE_F32}, Types{DGPU_DTYPE_BF16, DGPU_DTYPE_F32}})
    for (const Layout layout : {Layout::padded, Layout::transposed, Layout::spread})
      for (const char* port : {"q", "k0", "v0", "out"})
        add(grid, kPrefill, types, [&](Case& c) { c.attr("causal", true).port(port).layout = layout; });
}

}  // namespace

void attention_grid(Grid& grid, bool full) {
  causal_shapes(grid, full);
  variants(grid, full);
  rings(grid, full);
  layouts(grid);
}

}  // namespace conformance
