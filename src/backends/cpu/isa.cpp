#include "backends/cpu/isa.h"

#include <hwy/highway.h>

#include <atomic>

namespace dgpu::cpu {
namespace {

constexpr int64_t kBaseTargets = HWY_EMU128 | HWY_SCALAR;
#if HWY_ARCH_X86
constexpr int64_t kSse4Targets = HWY_SSSE3 | HWY_SSE4;
constexpr int64_t kAvx2Targets = HWY_AVX2;
constexpr int64_t kAvx512Targets = HWY_AVX3 | HWY_AVX3_DL;
#endif

std::atomic<int> g_isa{-1};  // -1: not asked for yet, the machine's level
std::atomic<int> g_bf16{static_cast<int>(Bf16Mode::kAuto)};

Isa machine_isa() {
#if HWY_ARCH_X86
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return Isa::kAvx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Isa::kAvx2;
  if (__builtin_cpu_supports("sse4.1") && __builtin_cpu_supports("sse4.2")) return Isa::kSse4;
#endif
  return Isa::kScalar;
}

// Targets up to a level. Highway shares this choice with other users of its library in the process.
int64_t targets_up_to(Isa level) {
  int64_t targets = kBaseTargets;
#if HWY_ARCH_X86
  if (level >= Isa::kSse4) targets |= kSse4Targets;
  if (level >= Isa::kAvx2) targets |= kAvx2Targets;
  if (level >= Isa::kAvx512) targets |= kAvx512Targets;
#endif
  return targets;
}

}  // namespace

Isa isa() {
  const int level = g_isa.load(std::memory_order_relaxed);
  if (level >= 0) return static_cast<Isa>(level);
  const Isa machine = machine_isa();
  int unset = -1;
  g_isa.compare_exchange_strong(unset, static_cast<int>(machine));
  return static_cast<Isa>(g_isa.load());
}

bool has_bf16_dot() {
#if HWY_ARCH_X86
  return isa() >= Isa::kAvx512 && __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

Bf16Mode bf16_mode() { return static_cast<Bf16Mode>(g_bf16.load(std::memory_order_relaxed)); }

bool set_isa(std::string_view value, std::string* error) {
  Isa limit = machine_isa();
  if (value == "auto") {
    hwy::SetSupportedTargetsForTest(0);
    g_isa.store(static_cast<int>(limit));
    return true;
  }
  bool known = false;
  for (const Isa level : {Isa::kScalar, Isa::kSse4, Isa::kAvx2, Isa::kAvx512}) {
    if (value != isa_name(level)) continue;
    known = true;
    if (level < limit) limit = level;
  }
  if (!known) {
    *error = "\"" + std::string(value) + "\" is not one of auto, scalar, sse4, avx2, avx512";
    return false;
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::SetSupportedTargetsForTest(hwy::SupportedTargets() & targets_up_to(limit));
  g_isa.store(static_cast<int>(limit));
  return true;
}

bool set_bf16_mode(std::string_view value, std::string* error) {
  Bf16Mode mode = Bf16Mode::kAuto;
  if (value == "dot")
    mode = Bf16Mode::kDot;
  else if (value == "fma")
    mode = Bf16Mode::kFma;
  else if (value != "auto") {
    *error = "\"" + std::string(value) + "\" is not one of auto, dot, fma";
    return false;
  }
  g_bf16.store(static_cast<int>(mode));
  return true;
}

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kSse4:
      return "sse4";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "unknown";
}

}  // namespace dgpu::cpu
