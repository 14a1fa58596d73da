// rng.cuh: Philox4x32-10 and the uniforms of sampling, the bits of ptx/src/rng.rs.                                   ptx/rng.cuh
#pragma once
#include "gpu.cuh"

// The first word of Philox4x32-10.
DEV u32 philox_first(u32 key0, u32 key1, u32 c0, u32 c1, u32 c2, u32 c3) {
  UNROLL for (u32 round = 0; round < 10; round++) {
    u64 a = (u64)c0 * 0xD2511F53u, b = (u64)c2 * 0xCD9E8D57u;
    c0 = (u32)(b >> 32) ^ c1 ^ key0;
    c2 = (u32)(a >> 32) ^ c3 ^ key1;
    c1 = (u32)b;
    c3 = (u32)a;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return c0;
}

#define PURPOSE_SAMPLE 1u

// In [0, 1), 24 bits: for token `position` of sample `sample` under `seed`.
DEV f32 sample_uniform(u64 seed, u64 sample, u32 position) {
  u32 word = philox_first((u32)seed, (u32)(seed >> 32), position, PURPOSE_SAMPLE, (u32)sample, (u32)(sample >> 32));
  return (f32)(word >> 8) * (1.0f / 16777216.0f);
}
