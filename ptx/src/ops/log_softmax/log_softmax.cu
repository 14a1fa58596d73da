// log_softmax: log-sum-exps of rows of logits, logprobs of given ids, the largest k     ptx/src/ops/log_softmax/log_softmax.cu
// shapes:   logits: [rows, vocab] f32, columns from `valid` on never read; inv_temps: [rows]; partials: [rows, 5, tiles]
// launch:   tile_masses first: grid (ceil(tiles / 8), rows), 128 threads, 32 KB; then any of the others, which read what it
//           left: normalizers: a block of 64 per row; gather, gather_many: 128; top_k: 1024 per block, block b takes rows
//           b, b + blocks, ..
// shared: tile_masses 32768
// shared: gather 16
// shared: gather_many 16
// shared: top_k 33024
// requires: 0 < valid <= vocab, tiles = ceil(valid / 1024) <= 1024; checked in cuda.rs
// bytes:    tile_masses reads 4 per column and writes 20 per tile; top_k reads the tiles whose maximum is among the k largest
//           tile maxima twice; the others read 20 per tile. tile_masses is bound by arithmetic: one exp a column, two where
//           the raw sum is asked for at another temperature
// accuracy: equal logits give the CPU's bits: a half warp's lane i holds the CPU's strided sum i
#include "order.cuh"
#include "src/ops/sample/drawn.cuh"

KERNEL BOUNDS(128, 6) tile_masses(const f32* __restrict__ logits, const f32* __restrict__ inv_temps,
                                  const u32* __restrict__ offsets, f32* __restrict__ partials, u32 vocab, u32 valid, u32 tiles,
                                  u32 raw) {
  u64 row = block_y();
  if (offsets != nullptr && offsets[row] == offsets[row + 1]) return; // nothing is asked of this row
  u32 tile = block_x() * 8 + thread_x() / 16;
  u32 start = tile * TILE, column = thread_x() & 15;
  u32 n = tile < tiles ? min(valid - start, TILE) : 0;
  const f32* from = logits + row * vocab + start;
  f32 inv_temp = inv_temps[row];
  // A thread reads only what it wrote itself, so there is no barrier.
  f32* kept = (f32*)smem + thread_x();
  f32 largest = MINUS_INF, least = __builtin_inff();
  _Pragma("unroll 8") for (u32 i = 0; i < TILE / 16; i++) {
    bool in = i * 16 + column < n;
    f32 x = in ? from[i * 16 + column] : MINUS_INF;
    kept[i * 128] = x;
    largest = max(largest, x);
    least = min(least, in ? x : __builtin_inff());
  }
  UNROLL for (u32 d = 8; d > 0; d /= 2) {
    largest = max(largest, shuffle_xor(largest, d));
    least = min(least, shuffle_xor(least, d));
  }
  // The product's rounding is monotone, so the largest z is that of the largest logit. NaN is passed over; the sum shows it.
  f32 z_max = largest * inv_temp;
  // Without a finite maximum every exp is to be 0.
  f32 base = z_max == MINUS_INF ? 0.0f : z_max;
  f32 sum = 0.0f;
  _Pragma("unroll 8") for (u32 i = 0; i < TILE / 16; i++) sum += exp(kept[i * 128] * inv_temp - base);
  sum = tree16(sum);
  f32 raw_sum = sum;
  if (raw != 0 && inv_temp != 1.0f) {
    base = largest == MINUS_INF ? 0.0f : largest;
    raw_sum = 0.0f;
    _Pragma("unroll 8") for (u32 i = 0; i < TILE / 16; i++) raw_sum += exp(kept[i * 128] - base);
    raw_sum = tree16(raw_sum);
  }
  if (column != 0 || tile >= tiles) return;
  f32* out = partials + row * 5 * tiles + tile;
  out[0] = z_max;
  out[tiles] = sum;
  out[2 * tiles] = least * inv_temp;
  out[3 * tiles] = largest;
  out[4 * tiles] = raw_sum;
}

#define NO_DISTRIBUTION 1
#define NO_SUCH_ID 2

// out: [rows, 2]: the log-sum-exp at the temperature and at temperature 1, NaN for no distribution.
KERNEL BOUNDS(64, 8) normalizers(const f32* __restrict__ partials, f32* __restrict__ out, u32 tiles) {
  u64 row = block_x();
  Partials p = partials_of(partials, row, tiles);
  if (warp() > 1) return;
  f32 max;
  f32 lse = warp() == 0 ? fold(p.max, p.sum, tiles, max) : fold(p.raw_max, p.raw_sum, tiles, max);
  if (lane() == 0) out[row * 2 + warp()] = lse;
}

