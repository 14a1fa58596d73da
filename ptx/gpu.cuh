// gpu.cuh: the device prelude of leeway's kernels. Nothing of a CUDA installation is included anywhere.       ptx/gpu.cuh
//
// Compiled by clang with contraction off: a fused multiply-add stands only where `fma` is written. Loops have constant
// bounds or a stated unrolling, arrays are indexed by constants, and everything is inlined, so that no kernel has a stack.
// Addresses are generic and equal to global ones; shared memory is one dynamic array that kernels carve themselves.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef int i32;
typedef long long i64;
typedef float f32;
typedef double f64;
typedef u32 u32x2 __attribute__((ext_vector_type(2)));
typedef u32 u32x4 __attribute__((ext_vector_type(4)));
typedef f32 f32x2 __attribute__((ext_vector_type(2)));
typedef f32 f32x4 __attribute__((ext_vector_type(4)));

#define KERNEL extern "C" __attribute__((global)) void
#define DEV static inline __attribute__((device, always_inline))
#define SHARED __attribute__((shared))
// Threads of a block at most, and blocks of a multiprocessor at least, which bounds the registers.
#define BOUNDS(threads, blocks) __attribute__((launch_bounds(threads, blocks)))
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")

extern SHARED __attribute__((aligned(128))) u8 smem[]; // the launch says how many bytes

// ---- where a thread is -------------------------------------------------------------------------------------------------

DEV u32 thread_x() { return __nvvm_read_ptx_sreg_tid_x(); }
DEV u32 block_x() { return __nvvm_read_ptx_sreg_ctaid_x(); }
DEV u32 block_y() { return __nvvm_read_ptx_sreg_ctaid_y(); }
DEV u32 block_z() { return __nvvm_read_ptx_sreg_ctaid_z(); }
DEV u32 threads_x() { return __nvvm_read_ptx_sreg_ntid_x(); }
DEV u32 blocks_x() { return __nvvm_read_ptx_sreg_nctaid_x(); }
DEV u32 blocks_y() { return __nvvm_read_ptx_sreg_nctaid_y(); }
DEV u32 blocks_z() { return __nvvm_read_ptx_sreg_nctaid_z(); }
DEV u32 lane() { return thread_x() & 31; } // blocks are one-dimensional
DEV u32 warp() { return thread_x() >> 5; }

// ---- barriers and warps ------------------------------------------------------------------------------------------------

DEV void sync_block() { asm volatile("bar.sync 0;" ::: "memory"); }
DEV void sync_warp() { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }

DEV u32 shuffle_xor(u32 x, u32 mask) {
  u32 y;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=r"(y) : "r"(x), "r"(mask));
  return y;
}
DEV u32 shuffle(u32 x, u32 from) { // the value of lane `from`
  u32 y;
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=r"(y) : "r"(x), "r"(from));
  return y;
}
DEV u32 bits(f32 x) { return __builtin_bit_cast(u32, x); }
DEV f32 from_bits(u32 x) { return __builtin_bit_cast(f32, x); }
DEV f32 shuffle_xor(f32 x, u32 mask) { return from_bits(shuffle_xor(bits(x), mask)); }
DEV f32 shuffle(f32 x, u32 from) { return from_bits(shuffle(bits(x), from)); }
DEV u32 ballot(bool p) { // bit i: lane i's p
  u32 y;
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; vote.sync.ballot.b32 %0, p, 0xffffffff; }" : "=r"(y) : "r"((u32)p));
  return y;
}

DEV u32 match_any(u32 x) { // the lanes that hold the same x
  u32 y;
  asm volatile("match.any.sync.b32 %0, %1, 0xffffffff;" : "=r"(y) : "r"(x));
  return y;
}
DEV u32 count_bits(u32 x) { return (u32)__builtin_popcount(x); }
DEV u32 lanes_below() { return (1u << lane()) - 1; } // as a mask

// ---- arithmetic with the rounding written out --------------------------------------------------------------------------

