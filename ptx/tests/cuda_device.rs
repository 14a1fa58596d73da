//! The host layer on the simulated devices: memory, launches and their checks, graphs, events, faults.

use ptx::cuda::simulator::{self, Mode};
use ptx::cuda::{CudaError, Gpu, Kernel, Launch, Module, View};

/// The kernels of `tests/device/device.cu`.
static DEVICE: Module =
    Module { op: "device", sm80: include_str!("device/device.sm80.ptx"), sm89: include_str!("device/device.sm89.ptx") };

const AXPY: Kernel = Kernel { op: "device", entry: "axpy" };
const ARGUMENTS: Kernel = Kernel { op: "device", entry: "arguments" };
const REVERSE_SHARED: Kernel = Kernel { op: "device", entry: "reverse_shared" };
const ONE_TOO_FAR: Kernel = Kernel { op: "device", entry: "one_too_far" };
const ONE_THREAD: Launch = Launch { grid: [1, 1, 1], threads: 1, shared_bytes: 0 };

/// Both simulated devices, with the test's kernels.
fn devices() -> Vec<Gpu> {
    let gpus = vec![simulator::open().unwrap(), simulator::open_sm80().unwrap()];
    gpus.iter().for_each(|gpu| gpu.add_module(&DEVICE));
    gpus
}

fn axpy(gpu: &Gpu, n: usize, y: View<f32>, x: View<f32>, a: f32) -> Result<(), CudaError> {
    let launch = Launch { grid: [u32::try_from(n.div_ceil(128)).unwrap(), 1, 1], threads: 128, shared_bytes: 0 };
    gpu.launch(AXPY, launch, &[y.into(), x.into(), a.into(), u32::try_from(n).unwrap().into()])
}

/// `n` floats of no particular pattern.
fn floats(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i as f32 * 0.37).sin() * 3.0).collect()
}

#[test]
fn a_device_says_what_it_is() {
    let [first, second] = devices().try_into().unwrap();
    assert_eq!(first.name(), "leeway simt (simulated, not a GPU), sm_89");
    assert!(first.is_simulated() && first.simulator().is_some());
    assert_eq!((first.capability(), first.has_fp8()), ((8, 9), true));
    assert_eq!((second.capability(), second.has_fp8()), ((8, 0), false));
    assert!(first.multiprocessors() > 0);
    let none = Gpu::open(7).unwrap_err();
    assert_eq!(none, CudaError::NoDevice { ordinal: 7, count: 2 });
}

#[test]
fn bytes_come_back_as_they_went() {
    for gpu in devices() {
        // More than the staging memory holds at once, and no multiple of anything.
        let from: Vec<u8> = (0..(9_usize << 20) + 13).map(|i| u8::try_from(i * i / 8 % 256).unwrap()).collect();
        let on_device = gpu.upload(&from).unwrap();
        assert!(gpu.download(on_device.view()).unwrap() == from);

        // The slice may be changed as soon as `write` returns.
        let words = gpu.alloc::<u32>(16).unwrap();
        let mut source = [7_u32; 16];
        gpu.write(words.view(), &source).unwrap();
        source = [8; 16];
        gpu.write(words.view().part(4, 4), &source[..4]).unwrap();
        gpu.fill(words.view().part(12, 2), 0xab).unwrap();
        gpu.copy(words.view().part(14, 2), words.view().part(3, 2)).unwrap();
        let mut want = [7; 16];
        want[4..8].fill(8);
        want[12..14].fill(0xabab_abab);
        want[14..].copy_from_slice(&[7, 8]);
        assert_eq!(gpu.download(words.view()).unwrap(), want);

        let empty = gpu.upload::<f32>(&[]).unwrap();
        assert!(empty.is_empty() && gpu.download(empty.view()).unwrap().is_empty());
    }
}

#[test]
fn a_kernel_computes_what_the_cpu_does() {
    for gpu in devices() {
        let n = 1000; // the last block is ragged
        let (x, y) = (floats(n), floats(2 * n).split_off(n));
        let on_device = (gpu.upload(&x).unwrap(), gpu.upload(&y).unwrap());
        axpy(&gpu, n, on_device.1.view(), on_device.0.view(), 1.7).unwrap();
        gpu.synchronize().unwrap();
        let got = gpu.download(on_device.1.view()).unwrap();
        let want = x.iter().zip(&y).map(|(x, y)| 1.7_f32.mul_add(*x, *y));
        assert!(got.iter().map(|v| v.to_bits()).eq(want.map(f32::to_bits)));
    }
}

