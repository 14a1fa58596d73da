//! Atomics race with plain accesses only; where fences order threads, nothing is said.

use crate::plant::Plant;
use simt::FaultKind::Race;

fn plant(text: &str, blocks: u32) -> Plant {
    Plant::blocks(text.to_string().leak(), blocks)
}

#[test]
fn atomics_among_themselves() {
    plant("red.global.add.u32 [%data], %t;\natom.global.max.u32 %r1, [%data+4], %b;", 8).passes();
    plant(
        "st.volatile.global.u32 [%data], %t;\nld.volatile.global.u32 %r1, [%data];\nred.global.add.u32 [%data], 1;",
        8,
    )
    .passes();
    plant("atom.global.add.u64 %rd3, [%data], %rd0;", 8).passes();
}

#[test]
fn a_plain_load_beside_atomics() {
    let text = |barrier: &str, mark: &str| {
        format!(
            "red.global.add.u32 [%data], 1;\n{barrier}ld.global.u32 %r1, [%data]; {mark}\nst.global.u32 [%rd2], %r1;"
        )
    };
    plant(&text("", "// here"), 1).fails(Race, 0, 0);
    plant(&text("bar.sync 0;\n", ""), 1).passes();
    // The loads of another block are not ordered by it.
    let two = text("bar.sync 0;\n", "").replace("1;\nbar", "1; // here\nbar").replace("st.global.u32 [%rd2], %r1;", "");
    plant(&two, 2).fails(Race, 1, 0);
}

#[test]
fn a_plain_store_beside_atomics() {
    let text = |barrier: &str, mark: &str| {
        format!(
            "setp.eq.u32 %p1, %t, 0;\n@%p1 st.global.u32 [%data], 7;\n{barrier}red.global.add.u32 [%data], 1; {mark}\n"
        )
    };
    plant(&text("", "// here"), 1).fails(Race, 0, 1);
    plant(&text("bar.sync 0;\n", ""), 1).passes();
}

#[test]
fn the_last_block_sums_what_all_have_stored() {
    // Every thread fences what it stored, the block's first takes a ticket, and the last block reads all.
    let text = "add.u32 %r1, %b, 1;\nmul.wide.u32 %rd3, %b, 4;\nadd.s64 %rd3, %out, %rd3;\nsetp.eq.u32 %p1, %t, 0;\n\
                @%p1 st.global.u32 [%rd3], %r1;\nmembar.gl;\nbar.sync 0;\n@%p1 atom.global.inc.u32 %r2, [%data], 63;\n\
                @!%p1 bra DONE;\nsetp.ne.u32 %p2, %r2, 8;\n@%p2 bra DONE;\nmembar.gl;\nld.global.u32 %r3, [%out];\n\
                ld.global.u32 %r4, [%out+28];\nDONE:";
    // `data` begins with 1, so the last of 8 gets 8.
    plant(text, 8).passes();
    // Without the fences the same is a race.
    let bad = text.replace("membar.gl;\n", "").replace("[%out];", "[%out]; // here");
    plant(&bad, 8).fails(Race, 7, 0);
}
