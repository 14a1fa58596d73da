//! What a real device has and the simulated one goes without: the primary context, and memory cut from big pieces.

use super::CudaError;
use super::device::Sharing;
use super::gpu::{Allocation, Gpu};
use super::simulator;

const CHUNK: u64 = 64 << 20;

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

#[test]
fn reserved_memory_is_one_piece_and_what_does_not_fit_is_another() {
    let gpu = open();
    gpu.reserve(10_000).unwrap();
    assert_eq!(gpu.memory_info().unwrap().reserved, 10_240);
    let first = gpu.alloc::<u8>(10_000).unwrap();
    assert_eq!(gpu.memory_info().unwrap().reserved, 10_240);
    let second = gpu.alloc::<u8>(1).unwrap();
    assert_eq!(gpu.memory_info().unwrap().reserved, 10_240 + CHUNK);
    assert_ne!(first.view().address(), second.view().address());
    let info = gpu.memory_info().unwrap();
    let refused = gpu.alloc::<u8>(usize::try_from(info.total).unwrap()).map(|_| ()).unwrap_err();
    // What is free meanwhile is other tests' doing: they share the context.
    let CudaError::OutOfMemory { asked, total, .. } = refused else { panic!("{refused}") };
    assert_eq!((asked, total), (info.total, info.total));
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
