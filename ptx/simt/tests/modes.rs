//! Whole kernels: right results, and the same bits in every mode, at any number of threads, on any host.

use simt::{Config, Device, Entry, Launch, Mode, Module, Stats};

const PTX: &str = include_str!("../benches/kernels.ptx");

/// Numbers between -1 and 1 from a counter.
fn numbers(n: usize, seed: u64) -> Vec<f32> {
    (0..n as u64)
        .map(|i| {
            let mut z = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(seed << 32);
            z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            #[allow(clippy::cast_precision_loss)]
            let x = (z >> 40) as f32;
            x / 8_388_608.0 - 1.0
        })
        .collect()
}

#[allow(clippy::cast_possible_truncation)]
fn bf16(x: f32) -> u16 {
    (x.to_bits() >> 16) as u16
}

fn widen(x: u16) -> f32 {
    f32::from_bits(u32::from(x) << 16)
}

fn bytes(x: &[f32]) -> Vec<u8> {
    x.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn half_bytes(x: &[u16]) -> Vec<u8> {
    x.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn upload(device: &mut Device, data: &[u8]) -> u64 {
    let address = device.alloc(data.len() as u64).unwrap();
    device.write(address, data).unwrap();
    address
}

fn download(device: &Device, address: u64, n: usize) -> Vec<f32> {
    let mut out = vec![0; n * 4];
    device.read(address, &mut out).unwrap();
    out.chunks(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect()
}

/// A parameter buffer of addresses and then words, which is the layout of all kernels here.
fn params(addresses: &[u64], words: &[u32]) -> Vec<u8> {
    let mut out: Vec<u8> = addresses.iter().flat_map(|a| a.to_le_bytes()).collect();
    out.extend(words.iter().flat_map(|w| w.to_le_bytes()));
    out
}

/// A case: its kernel, buffers, launch, output length.
struct Case {
    kernel: &'static str,
    inputs: Vec<Vec<u8>>,
    words: Vec<u32>,
    launch: Launch,
    outputs: usize,
}

fn gemv() -> Case {
    let (rows, k) = (37, 520);
    let weights: Vec<u16> = numbers(rows * k, 1).into_iter().map(bf16).collect();
    Case {
        kernel: "gemv",
        inputs: vec![half_bytes(&weights), bytes(&numbers(k, 2))],
        words: vec![37, 65],
        launch: Launch { grid: [10, 1, 1], block: [128, 1, 1], shared_bytes: 0 },
        outputs: rows,
    }
}

fn attend() -> Case {
    let (heads, tokens) = (3, 128);
    Case {
        kernel: "attend",
        inputs: vec![
            bytes(&numbers(heads * 64, 3)),
            bytes(&numbers(heads * tokens * 64, 4)),
            bytes(&numbers(heads * tokens * 64, 5)),
        ],
        words: vec![128],
        launch: Launch { grid: [3, 1, 1], block: [64, 1, 1], shared_bytes: 4 * (64 * 68 + 128) },
        outputs: heads * 64,
    }
}

fn multiply() -> Case {
    let (warps, steps) = (4, 6);
    let half = |n, seed| half_bytes(&numbers(n, seed).into_iter().map(bf16).collect::<Vec<_>>());
    Case {
        kernel: "multiply",
        inputs: vec![half((warps + steps - 1) * 32 * 8, 6), half((warps + 4 * steps) * 32 * 4, 7)],
        words: vec![6],
        launch: Launch { grid: [4, 1, 1], block: [32, 1, 1], shared_bytes: 0 },
        outputs: warps * 32 * 16,
    }
}

fn run(case: &Case, entry: &Entry, mode: Mode, threads: usize) -> (Vec<f32>, Stats) {
    let mut device = Device::new(Config { mode, threads, ..Config::default() });
    let out = device.alloc(case.outputs as u64 * 4).unwrap();
    let mut addresses = vec![out];
    addresses.extend(case.inputs.iter().map(|data| upload(&mut device, data)));
    let stats =
        device.launch(entry, case.launch, &params(&addresses, &case.words)).unwrap_or_else(|fault| panic!("{fault}"));
    (download(&device, out, case.outputs), stats)
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn modes_threads_and_hosts_agree_to_the_bit() {
    let (module, portable) = (Module::load(PTX).unwrap(), Module::load_portable(PTX).unwrap());
    for case in [gemv(), attend(), multiply()] {
        let entry = module.entry(case.kernel).unwrap();
        let (want, stats) = run(&case, entry, Mode::Checked, 1);
        for threads in [2, 3] {
            let (got, counted) = run(&case, entry, Mode::Checked, threads);
            assert_eq!(bits(&got), bits(&want), "{} on {threads} threads", case.kernel);
            assert_eq!(counted, stats, "{} on {threads} threads", case.kernel);
        }
        let (got, counted) = run(&case, portable.entry(case.kernel).unwrap(), Mode::Checked, 1);
        assert_eq!((bits(&got), counted), (bits(&want), stats), "{} on any host", case.kernel);
        let (got, counted) = run(&case, entry, Mode::Fast, 1);
        assert_eq!((bits(&got), counted), (bits(&want), Stats::default()), "{} without checks", case.kernel);
        for seed in 0..8 {
            let (got, _) = run(&case, entry, Mode::Perturbed(seed), 1);
            assert_eq!(bits(&got), bits(&want), "{} with seed {seed}", case.kernel);
        }
    }
}

#[test]
fn a_matrix_vector_product_is_right() {
    let (rows, k) = (37, 520);
    let w: Vec<f32> = numbers(rows * k, 1).into_iter().map(|x| widen(bf16(x))).collect();
    let x = numbers(k, 2);
    let (got, stats) = run(&gemv(), Module::load(PTX).unwrap().entry("gemv").unwrap(), Mode::Checked, 1);
    for (row, got) in got.iter().enumerate() {
        let terms = || w[row * k..][..k].iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x));
        let (want, size): (f64, f64) = (terms().sum(), terms().map(f64::abs).sum());
        // At most 24 roundings in a chain, of half an ulp of a partial sum each.
        let bound = 24.0 * size * 2f64.powi(-24);
        assert!((f64::from(*got) - want).abs() <= bound, "row {row}: {got} for {want}");
    }
    // Every weight is asked for once: 16 bytes a lane, all in different sectors of each warp's row but the ragged last.
    assert_eq!(stats.allocations[1].load.bytes, (rows * k * 2) as u64);
    assert_eq!(stats.allocations[1].load.unique_sectors, (rows * k * 2_usize).div_ceil(32) as u64);
    assert_eq!(stats.allocations[0].store.bytes, rows as u64 * 4);
}

#[test]
fn an_attention_is_right() {
    let (heads, tokens) = (3, 128);
    let (q, k, v) = (numbers(heads * 64, 3), numbers(heads * tokens * 64, 4), numbers(heads * tokens * 64, 5));
    let module = Module::load(PTX).unwrap();
    for mode in [Mode::Checked, Mode::Pessimistic] {
        let (got, _) = run(&attend(), module.entry("attend").unwrap(), mode, 1);
        for head in 0..heads {
            let dot = |t: usize| -> f64 {
                (0..64).map(|d| f64::from(q[head * 64 + d]) * f64::from(k[(head * tokens + t) * 64 + d])).sum()
            };
            let weights: Vec<f64> = (0..tokens).map(|t| dot(t).exp2()).collect();
            let total: f64 = weights.iter().sum();
            for d in 0..64 {
                let sum: f64 =
                    weights.iter().enumerate().map(|(t, w)| w * f64::from(v[(head * tokens + t) * 64 + d])).sum();
                let got = f64::from(got[head * 64 + d]);
                // Scores of size 8 carry errors of 64 roundings, which the exponential turns into relative ones.
                assert!((got - sum / total).abs() < 1e-4, "{mode:?}, head {head}, {d}: {got} for {}", sum / total);
            }
        }
    }
}

#[test]
fn a_product_of_fragments_is_the_chain_of_multiply_adds() {
    let case = multiply();
    let (got, stats) = run(&case, Module::load(PTX).unwrap().entry("multiply").unwrap(), Mode::Checked, 1);
    let halves = |data: &[u8]| -> Vec<f32> {
        data.chunks(2).map(|c| widen(u16::from_le_bytes(c.try_into().unwrap()))).collect()
    };
    let (a, b) = (halves(&case.inputs[0]), halves(&case.inputs[1]));
    for warp in 0..4 {
        for tile in 0..4 {
            for (row, column) in (0..16).flat_map(|r| (0..8).map(move |c| (r, c))) {
                let mut want = 0.0_f32;
                for step in 0..6 {
                    for k in 0..16 {
                        // Where the fragment layout puts a[row, k] and b[k, column].
                        let lane = |outer: usize| outer % 8 * 4 + k % 8 / 2;
                        let register = row / 8 + 2 * (k / 8);
                        let x = a[(warp * 32 + lane(row) + 32 * step) * 8 + 2 * register + k % 2];
                        let y = b[(warp * 32 + lane(column) + 32 * (4 * step + tile)) * 4 + 2 * (k / 8) + k % 2];
                        want = x.mul_add(y, want);
                    }
                }
                let lane = row % 8 * 4 + column / 2;
                let out = got[((warp * 32 + lane) * 4 + tile) * 4 + row / 8 * 2 + column % 2];
                assert_eq!(out.to_bits(), want.to_bits(), "warp {warp}, tile {tile}, [{row}, {column}]");
            }
        }
    }
    assert_eq!(stats.mma_flops, 4 * 6 * 4 * 2 * 16 * 8 * 16);
}

#[test]
fn perturbed_blocks_run_in_an_order_drawn_from_the_seed() {
    // Each block takes a ticket: which one tells its turn.
    let text = ".version 8.4\n.target sm_89\n.address_size 64\n.visible .entry turns(.param .u64 out)\n{\n\
                .reg .b32 %r<4>;\n.reg .b64 %rd<4>;\nld.param.u64 %rd0, [out];\nmov.u32 %r0, %ctaid.x;\n\
                atom.global.add.u32 %r1, [%rd0], 1;\nmul.wide.u32 %rd1, %r0, 4;\nadd.s64 %rd1, %rd0, %rd1;\n\
                st.global.u32 [%rd1+4], %r1;\nret;\n}\n";
    let module = Module::load(text).unwrap();
    let turns = |mode, launches: usize| {
        let mut device = Device::new(Config { mode, ..Config::default() });
        let out = device.alloc(48).unwrap();
        let launch = Launch { grid: [11, 1, 1], block: [1, 1, 1], shared_bytes: 0 };
        for _ in 0..launches {
            device.fill(out, &[0], 48).unwrap();
            device.launch(module.entry("turns").unwrap(), launch, &out.to_le_bytes()).unwrap();
        }
        let mut turns = vec![0; 48];
        device.read(out, &mut turns).unwrap();
        turns[4..].chunks(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect::<Vec<_>>()
    };
    let in_order: Vec<u32> = (0..11).collect();
    for mode in [Mode::Fast, Mode::Checked, Mode::Pessimistic] {
        assert_eq!(turns(mode, 1), in_order, "{mode:?}");
    }
    let mut orders = Vec::new();
    for seed in 0..8 {
        let order = turns(Mode::Perturbed(seed), 1);
        assert_eq!(order, turns(Mode::Perturbed(seed), 1), "one seed, one order");
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, in_order, "every block runs once");
        orders.extend([order, turns(Mode::Perturbed(seed), 2)]);
    }
    orders.sort_unstable();
    orders.dedup();
    assert!(orders.len() > 12, "{} orders of 16 launches", orders.len());
}
