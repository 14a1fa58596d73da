//! Packing: values, scales, pieces, bytes, and what is refused.

use super::*;

#[test]
fn packing_in_pieces_gives_the_same_matrix() {
    let cpu = Cpu::new(2);
    for (n, k) in [(1, 1), (31, 33), (33, 100), (100, 31), (70, 576), (257, 129), (300, 260)] {
        let source = weights(n, k);
        let halves: Vec<u16> = source.iter().map(|&w| dtype::bf16_from_f32(w)).collect();
        let widened: Vec<f32> = halves.iter().map(|&h| dtype::bf16_to_f32(h)).collect();
        for format in FORMATS {
            let whole = pack(&cpu, format, n, k, &source);
            for isa in Isa::available() {
                let mut pieces = pack(&cpu, format, n, k, &normal(9, n * k)); // to be overwritten
                if format == FORMATS[2] {
                    pieces.set_amax(amax(&cpu, &source));
                }
                let mut at = n;
                for r in [5, 1, 40, 3, 33, 7, 64].into_iter().cycle() {
                    // From the end; by block in whole blocks, all of 128 rows but for the last.
                    let r: usize = if format == FORMATS[4] { (at - 1) % 128 + 1 } else { at.min(r) };
                    at -= r;
                    pieces.set_rows(&Cpu::with_isa(2, isa), at, &source[at * k..(at + r) * k]);
                    if at == 0 {
                        break;
                    }
                }
                assert!(bits(&rows(&pieces)) == bits(&rows(&whole)), "{format:?} [{n}, {k}] in pieces");
                assert_eq!(pieces.scales(), whole.scales());
                let x = normal(10, k);
                assert!(bits(&run(&cpu, 1, &x, &pieces, None)) == bits(&run(&cpu, 1, &x, &whole, None)));
            }
            let from_f32 = pack(&cpu, format, n, k, &widened);
            let mut from_half = Packed::new(format.0, format.1, n, k);
            if format == FORMATS[2] {
                from_half.set_amax(amax(&cpu, &widened));
            }
            from_half.set_rows_bf16(&cpu, 0, &halves);
            assert!(bits(&rows(&from_half)) == bits(&rows(&from_f32)), "{format:?} [{n}, {k}] from bf16");
        }
    }
}

#[test]
fn rows_are_the_rounded_source() {
    for (n, k) in [(37, 90), (257, 300), (128, 128)] {
        let source = weights(n, k);
        for format in FORMATS {
            let w = packed(format, n, k);
            let scales = scales(format, n, k, &source);
            for (i, got) in rows(&w).iter().enumerate() {
                let want = code(format, source[i], scales[i]) * scales[i];
                assert_eq!(got.to_bits(), want.to_bits(), "{format:?}, row {} input {}", i / k, i % k);
            }
            let held: Vec<f32> = match w.granularity() {
                None => Vec::new(),
                Some(WeightScale::Tensor) => vec![scales[0]],
                Some(WeightScale::Channel) => scales.iter().copied().step_by(k).collect(),
                Some(WeightScale::Block128) => (0..n)
                    .step_by(128)
                    .flat_map(|o| (0..k).step_by(128).map(move |j| o * k + j))
                    .map(|i| scales[i])
                    .collect(),
            };
            assert_eq!(w.scales().unwrap_or_default(), held, "{format:?}");
        }
    }
}

#[test]
fn the_largest_magnitude_is_found_and_what_is_not_finite_comes_out_on_top() {
    for len in [0, 1, 127, 1000, 70_001] {
        let mut x = normal(24, len);
        let want = x.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
        for cpu in devices() {
            assert_eq!(amax(&cpu, &x), want, "{len} on {cpu}");
        }
        for (at, bad) in [(0, f32::NEG_INFINITY), (len / 2, -f32::NAN)] {
            if let Some(x) = x.get_mut(at) {
                *x = bad;
                for cpu in devices() {
                    let got = amax(&cpu, &[f32::MAX, *x]);
                    assert!(got.to_bits() == bad.abs().to_bits(), "{got} of {bad} on {cpu}");
                }
            }
        }
        let top = amax(&Cpu::new(2), &x);
        assert!(if len > 1 { top.is_nan() } else { !top.is_finite() || len == 0 }, "{top} of {len}");
    }
    assert!(larger(1.0, 2.0) == 2.0 && larger(2.0, 1.0) == 2.0);
    assert!(larger(f32::NAN, 1.0).is_nan() && larger(f32::INFINITY, f32::NAN).is_nan());
}

#[test]
fn bytes_count_codes_padding_and_scales() {
    let cases = [64 * 100 * 4, 64 * 100 * 2, 64 * 100 + 4, 64 * 100 + 64 * 4, 64 * 100 + 4];
    for ((dtype, scale), bytes) in FORMATS.into_iter().zip(cases) {
        assert_eq!(Packed::new(dtype, scale, 33, 100).bytes(), bytes, "{dtype} {scale:?}");
    }
    assert_eq!(Packed::new(DType::Bf16, WeightScale::Channel, 1024, 4096).bytes(), 8 << 20, "mapped memory");
    let by_block = Packed::new(DType::E4m3, WeightScale::Block128, 1025, 4095);
    assert_eq!(by_block.bytes(), 1056 * 4095 + 32 + 9 * 32 * 4, "whole lines, and 9 by 32 blocks");
}

#[test]
fn bytes_are_known_before_a_matrix_is_made() {
    for (dtype, scale) in FORMATS {
        for n in [1, 31, 32, 33, 127, 128, 129, 576, 4097] {
            for k in [1, 3, 127, 128, 129, 576, 4864] {
                let want = Packed::new(dtype, scale, n, k).bytes();
                assert_eq!(Packed::bytes_for(dtype, scale, n, k), want, "{dtype} {scale:?} [{n}, {k}]");
            }
        }
    }
}

#[test]
#[should_panic(expected = "rows 128+3 are not whole blocks of 128 rows")]
fn a_part_of_a_block_is_refused() {
    Packed::new(DType::E4m3, WeightScale::Block128, 140, 5).set_rows(&Cpu::new(1), 128, &[0.0; 15]);
}

#[test]
#[should_panic(expected = "set_amax comes before set_rows")]
fn one_scale_for_all_needs_the_largest_magnitude_first() {
    Packed::new(DType::E4m3, WeightScale::Tensor, 3, 5).set_rows(&Cpu::new(1), 0, &[0.0; 15]);
}

#[test]
#[should_panic(expected = "a magnitude of 3 in rows 1+1, where set_amax was told 2.5")]
fn a_magnitude_beyond_the_one_told_is_refused() {
    let mut w = Packed::new(DType::E4m3, WeightScale::Tensor, 3, 2);
    w.set_amax(2.5);
    w.set_rows(&Cpu::new(1), 0, &[2.5, -2.5]);
    w.set_rows(&Cpu::new(1), 1, &[1.0, -3.0]);
}

#[test]
#[should_panic(expected = "has no scale for the whole matrix")]
fn only_one_scale_for_all_takes_a_largest_magnitude() {
    Packed::new(DType::E4m3, WeightScale::Channel, 3, 2).set_amax(1.0);
}
