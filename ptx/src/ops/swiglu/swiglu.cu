// swiglu_{f32,bf16}: y = (gate * sigmoid(gate)) * up                                        ptx/src/ops/swiglu/swiglu.cu
// shapes:   gate_up: [rows, stride] f32, gate in columns 0..ffn, up in ffn..2 ffn; y: [rows, ffn]
// launch:   grid (rows, ceil(items / 128)), 128 threads; an item is 4 columns, or one of those left over
// requires: y apart from gate_up; vectors = ffn / 4 where rows are 16-byte aligned, else 0; checked in cuda.rs
// bytes:    8 read and 4 or 2 written per element; bound by memory
// accuracy: elementwise, the CPU's bits; bf16 is that rounded once more
#include "math.cuh"

DEV f32 swiglu(f32 gate, f32 up) { return gate * sigmoid(gate) * up; }

template <bool BF16> DEV void forward(const f32* __restrict__ gate_up, void* y, u32 ffn, u32 stride, u32 vectors) {
  u64 row = block_x();
  u32 item = block_y() * 128 + thread_x();
  const f32* gate = gate_up + row * stride;
  const f32* up = gate + ffn;
  if (item < vectors) {
    f32x4 g = ((const f32x4*)gate)[item];
    f32x4 u = ((const f32x4*)up)[item];
    f32x4 v = {swiglu(g.x, u.x), swiglu(g.y, u.y), swiglu(g.z, u.z), swiglu(g.w, u.w)};
    if (BF16) {
      ((u32x2*)((u16*)y + row * ffn))[item] = u32x2{to_bf16x2(v.x, v.y), to_bf16x2(v.z, v.w)};
    } else {
      ((f32x4*)((f32*)y + row * ffn))[item] = v;
    }
    return;
  }
  u32 column = item + 3 * vectors;
  if (column >= ffn) return;
  f32 v = swiglu(gate[column], up[column]);
  if (BF16) {
    ((u16*)y)[row * ffn + column] = to_bf16(v);
  } else {
    ((f32*)y)[row * ffn + column] = v;
  }
}

KERNEL BOUNDS(128, 8) swiglu_f32(const f32* __restrict__ gate_up, f32* y, u32 ffn, u32 stride, u32 vectors) {
  forward<false>(gate_up, y, ffn, stride, vectors);
}
KERNEL BOUNDS(128, 8) swiglu_bf16(const f32* __restrict__ gate_up, u16* y, u32 ffn, u32 stride, u32 vectors) {
  forward<true>(gate_up, y, ffn, stride, vectors);
}
