// What the machine can do, measured: the yardsticks of benchmarks, and the choice of the bf16 unit.
#pragma once

namespace dgpu::cpu {

// Peak rates over `threads` threads, best of a few short runs (about 50 ms each call). Units: flop/s and bytes/s.
double probe_f32_flops(int threads);
double probe_bf16_dot_flops(int threads);  // 0 where the machine has no bf16 pair instruction
double probe_read_bytes(int threads);      // sequential reads of memory far larger than the caches

// Whether bf16 products are faster by the pair instruction than by widening and f32 FMA. Measured once per process
// (under a millisecond) and kept; always false where there is no such instruction.
bool bf16_dot_is_faster();

}  // namespace dgpu::cpu
