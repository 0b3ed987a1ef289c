// Conformance of a backend: first what the core relies on besides operators, then every operator over a grid of shapes,
// types, layouts and attributes against the f64 reference.
//
//   dgpu-conformance [--backend NAME|PATH] [--contract | --op NAME] [--list] [--verbose]
//   --backend                  the backend to test, by name, or a plugin's manifest or library by its path
//   --contract                 without the operators
//   DGPU_CONFORMANCE_BACKEND   the same as --backend (default cpu)
//   DGPU_CONFORMANCE_GRID      full (default) or reduced
//   DGPU_CONFORMANCE_REQUIRE   native: also fail where an operator of the grid runs as the reference
// Exit status: 0 all good, 1 a case failed, 2 it could not run.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "contract.h"
#include "harness.h"

namespace {
std::string setting(const char* name, const char* fallback) {
  const char* value = std::getenv(name);
  return value && *value ? value : fallback;
}
}  // namespace

int main(int argc, char** argv) {
  using namespace conformance;
  std::string only, backend = setting("DGPU_CONFORMANCE_BACKEND", "cpu");
  bool list = false, verbose = false, operators = true;
  for (int i = 1; i < argc; ++i) {
    if (!std::strcmp(argv[i], "--op") && i + 1 < argc)
      only = argv[++i];
    else if (!std::strcmp(argv[i], "--backend") && i + 1 < argc)
      backend = argv[++i];
    else if (!std::strcmp(argv[i], "--contract"))
      operators = false;
    else if (!std::strcmp(argv[i], "--list"))
      list = true;
    else if (!std::strcmp(argv[i], "--verbose"))
      verbose = true;
    else
      return std::fprintf(stderr,
                          "usage: dgpu-conformance [--backend NAME|PATH] [--contract | --op NAME] [--list] "
                          "[--verbose]\n"),
             2;
  }
  const bool full = setting("DGPU_CONFORMANCE_GRID", "full") != "reduced";
  Grid grid;
  for (const auto add :
       {elementwise_grid, norm_grid, matmul_grid, select_grid, rope_grid, attention_grid, moe_grid, sample_grid})
    add(grid, full);
  Harness harness(backend);
  const int broken = list || !only.empty() ? 0 : check_contract(harness.device());
  if (!operators) return broken ? 1 : 0;
  int cases = 0, failures = 0;
  for (const auto& test : grid) {
    if (!only.empty() && test.op != only) continue;
    ++cases;
    if (list || verbose) std::printf("%s\n", test.text().c_str());
    std::fflush(stdout);
    std::string why;
    if (list || harness.run(test, why)) continue;
    if (++failures <= 20) std::printf("FAILED %s\n       %s\n", test.text().c_str(), why.c_str());
  }
  if (list) return 0;
  std::printf("%-14s %7s %9s %10s  %-8s %s\n", "operator", "native", "composed", "reference", "f32",
              "16 bit: worst error / allowed");
  bool slow = false;
  for (const auto& [op, n] : harness.counts()) {
    std::printf("%-14s %7d %9d %10d  %-8.3f %.3f%s%s\n", op.c_str(), n.native, n.composed, n.reference, n.worst,
                n.worst_narrow, n.reference ? "  " : "", n.why_reference.c_str());
    slow |= n.reference > 0;
  }
  std::printf("%d cases on %s, %d failed\n", cases, harness.device_name().c_str(), failures);
  if (slow && setting("DGPU_CONFORMANCE_REQUIRE", "") == "native") {
    std::printf("FAILED: DGPU_CONFORMANCE_REQUIRE=native, and operators ran as the reference\n");
    return 1;
  }
  return failures || broken ? 1 : 0;
}
