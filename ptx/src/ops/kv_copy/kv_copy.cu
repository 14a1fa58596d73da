// kv_copy: whole pages over others, in every layer.                                          ptx/src/ops/kv_copy/kv_copy.cu
//
//   layers: [layers][4] u64: address of the tiles, bytes of a page's tiles, address of the exponents, bytes of a page's
//   pairs: [pairs][2]: from and to; a pair of equal pages is none
//
// launch:   grid (pairs, layers), 256 threads
// requires: tiles 16-byte aligned; no page that is written is read or written by another pair; checked in cuda.rs
// bytes:    2 of each byte of a page; bound by memory
// accuracy: exact
#include "gpu.cuh"

template <typename T> using Global = __attribute__((address_space(1))) T; // what an address from memory points to

KERNEL BOUNDS(256, 4) kv_copy(const u64* __restrict__ layers, const u32* __restrict__ pairs) {
  const u64* layer = layers + 4 * block_y();
  u32 from = pairs[2 * block_x()], to = pairs[2 * block_x() + 1];
  if (from == to) return;
  u64 tiles = layer[0], bytes = layer[1], source = tiles + from * bytes, target = tiles + to * bytes;
#pragma unroll 4
  for (u64 i = 16 * thread_x(); i < bytes; i += 16 * 256) *(Global<u32x4>*)(target + i) = *(const Global<u32x4>*)(source + i);
  Global<u8>* exponents = (Global<u8>*)layer[2];
  u64 count = layer[3];
  NO_UNROLL for (u64 i = thread_x(); i < count; i += 256) exponents[to * count + i] = exponents[from * count + i];
}
