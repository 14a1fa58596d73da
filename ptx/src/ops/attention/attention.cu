// attention: causal attention over paged keys and values, prefill and decode.       ptx/src/ops/attention/attention.cu
//
//   q: [tokens, heads, D] f32    out: [tokens, heads, D] f32 or bf16    pages: see cuda/pages.rs
//
// The columns of a kv head are the (query, head of its group) pairs of a span, query-major; a tile is 4 N of them. A block
// takes one tile and walks over chunks of 256 keys at absolute positions. Keys lie on the M side of the matrix
// instruction, columns on the N side: two each, the high and the low part of an f32, so that c[0] + c[1] of a thread is
// the product of column t. Warp w has the 16-key tiles w, w + 4, w + 8, w + 12 of a chunk to itself: it loads them,
// scores them and weighs their values with no barrier but for the largest score and the sum of the four warps.
//
// entries:  attention_d<D>_n<N>, for keys and values of 8 bits or bf16 alike; attention_combine
// launch:   grid (tiles, kv heads, 1 or chunks), 128 threads, shared memory as in Layout. With chunks along z (SPLIT)
//           a block does one chunk, leaves it in `partials`, and attention_combine folds them; else a block does all.
//           Tiles and chunks that are not there end at once, so a grid may be larger than the batch.
// requires: pages 16-byte aligned; page_len = 2^page_shift <= 256; heads = kv_heads x group; checked in cuda.rs
// bytes:    keys and values once for each tile that sees them (decode: once); partials D / 32 of 256 keys' per column
// order:    score: one chain of mma over ascending dim, high part + low part, times what the query was divided by, the
//           key's scale, the factor. m: the largest of the chunk. l: each thread's keys ascending, threads by the tree
//           4, 8, 16, then warps ascending. o: for each warp one chain of mma over its tiles, then warps ascending.
//           Chunks fold as docs/numerics.md says. All of it is by the key's place in its chunk, nothing by the batch.
// accuracy: see mod.rs
// A sum of values that is not finite is NaN. A value that is not finite reaches the columns that see it and no other.
// Shared memory with bf16 pages; 8-bit pages take D x 256 bytes less:
// shared: attention_d16_n1 13104
// shared: attention_d32_n1 21808
// shared: attention_d64_n1 39216
// shared: attention_d96_n1 56624
// shared: attention_d128_n1 74032
// shared: attention_d16_n2 17760
// shared: attention_d32_n2 26720
// shared: attention_d64_n2 44640
// shared: attention_d96_n2 62560
// shared: attention_d128_n2 80480
// shared: attention_d64_n4 55488
// shared: attention_d128_n4 93376
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

DEV void write(f32* out, u32 flags, u32 index, f32 x) {
  if (flags & OUT_BF16) ((u16*)out)[index] = to_bf16(x);
  else out[index] = x;
}

