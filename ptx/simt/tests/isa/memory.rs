//! Loads, stores and addresses: 9.7.9 "Data Movement" (ld, ld.global.nc, st, mov, cvta, isspacep), 9.4.1 "Operand Size
//! Exceeding Instruction-Type Size" and 6.4.1 "Addresses as Operands".
//!
//! A load into a wider register extends by its type: the sign for s types, zeros for u and b types. A store takes the low
//! bits of a wider register. Vectors are consecutive elements, the first at the lowest address. `cvta` makes an address
//! of a state space generic and `cvta.to` takes it back.

use crate::harness::Body;
use crate::values::Random;

/// 256 bytes with all signs, and every byte of a word different.
fn pattern() -> Vec<u32> {
    let mut random = Random::new(80);
    (0..64).map(|_| random.word()).collect()
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

const TYPES: [(&str, u32); 12] = [
    ("u8", 8),
    ("s8", 8),
    ("b8", 8),
    ("u16", 16),
    ("s16", 16),
    ("b16", 16),
    ("u32", 32),
    ("s32", 32),
    ("b32", 32),
    ("u64", 64),
    ("s64", 64),
    ("b64", 64),
];

/// Lines that leave the address of the pattern, in the space, in `%q40`, and the suffix of loads from there.
fn space(name: &str) -> (String, &'static str, &'static str) {
    // Lane i brings word pairs i; for local memory every lane brings all.
    let shared = "\tmul.wide.u32 %q1, %t, 8;\n\tadd.s64 %q2, %in, %q1;\n\tld.global.u64 %q3, [%q2];\n\
                  \tmov.u64 %q40, smem;\n\tadd.s64 %q4, %q40, %q1;\n\tst.shared.u64 [%q4], %q3;\n\tbar.sync 0;\n";
    let mut local = String::from("\tmov.u64 %q40, depot;\n");
    for i in 0..32 {
        local += &format!("\tld.global.u64 %q3, [%in+{}];\n\tst.local.u64 [%q40+{}], %q3;\n", 8 * i, 8 * i);
    }
    let depot = "\t.local .align 16 .b8 depot[256];\n";
    match name {
        "global" => ("\tmov.u64 %q40, %in;\n".into(), ".global", ""),
        "nc" => ("\tmov.u64 %q40, %in;\n".into(), ".global.nc", ""),
        "shared" => (shared.into(), ".shared", ""),
        "local" => (local, ".local", depot),
        "generic global" => ("\tcvta.global.u64 %q40, %in;\n".into(), "", ""),
        "generic shared" => (format!("{shared}\tcvta.shared.u64 %q40, %q40;\n"), "", ""),
        "generic local" => (format!("{local}\tcvta.local.u64 %q40, %q40;\n"), "", depot),
        other => panic!("no space {other}"),
    }
}

const SPACES: [&str; 7] = ["global", "nc", "shared", "local", "generic global", "generic shared", "generic local"];

/// Spellings that this file builds.
pub fn generated() -> Vec<String> {
    let mut all = Vec::new();
    for space in ["", ".global", ".global.nc", ".shared", ".local"] {
        for (name, _) in TYPES {
            all.push(format!("ld{space}.{name}"));
            if !space.ends_with("nc") {
                all.push(format!("st{space}.{name}"));
            }
        }
        for vector in VECTORS {
            all.push(format!("ld{space}.{vector}"));
            if !space.ends_with("nc") {
                all.push(format!("st{space}.{vector}"));
            }
        }
        for float in ["f32", "f64"] {
            all.push(format!("ld{space}.{float}"));
            if !space.ends_with("nc") {
                all.push(format!("st{space}.{float}"));
            }
        }
    }
    all
}

#[test]
fn loads_extend_into_wider_registers() {
    let input = pattern();
    let memory = bytes(&input);
    for name in SPACES {
        let (set_up, suffix, depot) = space(name);
        for (type_name, bits) in TYPES {
            let size = bits / 8;
            for (register, register_bits) in [("%h1", 16), ("%r20", 32), ("%q20", 64)] {
                if register_bits < bits {
                    continue;
                }
                let widen = match register_bits {
                    16 => "cvt.u64.u16 %q21, %h1;",
                    32 => "cvt.u64.u32 %q21, %r20;",
                    _ => "mov.b64 %q21, %q20;",
                };
                let text = format!(
                    "{depot}{set_up}\tmul.wide.u32 %q5, %t, {size};\n\tadd.s64 %q6, %q40, %q5;\n\
                     \tld{suffix}.{type_name} {register}, [%q6];\n\t{widen}\n\tst.global.u64 [%out], %q21;\n"
                );
                Body::new(&text, &input, 2).shared(256).expect(|lane| {
                    let mut low = [0; 8];
                    let at = lane * size as usize;
                    low[..size as usize].copy_from_slice(&memory[at..][..size as usize]);
                    let raw = u64::from_le_bytes(low);
                    let shift = 64 - bits;
                    let value = if type_name.starts_with('s') { ((raw << shift) as i64 >> shift) as u64 } else { raw };
                    let value = value & (u64::MAX >> (64 - register_bits));
                    vec![value as u32, (value >> 32) as u32]
                });
            }
        }
        let text = format!(
            "{depot}{set_up}\tmul.wide.u32 %q5, %t, 8;\n\tadd.s64 %q6, %q40, %q5;\n\tld{suffix}.f32 %f1, [%q6];\n\
             \tld{suffix}.f64 %g1, [%q6];\n\tst.global.f32 [%out], %f1;\n\tst.global.f64 [%out+8], %g1;\n"
        );
        Body::new(&text, &input, 4)
            .shared(256)
            .expect(|lane| vec![input[2 * lane], 0xcdcd_cdcd, input[2 * lane], input[2 * lane + 1]]);
    }
}

#[test]
fn stores_take_the_low_bits() {
    let value = 0x8877_6655_4433_2211_u64;
    for (type_name, bits) in TYPES {
        for (register, set, register_bits) in [
            ("%h1", "mov.u16 %h1, 0x2211;", 16),
            ("%r20", "mov.u32 %r20, 0x44332211;", 32),
            ("%q20", "mov.u64 %q20, 0x8877665544332211;", 64),
        ] {
            if register_bits < bits {
                continue;
            }
            let size = bits as usize / 8;
            let want = |offset: usize| {
                let mut memory = [0xcd_u8; 32];
                memory[offset..offset + size].copy_from_slice(&value.to_le_bytes()[..size]);
                memory
                    .chunks_exact(4)
                    .map(|word| u32::from_le_bytes(word.try_into().expect("four")))
                    .collect::<Vec<_>>()
            };
            // Only the bytes named change, at the start and at an odd place.
            for offset in [0, 8 + size] {
                let text = format!("\t{set}\n\tst.global.{type_name} [%out+{offset}], {register};\n");
                Body::new(&text, &[0], 8).expect(|_| want(offset));
                let text =
                    format!("\t{set}\n\tcvta.global.u64 %q1, %out;\n\tst.{type_name} [%q1+{offset}], {register};\n");
                Body::new(&text, &[0], 8).expect(|_| want(offset));
                for (space, declaration, base) in
                    [("shared", "", "smem"), ("local", "\t.local .align 16 .b8 depot[32];\n", "depot")]
                {
                    let copy: String = (0..4)
                        .map(|i| {
                            format!("\tld.{space}.u64 %q3, [%q30+{}];\n\tst.global.u64 [%out+{}], %q3;\n", 8 * i, 8 * i)
                        })
                        .collect();
                    let clear: String = (0..4).map(|i| format!("\tst.{space}.u64 [%q30+{}], %q2;\n", 8 * i)).collect();
                    let place = if space == "shared" {
                        "\tmul.wide.u32 %q29, %l, 32;\n\tadd.s64 %q30, %q30, %q29;\n"
                    } else {
                        ""
                    };
                    let text = format!(
                        "{declaration}\tmov.u64 %q30, {base};\n{place}\tmov.u64 %q2, 0xcdcdcdcdcdcdcdcd;\n{clear}\t{set}\n\
                         \tst.{space}.{type_name} [%q30+{offset}], {register};\n{copy}"
                    );
                    Body::new(&text, &[0], 8).shared(1024).expect(|_| want(offset));
                }
            }
        }
    }
}

const VECTORS: [&str; 18] = [
    "v2.u8", "v2.u16", "v2.u32", "v2.u64", "v2.b16", "v2.b32", "v2.b64", "v2.f32", "v2.f64", "v2.s32", "v4.u8",
    "v4.u16", "v4.u32", "v4.b8", "v4.b16", "v4.b32", "v4.f32", "v4.s32",
];

/// The registers and widths of a vector type.
fn vector(name: &str) -> (Vec<String>, usize) {
    let count = if name.starts_with("v2") { 2 } else { 4 };
    let class = match &name[3..] {
        "u8" | "b8" | "u16" | "b16" => "%h",
        "u64" | "b64" => "%q",
        "f32" => "%f",
        "f64" => "%g",
        _ => "%r",
    };
    let bytes = name[4..].parse::<usize>().expect("bits of an element") / 8;
    ((10..10 + count).map(|i| format!("{class}{i}")).collect(), bytes)
}

#[test]
fn vectors_are_consecutive_elements() {
    let input: Vec<u32> = pattern().into_iter().cycle().take(256).collect();
    let memory = bytes(&input);
    for name in VECTORS {
        let (registers, size) = vector(name);
        let list = registers.join(", ");
        let bytes_all = size * registers.len();
        let single = &name[3..];
        // Each vector is loaded from a space and its elements stored one by one, and the other way round.
        for space in ["global", "global.nc", "generic", "shared", "local"] {
            let (local, place) = match space {
                "shared" => (
                    "",
                    format!(
                        "\tmov.u64 %q30, smem;\n\tmul.wide.u32 %q29, %l, {bytes_all};\n\tadd.s64 %q30, %q30, %q29;\n"
                    ),
                ),
                "local" => ("\t.local .align 32 .b8 depot[32];\n", "\tmov.u64 %q30, depot;\n".into()),
                _ => ("", format!("\tmul.wide.u32 %q29, %t, {bytes_all};\n\tadd.s64 %q30, %in, %q29;\n")),
            };
            let one_by_one = |op: &str, base: &str| -> String {
                registers
                    .iter()
                    .enumerate()
                    .map(|(i, register)| match op {
                        "ld.global" => format!("\tld.global.{single} {register}, [{base}+{}];\n", i * size),
                        _ => format!("\t{op}.{single} [{base}+{}], {register};\n", i * size),
                    })
                    .collect()
            };
            let suffix = if space == "generic" { String::new() } else { format!(".{space}") };
            let fill = match space {
                "shared" | "local" => format!(
                    "\tmul.wide.u32 %q28, %t, {bytes_all};\n\tadd.s64 %q27, %in, %q28;\n{}\tst.{space}.{name} [%q30], {{{list}}};\n",
                    one_by_one("ld.global", "%q27")
                ),
                _ => String::new(),
            };
            let text = format!(
                "{local}{place}{fill}\tld{suffix}.{name} {{{list}}}, [%q30];\n{}",
                one_by_one("st.global", "%out")
            );
            let words = bytes_all.div_ceil(4);
            Body::new(&text, &input, words).shared(1024).expect(|lane| {
                let mut want = vec![0xcd; 4 * words];
                want[..bytes_all].copy_from_slice(&memory[lane * bytes_all..][..bytes_all]);
                want.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().expect("four"))).collect()
            });
        }
        let text = format!(
            "\tmul.wide.u32 %q28, %t, {bytes_all};\n\tadd.s64 %q27, %in, %q28;\n\tld.global.{name} {{{list}}}, [%q27];\n\
             \tst.global.{name} [%out], {{{list}}};\n\tcvta.global.u64 %q26, %out;\n\tst.{name} [%q26+32], {{{list}}};\n"
        );
        Body::new(&text, &input, 16).expect(|lane| {
            let mut want = [0xcd_u8; 64];
            want[..bytes_all].copy_from_slice(&memory[lane * bytes_all..][..bytes_all]);
            want[32..32 + bytes_all].copy_from_slice(&memory[lane * bytes_all..][..bytes_all]);
            want.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().expect("four"))).collect()
        });
    }
}

