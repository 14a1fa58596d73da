// functions: what math.cuh and gpu.cuh compute of each x[i], for the test of their bits                 ptx/tests/math/math.cu
// shapes:   x, exps, lns, sines, cosines, scales: [n] f32; codes: [n] u32: e4m3, e5m2 and, in the upper half, bf16
// launch:   one thread per element, 128 per block
// bytes:    4 read, 24 written per element
// accuracy: what is tested
#include "math.cuh"

KERNEL BOUNDS(128, 8) functions(const f32* __restrict__ x, f32* __restrict__ exps, f32* __restrict__ lns,
                                f32* __restrict__ sines, f32* __restrict__ cosines, f32* __restrict__ scales,
                                u32* __restrict__ codes, u32 n) {
  u32 i = block_x() * 128 + thread_x();
  if (i >= n) return;
  f32 v = x[i];
  exps[i] = exp(v);
  lns[i] = ln(v);
  f32 s, c;
  sin_cos(v, s, c);
  sines[i] = s;
  cosines[i] = c;
  scales[i] = scale_pow2(abs(v), 448.0f);
  codes[i] = (to_e4m3x2(v, 0.0f) & 0xff) | (to_e5m2x2(v, 0.0f) & 0xff) << 8 | (u32)to_bf16(v) << 16;
}
