//! Builds a kernel around one instruction or a few lines, runs it, and says which lane differs.

use simt::{Config, Device, Fault, Launch, Mode, Module};
use std::fmt::Write;

/// What a register of the instruction holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum W {
    /// A predicate; 0 or 1 in a table row.
    P,
    B16,
    B32,
    B64,
}

const HEADER: &str = "//\n.version 8.4\n.target sm_89\n.address_size 64\n";

/// The ways in which every instruction of a table runs. Guarded forms may be separate code in an executor.
const VARIANTS: [&str; 4] = ["plain", "guarded", "negated", "divergent"];

/// What the destination holds where the instruction does not run.
fn preset(out: W) -> u64 {
    match out {
        W::P => 1,
        W::B16 => 0x1234,
        W::B32 => 0x89ab_cdef,
        W::B64 => 0x0123_4567_89ab_cdef,
    }
}

fn register(name: &str, class: W) -> String {
    let class = match class {
        W::P => "pred",
        W::B16 => "b16",
        W::B32 => "b32",
        W::B64 => "b64",
    };
    format!("\t.reg .{class} {name};\n")
}

/// `op` alone gets its operands in order; with operands written out it stands as it is (`%d`, then `%a`, `%b`, `%c`, `%e`).
fn instruction(op: &str, inputs: usize) -> String {
    if op.contains(' ') {
        return format!("{op};");
    }
    let operands = ["%a", "%b", "%c", "%e"];
    format!("{op} %d, {};", operands[..inputs].join(", "))
}

/// The spelling of an instruction without its operands.
fn spelling(op: &str) -> &str {
    op.split(' ').next().expect("a split has a first part")
}

fn table_kernels(op: &str, out: W, ins: &[W]) -> String {
    let instruction = instruction(op, ins.len());
    let mut text = String::from(HEADER);
    for name in VARIANTS {
        let mut body = String::new();
        for (class, register_name) in ins.iter().zip(["%a", "%b", "%c", "%e"]) {
            body += "\tld.global.u64 %in, [%rd5];\n\tadd.s64 %rd5, %rd5, %rd3;\n";
            let convert = match class {
                W::P => "setp.ne.s64",
                W::B16 => "cvt.u16.u64",
                W::B32 => "cvt.u32.u64",
                W::B64 => "mov.b64",
            };
            let zero = if *class == W::P { ", 0" } else { "" };
            writeln!(body, "\t{convert} {register_name}, %in{zero};").expect("writing to a string");
        }
        let preset = match out {
            W::P => "setp.eq.s32 %d, %r1, %r1;".to_string(),
            W::B16 => format!("mov.u16 %d, {};", preset(out)),
            W::B32 => format!("mov.u32 %d, {};", preset(out)),
            W::B64 => format!("mov.u64 %d, {};", preset(out)),
        };
        writeln!(body, "\t{preset}\n\tand.b32 %r5, %r3, 1;\n\tsetp.eq.s32 %p1, %r5, 1;").expect("writing to a string");
        body += &match name {
            "plain" => format!("\t{instruction}\n"),
            "guarded" => format!("\t@%p1 {instruction}\n"),
            "negated" => format!("\t@!%p1 {instruction}\n"),
            _ => format!("\t@%p1 bra SKIP;\n\t{instruction}\nSKIP:\n"),
        };
        body += match out {
            W::P => "\tselp.b64 %o, 1, 0, %d;\n",
            W::B16 => "\tcvt.u64.u16 %o, %d;\n",
            W::B32 => "\tcvt.u64.u32 %o, %d;\n",
            W::B64 => "\tmov.b64 %o, %d;\n",
        };
        let registers: String =
            ins.iter().zip(["%a", "%b", "%c", "%e"]).map(|(class, name)| register(name, *class)).collect();
        write!(
            text,
            "\n.visible .entry {name}(\n\t.param .u64 {name}_in,\n\t.param .u64 {name}_out,\n\t.param .u64 {name}_plane\n)\n{{\n\
             \t.reg .pred %p1;\n\t.reg .b32 %r<8>;\n\t.reg .b64 %rd<8>, %in, %o;\n{registers}{}\
             \tld.param.u64 %rd1, [{name}_in];\n\tld.param.u64 %rd2, [{name}_out];\n\tld.param.u64 %rd3, [{name}_plane];\n\
             \tmov.u32 %r1, %ctaid.x;\n\tmov.u32 %r2, %ntid.x;\n\tmov.u32 %r3, %tid.x;\n\tmad.lo.s32 %r4, %r1, %r2, %r3;\n\
             \tmul.wide.u32 %rd4, %r4, 8;\n\tadd.s64 %rd5, %rd1, %rd4;\n\tadd.s64 %rd6, %rd2, %rd4;\n\
             {body}\tst.global.u64 [%rd6], %o;\n\tret;\n}}\n",
            register("%d", out),
        )
        .expect("writing to a string");
    }
    text
}

