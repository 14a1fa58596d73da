// masses.cuh: the tiles of a row and how they fold into its log-sum-exp.             ptx/src/ops/log_softmax/masses.cuh
#pragma once
#include "math.cuh"

#define TILE 1024      // columns
#define TILES_MAX 1024 // of a row
#define MINUS_INF (-__builtin_inff())

// What `tile_masses` leaves of a row: five numbers for each tile, [5][tiles].
struct Partials {
  const f32* max; // of z = logit * inv_temp
  const f32* sum; // of exp(z - max)
  const f32* min; // of z
  const f32* raw_max; // the same at temperature 1, if asked for
  const f32* raw_sum;
};
DEV Partials partials_of(const f32* all, u64 row, u32 tiles) {
  const f32* p = all + row * 5 * tiles;
  return {p, p + tiles, p + 2 * tiles, p + 3 * tiles, p + 4 * tiles};
}

// Folds tiles in ascending order: M' = max(M, m), S' = fma(S, exp(M - M'), s exp(m - M')). By one whole warp; `max_out` is M.
// Only the chain of fma runs one after the other: its factors follow from the maxima so far, which the lanes make at once.
DEV f32 fold(const f32* maxes, const f32* sums, u32 tiles, f32& max_out) {
  f32 m_all = MINUS_INF, s_all = 0.0f;
  NO_UNROLL for (u32 base = 0; base < tiles; base += 32) {
    u32 at = base + lane();
    f32 m = at < tiles ? maxes[at] : MINUS_INF;
    f32 s = at < tiles ? sums[at] : 0.0f;
    f32 now = max(m, m_all); // the maximum up to and with this tile
    UNROLL for (u32 d = 1; d < 32; d *= 2) {
      f32 other = shuffle(now, lane() - d);
      now = lane() >= d ? max(now, other) : now;
    }
    f32 before = shuffle(now, lane() - 1);
    before = lane() == 0 ? m_all : before;
    // A tile without mass leaves the maximum alone; its sum is 0, or NaN that has to survive.
    bool none = m == MINUS_INF;
    f32 keep = none ? 1.0f : exp(before - now);
    f32 add = none ? s : s * exp(m - now);
    _Pragma("unroll 8") for (u32 i = 0; i < 32; i++) s_all = fma(s_all, shuffle(keep, i), shuffle(add, i));
    m_all = shuffle(now, 31);
  }
  max_out = m_all;
  return m_all == MINUS_INF ? __builtin_nanf("") : m_all + ln(s_all);
}
