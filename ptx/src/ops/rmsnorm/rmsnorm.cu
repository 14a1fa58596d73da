// rmsnorm_{f32,bf16}: y = (x * inv) * gain, inv = 1 / sqrt(mean(x^2) + eps)                ptx/src/ops/rmsnorm/rmsnorm.cu
// shapes:   x: [rows, width] f32; gain: [width] f32; y: [rows, width]
// launch:   a block of 256 per row; shared: 16 bytes, and 8 per column (rounded up to 4) where width <= KEPT, else 4 KEPT
// shared: rmsnorm_f32 32784
// shared: rmsnorm_bf16 32784
// requires: y is x or apart from it; vectors = width / 4 where all is 16-byte aligned, else 0; checked in cuda.rs
// bytes:    4 read, 4 or 2 written per element, the gain from L2; x is read a second time where width > KEPT
// accuracy: the CPU's bits. The sum of squares is its 16 strided fma chains and their tree, run by one half of a warp out of
//           shared memory: width / 16 dependent fma, 0.2 us at width 1024 and 0.7 us at 4096 on a clock of 1.5 GHz, where a
//           wider tree would take a tenth. That is under 1 % of a decode step, and the devices agree.
#include "math.cuh"

#define KEPT 4096 // columns kept in shared memory, x and gain

// The strided sums of n columns in shared memory, continued; the half warps do the same.
DEV f32 add_squares(const f32* x, u32 n, f32 sum) {
  _Pragma("unroll 8") for (u32 at = lane() & 15; at < n; at += 16) sum = fma(x[at], x[at], sum);
  return sum;
}

template <bool BF16> DEV void store(void* y, u64 at, f32 v) {
  if (BF16) {
    ((u16*)y)[at] = to_bf16(v);
  } else {
    ((f32*)y)[at] = v;
  }
}

// 4 columns at element `at` of y.
template <bool BF16> DEV void store4(void* y, u64 at, f32x4 x, f32x4 gain, f32 inv) {
  f32x4 v = x * inv * gain;
  if (BF16) {
    *(u32x2*)((u16*)y + at) = u32x2{to_bf16x2(v.x, v.y), to_bf16x2(v.z, v.w)};
  } else {
    *(f32x4*)((f32*)y + at) = v;
  }
}

template <bool BF16> DEV void forward(const f32* x, const f32* __restrict__ gain, void* y, u32 width, u32 vectors, f32 eps) {
  u64 row = (u64)block_x() * width;
  f32* inv_out = (f32*)smem;
  f32* xs = (f32*)(smem + 16);
  bool kept = width <= KEPT;
  f32* gains = xs + (kept ? ceil_div(width, 4) * 4 : 0);
  f32 sum = 0.0f;
  NO_UNROLL for (u32 base = 0; base < width; base += KEPT) {
    u32 n = min(width - base, KEPT);
    if (vectors > 0) {
      NO_UNROLL for (u32 at = thread_x(); at < n / 4; at += 256) {
        f32x4 v = ((const f32x4*)(x + row + base))[at];
        if (kept) ((f32x4*)gains)[at] = ((const f32x4*)gain)[at];
        ((f32x4*)xs)[at] = v;
      }
    } else {
      NO_UNROLL for (u32 at = thread_x(); at < n; at += 256) {
        f32 v = x[row + base + at];
        if (kept) gains[at] = gain[at];
        xs[at] = v;
      }
    }
    sync_block();
    if (warp() == 0) sum = add_squares(xs, n, sum);
    sync_block(); // before the next columns take their place
  }
  if (warp() == 0) {
    f32 mean = divide(tree16(sum), (f32)width);
    if (lane() == 0) *inv_out = divide(1.0f, sqrt(mean + eps));
  }
  sync_block();
  f32 inv = *inv_out;
  if (kept) {
    NO_UNROLL for (u32 at = thread_x(); at < vectors; at += 256) {
      store4<BF16>(y, row + 4 * at, ((const f32x4*)xs)[at], ((const f32x4*)gains)[at], inv);
    }
    NO_UNROLL for (u32 at = 4 * vectors + thread_x(); at < width; at += 256) {
      store<BF16>(y, row + at, xs[at] * inv * gains[at]);
    }
    return;
  }
  // A thread reads only what it writes itself, so y may be x.
  NO_UNROLL for (u32 at = thread_x(); at < vectors; at += 256) {
    store4<BF16>(y, row + 4 * at, ((const f32x4*)(x + row))[at], ((const f32x4*)gain)[at], inv);
  }
  NO_UNROLL for (u32 at = 4 * vectors + thread_x(); at < width; at += 256) {
    store<BF16>(y, row + at, x[row + at] * inv * gain[at]);
  }
}

KERNEL BOUNDS(256, 4) rmsnorm_f32(const f32* x, const f32* __restrict__ gain, f32* y, u32 width, u32 vectors, f32 eps) {
  forward<false>(x, gain, y, width, vectors, eps);
}
KERNEL BOUNDS(256, 4) rmsnorm_bf16(const f32* x, const f32* __restrict__ gain, u16* y, u32 width, u32 vectors, f32 eps) {
  forward<true>(x, gain, y, width, vectors, eps);
}
