// Which instructions the kernels may use, for all kernels of the backend: Highway's dynamic dispatch obeys it, and
// hand-written paths ask isa().
//
// DGPU_CPU_ISA   auto | scalar | sse4 | avx2 | avx512   an upper limit; what the machine lacks is never used
// DGPU_CPU_BF16  auto | dot | fma   which unit multiplies bf16: the bf16 dot product instructions, or f32 FMA after
//                conversion. auto leaves it to the kernel, which measures.
#pragma once
#include <string>
#include <string_view>

namespace dgpu::cpu {

enum class Isa { kScalar = 0, kSse4 = 1, kAvx2 = 2, kAvx512 = 3 };
enum class Bf16Mode { kAuto, kDot, kFma };

// The level in force: the machine's, limited by set_isa.
Isa isa();
// The machine has AVX512_BF16 and the limit permits AVX-512.
bool has_bf16_dot();
Bf16Mode bf16_mode();

// Sets the limits; process-wide. False with `error` set if the value is not one of those above; nothing changed then.
// Takes effect for calls that start later: tests may force each path in turn. Not while kernels run.
bool set_isa(std::string_view value, std::string* error);
bool set_bf16_mode(std::string_view value, std::string* error);

const char* isa_name(Isa isa);

}  // namespace dgpu::cpu