/// The modes whose arithmetic is exact.
fn modes() -> [(&'static str, Mode); 2] {
    [("fast", Mode::Fast), ("checked", Mode::Checked)]
}

fn device(mode: Mode) -> Device {
    Device::new(Config { mode, threads: 1, memory_bytes: 64 << 20, capability: (8, 9) })
}

fn upload(device: &mut Device, bytes: &[u8]) -> u64 {
    let address = device.alloc(bytes.len().max(16) as u64).expect("room for a test's memory");
    device.write(address, bytes).expect("a write to an own allocation");
    address
}

fn bytes_of(words: impl IntoIterator<Item = u64>) -> Vec<u8> {
    words.into_iter().flat_map(u64::to_le_bytes).collect()
}

/// Whether the executor knows `op`; if it does not, the refusal must name it.
pub fn known<const N: usize>(op: &str, out: W, ins: [W; N]) -> bool {
    match Module::load(&table_kernels(op, out, &ins)) {
        Ok(_) => true,
        Err(error) => {
            let error = error.to_string();
            assert!(error.contains(spelling(op)), "the refusal of {op} does not name it: {error}");
            false
        }
    }
}

/// Runs `op` over all rows and compares bits.
pub fn check<const N: usize>(op: &str, out: W, ins: [W; N], rows: &[([u64; N], u64)]) {
    let inputs: Vec<[u64; N]> = rows.iter().map(|row| row.0).collect();
    let want = |row: usize, got: u64| if got == rows[row].1 { Ok(()) } else { Err(format!("{:#x}", rows[row].1)) };
    check_rows(op, out, ins, &inputs, &modes(), want);
}

/// Runs `op` over all rows; `judge` says what it wanted where `got` is not right.
pub fn check_with<const N: usize>(
    op: &str,
    out: W,
    ins: [W; N],
    rows: &[[u64; N]],
    judge: impl Fn(&[u64; N], u64) -> Result<(), String>,
) {
    check_rows(op, out, ins, rows, &modes(), |row, got| judge(&rows[row], got));
}

/// The same in every mode, those included that add the errors an approximation may have.
pub fn check_approximate<const N: usize>(
    op: &str,
    ins: [W; N],
    rows: &[[u64; N]],
    judge: impl Fn(&[u64; N], u64) -> Result<(), String>,
) {
    let modes = [
        ("fast", Mode::Fast),
        ("checked", Mode::Checked),
        ("pessimistic", Mode::Pessimistic),
        ("perturbed", Mode::Perturbed(3)),
    ];
    check_rows(op, W::B32, ins, rows, &modes, |row, got| judge(&rows[row], got));
}

fn check_rows<const N: usize>(
    op: &str,
    out: W,
    ins: [W; N],
    rows: &[[u64; N]],
    modes: &[(&str, Mode)],
    judge: impl Fn(usize, u64) -> Result<(), String>,
) {
    assert!(!rows.is_empty(), "{op}: a table without rows");
    const THREADS: usize = 64;
    let source = table_kernels(op, out, &ins);
    let module = Module::load(&source).unwrap_or_else(|error| panic!("{op}: {error}\n{source}"));
    let portable = Module::load_portable(&source).unwrap_or_else(|error| panic!("{op}: {error}\n{source}"));
    // The last block is filled by repeating rows, so that all lanes run unless the variant says otherwise.
    let lanes = rows.len().next_multiple_of(THREADS);
    let row_of = |lane: usize| lane % rows.len();
    let input = bytes_of((0..N).flat_map(|operand| (0..lanes).map(move |lane| rows[row_of(lane)][operand])));
    let mut failures = Vec::new();
    for (mode_name, mode) in modes {
        let mut device = device(*mode);
        let from = upload(&mut device, &input);
        let to = upload(&mut device, &vec![0; 8 * lanes]);
        for variant in VARIANTS {
            // One mode runs the code that every CPU can, the others what this CPU is best at.
            let module = if *mode_name == "fast" { &portable } else { &module };
            let entry = module.entry(variant).expect("an entry of this module");
            let params = bytes_of([from, to, 8 * lanes as u64]);
            let grid = u32::try_from(lanes / THREADS).expect("a small grid");
            let launch = Launch { grid: [grid, 1, 1], block: [64, 1, 1], shared_bytes: 0 };
            device
                .launch(entry, launch, &params)
                .unwrap_or_else(|fault| panic!("{op}, {variant}, {mode_name}: {fault}"));
            let mut bytes = vec![0; 8 * lanes];
            device.read(to, &mut bytes).expect("a read of an own allocation");
            for (lane, got) in bytes.chunks_exact(8).enumerate() {
                let got = u64::from_le_bytes(got.try_into().expect("eight bytes"));
                let runs = match variant {
                    "plain" => true,
                    "guarded" => lane % 2 == 1,
                    _ => lane % 2 == 0,
                };
                let judged = match runs {
                    true => judge(row_of(lane), got),
                    false if got == preset(out) => Ok(()),
                    false => Err(format!("{:#x}, untouched", preset(out))),
                };
                if let Err(want) = judged {
                    let inputs: Vec<String> = rows[row_of(lane)].iter().map(|x| format!("{x:#x}")).collect();
                    failures.push(format!(
                        "{op}, {variant}, {mode_name}, lane {}: inputs [{}], want {want}, got {got:#x}",
                        lane % 32,
                        inputs.join(", ")
                    ));
                }
            }
        }
    }
    let count = failures.len();
    failures.truncate(12);
    assert!(count == 0, "{count} wrong results, the first of them:\n{}", failures.join("\n"));
}

/// A few lines of PTX with registers declared for them: `%t` the thread's number in the grid, `%l` its lane, `%in` and
/// `%out` the addresses of all inputs and of this thread's outputs; free are `%p<16>`, `%h<32>` (16 bits), `%r<96>`,
/// `%f<32>`, `%q<48>` (64 bits) and `%g<16>` (f64). Dynamic shared memory is `smem`.
pub struct Body<'a> {
    pub text: &'a str,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    pub input: &'a [u32],
    /// Words that each thread writes.
    pub out_words: usize,
    /// Module-level declarations.
    pub declarations: &'a str,
}