#[test]
fn arguments_arrive_each_in_its_place() {
    for gpu in devices() {
        let out = gpu.alloc::<u64>(4).unwrap();
        let args = [out.view().into(), 0x1234_5678_u32.into(), 0xfedc_ba98_7654_3210_u64.into(), (-1.5_f32).into()];
        gpu.launch(ARGUMENTS, ONE_THREAD, &args).unwrap();
        let want = [out.view().address(), 0x1234_5678, 0xfedc_ba98_7654_3210, u64::from((-1.5_f32).to_bits())];
        assert_eq!(gpu.download(out.view()).unwrap(), want);
    }
}

#[test]
fn shared_memory_beyond_48_kib_up_to_the_devices_limit() {
    for (gpu, limit) in devices().into_iter().zip([99 << 10, 163 << 10]) {
        for bytes in [1024, 48 << 10, 64 << 10, limit] {
            let words = bytes / 4;
            let out = gpu.alloc::<u32>(words as usize).unwrap();
            let launch = Launch { grid: [1, 1, 1], threads: 256, shared_bytes: bytes };
            gpu.launch(REVERSE_SHARED, launch, &[out.view().into(), words.into()]).unwrap();
            let want = (0..words).rev().map(|i| i.wrapping_mul(2_654_435_761));
            assert!(gpu.download(out.view()).unwrap().into_iter().eq(want), "{bytes} bytes");
        }
        let out = gpu.alloc::<u32>(1).unwrap();
        let launch = Launch { grid: [1, 1, 1], threads: 256, shared_bytes: limit + 1 };
        let refused = gpu.launch(REVERSE_SHARED, launch, &[out.view().into(), 1_u32.into()]).unwrap_err();
        let want = format!("a block may have {limit} bytes of dynamic shared memory on this device");
        assert!(matches!(&refused, CudaError::Launch { why, .. } if *why == want), "{refused}");
    }
}

#[test]
fn a_graph_gives_the_bits_of_the_same_calls() {
    for gpu in devices() {
        let n = 300;
        let (x, y) = (gpu.upload(&floats(n)).unwrap(), gpu.upload(&floats(n)).unwrap());
        let kept = gpu.alloc::<f32>(n).unwrap();
        let work = |gpu: &Gpu| {
            gpu.fill(kept.view(), 0)?;
            axpy(gpu, n, kept.view(), y.view(), 0.5)?;
            axpy(gpu, n, y.view(), x.view(), 1.1)?;
            gpu.copy(x.view(), kept.view())
        };
        // The first use of the kernels is within the capture: loading them is no part of the graph.
        let graph = gpu.capture(work).unwrap();
        assert_eq!(graph.nodes(), 4);
        assert_eq!(gpu.download(y.view()).unwrap(), floats(n), "a capture ran something");
        for _ in 0..3 {
            graph.launch().unwrap();
        }
        let by_graph = [&x, &y, &kept].map(|mem| gpu.download(mem.view()).unwrap());
        gpu.write(x.view(), &floats(n)).unwrap();
        gpu.write(y.view(), &floats(n)).unwrap();
        for _ in 0..3 {
            work(&gpu).unwrap();
        }
        let by_calls = [&x, &y, &kept].map(|mem| gpu.download(mem.view()).unwrap());
        let bits = |all: &[Vec<f32>; 3]| all.iter().flatten().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&by_graph), bits(&by_calls));
        assert_ne!(bits(&by_graph)[n..2 * n], floats(n).iter().map(|v| v.to_bits()).collect::<Vec<_>>());
    }
}

