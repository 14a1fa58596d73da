// many.cuh: many rows of x; a block multiplies 128 outputs by 16 NT rows.                   ptx/src/ops/linear/many.cuh
//
// Eight warps, 4 along the outputs by 2 along the rows: each 32 outputs by 8 NT rows. Weights come in fragments, one step
// ahead; x goes through shared memory in three stages of 128 bytes of each row.
#pragma once
#include "fragment.cuh"

// Where 16 bytes of a stage lie: XOR spreads the rows that one instruction reads over all banks.
template <Format X> DEV u32 place(u32 row, u32 chunk) {
  return row * 128 + (chunk ^ (X == BF16 ? (row & 1) << 2 : (row & 3) << 1)) * 16;
}

template <Format X, u32 ROWS> DEV void fetch(const u8* x, u32 rows, u32 k, u32 first_row, u32 stage) {
  constexpr u32 SPAN = 128 / bytes_of(X);
  u32 base = smem_address(smem) + stage % 3 * ROWS * 128;
  UNROLL for (u32 i = 0; i < ROWS * 8; i += 256) {
    u32 row = (i + thread_x()) / 8, chunk = thread_x() % 8;
    u32 at = stage * SPAN + chunk * 16 / bytes_of(X);
    bool valid = first_row + row < rows && at < k;
    const u8* from = valid ? x + ((u64)(first_row + row) * k + at) * bytes_of(X) : x;
    cp_async_16(base + place<X>(row, chunk), from, valid);
  }
}

// Column tile i of this warp, step s of a stage.
template <Format X> DEV Input<X> staged(u32 base, u32 row, u32 s, u32 t) {
  Input<X> input;
  if constexpr (X == BF16) {
    u32x4 v = *(const u32x4*)(smem + base + place<X>(row, 4 * s + t));
    input.r[0] = v.x, input.r[1] = v.y, input.r[2] = v.z, input.r[3] = v.w;
  } else {
    u32x2 v = *(const u32x2*)(smem + base + place<X>(row, 2 * s + t / 2) + 8 * (t % 2));
    input.r[0] = v.x, input.r[1] = v.y;
  }
  return input;
}

template <int NT> DEV void add_scaled(f32 (&to)[2][NT][4], f32 (&from)[2][NT][4], const f32 (&scale)[2]) {
  UNROLL for (int m = 0; m < 2; m++)
    UNROLL for (int i = 0; i < NT; i++)
      UNROLL for (int e = 0; e < 4; e++) to[m][i][e] = fma(from[m][i][e], scale[m], to[m][i][e]), from[m][i][e] = 0.0f;
}

template <Format W, Format X, bool CHAINED, int NT> DEV void many(LINEAR_PARAMS) {
  constexpr u32 ROWS = 16 * NT, SPAN = 128 / bytes_of(X), STEPS = SPAN / 32;
  const u32 g = lane() >> 2, t = lane() & 3, right = warp() & 1;
  const u32 steps = ceil_div(k, 32), tiles = ceil_div(n, 16), stages = ceil_div(k, SPAN);
  const u32 first_tile = 8 * block_y() + 2 * (warp() >> 1), first_row = ROWS * block_x();
  const u8* a[2]; // a tile beyond the last reads the last again and is not written
  UNROLL for (u32 m = 0; m < 2; m++) a[m] = w + (u64)min(first_tile + m, tiles - 1) * steps * tile_bytes(W) + 16 * lane();

  Tile<W> next[2];
  UNROLL for (int m = 0; m < 2; m++) next[m] = load_tile<W>(a[m], false);
  fetch<X, ROWS>(x, rows, k, first_row, 0);
  cp_commit();
  if (stages > 1) fetch<X, ROWS>(x, rows, k, first_row, 1);
  cp_commit();

  f32 total[2][NT][4] = {}, part[2][NT][4] = {}, acc[2][NT][4] = {};
  const f32 one[2] = {1.0f, 1.0f};
  u32 part_left = part_len(k);
  NO_UNROLL for (u32 stage = 0; stage < stages; stage++) {
    cp_wait<1>();
    sync_block(); // this stage is there for all, and all are done with the one before
    if (stage + 2 < stages) fetch<X, ROWS>(x, rows, k, first_row, stage + 2);
    cp_commit(); // empty at the end, so that the count of groups stays right
    const u32 base = stage % 3 * ROWS * 128;
    NO_UNROLL for (u32 s = 0; s < STEPS; s++) {
      u32 step = stage * STEPS + s;
      if (step >= steps) break;
      Left<W, X> lefts[2];
      UNROLL for (int m = 0; m < 2; m++) {
        lefts[m] = left_of<W, X>(next[m]);
        next[m] = load_tile<W>(a[m] + min(step + 1, steps - 1) * tile_bytes(W), false);
      }
      UNROLL for (u32 i = 0; i < NT; i++) {
        Right<W, X> b = right_of<W, X>(staged<X>(base, 8 * (NT * right + i) + g, s, t));
        UNROLL for (int m = 0; m < 2; m++) multiply<W, X>(acc[m][i], lefts[m], b);
      }
    }
    const bool last = stage + 1 == stages;
    part_left -= SPAN;
    if constexpr (CHAINED) {
      if (part_left % 128 == 0 || last) {
        f32 scale[2] = {1.0f, 1.0f};
        if (flags & BY_BLOCK) {
          UNROLL for (u32 m = 0; m < 2; m++)
            scale[m] = scales[min(first_tile + m, tiles - 1) * ceil_div(k, 128) + stage * SPAN / 128];
        }
        add_scaled<NT>(part, acc, scale);
      }
    }
    if (part_left == 0 || last) {
      add_scaled<NT>(total, CHAINED ? part : acc, one);
      part_left = part_len(k);
    }
  }

  UNROLL for (u32 h = 0; h < 4; h++) { // tile h / 2, its row g + 8 (h % 2)
    const u32 output = 16 * first_tile + g + 8 * h;
    if (output >= n) break;
    const Output o = output_of(scales, bias, output, flags);
    f32* to = y + (u64)(first_row + 8 * NT * right + 2 * t) * y_stride + output;
    UNROLL for (u32 i = 0; i < NT; i++) {
      UNROLL for (u32 e = 0; e < 2; e++) {
        u32 row = first_row + 8 * (NT * right + i) + 2 * t + e;
        if (row < rows) finish<X>(to + e * y_stride, total[h / 2][i][2 * (h % 2) + e], X == E4M3 ? x_scales[row] : 1.0f, o, flags);
      }
      to += (u64)8 * y_stride;
    }
  }
}