impl<'a> Body<'a> {
    /// One warp, no shared memory.
    pub fn new(text: &'a str, input: &'a [u32], out_words: usize) -> Self {
        Self { text, grid: [1; 3], block: [32, 1, 1], shared_bytes: 0, input, out_words, declarations: "" }
    }

    pub fn threads(mut self, threads: u32) -> Self {
        self.block = [threads, 1, 1];
        self
    }

    pub fn blocks(mut self, blocks: u32) -> Self {
        self.grid = [blocks, 1, 1];
        self
    }

    /// A launch of more dimensions; `%t` and `%out` are then of no use.
    pub fn shape(mut self, grid: [u32; 3], block: [u32; 3]) -> Self {
        (self.grid, self.block) = (grid, block);
        self
    }

    fn all_threads(&self) -> usize {
        self.grid.iter().chain(&self.block).map(|&n| n as usize).product()
    }

    pub fn shared(mut self, bytes: u32) -> Self {
        self.shared_bytes = bytes;
        self
    }

    pub fn declare(mut self, declarations: &'a str) -> Self {
        self.declarations = declarations;
        self
    }

    /// The module's text.
    pub fn source(&self) -> String {
        format!(
            "{HEADER}{}\n.extern .shared .align 128 .b8 smem[];\n.visible .entry kernel(\n\t.param .u64 kernel_in,\n\
             \t.param .u64 kernel_out\n)\n{{\n\
             \t.reg .pred %p<16>;\n\t.reg .b16 %h<32>;\n\t.reg .b32 %r<96>, %t, %l;\n\t.reg .f32 %f<32>;\n\
             \t.reg .b64 %q<48>, %in, %out;\n\t.reg .f64 %g<16>;\n\
             \tld.param.u64 %in, [kernel_in];\n\tld.param.u64 %out, [kernel_out];\n\
             \tmov.u32 %r0, %ctaid.x;\n\tmov.u32 %r1, %ntid.x;\n\tmov.u32 %r2, %tid.x;\n\tand.b32 %l, %r2, 31;\n\
             \tmad.lo.s32 %t, %r0, %r1, %r2;\n\tmul.wide.u32 %q0, %t, {};\n\tadd.s64 %out, %out, %q0;\n\
             {}\n\tret;\n}}\n",
            self.declarations,
            4 * self.out_words,
            self.text,
        )
    }

