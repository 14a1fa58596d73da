// sample: one token from each row of logits, as sample/mod.rs says                               ptx/src/ops/sample/sample.cu
// shapes:   logits: [rows, vocab] f32; partials: [rows, 5, tiles], as log_softmax's tile_masses leaves them with the raw sums;
//           inv_temps: [rows]; draws: [rows] Draw; uniforms: [rows]; drawn: [rows] Drawn; tokens: [rows] u32; workspace:
//           [blocks, 2, valid] u64
// launch:   draw_whole: a block of 256 per row, for greedy rows and those not truncated; draw_cut: 1024 per block, block b takes
//           rows b, b + blocks, .., for truncated ones. Each leaves the other's rows alone
// shared: draw_whole 12352
// shared: draw_cut 33024
// requires: 0 < valid <= vocab, tiles = ceil(valid / 1024) <= 1024, uniforms in [0, 1); checked in cuda.rs
// bytes:    draw_whole reads 20 per tile and one tile of logits (all of those with ids of probability 0, to count the support);
//           draw_cut reads a row's tiles down to the cut twice for each group that it collects; bound by latency
// accuracy: equal logits and uniform give the CPU's bits. Sums run in the CPU's order, one f64 addition after the other: a tile's
//           columns, or the kept ids (8 cycles each where f64 is a first-class citizen, several times that elsewhere)
#include "drawn.cuh"
#include "src/ops/log_softmax/order.cuh"

struct Draw {
  u32 greedy;
  u32 top_k; // 0: off
  f32 top_p;
  f32 min_p;
};
#define DRAWN 0
#define NO_DISTRIBUTION 1
#define NOT_DRAWN 2

DEV bool truncates(const Draw& draw, u32 valid) {
  return draw.greedy == 0 && ((draw.top_k != 0 && draw.top_k < valid) || draw.top_p < 1.0f || draw.min_p > 0.0f);
}

DEV void report(Drawn* drawn, u32* tokens, u32 row, u32 status, u32 token, f32 logprob, f32 logprob_raw, u32 support, f32 lse,
                f32 lse_raw, f32 kept) {
  u32x4* out = (u32x4*)(drawn + row);
  out[0] = u32x4{status, token, bits(logprob), bits(logprob_raw)};
  out[1] = u32x4{support, bits(lse), bits(lse_raw), bits(kept)};
  tokens[row] = token;
}

// Shared memory, in bytes: the row's numbers, the masses of its tiles or of one tile's columns, their running sums.
#define MASSES 64
#define RUNNING (MASSES + 4 * TILES_MAX)
DEV f32* row_numbers() { return (f32*)smem; } // max, lse, lse_raw
DEV u32* row_words() { return (u32*)smem + 4; }
DEV f32* masses() { return (f32*)(smem + MASSES); }
DEV f64* running() { return (f64*)(smem + RUNNING); }

// The row's largest z and its log-sum-exps, to every thread. By the whole block.
DEV void fold_row(const Partials& p, u32 tiles, f32& max, f32& lse, f32& lse_raw) {
  sync_block();
  if (warp() < 2) {
    f32 of;
    f32 sum = warp() == 0 ? fold(p.max, p.sum, tiles, of) : fold(p.raw_max, p.raw_sum, tiles, of);
    if (lane() == 0) row_numbers()[1 + warp()] = sum;
    if (thread_x() == 0) row_numbers()[0] = of;
  }
  sync_block();
  max = row_numbers()[0];
  lse = row_numbers()[1];
  lse_raw = row_numbers()[2];
}

// The running f64 sums of the tiles' masses relative to the row's maximum, to shared memory.
DEV void run_tiles(const Partials& p, u32 tiles, f32 max) {
  NO_UNROLL for (u32 t = thread_x(); t < tiles; t += threads_x()) masses()[t] = p.sum[t] * exp(p.max[t] - max);
  sync_block();
  if (thread_x() == 0) {
    f64 sum = 0.0;
    _Pragma("unroll 4") for (u32 t = 0; t < tiles; t++) {
      sum = sum + (f64)masses()[t];
      running()[t] = sum;
    }
  }
  sync_block();
}

// The first of n for which `lane`'s answer is yes, by a warp; n if none is.
#define FIRST_OF(n, at, yes)                                   \
  u32 found = n;                                               \
  NO_UNROLL for (u32 base = 0; base < n; base += 32) {         \
    u32 at = base + lane();                                    \
    u32 who = ballot(at < n && (yes));                         \
    if (who != 0) {                                            \
      found = base + count_bits((who & (0 - who)) - 1);        \
      break;                                                   \
    }                                                          \
  }

