//! 9.7.9.25.3 "cp.async", "cp.async.commit_group" and "cp.async.wait_group", 9.7.9.25.1.1 "Async-group mechanism".
//!
//! A copy takes 4, 8 or 16 bytes (16 past L1) from global to shared memory; with a source size, the bytes beyond it
//! become zeros. A commit makes a group of the thread's own copies since its last one, an empty one if there are none;
//! `wait_group n` waits until at most the n latest groups of this thread are under way, `wait_all` for everything. To read
//! a destination before that, or in another thread without a barrier, is undefined, and the checked mode must say so.

use crate::harness::Body;
use crate::values::Random;

fn input() -> Vec<u32> {
    let mut random = Random::new(140);
    (0..256).map(|_| random.word()).collect()
}

/// `%q10` the lane's source, 32 bytes apart; `%r10` the lane's place in shared memory, likewise, filled with 0xee.
const PLACES: &str = "\tmul.wide.u32 %q1, %l, 32;\n\tadd.s64 %q10, %in, %q1;\n\tmov.u32 %r9, smem;\n\tmad.lo.s32 %r10, %l, 32, %r9;\n\
                      \tmov.u32 %r8, 0xeeeeeeee;\n\tst.shared.v4.u32 [%r10], {%r8, %r8, %r8, %r8};\n\
                      \tst.shared.v4.u32 [%r10+16], {%r8, %r8, %r8, %r8};\n\tbar.sync 0;\n";

const READ: &str =
    "\tld.shared.v4.u32 {%r20, %r21, %r22, %r23}, [%r10];\n\tst.global.v4.u32 [%out], {%r20, %r21, %r22, %r23};\n";

fn copied(words: &[u32], size: usize, from_bytes: usize) -> Vec<u32> {
    let mut bytes = [0xee_u8; 16];
    bytes[..size].fill(0);
    let source: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes[..from_bytes].copy_from_slice(&source[..from_bytes]);
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().expect("four"))).collect()
}

#[test]
fn sizes_and_zeros_beyond_the_source() {
    let input = input();
    for (op, size) in [
        ("cp.async.cg.shared.global", 16),
        ("cp.async.ca.shared.global", 16),
        ("cp.async.ca.shared.global", 8),
        ("cp.async.ca.shared.global", 4),
        ("cp.async.cg.shared.global.L2::128B", 16),
        ("cp.async.ca.shared.global.L2::128B", 16),
    ] {
        let text = format!(
            "{PLACES}\t{op} [%r10], [%q10], {size};\n\tcp.async.commit_group;\n\tcp.async.wait_group 0;\n{READ}"
        );
        let body = Body::new(&text, &input, 4).shared(1024);
        if op != "cp.async.cg.shared.global" && !body.known(op) {
            continue;
        }
        body.expect(|lane| copied(&input[8 * lane..], size, size));
        // The source's size differs by lane: 0 to the whole.
        let text = format!(
            "{PLACES}\trem.u32 %r11, %l, {};\n\t{op} [%r10], [%q10], {size}, %r11;\n\tcp.async.wait_all;\n{READ}",
            size + 1
        );
        let body = Body::new(&text, &input, 4).shared(1024);
        if body.known("cp.async") {
            body.expect(|lane| copied(&input[8 * lane..], size, lane % (size + 1)));
        }
    }
    let text = format!(
        "{PLACES}\tcp.async.cg.shared.global [%r10], [%q10], 16, 0;\n\tcp.async.commit_group;\n\tcp.async.wait_group 0;\n{READ}"
    );
    Body::new(&text, &input, 4).shared(1024).expect(|_| vec![0; 4]);
    // The form that kernels have: all or nothing by a selected size.
    let text = format!(
        "{PLACES}\tsetp.lt.u32 %p1, %l, 20;\n\tselp.b32 %r11, 16, 0, %p1;\n\tcp.async.cg.shared.global [%r10], [%q10], 16, %r11;\n\
         \tcp.async.commit_group;\n\tcp.async.wait_group 0;\n{READ}"
    );
    Body::new(&text, &input, 4)
        .shared(1024)
        .expect(|lane| copied(&input[8 * lane..], 16, if lane < 20 { 16 } else { 0 }));
}

