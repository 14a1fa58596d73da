// peak_bf16: what the matrix instruction gives when nothing else is in its way                      ptx/src/ops/peak/peak.cu
//   out: [blocks, 256] f32, each 16 * iterations
// launch:   any number of blocks of 256 threads
// requires: iterations below 2^20, so that the sums are exact; checked in cuda.rs
// bytes:    none but the result's; bound by the matrix units: 8 independent sums a warp, 4096 flops each an iteration
// accuracy: sums of ones, exact
#include "gpu.cuh"

constexpr u32 SUMS = 8;

KERNEL BOUNDS(256, 2) peak_bf16(f32* __restrict__ out, u32 iterations) {
  u32 ones[4];
  UNROLL for (u32 i = 0; i < 4; i++) ones[i] = 0x3f803f80u;
  f32 sums[SUMS][4];
  UNROLL for (u32 s = 0; s < SUMS; s++)
    UNROLL for (u32 i = 0; i < 4; i++) sums[s][i] = (f32)s;
  NO_UNROLL for (u32 n = 0; n < iterations; n++)
    UNROLL for (u32 s = 0; s < SUMS; s++) mma_bf16(sums[s], ones, ones[0], ones[1]);
  // One sum is stored, and only if all agree, so that none can be left out; they began differently, so that none is another.
  f32 y = sums[0][0];
  UNROLL for (u32 s = 0; s < SUMS; s++)
    UNROLL for (u32 i = 0; i < 4; i++)
      if (sums[s][i] - (f32)s != y) y = -1.0f;
  out[block_x() * 256 + thread_x()] = y;
}
