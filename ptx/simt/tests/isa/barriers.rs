//! 9.7.13.1 "bar, barrier", 9.7.13.2 "bar.warp.sync" and 9.7.13.4 "membar, fence". A barrier waits for all threads of the
//! block that have not exited, and what they wrote before it is visible after it; with a thread count it waits for that
//! many. `bar.warp.sync` does so for the lanes of its mask.

use crate::harness::Body;

/// Passes values round all threads of the block, `%r20` rounds, through shared memory.
fn rounds(barrier: &str) -> String {
    format!(
        "\tmov.u32 %r10, smem;\n\tmad.lo.s32 %r11, %t, 4, %r10;\n\tadd.s32 %r12, %t, 1;\n\tmov.u32 %r13, %r1;\n\
         \trem.u32 %r14, %r12, %r13;\n\tmad.lo.s32 %r15, %r14, 4, %r10;\n\tmul.lo.s32 %r16, %t, 10;\n\tmov.u32 %r17, 0;\n\
         LOOP:\n\tst.shared.u32 [%r11], %r16;\n\t{barrier}\n\tld.shared.u32 %r18, [%r15];\n\t{barrier}\n\tadd.s32 %r16, %r18, 1;\n\
         \tadd.s32 %r17, %r17, 1;\n\tsetp.lt.u32 %p1, %r17, 5;\n\t@%p1 bra LOOP;\n\tst.global.u32 [%out], %r16;\n"
    )
}

#[test]
fn a_block_waits_for_all() {
    for threads in [32, 64, 128, 96] {
        for barrier in ["bar.sync 0;", "bar.sync 3;", "barrier.sync 0;", "barrier.sync.aligned 1;"] {
            let text = rounds(barrier);
            let body = Body::new(&text, &[0], 1).threads(threads).shared(512);
            if barrier == "bar.sync 0;" || body.known(barrier.split(' ').next().expect("a spelling")) {
                body.expect(|thread| vec![(thread as u32 + 5) % threads * 10 + 5]);
            }
        }
    }
    // Two blocks have a barrier each, and a last warp may be ragged.
    let text = rounds("bar.sync 0;").replace("%t, 4, %r10", "%r2, 4, %r10").replace("%r12, %t, 1", "%r12, %r2, 1");
    Body::new(&text, &[0], 1).threads(40).blocks(2).shared(512).expect(|thread| {
        let (block, thread) = (thread as u32 / 40, thread as u32 % 40);
        vec![((thread + 5) % 40 + 40 * block) * 10 + 5]
    });
}

#[test]
fn a_warp_waits_for_its_lanes() {
    let text = rounds("bar.warp.sync 0xffffffff;");
    Body::new(&text, &[0], 1).shared(512).expect(|thread| vec![(thread as u32 + 5) % 32 * 10 + 5]);
    // The lanes of the mask alone, in a branch.
    let text = "\tmov.u32 %r10, smem;\n\tmad.lo.s32 %r11, %l, 4, %r10;\n\tmov.u32 %r16, 7;\n\tsetp.ge.u32 %p1, %l, 8;\n\t@%p1 bra SKIP;\n\
                \tst.shared.u32 [%r11], %l;\n\tbar.warp.sync 0xff;\n\txor.b32 %r12, %l, 7;\n\tmad.lo.s32 %r13, %r12, 4, %r10;\n\
                \tld.shared.u32 %r16, [%r13];\nSKIP:\n\tst.global.u32 [%out], %r16;\n";
    Body::new(text, &[0], 1).shared(128).expect(|lane| vec![if lane < 8 { 7 - lane as u32 } else { 7 }]);
}

#[test]
fn threads_that_left_are_not_waited_for() {
    // Whole warps and single lanes return before the barrier; the rest go on.
    let text = "\tsetp.ge.u32 %p1, %t, 64;\n\t@%p1 bra DONE;\n\tmov.u32 %r10, smem;\n\tmad.lo.s32 %r11, %t, 4, %r10;\n\
                \tst.shared.u32 [%r11], %t;\n\tbar.sync 0;\n\txor.b32 %r12, %t, 63;\n\tmad.lo.s32 %r13, %r12, 4, %r10;\n\
                \tld.shared.u32 %r14, [%r13];\n\tst.global.u32 [%out], %r14;\nDONE:\n\tret;\n";
    Body::new(text, &[0], 1).threads(128).shared(512).expect(|thread| match thread {
        0..64 => vec![63 - thread as u32],
        _ => vec![0xcdcd_cdcd],
    });
    let text = text.replace("setp.ge.u32 %p1, %t, 64", "setp.ge.u32 %p1, %t, 50").replace("%t, 63", "%t, 1");
    Body::new(&text, &[0], 1).threads(128).shared(512).expect(|thread| match thread {
        0..50 => vec![thread as u32 ^ 1],
        _ => vec![0xcdcd_cdcd],
    });
}

#[test]
fn some_warps_meet_at_a_barrier_of_their_own() {
    // Warps 0 and 1 exchange through barrier 1, warps 2 and 3 through barrier 2, 64 threads each.
    let text = "\tshr.u32 %r20, %t, 6;\n\tadd.s32 %r21, %r20, 1;\n\tmov.u32 %r10, smem;\n\tmad.lo.s32 %r11, %t, 4, %r10;\n\
                \tst.shared.u32 [%r11], %t;\n\tbar.sync %r21, 64;\n\txor.b32 %r12, %t, 32;\n\tmad.lo.s32 %r13, %r12, 4, %r10;\n\
                \tld.shared.u32 %r14, [%r13];\n\tst.global.u32 [%out], %r14;\n";
    let body = Body::new(text, &[0], 1).threads(128).shared(512);
    if body.known("bar.sync") {
        body.expect(|thread| vec![thread as u32 ^ 32]);
    }
    let text = text
        .replace("bar.sync %r21, 64;", "setp.eq.s32 %p1, %r20, 0;\n\t@%p1 bar.sync 1, 64;\n\t@!%p1 bar.sync 2, 64;");
    let body = Body::new(&text, &[0], 1).threads(128).shared(512);
    if body.known("bar.sync") {
        body.expect(|thread| vec![thread as u32 ^ 32]);
    }
}

#[test]
fn fences_change_no_value() {
    for fence in [
        "membar.cta;",
        "membar.gl;",
        "membar.sys;",
        "fence.acq_rel.gpu;",
        "fence.sc.gpu;",
        "fence.acq_rel.cta;",
        "fence.acq_rel.sys;",
    ] {
        let text = format!(
            "\tst.global.u32 [%out], %t;\n\t{fence}\n\tld.global.u32 %r10, [%out];\n\tadd.s32 %r11, %r10, 1;\n\tst.global.u32 [%out], %r11;\n"
        );
        let body = Body::new(&text, &[0], 1);
        if fence == "membar.gl;" || body.known(fence.trim_end_matches(';')) {
            body.expect(|thread| vec![thread as u32 + 1]);
        }
    }
}