#[test]
fn what_cannot_be_captured_is_refused_and_spoils_nothing() {
    let gpu = simulator::open().unwrap();
    gpu.add_module(&DEVICE);
    let x = gpu.upload(&floats(10)).unwrap();
    let refused = |what: &str, error: Result<(), CudaError>| {
        assert!(matches!(error.unwrap_err(), CudaError::Capture { what: found } if found == what), "{what}");
    };
    let inner = gpu.capture(|_| Ok(())).unwrap();
    let mut made = None;
    let graph = gpu.capture(|gpu| {
        refused("a copy from the host", gpu.write(x.view(), &[1.0]));
        refused("a copy to the host", gpu.read(x.view(), &mut [0.0]));
        refused("waiting for the device", gpu.synchronize());
        refused("another capture", gpu.capture(|_| Ok(())).map(|_| ()));
        refused("the launch of a graph", inner.launch());
        refused("an event", gpu.event().map(|_| ()));
        // Memory may be allocated; it is there at once.
        let y = made.insert(gpu.alloc::<f32>(10)?);
        gpu.fill(y.view(), 0)?;
        axpy(gpu, 10, y.view(), x.view(), 2.0)
    });
    graph.unwrap().launch().unwrap();
    let twice: Vec<f32> = floats(10).iter().map(|x| 2.0 * x).collect();
    assert_eq!(gpu.download(made.unwrap().view()).unwrap(), twice);

    // An error of the recording is the capture's, and the stream runs again afterwards.
    let error = gpu.capture(|gpu| gpu.launch(Kernel { op: "device", entry: "nothing" }, ONE_THREAD, &[]));
    assert_eq!(error.unwrap_err(), CudaError::NoKernel { kernel: "device::nothing".to_string() });
    gpu.synchronize().unwrap();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        gpu.capture(|gpu| gpu.write(x.view().part(0, 1), &[1.0, 2.0]))
    }));
    assert!(panicked.is_err());
    gpu.synchronize().unwrap();
    gpu.capture(|gpu| gpu.fill(x.view(), 1)).unwrap().launch().unwrap();
    assert_eq!(gpu.download(x.view().bytes()).unwrap(), [1; 40]);
}

/// What another thread asks for while a graph is captured is not in the graph: it waits, and is done afterwards.
#[test]
fn a_capture_is_of_one_thread_alone() {
    let gpu = simulator::open().unwrap();
    gpu.add_module(&DEVICE);
    let n = 40;
    let (x, y) = (gpu.upload(&floats(n)).unwrap(), gpu.upload(&vec![0.0; n]).unwrap());
    let others: Vec<_> = (0..6).map(|_| gpu.upload(&vec![1.0_f32; n]).unwrap()).collect();
    let (start, ready) = (std::sync::Barrier::new(7), std::sync::atomic::AtomicUsize::new(0));
    let (gpu, x, y, start, ready) = (&gpu, &x, &y, &start, &ready);
    let inner = &gpu.capture(|gpu| gpu.fill(others[5].view(), 0)).unwrap();
    let graph = std::thread::scope(|scope| {
        for (i, own) in others.iter().enumerate() {
            scope.spawn(move || {
                start.wait();
                match i {
                    0 => axpy(gpu, n, own.view(), x.view(), 1.0).unwrap(),
                    1 => gpu.fill(own.view(), 0).unwrap(),
                    2 => gpu.copy(own.view(), x.view()).unwrap(),
                    3 => gpu.write(own.view(), &floats(n)).unwrap(),
                    4 => gpu.event().unwrap().synchronize().unwrap(),
                    _ => inner.launch().unwrap(),
                }
                ready.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            });
        }
        gpu.capture(|gpu| {
            start.wait();
            // Time for the others to do what they should not.
            std::thread::sleep(std::time::Duration::from_millis(100));
            assert_eq!(ready.load(std::sync::atomic::Ordering::SeqCst), 0, "somebody did not wait");
            axpy(gpu, n, y.view(), x.view(), 2.0)
        })
    });
    let graph = graph.unwrap();
    assert_eq!(graph.nodes(), 1);
    graph.launch().unwrap();
    assert_eq!(gpu.download(y.view()).unwrap(), floats(n).iter().map(|x| 2.0 * x).collect::<Vec<_>>());
    let sums: Vec<f32> = floats(n).iter().map(|x| 1.0 + x).collect();
    let want = [sums, vec![0.0; n], floats(n), floats(n), vec![1.0; n], vec![0.0; n]];
    for (own, want) in others.iter().zip(want) {
        assert_eq!(gpu.download(own.view()).unwrap(), want);
    }
}

