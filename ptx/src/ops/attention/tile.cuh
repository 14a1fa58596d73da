// tile.cuh: the parts of attention: how a block's memory lies, and what is done to 16 keys, to 16 values and to the queries
// of a tile.                                                                             ptx/src/ops/attention/tile.cuh
#pragma once
#include "kv.cuh"
#include "math.cuh"

constexpr u32 WARPS = 4, THREADS = 128, TILE = 16, TILES = 4, CHUNK = 256, NONE = 0xffffffffu;
enum Flags : u32 { K_E5M2 = 1, V_E5M2 = 2, BY_TOKEN = 4, OUT_BF16 = 8, SPLIT = 16, K_8BIT = 32, V_8BIT = 64 };
#define INFINITY __builtin_inff()

template <int D, int N> struct Layout { // places in shared memory; cuda.rs computes BYTES too
  static constexpr u32 COLUMN = 4 * N * 4;               // a word for each column
  static constexpr u32 SCORES = 0;                       // [N][256][4] f32, or high and low part of a weight
  static constexpr u32 QUERIES = SCORES + N * CHUNK * 16; // [8 N][D] 16-bit
  static constexpr u32 LARGEST = QUERIES + 8 * N * D * 2; // [warp][column]
  static constexpr u32 SUM = LARGEST + WARPS * COLUMN;
  static constexpr u32 HEAVIEST = SUM + WARPS * COLUMN;
  static constexpr u32 OLD = HEAVIEST + WARPS * COLUMN; // [column]: a and b of the fold
  static constexpr u32 NEW = OLD + COLUMN;
  static constexpr u32 TOTAL = NEW + COLUMN;
  static constexpr u32 DIVIDED = TOTAL + COLUMN;  // what brings scores back
  static constexpr u32 RAISED = DIVIDED + COLUMN; // what brings sums of values back
  static constexpr u32 SEEN = RAISED + COLUMN;    // keys that the column sees, 0 if it is not there
  static constexpr u32 TO = SEEN + COLUMN;        // where in `out` it goes
  static constexpr u32 BROKEN = TO + COLUMN;      // [warp][D]: the first position whose value is not finite
  static constexpr u32 RINGS = BROKEN + WARPS * D * 4; // [warp][4][16 D largest element size]; a warp's sums later
};

struct Args {
  f32* out;
  f32* partials;
  const u8* pages;
  const u8* exponents;
  const f32* k_scales;
  const f32* v_scales;
  const f32* q;
  const u32* spans;  // [spans][4]: first row, rows, first position, unused
  const u32* tables; // [spans][table_stride]
  const u32* tiles;  // [tiles][2]: span or NONE, first column
  u32 kv_heads, group, page_shift, table_stride;
  f32 softmax_scale;
  u32 flags;
};

template <typename T> DEV T& at(u32 offset) { return *(T*)(smem + offset); }

template <u32 OFFSET> DEV void cp_async_16_at(u32 to, const u8* from) {
  asm volatile("cp.async.cg.shared.global [%0+%2], [%1+%2], 16;" ::"r"(to), "l"(from), "n"(OFFSET) : "memory");
}
// Pieces k, k + STEP, ... of EACH, 512 bytes apart.
template <u32 EACH, u32 STEP, u32 K = 0> DEV void copy_some(u32 to, const u8* from, u32 k) {
  if constexpr (K < EACH) {
    if (k + K < EACH) cp_async_16_at<512 * K>(to, from);
    copy_some<EACH, STEP, K + STEP>(to, from, k);
  }
}

// 16 rows of R bytes to a slot; zeros from row `rows` on. Lane 16 half + r has the page of row r.
template <u32 R>
DEV void fetch(u32 slot, const u8* tiles, u64 stride, u32 page_shift, u32 position, u32 rows, u32 pages, u32 half) {
  constexpr u32 UNITS = R / 16, EACH = (UNITS + 1) / 2;
  u32 mask = (1u << page_shift) - 1;
  if (page_shift >= 4 && rows >= TILE) { // one piece of one page
    // The swaps repeat every 8 rows, so only so many places of a lane differ by more than a multiple of 512.
    constexpr u32 PLACES = UNITS % 3 == 0 ? 3 : UNITS < 4 ? 1 : UNITS / 4;
    const u8* from = tiles + shuffle(pages, 16 * half) * stride + (position & mask) * R + 16 * lane();
    UNROLL for (u32 k = 0; k < PLACES; k++) {
      u32 i = lane() + 32 * k, to = slot + Rows<R>::at(i / UNITS, i % UNITS);
      if (UNITS % 2 == 0 || lane() < TILE) copy_some<EACH, PLACES>(to, from + 512 * k, k);
    }
  } else {
    NO_UNROLL for (u32 i = lane(); i < 32 * EACH; i += 32) {
      u32 row = i / UNITS, near = min(row, rows - 1);
      const u8* from = tiles + shuffle(pages, 16 * half + (near & 15)) * stride + ((position + near) & mask) * R;
      if (UNITS % 2 == 0 || row < TILE) cp_async_16(slot + Rows<R>::at(row, i % UNITS), from + 16 * (i % UNITS), row < rows);
    }
  }
}