#[test]
fn hints_and_orderings_move_the_same_data() {
    let input = pattern();
    // Cache hints say how, never what. Those that the executor must know stand first.
    for (load, list, required) in [
        ("ld.global.nc.L1::no_allocate.v4.u32", "{%r10,%r11,%r12,%r13}", true),
        ("ld.global.nc.v4.u32", "{%r10,%r11,%r12,%r13}", true),
        ("ld.global.nc.v2.u32", "{%r10,%r11}", true),
        ("ld.global.nc.u32", "%r10", true),
        ("ld.volatile.global.u32", "%r10", false),
        ("ld.relaxed.gpu.global.u32", "%r10", false),
        ("ld.acquire.gpu.global.u32", "%r10", false),
        ("ld.acquire.sys.global.u32", "%r10", false),
        ("ld.global.L1::no_allocate.u32", "%r10", false),
        ("ld.global.L1::evict_last.u32", "%r10", false),
        ("ld.global.nc.L1::evict_last.v4.u32", "{%r10,%r11,%r12,%r13}", false),
        ("ld.global.L2::128B.v4.u32", "{%r10,%r11,%r12,%r13}", false),
        ("ld.global.nc.L1::no_allocate.L2::128B.v4.u32", "{%r10,%r11,%r12,%r13}", false),
        ("ld.global.ca.u32", "%r10", false),
        ("ld.global.cg.u32", "%r10", false),
        ("ld.global.cs.v4.u32", "{%r10,%r11,%r12,%r13}", false),
    ] {
        let count = list.matches('%').count();
        let stores: String = (0..count).map(|i| format!("\tst.global.u32 [%out+{}], %r{};\n", 4 * i, 10 + i)).collect();
        let text = format!(
            "\tand.b32 %r3, %l, 15;\n\tmul.wide.u32 %q1, %r3, 16;\n\tadd.s64 %q2, %in, %q1;\n\t{load} {list}, [%q2];\n{stores}"
        );
        let body = Body::new(&text, &input, count);
        if required || body.known(load) {
            body.expect(|lane| input[4 * (lane % 16)..][..count].to_vec());
        }
    }
    for store in [
        "st.volatile.global.u32",
        "st.relaxed.gpu.global.u32",
        "st.release.gpu.global.u32",
        "st.global.cs.u32",
        "st.global.cg.u32",
    ] {
        let text = format!("\tadd.s32 %r3, %t, 77;\n\t{store} [%out], %r3;\n");
        let body = Body::new(&text, &[0], 1);
        if body.known(store) {
            body.expect(|lane| vec![lane as u32 + 77]);
        }
    }
}