#[test]
fn memory_runs_out_in_words_and_comes_back() {
    let gpu = simulator::open().unwrap();
    let before = gpu.memory_info().unwrap();
    let held = gpu.alloc::<u64>(1000).unwrap();
    let info = gpu.memory_info().unwrap();
    assert_eq!((info.used, info.free), (before.used + 8000, before.free - 8000));
    let refused = gpu.alloc::<u64>(1 << 30).map(|_| ()).unwrap_err();
    assert_eq!(refused, CudaError::OutOfMemory { asked: 1 << 33, free: info.free, total: info.total });
    drop(held);
    assert_eq!(gpu.memory_info().unwrap(), before);
}

#[test]
fn launches_are_checked_against_kernel_and_device() {
    let gpu = simulator::open().unwrap();
    gpu.add_module(&DEVICE);
    let x = gpu.upload(&floats(4)).unwrap();
    let (y, n) = (x.view(), 4_u32);
    let block = |grid, threads| Launch { grid, threads, shared_bytes: 0 };
    let good = block([1, 1, 1], 128);
    let args = |a: &[ptx::cuda::Arg]| a.to_vec();
    let right = args(&[y.into(), y.into(), 1.0_f32.into(), n.into()]);
    let cases = [
        (good, args(&right[..3]), "3 arguments for 4 parameters"),
        (good, args(&[y.into(), y.into(), 1.0_f32.into(), 4_u64.into()]), "argument 3 has 8 bytes, its parameter 4"),
        (good, args(&[y.into(), n.into(), 1.0_f32.into(), n.into()]), "argument 1 has 4 bytes, its parameter 8"),
        (block([1, 1, 1], 129), right.clone(), "a block of this kernel has 1 to 128 threads"),
        (block([1, 1, 1], 0), right.clone(), "a block of this kernel has 1 to 128 threads"),
        (block([0, 1, 1], 128), right.clone(), "the grid must have 1 to 2147483647 blocks along x"),
        (block([1, 1, 65536], 128), right.clone(), "the grid must have 1 to 65535 blocks along z"),
    ];
    for (launch, args, want) in cases {
        let error = gpu.launch(AXPY, launch, &args).unwrap_err();
        assert!(
            matches!(&error, CudaError::Launch { kernel, why, .. } if kernel == "device::axpy" && why == want),
            "{error}"
        );
    }
    for (op, entry) in [("device", "axpz"), ("nothing", "axpy")] {
        let error = gpu.launch(Kernel { op, entry }, good, &right).unwrap_err();
        assert_eq!(error, CudaError::NoKernel { kernel: format!("{op}::{entry}") });
    }
    assert_eq!(gpu.download(x.view()).unwrap(), floats(4), "a refused launch ran");
}

#[test]
fn text_that_is_no_ptx_is_refused_with_the_compilers_words() {
    static BROKEN: Module = Module {
        op: "broken",
        sm80: ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k()\n{\n\tfrob.b32 %r1;\n}\n",
        sm89: ".version 8.4\n.target sm_90\n.address_size 64\n.visible .entry k()\n{\n\tret;\n}\n",
    };
    let kernel = Kernel { op: "broken", entry: "k" };
    for (gpu, words) in devices().into_iter().zip(["sm_90", "frob"]) {
        gpu.add_module(&BROKEN);
        let error = gpu.launch(kernel, ONE_THREAD, &[]).unwrap_err();
        let target = if gpu.has_fp8() { "sm_89" } else { "sm_80" };
        let CudaError::InvalidPtx { op, target: found, why } = &error else { panic!("{error}") };
        assert_eq!((op.as_str(), *found), ("broken", target));
        assert!(why.starts_with("CUDA_ERROR_INVALID_PTX: ") && why.contains(words), "{why}");
        gpu.synchronize().unwrap();
    }
}