// The first tile that holds the row's maximum, by a warp.
DEV u32 first_tile_with(const f32* maxes, u32 tiles, f32 max) {
  FIRST_OF(tiles, at, maxes[at] == max)
  return found;
}
DEV u32 first_tile_above(u32 tiles, f64 target) {
  FIRST_OF(tiles, at, running()[at] > target)
  return min(found, tiles - 1);
}
DEV u32 first_column_with(const f32* columns, u32 n, f32 max) {
  FIRST_OF(n, at, columns[at] == max)
  return found;
}

// How many columns have exp(z - max) above 0. Only tiles whose least z is too far below have to be read.
DEV u32 count_support(const f32* logits, f32 inv_temp, const Partials& p, u32 tiles, u32 valid, f32 max) {
  u32 count = 0;
  NO_UNROLL for (u32 tile = warp(); tile < tiles; tile += threads_x() / 32) {
    u32 n = min(valid - tile * TILE, TILE);
    if (p.min[tile] - max > EXP_IS_ZERO) {
      count += lane() == 0 ? n : 0;
    } else {
      const f32* columns = logits + tile * TILE;
      _Pragma("unroll 4") for (u32 at = lane(); at < n; at += 32) {
        count += columns[at] * inv_temp - max > EXP_IS_ZERO ? 1 : 0;
      }
    }
  }
  UNROLL for (u32 d = 16; d > 0; d /= 2) count += shuffle_xor(count, d);
  return count;
}

KERNEL BOUNDS(256, 2) draw_whole(const f32* __restrict__ logits, const f32* __restrict__ inv_temps,
                                 const f32* __restrict__ partials, const Draw* __restrict__ draws,
                                 const f32* __restrict__ uniforms, Drawn* __restrict__ drawn, u32* __restrict__ tokens,
                                 u32 vocab, u32 valid, u32 tiles) {
  u32 row = block_x();
  Draw draw = draws[row];
  if (truncates(draw, valid)) {
    if (thread_x() == 0) report(drawn, tokens, row, NOT_DRAWN, 0, 0, 0, 0, 0, 0, 0);
    return;
  }
  Partials p = partials_of(partials, row, tiles);
  const f32* from = logits + (u64)row * vocab;
  f32 max, lse, lse_raw;
  fold_row(p, tiles, max, lse, lse_raw);
  if (lse != lse) {
    if (thread_x() == 0) report(drawn, tokens, row, NO_DISTRIBUTION, 0, 0, 0, 0, lse, lse_raw, 0);
    return;
  }
  if (draw.greedy != 0) { // at temperature 1, so z is the logit
    if (warp() != 0) return;
    u32 start = first_tile_with(p.max, tiles, max) * TILE;
    u32 token = start + first_column_with(from + start, min(valid - start, TILE), max);
    f32 logprob = from[token] - lse;
    if (lane() == 0) report(drawn, tokens, row, DRAWN, token, logprob, logprob, 1, lse, lse, 0);
    return;
  }
  f32 inv_temp = inv_temps[row];
  run_tiles(p, tiles, max);
  f64 target = (f64)uniforms[row] * running()[tiles - 1];
  u32 tile = first_tile_above(tiles, target);
  f64 before = tile > 0 ? running()[tile - 1] : 0.0;
  u32 start = tile * TILE, n = min(valid - start, TILE);
  u32 count = count_support(from, inv_temp, p, tiles, valid, max);
  if (lane() == 0) row_words()[warp()] = count;
  sync_block(); // and the tiles' masses have been read
  NO_UNROLL for (u32 at = thread_x(); at < n; at += 256) masses()[at] = exp(from[start + at] * inv_temp - max);
  sync_block();
  if (thread_x() != 0) return;
  UNROLL for (u32 w = 1; w < 8; w++) count += row_words()[w];
  // The first column whose running sum exceeds what is left of the target, or else the last with any probability.
  f64 left = target - before, sum = 0.0;
  u32 last = 0, at = 0;
  _Pragma("unroll 8") for (; at < n; at++) {
    f32 mass = masses()[at];
    sum = sum + (f64)mass;
    if (sum > left) break;
    last = mass > 0.0f ? at : last;
  }
  u32 token = start + (at < n ? at : last);
  f32 x = from[token];
  report(drawn, tokens, row, DRAWN, token, x * inv_temp - lse, x - lse_raw, count, lse, lse_raw, 0);
}

#define CHAIN 1024 // keys whose masses are made at once

