use super::cases::{CASES, Case};
use super::*;
use crate::ops::twins::{assert_close, assert_same_bits, devices, normals, widen};
use crate::rng::{Purpose, Stream};

fn ids(case: &Case) -> Vec<u32> {
    let mut stream = Stream::new(5, Purpose::Test, 0);
    (0..case.tokens).map(|_| stream.below(case.vocab)).collect()
}

#[test]
fn rows_are_those_looked_up() {
    for case in CASES {
        let (ids, hidden) = (ids(case), case.hidden);
        let table = normals(1, case.vocab as usize * hidden);
        let want: Vec<f32> =
            ids.iter().flat_map(|&id| table[id as usize * hidden..][..hidden].iter().copied()).collect();
        for cpu in devices() {
            let mut out = vec![f32::NAN; want.len()];
            let lookup = |id: u32, row: &mut [f32]| row.copy_from_slice(&table[id as usize * hidden..][..hidden]);
            forward(&cpu, lookup, hidden, &ids, &mut out);
            assert_same_bits(&format!("{case:?} on {cpu}"), &out, &want);
        }
    }
}

#[test]
fn gradients_meet_the_truth_with_the_same_bits_everywhere() {
    for case in CASES {
        let (ids, hidden) = (ids(case), case.hidden);
        let (dy, start) = (normals(2, case.tokens * hidden), normals(3, case.vocab as usize * hidden));
        let mut truth = widen(&start);
        naive::backward(hidden, &ids, &widen(&dy), &mut truth);
        // The contract in f32: tokens ascending.
        let mut want = start.clone();
        for (t, &id) in ids.iter().enumerate() {
            (0..hidden).for_each(|j| want[id as usize * hidden + j] += dy[t * hidden + j]);
        }
        for cpu in devices() {
            let mut got = start.clone();
            backward(&cpu, hidden, &ids, &dy, &mut got);
            assert_same_bits(&format!("{case:?} on {cpu}"), &got, &want);
            // At most `tokens` additions, of partial sums that stay below 6 (1 + tokens).
            #[allow(clippy::cast_precision_loss)]
            let bound = case.tokens as f64 * 6.0 * (1.0 + case.tokens as f64) * f64::from(f32::EPSILON) / 2.0 + 1e-44;
            assert_close(&format!("{case:?} on {cpu}"), &got, &truth, |_| bound);
        }
    }
}

#[test]
#[should_panic(expected = "token 1 has id 3; the table has 3 rows")]
fn an_id_beyond_the_table_is_refused() {
    backward(&Cpu::new(1), 2, &[0, 3], &[0.0; 4], &mut [0.0; 6]);
}
