//! 9.7.13 "Parallel Synchronization" (vote.sync, match.sync, activemask, redux.sync): each counts the lanes of its member
//! mask. `uni` is true where all agree, whatever on. `match.any` gives the lanes with the own value; `match.all` the
//! whole mask and true if all agree, else 0 and false. `redux` reduces, sums modulo 2^32.

use crate::harness::Body;
use crate::values::Random;

/// Runs lines that read `%r10` (a word for each lane) and leave `%r20`.
fn each_lane(lines: &str, input: &[u32], want: impl Fn(usize) -> u32) {
    let text = format!(
        "\tmul.wide.u32 %q1, %l, 4;\n\tadd.s64 %q2, %in, %q1;\n\tld.global.u32 %r10, [%q2];\n\tsetp.ne.s32 %p1, %r10, 0;\n\
         {lines}\n\tst.global.u32 [%out], %r20;\n"
    );
    Body::new(&text, input, 1).expect(|lane| vec![want(lane)]);
}

#[test]
fn ballots_and_votes() {
    let mut random = Random::new(100);
    let mut patterns = vec![0, u32::MAX, 1, 1 << 31, 0xffff_fffe, 0x0000_ffff];
    patterns.extend((0..4).map(|_| random.word()));
    for pattern in patterns {
        let input: Vec<u32> = (0..32).map(|lane| pattern >> lane & 1).collect();
        each_lane("\tvote.sync.ballot.b32 %r20, %p1, -1;", &input, |_| pattern);
        each_lane("\tvote.sync.ballot.b32 %r20, !%p1, -1;", &input, |_| !pattern);
        let all = u32::from(pattern == u32::MAX);
        let any = u32::from(pattern != 0);
        let uniform = u32::from(pattern == 0 || pattern == u32::MAX);
        for (op, want) in [("vote.sync.all.pred", all), ("vote.sync.any.pred", any), ("vote.sync.uni.pred", uniform)] {
            each_lane(&format!("\t{op} %p2, %p1, 0xffffffff;\n\tselp.u32 %r20, 1, 0, %p2;"), &input, |_| want);
        }
        // Half of the warp, inside a branch.
        let low = pattern & 0xffff;
        let lines = "\tmov.u32 %r20, 5;\n\tsetp.ge.u32 %p3, %l, 16;\n\t@%p3 bra SKIP;\n\tvote.sync.ballot.b32 %r20, %p1, 0xffff;\nSKIP:";
        each_lane(lines, &input, |lane| if lane < 16 { low } else { 5 });
        let lines = "\tmov.u32 %r20, 5;\n\tsetp.ge.u32 %p3, %l, 16;\n\t@%p3 bra SKIP;\n\tvote.sync.all.pred %p2, %p1, 0xffff;\n\
                     \tselp.u32 %r20, 1, 0, %p2;\nSKIP:";
        each_lane(lines, &input, |lane| if lane < 16 { u32::from(low == 0xffff) } else { 5 });
    }
}

#[test]
fn active_lanes() {
    each_lane("\tactivemask.b32 %r20;", &[0; 32], |_| u32::MAX);
    let lines = "\tmov.u32 %r20, 0;\n\tsetp.lt.u32 %p3, %l, 10;\n\t@%p3 activemask.b32 %r20;";
    each_lane(lines, &[0; 32], |lane| if lane < 10 { 0x3ff } else { 0 });
}

#[test]
fn lanes_of_one_value() {
    let mut random = Random::new(101);
    for distinct in [1, 2, 5, 32] {
        let input: Vec<u32> = (0..32).map(|_| 0x8000_0000 + random.word() % distinct).collect();
        let same =
            |lane: usize| (0..32).filter(|&other| input[other] == input[lane]).fold(0, |mask, other| mask | 1 << other);
        each_lane("\tmatch.any.sync.b32 %r20, %r10, -1;", &input, same);
        let lines = "\tcvt.u64.u32 %q5, %r10;\n\tshl.b64 %q6, %q5, 20;\n\tmatch.any.sync.b64 %r20, %q6, -1;";
        let text = format!(
            "\tmul.wide.u32 %q1, %l, 4;\n\tadd.s64 %q2, %in, %q1;\n\tld.global.u32 %r10, [%q2];\n{lines}\n\tst.global.u32 [%out], %r20;\n"
        );
        if Body::new(&text, &input, 1).known("match.any.sync.b64") {
            each_lane(lines, &input, same);
        }
        let one = input.iter().all(|&value| value == input[0]);
        let lines = "\tmatch.all.sync.b32 %r20|%p4, %r10, -1;\n\t@%p4 add.s32 %r20, %r20, 1;";
        let text = format!("\tmov.u32 %r10, 3;\n{lines}\n\tst.global.u32 [%out], %r20;\n");
        if Body::new(&text, &input, 1).known("match.all.sync.b32") {
            // All ones and a true predicate wrap to 0; no match leaves 0 too but for the single value's mask.
            let lines = "\tmatch.all.sync.b32 %r20|%p4, %r10, -1;\n\t@%p4 sub.s32 %r20, %r20, 1;";
            each_lane(lines, &input, |_| if one { 0xffff_fffe } else { 0 });
        }
    }
}

#[test]
fn reductions_over_a_warp() {
    let mut random = Random::new(102);
    let input: Vec<u32> = (0..32).map(|_| random.word()).collect();
    let signed = |x: u32| x as i32;
    let all = |f: fn(u32, u32) -> u32| input.iter().copied().reduce(f).expect("lanes");
    for (op, want) in [
        ("redux.sync.add.u32", all(u32::wrapping_add)),
        ("redux.sync.add.s32", all(u32::wrapping_add)),
        ("redux.sync.min.u32", all(u32::min)),
        ("redux.sync.max.u32", all(u32::max)),
        ("redux.sync.min.s32", input.iter().copied().map(signed).min().expect("lanes") as u32),
        ("redux.sync.max.s32", input.iter().copied().map(signed).max().expect("lanes") as u32),
        ("redux.sync.and.b32", all(|a, b| a & b)),
        ("redux.sync.or.b32", all(|a, b| a | b)),
        ("redux.sync.xor.b32", all(|a, b| a ^ b)),
    ] {
        let text = format!("\tmov.u32 %r10, 0;\n\t{op} %r20, %r10, -1;\n\tst.global.u32 [%out], %r20;\n");
        if !Body::new(&text, &[0], 1).known(op) {
            continue;
        }
        each_lane(&format!("\t{op} %r20, %r10, -1;"), &input, |_| want);
        let lines =
            format!("\tmov.u32 %r20, 5;\n\tsetp.ge.u32 %p3, %l, 1;\n\t@%p3 bra SKIP;\n\t{op} %r20, %r10, 1;\nSKIP:");
        each_lane(&lines, &input, |lane| if lane == 0 { input[0] } else { 5 });
    }
}