// The running f64 sums of exp(z - max) over keys first .. end, continued from `sums[first - 1]`.
DEV void run_keys(const u64* keys, f64* sums, u32 first, u32 end, f32 max) {
  f64 sum = first > 0 ? sums[first - 1] : 0.0;
  NO_UNROLL for (u32 base = first; base < end; base += CHAIN) {
    u32 n = min(end - base, CHAIN);
    sync_block();
    if (thread_x() < n) masses()[thread_x()] = exp(order_z(keys[base + thread_x()]) - max);
    sync_block();
    if (thread_x() == 0) {
      _Pragma("unroll 8") for (u32 i = 0; i < n; i++) {
        sum = sum + (f64)masses()[i];
        sums[base + i] = sum;
      }
    }
  }
  sync_block();
}

// The first key from `first` on, but not the very first, that top-p or min-p cuts; `end` if none before it is.
DEV u32 first_cut(const u64* keys, const f64* sums, u32 first, u32 end, f32 max, f32 min_p, f64 share) {
  u32 found = end;
  NO_UNROLL for (u32 at = first + thread_x(); at < end; at += ORDER_THREADS) {
    f32 mass = exp(order_z(keys[at]) - max);
    if (at > 0 && (mass < min_p || mass == 0.0f || sums[at - 1] >= share)) {
      found = at;
      break;
    }
  }
  return min_block(found);
}

KERNEL BOUNDS(1024, 1) draw_cut(const f32* __restrict__ logits, const f32* __restrict__ inv_temps,
                                const f32* __restrict__ partials, const Draw* __restrict__ draws,
                                const f32* __restrict__ uniforms, Drawn* __restrict__ drawn, u32* __restrict__ tokens,
                                u64* workspace, u32 rows, u32 vocab, u32 valid, u32 tiles) {
  u64* keys = workspace + (u64)block_x() * 2 * valid;
  u64* other = keys + valid;
  f64* sums = (f64*)other; // of the groups that are sorted; behind them the buffer serves the next sort
  NO_UNROLL for (u32 r = block_x(); r < rows; r += blocks_x()) {
    Draw draw = draws[r];
    if (!truncates(draw, valid)) continue;
    Partials p = partials_of(partials, r, tiles);
    f32 top, lse, lse_raw;
    fold_row(p, tiles, top, lse, lse_raw);
    if (lse != lse) {
      if (thread_x() == 0) report(drawn, tokens, r, NO_DISTRIBUTION, 0, 0, 0, 0, lse, lse_raw, 0);
      continue;
    }
    Ordered row = {logits + (u64)r * vocab, p.max, inv_temps[r], top, valid, tiles, true};
    bool counted = draw.top_k != 0 && draw.top_k < valid;
    // Without top-k nothing further down is looked at; exp is within 2 ulp, so no id that min-p keeps lies a thousandth of a
    // nat below its logarithm.
    f32 lowest = counted ? MINUS_INF : top + max(ln(draw.min_p) - 1e-3f, EXP_IS_ZERO);
    f64 share = __builtin_inf();
    if (!counted && draw.top_p < 1.0f) {
      run_tiles(p, tiles, top);
      share = (f64)draw.top_p * running()[tiles - 1];
    }
    u32 filled = 0, cut = 0;
    f32 below = __builtin_inff();
    f32 least = max(nth_tile_max(row, min(counted ? draw.top_k : 64, tiles)), lowest);
    NO_UNROLL while (true) {
      u32 n = collect(row, least, below, keys + filled);
      sort_keys(keys + filled, other + filled, n);
      u32 first = filled;
      filled += n;
      if (counted) filled = min(filled, draw.top_k);
      run_keys(keys, sums, first, filled, top);
      bool end = least == lowest;
      if (counted) {
        if (filled == draw.top_k || end) break;
      } else {
        cut = first_cut(keys, sums, first, filled, top, draw.min_p, share);
        if (cut < filled || (filled > 0 && sums[filled - 1] >= share) || end) break;
      }
      below = least;
      least = next_bound(row, least, lowest);
    }
    if (counted) {
      if (draw.top_p < 1.0f) share = (f64)draw.top_p * sums[filled - 1];
      cut = first_cut(keys, sums, 0, filled, top, draw.min_p, share);
    }
    f64 total = sums[cut - 1];
    f64 target = (f64)uniforms[r] * total;
    u32 found = cut - 1;
    NO_UNROLL for (u32 at = thread_x(); at < cut; at += ORDER_THREADS) {
      if (sums[at] > target) {
        found = at;
        break;
      }
    }
    found = min_block(found);
    if (thread_x() == 0) {
      u32 token = order_id(keys[found]);
      f32 kept = (f32)total;
      f32 logprob = logprob_of_kept(order_z(keys[found]), top, kept);
      report(drawn, tokens, r, DRAWN, token, logprob, row.logits[token] - lse_raw, cut, lse, lse_raw, kept);
    }
    sync_block();
  }
}
