// few.cuh: few rows of x; the weights stream once, straight into registers.                 ptx/src/ops/linear/few.cuh
//
// A block takes 16 MT outputs for 8 NT rows, each of its warps one part of k. The sums of the parts meet in shared memory.
// An H200 needs about 25 KB of loads in flight for each multiprocessor (4.8 TB/s, 0.7 us, 132 of them). With as many blocks
// as the registers allow, weights alone are 96, 96, 64, 32 KB for 8, 16, 32, 64 rows in bf16 and 48, 48, 32, 16 KB in e4m3,
// where 64 rows are bound by the matrix units anyway; 32 and 16 KB in the formats of one chain for each 128 of k. By design, not measured.
#pragma once
#include "fragment.cuh"

// x[g][..8] from p if `tile` is less than `columns`, or zeros. Vectors need rows of a multiple of 8 values; RAGGED reads one
// value at a time, of which `left` are in the row.
template <Format X, bool RAGGED> DEV Input<X> load_input(const u8* p, i32 tile, i32 columns, i32 left) {
  Input<X> input;
  if constexpr (RAGGED) {
    UNROLL for (int i = 0; i < 8; i++) {
      constexpr int PER = 4 / bytes_of(X);
      u32 value = 0;
      if (tile < columns && i < left) value = X == BF16 ? ((const u16*)p)[i] : p[i];
      u32 shifted = value << (8 * bytes_of(X) * (i % PER));
      input.r[i / PER] = i % PER == 0 ? shifted : input.r[i / PER] | shifted;
    }
  } else if constexpr (X == BF16) {
    asm("{ .reg .pred p; setp.lt.s32 p, %5, %6; mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0;\n"
        "@p ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4]; }"
        : "=&r"(input.r[0]), "=&r"(input.r[1]), "=&r"(input.r[2]), "=&r"(input.r[3]) : "l"(p), "r"(tile), "r"(columns));
  } else {
    asm("{ .reg .pred p; setp.lt.s32 p, %3, %4; mov.b32 %0, 0; mov.b32 %1, 0;\n"
        "@p ld.global.nc.v2.u32 {%0,%1}, [%2]; }"
        : "=&r"(input.r[0]), "=&r"(input.r[1]) : "l"(p), "r"(tile), "r"(columns));
  }
  return input;
}

// STEPS steps of k: all their weights are asked for before the first is used.
template <Format W, Format X, int NT, int MT, int STEPS, bool RAGGED>
DEV void few_steps(f32 (&acc)[MT][NT][4], const u8* const (&a)[MT], u32 a_offset, const u8* b, u32 b_stride, i32 columns, i32 left) {
  Tile<W> tiles[STEPS][MT];
  UNROLL for (int s = 0; s < STEPS; s++)
    UNROLL for (int m = 0; m < MT; m++) tiles[s][m] = load_tile<W>(a[m] + a_offset + s * tile_bytes(W), true);
  UNROLL for (int s = 0; s < STEPS; s++) {
    Input<X> inputs[NT];
    const i32 here = STEPS > 1 || left > 0 ? columns : 0; // k ends in the last step alone, and that is taken by itself
    UNROLL for (int i = 0; i < NT; i++) inputs[i] = load_input<X, RAGGED>(b + i * b_stride + s * 32 * bytes_of(X), 8 * i, here, left);
    Left<W, X> lefts[MT];
    UNROLL for (int m = 0; m < MT; m++) lefts[m] = left_of<W, X>(tiles[s][m]);
    UNROLL for (int i = 0; i < NT; i++) {
      Right<W, X> right = right_of<W, X>(inputs[i]);
      UNROLL for (int m = 0; m < MT; m++) multiply<W, X>(acc[m][i], lefts[m], right);
    }
  }
}

// Where eight sums of one part lie: outputs 8 `half` .. of tile m, column 2t + e of column tile i. Both the fragments'
// order (t varies) and the outputs' (half, then e or m vary) fall on four different quarters of the banks.
template <int TILES, int MT> DEV u32 octet(u32 part, u32 i, u32 m, u32 half, u32 t, u32 e) {
  u32 group = e + 2 * half;
  return ((part * TILES + i) * MT + m) * 16 + 4 * group + ((t + group + m) & 3);
}

