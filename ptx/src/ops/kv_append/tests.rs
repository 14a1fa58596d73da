use super::cases::CASES;
use super::{forward, naive};
use crate::kv_tile::{KvPagesMut, Span};
use crate::rng::{Purpose, Stream};
use crate::{Cpu, Isa};

/// Exact codes in exactly the right bytes: the whole arena is compared, so that a stray write shows.
#[test]
fn writes_the_codes_of_the_naive_loop_and_nothing_else() {
    for (index, case) in CASES.iter().enumerate() {
        let shape = case.pages;
        let mut stream = Stream::new(11, Purpose::Test, index as u64);
        let rows: usize = case.spans.iter().map(|s| s.1).sum();
        let width = shape.kv_heads * shape.head_dim;
        let mut draw = || -> Vec<f32> { (0..rows * width).map(|_| stream.normal() * 100.0).collect() };
        let (mut k, v) = (draw(), draw());
        k[0] = f32::NAN;
        k[width - 1] = -0.0;
        let scales: Vec<f32> = (0..shape.kv_heads).map(|h| [0.25, 2.0, 1.0][h % 3]).collect();
        // Pages in descending order, so that neighbours in the sequence are not neighbours in memory.
        let need: Vec<u32> = case
            .spans
            .iter()
            .map(|&(first, rows)| u32::try_from((first + rows).div_ceil(shape.page_len)).unwrap())
            .collect();
        let mut next: u32 = need.iter().sum();
        let bytes = vec![0xa5_u8; next as usize * shape.page_bytes()];
        let tables: Vec<Vec<u32>> = need
            .iter()
            .map(|&n| {
                next -= n;
                (next..next + n).rev().collect()
            })
            .collect();
        let mut row = 0;
        let spans: Vec<Span<'_>> = case
            .spans
            .iter()
            .zip(&tables)
            .map(|(&(first_position, row_count), block_table)| {
                row += row_count;
                Span { first_row: row - row_count, row_count, first_position, block_table }
            })
            .collect();
        let mut want = bytes.clone();
        naive::forward(
            &mut KvPagesMut { shape, bytes: &mut want, k_scales: &scales, v_scales: &scales },
            &spans,
            &k,
            &v,
        );
        assert!(want != bytes);
        for isa in Isa::available() {
            for threads in [1, 2, 3] {
                let mut got = bytes.clone();
                let mut pages = KvPagesMut { shape, bytes: &mut got, k_scales: &scales, v_scales: &scales };
                forward(&Cpu::with_isa(threads, isa), &mut pages, &spans, &k, &v);
                if let Some(at) = (0..want.len()).find(|&i| want[i] != got[i]) {
                    panic!(
                        "{case:?}, {}, {threads} threads: byte {at} is {:#x}, want {:#x}",
                        isa.name(),
                        got[at],
                        want[at]
                    );
                }
            }
        }
    }
}
