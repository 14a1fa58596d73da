//! On a CUDA device: the bits of the CPU's norm, rotation and kv_append, in queries, pages and counts.

use crate::Cpu;
use crate::DType;
use crate::conformance::Outcome;
use crate::conformance::data::normals;
use crate::conformance::guarded::Guarded;
use crate::conformance::report::Case;
use crate::cuda::{CudaError, Gpu, Pages};
use crate::kv_tile::{KvCounts, KvPagesMut, KvScale, KvShape, Span};
use crate::ops::{rmsnorm, rope};

use super::cuda::{COUNTS, NO_SLOT, Step, counts, forward};

/// Query heads, pages, whether queries and keys are normed.
type Row = (usize, KvShape, bool);

const fn pages(kv_heads: usize, head_dim: usize, page_len: usize, k: DType, v: DType, scale: KvScale) -> KvShape {
    KvShape { kv_heads, head_dim, page_len, k, v, scale }
}

use DType::{Bf16, E4m3, E5m2};
use KvScale::{Static, Token};

const CASES: &[Row] = &[
    (2, pages(2, 16, 4, Bf16, Bf16, Static), true),
    (3, pages(1, 32, 16, E4m3, E4m3, Static), false),
    (4, pages(2, 64, 1, E5m2, Bf16, Static), true),
    (4, pages(2, 96, 8, E4m3, E5m2, Token), true),
    (8, pages(2, 128, 16, E4m3, E4m3, Token), true),
    (2, pages(2, 128, 256, Bf16, E4m3, Token), false),
    (7, pages(1, 64, 16, E5m2, E5m2, Token), false),
    // Every format at wide heads: each element of a lane has code of its own.
    (2, pages(1, 128, 4, E5m2, E4m3, Static), false),
    (2, pages(1, 128, 4, E4m3, E5m2, Static), true),
    (1, pages(1, 128, 4, E5m2, Bf16, Token), false),
    (2, pages(2, 96, 4, E4m3, Bf16, Static), true),
];

const TOKENS: usize = 21;
/// The batch is filled up with tokens that go nowhere.
const FILL: usize = 2;
const EPS: f32 = 1e-6;

pub(crate) fn conform(gpu: &Gpu, each: &mut dyn FnMut(Outcome)) -> Result<(), CudaError> {
    for &(heads, shape, normed) in CASES {
        let name = format!("{heads} heads, {shape:?}, {}", if normed { "normed" } else { "as they are" });
        let mut case = Case::new("kv_append", name, each);
        check(gpu, heads, shape, normed, &mut case)?;
        case.end();
    }
    Ok(())
}

