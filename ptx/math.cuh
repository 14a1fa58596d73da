// math.cuh: exp, ln, sin and cos of our own, the bits of ptx/src/math.rs for every input that is not NaN.           ptx/math.cuh
//
// The same operations in the same order with `fma` written out; no approximate instruction takes part. NaN gives NaN, which
// the device writes as 0x7fffffff. What the constants mean stands in math.rs.
#pragma once
#include "gpu.cuh"

DEV f32 exp(f32 x) {
  f32 c = x > 89.0f ? 89.0f : x;
  c = c < -104.0f ? -104.0f : c;
  const f32 SHIFT = 12582912.0f; // 1.5 * 2^23: adding it rounds to an integer, which the low bits then hold
  f32 shifted = fma(c, 1.44269504088896340736f, SHIFT);
  f32 n = shifted - SHIFT;
  f32 r = fma(n, -0.6933594f, c);
  r = fma(n, 2.1219444e-4f, r);
  f32 p = 1.9875691e-4f;
  p = fma(p, r, 1.3981999e-3f);
  p = fma(p, r, 8.333452e-3f);
  p = fma(p, r, 4.1665796e-2f);
  p = fma(p, r, 1.6666665e-1f);
  p = fma(p, r, 5e-1f);
  f32 y = fma(p, r * r, r) + 1.0f;
  i32 whole = (i32)(bits(shifted) - bits(SHIFT));
  i32 half = whole >> 1; // 2^n in two exact steps, so that n = 128 and subnormal results work
  f32 a = from_bits((u32)(half + 127) << 23);
  f32 b = from_bits((u32)(whole - half + 127) << 23);
  return y * a * b;
}

// The largest x whose exp is 0.
#define EXP_IS_ZERO (-103.972084f)

DEV f32 ln(f32 x) {
  bool tiny = x < 1.17549435e-38f;
  f32 scaled = tiny ? x * 8388608.0f : x;
  u32 shifted = bits(scaled) - 0x3f3504f3u;
  // x = m * 2^e with m in [sqrt(1/2), sqrt(2)).
  f32 m = from_bits((shifted & 0x007fffffu) + 0x3f3504f3u);
  f32 e = (f32)((i32)shifted >> 23) - (tiny ? 23.0f : 0.0f);
  f32 f = m - 1.0f;
  f32 p = 7.0376836e-2f;
  p = fma(p, f, -1.151461e-1f);
  p = fma(p, f, 1.1676999e-1f);
  p = fma(p, f, -1.2420141e-1f);
  p = fma(p, f, 1.4249323e-1f);
  p = fma(p, f, -1.6668058e-1f);
  p = fma(p, f, 2.0000715e-1f);
  p = fma(p, f, -2.4999994e-1f);
  p = fma(p, f, 3.333333e-1f);
  f32 ff = f * f;
  f32 low = fma(e, -2.1219444e-4f, p * f * ff);
  low = fma(-0.5f, ff, low);
  f32 y = fma(e, 0.6933594f, f + low);
  y = x == __builtin_inff() ? x : y;
  y = x == 0.0f ? -__builtin_inff() : y;
  return x < 0.0f || x != x ? __builtin_nanf("") : y;
}

// For |x| up to 2^30, in f64 and rounded once.
DEV void sin_cos(f32 angle, f32& sine, f32& cosine) {
  const f64 SHIFT = 6755399441055744.0; // 1.5 * 2^52
  f64 x = (f64)angle;
  f64 shifted = fma(x, 0.636619772367581343075535053490057448, SHIFT);
  f64 n = shifted - SHIFT;
  f64 r = fma(n, -1.57079632679489661923132169163975144, x);
  r = fma(n, -6.123233995736766e-17, r);
  f64 z = r * r;
  f64 s = -2.505210838544172e-8;
  s = fma(s, z, 2.755731922398589e-6);
  s = fma(s, z, -1.984126984126984e-4);
  s = fma(s, z, 8.333333333333333e-3);
  s = fma(s, z, -1.6666666666666666e-1);
  f64 sin = fma(s * z, r, r);
  f64 c = 2.08767569878681e-9;
  c = fma(c, z, -2.755731922398589e-7);
  c = fma(c, z, 2.48015873015873e-5);
  c = fma(c, z, -1.388888888888889e-3);
  c = fma(c, z, 4.1666666666666664e-2);
  c = fma(c, z, -0.5);
  f64 cos = fma(c, z, 1.0);
  u32 quadrant = (u32)__builtin_bit_cast(u64, shifted) & 3;
  f64 s1 = quadrant & 1 ? cos : sin;
  f64 c1 = quadrant & 1 ? sin : cos;
  s1 = quadrant & 2 ? -s1 : s1;
  c1 = (quadrant + 1) & 2 ? -c1 : c1;
  sine = (f32)s1;
  cosine = (f32)c1;
}

// 1 / (1 + e^-x).
DEV f32 sigmoid(f32 x) { return divide(1.0f, 1.0f + exp(-x)); }

// The tree over the 16 strided sums that lanes i mod 16 of a half warp hold; every lane gets the sum. An exchange adds the
// same two numbers on both sides, and addition commutes, so this is math.rs's `tree16`.
DEV f32 tree16(f32 sum) {
  sum = sum + shuffle_xor(sum, 8);
  sum = sum + shuffle_xor(sum, 4);
  sum = sum + shuffle_xor(sum, 2);
  return sum + shuffle_xor(sum, 1);
}
