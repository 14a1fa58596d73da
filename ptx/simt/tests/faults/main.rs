//! Planted faults: each is caught and named by kernel, line, block and thread, and its clean twin passes.

mod atomics_and_fences;
mod between_blocks;
mod plant;
mod within_a_block;

use plant::Plant;
use simt::{Config, Device, FaultKind, Launch, Mode, Module};

#[test]
fn one_element_past_the_end() {
    let text = |offset: u32| -> &'static str {
        format!("ld.global.u32 %r1, [%rd1+{offset}]; // here\nst.global.u32 [%rd2], %r1;").leak()
    };
    // Thread 63 reads word 449 + 63 = 512 of 512. In fast mode, whose only checks are those of bounds and alignment.
    let plant = Plant::new(text(4 * 449));
    let fault = plant.run_in(Mode::Fast).expect_err("the fault is caught");
    let line = plant.text().lines().position(|l| l.contains("// here")).expect("the line is marked") + 1;
    let got = (fault.kind, fault.kernel.as_str(), fault.line, fault.block, fault.thread);
    assert_eq!(got, (FaultKind::OutOfBounds, "planted", line, [0; 3], [63, 0, 0]), "{fault}");
    assert!(fault.detail.contains("0 bytes past the end of the allocation 0x7000000000 of 2048 bytes"), "{fault}");
    Plant::new(text(4 * 192)).passes();
}

#[test]
fn a_store_past_the_end_and_one_before_the_beginning() {
    let past = "add.s64 %rd3, %rd2, 3844;\nst.global.u32 [%rd3], %t; // here";
    let fault = Plant::new(past).fails(FaultKind::OutOfBounds, 0, 63);
    assert!(fault.detail.contains("0 bytes past the end"), "{fault}");
    let before = "sub.s64 %rd3, %data, 4;\nadd.s64 %rd3, %rd3, %rd0;\nst.global.u32 [%rd3], %t; // here";
    let fault = Plant::new(before).fails(FaultKind::OutOfBounds, 0, 0);
    assert!(fault.detail.contains("4 bytes before the allocation"), "{fault}");
    Plant::new("st.global.u32 [%rd2+3840], %t;").passes();
}

#[test]
fn a_misaligned_vector_load() {
    let bad = "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1]; // here\nst.global.u32 [%rd2], %r1;";
    let fault = Plant::new(bad).fails(FaultKind::Misaligned, 0, 1);
    assert_eq!(fault.address, Some(0x70_0000_0004));
    let good = "mul.wide.u32 %rd3, %t, 16;\nadd.s64 %rd3, %data, %rd3;\n\
                ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd3];\nst.global.u32 [%rd2], %r1;";
    Plant::new(good).passes();
}

#[test]
fn uninitialised_shared_memory() {
    let bad = "setp.ne.u32 %p1, %t, 40;\n@%p1 st.shared.u32 [%s], %t;\nbar.sync 0;\n\
               ld.shared.u32 %r1, [%s]; // here\nst.global.u32 [%rd2], %r1;";
    Plant::new(bad).fails(FaultKind::Uninitialized, 0, 40);
    let good = "st.shared.u32 [%s], %t;\nbar.sync 0;\nld.shared.u32 %r1, [%s];\nst.global.u32 [%rd2], %r1;";
    Plant::new(good).passes();
}

#[test]
fn uninitialised_global_memory() {
    let bad = "ld.global.u32 %r1, [%rd1+800]; // here\nst.global.u32 [%rd2], %r1;";
    Plant::new(bad).fails(FaultKind::Uninitialized, 0, 56);
    Plant::new("ld.global.u32 %r1, [%rd1+768];\nst.global.u32 [%rd2], %r1;").passes();
    // What one block writes, it may read.
    Plant::new("st.global.u32 [%rd1+1024], %t;\nld.global.u32 %r1, [%rd1+1024];\nst.global.u32 [%rd2], %r1;").passes();
}

#[test]
fn a_missing_barrier() {
    // Each thread reads the word of its counterpart in the other warp and then replaces its own.
    let text = |barrier: &str, mark: &str| -> &'static str {
        format!(
            "st.shared.u32 [%s], %t;\nbar.sync 0;\nxor.b32 %r1, %s, 128;\nld.shared.u32 %r2, [%r1]; {mark}\n{barrier}\
             st.shared.u32 [%s], 77;\nst.global.u32 [%rd2], %r2;"
        )
        .leak()
    };
    let fault = Plant::new(text("", "// here")).fails(FaultKind::Race, 0, 32);
    assert!(fault.detail.contains("written by thread 0"), "{fault}");
    Plant::new(text("bar.sync 0;\n", "")).passes();
}

