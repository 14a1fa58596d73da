//! 9.7.9.6 "shfl.sync". The third operand packs a clamp (bits 0 to 4) and a segment mask (bits 8 to 12). With
//! `least = lane & mask` and `most = least | (clamp & !mask)`, lane j is
//! up: lane - b, in range while j >= most; down: lane + b, xor: lane ^ b, idx: least | (b & !mask), in range while
//! j <= most. Out of range a lane copies its own value and its predicate is false. Only the low five bits of b count.

use crate::harness::Body;
use crate::values::Random;

/// The lane read by `lane`, and whether it is in range.
fn source(mode: &str, lane: i64, b: u32, c: u32) -> (usize, bool) {
    let (b, clamp, mask) = (i64::from(b & 31), i64::from(c & 31), i64::from(c >> 8 & 31));
    let least = lane & mask;
    let most = least | (clamp & !mask);
    let (from, in_range) = match mode {
        "up" => (lane - b, lane - b >= most),
        "down" => (lane + b, lane + b <= most),
        "bfly" => (lane ^ b, (lane ^ b) <= most),
        _ => (least | (b & !mask), (least | (b & !mask)) <= most),
    };
    (usize::try_from(if in_range { from } else { lane }).expect("a lane"), in_range)
}

/// Clamp and mask of a segment of `width` lanes, as compilers write them.
fn segment(mode: &str, width: u32) -> u32 {
    (32 - width) << 8 | if mode == "up" { 0 } else { 31 }
}

fn run(text: &str, mode: &str, input: &[u32]) {
    let get = |lane: usize, i: usize| input[3 * lane + i];
    Body::new(text, input, 2).expect(|lane| {
        let (from, in_range) = source(mode, lane as i64, get(lane, 1), get(lane, 2));
        vec![get(from, 0), u32::from(in_range)]
    });
}

#[test]
fn every_mode_offset_and_segment() {
    let mut random = Random::new(90);
    for (mode, op) in [
        ("up", "shfl.sync.up.b32"),
        ("down", "shfl.sync.down.b32"),
        ("bfly", "shfl.sync.bfly.b32"),
        ("idx", "shfl.sync.idx.b32"),
    ] {
        let text = format!(
            "\tmul.wide.u32 %q1, %l, 12;\n\tadd.s64 %q2, %in, %q1;\n\tld.global.u32 %r10, [%q2];\n\tld.global.u32 %r11, [%q2+4];\n\
             \tld.global.u32 %r12, [%q2+8];\n\t{op} %r13|%p1, %r10, %r11, %r12, -1;\n\tselp.u32 %r14, 1, 0, %p1;\n\
             \tst.global.v2.u32 [%out], {{%r13, %r14}};\n"
        );
        // Every offset in every segment width; offsets that differ by lane; any clamp and mask; high bits that count for nothing.
        for width in [1, 2, 4, 8, 16, 32] {
            for offset in [0, 1, 2, 3, 4, 7, 8, 15, 16, 17, 30, 31] {
                let lanes = |_| [random.word(), offset, segment(mode, width)];
                run(&text, mode, &(0..32).flat_map(lanes).collect::<Vec<_>>());
            }
            let lanes = |_| [random.word(), random.word(), segment(mode, width)];
            run(&text, mode, &(0..32).flat_map(lanes).collect::<Vec<_>>());
        }
        for _ in 0..12 {
            let c = random.word() & 0x1f1f;
            let lanes = |_| [random.word(), random.word() & 31, c];
            run(&text, mode, &(0..32).flat_map(lanes).collect::<Vec<_>>());
        }
        let plain = text.replace("%r13|%p1", "%r13").replace("\tselp.u32 %r14, 1, 0, %p1;\n", "\tmov.u32 %r14, 1;\n");
        let input: Vec<u32> = (0..32).flat_map(|_| [random.word(), 0, segment(mode, 32)]).collect();
        run(&plain, mode, &input);
    }
}

#[test]
fn constants_as_operands() {
    let value = |lane: usize| 1000 + lane as u32;
    for (text, from) in [
        ("shfl.sync.bfly.b32 %r11, %r10, 16, 31, -1;", (|lane| lane ^ 16) as fn(usize) -> usize),
        ("shfl.sync.bfly.b32 %r11|%p1, %r10, 1, 0x1f, 0xffffffff;", |lane| lane ^ 1),
        ("shfl.sync.idx.b32 %r11, %r10, 5, 31, -1;", |_| 5),
        ("shfl.sync.idx.b32 %r11, %r10, 0, 0x1c1f, -1;", |lane| lane & !3),
        ("shfl.sync.up.b32 %r11|%p1, %r10, 2, 0, -1;", |lane| if lane < 2 { lane } else { lane - 2 }),
        ("shfl.sync.down.b32 %r11, %r10, 4, 31, -1;", |lane| if lane > 27 { lane } else { lane + 4 }),
    ] {
        let text = format!("\tadd.s32 %r10, %l, 1000;\n\t{text}\n\tst.global.u32 [%out], %r11;\n");
        Body::new(&text, &[0], 1).expect(|lane| vec![value(from(lane))]);
    }
}

#[test]
fn source_and_destination_may_be_one_register() {
    let text = "\tadd.s32 %r10, %l, 1;\n\tshfl.sync.down.b32 %r10, %r10, 1, 31, -1;\n\tshfl.sync.bfly.b32 %r10, %r10, 3, 31, -1;\n\
                \tst.global.u32 [%out], %r10;\n";
    let down = |lane: usize| if lane == 31 { 32 } else { lane as u32 + 2 };
    Body::new(text, &[0], 1).expect(|lane| vec![down(lane ^ 3)]);
}

#[test]
fn part_of_a_warp() {
    // The lanes that take part are those of the mask, on one side of a branch.
    let text = "\tadd.s32 %r10, %l, 100;\n\tmov.u32 %r11, 7;\n\tsetp.ge.u32 %p1, %l, 12;\n\t@%p1 bra SKIP;\n\
                \txor.b32 %r12, %l, 3;\n\tshfl.sync.idx.b32 %r11, %r10, %r12, 31, 0xfff;\nSKIP:\n\tst.global.u32 [%out], %r11;\n";
    Body::new(text, &[0], 1).expect(|lane| vec![if lane < 12 { 100 + (lane as u32 ^ 3) } else { 7 }]);
    let text = "\tadd.s32 %r10, %l, 100;\n\tmov.u32 %r11, 7;\n\tand.b32 %r13, %l, 1;\n\tsetp.eq.s32 %p1, %r13, 1;\n\
                \t@%p1 shfl.sync.bfly.b32 %r11, %r10, 2, 31, 0xaaaaaaaa;\n\tst.global.u32 [%out], %r11;\n";
    Body::new(text, &[0], 1).expect(|lane| vec![if lane % 2 == 1 { 100 + (lane as u32 ^ 2) } else { 7 }]);
}

#[test]
fn a_value_of_a_lane_that_is_away_is_undefined() {
    let text = "\tmov.u32 %r11, 0;\n\tsetp.ge.u32 %p1, %l, 16;\n\t@%p1 bra SKIP;\n\tshfl.sync.idx.b32 %r11, %l, 20, 31, 0xffff;\n\
                SKIP:\n\tst.global.u32 [%out], %r11;\n";
    let body = Body::new(text, &[0], 1);
    let fault = body.fault();
    assert_eq!(fault.line, body.line_of("shfl.sync.idx"), "{fault}");
}
