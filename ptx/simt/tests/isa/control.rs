//! Control flow: 9.7.12 "Control Flow Instructions" (bra, ret, exit, trap), 9.3 "Predicated Execution" and 9.5
//! "Divergence of Threads in Control Constructs". Threads of a warp may go separate ways and meet again; a return of some
//! leaves the others to go on; `bra.uni` promises that all active threads go the same way.

use crate::harness::Body;

#[test]
fn branches_within_branches() {
    let text = "\tmov.u32 %r20, 0;\n\tand.b32 %r10, %l, 1;\n\tand.b32 %r11, %l, 2;\n\tand.b32 %r12, %l, 4;\n\
                \tsetp.ne.s32 %p1, %r10, 0;\n\tsetp.ne.s32 %p2, %r11, 0;\n\tsetp.ne.s32 %p3, %r12, 0;\n\
                \t@%p1 bra A1;\n\
                \t@%p2 bra A01;\n\tadd.s32 %r20, %r20, 1;\n\tbra.uni A0END;\n\
                A01:\n\tadd.s32 %r20, %r20, 2;\n\t@%p3 bra A0END;\n\tadd.s32 %r20, %r20, 4;\n\
                A0END:\n\tadd.s32 %r20, %r20, 8;\n\tbra.uni END;\n\
                A1:\n\t@!%p3 bra A1END;\n\tadd.s32 %r20, %r20, 16;\n\t@%p2 bra A1END;\n\tadd.s32 %r20, %r20, 32;\n\
                A1END:\n\tadd.s32 %r20, %r20, 64;\n\
                END:\n\tadd.s32 %r20, %r20, 128;\n\tst.global.u32 [%out], %r20;\n";
    Body::new(text, &[0], 1).threads(64).expect(|thread| {
        let (a, b, c) = (thread & 1 != 0, thread & 2 != 0, thread & 4 != 0);
        let value = match (a, b, c) {
            (false, false, _) => 1 + 8,
            (false, true, true) => 2 + 8,
            (false, true, false) => 2 + 4 + 8,
            (true, _, false) => 64,
            (true, true, true) => 16 + 64,
            (true, false, true) => 16 + 32 + 64,
        };
        vec![value + 128]
    });
}

fn collatz(mut n: u32) -> u32 {
    let mut steps = 0;
    while n != 1 {
        n = if n.is_multiple_of(2) { n / 2 } else { 3 * n + 1 };
        steps += 1;
    }
    steps
}

#[test]
fn loops_of_as_many_turns_as_the_data_say() {
    // Each lane leaves at its own turn; then all are together again, as the vote of the whole warp tells.
    let text = "\tadd.s32 %r10, %t, 1;\n\tmov.u32 %r11, 0;\n\tsetp.eq.s32 %p1, %r10, 1;\n\t@%p1 bra DONE;\n\
                LOOP:\n\tand.b32 %r12, %r10, 1;\n\tsetp.eq.s32 %p2, %r12, 1;\n\t@%p2 bra ODD;\n\tshr.u32 %r10, %r10, 1;\n\tbra.uni NEXT;\n\
                ODD:\n\tmad.lo.s32 %r10, %r10, 3, 1;\n\
                NEXT:\n\tadd.s32 %r11, %r11, 1;\n\tsetp.ne.s32 %p3, %r10, 1;\n\t@%p3 bra LOOP;\n\
                DONE:\n\tsetp.eq.s32 %p4, %l, %l;\n\tvote.sync.ballot.b32 %r13, %p4, -1;\n\tst.global.v2.u32 [%out], {%r11, %r13};\n";
    Body::new(text, &[0], 2).threads(96).expect(|thread| vec![collatz(thread as u32 + 1), u32::MAX]);
}