    /// Whether the executor knows all of the text; if not, its refusal must name `spelling`.
    pub fn known(&self, spelling: &str) -> bool {
        match Module::load(&self.source()) {
            Ok(_) => true,
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains(spelling), "the refusal of {spelling} does not name it: {error}");
                false
            }
        }
    }

    fn attempt(&self, mode: Mode) -> Result<Vec<u32>, Fault> {
        let source = self.source();
        let module = Module::load(&source).unwrap_or_else(|error| panic!("{error}\n{source}"));
        let entry = module.entry("kernel").expect("the entry of this module");
        let mut device = device(mode);
        let bytes: Vec<u8> = self.input.iter().flat_map(|word| word.to_le_bytes()).collect();
        let from = upload(&mut device, &bytes);
        let words = self.all_threads() * self.out_words;
        let to = upload(&mut device, &vec![0xcd; 4 * words]);
        let launch = Launch { grid: self.grid, block: self.block, shared_bytes: self.shared_bytes };
        device.launch(entry, launch, &bytes_of([from, to]))?;
        let mut bytes = vec![0; 4 * words];
        device.read(to, &mut bytes).expect("a read of an own allocation");
        Ok(bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().expect("four bytes"))).collect())
    }

    /// What all threads wrote, `[thread][word]`, the same in every mode and under every schedule tried.
    pub fn run(&self) -> Vec<u32> {
        let text = self.text;
        let want = self.attempt(Mode::Checked).unwrap_or_else(|fault| panic!("checked: {fault}\n{text}"));
        let mut others = vec![("fast", Mode::Fast), ("pessimistic", Mode::Pessimistic)];
        others.extend((1..6).map(|seed| ("perturbed", Mode::Perturbed(seed))));
        for (name, mode) in others {
            let got = self.attempt(mode).unwrap_or_else(|fault| panic!("{name}: {fault}\n{text}"));
            assert_eq!(got, want, "{name} differs from checked\n{text}");
        }
        want
    }

    /// What all threads wrote in one mode.
    pub fn run_in(&self, mode: Mode) -> Vec<u32> {
        self.attempt(mode).unwrap_or_else(|fault| panic!("{mode:?}: {fault}\n{}", self.text))
    }

    /// What all threads wrote in each mode and under each schedule, for what may depend on the order of threads.
    pub fn run_each(&self) -> Vec<Vec<u32>> {
        let modes = [Mode::Checked, Mode::Fast, Mode::Perturbed(1), Mode::Perturbed(2)];
        modes.into_iter().map(|mode| self.run_in(mode)).collect()
    }

    /// What all threads wrote, as one row for each thread.
    pub fn rows(&self) -> Vec<Vec<u32>> {
        self.run().chunks_exact(self.out_words).map(<[u32]>::to_vec).collect()
    }

    /// Runs and compares each thread's words.
    pub fn expect(&self, want: impl Fn(usize) -> Vec<u32>) {
        for (thread, got) in self.rows().into_iter().enumerate() {
            let want = want(thread);
            assert_eq!(want.len(), self.out_words, "an expectation of another length");
            assert!(got == want, "{}\nthread {thread}: want {want:x?}, got {got:x?}", self.text);
        }
    }

    /// What the checked mode says of a kernel that does what the ISA leaves undefined.
    pub fn fault(&self) -> Fault {
        match self.attempt(Mode::Checked) {
            Ok(_) => panic!("no fault was seen\n{}", self.text),
            Err(fault) => fault,
        }
    }

    /// The line of the module on which `part` first stands, from 1.
    pub fn line_of(&self, part: &str) -> usize {
        let source = self.source();
        1 + source
            .lines()
            .position(|line| line.contains(part))
            .unwrap_or_else(|| panic!("no line with {part}\n{source}"))
    }
}
