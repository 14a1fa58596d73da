//! A kernel with a planted fault, or its clean twin.

use simt::{Config, Device, Fault, FaultKind, Launch, Mode, Module};

/// Words of the buffer `data` that the host has written; as many behind them are never written.
pub const DATA: u64 = 256;

/// A kernel with the parameters `data` and `out`, already in `%data` and `%out`, the thread in `%t`, the block in `%b`.
pub struct Plant {
    pub body: &'static str,
    pub grid: u32,
    pub threads: u32,
    pub shared: u32,
}

impl Plant {
    pub fn new(body: &'static str) -> Plant {
        Plant { body, grid: 1, threads: 64, shared: 4096 }
    }

    /// The same in so many blocks.
    pub fn blocks(body: &'static str, grid: u32) -> Plant {
        Plant { grid, ..Plant::new(body) }
    }

    pub fn text(&self) -> String {
        let body = self.body;
        format!(
            ".version 8.4\n.target sm_89\n.address_size 64\n.extern .shared .align 16 .b8 smem[];\n\
             .visible .entry planted(.param .u64 data, .param .u64 out)\n{{\n\
             .reg .b32 %r<16>;\n.reg .b64 %rd<16>;\n.reg .pred %p<8>;\n.reg .f32 %f<8>;\n\
             .reg .b64 %data, %out;\n.reg .b32 %t, %b, %s;\n\
             ld.param.u64 %data, [data];\nld.param.u64 %out, [out];\nmov.u32 %t, %tid.x;\nmov.u32 %b, %ctaid.x;\n\
             shl.b32 %s, %t, 2;\nmul.wide.u32 %rd0, %t, 4;\nadd.s64 %rd1, %data, %rd0;\nadd.s64 %rd2, %out, %rd0;\n\
             {body}\nret;\n}}\n"
        )
    }

    pub fn run_in(&self, mode: Mode) -> Result<(), Fault> {
        self.run_on(mode, 1)
    }

    /// On so many threads of the host.
    pub fn run_on(&self, mode: Mode, threads: usize) -> Result<(), Fault> {
        let module = Module::load(&self.text()).unwrap_or_else(|e| panic!("{e}"));
        let mut device = Device::new(Config { mode, threads, ..Config::default() });
        let data = device.alloc(8 * DATA).unwrap();
        device.fill(data, &[1, 0, 0, 0], 4 * DATA).unwrap();
        let out = device.alloc(4096).unwrap();
        let params = [data.to_le_bytes(), out.to_le_bytes()].concat();
        let launch = Launch { grid: [self.grid, 1, 1], block: [self.threads, 1, 1], shared_bytes: self.shared };
        device.launch(module.entry("planted").unwrap(), launch, &params).map(|_| ())
    }

    /// Passes in every mode, with eight schedules and on several threads.
    pub fn passes(&self) {
        for mode in [Mode::Fast, Mode::Checked, Mode::Pessimistic].into_iter().chain((0..8).map(Mode::Perturbed)) {
            if let Err(fault) = self.run_in(mode) {
                panic!("{mode:?}: {fault}\n{}", self.text());
            }
        }
        for threads in [2, 3] {
            if let Err(fault) = self.run_on(Mode::Checked, threads) {
                panic!("{threads} threads: {fault}\n{}", self.text());
            }
        }
    }

    /// Fails with this kind at the line marked `// here`, in this block and thread.
    #[track_caller]
    pub fn fails(&self, kind: FaultKind, block: u32, thread: u32) -> Fault {
        let fault = self.run_in(Mode::Checked).expect_err("the fault is caught");
        let line = self.text().lines().position(|l| l.contains("// here")).expect("the line is marked") + 1;
        let want = (kind, "planted", line, [block, 0, 0], [thread, 0, 0]);
        assert_eq!((fault.kind, fault.kernel.as_str(), fault.line, fault.block, fault.thread), want, "{fault}");
        let said = fault.to_string();
        assert!(
            said.contains(&format!("kernel planted, line {line}, block ({block}, 0, 0), thread ({thread}")),
            "{said}"
        );
        // Another schedule meets it as well, perhaps from its other side.
        for seed in 0..8 {
            let other = self.run_in(Mode::Perturbed(seed)).expect_err("another schedule meets it as well");
            assert_eq!(other.kind, kind, "seed {seed}: {other}");
        }
        fault
    }
}