#[test]
fn waiting_for_all_but_the_latest_groups() {
    let input = input();
    // Two groups, the first waited for: its bytes are there, and both after the second wait.
    let text = format!(
        "{PLACES}\tcp.async.cg.shared.global [%r10], [%q10], 16;\n\tcp.async.commit_group;\n\
         \tcp.async.cg.shared.global [%r10+16], [%q10+16], 16;\n\tcp.async.commit_group;\n\tcp.async.wait_group 1;\n\
         \tld.shared.v4.u32 {{%r20, %r21, %r22, %r23}}, [%r10];\n\tst.global.v4.u32 [%out], {{%r20, %r21, %r22, %r23}};\n\
         \tcp.async.wait_group 0;\n\tld.shared.v4.u32 {{%r20, %r21, %r22, %r23}}, [%r10+16];\n\
         \tst.global.v4.u32 [%out+16], {{%r20, %r21, %r22, %r23}};\n"
    );
    Body::new(&text, &input, 8).shared(1024).expect(|lane| input[8 * lane..8 * lane + 8].to_vec());
    // An empty group counts: after it, the one before is all but the latest.
    let text = format!(
        "{PLACES}\tcp.async.cg.shared.global [%r10], [%q10], 16;\n\tcp.async.commit_group;\n\tcp.async.commit_group;\n\
         \tcp.async.wait_group 1;\n{READ}"
    );
    Body::new(&text, &input, 4).shared(1024).expect(|lane| input[8 * lane..8 * lane + 4].to_vec());
    // A pipeline of three stages over a loop, each stage's words summed once.
    let text = "\tmov.u32 %r9, smem;\n\tmad.lo.s32 %r10, %l, 16, %r9;\n\tmul.wide.u32 %q1, %l, 16;\n\tadd.s64 %q10, %in, %q1;\n\
                \tcp.async.cg.shared.global [%r10], [%q10], 16;\n\tcp.async.commit_group;\n\
                \tcp.async.cg.shared.global [%r10+512], [%q10], 16;\n\tcp.async.commit_group;\n\tmov.u32 %r11, 0;\n\tmov.u32 %r12, 0;\n\
                LOOP:\n\tcp.async.wait_group 1;\n\tbar.sync 0;\n\trem.u32 %r13, %r11, 3;\n\tmad.lo.s32 %r14, %r13, 512, %r10;\n\
                \tadd.s32 %r15, %r11, 2;\n\trem.u32 %r16, %r15, 3;\n\tmad.lo.s32 %r17, %r16, 512, %r10;\n\
                \tsetp.lt.u32 %p1, %r15, 7;\n\t@%p1 cp.async.cg.shared.global [%r17], [%q10], 16;\n\tcp.async.commit_group;\n\
                \tld.shared.u32 %r18, [%r14];\n\tadd.s32 %r12, %r12, %r18;\n\tadd.s32 %r11, %r11, 1;\n\tsetp.lt.u32 %p2, %r11, 7;\n\
                \t@%p2 bra LOOP;\n\tst.global.u32 [%out], %r12;\n";
    Body::new(text, &input, 1).shared(1536).expect(|lane| vec![input[4 * lane].wrapping_mul(7)]);
}

