//! Global memory that blocks of one launch exchange: nothing orders them.

use crate::plant::Plant;
use simt::FaultKind::{Race, ReadOnlyWritten};
use simt::{Config, Device, Launch, Mode, Module};

/// The address of the word of this block in `%rd3`, of the block before in `%rd4`.
const WORDS: &str = "mul.wide.u32 %rd3, %b, 4;\nadd.s64 %rd3, %data, %rd3;\nsub.s64 %rd4, %rd3, 4;\n";

fn with_words(text: &str, blocks: u32) -> Plant {
    Plant { threads: 1, ..Plant::blocks(format!("{WORDS}{text}").leak(), blocks) }
}

#[test]
fn a_block_reads_what_an_earlier_one_stored() {
    let bad = "setp.eq.u32 %p1, %b, 0;\n@!%p1 ld.global.u32 %r1, [%rd4]; // here\nst.global.u32 [%rd3], %b;";
    let fault = with_words(bad, 8).fails(Race, 1, 0);
    assert!(fault.detail.contains("global memory written by block (0, 0, 0) of the same launch"), "{fault}");
    with_words(&bad.replace("%rd4]; // here", "%rd3];"), 8).passes();
    // On several threads some block meets it, whichever comes first.
    for _ in 0..20 {
        let fault = with_words(bad, 256).run_on(Mode::Checked, 2).expect_err("the fault is caught");
        assert_eq!(fault.kind, Race, "{fault}");
    }
}

#[test]
fn a_block_stores_what_others_have_read() {
    let bad = "ld.global.u32 %r1, [%data];\nsetp.eq.u32 %p1, %b, 3;\n@%p1 st.global.u32 [%data], %t; // here";
    let one = "setp.eq.u32 %p1, %b, 1;\n@!%p1 ld.global.u32 %r1, [%data];\n@%p1 st.global.u32 [%data], %b; // here";
    let fault = with_words(bad, 4).fails(Race, 3, 0);
    assert!(fault.detail.contains("global memory read by several blocks of the same launch"), "{fault}");
    let fault = with_words(one, 2).fails(Race, 1, 0);
    assert!(fault.detail.contains("global memory read by block (0, 0, 0) of the same launch"), "{fault}");
    // Behind barriers of the own block as well.
    with_words(&bad.replace("setp", "bar.sync 0;\nsetp"), 4).fails(Race, 3, 0);
    // What nobody stores to all may read, and each block replaces its own.
    with_words("ld.global.u32 %r1, [%rd4+8];\nld.global.u32 %r2, [%data];\nst.global.u32 [%out], 5;", 8).passes();
    with_words("ld.global.u32 %r1, [%rd3];\nbar.warp.sync -1;\nst.global.u32 [%rd3], %b;", 8).passes();
}

#[test]
fn two_blocks_store_one_word() {
    let fault = with_words("st.global.u32 [%data], %b; // here", 3).fails(Race, 1, 0);
    assert!(fault.detail.contains("written by block (0, 0, 0)"), "{fault}");
    with_words("st.global.u32 [%data], 7;", 8).passes();
    // Halves of one word, as rows of an odd length have at their ends; but not the same half.
    let halves = "mul.wide.u32 %rd5, %b, 2;\nadd.s64 %rd5, %data, %rd5;\nst.global.u16 [%rd5], %b;";
    with_words(halves, 8).passes();
    with_words(&halves.replace("st.", "shl.b32 %r1, %b, 4;\nst.").replace("], %b", "], %r1"), 8).passes();
    with_words("st.global.u16 [%data+2], %b; // here", 2).fails(Race, 1, 0);
}

#[test]
fn a_block_stores_what_another_loads_read_only() {
    let text = |word: &str, mark: &str| {
        format!("setp.eq.u32 %p1, %b, 2;\n@!%p1 ld.global.nc.u32 %r1, [%data];\n@%p1 st.global.u32 [{word}], 3; {mark}")
    };
    with_words(&text("%data", "// here"), 3).fails(ReadOnlyWritten, 2, 0);
    with_words(&text("%data+4", ""), 3).passes();
}

#[test]
fn launches_are_ordered() {
    let text = "xor.b32 %r3, %b, 1;\nmul.wide.u32 %rd4, %r3, 4;\nadd.s64 %rd4, %data, %rd4;\n";
    let load =
        |into: &str| format!("{WORDS}{text}ld.global.{into}u32 %r1, [%rd4];\nst.global.u32 [%rd2], %t;").leak() as &str;
    let store = format!("{WORDS}{text}st.global.u32 [%rd3], %b;").leak() as &str;
    let kernels = [Plant::blocks(store, 2), Plant::blocks(load(""), 2), Plant::blocks(load("nc."), 2)];
    let modules = kernels.map(|plant| Module::load(&plant.text()).unwrap());
    let mut device = Device::new(Config::default());
    let data = device.alloc(2048).unwrap();
    device.fill(data, &[1, 0, 0, 0], 1024).unwrap();
    let out = device.alloc(4096).unwrap();
    let params = [data.to_le_bytes(), out.to_le_bytes()].concat();
    let launch = Launch { grid: [2, 1, 1], block: [64, 1, 1], shared_bytes: 0 };
    for i in [0, 1, 0, 2, 1, 2, 0, 0] {
        device.launch(modules[i].entry("planted").unwrap(), launch, &params).unwrap_or_else(|f| panic!("{i}: {f}"));
    }
}

#[test]
fn where_the_address_comes_from_does_not_matter() {
    // The read comes first, so it is found only where the store was foreseen: the address is loaded from memory.
    let text = |mark: &str, offset: u32| {
        format!(
            "ld.global.u64 %rd3, [%data];\nadd.s64 %rd4, %rd3, %rd0;\nld.global.nc.u32 %r1, [%rd4];\n\
             st.global.u32 [%rd4+{offset}], %t; {mark}\n"
        )
        .leak() as &str
    };
    let run = |offset| {
        let module = Module::load(&Plant::new(text("", offset)).text()).unwrap();
        let mut device = Device::new(Config::default());
        let [data, out, other] = [(); 3].map(|()| device.alloc(4096).unwrap());
        device.fill(other, &[0], 4096).unwrap();
        device.write(data, &other.to_le_bytes()).unwrap();
        let params = [data.to_le_bytes(), out.to_le_bytes()].concat();
        let launch = Launch { grid: [1; 3], block: [64, 1, 1], shared_bytes: 0 };
        device.launch(module.entry("planted").unwrap(), launch, &params).map(|_| ())
    };
    assert_eq!(run(0).expect_err("the fault is caught").kind, ReadOnlyWritten);
    run(256).unwrap();
    // Chosen between two parameters, and taken back to the state space that it has.
    let chosen = "setp.lt.u32 %p1, %b, 9;\nselp.b64 %rd3, %data, %out, %p1;\ncvta.global.u64 %rd3, %rd3;\n\
                  ld.global.nc.u32 %r1, [%rd1];\nadd.s64 %rd4, %rd3, %rd0;\nst.u32 [%rd4], %t; // here";
    Plant::new(chosen).fails(ReadOnlyWritten, 0, 0);
}