#[test]
fn addresses() {
    let input = pattern();
    // Offsets of both signs on a register, and on a symbol.
    let text = "\tadd.s64 %q1, %in, 64;\n\tld.global.u32 %r10, [%q1+-8];\n\tld.global.u32 %r11, [%q1+8];\n\
                \tld.global.u32 %r12, [%q1];\n\tld.global.u32 %r13, [%q1+-4];\n\tst.global.v4.u32 [%out], {%r10, %r11, %r12, %r13};\n";
    Body::new(text, &input, 4).expect(|_| vec![input[14], input[18], input[16], input[15]]);
    let text = "\tmov.u32 %r10, 7;\n\tmov.u32 %r11, 9;\n\tst.shared.u32 [smem+4], %r10;\n\tst.shared.u32 [smem+100], %r11;\n\
                \tmov.u32 %r12, smem;\n\tld.shared.u32 %r13, [%r12+100];\n\tld.shared.u32 %r14, [smem+4];\n\
                \tst.global.v2.u32 [%out], {%r13, %r14};\n";
    Body::new(text, &[0], 2).threads(1).shared(128).expect(|_| vec![9, 7]);
    // A 32-bit register addresses shared memory, and static shared memory stands before the dynamic array.
    let text = "\tmov.u32 %r10, table;\n\tmad.lo.s32 %r11, %l, 4, %r10;\n\tmul.lo.s32 %r12, %l, %l;\n\tst.shared.u32 [%r11], %r12;\n\
                \tmov.u32 %r13, smem;\n\tmad.lo.s32 %r14, %l, 4, %r13;\n\tst.shared.u32 [%r14], %l;\n\tbar.sync 0;\n\
                \txor.b32 %r15, %l, 31;\n\tmad.lo.s32 %r16, %r15, 4, %r10;\n\tld.shared.u32 %r17, [%r16];\n\
                \tmad.lo.s32 %r18, %r15, 4, %r13;\n\tld.shared.u32 %r19, [%r18];\n\tst.global.v2.u32 [%out], {%r17, %r19};\n";
    Body::new(text, &[0], 2).shared(128).declare(".shared .align 4 .b8 table[128];").expect(|lane| {
        let other = 31 - lane as u32;
        vec![other * other, other]
    });
}