template <int D, int N> DEV void attend(const Args& p) {
  using L = Layout<D, N>;
  constexpr bool HELD = N * D <= 64; // queries stay in registers
  constexpr u32 OWN = (N * D + THREADS - 1) / THREADS;
  u32 head = block_y(), g = lane() >> 2, t = lane() & 3;
  u32x2 work = load_shared_by_all_8(p.tiles + 2 * (u64)block_x());
  if (work.x == NONE) return;
  u32x4 span = load_shared_by_all(p.spans + 4 * (u64)work.x);
  u32 columns = span.y * p.group, first_column = work.y;
  if (first_column >= columns) return;
  u32 reach = span.z + (min(first_column + 4 * N, columns) - 1) / p.group + 1; // keys that the last column sees
  u32 least = span.z + first_column / p.group + 1;                             // and the first
  bool alone = (p.flags & SPLIT) != 0, by_token = (p.flags & BY_TOKEN) != 0;
  bool k8 = (p.flags & K_8BIT) != 0, v8 = (p.flags & V_8BIT) != 0;
  u32 begin = alone ? block_z() * CHUNK : 0, end = alone ? min(reach, begin + CHUNK) : reach;
  if (begin >= reach) return;

  stage<D, N>(p, head, span, first_column, columns, k8);
  sync_block();
  bool k_e5m2 = (p.flags & K_E5M2) != 0, v_e5m2 = (p.flags & V_E5M2) != 0;
  bool k_gain = k8 && !k_e5m2, v_gain = v8 && !v_e5m2; // e4m3
  Codes<false> k_codes = Codes<false>::of(k_e5m2), v_codes = Codes<false>::of(v_e5m2);
  bool k_scaled = k8 && by_token, v_scaled = v8 && by_token;
  f32 factor = (k8 && !by_token ? from_bits(load_word(p.k_scales + head)) : 1.0f) * p.softmax_scale;
  u32 slot_bytes = TILE * D * (k8 && v8 ? 1 : 2), ring_bytes = TILES * slot_bytes;
  u32 smem_base = smem_address(smem), ring = L::RINGS + warp() * ring_bytes;
  u32 held[HELD ? N : 1][HELD ? (D + 31) / 32 : 1][4];
  if constexpr (HELD) {
    UNROLL for (u32 n = 0; n < N; n++)
      UNROLL for (u32 s = 0; s < (D + 31) / 32; s++) load_queries<D>(held[n][s], smem_base + L::QUERIES, n, s);
  }
  u32 seen[N];
  f32 divided[N];
  UNROLL for (u32 n = 0; n < N; n++) {
    seen[n] = at<u32>(L::SEEN + 4 * (4 * n + t));
    divided[n] = at<f32>(L::DIVIDED + 4 * (4 * n + t)) * (k_gain ? E4M3_GAIN : 1.0f);
  }
  u32 k_tile = (k8 ? D : 2 * D) << p.page_shift, v_tile = (v8 ? D : 2 * D) << p.page_shift;
  u64 stride = (u64)p.kv_heads * (k_tile + v_tile);
  const u8* keys = p.pages + head * k_tile;
  const u8* values = p.pages + p.kv_heads * k_tile + head * v_tile;
  const u32* table = p.tables + (u64)work.x * p.table_stride;
  u32 plane = p.kv_heads << p.page_shift, mask = (1u << p.page_shift) - 1;

  f32x4 sums[OWN];             // of the threads that own rows of the sums
  f32 high = 0.0f, low = 0.0f; // M and L of the threads that own a column
  NO_UNROLL for (u32 base = begin; base < end; base += CHUNK) {
    u32 count = min(end - base, CHUNK), tiles = ceil_div(count, TILE);
    if (base != begin) sync_block(); // the rings held the last chunk's sums
    u32 pages[2], k_exponents[2] = {0, 0}, v_exponents[2] = {0, 0};
    UNROLL for (u32 j = 0; j < 2; j++) {
      u32 key = TILE * (warp() + WARPS * (2 * j + (lane() >> 4))) + (lane() & 15), position = base + min(key, count - 1);
      pages[j] = load_word(table + (position >> p.page_shift));
      if (by_token) {
        u64 skip = (u64)pages[j] * (plane * ((u32)k8 + (u32)v8));
        const u8* from = p.exponents + skip + (head << p.page_shift) + (position & mask);
        if (k8) k_exponents[j] = load_byte(from);
        if (v8) v_exponents[j] = load_byte(from + (k8 ? plane : 0));
      }
    }
    NO_UNROLL for (u32 i = 0; i < TILES; i++) {
      u32 tile = warp() + WARPS * i;
      if (tile < tiles) {
        u32 slot = smem_base + ring + i * slot_bytes, page = i < 2 ? pages[0] : pages[1];
        if (k8) fetch<D>(slot, keys, stride, p.page_shift, base + TILE * tile, count - TILE * tile, page, i & 1);
        else fetch<2 * D>(slot, keys, stride, p.page_shift, base + TILE * tile, count - TILE * tile, page, i & 1);
      }
      cp_commit();
    }
    f32 largest[N];
    UNROLL for (u32 n = 0; n < N; n++) largest[n] = -INFINITY;
    NO_UNROLL for (u32 i = 0; i < TILES; i++) {
      u32 tile = warp() + WARPS * i, slot = smem_base + ring + i * slot_bytes;
      cp_wait<3>();
      sync_warp();
      if (tile < tiles) {
        f32 c[N][4];
        UNROLL for (u32 n = 0; n < N; n++) UNROLL for (u32 j = 0; j < 4; j++) c[n][j] = 0.0f;
        u32 bad[2] = {0, 0};
        if (!k8) score<2, D, N, HELD>(c, slot, smem_base + L::QUERIES, held, k_codes, bad);
        else if (HAS_FP8 && k_e5m2) score<1, D, N, HELD>(c, slot, smem_base + L::QUERIES, held, Codes<true>::of(true), bad);
        else score<1, D, N, HELD>(c, slot, smem_base + L::QUERIES, held, k_codes, bad);
        sync_warp(); // every lane is done with the slot
        u32 page = i < 2 ? pages[0] : pages[1];
        if (v8) fetch<D>(slot, values, stride, p.page_shift, base + TILE * tile, count - TILE * tile, page, i & 1);
        else fetch<2 * D>(slot, values, stride, p.page_shift, base + TILE * tile, count - TILE * tile, page, i & 1);
        f32 scale[2] = {1.0f, 1.0f};
        if (k_scaled) {
          u32 e = i < 2 ? k_exponents[0] : k_exponents[1];
          scale[0] = scale_of(shuffle(e, 16 * (i & 1) + g));
          scale[1] = scale_of(shuffle(e, 16 * (i & 1) + g + 8));
        }
        bool broken[2] = {false, false};
        if (!E4M3_KEEPS_NAN) {
          UNROLL for (u32 j = 0; j < 2; j++)
            broken[j] = ((ballot(k_gain && (bad[j] & 0x80808080u)) >> (lane() & 28)) & 15) != 0;
        }
        u32 key = TILE * tile + g;
        UNROLL for (u32 n = 0; n < N; n++) UNROLL for (u32 j = 0; j < 2; j++) {
          f32 s = c[n][2 * j] + c[n][2 * j + 1];
          s = s * divided[n] * scale[j] * factor;
          if (!E4M3_KEEPS_NAN) s = broken[j] ? __builtin_nanf("") : s;
          s = base + key + 8 * j < seen[n] ? s : -INFINITY;
          largest[n] = max(largest[n], s);
          at<f32>(L::SCORES + 16 * (CHUNK * n + key + 8 * j) + 4 * t) = s;
        }
      }
      cp_commit();
    }
    UNROLL for (u32 n = 0; n < N; n++) {
      UNROLL for (u32 m = 4; m <= 16; m <<= 1) largest[n] = max(largest[n], shuffle_xor(largest[n], m));
      if (g == 0) at<f32>(L::LARGEST + L::COLUMN * warp() + 4 * (4 * n + t)) = largest[n];
    }
    sync_block();
    u32 own = 4 * thread_x(); // of the threads below 4 N: their column's place
    f32 a_own = 0.0f, b_own = 0.0f, chunk_high = -INFINITY;
    if (thread_x() < 4 * N) {
      UNROLL for (u32 w = 0; w < WARPS; w++) chunk_high = max(chunk_high, at<f32>(L::LARGEST + L::COLUMN * w + own));
      f32 both = max(high, chunk_high);
      a_own = exp(high - both), b_own = exp(chunk_high - both);
      at<f32>(L::OLD + own) = a_own;
      at<f32>(L::NEW + own) = b_own;
      if (base == begin) high = chunk_high;
      else if (base < at<u32>(L::SEEN + own)) high = both;
    }

    // Scores to weights, in place: high and low part where the f32 was. Each thread has its own.
    f32 m[N], sum[N], heaviest[N];
    UNROLL for (u32 n = 0; n < N; n++) {
      m[n] = -INFINITY, sum[n] = 0.0f, heaviest[n] = 0.0f;
      UNROLL for (u32 w = 0; w < WARPS; w++) m[n] = max(m[n], at<f32>(L::LARGEST + L::COLUMN * w + 4 * (4 * n + t)));
      m[n] = m[n] == -INFINITY ? 0.0f : m[n]; // a column that sees none of the chunk
    }
    NO_UNROLL for (u32 i = 0; i < TILES; i++) {
      u32 tile = warp() + WARPS * i;
      if (tile >= tiles) break;
      f32 scale[2] = {1.0f, 1.0f};
      if (v_scaled) {
        u32 e = i < 2 ? v_exponents[0] : v_exponents[1];
        scale[0] = scale_of(shuffle(e, 16 * (i & 1) + g));
        scale[1] = scale_of(shuffle(e, 16 * (i & 1) + g + 8));
      }
      f32 x[N][2];
      u32 place = L::SCORES + 16 * (TILE * tile + g) + 4 * t;
      UNROLL for (u32 n = 0; n < N; n++) UNROLL for (u32 j = 0; j < 2; j++) {
        x[n][j] = exp(at<f32>(place + 16 * (CHUNK * n + 8 * j)) - m[n]);
        sum[n] += x[n][j];
      }
      if (v_scaled) {
        UNROLL for (u32 n = 0; n < N; n++) UNROLL for (u32 j = 0; j < 2; j++) {
          bool visible = base + TILE * tile + g + 8 * j < seen[n]; // others' exponents may be anything
          f32 w = visible ? x[n][j] * scale[j] : 0.0f;
          heaviest[n] = max(heaviest[n], w);
          at<f32>(place + 16 * (CHUNK * n + 8 * j)) = w;
        }
      } else if (v8) {
        UNROLL for (u32 n = 0; n < N; n++) UNROLL for (u32 j = 0; j < 2; j++)
          at<u32>(place + 16 * (CHUNK * n + 8 * j)) = split<1>(x[n][j] * 16384.0f);
      } else {
        UNROLL for (u32 n = 0; n < N; n++) UNROLL for (u32 j = 0; j < 2; j++)
          at<u32>(place + 16 * (CHUNK * n + 8 * j)) = split<2>(x[n][j]);
      }
    }
    if (v_scaled) { // a power of two brings the heaviest of a column to 2^14
      UNROLL for (u32 n = 0; n < N; n++) {
        UNROLL for (u32 k = 4; k <= 16; k <<= 1) heaviest[n] = max(heaviest[n], shuffle_xor(heaviest[n], k));
        if (g == 0) at<f32>(L::HEAVIEST + L::COLUMN * warp() + 4 * (4 * n + t)) = heaviest[n];
      }
      sync_block();
      f32 up[N];
      UNROLL for (u32 n = 0; n < N; n++) {
        f32 h = 0.0f;
        UNROLL for (u32 w = 0; w < WARPS; w++) h = max(h, at<f32>(L::HEAVIEST + L::COLUMN * w + 4 * (4 * n + t)));
        u32 exponent = min(268 - (bits(h) >> 23), 253u);
        up[n] = from_bits(exponent << 23);
        if (warp() == 0 && g == 0) at<f32>(L::RAISED + 4 * (4 * n + t)) = from_bits((254 - exponent) << 23);
      }
      NO_UNROLL for (u32 i = 0; i < TILES; i++) {
        u32 tile = warp() + WARPS * i;
        if (tile >= tiles) break;
        UNROLL for (u32 n = 0; n < N; n++) UNROLL for (u32 j = 0; j < 2; j++) {
          u32 place = L::SCORES + 16 * (CHUNK * n + TILE * tile + g + 8 * j) + 4 * t;
          at<u32>(place) = split<1>(at<f32>(place) * up[n]);
        }
      }
    }

    f32 acc[D / 16][N][4];
    UNROLL for (u32 i = 0; i < D / 16; i++) UNROLL for (u32 n = 0; n < N; n++) UNROLL for (u32 j = 0; j < 4; j++) acc[i][n][j] = 0.0f;
    NO_UNROLL for (u32 i = 0; i < TILES; i++) {
      u32 tile = warp() + WARPS * i, slot = ring + i * slot_bytes;
      cp_wait<3>();
      sync_warp();
      if (tile < tiles) {
        // Where some columns see a key that others do not, 0 x NaN must not happen.
        bool partly = min(base + TILE * tile + TILE, reach) > least;
        if (partly || (v_gain && !E4M3_KEEPS_NAN))
          screen<D>(slot, L::BROKEN + 4 * D * warp(), base + TILE * tile, v8, v_e5m2);
        u32 b[N][2], places = smem_base + L::SCORES + 16 * (TILE * tile + (lane() & 15));
        if constexpr (N == 1) {
          load_matrix_x2_transposed(b[0], places);
        } else {
          UNROLL for (u32 n = 0; n < N; n += 2) {
            u32 r[4];
            load_matrix_x4_transposed(r, places + 16 * CHUNK * (n + (lane() >> 4)));
            b[n][0] = r[0], b[n][1] = r[1], b[n + 1][0] = r[2], b[n + 1][1] = r[3];
          }
        }
        if (!v8) weigh<2, D, N>(acc, smem_base + slot, b, v_codes);
        else if (HAS_FP8 && v_e5m2) weigh<1, D, N>(acc, smem_base + slot, b, Codes<true>::of(true));
        else weigh<1, D, N>(acc, smem_base + slot, b, v_codes);
      }
      cp_commit();
    }
    sync_warp(); // every lane is done with the ring: it takes the sums, [n][row][4]
    UNROLL for (u32 i = 0; i < D / 16; i++) UNROLL for (u32 n = 0; n < N; n++) UNROLL for (u32 j = 0; j < 2; j++)
      at<f32>(ring + 16 * (n * D + 16 * i + g + 8 * j) + 4 * t) = acc[i][n][2 * j] + acc[i][n][2 * j + 1];
    UNROLL for (u32 n = 0; n < N; n++) {
      UNROLL for (u32 k = 4; k <= 16; k <<= 1) sum[n] += shuffle_xor(sum[n], k);
      if (g == 0) at<f32>(L::SUM + L::COLUMN * warp() + 4 * (4 * n + t)) = sum[n];
    }
    sync_block();
    if (thread_x() < 4 * N) {
      f32 l = at<f32>(L::SUM + own);
      UNROLL for (u32 w = 1; w < WARPS; w++) l += at<f32>(L::SUM + L::COLUMN * w + own);
      if (base == begin) low = l;
      else if (base < at<u32>(L::SEEN + own)) low = fma(low, a_own, l * b_own);
    }
    UNROLL for (u32 k = 0; k < OWN; k++) {
      u32 index = thread_x() + THREADS * k, n = index / D, row = index % D;
      if (N * D % THREADS == 0 || index < N * D) {
        f32x4 o = at<f32x4>(L::RINGS + 16 * index);
        UNROLL for (u32 w = 1; w < WARPS; w++) o += at<f32x4>(L::RINGS + w * ring_bytes + 16 * index);
        u32 broken = NONE;
        UNROLL for (u32 w = 0; w < WARPS; w++) broken = min(broken, at<u32>(L::BROKEN + 4 * (D * w + dim_of(row, v8))));
        f32 gain = v_gain ? E4M3_GAIN : 1.0f;
        f32x4 back = v_scaled ? at<f32x4>(L::RAISED + 16 * n) * gain : f32x4(v8 ? gain / 16384.0f : 1.0f);
        u32x4 sees = at<u32x4>(L::SEEN + 16 * n);
        f32x4 a = at<f32x4>(L::OLD + 16 * n), b = at<f32x4>(L::NEW + 16 * n);
        UNROLL for (u32 c = 0; c < 4; c++) {
          f32 x = o[c] * back[c];
          x = abs(x) < INFINITY && sees[c] <= broken ? x : __builtin_nanf("");
          if (base == begin) sums[k][c] = x;
          else if (base < sees[c]) sums[k][c] = fma(sums[k][c], a[c], x * b[c]);
        }
      }
    }
  }

  if (alone) {
    f32* part = p.partials + (((u64)block_x() * p.kv_heads + head) * blocks_z() + block_z()) * (4 * N * D + 8 * N);
    UNROLL for (u32 k = 0; k < OWN; k++) {
      u32 index = thread_x() + THREADS * k;
      if (N * D % THREADS == 0 || index < N * D) *(f32x4*)(part + 4 * index) = sums[k];
    }
    if (thread_x() < 4 * N) {
      part[4 * N * D + thread_x()] = high;
      part[4 * N * D + 4 * N + thread_x()] = low;
    }
    return;
  }
  f32 v_scale = v8 && !by_token ? from_bits(load_word(p.v_scales + head)) : 1.0f;
  if (thread_x() < 4 * N) at<f32>(L::TOTAL + 4 * thread_x()) = low;
  sync_block();
  UNROLL for (u32 k = 0; k < OWN; k++) {
    u32 index = thread_x() + THREADS * k, n = index / D, row = index % D;
    if (N * D % THREADS == 0 || index < N * D) {
      f32x4 total = at<f32x4>(L::TOTAL + 16 * n);
      u32x4 to = at<u32x4>(L::TO + 16 * n);
      UNROLL for (u32 c = 0; c < 4; c++)
        if (to[c] != NONE) write(p.out, p.flags, to[c] + dim_of(row, v8), divide(sums[k][c], total[c]) * v_scale);
    }
  }
}

