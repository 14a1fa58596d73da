// kv_append: QK-norm and rotation of q and k, and k and v to their slots.               ptx/src/ops/kv_append/kv_append.cu
//
//   qkv: [tokens] rows of [heads + 2 kv heads, D], `stride` apart    q: [tokens, heads, D]    slots: [tokens]
//   cos, sin: [tokens, D / 2]    gains: [D] or null    pages: see cuda/pages.rs
//
// launch:   grid (tokens, ceil((heads + 2 kv heads) / 4)), 128 threads: a warp a head of a token
// requires: D a multiple of 16 up to 128; checked in cuda.rs. A slot of 0xffffffff is none: k and v are left out
// bytes:    the rows once, q once, the codes once; bound by memory
// accuracy: the CPU's bits, sums of squares included: 16 strided sums and the tree
#include "gpu.cuh"

constexpr u32 PAIRS = 2, NONE = 0xffffffffu, INFINITY_BITS = 0x7f800000u;
enum Flags : u32 { K_E5M2 = 1, V_E5M2 = 2, BY_TOKEN = 4, K_8BIT = 32, V_8BIT = 64 };

// 1 / rms: lanes i and i + 16 both have sum i, of elements i, i + 16, ...
DEV f32 inverse_rms(const f32* x, u32 dims, f32 eps) {
  f32 sum = 0.0f;
  NO_UNROLL for (u32 j = lane() & 15; j < dims; j += 16) sum = fma(x[j], x[j], sum);
  UNROLL for (u32 m = 8; m > 0; m >>= 1) sum = sum + shuffle_xor(sum, m);
  return divide(1.0f, sqrt(divide(sum, (f32)dims) + eps));
}

// One 8-bit format as ptx/src/dtype.rs rounds to it.
struct Format {
  u32 mantissa, bias, max_code;
  f32 largest, zero_up_to;
  u32 clipped_from; // bits
  DEV Format of(bool e5m2) {
    if (e5m2) return {2, 15, 0x7b, 57344.0f, 1.0f / 131072.0f, 0x47700000u};
    return {3, 7, 0x7e, 448.0f, 1.0f / 1024.0f, 0x43e80001u};
  }
};

// The code of x: adding and subtracting a power of two rounds to the format's step, nearest even.
DEV u32 encode(const Format& f, f32 x) {
  u32 sign = (bits(x) >> 24) & 0x80, magnitude = bits(x) & 0x7fffffffu;
  u32 exponent = min(max(magnitude >> 23, 128 - f.bias), 254 - 23 + f.mantissa);
  f32 magic = from_bits((exponent + 23 - f.mantissa) << 23);
  f32 rounded = (from_bits(magnitude) + magic) - magic;
  u32 normal = (bits(rounded) >> (23 - f.mantissa)) - ((127 - f.bias) << f.mantissa);
  f32 step = from_bits((127 + f.bias - 1 + f.mantissa) << 23);
  u32 subnormal = bits(rounded * step + 8388608.0f) & 0xff;
  u32 code = bits(rounded) < ((128 - f.bias) << 23) ? subnormal : min(normal, f.max_code);
  return sign | (magnitude > INFINITY_BITS ? 0x7f : code);
}

// The exponent byte of a row of largest magnitude `amax`: ptx/src/dtype.rs::scale_exponent.
DEV u32 scale_exponent(const Format& f, f32 amax) {
  u32 top = 127 + 254 - (bits(f.largest) >> 23);
  f32 ratio = divide(amax, f.largest);
  u32 e = (bits(ratio) >> 23) + ((bits(ratio) & 0x007fffffu) != 0 ? 1 : 0);
  if (ratio < 1.17549435e-38f) e = amax == 0.0f ? 127 : 1;
  return amax == __builtin_inff() ? top : min(e, top);
}

DEV void add_count(u64* to, u32 n) {
  asm volatile("red.global.add.u64 [%0], %1;" ::"l"(to), "l"((u64)n) : "memory");
}

