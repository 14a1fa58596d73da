//! What a real device has and the simulated one goes without: the primary context, and memory cut from big pieces.

use super::CudaError;
use super::arena::{CHUNK, LARGE};
use super::device::Sharing;
use super::gpu::{Allocation, Gpu};
use super::simulator;

fn open() -> Gpu {
    super::load_driver(&simulator::driver_path().unwrap()).unwrap();
    Gpu::open_as(0, Sharing::Primary, Allocation::Arena).unwrap()
}

#[test]
fn allocations_share_pieces_and_come_back_to_them() {
    let gpu = open();
    let small = gpu.upload(&[1_u8; 300]).unwrap();
    let other = gpu.upload(&[2_u32; 64]).unwrap();
    let info = gpu.memory_info().unwrap();
    assert_eq!((info.reserved, info.used), (CHUNK, 512 + 256));
    assert_eq!(other.view().address(), small.view().address() + 512);
    // Alignment is that of the driver's own allocations, and neighbours do not touch.
    assert_eq!(gpu.download(small.view()).unwrap(), [1; 300]);
    let address = small.view().address();
    drop(small);
    assert_eq!(gpu.memory_info().unwrap().used, 256);
    let again = gpu.alloc::<f32>(128).unwrap();
    assert_eq!(again.view().address(), address, "the place was free");
    assert_eq!(gpu.download(other.view()).unwrap(), [2; 64]);

    // A clone and an allocation keep the device open.
    let clone = gpu.clone();
    drop(gpu);
    clone.fill(again.view(), 0).unwrap();
    drop(clone);
    drop(again);
    drop(other);
}

/// What an engine's buffers do when a step outgrows them: the old ones go, larger ones come. Nothing of the old ones stays
/// reserved, though they are of sizes that nothing else takes and other things were allocated meanwhile.
#[test]
fn what_is_outgrown_goes_back_to_the_driver() {
    let gpu = open();
    let weights = gpu.upload(&[7_u8; 1000]).unwrap();
    let len = |bytes: u64| usize::try_from(bytes).unwrap();
    let mut kept = Vec::new();
    for grown in 1..6 {
        let sizes = [3 * LARGE, 2 * LARGE, LARGE + 256].map(|bytes| grown * bytes);
        let buffers = sizes.map(|bytes| gpu.alloc::<u8>(len(bytes)).unwrap());
        buffers.iter().for_each(|mem| gpu.fill(mem.view(), 1).unwrap());
        kept.push(gpu.upload(&[3_u32; 100]).unwrap());
        let info = gpu.memory_info().unwrap();
        assert_eq!(info.reserved, CHUNK + sizes.iter().sum::<u64>(), "grown {grown} times");
        assert_eq!(info.used, 1024 + 512 * grown + sizes.iter().sum::<u64>());
    }
    assert_eq!(gpu.download(weights.view()).unwrap(), [7; 1000]);
    kept.iter().for_each(|mem| assert_eq!(gpu.download(mem.view()).unwrap(), [3; 100]));

    // Within a capture the device cannot be waited for, so there the old memory stays until the next time.
    let old = gpu.alloc::<u8>(len(LARGE)).unwrap();
    drop(old);
    let mut made = None;
    let graph = gpu.capture(|gpu| {
        let mem = made.insert(gpu.alloc::<u8>(len(9 * LARGE))?);
        gpu.fill(mem.view(), 5)
    });
    graph.unwrap().launch().unwrap();
    let made = made.unwrap();
    assert_eq!(gpu.download(made.view().part(0, 4)).unwrap(), [5; 4]);
    drop(made);
    let _last = gpu.alloc::<u8>(len(10 * LARGE)).unwrap();
    assert_eq!(gpu.memory_info().unwrap().reserved, CHUNK + 10 * LARGE);
}

#[test]
fn a_footprint_is_what_is_reserved() {
    let gpu = open();
    let sizes = [1, CHUNK / 2, LARGE - 300, 3 * LARGE + 1, LARGE, 0, LARGE - 1, LARGE - 1, LARGE - 1, 700, LARGE];
    let sizes = sizes.into_iter().chain((0..9).map(|i| LARGE - 1000 * i)).collect::<Vec<_>>();
    let held: Vec<_> = sizes.iter().map(|&bytes| gpu.alloc::<u8>(usize::try_from(bytes).unwrap()).unwrap()).collect();
    assert_eq!(gpu.footprint(sizes.iter().copied()), gpu.memory_info().unwrap().reserved);
    drop(held);
    assert_eq!(simulator::open().unwrap().footprint(sizes.iter().copied()), sizes.iter().sum());
}

#[test]
fn what_does_not_fit_is_refused_in_words() {
    let gpu = open();
    let info = gpu.memory_info().unwrap();
    let refused = gpu.alloc::<u8>(usize::try_from(info.total).unwrap() + 1).map(|_| ()).unwrap_err();
    // What is free meanwhile is other tests' doing: they share the context.
    let CudaError::OutOfMemory { asked, total, .. } = refused else { panic!("{refused}") };
    assert_eq!((asked, total), (info.total + 256, info.total));
    assert_eq!(gpu.memory_info().unwrap().reserved, 0);
}

/// What the choice of target and the driver's version rest on: an op's two texts are PTX 8.0 for sm_80 and 8.4 for sm_89,
/// and have the same kernels with the same parameters.
#[test]
fn every_op_has_two_texts_of_the_same_kernels() {
    let mut ops = std::collections::BTreeSet::new();
    for module in super::MODULES {
        assert!(ops.insert(module.op), "{} stands twice", module.op);
        let says = |text: &str, line: &str| text.lines().any(|found| found.trim_end() == line);
        assert!(says(module.sm80, ".version 8.0") && says(module.sm80, ".target sm_80"), "{}", module.op);
        assert!(says(module.sm89, ".version 8.4") && says(module.sm89, ".target sm_89"), "{}", module.op);
        let [sm80, sm89] = [module.sm80, module.sm89].map(|text| super::entries::parse(text).unwrap());
        assert!(!sm80.is_empty(), "{} has no kernel", module.op);
        assert_eq!(sm80, sm89, "{}", module.op);
    }
}