// Takes what is not finite out of a tile of values: it becomes zero, and `broken` learns where it first was.
template <int D> DEV void screen(u32 slot, u32 broken, u32 position, bool eight, bool e5m2) {
  NotFinite test = NotFinite::of(eight, e5m2);
  u32 found = 0, bytes = eight ? TILE * D : 2 * TILE * D;
  NO_UNROLL for (u32 i = 16 * lane(); i < bytes; i += 512) {
    u32x4 x = at<u32x4>(slot + i);
    UNROLL for (u32 j = 0; j < 4; j++) found |= NotFinite::in(test, x[j]);
  }
  if (ballot(found != 0) == 0) return;
  sync_warp(); // every lane has read what others are about to change
  NO_UNROLL for (u32 d = lane(); d < D; d += 32) {
    u32 first = at<u32>(broken + 4 * d);
    NO_UNROLL for (u32 row = 0; row < TILE; row++) {
      u32 place = slot + (eight ? Rows<D>::at(row, d / 16) + d % 16 : Rows<2 * D>::at(row, d / 8) + d % 8 * 2);
      u32 x = eight ? at<u8>(place) : at<u16>(place);
      if (NotFinite::in(test, x)) {
        at<u8>(place) = 0;
        if (!eight) at<u8>(place + 1) = 0;
        first = min(first, position + row);
      }
    }
    at<u32>(broken + 4 * d) = first;
  }
  sync_warp();
}

// Puts the tile's queries into shared memory, split; a warp has every fourth column.
template <int D, int N> DEV void stage(const Args& p, u32 head, u32x4 span, u32 first_column, u32 columns, bool eight) {
  using L = Layout<D, N>;
  UNROLL for (u32 n = 0; n < N; n++) {
    u32 column = warp() + 4 * n, index = first_column + column;
    bool there = index < columns;
    u32 row = span.x + index / p.group, of = head * p.group + index % p.group;
    u64 from = ((u64)row * (p.kv_heads * p.group) + of) * D;
    f32 x[(D + 31) / 32], largest = 0.0f;
    UNROLL for (u32 e = 0; e < (D + 31) / 32; e++) {
      u32 d = lane() + 32 * e;
      x[e] = there && (D % 32 == 0 || d < D) ? from_bits(load_word(p.q + from + d)) : 0.0f;
      largest = max(largest, abs(x[e]));
    }
    UNROLL for (u32 m = 16; m > 0; m >>= 1) largest = max(largest, shuffle_xor(largest, m));
    // For f16 a power of two brings the largest to 2^14.
    u32 exponent = eight ? min(268 - (bits(largest) >> 23), 253u) : 127;
    f32 up = from_bits(exponent << 23);
    UNROLL for (u32 e = 0; e < (D + 31) / 32; e++) {
      u32 d = lane() + 32 * e;
      if (D % 32 == 0 || d < D) {
        u32 pair = eight ? split<1>(x[e] * up) : split<2>(x[e]), place = eight ? (d & ~15u) | dim_place(d & 15) : d;
        u32 unit = place / 8, within = 2 * (place % 8);
        at<u16>(L::QUERIES + Rows<2 * D>::at(2 * column, unit) + within) = (u16)pair;
        at<u16>(L::QUERIES + Rows<2 * D>::at(2 * column + 1, unit) + within) = (u16)(pair >> 16);
      }
    }
    if (lane() == 0) {
      at<f32>(L::DIVIDED + 4 * column) = from_bits((254 - exponent) << 23);
      at<u32>(L::SEEN + 4 * column) = there ? span.z + index / p.group + 1 : 0;
      at<u32>(L::TO + 4 * column) = there ? (u32)from : NONE;
    }
  }
  UNROLL for (u32 d = lane(); d < D; d += 32) at<u32>(L::BROKEN + 4 * (warp() * D + d)) = NONE;
}

// The right-hand operands of columns 4 n .. 4 n + 3: b[2 i], b[2 i + 1] of the i-th 16 dims of 32 dims (16 if D is 16).
template <int D> DEV void load_queries(u32 (&b)[4], u32 queries, u32 n, u32 dims32) {
  if constexpr (D == 16) {
    u32 half[2];
    load_matrix_x2(half, queries + Rows<2 * D>::at(8 * n + (lane() & 7), (lane() >> 3) & 1));
    b[0] = half[0], b[1] = half[1], b[2] = 0, b[3] = 0;
  } else {
    load_matrix_x4(b, queries + Rows<2 * D>::at(8 * n + (lane() & 7), 4 * dims32 + (lane() >> 3)));
  }
}

