//! The loops themselves, written once over sixteen lanes `V` and compiled in each instruction set's module.
//!
//! The module provides `V`, `zero`, `load::<CODE>`, `load_f32`, `store`, `fma` and `fetch`. The table says, for each number of
//! rows, how many vectors fit in the registers: groups at a time for `scores`, then vectors of dims for `mix`, in two
//! sizes before single ones.

/// Formats as const parameters.
pub(super) const F32: u8 = 0;
/// See [`F32`].
pub(super) const BF16: u8 = 1;
/// See [`F32`].
pub(super) const E4M3: u8 = 2;
/// See [`F32`].
pub(super) const E5M2: u8 = 3;
/// Bytes of an element of each.
pub(super) const CODE_BYTES: [usize; 4] = [4, 2, 1, 1];

macro_rules! kernels {
    (#[$attr:meta], $($rows:literal: $groups:literal, $wide:literal, $narrow:literal;)*) => {
        /// See `super::scores`.
        ///
        /// # Safety
        /// What `super::scores` asserts holds, and the machine has the instruction set.
        #[$attr]
        pub(super) unsafe fn scores(
            rows: usize,
            queries: &[f32],
            keys: &Source<'_>,
            groups: usize,
            out: &mut [f32],
            width: usize,
        ) {
            match (keys.dtype, rows) {
                $(
                    // SAFETY: passed on from the caller.
                    (DType::F32, $rows) => unsafe {
                        scores_rows::<F32, $rows, $groups>(queries, keys, groups, out, width);
                    },
                    // SAFETY: passed on from the caller.
                    (DType::Bf16, $rows) => unsafe {
                        scores_rows::<BF16, $rows, $groups>(queries, keys, groups, out, width);
                    },
                    // SAFETY: passed on from the caller.
                    (DType::E4m3, $rows) => unsafe {
                        scores_rows::<E4M3, $rows, $groups>(queries, keys, groups, out, width);
                    },
                    // SAFETY: passed on from the caller.
                    (DType::E5m2, $rows) => unsafe {
                        scores_rows::<E5M2, $rows, $groups>(queries, keys, groups, out, width);
                    },
                )*
                _ => unreachable!("formats and rows were checked"),
            }
        }

        /// `G` groups at a time, then one by one.
        ///
        /// # Safety
        /// As `scores`; `rows` is `R`.
        #[$attr]
        unsafe fn scores_rows<const CODE: u8, const R: usize, const G: usize>(
            queries: &[f32],
            keys: &Source<'_>,
            groups: usize,
            out: &mut [f32],
            width: usize,
        ) {
            let (queries, _) = queries.as_chunks::<R>();
            let bytes = keys.bytes.as_ptr();
            let mut g = 0;
            while g + G <= groups {
                let starts = std::array::from_fn(|i| bytes.wrapping_add(keys.starts[g + i]));
                let ahead = std::array::from_fn(|i| bytes.wrapping_add(keys.ahead.starts[g + i]));
                // SAFETY: passed on from the caller.
                unsafe { scores_tile::<CODE, R, G>(queries, keys, starts, ahead, &mut out[g * 16..], width) };
                g += G;
            }
            while g < groups {
                let starts = [bytes.wrapping_add(keys.starts[g])];
                let ahead = [bytes.wrapping_add(keys.ahead.starts[g])];
                // SAFETY: passed on from the caller.
                unsafe { scores_tile::<CODE, R, 1>(queries, keys, starts, ahead, &mut out[g * 16..], width) };
                g += 1;
            }
        }

        /// # Safety
        /// A line of 16 keys for every query element follows each start; `out` has `R` rows of `width`.
        #[$attr]
        unsafe fn scores_tile<const CODE: u8, const R: usize, const G: usize>(
            queries: &[[f32; R]],
            keys: &Source<'_>,
            mut at: [*const u8; G],
            mut ahead: [*const u8; G],
            out: &mut [f32],
            width: usize,
        ) {
            let mut sums = [[zero(); G]; R];
            // A share has a cache line for each byte of an element and four dims.
            for queries in queries.chunks(4) {
                for g in 0..G {
                    for _ in 0..keys.ahead.size {
                        fetch(ahead[g]);
                        ahead[g] = ahead[g].wrapping_add(64);
                    }
                }
                for q in queries {
                    for g in 0..G {
                        // SAFETY: the caller says that this line of keys is there.
                        let k = unsafe { load::<CODE>(at[g]) };
                        at[g] = at[g].wrapping_add(keys.stride);
                        for r in 0..R {
                            sums[r][g] = fma(q[r], k, sums[r][g]);
                        }
                    }
                }
            }
            let out = out.as_mut_ptr();
            for r in 0..R {
                for g in 0..G {
                    // SAFETY: the caller says that `out` has room.
                    unsafe { store(out.wrapping_add(r * width + g * 16), sums[r][g]) };
                }
            }
        }

        /// See `super::mix`.
        ///
        /// # Safety
        /// What `super::mix` asserts holds, and the machine has the instruction set.
        #[$attr]
        pub(super) unsafe fn mix<const ROW: usize, const KEY: usize>(
            rows: usize,
            weights: &[f32],
            values: &Source<'_>,
            keys: Range<usize>,
            vectors: usize,
            sums: &mut [f32],
            pitch: usize,
        ) {
            match (values.dtype, rows) {
                $(
                    // SAFETY: passed on from the caller.
                    (DType::F32, $rows) => unsafe {
                        mix_rows::<F32, $rows, ROW, KEY, $wide, $narrow>(weights, values, keys, vectors, sums, pitch);
                    },
                    // SAFETY: passed on from the caller.
                    (DType::Bf16, $rows) => unsafe {
                        mix_rows::<BF16, $rows, ROW, KEY, $wide, $narrow>(weights, values, keys, vectors, sums, pitch);
                    },
                    // SAFETY: passed on from the caller.
                    (DType::E4m3, $rows) => unsafe {
                        mix_rows::<E4M3, $rows, ROW, KEY, $wide, $narrow>(weights, values, keys, vectors, sums, pitch);
                    },
                    // SAFETY: passed on from the caller.
                    (DType::E5m2, $rows) => unsafe {
                        mix_rows::<E5M2, $rows, ROW, KEY, $wide, $narrow>(weights, values, keys, vectors, sums, pitch);
                    },
                )*
                _ => unreachable!("formats and rows were checked"),
            }
        }

        /// `WIDE` vectors of dims at a time, then `NARROW`, then one by one.
        ///
        /// # Safety
        /// As `mix`; `rows` is `R`.
        #[$attr]
        unsafe fn mix_rows<
            const CODE: u8,
            const R: usize,
            const ROW: usize,
            const KEY: usize,
            const WIDE: usize,
            const NARROW: usize,
        >(
            weights: &[f32],
            values: &Source<'_>,
            keys: Range<usize>,
            vectors: usize,
            sums: &mut [f32],
            pitch: usize,
        ) {
            let mut v = 0;
            while v + WIDE <= vectors {
                // SAFETY: passed on from the caller.
                unsafe { mix_tile::<CODE, R, WIDE, ROW, KEY>(weights, values, keys.clone(), v, sums, pitch) };
                v += WIDE;
            }
            while v + NARROW <= vectors {
                // SAFETY: passed on from the caller.
                unsafe { mix_tile::<CODE, R, NARROW, ROW, KEY>(weights, values, keys.clone(), v, sums, pitch) };
                v += NARROW;
            }
            while v < vectors {
                // SAFETY: passed on from the caller.
                unsafe { mix_tile::<CODE, R, 1, ROW, KEY>(weights, values, keys.clone(), v, sums, pitch) };
                v += 1;
            }
        }

        /// Vectors `first..first + N` of the dims.
        ///
        /// # Safety
        /// As `mix`.
        #[$attr]
        unsafe fn mix_tile<const CODE: u8, const R: usize, const N: usize, const ROW: usize, const KEY: usize>(
            weights: &[f32],
            values: &Source<'_>,
            keys: Range<usize>,
            first: usize,
            sums: &mut [f32],
            pitch: usize,
        ) {
            let sums = sums.as_mut_ptr().wrapping_add(first * 16);
            let mut acc = [[zero(); N]; R];
            for r in 0..R {
                for n in 0..N {
                    // SAFETY: the caller says that `sums` has these rows and vectors.
                    acc[r][n] = unsafe { load_f32(sums.wrapping_add(r * pitch + n * 16)) };
                }
            }
            let (stride, step) = (values.stride, values.step);
            let bytes = values.bytes.as_ptr().wrapping_add(first * step);
            // One key's part of a share, for the first of the vectors that pass over the keys.
            let part = if first == 0 { values.stride / CODE_BYTES[CODE as usize] * values.ahead.size } else { 0 };
            let mut key = keys.start;
            let mut weight = weights.as_ptr().wrapping_add(key * KEY);
            while key < keys.end {
                let stop = keys.end.min((key / 16 + 1) * 16);
                let mut at = bytes.wrapping_add(values.starts[key / 16] + key % 16 * stride);
                let mut ahead = values.bytes.as_ptr().wrapping_add(values.ahead.starts[key / 16] + key % 16 * part);
                while key < stop {
                    for line in 0..part.div_ceil(64) {
                        fetch(ahead.wrapping_add(line * 64));
                    }
                    ahead = ahead.wrapping_add(part);
                    let mut w = [0.0_f32; R];
                    for r in 0..R {
                        // SAFETY: the caller says that each row has a weight for every key.
                        w[r] = unsafe { weight.wrapping_add(r * ROW).read() };
                    }
                    for n in 0..N {
                        // SAFETY: the caller says that this key's value is there.
                        let x = unsafe { load::<CODE>(at.wrapping_add(n * step)) };
                        for r in 0..R {
                            acc[r][n] = fma(w[r], x, acc[r][n]);
                        }
                    }
                    at = at.wrapping_add(stride);
                    weight = weight.wrapping_add(KEY);
                    key += 1;
                }
            }
            for r in 0..R {
                for n in 0..N {
                    // SAFETY: as for the loads of the same rows and vectors.
                    unsafe { store(sums.wrapping_add(r * pitch + n * 16), acc[r][n]) };
                }
            }
        }
    };
}
pub(super) use kernels;
