// fragment.cuh: packed weights and how they meet the tensor cores.                     ptx/src/ops/linear/fragment.cuh
//
// Packed weights [n, k]: tiles of 16 rows by 32 of k, zeros beyond n and k, tiles of 16 rows one after the other, within
// them ascending k. Lane (g = lane / 4, t = lane % 4) of a warp takes 8 consecutive values of row g and the same of row
// g + 8, at k = 8t .. 8t + 7, by 16-byte loads that lie side by side:
//   bf16, 1024 bytes a tile: row g at 16 lane; row g + 8 at 512 + 16 lane.
//   e4m3,  512 bytes a tile: row g at 16 lane; row g + 8 at 16 lane + 8.
// So the tensor core's own order of k is permuted inside 32, in weights and inputs alike: multiplication j (0, 1) of depth
// 16 takes k = 8t + 4j + {0, 1} as its 2t, 2t + 1 and 8t + 4j + {2, 3} as its 2t + 8, 2t + 9; that of depth 32 takes
// 8t .. 8t + 3 as its 4t .. and 8t + 4 .. 8t + 7 as its 4t + 16 ... Inputs need no layout of their own: their rows are read as they lie.
#pragma once
#include "gpu.cuh"

enum Format { BF16, E4M3 };

constexpr u32 bytes_of(Format f) { return f == BF16 ? 2 : 1; }
constexpr u32 tile_bytes(Format f) { return f == BF16 ? 1024 : 512; }
// Whether the e4m3 instruction multiplies: else codes are widened to bf16, which is exact.
constexpr bool by_fp8(Format w, Format x) { return HAS_FP8 && w == E4M3 && x == E4M3; }

// The k of one part: each is summed by itself, and the parts, 8 at most, are added in ascending order. By k alone.
DEV u32 part_len(u32 k) { return 128 * ceil_div(k, 1024); }

// Four e4m3 codes to bf16, exact for every finite one: the exponent's bias is put right by a product with 2^120. Codes of
// NaN become 480: where those may occur the scale is NaN, and so is the result.
DEV void widen_e4m3(u32 codes, u32& low, u32& high) {
  u32 pairs[2] = {permute_bytes(codes, 0, 0x1404), permute_bytes(codes, 0, 0x3424)}; // codes in the high bytes
  UNROLL for (int i = 0; i < 2; i++) {
    u32 small = (pairs[i] & 0x80008000u) | ((pairs[i] >> 4) & 0x07f007f0u);
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(pairs[i]) : "r"(small), "r"(0x7b807b80u), "r"(0x80008000u)); // 2^120, -0.0
  }
  low = pairs[0], high = pairs[1];
}

// One lane's share of a tile of weights, as it lies in memory.
template <Format W> struct Tile { u32 r[W == BF16 ? 8 : 4]; };
// One lane's share of 8 rows of x by 32 of k: x[g][8t .. 8t + 7].
template <Format X> struct Input { u32 r[X == BF16 ? 4 : 2]; };
// What the multiplications of a tile take.
template <Format W, Format X> struct Left { u32 a[by_fp8(W, X) ? 1 : 2][4]; };
template <Format W, Format X> struct Right { u32 b[by_fp8(W, X) ? 1 : 2][2]; };

DEV u32x4 load_tile_16(const u8* p, bool once) { return once ? load_stream(p) : load_shared_by_all(p); }

// `p` is the tile plus 16 lane. `once`: no other warp will read it.
template <Format W> DEV Tile<W> load_tile(const u8* p, bool once) {
  Tile<W> tile;
  UNROLL for (u32 i = 0; i < (W == BF16 ? 2 : 1); i++) {
    u32x4 v = load_tile_16(p + 512 * i, once);
    tile.r[4 * i] = v.x, tile.r[4 * i + 1] = v.y, tile.r[4 * i + 2] = v.z, tile.r[4 * i + 3] = v.w;
  }
  return tile;
}

template <Format W, Format X> DEV Left<W, X> left_of(const Tile<W>& tile) {
  Left<W, X> left;
  if constexpr (by_fp8(W, X)) {
    left.a[0][0] = tile.r[0], left.a[0][1] = tile.r[2], left.a[0][2] = tile.r[1], left.a[0][3] = tile.r[3];
  } else {
    UNROLL for (int j = 0; j < 2; j++) {
      if constexpr (W == BF16) {
        left.a[j][0] = tile.r[2 * j], left.a[j][1] = tile.r[4 + 2 * j];
        left.a[j][2] = tile.r[2 * j + 1], left.a[j][3] = tile.r[5 + 2 * j];
      } else {
        widen_e4m3(tile.r[j], left.a[j][0], left.a[j][2]);
        widen_e4m3(tile.r[2 + j], left.a[j][1], left.a[j][3]);
      }
    }
  }
  return left;
}

template <Format W, Format X> DEV Right<W, X> right_of(const Input<X>& input) {
  Right<W, X> right;
  if constexpr (by_fp8(W, X)) {
    right.b[0][0] = input.r[0], right.b[0][1] = input.r[1];
  } else {
    UNROLL for (int j = 0; j < 2; j++) {
      if constexpr (X == BF16) right.b[j][0] = input.r[2 * j], right.b[j][1] = input.r[2 * j + 1];
      else widen_e4m3(input.r[j], right.b[j][0], right.b[j][1]);
    }
  }
  return right;
}

// c[16 outputs, 8 rows of x] += over 32 of k.
template <Format W, Format X> DEV void multiply(f32 (&c)[4], const Left<W, X>& left, const Right<W, X>& right) {
#if HAS_FP8
  if constexpr (by_fp8(W, X)) {
    mma_e4m3(c, left.a[0], right.b[0][0], right.b[0][1]);
    return;
  }
#endif
  if constexpr (!by_fp8(W, X)) {
    UNROLL for (int j = 0; j < 2; j++) mma_bf16(c, left.a[j], right.b[j][0], right.b[j][1]);
  }
}

// The arguments of every kernel of this op.
#define LINEAR_PARAMS                                                                                                    \
  f32 *__restrict__ y, const u8 *__restrict__ x, const f32 *__restrict__ x_scales, const u8 *__restrict__ w,             \
      const f32 *__restrict__ scales, const f32 *__restrict__ bias, u32 rows, u32 n, u32 k, u32 y_stride, u32 flags
#define LINEAR_ARGS y, x, x_scales, w, scales, bias, rows, n, k, y_stride, flags
constexpr u32 ADD = 1, BY_BLOCK = 2; // flags: y += instead of y =; scales are [ceil(n / 16), ceil(k / 128)], else [n] or null

// Everything after the sum over k, each step rounded by itself: the scale of the row of x, the scale of the output, the
// bias, what was there. Where one is missing its neutral element changes no bit.
struct Output { f32 scale, bias; };
DEV Output output_of(const f32* scales, const f32* bias, u32 output, u32 flags) {
  Output o = {1.0f, -0.0f};
  if (scales && !(flags & BY_BLOCK)) o.scale = scales[output];
  if (bias) o.bias = bias[output];
  return o;
}
template <Format X> DEV void finish(f32* to, f32 sum, f32 x_scale, Output o, u32 flags) {
  f32 v = (X == E4M3 ? sum * x_scale : sum) * o.scale + o.bias;
  if (flags & ADD) v = *to + v;
  *to = v;
}