#[test]
fn a_read_before_the_other_warp_has_written() {
    let bad = "xor.b32 %r1, %s, 128;\nst.shared.u32 [%s], 5;\nst.shared.u32 [%s+1024], 5;\nbar.sync 0;\n\
               st.shared.u32 [%s], %t; // here\nld.shared.u32 %r2, [%r1];\nst.global.u32 [%rd2], %r2;";
    // The first warp reads what the second has not yet overwritten: seen when the second writes.
    let fault = Plant::new(bad).fails(FaultKind::Race, 0, 32);
    assert!(fault.detail.contains("read by thread 0"), "{fault}");
    let good = "xor.b32 %r1, %s, 128;\nst.shared.u32 [%s], %t;\nbar.sync 0;\nld.shared.u32 %r2, [%r1];\n\
                st.global.u32 [%rd2], %r2;";
    Plant::new(good).passes();
}

#[test]
fn a_barrier_in_divergent_code() {
    let bad = "setp.lt.u32 %p1, %t, 40;\n@!%p1 bra SKIP;\nbar.sync 0; // here\nSKIP:\nst.global.u32 [%rd2], %t;";
    let fault = Plant::new(bad).fails(FaultKind::DivergentBarrier, 0, 40);
    assert!(fault.detail.contains("lanes 0x000000ff of warp 1 wait"), "{fault}");
    let guarded = "setp.lt.u32 %p1, %t, 40;\n@%p1 bar.sync 0; // here\nst.global.u32 [%rd2], %t;";
    Plant::new(guarded).fails(FaultKind::DivergentBarrier, 0, 40);
    // Threads that have ended are not waited for.
    let good = "setp.lt.u32 %p1, %t, 40;\n@!%p1 bra SKIP;\nbar.sync 0;\nst.global.u32 [%rd2], %t;\nSKIP:";
    Plant::new(good).passes();
}

#[test]
fn warps_at_unlike_barriers() {
    let bad =
        "setp.lt.u32 %p1, %t, 32;\n@!%p1 bra OTHER;\nbar.sync 1; // here\nbra.uni DONE;\nOTHER:\nbar.sync 2;\nDONE:";
    Plant::new(bad).fails(FaultKind::DivergentBarrier, 0, 0);
    let good =
        "setp.lt.u32 %p1, %t, 32;\n@!%p1 bra OTHER;\nbar.sync 1, 32;\nbra.uni DONE;\nOTHER:\nbar.sync 2, 32;\nDONE:";
    Plant::new(good).passes();
}

#[test]
fn a_shuffle_from_an_inactive_lane() {
    // Lanes 0..16 take part and lane 15 reads lane 16.
    let bad = "and.b32 %r1, %t, 31;\nsetp.ge.u32 %p1, %r1, 16;\n@%p1 bra SKIP;\n\
               shfl.sync.down.b32 %r2, %t, 1, 31, 0xffff; // here\nSKIP:\nst.global.u32 [%rd2], %t;";
    Plant::new(bad).fails(FaultKind::InactiveLane, 0, 15);
    let members = "and.b32 %r1, %t, 31;\nsetp.ge.u32 %p1, %r1, 16;\n@%p1 bra SKIP;\n\
                   shfl.sync.bfly.b32 %r2, %t, 1, 31, -1; // here\nSKIP:\nst.global.u32 [%rd2], %t;";
    Plant::new(members).fails(FaultKind::InactiveLane, 0, 0);
    let outside = "shfl.sync.bfly.b32 %r2, %t, 1, 31, 0xffff; // here";
    Plant::new(outside).fails(FaultKind::InactiveLane, 0, 16);
    let good = "and.b32 %r1, %t, 31;\nsetp.ge.u32 %p1, %r1, 16;\n@%p1 bra SKIP;\n\
                shfl.sync.bfly.b32 %r2, %t, 1, 31, 0xffff;\nst.global.u32 [%rd2], %r2;\nSKIP:";
    Plant::new(good).passes();
}

#[test]
fn an_exchange_inside_a_warp_without_its_barrier() {
    let bad =
        "st.shared.u32 [%s], %t;\nxor.b32 %r1, %s, 4;\nld.shared.u32 %r2, [%r1]; // here\nst.global.u32 [%rd2], %r2;";
    let fault = Plant::new(bad).fails(FaultKind::Race, 0, 0);
    assert!(fault.detail.contains("written by thread 1"), "{fault}");
    let good = "st.shared.u32 [%s], %t;\nbar.warp.sync -1;\nxor.b32 %r1, %s, 4;\nld.shared.u32 %r2, [%r1];\n\
                st.global.u32 [%rd2], %r2;";
    Plant::new(good).passes();
}

