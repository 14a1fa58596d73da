// order.cuh: the descending order of a row, as in order.rs: ascending keys are descending z, equal z by ascending id.
// The largest z of a row are collected and sorted group by group, each group all that lies between two bounds.
//                                                                                     ptx/src/ops/log_softmax/order.cuh
// One block of 1024 threads; shared memory: ORDER_SHARED bytes.
#pragma once
#include "masses.cuh"

#define ORDER_THREADS 1024
#define ORDER_WARPS 32
#define DIGITS 256
#define ORDER_SHARED (4 * ORDER_WARPS * DIGITS + 256)
#define RANKED 256 // keys up to which each finds its place by comparing with all

DEV u64 order_key(f32 z, u32 id) {
  u32 b = bits(z + 0.0f); // minus zero counts as zero
  return (u64)(b >> 31 ? b : ~(b | 0x80000000u)) << 32 | id;
}
DEV u32 order_id(u64 key) { return (u32)key; }
DEV f32 order_z(u64 key) {
  u32 descending = (u32)(key >> 32);
  return from_bits(descending >> 31 ? descending : ~descending & 0x7fffffffu);
}

// One row, and which of its columns count.
struct Ordered {
  const f32* logits; // [valid]
  const f32* tile_maxes; // of z
  f32 inv_temp;
  f32 max; // of z
  u32 valid;
  u32 tiles;
  bool likely; // leave out what has exp(z - max) = 0
};

DEV u32* counters() { return (u32*)smem; }
DEV u32* warp_words() { return counters() + ORDER_WARPS * DIGITS; } // 64 words

// The sum over the threads before this one, and over all.
DEV u32 scan_block(u32 x, u32& total) {
  u32 sum = x;
  UNROLL for (u32 d = 1; d < 32; d *= 2) {
    u32 other = shuffle(sum, lane() - d);
    sum += lane() >= d ? other : 0;
  }
  sync_block(); // the words may still be read from the last time
  if (lane() == 31) warp_words()[warp()] = sum;
  sync_block();
  u32 of_warps = warp_words()[lane()];
  u32 before = lane() < warp() ? of_warps : 0;
  UNROLL for (u32 d = 16; d > 0; d /= 2) {
    before += shuffle_xor(before, d);
    of_warps += shuffle_xor(of_warps, d);
  }
  total = of_warps;
  return before + sum - x;
}

// The least of all threads' x.
DEV u32 min_block(u32 x) {
  UNROLL for (u32 d = 16; d > 0; d /= 2) x = min(x, shuffle_xor(x, d));
  sync_block();
  if (lane() == 0) warp_words()[warp()] = x;
  sync_block();
  x = warp_words()[lane()];
  UNROLL for (u32 d = 16; d > 0; d /= 2) x = min(x, shuffle_xor(x, d));
  return x;
}

// The n-th largest tile maximum, n from 1: at least n columns are no less.
DEV f32 nth_tile_max(const Ordered& row, u32 n) {
  f32* maxes = (f32*)counters();
  u32 t = thread_x();
  sync_block();
  if (t < row.tiles) maxes[t] = row.tile_maxes[t];
  sync_block();
  if (t < row.tiles) {
    f32 mine = maxes[t];
    u32 better = 0;
    _Pragma("unroll 4") for (u32 i = 0; i < row.tiles; i++) {
      better += maxes[i] > mine || (maxes[i] == mine && i < t) ? 1 : 0;
    }
    if (better == n - 1) warp_words()[0] = bits(mine);
  }
  sync_block();
  return from_bits(warp_words()[0]);
}

DEV bool counts(const Ordered& row, f32 z, f32 least, f32 below) {
  return z >= least && z < below && !(row.likely && z - row.max <= EXP_IS_ZERO);
}

// Writes the keys of all columns with least <= z < below, by ascending id, and returns their number.
DEV u32 collect(const Ordered& row, f32 least, f32 below, u64* keys) {
  u32* of_tiles = counters();
  sync_block();
  NO_UNROLL for (u32 tile = warp(); tile < row.tiles; tile += ORDER_WARPS) {
    u32 count = 0;
    if (row.tile_maxes[tile] >= least) {
      _Pragma("unroll 4") for (u32 i = 0; i < TILE / 32; i++) {
        u32 column = tile * TILE + i * 32 + lane();
        f32 z = column < row.valid ? row.logits[column] * row.inv_temp : MINUS_INF;
        count += column < row.valid && counts(row, z, least, below) ? 1 : 0;
      }
      UNROLL for (u32 d = 16; d > 0; d /= 2) count += shuffle_xor(count, d);
    }
    if (lane() == 0) of_tiles[tile] = count;
  }
  sync_block();
  u32 mine = thread_x() < row.tiles ? of_tiles[thread_x()] : 0;
  u32 total;
  u32 before = scan_block(mine, total);
  if (thread_x() < row.tiles) of_tiles[thread_x()] = before;
  sync_block();
  NO_UNROLL for (u32 tile = warp(); tile < row.tiles; tile += ORDER_WARPS) {
    u32 at = of_tiles[tile];
    u32 end = tile + 1 < row.tiles ? of_tiles[tile + 1] : total;
    if (at == end) continue;
    _Pragma("unroll 4") for (u32 i = 0; i < TILE / 32; i++) {
      u32 column = tile * TILE + i * 32 + lane();
      f32 z = column < row.valid ? row.logits[column] * row.inv_temp : MINUS_INF;
      bool in = column < row.valid && counts(row, z, least, below);
      u32 who = ballot(in);
      if (in) keys[at + count_bits(who & lanes_below())] = order_key(z, column);
      at += count_bits(who);
    }
  }
  sync_block();
  return total;
}