// c[n] += the scores of 16 keys. `bad` gathers, in every 0x80 bit, e4m3 codes of NaN of keys g and g + 8.
template <int KB, int D, int N, bool HELD, bool E5M2>
DEV void score(f32 (&c)[N][4], u32 slot, u32 queries, const u32 (&held)[HELD ? N : 1][HELD ? (D + 31) / 32 : 1][4],
               const Codes<E5M2>& codes, u32 (&bad)[2]) {
  constexpr u32 R = D * KB;
  UNROLL for (u32 s = 0; s < (D + 31) / 32; s++) {
    u32 a[2][4];
    if constexpr (KB == 2) {
      load_matrix_x4(a[0], slot + Rows<R>::at(lane() & 15, 4 * s + (lane() >> 4)));
      if (D > 16) load_matrix_x4(a[1], slot + Rows<R>::at(lane() & 15, 4 * s + 2 + (lane() >> 4)));
    } else {
      u32 w[4];
      if constexpr (D == 16) {
        u32 half[2];
        load_matrix_x2(half, slot + Rows<R>::at(lane() & 15, 0));
        w[0] = half[0], w[1] = half[1], w[2] = 0, w[3] = 0;
      } else {
        load_matrix_x4(w, slot + Rows<R>::at(lane() & 15, 2 * s + (lane() >> 4)));
      }
      u32 first[4], second[4];
      widen(codes, w, first, second);
      UNROLL for (u32 i = 0; i < 4; i++) a[i >> 1][i & 1] = first[i], a[i >> 1][(i & 1) + 2] = second[i];
      if (!E4M3_KEEPS_NAN) {
        UNROLL for (u32 i = 0; i < (D == 16 ? 2 : 4); i++) bad[i & 1] |= (w[i] & 0x7f7f7f7fu) + 0x01010101u;
      }
    }
    UNROLL for (u32 n = 0; n < N; n++) {
      u32 b[4];
      if constexpr (HELD) { UNROLL for (u32 i = 0; i < 4; i++) b[i] = held[n][s][i]; }
      else load_queries<D>(b, queries, n, s);
      mma<KB>(c[n], a[0], b[0], b[1]);
      if (D > 16) mma<KB>(c[n], a[1], b[2], b[3]);
    }
  }
}

// acc[m][n] += the weighted values of 16 keys for dims 16 m ..: row g is dim g (8-bit: 2 g), row g + 8 dim g + 8 (2 g + 1).
template <int VB, int D, int N, bool E5M2>
DEV void weigh(f32 (&acc)[D / 16][N][4], u32 slot, const u32 (&b)[N][2], const Codes<E5M2>& codes) {
  constexpr u32 R = D * VB;
  if constexpr (VB == 2) {
    UNROLL for (u32 m = 0; m < D / 16; m++) {
      u32 a[4];
      load_matrix_x4_transposed(a, slot + Rows<R>::at((lane() & 7) + ((lane() >> 4) << 3), 2 * m + ((lane() >> 3) & 1)));
      UNROLL for (u32 n = 0; n < N; n++) mma<VB>(acc[m][n], a, b[n][0], b[n][1]);
    }
  } else {
    UNROLL for (u32 s = 0; s < (D + 31) / 32; s++) {
      u32 w[4], a[2][4];
      if constexpr (D == 16) {
        u32 half[2];
        load_matrix_x2_transposed(half, slot + Rows<R>::at(lane() & 15, 0));
        w[0] = half[0], w[1] = half[1], w[2] = 0, w[3] = 0;
      } else {
        load_matrix_x4_transposed(w, slot + Rows<R>::at(lane() & 15, 2 * s + (lane() >> 4)));
      }
      u32 even[4], odd[4];
      widen_even_odd(codes, w, even, odd);
      UNROLL for (u32 i = 0; i < 4; i++) a[i >> 1][2 * (i & 1)] = even[i], a[i >> 1][2 * (i & 1) + 1] = odd[i];
      UNROLL for (u32 n = 0; n < N; n++) {
        mma<VB>(acc[2 * s][n], a[0], b[n][0], b[n][1]);
        if constexpr (D > 16) mma<VB>(acc[2 * s + 1][n], a[1], b[n][0], b[n][1]);
      }
    }
  }
}

// Which dim of 16 m .. row `row` of the sums is.
DEV u32 dim_of(u32 row, bool eight) { return eight ? (row & ~15u) | ((row & 7) << 1) | ((row >> 3) & 1) : row; }