template <Format W, Format X, bool CHAINED, int NT, int MT, bool RAGGED> DEV void few(LINEAR_PARAMS) {
  constexpr int AHEAD = RAGGED || NT > 4 ? 1 : MT == 1 || CHAINED ? 4 : 2; // steps whose weights are asked for together
  const u32 g = lane() >> 2, t = lane() & 3, part = warp();
  const u32 steps = ceil_div(k, 32), tiles = ceil_div(n, 16), first_tile = block_x() * MT;
  const u32 first_row = RAGGED ? 8 * NT * block_y() : 0;
  const u32 begin = part * part_len(k), end = min(begin + part_len(k), k);
  const u8* a[MT]; // a tile beyond the last reads the last again and is not written
  UNROLL for (int m = 0; m < MT; m++)
    a[m] = w + ((u64)min(first_tile + m, tiles - 1) * steps + begin / 32) * tile_bytes(W) + 16 * lane();
  const u8* b = x + ((u64)(first_row + g) * k + begin + 8 * t) * bytes_of(X);
  const u32 b_stride = 8 * k * bytes_of(X);
  const i32 columns = (i32)(rows - first_row - g); // column tile i is there for this lane if 8 i is less

  f32 total[MT][NT][4] = {}, acc[MT][NT][4] = {};
  NO_UNROLL for (u32 at = begin; at < end; at += 128) {
    u32 a_offset = (at - begin) / 32 * tile_bytes(W);
    const u8* from = b + (at - begin) * bytes_of(X);
    i32 left = (i32)(k - at - 8 * t);
    if (AHEAD > 1 && at + 128 <= k) {
      NO_UNROLL for (u32 s = 0; s < 4 / AHEAD; s++) {
        few_steps<W, X, NT, MT, AHEAD, RAGGED>(acc, a, a_offset, from, b_stride, columns, left);
        a_offset += AHEAD * tile_bytes(W), from += AHEAD * 32 * bytes_of(X);
      }
    } else {
      NO_UNROLL for (u32 i = at; i < min(at + 128, end); i += 32) {
        few_steps<W, X, NT, MT, 1, RAGGED>(acc, a, a_offset, from, b_stride, columns, left);
        a_offset += tile_bytes(W), from += 32 * bytes_of(X), left -= 32;
      }
    }
    if constexpr (CHAINED) {
      UNROLL for (int m = 0; m < MT; m++) {
        f32 scale = 1.0f;
        if (flags & BY_BLOCK) scale = scales[min(first_tile + m, tiles - 1) * ceil_div(k, 128) + at / 128];
        UNROLL for (int i = 0; i < NT; i++)
          UNROLL for (int e = 0; e < 4; e++) total[m][i][e] = fma(acc[m][i][e], scale, total[m][i][e]), acc[m][i][e] = 0.0f;
      }
    }
  }

  constexpr int TILES = NT * MT <= 8 ? NT : 8 / MT; // column tiles that meet at a time: 32 KiB at most
  const u32 threads = threads_x(), parts = threads / 32;
  f32* sums = (f32*)smem;
  f32* output_scales = sums + parts * TILES * MT * 128; // of this block's outputs and rows: read from memory once
  f32* output_biases = output_scales + 16 * MT;
  f32* row_scales = output_biases + 16 * MT;
  NO_UNROLL for (u32 i = thread_x(); i < 16 * MT; i += threads) {
    if (16 * first_tile + i >= n) break;
    const Output o = output_of(scales, bias, 16 * first_tile + i, flags);
    output_scales[i] = o.scale, output_biases[i] = o.bias;
  }
  if constexpr (X == E4M3) {
    NO_UNROLL for (u32 i = thread_x(); i < min(8 * NT, rows - first_row); i += threads) row_scales[i] = x_scales[first_row + i];
  }
  // A thread finishes one output of several rows; there are fewer threads than outputs only where k is short.
  const u32 width = min(16 * MT, threads), apart = threads / width;
  UNROLL for (int first = 0; first < NT; first += TILES) {
    if (first > 0) {
      if (first_row + 8 * first >= rows) break;
      sync_block(); // the sums before have been read
    }
    UNROLL for (int i = 0; i < TILES; i++)
      UNROLL for (int m = 0; m < MT; m++)
        UNROLL for (int e = 0; e < 4; e++)
          sums[octet<TILES, MT>(part, i, m, e >> 1, t, e & 1) * 8 + g] = CHAINED ? total[m][first + i][e] : acc[m][first + i][e];
    sync_block();
    NO_UNROLL for (u32 output = thread_x() % width; output < 16 * MT; output += width) {
      if (16 * first_tile + output >= n || thread_x() / width >= apart) break;
      const Output o = {output_scales[output], output_biases[output]};
      NO_UNROLL for (u32 column = thread_x() / width; column < 8 * TILES; column += apart) {
        u32 row = 8 * first + column;
        if (first_row + row >= rows) break;
        u32 first_octet = octet<TILES, MT>(0, column / 8, output / 16, output / 8 % 2, column / 2 % 4, column % 2);
        const f32* from = sums + first_octet * 8 + output % 8;
        f32 sum = 0.0f;
        UNROLL for (u32 p = 0; p < 8; p++)
          if (p < parts) sum += from[p * TILES * MT * 128];
        f32* to = y + (u64)(first_row + row) * y_stride + 16 * first_tile + output;
        finish<X>(to, sum, X == E4M3 ? row_scales[row] : 1.0f, o, flags);
      }
    }
  }
}
