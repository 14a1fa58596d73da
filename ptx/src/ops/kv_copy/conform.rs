//! On a CUDA device: pages that were named are copies, bytes and exponents alike, and nothing else changes.

use crate::DType;
use crate::conformance::Outcome;
use crate::conformance::guarded::Guarded;
use crate::conformance::report::Case;
use crate::cuda::{CudaError, Gpu, Pages};
use crate::kv_tile::{KvScale, KvShape};

use super::cuda::{Layers, forward};

pub(crate) fn conform(gpu: &Gpu, each: &mut dyn FnMut(Outcome)) -> Result<(), CudaError> {
    let shape = |kv_heads, head_dim, page_len, k, v, scale| KvShape { kv_heads, head_dim, page_len, k, v, scale };
    let layers = [
        shape(2, 64, 16, DType::Bf16, DType::Bf16, KvScale::Static),
        shape(2, 64, 16, DType::E4m3, DType::E5m2, KvScale::Token),
        shape(1, 16, 1, DType::E4m3, DType::Bf16, KvScale::Token),
        shape(3, 96, 4, DType::E5m2, DType::E4m3, KvScale::Static),
        // Pages of several rounds of a block, exponents too; the last round of tiles is not whole.
        shape(5, 96, 64, DType::Bf16, DType::E4m3, KvScale::Token),
    ];
    const COUNT: usize = 7;
    let pairs: [(u32, u32); 4] = [(3, 0), (6, 5), (2, 2), (3, 1)];
    let mut case = Case::new("kv_copy", format!("{pairs:?} of {COUNT} pages in {} layers", layers.len()), each);
    let mut buffers = Vec::new();
    for (i, shape) in layers.iter().enumerate() {
        let bytes: Vec<u8> = (0..COUNT * shape.page_bytes())
            .map(|at| u8::try_from((at * 7 + at / 256 + i) % 256).expect("below 256"))
            .collect();
        let on = Guarded::of(gpu, &Pages::from_cpu(shape, &bytes))?;
        buffers.push((bytes, on));
    }
    let scales = gpu.upload(&[1.0_f32; 5])?;
    let pages: Vec<Pages> = layers
        .iter()
        .zip(&buffers)
        .map(|(shape, (_, on))| {
            let scales = Some(scales.view().part(0, shape.kv_heads));
            Pages::new(*shape, on.view(), scales, scales)
        })
        .collect();
    let list: Vec<u32> = pairs.iter().flat_map(|p| [p.0, p.1]).collect();
    let list = gpu.upload(&list)?;
    forward(gpu, &Layers::new(gpu, &pages)?, list.view(), pairs.len())?;
    for (shape, (mut want, on)) in layers.iter().zip(buffers) {
        let size = shape.page_bytes();
        for (from, to) in pairs {
            want.copy_within(from as usize * size..(from as usize + 1) * size, to as usize * size);
        }
        let (got, guards) = on.take(gpu)?;
        case.fail("pages", guards);
        case.equal(&format!("{shape:?}"), &Pages::to_cpu(shape, &got), &want);
    }
    case.end();
    Ok(())
}
