// Kernels that measure the executor: a matrix-vector product, an attention-like loop, a matrix product by mma.
//
// They stand for the shapes of real kernels, not for good ones.
#include "gpu.cuh"

// y[row] = sum over k of w[row, k] x[k], w bf16 [rows, 8 * chunks], x f32. One warp a row, 4 warps a block.
KERNEL gemv(f32* __restrict__ y, const u32x4* __restrict__ w, const f32x4* __restrict__ x, u32 rows, u32 chunks) {
  u32 row = block_x() * 4 + warp();
  if (row >= rows) return;
  const u32x4* from = w + (u64)row * chunks;
  f32 sum = 0;
  for (u32 i = lane(); i < chunks; i += 32) {
    u32x4 codes = load_stream(from + i);
    f32x4 a = x[2 * i], b = x[2 * i + 1];
    sum = fma(bf16_low(codes.x), a.x, sum);
    sum = fma(bf16_high(codes.x), a.y, sum);
    sum = fma(bf16_low(codes.y), a.z, sum);
    sum = fma(bf16_high(codes.y), a.w, sum);
    sum = fma(bf16_low(codes.z), b.x, sum);
    sum = fma(bf16_high(codes.z), b.y, sum);
    sum = fma(bf16_low(codes.w), b.z, sum);
    sum = fma(bf16_high(codes.w), b.w, sum);
  }
  UNROLL for (u32 m = 16; m > 0; m /= 2) sum = sum + shuffle_xor(sum, m);
  if (lane() == 0) y[row] = sum;
}

// out[d] = sum over t of softmax(q k[t])[t] v[t, d], one head of 64 elements a block of 64 threads, tiles of 64 tokens in
// shared memory, scores by one thread a token. 2^x stands for the exponential.
KERNEL attend(f32* __restrict__ out, const f32* __restrict__ q, const f32* __restrict__ k, const f32* __restrict__ v, u32 tokens) {
  f32* tile = (f32*)smem;         // [64][68]
  f32* query = tile + 64 * 68;    // [64]
  f32* weight = query + 64;       // [64]
  u32 t = thread_x();
  u64 head = block_x();
  query[t] = q[head * 64 + t];
  f32 best = -1e30f, total = 0, sum = 0;
  for (u32 first = 0; first < tokens; first += 64) {
    const u32x4* from = (const u32x4*)(k + (head * tokens + first) * 64);
    for (u32 i = t; i < 64 * 16; i += 64) *(u32x4*)(tile + (i / 16) * 68 + (i % 16) * 4) = from[i];
    sync_block();
    f32 score = 0;
    UNROLL for (u32 d = 0; d < 64; d += 4) {
      f32x4 a = *(const f32x4*)(tile + t * 68 + d), b = *(const f32x4*)(query + d);
      score = fma(a.x, b.x, score);
      score = fma(a.y, b.y, score);
      score = fma(a.z, b.z, score);
      score = fma(a.w, b.w, score);
    }
    weight[t] = score;
    sync_block();
    f32 top = best;
    UNROLL for (u32 i = 0; i < 64; i += 4) {
      f32x4 s = *(const f32x4*)(weight + i);
      top = max(max(max(top, s.x), max(s.y, s.z)), s.w);
    }
    f32 e, shrink;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(shrink) : "f"(best - top));
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(score - top));
    best = top;
    sync_block();
    weight[t] = e;
    sync_block();
    sum = sum * shrink;
    total = total * shrink;
    const f32* values = v + (head * tokens + first) * 64 + t;
    UNROLL for (u32 i = 0; i < 64; i++) {
      f32 p = weight[i];
      sum = fma(p, values[i * 64], sum);
      total = total + p;
    }
    sync_block();
  }
  out[head * 64 + t] = divide(sum, total);
}

// out[warp][lane] = c of `steps` products of 16x8x16 with fragments from memory, one warp a block.
KERNEL multiply(f32x4* __restrict__ out, const u32x4* __restrict__ a, const u32x2* __restrict__ b, u32 steps) {
  f32 c[4][4] = {};
  u64 base = (u64)block_x() * 32 + lane();
  for (u32 i = 0; i < steps; i++) {
    u32x4 x = a[base + 32 * i];
    u32 fragment[4] = {x.x, x.y, x.z, x.w};
    UNROLL for (u32 j = 0; j < 4; j++) {
      u32x2 y = b[base + 32 * (4 * i + j)];
      mma_bf16(c[j], fragment, y.x, y.y);
    }
  }
  UNROLL for (u32 j = 0; j < 4; j++) {
    f32x4 r = {c[j][0], c[j][1], c[j][2], c[j][3]};
    out[base * 4 + j] = r;
  }
}

// x[i] = x[i] + y[i] in place, 16 bytes a thread: the launch stores to what it loads, so the checks remember who did.
KERNEL update(f32x4* x, const f32x4* __restrict__ y, u32 count) {
  u32 i = block_x() * 128 + thread_x();
  if (i < count) x[i] = x[i] + y[i];
}