#[test]
fn a_warp_overwrites_what_its_lanes_read_without_a_barrier() {
    let bad = "st.shared.u32 [%s], %t;\nbar.warp.sync -1;\nand.b32 %r1, %s, 128;\nld.shared.u32 %r2, [%r1];\n\
               st.shared.u32 [%s], 0; // here\nst.global.u32 [%rd2], %r2;";
    let fault = Plant::new(bad).fails(FaultKind::Race, 0, 0);
    assert!(fault.detail.contains("read by several threads"), "{fault}");
    let good = "st.shared.u32 [%s], %t;\nbar.warp.sync -1;\nand.b32 %r1, %s, 128;\nld.shared.u32 %r2, [%r1];\n\
                bar.warp.sync -1;\nst.shared.u32 [%s], 0;\nst.global.u32 [%rd2], %r2;";
    Plant::new(good).passes();
}

#[test]
fn two_lanes_store_unlike_values_to_one_word() {
    let fault = Plant::new("st.shared.u32 [smem], %t; // here").fails(FaultKind::Race, 0, 1);
    assert!(fault.detail.contains("written by thread 0"), "{fault}");
    Plant::new("st.shared.u32 [smem], 7;").passes();
    Plant::new("shr.u32 %r1, %s, 2;\nadd.u32 %r1, %r1, smem;\nst.shared.u8 [%r1], %t;").passes();
}

const COPY: &str = "mul.wide.u32 %rd3, %t, 16;\nadd.s64 %rd3, %data, %rd3;\nshl.b32 %r1, %t, 4;\n\
                    cp.async.cg.shared.global [%r1], [%rd3], 16;\ncp.async.commit_group;\n";

fn with_copy(rest: &str) -> Plant {
    Plant::new(format!("{COPY}{rest}").leak())
}

#[test]
fn a_copy_read_before_it_is_waited_for() {
    let read = "ld.shared.u32 %r2, [%r1]; // here\nst.global.u32 [%rd2], %r2;";
    with_copy(read).fails(FaultKind::PendingCopy, 0, 0);
    with_copy(&format!("cp.async.wait_group 1;\n{read}")).fails(FaultKind::PendingCopy, 0, 0);
    with_copy(&format!("bar.sync 0;\n{read}")).fails(FaultKind::PendingCopy, 0, 0);
    with_copy(&format!("cp.async.wait_group 0;\n{}", read.replace("// here", ""))).passes();
}

#[test]
fn a_copy_read_by_another_thread_without_a_barrier() {
    let read = "xor.b32 %r2, %r1, 16;\nld.shared.u32 %r3, [%r2]; // here\nst.global.u32 [%rd2], %r3;";
    with_copy(&format!("cp.async.wait_all;\n{read}")).fails(FaultKind::Race, 0, 0);
    with_copy(&format!("cp.async.wait_all;\nbar.sync 0;\n{}", read.replace("// here", ""))).passes();
}

#[test]
fn a_copy_over_words_that_others_still_read() {
    // The second warp reads what the first one's next copy has replaced already.
    let text = |barrier: &str, mark: &str| {
        format!(
            "cp.async.wait_all;\nbar.sync 0;\nxor.b32 %r2, %r1, 512;\nld.shared.u32 %r3, [%r2]; {mark}\n{barrier}\
             cp.async.cg.shared.global [%r1], [%rd3], 16;\ncp.async.wait_all;\nst.global.u32 [%rd2], %r3;"
        )
    };
    with_copy(&text("", "// here")).fails(FaultKind::Race, 0, 32);
    with_copy(&text("bar.sync 0;\n", "")).passes();
    // The first warp's next copy meets what its own lanes have read, without the barrier of the warp.
    let text = |barrier: &str, mark: &str| {
        format!(
            "cp.async.wait_all;\nbar.sync 0;\nxor.b32 %r2, %r1, 16;\nld.shared.u32 %r3, [%r2];\n{barrier}\
             cp.async.cg.shared.global [%r1], [%rd3], 16; {mark}\ncp.async.wait_all;\nst.global.u32 [%rd2], %r3;"
        )
    };
    with_copy(&text("", "// here")).fails(FaultKind::Race, 0, 0);
    with_copy(&text("bar.warp.sync -1;\n", "")).passes();
}