#[test]
fn generic_addresses_come_back() {
    // From a space to generic and back is the identity, and the windows of the spaces do not overlap.
    let text = "\t.local .align 16 .b8 depot[16];\n\
                \tcvta.global.u64 %q1, %in;\n\tcvta.to.global.u64 %q2, %q1;\n\tsub.s64 %q3, %q2, %in;\n\tst.global.u64 [%out], %q3;\n\
                \tmov.u64 %q4, smem;\n\tcvta.shared.u64 %q5, %q4;\n\tcvta.to.shared.u64 %q6, %q5;\n\tsub.s64 %q7, %q6, %q4;\n\
                \tst.global.u64 [%out+8], %q7;\n\
                \tmov.u64 %q8, depot;\n\tcvta.local.u64 %q9, %q8;\n\tcvta.to.local.u64 %q10, %q9;\n\tsub.s64 %q11, %q10, %q8;\n\
                \tst.global.u64 [%out+16], %q11;\n\
                \tmov.u32 %r10, 11;\n\tmov.u32 %r11, 22;\n\tst.shared.u32 [smem], %r10;\n\tst.local.u32 [%q8], %r11;\n\
                \tld.u32 %r12, [%q5];\n\tld.u32 %r13, [%q9];\n\tst.global.v2.u32 [%out+24], {%r12, %r13};\n\
                \tst.u32 [%q5], %r13;\n\tst.u32 [%q9], %r12;\n\tld.shared.u32 %r14, [smem];\n\tld.local.u32 %r15, [%q8];\n\
                \tst.global.v2.u32 [%out+32], {%r14, %r15};\n";
    Body::new(text, &[0], 10).threads(1).shared(16).expect(|_| vec![0, 0, 0, 0, 0, 0, 11, 22, 22, 11]);
    // Local memory is each thread's own.
    let text = "\t.local .align 16 .b8 depot[64];\n\tmov.u64 %q1, depot;\n\tcvta.local.u64 %q2, %q1;\n\
                \tand.b32 %r10, %l, 7;\n\tmul.wide.u32 %q3, %r10, 4;\n\tadd.s64 %q4, %q2, %q3;\n\tst.u32 [%q4], %t;\n\
                \tbar.warp.sync 0xffffffff;\n\tadd.s64 %q5, %q1, %q3;\n\tld.local.u32 %r11, [%q5];\n\tst.global.u32 [%out], %r11;\n";
    Body::new(text, &[0], 1).threads(64).expect(|thread| vec![thread as u32]);
    let text = "\tcvta.global.u64 %q1, %in;\n\tisspacep.global %p1, %q1;\n\tisspacep.shared %p2, %q1;\n\tselp.u32 %r10, 1, 0, %p1;\n\
                \tselp.u32 %r11, 1, 0, %p2;\n\tst.global.v2.u32 [%out], {%r10, %r11};\n";
    let body = Body::new(text, &[0], 2);
    if body.known("isspacep") {
        body.expect(|_| vec![1, 0]);
    }
}

