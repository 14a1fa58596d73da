// rope_tables: cos[t, i], sin[t, i] of positions[t] * inv_freq[i], each times factor         ptx/src/ops/rope/rope.cu
// shapes:   positions: [tokens] u32; inv_freq: [half] f32; cos, sin: [tokens, half] f32
// launch:   one thread per element, 128 per block
// requires: positions at most 2^24, frequencies at most 1; all disjoint
// bytes:    8 written per element, the inputs are few; bound by f64 arithmetic, some 30 operations an element
// accuracy: elementwise, the CPU's bits
#include "math.cuh"

KERNEL BOUNDS(128, 8) rope_tables(const u32* __restrict__ positions, const f32* __restrict__ inv_freq, f32* __restrict__ cos,
                   f32* __restrict__ sin, u32 n, u32 half, f32 factor) {
  u32 at = block_x() * 128 + thread_x();
  if (at >= n) return;
  u32 token = at / half;
  f32 s, c;
  sin_cos((f32)positions[token] * inv_freq[at - token * half], s, c);
  cos[at] = c * factor;
  sin[at] = s * factor;
}
