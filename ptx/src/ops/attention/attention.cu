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
#include "tile.cuh"

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