#[test]
fn a_read_only_load_of_what_the_launch_wrote() {
    let bad = "st.global.u32 [%rd1], %t;\nld.global.nc.u32 %r1, [%rd1]; // here\nst.global.u32 [%rd2], %r1;";
    Plant::new(bad).fails(FaultKind::ReadOnlyWritten, 0, 0);
    let good = "ld.global.nc.u32 %r1, [%rd1];\nst.global.u32 [%rd2], %r1;";
    Plant::new(good).passes();
    let plain = "st.global.u32 [%rd1], %t;\nld.global.u32 %r1, [%rd1];\nst.global.u32 [%rd2], %r1;";
    Plant::new(plain).passes();
}

#[test]
fn too_much_shared_memory() {
    let module = Module::load(&Plant::new("st.global.u32 [%rd2], %t;").text()).unwrap();
    let entry = module.entry("planted").unwrap();
    for (capability, limit) in [((8, 0), 163 << 10), ((8, 6), 99 << 10), ((8, 9), 99 << 10), ((9, 0), 227 << 10)] {
        let mut device = Device::new(Config { capability, ..Config::default() });
        let out = device.alloc(4096).unwrap();
        let params = [out.to_le_bytes(), out.to_le_bytes()].concat();
        let launch = |shared_bytes| Launch { grid: [1; 3], block: [64, 1, 1], shared_bytes };
        device.launch(entry, launch(48 << 10), &params).unwrap();
        let fault = device.launch(entry, launch((48 << 10) + 4), &params).unwrap_err();
        assert_eq!((fault.kind, fault.kernel.as_str()), (FaultKind::SharedMemory, "planted"), "{fault}");
        device.opt_in_shared(entry, limit).unwrap();
        device.launch(entry, launch(limit), &params).unwrap();
        assert_eq!(device.opt_in_shared(entry, limit + 4).unwrap_err().kind, FaultKind::SharedMemory);
        assert_eq!(device.launch(entry, launch(limit + 4), &params).unwrap_err().kind, FaultKind::SharedMemory);
    }
}

#[test]
fn shared_memory_beyond_what_the_launch_asked_for() {
    let mut plant = Plant::new("st.shared.u32 [%s+4], %t; // here");
    plant.shared = 256;
    plant.fails(FaultKind::OutOfBounds, 0, 63);
    Plant::new("st.shared.u32 [%s+4], %t;").passes();
}

#[test]
fn use_after_free() {
    let plant = Plant::new("ld.global.u32 %r1, [%rd1]; // here\nst.global.u32 [%rd2], %r1;");
    let module = Module::load(&plant.text()).unwrap();
    let entry = module.entry("planted").unwrap();
    let mut device = Device::new(Config::default());
    let data = device.alloc(256).unwrap();
    device.fill(data, &[1], 256).unwrap();
    let out = device.alloc(256).unwrap();
    let params = [data.to_le_bytes(), out.to_le_bytes()].concat();
    let launch = Launch { grid: [3, 1, 1], block: [64, 1, 1], shared_bytes: 0 };
    device.launch(entry, launch, &params).unwrap();
    device.free(data).unwrap();
    let _ = device.alloc(256).unwrap();
    let fault = device.launch(entry, launch, &params).unwrap_err();
    let line = plant.text().lines().position(|l| l.contains("// here")).unwrap() + 1;
    let got = (fault.kind, fault.line, fault.block, fault.thread, fault.address);
    assert_eq!(got, (FaultKind::UseAfterFree, line, [0; 3], [0; 3], Some(data)), "{fault}");
}

#[test]
fn a_uniform_branch_that_diverges() {
    let bad =
        "setp.lt.u32 %p1, %t, 40;\n@%p1 bra.uni SKIP; // here\nadd.u32 %t, %t, 1;\nSKIP:\nst.global.u32 [%rd2], %t;";
    Plant::new(bad).fails(FaultKind::Divergence, 0, 40);
    let good = "setp.lt.u32 %p1, %t, 32;\n@%p1 bra.uni SKIP;\nadd.u32 %t, %t, 1;\nSKIP:\nst.global.u32 [%rd2], %t;";
    Plant::new(good).passes();
}

#[test]
fn a_warp_wide_instruction_without_all_lanes() {
    let text = |guard: &str, mark: &str| -> &'static str {
        format!(
            "shl.b32 %r1, %t, 4;\nst.shared.v4.u32 [%r1], {{%t, %t, %t, %t}};\nbar.sync 0;\nsetp.ne.u32 %p1, %t, 35;\n\
             {guard} ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r2, %r3, %r4, %r5}}, [%r1]; {mark}\n\
             st.global.u32 [%rd2], %r2;"
        )
        .leak()
    };
    Plant::new(text("@%p1", "// here")).fails(FaultKind::Divergence, 0, 35);
    Plant::new(text("", "")).passes();
}

