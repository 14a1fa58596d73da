// select_rows: y[i] = x[rows[i]]      x: [any, width] f32, y: [count, width] f32              ptx/src/ops/select/select.cu
// launch:   grid (count), 256 threads
// requires: rows[i] is a row of x; x and y disjoint, both 16-byte aligned and width a multiple of 4 if vectors > 0, which is
//           then width / 4; checked in cuda.rs but for the rows, which only the device sees
// bytes:    8 width a row (4 read, 4 written); bound by memory
// accuracy: a copy
#include "gpu.cuh"

KERNEL BOUNDS(256, 4) select_rows(f32* __restrict__ y, const f32* __restrict__ x, const u32* __restrict__ rows, u32 width,
                                u32 vectors) {
  const f32* from = x + (u64)rows[block_x()] * width;
  f32* to = y + (u64)block_x() * width;
  NO_UNROLL for (u32 i = thread_x(); i < vectors; i += 256) ((f32x4*)to)[i] = ((const f32x4*)from)[i];
  NO_UNROLL for (u32 i = 4 * vectors + thread_x(); i < width; i += 256) to[i] = from[i];
}
