// round_bf16: y[i] = bf16(x[i])                                                             ptx/src/ops/round/round.cu
// round_e4m3_rows: codes[r, i] = e4m3(x[r, i] / scales[r]), scales[r] the least power of two at which all fit 448
// shapes:   x: [n] or [rows, width] f32; y: [n] bf16; codes: [rows, width] u8; scales: [rows] f32
// launch:   bf16: one thread per 4 elements and one per element left over, 256 per block; e4m3_rows: a block of 256 per row
// shared: round_e4m3_rows 32
// requires: outputs apart from inputs; vectors > 0 only where 16-byte loads are aligned; checked in cuda.rs
// bytes:    bf16: 4 read, 2 written per element; e4m3_rows: 4 read, 1 written, and 4 read again where a row is wider than
//           REGISTERS or not aligned, from L2; bound by memory
// accuracy: the CPU's bits; NaN is 0x7fff in bf16, and a row with a value that is not finite has scale NaN, codes NaN.
//           A row's largest magnitude is a maximum of integers, so no order matters.
#include "gpu.cuh"

KERNEL BOUNDS(256, 4) round_bf16(const f32* __restrict__ x, u16* __restrict__ y, u32 n, u32 vectors) {
  u32 i = block_x() * 256 + thread_x();
  if (i < vectors) {
    u32x4 v = load_stream((const f32x4*)x + i); // one load: left to itself the compiler makes it two
    ((u32x2*)y)[i] = u32x2{to_bf16x2(from_bits(v.x), from_bits(v.y)), to_bf16x2(from_bits(v.z), from_bits(v.w))};
    return;
  }
  i += 3 * vectors;
  if (i < n) y[i] = to_bf16(x[i]);
}

#define ITEMS 12
#define REGISTERS (256 * 4 * ITEMS) // columns that a block keeps in registers between its two passes

DEV u32 magnitude(f32 x) { return bits(x) & 0x7fffffffu; } // these order as magnitudes do, NaN last
DEV u32 codes4(f32x4 v, f32 inverse) {
  return to_e4m3x2(v.x * inverse, v.y * inverse) | to_e4m3x2(v.z * inverse, v.w * inverse) << 16;
}

// The scale of a row, and its inverse, from each thread's largest magnitude.
DEV f32 scale_of_row(u32 amax, f32* scale_out, f32& inverse) {
  UNROLL for (u32 d = 16; d > 0; d /= 2) amax = max(amax, shuffle_xor(amax, d));
  u32* of_warps = (u32*)smem;
  if (lane() == 0) of_warps[warp()] = amax;
  sync_block();
  UNROLL for (u32 w = 0; w < 8; w++) amax = max(amax, of_warps[w]);
  bool finite = amax < 0x7f800000u;
  f32 scale = finite ? scale_pow2(from_bits(amax), 448.0f) : from_bits(0x7fc00000u);
  // The scale is from 2^-126 to 2^120, so its inverse is a power of two too.
  inverse = finite ? from_bits((254u << 23) - bits(scale)) : scale;
  if (thread_x() == 0) *scale_out = scale;
  return scale;
}

KERNEL BOUNDS(256, 2) round_e4m3_rows(const f32* __restrict__ x, u8* __restrict__ codes, f32* __restrict__ scales, u32 width,
                                      u32 vectors) {
  u64 row = block_x();
  const f32* from = x + row * width;
  u8* to = codes + row * width;
  u32 amax = 0;
  f32 inverse;
  if (vectors > 0) { // width = 4 vectors, and all of it fits
    f32x4 v[ITEMS];
    UNROLL for (u32 i = 0; i < ITEMS; i++) {
      u32 at = i * 256 + thread_x();
      if (at >= vectors) continue;
      v[i] = ((const f32x4*)from)[at];
      amax = max(max(amax, max(magnitude(v[i].x), magnitude(v[i].y))), max(magnitude(v[i].z), magnitude(v[i].w)));
    }
    scale_of_row(amax, scales + row, inverse);
    UNROLL for (u32 i = 0; i < ITEMS; i++) {
      u32 at = i * 256 + thread_x();
      if (at < vectors) ((u32*)to)[at] = codes4(v[i], inverse);
    }
    return;
  }
  NO_UNROLL for (u32 at = thread_x(); at < width; at += 256) amax = max(amax, magnitude(from[at]));
  scale_of_row(amax, scales + row, inverse);
  NO_UNROLL for (u32 at = thread_x(); at < width; at += 256) to[at] = (u8)to_e4m3x2(from[at] * inverse, 0.0f);
}