#[test]
fn a_fault_names_its_kernel_and_stays_with_its_device() {
    let [gpu, other] = devices().try_into().unwrap();
    let x = gpu.upload(&[1_u32, 2, 3]).unwrap();
    assert_eq!(gpu.simulator().unwrap().fault(), None);
    let error = gpu.launch(ONE_TOO_FAR, ONE_THREAD, &[x.view().into(), 3_u32.into()]).unwrap_err();
    let CudaError::Fault { text } = &error else { panic!("{error}") };
    assert!(text.contains("one_too_far") && text.contains("out of bounds") && text.contains("line "), "{text}");
    assert!(text.contains(&format!("{:#x}", x.view().address() + 12)), "{text}");
    assert_eq!(gpu.simulator().unwrap().fault().as_ref(), Some(text));
    // Everything after it fails with the same text, as it would on a GPU.
    assert_eq!(gpu.synchronize().unwrap_err(), error);
    assert_eq!(gpu.read(x.view(), &mut [0; 3]).unwrap_err(), error);
    other.synchronize().unwrap();
    assert_eq!(other.simulator().unwrap().fault(), None);
    // A device opened anew is whole.
    assert_eq!(simulator::open().unwrap().upload(&[1_u8]).unwrap().len(), 1);
}

#[test]
fn events_come_in_order_and_measure_nothing() {
    let gpu = simulator::open().unwrap();
    gpu.add_module(&DEVICE);
    let x = gpu.upload(&floats(64)).unwrap();
    let before = gpu.event().unwrap();
    axpy(&gpu, 64, x.view(), x.view(), 1.0).unwrap();
    let after = gpu.event().unwrap();
    after.synchronize().unwrap();
    assert_eq!(after.ms_since(&before).unwrap(), 0.0);
}

#[test]
fn modes_and_threads_change_no_bits_and_counters_count() {
    let gpu = simulator::open().unwrap();
    gpu.add_module(&DEVICE);
    let simulator = gpu.simulator().unwrap();
    let n = 1000;
    let (x, y) = (gpu.upload(&floats(n)).unwrap(), gpu.upload(&floats(n)).unwrap());
    let run = || {
        gpu.write(y.view(), &floats(n)).unwrap();
        axpy(&gpu, n, y.view(), x.view(), -0.3).unwrap();
        gpu.download(y.view()).unwrap().into_iter().map(f32::to_bits).collect::<Vec<_>>()
    };
    let want = run();
    let counters = simulator.counters().unwrap();
    let sectors = (4 * n as u64).div_ceil(32);
    assert_eq!(counters.get("launches"), 1);
    assert_eq!((counters.get("load bytes"), counters.get("store bytes")), (8 * n as u64, 4 * n as u64));
    assert_eq!(counters.of(x.view(), "load unique sectors"), sectors);
    assert_eq!((counters.of(x.view(), "store bytes"), counters.of(y.view(), "store unique sectors")), (0, sectors));
    assert!(counters.get("float lane instructions") >= n as u64);
    assert!(counters.iter().any(|(name, lanes)| name == "lane instructions" && lanes > 8 * n as u64));
    simulator.reset_counters().unwrap();
    assert_eq!(simulator.counters().unwrap().get("launches"), 0);
    for mode in [Mode::Perturbed(3), Mode::Pessimistic, Mode::Checked] {
        simulator.set_mode(mode).unwrap();
        assert_eq!(run(), want, "{mode:?}");
    }
    assert!(simulator.set_mode(Mode::Fast).is_err(), "with memory that is checked");
    simulator.set_threads(2).unwrap();
    assert_eq!(run(), want);
    assert!(simulator.set_threads(0).is_err());

    let fast = simulator::open().unwrap();
    fast.add_module(&DEVICE);
    fast.simulator().unwrap().set_mode(Mode::Fast).unwrap();
    let (x, y) = (fast.upload(&floats(n)).unwrap(), fast.upload(&floats(n)).unwrap());
    axpy(&fast, n, y.view(), x.view(), -0.3).unwrap();
    let got = fast.download(y.view()).unwrap();
    assert!(got.iter().map(|v| v.to_bits()).eq(want));
    let counters = fast.simulator().unwrap().counters().unwrap();
    assert_eq!((counters.get("launches"), counters.get("lane instructions")), (1, 0));
}

/// A driver by another path cannot come after one is in use; the same one may be asked for again.
#[test]
fn one_driver_per_process() {
    let path = simulator::driver_path().unwrap();
    drop(simulator::open().unwrap());
    ptx::cuda::load_driver(&path).unwrap();
    let other = ptx::cuda::load_driver(std::path::Path::new("/nowhere/libcuda.so.1")).unwrap_err();
    let CudaError::OtherDriver { asked, loaded } = other else { panic!("{other}") };
    assert_eq!((asked.as_str(), loaded), ("/nowhere/libcuda.so.1", path.display().to_string()));
}