#[allow(clippy::cast_precision_loss)] // small numbers
fn check(gpu: &Gpu, heads: usize, shape: KvShape, normed: bool, case: &mut Case<'_>) -> Result<(), CudaError> {
    let cpu = Cpu::new(1);
    let (kv_heads, dims, half, rows) = (shape.kv_heads, shape.head_dim, shape.head_dim / 2, TOKENS + FILL);
    let (width, stride) = ((heads + 2 * kv_heads) * dims, (heads + 2 * kv_heads) * dims + 5);
    let mut qkv = normals(1, rows * stride);
    // Edges of the formats: rows of zeros, tiny and huge rows, single elements that saturate, underflow or are not finite.
    let edges = [0.0, -0.0, 1e-42, 1e-12, 470.0, -1e9, 61_440.0, f32::MAX, f32::INFINITY, f32::NAN, -464.0, 9e-4];
    // Both sides of what still counts as saturated and as lost, in e4m3 and in e5m2, at each head's scale: at every place.
    let borders: Vec<f32> = [464.0_f32, 61_440.0, 1.0 / 1024.0, 1.0 / 131_072.0]
        .into_iter()
        .flat_map(|border| [border, border.next_up(), border.next_down()])
        .flat_map(|border| [border, border / 64.0])
        .collect();
    for token in 0..TOKENS {
        let row = &mut qkv[token * stride..][..width];
        match token % 8 {
            1 => row.fill(0.0),
            2 => row.iter_mut().for_each(|x| *x *= 1e-36),
            3 => row.iter_mut().for_each(|x| *x *= 1e30),
            4 => row.iter_mut().enumerate().for_each(|(i, x)| *x = edges[(i + token) % edges.len()]),
            5 => row.iter_mut().for_each(|x| *x *= 1e-3),
            // The largest is a power of two times each format's largest: by token the scale is that power and no more.
            7 => row.iter_mut().enumerate().for_each(|(i, x)| *x = [56.0, -28.0, 7.0][i % 3]),
            6 => row.iter_mut().enumerate().for_each(|(i, x)| *x = borders[(i + i / 64 + token) % borders.len()]),
            _ => {}
        }
    }
    let gain: Vec<f32> = normals(2, dims).iter().map(|g| 1.0 + 0.1 * g).collect();
    let positions: Vec<u32> = (0..rows).map(|i| u32::try_from(3 * i).expect("few rows")).collect();
    let inv_freq: Vec<f32> = (0..half).map(|i| 10_000.0_f32.powf(-(i as f32) / half as f32)).collect();
    let (mut cos, mut sin) = (vec![0.0; rows * half], vec![0.0; rows * half]);
    rope::tables(&cpu, &positions, &inv_freq, 1.0, &mut cos, &mut sin);

    let pages = TOKENS.div_ceil(shape.page_len) + 3;
    let table: Vec<u32> = (0..u32::try_from(pages).expect("few pages")).rev().collect();
    const FIRST: usize = 2; // the first token's position
    let slots: Vec<u32> = (0..rows)
        .map(|i| {
            let (page, at) = ((FIRST + i) / shape.page_len, (FIRST + i) % shape.page_len);
            let slot = table[page.min(pages - 1)] as usize * shape.page_len + at;
            if i < TOKENS { u32::try_from(slot).expect("few slots") } else { NO_SLOT }
        })
        .collect();
    let scales: Vec<f32> = (0..kv_heads).map(|h| [1.0 / 64.0, 1.0][h % 2]).collect();

    // The CPU, step by step.
    let part = |from: usize, len: usize| -> Vec<f32> {
        (0..rows).flat_map(|row| qkv[row * stride + from * dims..][..len * dims].to_vec()).collect()
    };
    let (mut q, mut k, v) = (part(0, heads), part(heads, kv_heads), part(heads + kv_heads, kv_heads));
    for (x, count) in [(&mut q, heads), (&mut k, kv_heads)] {
        if normed {
            rmsnorm::forward_in_place(&cpu, dims, x, &gain, EPS, None);
        }
        rope::forward(&cpu, count, dims, x, &cos, &sin);
    }
    let mut bytes = vec![0xff; pages * shape.page_bytes()];
    let mut lost = vec![KvCounts::default(); kv_heads];
    let span = Span { first_row: 0, row_count: TOKENS, first_position: FIRST, block_table: &table };
    let on_pages = Guarded::of(gpu, &Pages::from_cpu(&shape, &bytes))?;
    let mut write =
        KvPagesMut { shape, bytes: &mut bytes, k_scales: &scales, v_scales: &scales, counts: Some(&mut lost) };
    super::forward(&cpu, &mut write, &[span], &k, &v);

    let on_scales = gpu.upload(&scales)?;
    let device_pages = Pages::new(shape, on_pages.view(), Some(on_scales.view()), Some(on_scales.view()));
    let (on_gain, on_cos, on_sin) = (gpu.upload(&gain)?, gpu.upload(&cos)?, gpu.upload(&sin)?);
    let (on_qkv, on_slots) = (gpu.upload(&qkv)?, gpu.upload(&slots)?);
    let on_q = Guarded::<f32>::new(gpu, q.len())?;
    let on_counts = Guarded::of(gpu, &vec![0_u64; COUNTS * kv_heads])?;
    let step = Step {
        heads,
        slots: on_slots.view(),
        cos: on_cos.view(),
        sin: on_sin.view(),
        q_gain: normed.then(|| on_gain.view()),
        k_gain: normed.then(|| on_gain.view()),
        eps: EPS,
        counts: Some(on_counts.view()),
    };
    forward(gpu, rows, &step, &device_pages, on_qkv.view(), stride, on_q.view())?;

    let (got, guards) = on_q.take(gpu)?;
    case.fail("q", guards);
    case.same_bits("q", &got, &q);
    let (got, guards) = on_pages.take(gpu)?;
    case.fail("pages", guards);
    let got = Pages::to_cpu(&shape, &got);
    let wrong = (0..got.len()).find(|&i| got[i] != bytes[i] && !both_nan(&shape, &got, &bytes, i));
    case.fail("pages", wrong.map(|i| format!("byte {i} is {:#04x}, want {:#04x}", got[i], bytes[i])));
    let (got, guards) = on_counts.take(gpu)?;
    case.fail("counts", guards);
    case.equal("counts", &counts(&got), &lost);
    Ok(())
}

/// Whether byte `i` is part of a NaN in both: which NaN arithmetic gives, no device promises.
fn both_nan(shape: &KvShape, got: &[u8], want: &[u8], i: usize) -> bool {
    let within = i % shape.page_bytes();
    let keys = shape.kv_heads * shape.tile_bytes(shape.k);
    if within >= shape.tiles_bytes() {
        return false;
    }
    let dtype = if within < keys { shape.k } else { shape.v };
    let nan = |bytes: &[u8]| match dtype {
        DType::Bf16 => crate::dtype::bf16_to_f32(u16::from_le_bytes([bytes[i & !1], bytes[i | 1]])).is_nan(),
        DType::E4m3 => bytes[i] & 0x7f == 0x7f,
        _ => bytes[i] & 0x7f > 0x7c,
    };
    nan(got) && nan(want)
}
