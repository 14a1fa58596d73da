// kv.cuh: 8-bit and bf16 keys and values on their way from pages to the matrix instructions.                      ptx/kv.cuh
//
// 8-bit codes are widened to f16, which holds every value of e4m3 and e5m2; bf16 is taken as it is. The other factor of
// each product, an f32 query or probability, is split into a high and a low part of the same 16-bit format.
#pragma once
#include "gpu.cuh"

// Rows of R bytes in shared memory, in units of 16 bytes. Units are swapped within a row so that the same unit of eight
// consecutive rows lies in eight different bank groups, as ldmatrix wants it.
template <u32 R> struct Rows {
  static constexpr u32 UNITS = R / 16;
  static constexpr u32 SWAPPED = UNITS % 8 == 0 ? 8 : UNITS % 4 == 0 ? 4 : UNITS % 2 == 0 ? 2 : 1;
  static constexpr u32 SHIFT = SWAPPED == 8 ? 0 : SWAPPED == 4 ? 1 : SWAPPED == 2 ? 2 : 3;
  DEV u32 at(u32 row, u32 unit) { return row * R + ((unit ^ ((row >> SHIFT) & (SWAPPED - 1))) << 4); }
};

// c[16,8] += a[16,16] b[16,8], f16; operands as in mma_bf16.
DEV void mma_f16(f32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// The product for elements of B bytes.
template <int B> DEV void mma(f32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  if constexpr (B == 1) mma_f16(c, a, b0, b1);
  else mma_bf16(c, a, b0, b1);
}

// x = high + low but for 2^-22 of x (f16, in its range) or 2^-17 (bf16). High in the low half.
template <int B> DEV u32 split(f32 x) {
  u32 y;
  if constexpr (B == 1) {
    f32 high;
    asm("{ .reg .b16 h; cvt.rn.f16.f32 h, %1; cvt.f32.f16 %0, h; }" : "=f"(high) : "f"(x));
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(x - high), "f"(x));
  } else {
    f32 high = bf16_low(to_bf16x2(x, 0.0f));
    y = to_bf16x2(x, x - high);
  }
  return y;
}

// What e4m3 codes come out divided by. Bits alone make f16 of them; NaN codes then come out finite and must be looked for.
#if HAS_FP8
#define E4M3_GAIN 1.0f
#define E4M3_KEEPS_NAN 1
#else
#define E4M3_GAIN 256.0f
#define E4M3_KEEPS_NAN 0
#endif

// How the codes of one 8-bit format become f16. Where the hardware converts, the format is the type's and not the value's.
template <bool E5M2> struct Codes {
#if HAS_FP8
  DEV Codes of(bool) { return {}; }
  // Bytes 0, 1 of w to `low` and 2, 3 to `high`.
  DEV void adjacent(u32 w, u32& low, u32& high) {
    asm("{ .reg .b16 a, b; mov.b32 {a, b}, %2; cvt.rn.f16x2.e4m3x2 %0, a; cvt.rn.f16x2.e4m3x2 %1, b; }"
        : "=r"(low), "=r"(high) : "r"(w));
  }
#else
  u32 mask, right, left;
  // A code is the sign and then exponent and mantissa, which stand one place further right in f16 than in e4m3.
  DEV Codes of(bool e5m2) { return {e5m2 ? 0x7f007f00u : 0x3f803f80u, e5m2 ? 0u : 1u, e5m2 ? 8u : 7u}; }
#endif
};

// Bytes 0, 2 of word i to `even[i]` and 1, 3 to `odd[i]`.
template <bool E5M2> DEV void widen_even_odd(const Codes<E5M2>& codes, const u32 (&w)[4], u32 (&even)[4], u32 (&odd)[4]) {
  UNROLL for (u32 i = 0; i < 4; i++) {
#if HAS_FP8
    if (E5M2) even[i] = permute_bytes(w[i], 0, 0x2404), odd[i] = permute_bytes(w[i], 0, 0x3414);
    else codes.adjacent(permute_bytes(w[i], 0, 0x3120), even[i], odd[i]);
#else
    even[i] = ((w[i] << 8) & 0x80008000u) | ((w[i] << codes.left) & codes.mask);
    odd[i] = (w[i] & 0x80008000u) | ((w[i] >> codes.right) & codes.mask);
#endif
  }
}

// Two of the four bytes of word i to `first[i]`, the others to `second[i]`: which, says `dim_place`.
template <bool E5M2> DEV void widen(const Codes<E5M2>& codes, const u32 (&w)[4], u32 (&first)[4], u32 (&second)[4]) {
#if HAS_FP8
  UNROLL for (u32 i = 0; i < 4; i++) {
    if (E5M2) first[i] = permute_bytes(w[i], 0, 0x1404), second[i] = permute_bytes(w[i], 0, 0x3424);
    else codes.adjacent(w[i], first[i], second[i]);
  }
#else
  widen_even_odd(codes, w, first, second);
#endif
}
// Byte 4t + r of 16 is element 2t or 2t + 1 of the first eight (`first`) or of the last eight (`second`).
DEV u32 dim_place(u32 i) {
  u32 t = i >> 2, r = i & 3;
#if HAS_FP8
  return ((r & 2) << 2) | (t << 1) | (r & 1);
#else
  return ((r & 1) << 3) | (t << 1) | (r >> 1);
#endif
}

// What tells infinity and NaN from numbers in a word of codes: ((w & exponent) + step) & carry is not zero if there is one.
struct NotFinite {
  u32 exponent, step, carry;
  DEV NotFinite of(bool eight, bool e5m2) {
    if (!eight) return {0x7f807f80u, 0x00800080u, 0x80008000u};
    return {e5m2 ? 0x7c7c7c7cu : 0x7f7f7f7fu, e5m2 ? 0x04040404u : 0x01010101u, 0x80808080u};
  }
  DEV u32 in(const NotFinite& f, u32 w) { return ((w & f.exponent) + f.step) & f.carry; }
};

// One f32 or byte that the whole launch only reads.
DEV u32 load_word(const void* p) {
  u32 x;
  asm("ld.global.nc.u32 %0, [%1];" : "=r"(x) : "l"(p));
  return x;
}
DEV u32 load_byte(const void* p) {
  u32 x;
  asm("ld.global.nc.u8 %0, [%1];" : "=r"(x) : "l"(p));
  return x;
}
// The scale of an exponent byte: 2^(e - 127).
DEV f32 scale_of(u32 e) { return from_bits(e << 23); }