// Folds the chunks of a tile, ascending, and finishes. A thread has one element: grid (tiles, kv heads, ceil(N D / 32)).
// A part is the sums as [N][row][4], then the largest scores and the sums of weights as [4 N].
KERNEL BOUNDS(128, 1) attention_combine(void* __restrict__ out, const f32* __restrict__ partials, const f32* __restrict__ v_scales,
                       const u32* __restrict__ spans, const u32* __restrict__ tiles, u32 group, u32 n_tiles, u32 dims,
                       u32 chunks, u32 flags) {
  u32 i = block_z() * THREADS + thread_x(), row = i / 4 % dims, column = i / 4 / dims * 4 + i % 4, kv_heads = blocks_y();
  u32x2 work = load_shared_by_all_8(tiles + 2 * (u64)block_x());
  if (work.x == NONE) return;
  u32x4 span = load_shared_by_all(spans + 4 * (u64)work.x);
  u32 index = work.y + column;
  if (column >= 4 * n_tiles || index >= span.y * group) return;
  u32 seen = span.z + index / group + 1, size = 4 * n_tiles * (dims + 2);
  const f32* part = partials + ((u64)block_x() * kv_heads + block_y()) * chunks * size;
  f32 high = 0.0f, low = 0.0f, sum = 0.0f;
  NO_UNROLL for (u32 base = 0; base < seen; base += CHUNK) {
    f32 m = part[4 * n_tiles * dims + column], l = part[4 * n_tiles * (dims + 1) + column], o = part[i];
    if (base == 0) {
      high = m, low = l, sum = o;
    } else {
      f32 both = max(high, m), a = exp(high - both), b = exp(m - both);
      low = fma(low, a, l * b), sum = fma(sum, a, o * b), high = both;
    }
    part += size;
  }
  bool v8 = (flags & V_8BIT) != 0;
  f32 v_scale = v8 && !(flags & BY_TOKEN) ? v_scales[block_y()] : 1.0f;
  u32 dim = dim_of(row, v8);
  u32 to = ((span.x + index / group) * (kv_heads * group) + block_y() * group + index % group) * dims + dim;
  write((f32*)out, flags, to, divide(sum, low) * v_scale);
}

#define ENTRY(D, N)                                                                                                         \
  KERNEL BOUNDS(128, N == 1 ? 3 : 2) attention_d##D##_n##N(                                                                  \
      f32* out, f32* partials, const u8* pages, const u8* exponents, const f32* k_scales, const f32* v_scales, const f32* q,  \
      const u32* spans, const u32* tables, const u32* tiles, u32 kv_heads, u32 group, u32 page_shift, u32 table_stride,       \
      f32 softmax_scale, u32 flags) {                                                                                        \
    attend<D, N>({out, partials, pages, exponents, k_scales, v_scales, q, spans, tables, tiles, kv_heads, group, page_shift,  \
                  table_stride, softmax_scale, flags});                                                                      \
  }
#ifndef PROBE
ENTRY(16, 1) ENTRY(32, 1) ENTRY(64, 1) ENTRY(96, 1)
ENTRY(16, 2) ENTRY(32, 2) ENTRY(64, 2) ENTRY(96, 2)
ENTRY(64, 4)
#endif
ENTRY(128, 1) ENTRY(128, 2) ENTRY(128, 4)
