//! Global memory that threads of a block exchange without a barrier that orders them.

use crate::plant::Plant;
use simt::FaultKind::{Race, ReadOnlyWritten};

/// A body with a barrier or without, leaked so that a `Plant` holds it.
fn body(text: String) -> &'static str {
    text.leak()
}

#[test]
fn warps_exchange_words() {
    // Each thread stores its word and loads that of its counterpart in the other warp.
    let text = |barrier: &str, mark: &str| {
        body(format!(
            "st.global.u32 [%rd1], %t; {mark}\n{barrier}xor.b32 %r1, %s, 128;\ncvt.u64.u32 %rd3, %r1;\n\
             add.s64 %rd3, %data, %rd3;\nld.global.u32 %r2, [%rd3];\nst.global.u32 [%rd2], %r2;"
        ))
    };
    // The first warp has read the word that the second stores.
    let fault = Plant::new(text("", "// here")).fails(Race, 0, 32);
    assert!(fault.detail.contains("global memory read by thread 0 with no barrier since"), "{fault}");
    assert!(fault.detail.contains("128 bytes into the allocation 0x7000000000 of 2048 bytes"), "{fault}");
    Plant::new(text("bar.warp.sync -1;\n", "// here")).fails(Race, 0, 32);
    Plant::new(text("bar.sync 0;\n", "")).passes();
    Plant::new(text("bar.sync 3, 64;\n", "")).passes();
}

#[test]
fn a_word_is_read_behind_its_store() {
    let text = |barrier: &str, mark: &str| {
        body(format!(
            "setp.eq.u32 %p1, %t, 5;\n@%p1 st.global.u32 [%data], 9;\n{barrier}ld.global.u32 %r2, [%data]; {mark}\n\
             st.global.u32 [%rd2], %r2;"
        ))
    };
    let fault = Plant::new(text("", "// here")).fails(Race, 0, 0);
    assert!(fault.detail.contains("global memory written by thread 5"), "{fault}");
    Plant::new(text("bar.sync 0;\n", "")).passes();
}

#[test]
fn a_warp_exchanges_words_without_its_barrier() {
    let text = |barrier: &str, mark: &str| {
        body(format!(
            "st.global.u32 [%rd1], %t;\n{barrier}xor.b32 %r1, %s, 4;\ncvt.u64.u32 %rd3, %r1;\nadd.s64 %rd3, %data, %rd3;\n\
             ld.global.u32 %r2, [%rd3]; {mark}\nst.global.u32 [%rd2], %r2;"
        ))
    };
    let fault = Plant::new(text("", "// here")).fails(Race, 0, 0);
    assert!(fault.detail.contains("written by thread 1"), "{fault}");
    // Lanes that do not meet at the barrier are not ordered by it.
    let apart = "and.b32 %r3, %t, 1;\nsetp.eq.u32 %p1, %r3, 0;\n@%p1 bra EVEN;\nbar.warp.sync 0xaaaaaaaa;\nbra.uni MET;\n\
                 EVEN:\nbar.warp.sync 0x55555555;\nMET:\n";
    Plant::new(text(&apart.replace("bra.uni", "bra"), "// here")).fails(Race, 0, 0);
    Plant::new(text("bar.warp.sync -1;\n", "")).passes();
    Plant::new(text("bar.sync 0;\n", "")).passes();
}

#[test]
fn a_word_is_replaced_that_others_still_read() {
    let text = |barrier: &str, mark: &str| {
        body(format!(
            "ld.global.u32 %r1, [%data];\n{barrier}setp.eq.u32 %p1, %t, 40;\n@%p1 st.global.u32 [%data], %t; {mark}\n\
             st.global.u32 [%rd2], %r1;"
        ))
    };
    let fault = Plant::new(text("", "// here")).fails(Race, 0, 40);
    assert!(fault.detail.contains("read by several threads of the block"), "{fault}");
    Plant::new(text("bar.sync 0;\n", "")).passes();
}

#[test]
fn barriers_of_some_warps_order_those_alone() {
    // Warps 0 and 1 meet; warp 2 reads as well.
    let text = |reads: &str, mark: &str| {
        body(format!(
            "setp.lt.u32 %p1, %t, 32;\n@%p1 st.global.u32 [%rd1], %t;\nsetp.lt.u32 %p2, %t, 64;\n@!%p2 bra PAST;\n\
             bar.sync 1, 64;\nPAST:\nsetp.{reads}.u32 %p3, %t, 32;\nand.b32 %r1, %s, 124;\ncvt.u64.u32 %rd3, %r1;\n\
             add.s64 %rd3, %data, %rd3;\n@%p3 ld.global.u32 %r2, [%rd3]; {mark}\n"
        ))
    };
    let plant = |body| Plant { threads: 96, ..Plant::new(body) };
    plant(text("ge", "// here")).fails(Race, 0, 64);
    let two = text("ge", "").replace("setp.ge.u32 %p3, %t, 32;", "sub.u32 %r3, %t, 32;\nsetp.lt.u32 %p3, %r3, 32;");
    plant(body(two)).passes();
}

#[test]
fn two_threads_store_unlike_values() {
    let fault = Plant::new("st.global.u32 [%data], %t; // here").fails(Race, 0, 1);
    assert!(fault.detail.contains("written by thread 0"), "{fault}");
    let warps = "shr.u32 %r1, %t, 5;\nst.global.u32 [%data], %r1; // here";
    Plant::new(warps).fails(Race, 0, 32);
    Plant::new("st.global.u32 [%data], 7;").passes();
}

