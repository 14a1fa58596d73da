// drawn.cuh: what a draw leaves of its row, for the next kernels too.                          ptx/src/ops/sample/drawn.cuh
#pragma once
#include "math.cuh"

struct Drawn {
  u32 status; // 0: drawn; 1: the row is no distribution; 2: not drawn yet
  u32 token;
  f32 logprob;
  f32 logprob_raw;
  u32 support;
  f32 lse;
  f32 lse_raw;
  f32 kept; // the sum of exp(z - max) over the `support` ids that a truncated draw kept; 0 for a draw from the whole row
};

// Of an id that a truncated draw kept.
DEV f32 logprob_of_kept(f32 z, f32 max, f32 kept) { return (z - max) - ln(kept); }