// The logprobs of ids[first .. end], by a block; the row's status.
DEV void gather_row(const f32* logits, f32 inv_temp, Partials p, u32 tiles, u32 valid, const u32* ids, u32 first, u32 end,
                    f32* logprobs, u32* status) {
  f32* lse_of_all = (f32*)smem;
  u32* bad = (u32*)smem + 1;
  if (warp() == 0) {
    f32 max;
    f32 lse = fold(p.max, p.sum, tiles, max);
    if (lane() == 0) {
      *lse_of_all = lse;
      *bad = 0;
    }
  }
  sync_block();
  f32 lse = *lse_of_all;
  NO_UNROLL for (u32 at = first + thread_x(); at < end; at += 128) {
    u32 id = ids[at];
    bool known = id < valid;
    logprobs[at] = known ? logits[id] * inv_temp - lse : __builtin_nanf("");
    if (!known) atomic_or_shared(bad, 1);
  }
  sync_block();
  if (thread_x() == 0) *status = *bad != 0 ? NO_SUCH_ID : lse != lse ? NO_DISTRIBUTION : 0;
}

// targets, logprobs, status: [rows].
KERNEL BOUNDS(128, 8) gather(const f32* __restrict__ logits, const f32* __restrict__ inv_temps,
                             const f32* __restrict__ partials, const u32* __restrict__ targets, f32* __restrict__ logprobs,
                             u32* __restrict__ status, u32 vocab, u32 valid, u32 tiles) {
  u32 row = block_x();
  gather_row(logits + (u64)row * vocab, inv_temps[row], partials_of(partials, row, tiles), tiles, valid, targets, row, row + 1,
             logprobs, status + row);
}

// Row r's ids are ids[offsets[r] .. offsets[r + 1]], and so are its logprobs; without ids it is not read and has status 0.
KERNEL BOUNDS(128, 8) gather_many(const f32* __restrict__ logits, const f32* __restrict__ inv_temps,
                                  const f32* __restrict__ partials, const u32* __restrict__ offsets,
                                  const u32* __restrict__ ids, f32* __restrict__ logprobs, u32* __restrict__ status, u32 vocab,
                                  u32 valid, u32 tiles) {
  u32 row = block_x();
  u32 first = offsets[row], end = offsets[row + 1];
  if (first == end) {
    if (thread_x() == 0) status[row] = 0;
    return;
  }
  gather_row(logits + (u64)row * vocab, inv_temps[row], partials_of(partials, row, tiles), tiles, valid, ids, first, end,
             logprobs, status + row);
}

// Row r's list is offsets[r] .. offsets[r + 1] of ids, logprobs and logprobs_raw: that many of its largest, at most `valid`. The
// log-sum-exps are from `normalizers` [rows, 2] or from `drawn` [rows], the other of which is null; after a truncated draw the
// logprobs are those of the distribution that it left. A row that is no distribution gets ids 0 and NaN; one with an empty
// list is not read. workspace: [blocks, 2, valid] u64.
KERNEL BOUNDS(1024, 1) top_k(const f32* __restrict__ logits, const f32* __restrict__ inv_temps,
                             const f32* __restrict__ partials, const f32* __restrict__ normalizers,
                             const Drawn* __restrict__ drawn, const u32* __restrict__ offsets, u32* __restrict__ ids,
                             f32* __restrict__ logprobs, f32* __restrict__ logprobs_raw, u64* workspace, u32 rows, u32 vocab,
                             u32 valid, u32 tiles) {
  u64* keys = workspace + (u64)block_x() * 2 * valid;
  u64* other = keys + valid;
  NO_UNROLL for (u32 r = block_x(); r < rows; r += blocks_x()) {
    u32 first = offsets[r], k = offsets[r + 1] - first;
    if (k == 0) continue;
    const f32* from = logits + (u64)r * vocab;
    f32 lse, lse_raw, kept = 0.0f;
    u32 support = 0;
    if (drawn != nullptr) {
      lse = drawn[r].lse;
      lse_raw = drawn[r].lse_raw;
      kept = drawn[r].kept;
      support = drawn[r].support;
    } else {
      lse = normalizers[r * 2];
      lse_raw = normalizers[r * 2 + 1];
    }
    if (lse != lse) {
      NO_UNROLL for (u32 i = thread_x(); i < k; i += ORDER_THREADS) {
        ids[first + i] = 0;
        logprobs[first + i] = logprobs_raw[first + i] = __builtin_nanf("");
      }
      continue;
    }
    Ordered row = {from, partials_of(partials, r, tiles).max, inv_temps[r], 0.0f, valid, tiles, false};
    row.max = nth_tile_max(row, 1);
    f32 least = k == 1 ? row.max : nth_tile_max(row, min(k, tiles));
    f32 below = __builtin_inff();
    u32 filled = 0;
    NO_UNROLL while (true) {
      u32 n = collect(row, least, below, keys + filled);
      sort_keys(keys + filled, other + filled, n);
      filled += n;
      if (filled >= k) break; // the last bound takes everything, and k <= valid
      below = least;
      least = next_bound(row, least, MINUS_INF);
    }
    NO_UNROLL for (u32 i = thread_x(); i < k; i += ORDER_THREADS) {
      u32 id = order_id(keys[i]);
      f32 x = from[id];
      // What a draw kept are the first in this order.
      f32 logprob = x * row.inv_temp - lse;
      if (kept != 0.0f) logprob = i < support ? logprob_of_kept(order_z(keys[i]), row.max, kept) : MINUS_INF;
      ids[first + i] = id;
      logprobs[first + i] = logprob;
      logprobs_raw[first + i] = x - lse_raw;
    }
    sync_block();
  }
}
