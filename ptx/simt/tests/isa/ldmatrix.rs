//! 9.7.14.5.15 "ldmatrix", shape m8n8 of 16-bit elements. Lanes 8 i to 8 i + 7 give the addresses of the rows of matrix
//! i, 16 bytes each, anywhere in shared memory; lane l receives of each matrix the elements 2 (l % 4) and the next of row
//! l / 4, the first in the low half. With `.trans` it receives the element of column l / 4 from rows 2 (l % 4) and the
//! next. The lanes whose addresses no matrix needs may hold anything.

use crate::harness::Body;

/// Rows lie 48 bytes apart and out of order, so that no layout fits by chance.
const ROW_BYTES: u32 = 48;

fn place(matrix: u32, row: u32) -> u32 {
    ((matrix * 8 + row) * 13 % 32) * ROW_BYTES
}

/// The element at row and column of a matrix: all different.
fn element(matrix: u32, row: u32, column: u32) -> u32 {
    0x1000 + matrix * 256 + row * 16 + column
}

/// Shared memory of all four matrices, as words.
fn shared_words() -> Vec<u32> {
    let mut words = vec![0xeeee_eeee; (32 * ROW_BYTES / 4) as usize];
    for matrix in 0..4 {
        for row in 0..8 {
            for pair in 0..4 {
                let at = (place(matrix, row) / 4 + pair) as usize;
                words[at] = element(matrix, row, 2 * pair) | element(matrix, row, 2 * pair + 1) << 16;
            }
        }
    }
    words
}

fn run(op: &str, count: u32, transposed: bool, garbage: bool, address: &str) {
    let words = shared_words();
    let mut input = words.clone();
    // The address of each lane; the lanes beyond the matrices get an odd address far away, or that of a good row.
    input.extend((0..32).map(|lane| match lane < 8 * count {
        true => place(lane / 8, lane % 8),
        false if garbage => 0x00ff_ff01,
        false => 0,
    }));
    let registers: Vec<String> = (0..count).map(|i| format!("%r{}", 20 + i)).collect();
    let stores: String = (0..count).map(|i| format!("\tst.global.u32 [%out+{}], %r{};\n", 4 * i, 20 + i)).collect();
    let text = format!(
        "\tmov.u32 %r10, smem;\n\tmov.u32 %r11, %l;\nFILL:\n\tmul.wide.u32 %q1, %r11, 4;\n\tadd.s64 %q2, %in, %q1;\n\
         \tld.global.u32 %r12, [%q2];\n\tmad.lo.s32 %r13, %r11, 4, %r10;\n\tst.shared.u32 [%r13], %r12;\n\tadd.s32 %r11, %r11, 32;\n\
         \tsetp.lt.u32 %p1, %r11, {};\n\t@%p1 bra FILL;\n\tbar.sync 0;\n\
         \tmul.wide.u32 %q1, %l, 4;\n\tadd.s64 %q2, %in, %q1;\n\tld.global.u32 %r12, [%q2+{}];\n\tadd.s32 %r13, %r10, %r12;\n\
         {address}\t{op} {{{}}}, [{}];\n{stores}",
        words.len(),
        4 * words.len(),
        registers.join(", "),
        if address.is_empty() { "%r13" } else { "%q9" },
    );
    let shared = u32::try_from(4 * words.len()).expect("little");
    Body::new(&text, &input, count as usize).shared(shared).expect(|lane| {
        let (group, pair) = (lane as u32 / 4, lane as u32 % 4);
        (0..count)
            .map(|matrix| match transposed {
                false => element(matrix, group, 2 * pair) | element(matrix, group, 2 * pair + 1) << 16,
                true => element(matrix, 2 * pair, group) | element(matrix, 2 * pair + 1, group) << 16,
            })
            .collect()
    });
}

#[test]
fn every_element_of_every_form() {
    for (op, count, transposed) in [
        ("ldmatrix.sync.aligned.m8n8.x1.shared.b16", 1, false),
        ("ldmatrix.sync.aligned.m8n8.x2.shared.b16", 2, false),
        ("ldmatrix.sync.aligned.m8n8.x4.shared.b16", 4, false),
        ("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16", 1, true),
        ("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16", 2, true),
        ("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", 4, true),
    ] {
        run(op, count, transposed, false, "");
        run(op, count, transposed, true, "");
        // A 64-bit register may hold the address too.
        run(op, count, transposed, false, "\tcvt.u64.u32 %q9, %r13;\n");
    }
}

#[test]
fn rows_must_be_aligned() {
    let text = "\tmov.u32 %r10, smem;\n\tmad.lo.s32 %r11, %l, 16, %r10;\n\tst.shared.v2.u64 [%r11], {%q0, %q0};\n\tbar.sync 0;\n\
                \tadd.s32 %r12, %r11, 8;\n\tand.b32 %r12, %r12, 127;\n\
                \tldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r20}, [%r12];\n\tst.global.u32 [%out], %r20;\n";
    let body = Body::new(text, &[0], 1).shared(1024);
    let fault = body.fault();
    assert_eq!(fault.line, body.line_of("ldmatrix"), "{fault}");
}
