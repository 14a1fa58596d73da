// embedding_<w>: x[token, k] = the value of row ids[token] of packed weights, f32      ptx/src/ops/embedding/embedding.cu
//
// launch:   grid (tokens), 128 threads, no shared memory
// requires: weights as in ../linear/fragment.cuh, ids on the device; x [tokens, k] without gaps; checked in cuda.rs
// bytes:    per element 4 written and 2 or 1 read; bound by memory
// accuracy: the CPU's bits: bf16 is widened, an e4m3 code times its scale is rounded once. An id that is not below n gives
//           NaN, so that it cannot pass unnoticed. Nothing is summed.
#include "../linear/fragment.cuh"

DEV f32 e4m3_to_f32(u32 code) { // exact; codes of NaN give 480, and their scale is NaN
  return from_bits((code & 0x80) << 24 | (code & 0x7f) << 20) * 0x1p120f;
}

template <Format W>
DEV void embedding(f32* __restrict__ x, const u32* __restrict__ ids, const u8* __restrict__ w, const f32* __restrict__ scales,
                   u32 n, u32 k, u32 by_block) {
  const u32 id = ids[block_x()], r = id % 16, steps = ceil_div(k, 32);
  const u8* tiles = w + (u64)(id / 16) * steps * tile_bytes(W);
  f32* to = x + (u64)block_x() * k;
  NO_UNROLL for (u32 at = 4 * thread_x(); at < k; at += 4 * 128) { // four neighbours lie side by side in a tile too
    const u8* tile = tiles + at / 32 * tile_bytes(W);
    f32 value[4];
    if (id >= n) {
      UNROLL for (int i = 0; i < 4; i++) value[i] = from_bits(0x7fffffff);
    } else if (W == BF16) {
      u32x2 pair = load_shared_by_all_8(tile + r / 8 * 512 + r % 8 * 64 + at % 32 * 2);
      value[0] = bf16_low(pair.x), value[1] = bf16_high(pair.x), value[2] = bf16_low(pair.y), value[3] = bf16_high(pair.y);
    } else {
      u32 codes = *(const u32*)(tile + r % 8 * 64 + at % 32 / 8 * 16 + r / 8 * 8 + at % 8);
      f32 scale = by_block ? scales[id / 16 * ceil_div(k, 128) + at / 128] : scales[id];
      UNROLL for (int i = 0; i < 4; i++) value[i] = e4m3_to_f32(codes >> (8 * i) & 0xff) * scale;
    }
    if (k % 4 == 0) {
      *(f32x4*)(to + at) = f32x4{value[0], value[1], value[2], value[3]};
    } else {
      UNROLL for (u32 i = 0; i < 4; i++)
        if (at + i < k) to[at + i] = value[i];
    }
  }
}

#define EMBEDDING_PARAMS                                                                                                 \
  f32 *__restrict__ x, const u32 *__restrict__ ids, const u8 *__restrict__ w, const f32 *__restrict__ scales, u32 n,     \
      u32 k, u32 by_block
BOUNDS(128, 8) KERNEL embedding_bf16(EMBEDDING_PARAMS) { embedding<BF16>(x, ids, w, scales, n, k, by_block); }
BOUNDS(128, 8) KERNEL embedding_e4m3(EMBEDDING_PARAMS) { embedding<E4M3>(x, ids, w, scales, n, k, by_block); }
