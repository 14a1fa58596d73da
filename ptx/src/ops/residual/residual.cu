// residual_add: x[i] += y[i]      x, y: [n] f32                                            ptx/src/ops/residual/residual.cu
// launch:   one thread per 4 elements and one per element left over, 256 per block
// requires: x and y disjoint, 16-byte aligned if vectors > 0; vectors <= n / 4; checked in cuda.rs
// bytes:    12 n (8 read, 4 written); bound by memory
// accuracy: one rounding, the CPU's bits
#include "gpu.cuh"

KERNEL BOUNDS(256, 4) residual_add(f32* x, const f32* __restrict__ y, u32 n, u32 vectors) {
  u32 i = block_x() * 256 + thread_x();
  if (i < vectors) {
    f32x4 a = ((const f32x4*)x)[i];
    f32x4 b = ((const f32x4*)y)[i];
    ((f32x4*)x)[i] = a + b;
    return;
  }
  i += 3 * vectors; // element 4 * vectors + (i - vectors)
  if (i < n) x[i] = x[i] + y[i];
}