#[test]
fn loops_within_loops() {
    // The sum over i below lane % 5 and j below i + lane % 3 of 10 i + j, with a turn skipped and a loop left early.
    let text = "\tmov.u32 %r20, 0;\n\trem.u32 %r10, %t, 5;\n\trem.u32 %r11, %t, 3;\n\tmov.u32 %r12, 0;\n\
                OUTER:\n\tsetp.ge.u32 %p1, %r12, %r10;\n\t@%p1 bra OUTEREND;\n\tadd.s32 %r13, %r12, %r11;\n\tmov.u32 %r14, 0;\n\
                INNER:\n\tsetp.ge.u32 %p2, %r14, %r13;\n\t@%p2 bra INNEREND;\n\tsetp.eq.s32 %p3, %r14, 2;\n\t@%p3 bra SKIP;\n\
                \tmad.lo.s32 %r15, %r12, 10, %r14;\n\tadd.s32 %r20, %r20, %r15;\n\
                SKIP:\n\tadd.s32 %r14, %r14, 1;\n\tsetp.gt.u32 %p4, %r20, 60;\n\t@%p4 bra OUTEREND;\n\tbra.uni INNER;\n\
                INNEREND:\n\tadd.s32 %r12, %r12, 1;\n\tbra.uni OUTER;\n\
                OUTEREND:\n\tst.global.u32 [%out], %r20;\n";
    Body::new(text, &[0], 1).threads(64).expect(|thread| {
        let (rows, extra) = (thread as u32 % 5, thread as u32 % 3);
        let mut sum = 0;
        'outer: for i in 0..rows {
            for j in 0..i + extra {
                if j != 2 {
                    sum += 10 * i + j;
                }
                if sum > 60 {
                    break 'outer;
                }
            }
        }
        vec![sum]
    });
}

#[test]
fn some_return_and_the_others_go_on() {
    for leave in ["ret;", "exit;"] {
        let text = format!(
            "\tmov.u32 %r10, 0;\n\tand.b32 %r11, %l, 3;\n\tsetp.eq.s32 %p1, %r11, 3;\n\tst.global.u32 [%out], %r10;\n\
             \t@%p1 {leave}\n\tsetp.gt.u32 %p2, %l, 15;\n\t@!%p2 bra LOW;\n\tadd.s32 %r10, %r10, 1;\n\tsetp.eq.s32 %p3, %r11, 2;\n\
             \t@%p3 bra OUT;\n\tadd.s32 %r10, %r10, 2;\n\
             LOW:\n\tactivemask.b32 %r12;\n\tadd.s32 %r10, %r10, 4;\n\tst.global.u32 [%out], %r10;\n\
             OUT:\n\t{leave}\n"
        );
        Body::new(&text, &[0], 1).expect(|lane| {
            vec![match (lane % 4, lane > 15) {
                (3, _) | (2, true) => 0,
                (_, true) => 7,
                _ => 4,
            }]
        });
    }
    // Out of a loop, at different turns.
    let text = "\tmov.u32 %r10, 0;\nLOOP:\n\tst.global.u32 [%out], %r10;\n\tsetp.eq.s32 %p1, %r10, %l;\n\t@%p1 ret;\n\
                \tadd.s32 %r10, %r10, 1;\n\tsetp.lt.u32 %p2, %r10, 20;\n\t@%p2 bra LOOP;\n\tst.global.u32 [%out], 99;\n";
    let text = text
        .replace("[%out], 99;", "[%out], %r11;")
        .replace("\tmov.u32 %r10, 0;\n", "\tmov.u32 %r10, 0;\n\tmov.u32 %r11, 99;\n");
    Body::new(&text, &[0], 1).expect(|lane| vec![if lane < 20 { lane as u32 } else { 99 }]);
}

