// Kernels of the tests of the host layer.                                                    ptx/tests/device/device.cu
//
// Compiled as the ops' are: `cargo xtask ptx` has the command.
#include "gpu.cuh"

// y[i] = a x[i] + y[i], rounded once.    x, y: [n] f32    launch: one thread per element, 128 per block
KERNEL BOUNDS(128, 1) axpy(f32* y, const f32* x, f32 a, u32 n) {
  u32 i = block_x() * 128 + thread_x();
  if (i < n) y[i] = __builtin_fmaf(a, x[i], y[i]);
}

// Every argument as the device received it, as bits.    out: [4] u64    launch: one thread
KERNEL BOUNDS(32, 1) arguments(u64* out, u32 a, u64 b, f32 c) {
  out[0] = (u64)out;
  out[1] = a;
  out[2] = b;
  out[3] = bits(c);
}

// out[t] = word t of dynamic shared memory from the other end, which thread words - 1 - t wrote.
// out: [words] u32    launch: 256 threads of one block, words 4-byte words of shared memory
KERNEL BOUNDS(256, 1) reverse_shared(u32* out, u32 words) {
  u32* shared = (u32*)smem;
  for (u32 i = thread_x(); i < words; i += 256) shared[i] = i * 2654435761u;
  sync_block();
  for (u32 i = thread_x(); i < words; i += 256) out[i] = shared[words - 1 - i];
}

// Reads element n of n.    launch: one thread
KERNEL BOUNDS(32, 1) one_too_far(u32* x, u32 n) { x[0] = x[n]; }