#[test]
fn bytes_of_a_word_are_told_apart() {
    let text = |width: u32, partner: u32, barrier: &str, mark: &str| {
        let (ty, bytes) = (format!("u{}", 8 * width), width);
        body(format!(
            "cvt.u16.u32 %h, %t;\nmul.wide.u32 %rd3, %t, {bytes};\nadd.s64 %rd4, %data, %rd3;\n\
             st.global.{ty} [%rd4], %h;\n{barrier}xor.b32 %r1, %t, {partner};\nmul.wide.u32 %rd5, %r1, {bytes};\n\
             add.s64 %rd6, %data, %rd5;\nld.global.{ty} %h, [%rd6]; {mark}\ncvt.u32.u16 %r2, %h;\n\
             st.global.u32 [%rd2], %r2;"
        ))
    };
    let plant = |text: &str| Plant::new(body(format!(".reg .b16 %h;\n{text}")));
    for width in [1, 2] {
        // The neighbour's bytes lie in the same word.
        plant(text(width, 1, "", "// here")).fails(Race, 0, 0);
        plant(text(width, 1, "bar.warp.sync -1;\n", "")).passes();
        plant(text(width, 0, "", "")).passes();
        plant(text(width, 32, "bar.sync 0;\n", "")).passes();
    }
    // Words after bytes and bytes after words.
    let words = "cvt.u64.u32 %rd3, %t;\nadd.s64 %rd3, %data, %rd3;\nst.global.u8 [%rd3], %t;\n";
    let load = "setp.lt.u32 %p1, %t, 16;\n@%p1 ld.global.u32 %r1, [%rd1]; // here";
    Plant::new(body(format!("{words}{load}"))).fails(Race, 0, 0);
    Plant::new(body(format!("{words}bar.sync 0;\n{}", load.replace("// here", "")))).passes();
    let bytes = "st.global.u32 [%rd1], %t;\n";
    let load =
        "xor.b32 %r1, %t, 4;\ncvt.u64.u32 %rd3, %r1;\nadd.s64 %rd3, %data, %rd3;\nld.global.u8 %r2, [%rd3]; // here";
    Plant::new(body(format!("{bytes}{load}"))).fails(Race, 0, 0);
    Plant::new(body(format!("{bytes}bar.sync 0;\n{}", load.replace("// here", "")))).passes();
}

#[test]
fn wide_accesses() {
    let text = |barrier: &str, mark: &str| {
        body(format!(
            "and.b32 %r1, %t, 15;\nmul.wide.u32 %rd3, %r1, 16;\nadd.s64 %rd3, %data, %rd3;\nsetp.lt.u32 %p1, %t, 16;\n\
             @%p1 st.global.v4.u32 [%rd3], {{%t, %t, %t, %t}};\n{barrier}\
             ld.global.v2.u32 {{%r2, %r3}}, [%rd3+8]; {mark}\nst.global.u32 [%rd2], %r2;"
        ))
    };
    Plant::new(text("", "// here")).fails(Race, 0, 16);
    Plant::new(text("bar.sync 0;\n", "")).passes();
}

#[test]
fn a_copy_from_what_another_thread_stores() {
    let text = |barrier: &str, mark: &str| {
        body(format!(
            "st.global.u32 [%rd1], %t;\n{barrier}and.b32 %r1, %t, 15;\nmul.wide.u32 %rd3, %r1, 16;\n\
             add.s64 %rd3, %data, %rd3;\nshl.b32 %r2, %t, 4;\ncp.async.cg.shared.global [%r2], [%rd3], 16; {mark}\n\
             cp.async.wait_all;\nld.shared.u32 %r3, [%r2];\nst.global.u32 [%rd2], %r3;"
        ))
    };
    Plant::new(text("", "// here")).fails(Race, 0, 0);
    Plant::new(text("bar.sync 0;\n", "")).passes();
}

#[test]
fn a_store_to_what_was_loaded_read_only() {
    let bad = "ld.global.nc.u32 %r1, [%rd1];\nst.global.u32 [%rd1], %t; // here\nst.global.u32 [%rd2], %r1;";
    let fault = Plant::new(bad).fails(ReadOnlyWritten, 0, 0);
    assert!(fault.detail.contains("a write of what the launch has read by a read-only load"), "{fault}");
    // A barrier does not help, nor a plain load in between; bytes count as well.
    let later = "ld.global.nc.u32 %r1, [%rd1];\nbar.sync 0;\nld.global.u32 %r2, [%rd1];\nbar.sync 0;\n\
                 st.global.u8 [%rd1+1], %t; // here\nst.global.u32 [%rd2], %r1;";
    Plant::new(later).fails(ReadOnlyWritten, 0, 0);
    let atomic = "ld.global.nc.u32 %r1, [%data];\nbar.sync 0;\nred.global.add.u32 [%data], 1; // here";
    Plant::new(atomic).fails(ReadOnlyWritten, 0, 0);
    Plant::new("ld.global.nc.u32 %r1, [%rd1];\nst.global.u32 [%rd1+256], %t;\nst.global.u32 [%rd2], %r1;").passes();
}