#[test]
fn moves_pack_and_unpack() {
    // 9.7.9.4 "mov" packs from the lowest bits up, and unpacks the same way; a sink drops its part.
    let text = "\tld.global.v2.u32 {%r10, %r11}, [%in];\n\tmov.b64 %q1, {%r10, %r11};\n\tst.global.u64 [%out], %q1;\n\
                \tmov.b64 {%r12, %r13}, %q1;\n\tst.global.v2.u32 [%out+8], {%r13, %r12};\n\
                \tmov.b32 {%h1, %h2}, %r10;\n\tst.global.u16 [%out+16], %h2;\n\tst.global.u16 [%out+18], %h1;\n\
                \tmov.b32 %r14, {%h2, %h1};\n\tst.global.u32 [%out+20], %r14;\n\
                \tmov.b64 %q2, {%h1, %h2, %h2, %h1};\n\tst.global.u64 [%out+24], %q2;\n\
                \tmov.b64 {%h3, %h4, %h5, %h6}, %q1;\n\tst.global.v4.u16 [%out+32], {%h6, %h5, %h4, %h3};\n\
                \t{ .reg .b16 tmp; mov.b32 {tmp, %h7}, %r11; }\n\tst.global.u16 [%out+40], %h7;\n\tst.global.u16 [%out+42], %h7;\n\
                \tmov.b32 %f1, %r10;\n\tmov.f32 %f2, %f1;\n\tmov.b32 %r15, %f2;\n\tst.global.u32 [%out+44], %r15;\n";
    let (a, b) = (0x8765_4321, 0xfedc_ba98);
    let halves = |low: u32, high: u32| (high & 0xffff) << 16 | low & 0xffff;
    Body::new(text, &[a, b], 12).expect(|_| {
        vec![
            a,
            b,
            b,
            a,
            halves(a >> 16, a),
            halves(a >> 16, a),
            halves(a, a >> 16),
            halves(a >> 16, a),
            halves(b >> 16, b),
            halves(a >> 16, a),
            halves(b >> 16, b >> 16),
            a,
        ]
    });
    let text = "\tmov.f32 %f1, 0f40490FDB;\n\tmov.f64 %g1, 0d400921FB54442D18;\n\tmov.u32 %r10, -2;\n\tmov.b64 %q1, -3;\n\tmov.u16 %h1, -1;\n\
                \tst.global.f32 [%out], %f1;\n\tst.global.u32 [%out+4], %r10;\n\tst.global.f64 [%out+8], %g1;\n\tst.global.u64 [%out+16], %q1;\n\
                \tst.global.u16 [%out+24], %h1;\n\tmov.s32 %r11, 5;\n\tst.global.s32 [%out+28], %r11;\n\tmov.b16 %h2, 3;\n\
                \tst.global.b16 [%out+26], %h2;\n\tmov.b32 %r12, 0f3F800000;\n\tst.global.b32 [%out+32], %r12;\n\
                \tmov.u64 %q2, 0x123456789;\n\tst.global.b64 [%out+40], %q2;\n\tmov.f64 %g2, 0dBFF0000000000000;\n\
                \tst.global.f64 [%out+48], %g2;\n";
    Body::new(text, &[0], 14).expect(|_| {
        let pi = std::f64::consts::PI.to_bits();
        let poison = 0xcdcd_cdcd;
        vec![
            std::f32::consts::PI.to_bits(),
            0xffff_fffe,
            pi as u32,
            (pi >> 32) as u32,
            0xffff_fffd,
            0xffff_ffff,
            0x0003_ffff,
            5,
            0x3f80_0000,
            poison,
            0x2345_6789,
            1,
            0,
            0xbff0_0000,
        ]
    });
}