#[test]
fn groups_are_each_threads_own() {
    let input = input();
    // Even lanes commit after each of two copies, odd ones after both. Waiting for all but one group, an even lane has
    // its first copy; an odd lane may have neither, and an even one may not read the second.
    let start = format!(
        "{PLACES}\tand.b32 %r11, %l, 1;\n\tsetp.eq.s32 %p1, %r11, 1;\n\tcp.async.cg.shared.global [%r10], [%q10], 16;\n\
         \t@%p1 bra ODD;\n\tcp.async.commit_group;\nODD:\n\tcp.async.cg.shared.global [%r10+16], [%q10+16], 16;\n\
         \tcp.async.commit_group;\n\tcp.async.wait_group 1;\n"
    );
    let early = "\t@%p1 bra LATER;\n\tld.shared.u32 %r20, [%r10];\n\tst.global.u32 [%out], %r20;\nLATER:\n";
    let end = "\tcp.async.wait_group 0;\n\tld.shared.u32 %r21, [%r10];\n\tld.shared.u32 %r22, [%r10+16];\n\
               \tst.global.u32 [%out+4], %r21;\n\tst.global.u32 [%out+8], %r22;\n";
    let text = format!("{start}{early}{end}");
    Body::new(&text, &input, 3).shared(1024).expect(|lane| {
        let first = if lane % 2 == 0 { input[8 * lane] } else { 0xcdcd_cdcd };
        vec![first, input[8 * lane], input[8 * lane + 4]]
    });
    let too_early = "\t@!%p1 bra LATER;\n\tld.shared.u32 %r20, [%r10];\n\tst.global.u32 [%out], %r20;\nLATER:\n";
    let text = format!("{start}{too_early}{end}");
    let body = Body::new(&text, &input, 3).shared(1024);
    let fault = body.fault();
    assert_eq!(fault.line, body.line_of("ld.shared.u32 %r20"), "{fault}");
    // A copy under a guard belongs to the lanes of the guard.
    let text = format!(
        "{PLACES}\tand.b32 %r11, %l, 1;\n\tsetp.eq.s32 %p1, %r11, 1;\n\t@%p1 cp.async.cg.shared.global [%r10], [%q10], 16;\n\
         \tcp.async.commit_group;\n\tcp.async.wait_group 0;\n{READ}"
    );
    Body::new(&text, &input, 4).shared(1024).expect(|lane| match lane % 2 {
        1 => input[8 * lane..8 * lane + 4].to_vec(),
        _ => vec![0xeeee_eeee; 4],
    });
}

#[test]
fn reading_before_completion_is_seen() {
    let input = input();
    for wait in ["", "\tcp.async.wait_group 1;\n"] {
        let text =
            format!("{PLACES}\tcp.async.cg.shared.global [%r10], [%q10], 16;\n\tcp.async.commit_group;\n{wait}{READ}");
        let body = Body::new(&text, &input, 4).shared(1024);
        let fault = body.fault();
        assert_eq!(fault.line, body.line_of("ld.shared.v4.u32"), "{fault}");
    }
    // Not committed, so no group to wait for.
    let text = format!("{PLACES}\tcp.async.cg.shared.global [%r10], [%q10], 16;\n\tcp.async.wait_group 0;\n{READ}");
    let body = Body::new(&text, &input, 4).shared(1024);
    let fault = body.fault();
    assert_eq!(fault.line, body.line_of("ld.shared.v4.u32"), "{fault}");
    // Another warp's copy needs a barrier after its wait.
    let text = format!(
        "{PLACES}\tcp.async.cg.shared.global [%r10], [%q10], 16;\n\tcp.async.commit_group;\n\tcp.async.wait_group 0;\n\
         \txor.b32 %r12, %r10, 1024;\n{}",
        READ.replace("[%r10]", "[%r12]")
    )
    .replace("%l, 32", "%t, 32");
    let long: Vec<u32> = input.iter().chain(&input).copied().collect();
    let body = Body::new(&text, &long, 4).threads(64).shared(2048);
    let fault = body.fault();
    // Which of the two is late depends on the order of the warps.
    let lines = [body.line_of("cp.async.cg"), body.line_of("ld.shared.v4.u32")];
    assert!(lines.contains(&fault.line), "{fault}");
    let text = text.replace("wait_group 0;\n", "wait_group 0;\n\tbar.sync 0;\n");
    Body::new(&text, &long, 4)
        .threads(64)
        .shared(2048)
        .expect(|thread| long[8 * (thread ^ 32)..8 * (thread ^ 32) + 4].to_vec());
}