DEV f32 fma(f32 a, f32 b, f32 c) { return __builtin_fmaf(a, b, c); }
DEV f64 fma(f64 a, f64 b, f64 c) { return __builtin_fma(a, b, c); }
DEV f32 max(f32 a, f32 b) { return __builtin_fmaxf(a, b); } // the one that is a number, where one is NaN
DEV f32 min(f32 a, f32 b) { return __builtin_fminf(a, b); }
DEV f32 abs(f32 x) { return __builtin_fabsf(x); }
DEV u32 max(u32 a, u32 b) { return a > b ? a : b; }
DEV u32 min(u32 a, u32 b) { return a < b ? a : b; }
DEV u32 ceil_div(u32 a, u32 b) { return (a + b - 1) / b; }
DEV f32 sqrt(f32 x) { // correctly rounded
  f32 y;
  asm("sqrt.rn.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
DEV f32 divide(f32 a, f32 b) { // correctly rounded
  f32 y;
  asm("div.rn.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
DEV u32 permute_bytes(u32 a, u32 b, u32 selector) { // byte i: byte (selector >> 4 i) & 7 of b:a
  u32 y;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(selector));
  return y;
}

// ---- memory ------------------------------------------------------------------------------------------------------------

// Read-only for the whole launch; kept out of L1 because nobody reads them again.
DEV u32x4 load_stream(const void* p) {
  u32x4 v;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
// Read-only for the whole launch, and read by others too.
DEV u32x4 load_shared_by_all(const void* p) {
  u32x4 v;
  asm("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
DEV u32x2 load_shared_by_all_8(const void* p) {
  u32x2 v;
  asm("ld.global.nc.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
  return v;
}

// Integers only: no float is ever added atomically.
DEV void atomic_or_shared(u32* p, u32 x) {
  asm volatile("red.shared.or.b32 [%0], %1;" ::"r"((u32)(u64)(__attribute__((address_space(3))) u32*)p), "r"(x) : "memory");
}

DEV u32 smem_address(const void* p) { return (u32)(u64)(__attribute__((address_space(3))) const void*)p; }

// Copies 16 bytes to shared memory, past L1; with valid = false it writes zeros and reads nothing, but `from` must be a
// good address all the same. Both sides are 16-byte aligned. Done after cp_wait, for this thread; after a barrier, for all.
DEV void cp_async_16(u32 to, const void* from, bool valid = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16u : 0u) : "memory");
}
DEV void cp_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> DEV void cp_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }

// Four 8x8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8, 16 bytes.
DEV void load_matrix_x4(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
DEV void load_matrix_x4_transposed(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
DEV void load_matrix_x2(u32 (&r)[2], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(address) : "memory");
}
DEV void load_matrix_x2_transposed(u32 (&r)[2], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1]) : "r"(address) : "memory");
}

// ---- matrix multiply-accumulate ----------------------------------------------------------------------------------------
// With g = lane / 4 and t = lane % 4: c[0], c[1] are row g, columns 2t, 2t+1; c[2], c[3] the same of row g + 8.

// c[16,8] += a[16,16] b[16,8], bf16. a: rows g | g+8 at k 2t,2t+1 | the same at k 2t+8,2t+9. b: column g at k 2t,2t+1 | 2t+8,2t+9.
DEV void mma_bf16(f32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#if __CUDA_ARCH__ >= 890
#define HAS_FP8 1
// c[16,8] += a[16,32] b[32,8], e4m3. a: rows g | g+8 at k 4t..4t+3 | the same at k 4t+16..4t+19. b: column g at k 4t.. | 4t+16..
DEV void mma_e4m3(f32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#else
#define HAS_FP8 0
#endif

// ---- formats -----------------------------------------------------------------------------------------------------------

// Two f32 to bf16, nearest even, NaN stays NaN: low in the low half.
DEV u32 to_bf16x2(f32 low, f32 high) {
  u32 y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}
DEV f32 bf16_low(u32 pair) { return from_bits(pair << 16); }
DEV f32 bf16_high(u32 pair) { return from_bits(pair & 0xffff0000u); }
DEV u16 to_bf16(f32 x) { return (u16)to_bf16x2(x, 0.0f); }
DEV f32 bf16_to_f32(u16 x) { return from_bits((u32)x << 16); }

// Code of an 8-bit format: nearest even, saturating, NaN to 0x7f or 0xff; as dtype.rs does it, where each step is explained.
template <u32 MANTISSA, u32 BIAS, u32 MAX_CODE> DEV u32 encode_8(f32 x) {
  u32 magnitude = bits(x) & 0x7fffffffu;
  u32 exponent = min(max(magnitude >> 23, 128 - BIAS), 254 - 23 + MANTISSA);
  f32 magic = from_bits((exponent + 23 - MANTISSA) << 23);
  f32 rounded = (from_bits(magnitude) + magic) - magic;
  u32 normal = (bits(rounded) >> (23 - MANTISSA)) - ((127 - BIAS) << MANTISSA);
  f32 step = from_bits((127 + BIAS - 1 + MANTISSA) << 23);
  u32 subnormal = bits(rounded * step + 8388608.0f) & 0xff;
  u32 code = bits(rounded) < (128 - BIAS) << 23 ? subnormal : min(normal, MAX_CODE);
  return (bits(x) >> 24 & 0x80) | (magnitude > 0x7f800000u ? 0x7fu : code);
}

// Two f32 to codes, low in the low byte: nearest even, saturating. NaN becomes 0x7f, or 0xff where its sign is kept.
DEV u32 to_e4m3x2(f32 low, f32 high) {
#if HAS_FP8
  u16 y;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(y) : "f"(high), "f"(low));
  return y;
#else
  return encode_8<3, 7, 0x7e>(low) | encode_8<3, 7, 0x7e>(high) << 8;
#endif
}
DEV u32 to_e5m2x2(f32 low, f32 high) {
#if HAS_FP8
  u16 y;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(y) : "f"(high), "f"(low));
  return y;
#else
  return encode_8<2, 15, 0x7b>(low) | encode_8<2, 15, 0x7b>(high) << 8;
#endif
}

// The least power of two that brings magnitudes up to `bound`, which is finite, within `largest`: dtype.rs's `scale_pow2`.
DEV f32 scale_pow2(f32 bound, f32 largest) {
  f32 ratio = divide(bound, largest);
  u32 up = (bits(ratio) & 0x007fffffu) != 0;
  f32 scale = from_bits(((bits(ratio) >> 23) + up) << 23);
  f32 least = from_bits(0x00800000u);
  return ratio < least ? (bound == 0.0f ? 1.0f : least) : scale;
}
