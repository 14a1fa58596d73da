// linear: y[row, output] = sum over k of x[row, k] w[output, k], scaled, plus bias         ptx/src/ops/linear/linear.cu
// linear_<w>[_block]_<x>_<rows>: weights and inputs bf16 or e4m3; `block`: e4m3 weights with scales by 128 x 128.
//
// launch:   _8 .. _64: grid (ceil(n / 16 MT)), a warp for each part of k, 512 MT TILES parts + 128 MT + 32 NT bytes of shared memory
//           _many: grid (ceil(rows / 16 NT), ceil(n / 128)), 256 threads, 6144 NT bytes
//           _ragged: grid (ceil(n / 16), ceil(rows / 8)), a warp for each part; any k
// requires: weights as in fragment.cuh; x [rows, k] without gaps; but for _ragged k a multiple of 8 and x 16-byte aligned (with
//           e4m3 x: a multiple of 16 for _many, and 8-byte aligned for the others); checked in cuda.rs
// bytes:    _8 .. _64 read the weights once; _many reads them once for each 16 NT rows
// order:    as in cuda.rs; part of k, chain, step and lane are the same for every kernel of a format
// accuracy: as in conform.rs
//
// shared: linear_bf16_bf16_8 4256
// shared: linear_bf16_bf16_many 49152
// shared: linear_bf16_bf16_ragged 4256
// shared: linear_bf16_bf16_16 8384
// shared: linear_bf16_bf16_32 33152
// shared: linear_bf16_bf16_64 33536
// shared: linear_bf16_e4m3_8 4256
// shared: linear_bf16_e4m3_many 49152
// shared: linear_bf16_e4m3_ragged 4256
// shared: linear_e4m3_bf16_8 4256
// shared: linear_e4m3_bf16_many 49152
// shared: linear_e4m3_bf16_ragged 4256
// shared: linear_e4m3_bf16_16 8384
// shared: linear_e4m3_bf16_32 33152
// shared: linear_e4m3_bf16_64 33536
// shared: linear_e4m3_block_bf16_8 4256
// shared: linear_e4m3_block_bf16_many 24576
// shared: linear_e4m3_block_bf16_ragged 4256
// shared: linear_e4m3_block_bf16_16 8384
// shared: linear_e4m3_block_bf16_32 33152
// shared: linear_e4m3_block_bf16_64 33280
// shared: linear_e4m3_e4m3_8 4256
// shared: linear_e4m3_e4m3_many 24576
// shared: linear_e4m3_e4m3_ragged 4256
// shared: linear_e4m3_e4m3_16 8384
// shared: linear_e4m3_e4m3_32 33152
// shared: linear_e4m3_e4m3_64 33280
#include "few.cuh"
#include "many.cuh"

// Name, w, x, chained, and for many rows NT.
#define FORMAT(name, W, X, CHAINED, NT_MANY)                                                                             \
  BOUNDS(256, 3) KERNEL linear_##name##_8(LINEAR_PARAMS) { few<W, X, CHAINED, 1, 1, false>(LINEAR_ARGS); }               \
  BOUNDS(256, 1) KERNEL linear_##name##_many(LINEAR_PARAMS) { many<W, X, CHAINED, NT_MANY>(LINEAR_ARGS); }               \
  BOUNDS(256, 2) KERNEL linear_##name##_ragged(LINEAR_PARAMS) { few<W, X, CHAINED, 1, 1, true>(LINEAR_ARGS); }
// Blocks of a multiprocessor for 17 to 32 rows, and MT for 33 to 64.
#define FORMAT_UP_TO_64(name, W, X, CHAINED, BLOCKS_32, MT_64)                                                           \
  BOUNDS(256, 3) KERNEL linear_##name##_16(LINEAR_PARAMS) { few<W, X, CHAINED, 2, 1, false>(LINEAR_ARGS); }              \
  BOUNDS(256, BLOCKS_32) KERNEL linear_##name##_32(LINEAR_PARAMS) { few<W, X, CHAINED, 4, 2, false>(LINEAR_ARGS); }      \
  BOUNDS(256, 1) KERNEL linear_##name##_64(LINEAR_PARAMS) { few<W, X, CHAINED, 8, MT_64, false>(LINEAR_ARGS); }

FORMAT(bf16_bf16, BF16, BF16, false, 8)
FORMAT(bf16_e4m3, BF16, E4M3, false, 8) // rare: from 9 rows on it takes the way of many
FORMAT(e4m3_bf16, E4M3, BF16, false, 8)
FORMAT(e4m3_block_bf16, E4M3, BF16, true, 4)
FORMAT(e4m3_e4m3, E4M3, E4M3, true, 4)
FORMAT_UP_TO_64(bf16_bf16, BF16, BF16, false, 2, 4)
FORMAT_UP_TO_64(e4m3_bf16, E4M3, BF16, false, 2, 4)
FORMAT_UP_TO_64(e4m3_block_bf16, E4M3, BF16, true, 1, 2)
FORMAT_UP_TO_64(e4m3_e4m3, E4M3, E4M3, true, 1, 2)
