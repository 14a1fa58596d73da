//! The cases of a kernel notice mistakes in it: six of them, planted in the PTX of residual. `cargo xtask mutate` does the
//! same to all kernels, in many places.

use ptx::conformance::{OPS, Outcome};
use ptx::cuda::{CudaError, MODULES, Module, simulator};

const OP: &str = "residual";

/// What is replaced, which occurrence of it, and by what.
const MISTAKES: [(&str, usize, &str); 6] = [
    // One element too many, beyond the vectors.
    ("setp.ge.u32", 1, "setp.gt.u32"),
    // No bound at all.
    ("@%p2 bra", 0, "// bra"),
    // Two elements of a vector change places.
    ("{%f15, %f14,", 0, "{%f14, %f15,"),
    ("add.rn.f32", 4, "add.rz.f32"),
    ("add.rn.f32", 0, "sub.rn.f32"),
    // Elements beyond the vectors are other ones.
    ("%r3, 3, %r1", 0, "%r3, 2, %r1"),
];

/// Runs the cases with this text for 8.9; the first thing that is wrong.
fn wrong(text: String) -> Option<String> {
    let committed = MODULES.iter().find(|module| module.op == OP).expect("residual has kernels");
    let module = Module { op: OP, sm80: committed.sm80, sm89: text.leak() };
    let (_, check) = OPS.iter().find(|(op, _)| *op == OP).expect("residual has cases");
    let mut failure = None;
    let mut cases = 0;
    let mut each = |outcome: Outcome| {
        cases += 1;
        failure = failure.take().or(outcome.failure);
    };
    let run = simulator::open().and_then(|gpu| {
        gpu.add_module(Box::leak(Box::new(module)));
        check(&gpu, &mut each)
    });
    assert!(cases > 0 || run.is_err(), "no case ran");
    match run {
        // A text that is no PTX would be found by anything.
        Err(error @ (CudaError::InvalidPtx { .. } | CudaError::NoDriver { .. })) => panic!("{error}"),
        Err(fault) => Some(fault.to_string()),
        Ok(()) => failure,
    }
}

#[test]
fn six_mistakes_are_noticed_and_the_kernel_as_it_is_passes() {
    let ptx = MODULES.iter().find(|module| module.op == OP).expect("residual has kernels").sm89;
    assert_eq!(wrong(ptx.to_owned()), None);
    for (from, nth, to) in MISTAKES {
        let (at, _) = ptx.match_indices(from).nth(nth).unwrap_or_else(|| panic!("no {from} any more: choose another"));
        let mutant = format!("{}{to}{}", &ptx[..at], &ptx[at + from.len()..]);
        assert!(wrong(mutant).is_some(), "{from}, occurrence {nth}, became {to}: no case notices");
    }
}