// Sorts few keys: each goes to the place of how many are smaller.
DEV void sort_ranked(u64* keys, u32 n) {
  u64* all = (u64*)smem;
  u32 t = thread_x();
  sync_block();
  if (t < n) all[t] = keys[t];
  sync_block();
  if (t < n) {
    u64 mine = all[t];
    u32 place = 0;
    _Pragma("unroll 4") for (u32 i = 0; i < n; i++) place += all[i] < mine ? 1 : 0;
    keys[place] = mine;
  }
  sync_block();
}

// One stable pass by eight bits of the key, from one buffer to the other; false, and nothing done, where all bits agree.
DEV bool radix_pass(const u64* from, u64* to, u32 n, u32 shift) {
  u32* mine = counters() + warp() * DIGITS;
  u32 share = ceil_div(ceil_div(n, ORDER_WARPS), 32) * 32; // of a warp, which passes over its keys in order
  u32 first = min(n, warp() * share), end = min(n, first + share);
  sync_block();
  UNROLL for (u32 i = 0; i < DIGITS / 32; i++) mine[i * 32 + lane()] = 0;
  sync_warp();
  NO_UNROLL for (u32 base = first; base < end; base += 32) {
    bool in = base + lane() < end;
    u32 digit = in ? (u32)(from[base + lane()] >> shift) & 0xff : DIGITS;
    u32 same = match_any(digit);
    if (in && (same & lanes_below()) == 0) mine[digit] += count_bits(same);
    sync_warp();
  }
  sync_block();
  // Four threads share a digit, each with the counters of eight warps; places ascend by digit, then by warp.
  u32* column = counters() + (thread_x() & 3) * 8 * DIGITS + thread_x() / 4;
  u32 sum = 0;
  UNROLL for (u32 w = 0; w < 8; w++) sum += column[w * DIGITS];
  u32 of_digit = sum + shuffle_xor(sum, 1);
  of_digit += shuffle_xor(of_digit, 2);
  u32 total;
  u32 place = scan_block(sum, total);
  if (min_block(of_digit == n ? 0 : 1) == 0) return false;
  UNROLL for (u32 w = 0; w < 8; w++) {
    u32 count = column[w * DIGITS];
    column[w * DIGITS] = place;
    place += count;
  }
  sync_block();
  NO_UNROLL for (u32 base = first; base < end; base += 32) {
    bool in = base + lane() < end;
    u64 key = in ? from[base + lane()] : 0;
    u32 digit = in ? (u32)(key >> shift) & 0xff : DIGITS;
    u32 same = match_any(digit);
    u32 rank = count_bits(same & lanes_below());
    if (in) to[mine[digit] + rank] = key;
    sync_warp();
    if (in && rank == 0) mine[digit] += count_bits(same);
    sync_warp();
  }
  sync_block();
  return true;
}

// Sorts n keys that stand by ascending id: equal z keep that order. `other` has room for as many.
DEV void sort_keys(u64* keys, u64* other, u32 n) {
  if (n <= RANKED) {
    sort_ranked(keys, n);
    return;
  }
  u64* from = keys;
  u64* to = other;
  NO_UNROLL for (u32 shift = 32; shift < 64; shift += 8) {
    if (radix_pass(from, to, n, shift)) {
      u64* sorted = to;
      to = from;
      from = sorted;
    }
  }
  if (from != keys) {
    NO_UNROLL for (u32 i = thread_x(); i < n; i += ORDER_THREADS) keys[i] = from[i];
  }
  sync_block();
}

// The bound of the group after the one from `least` up: half as far again below the maximum, or `lowest`.
DEV f32 next_bound(const Ordered& row, f32 least, f32 lowest) {
  f32 depth = (row.max - least) * 1.5f + 0.5f;
  // Beyond 104 nothing has mass; a depth that the maximum's last place swallows would not get on.
  f32 bound = depth < 104.0f ? row.max - depth : MINUS_INF;
  return bound < least ? max(bound, lowest) : lowest;
}