#[test]
fn guards_take_lanes_out_one_by_one() {
    let text = "\tand.b32 %r10, %l, 1;\n\tsetp.eq.s32 %p1, %r10, 1;\n\tsetp.gt.u32 %p2, %l, 7;\n\tmov.u32 %r11, 1;\n\
                \t@%p1 add.s32 %r11, %r11, 10;\n\t@!%p1 add.s32 %r11, %r11, 20;\n\tand.pred %p3, %p1, %p2;\n\
                \t@%p3 mul.lo.s32 %r11, %r11, 2;\n\t@!%p3 st.global.u32 [%out], %r11;\n\t@%p3 st.global.u32 [%out], %l;\n\
                \t@%p3 setp.eq.s32 %p2, %r10, 5;\n\tselp.u32 %r12, 1, 0, %p2;\n\tst.global.u32 [%out+4], %r12;\n";
    Body::new(text, &[0], 2).expect(|lane| {
        let (odd, high) = (lane % 2 == 1, lane > 7);
        let value = if odd { 11 } else { 21 };
        vec![if odd && high { lane as u32 } else { value }, u32::from(high && !odd)]
    });
}

#[test]
fn ragged_warps() {
    let text = "\tactivemask.b32 %r10;\n\tst.global.u32 [%out], %r10;\n";
    for threads in [1, 5, 31, 33, 50] {
        Body::new(text, &[0], 1).threads(threads).expect(|thread| {
            let in_warp = (threads as usize - thread / 32 * 32).min(32);
            vec![if in_warp == 32 { u32::MAX } else { (1 << in_warp) - 1 }]
        });
    }
}

#[test]
fn labels_scopes_and_several_statements_on_a_line() {
    let text = "\t.pragma \"nounroll\";\n\tmov.u32 %r10, 1; mov.u32 %r11, 2;\n\t{\n\t.reg .b32 %inner<4>;\n\tadd.s32 %inner0, %r10, %r11;\n\
                \t{ .reg .b32 %inner<2>; mov.u32 %inner1, 40; add.s32 %r12, %inner1, 2; }\n\tadd.s32 %r13, %inner0, %r12;\n\t}\n\
                \tbra.uni $L__BB0_2;\n$L__BB0_1: // a comment\n\tmov.u32 %r13, 0; /* another\n\t   one */\n$L__BB0_2:\n\
                \tst.global.u32 [%out], %r13;\n";
    Body::new(text, &[0], 1).expect(|_| vec![45]);
}

#[test]
fn a_branch_that_claims_to_be_uniform_must_be() {
    let text = "\tmov.u32 %r10, 0;\n\tsetp.lt.u32 %p1, %l, 3;\n\t@%p1 bra.uni THERE;\n\tmov.u32 %r10, 1;\nTHERE:\n\tst.global.u32 [%out], %r10;\n";
    let body = Body::new(text, &[0], 1);
    let fault = body.fault();
    assert_eq!(fault.line, body.line_of("bra.uni THERE"), "{fault}");
    let text = text.replace("%l, 3", "%l, 32");
    Body::new(&text, &[0], 1).expect(|_| vec![0]);
}

#[test]
fn a_trap_ends_the_launch() {
    let text = "\tsetp.eq.s32 %p1, %l, 9;\n\t@%p1 bra BAD;\n\tst.global.u32 [%out], %l;\n\tbra.uni DONE;\nBAD:\n\ttrap;\nDONE:\n\tret;\n";
    let body = Body::new(text, &[0], 1);
    let fault = body.fault();
    assert_eq!((fault.line, fault.thread), (body.line_of("trap"), [9, 0, 0]), "{fault}");
}

#[test]
fn a_table_of_branches() {
    let text = "\tts: .branchtargets A, B, C;\n\trem.u32 %r10, %l, 3;\n\tbrx.idx %r10, ts;\nA:\n\tmov.u32 %r11, 10;\n\tbra.uni END;\nB:\n\
                \tmov.u32 %r11, 20;\n\tbra.uni END;\nC:\n\tmov.u32 %r11, 30;\nEND:\n\tst.global.u32 [%out], %r11;\n";
    let body = Body::new(text, &[0], 1);
    if body.known("branchtargets") {
        body.expect(|lane| vec![10 * (lane as u32 % 3 + 1)]);
    }
}