// A row of a head to its slot; x[2 i], x[2 i + 1] are elements lane + 32 i and half + lane + 32 i.
DEV void put(const f32 (&x)[2 * PAIRS], u32 half, u8* row, u8* exponent, bool eight, bool e5m2, bool by_token, const f32* scale,
             u64* counts) {
  if (!eight) {
    UNROLL for (u32 i = 0; i < PAIRS; i++) {
      u32 j = lane() + 32 * i;
      if (j < half) ((u16*)row)[j] = to_bf16(x[2 * i]), ((u16*)row)[half + j] = to_bf16(x[2 * i + 1]);
    }
    return;
  }
  Format f = Format::of(e5m2);
  f32 s;
  if (by_token) {
    u32 largest = 0; // bits of magnitudes order as they do
    UNROLL for (u32 i = 0; i < 2 * PAIRS; i++) {
      u32 magnitude = bits(x[i]) & 0x7fffffffu;
      largest = max(largest, magnitude > INFINITY_BITS ? 0u : magnitude);
    }
    UNROLL for (u32 m = 16; m > 0; m >>= 1) largest = max(largest, shuffle_xor(largest, m));
    u32 e = scale_exponent(f, from_bits(largest));
    if (lane() == 0) *exponent = (u8)e;
    s = from_bits(e << 23);
  } else {
    s = *scale;
  }
  f32 inverse = divide(1.0f, s); // both are powers of two, so the product is the quotient
  u32 clipped_from = bits(from_bits(f.clipped_from) * s), zero_up_to = bits(f.zero_up_to * s);
  u32 clipped = 0, lost = 0;
  UNROLL for (u32 i = 0; i < 2 * PAIRS; i++) {
    u32 j = lane() + 32 * (i / 2), magnitude = bits(x[i]) & 0x7fffffffu;
    if (j < half) {
      row[j + (i % 2) * half] = (u8)encode(f, x[i] * inverse);
      clipped += magnitude >= clipped_from && magnitude <= INFINITY_BITS ? 1 : 0;
      lost += magnitude - 1 < zero_up_to ? 1 : 0;
    }
  }
  if (counts) {
    UNROLL for (u32 m = 16; m > 0; m >>= 1) clipped += shuffle_xor(clipped, m), lost += shuffle_xor(lost, m);
    if (lane() == 0) {
      add_count(counts, 2 * half);
      if (clipped) add_count(counts + 1, clipped);
      if (lost) add_count(counts + 2, lost);
    }
  }
}

KERNEL BOUNDS(128, 4) kv_append(f32* __restrict__ q, u8* pages, u8* exponents, u64* counts, const f32* __restrict__ qkv,
                      const u32* __restrict__ slots, const f32* __restrict__ cos, const f32* __restrict__ sin,
                      const f32* __restrict__ q_gain, const f32* __restrict__ k_gain, const f32* __restrict__ k_scales,
                      const f32* __restrict__ v_scales, f32 eps, u32 stride, u32 heads, u32 kv_heads, u32 dims, u32 page_shift,
                      u32 flags) {
  u32 token = block_x(), head = block_y() * 4 + warp(), half = dims / 2;
  if (head >= heads + 2 * kv_heads) return;
  bool is_q = head < heads, is_v = head >= heads + kv_heads;
  const f32* from = qkv + (u64)token * stride + head * dims;
  const f32* gain = is_q ? q_gain : is_v ? nullptr : k_gain;
  f32 x[2 * PAIRS], inverse = gain ? inverse_rms(from, dims, eps) : 1.0f;
  UNROLL for (u32 i = 0; i < PAIRS; i++) {
    u32 j = lane() + 32 * i;
    f32 a = 0.0f, b = 0.0f;
    if (j < half) {
      a = from[j], b = from[half + j];
      if (gain) a = a * inverse * gain[j], b = b * inverse * gain[half + j];
      if (!is_v) {
        f32 c = cos[(u64)token * half + j], s = sin[(u64)token * half + j], low = a;
        a = fma(low, c, -(b * s)), b = fma(b, c, low * s);
      }
    }
    x[2 * i] = a, x[2 * i + 1] = b;
  }
  if (is_q) {
    f32* to = q + ((u64)token * heads + head) * dims;
    UNROLL for (u32 i = 0; i < PAIRS; i++) {
      u32 j = lane() + 32 * i;
      if (j < half) to[j] = x[2 * i], to[half + j] = x[2 * i + 1];
    }
    return;
  }
  u32 slot = slots[token];
  if (slot == NONE) return;
  bool k8 = (flags & K_8BIT) != 0, v8 = (flags & V_8BIT) != 0, by_token = (flags & BY_TOKEN) != 0;
  u32 kv_head = head - heads - (is_v ? kv_heads : 0), page = slot >> page_shift, place = slot & ((1u << page_shift) - 1);
  u32 k_row = k8 ? dims : 2 * dims, v_row = v8 ? dims : 2 * dims, plane = kv_heads << page_shift;
  u8* tiles = pages + (u64)page * ((u64)plane * (k_row + v_row)) + (is_v ? (u64)plane * k_row : 0);
  u32 row = is_v ? v_row : k_row, in_head = (kv_head << page_shift) + place;
  u8* exponent = exponents + (u64)page * (plane * ((u32)k8 + (u32)v8)) + (is_v && k8 ? plane : 0) + in_head;
  put(x, half, tiles + (u64)in_head * row, exponent, is_v ? v8 : k8, (flags & (is_v ? V_E5M2 : K_E5M2)) != 0, by_token,
      (is_v ? v_scales : k_scales) + kv_head, counts ? counts + 6 * kv_head + (is_v ? 3 : 0) : nullptr);
}