#[test]
fn a_loop_that_waits_for_nobody() {
    let bad = "WAIT:\nld.volatile.global.u32 %r1, [%data];\nsetp.eq.u32 %p1, %r1, 1;\n@%p1 bra WAIT; // here";
    let mut plant = Plant::new(bad);
    plant.threads = 1;
    let fault = plant.run_in(Mode::Fast).unwrap_err();
    let line = plant.text().lines().position(|l| l.contains("// here")).unwrap() + 1;
    assert_eq!((fault.kind, fault.line, fault.thread), (FaultKind::NoProgress, line, [0; 3]), "{fault}");
    // The second warp waits for the first, which runs although it may come later in the order.
    let good = "setp.lt.u32 %p1, %t, 32;\n@%p1 st.volatile.global.u32 [%data], 9;\n\
                WAIT:\nld.volatile.global.u32 %r1, [%data];\nsetp.ne.u32 %p1, %r1, 9;\n@%p1 bra WAIT;";
    Plant::new(good).passes();
    let turned = "setp.ge.u32 %p1, %t, 32;\n@%p1 st.volatile.global.u32 [%data], 9;\n\
                  WAIT:\nld.volatile.global.u32 %r1, [%data];\nsetp.ne.u32 %p1, %r1, 9;\n@%p1 bra WAIT;";
    Plant::new(turned).passes();
}

#[test]
fn a_trap() {
    let bad = "setp.ne.u32 %p1, %t, 50;\n@%p1 bra FINE;\ntrap; // here\nFINE:";
    Plant::new(bad).fails(FaultKind::Trap, 0, 50);
}

#[test]
fn the_first_fault_is_that_of_the_lowest_block_on_any_threads() {
    // Blocks 5 and above read past the end, each from its thread 3 on.
    let text = "setp.lt.u32 %p1, %b, 5;\n@%p1 bra FINE;\nsetp.lt.u32 %p2, %t, 3;\n@%p2 bra FINE;\n\
                ld.global.u32 %r1, [%rd1+1000000];\nFINE:\nst.global.u32 [%rd2], %t;";
    let module = Module::load(&Plant::new(text).text()).unwrap();
    let run = |threads| {
        let mut device = Device::new(Config { threads, ..Config::default() });
        let data = device.alloc(4096).unwrap();
        let params = [data.to_le_bytes(), data.to_le_bytes()].concat();
        let launch = Launch { grid: [64, 1, 1], block: [64, 1, 1], shared_bytes: 0 };
        device.launch(module.entry("planted").unwrap(), launch, &params).unwrap_err()
    };
    let want = run(1);
    assert_eq!((want.kind, want.block, want.thread), (FaultKind::OutOfBounds, [5, 0, 0], [3, 0, 0]), "{want}");
    for threads in [2, 3, 8] {
        assert_eq!(run(threads), want, "{threads} threads");
    }
}

#[test]
fn launches_of_a_bad_shape() {
    let text = Plant::new("st.global.u32 [%rd2], %t;").text().replace("\n{\n", "\n.maxntid 128\n{\n");
    let module = Module::load(&text).unwrap();
    let entry = module.entry("planted").unwrap();
    assert_eq!((entry.max_threads(), entry.param_bytes(), entry.params().len()), (Some(128), 16, 2));
    let mut device = Device::new(Config::default());
    for (grid, block, params) in [(1, 0, 16), (1, 129, 16), (0, 32, 16), (1, 32, 12), (1, 2048, 16)] {
        let launch = Launch { grid: [grid, 1, 1], block: [block, 1, 1], shared_bytes: 0 };
        let fault = device.launch(entry, launch, &vec![0; params]).unwrap_err();
        assert_eq!((fault.kind, fault.line), (FaultKind::Launch, 0), "{fault}");
    }
}

#[test]
fn what_is_not_known_is_refused_with_its_line() {
    for (body, what) in [
        ("add.f16x3 %r1, %r2, %r3;", "the instruction add.f16x3 is not supported"),
        ("atom.global.add.f32 %f1, [%data], %f2;", "atomics on floats"),
        ("mov.u64 %rd1, %clock64;", "%clock64 is unknown"),
        ("add.u32 %r1, %rd1, %r2;", "a source register of another size"),
        ("bra NOWHERE;", "the label NOWHERE is not declared"),
    ] {
        let text = Plant::new(format!("// before\n{body}").leak()).text();
        let error = Module::load(&text).unwrap_err();
        let line = text.lines().position(|l| l == body).unwrap() + 1;
        assert_eq!((error.kernel.as_str(), error.line, error.text.as_str()), ("planted", line, body), "{error}");
        assert!(error.what.contains(what), "{error}");
    }
}
