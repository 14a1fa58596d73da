//! One worker: runs blocks one after another, the warps of a block in turns.

use crate::counters::CLASSES;
use crate::device::{Job, Launch};
use crate::exec::Step;
use crate::fault::{Fault, FaultKind, Report};
use crate::program::{NEGATED, Program, UNGUARDED};
use crate::races::Races;
use crate::shared::Shared;
use crate::state::{Ctx, Random, Waiting, Warp, Wides, Words};
use crate::types::Special;

/// Warps and context of the block that runs.
pub(crate) struct Worker<'a> {
    pub(crate) cx: Ctx<'a>,
    warps: Vec<Warp>,
    launch: Launch,
    block: [u32; 3],
    /// Order of the warps' turns.
    order: Vec<usize>,
    seed: u64,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(job: &Job<'a>) -> Worker<'a> {
        let program = job.program;
        let threads = job.launch.block.iter().product::<u32>();
        let count = threads.div_ceil(32);
        let shared_bytes = program.shared_bytes(job.launch.shared_bytes as usize);
        let sites = program.mems.len();
        let mut tally = crate::counters::Tally::default();
        tally.blocks.resize(program.blocks.len(), crate::counters::Issued::default());
        tally.allocations.resize(job.memory.live.len(), Default::default());
        let warps = (0..count).map(|index| {
            let lanes = (threads - index * 32).min(32);
            let lanes = if lanes == 32 { u32::MAX } else { (1 << lanes) - 1 };
            let mut warp = Warp { index, lanes, ..Warp::default() };
            constants(&mut warp, program, job);
            warp.local = vec![[u32::MAX; 32]; program.local_bytes.div_ceil(4)];
            warp
        });
        Worker {
            warps: warps.collect(),
            cx: Ctx {
                program,
                memory: job.memory,
                params: job.params,
                shared: Shared::new(shared_bytes, count as usize, sites, job.checks),
                races: job.checks.then(|| Races::new(job.ledger, count as usize, job.launch.grid, program.fences)),
                launch: job.number,
                checks: job.checks,
                counts: job.counts,
                perturb: job.seed.is_some(),
                pessimistic: job.pessimistic,
                parity: false,
                random: Random::new(0),
                sites: vec![u32::MAX; sites],
                tally,
                report: None,
            },
            launch: job.launch,
            block: [0; 3],
            order: (0..count as usize).collect(),
            seed: job.seed.unwrap_or(0),
        }
    }

    /// Runs the block with this number, x fastest.
    pub(crate) fn run(&mut self, number: u64) -> Result<(), Fault> {
        let [x, y, _] = self.launch.grid.map(u64::from);
        let part = |n: u64| u32::try_from(n).expect("within the grid");
        self.block = [part(number % x), part(number / x % y), part(number / (x * y))];
        // What is random in a block depends on the seed and the block alone, so that threads do not matter.
        self.cx.random = Random::new(self.seed ^ number.wrapping_mul(0xd134_2543_de82_ef95));
        self.cx.parity = number % 2 == 1;
        self.cx.shared.restart();
        if let Some(races) = &mut self.cx.races {
            races.restart(number);
        }
        for warp in &mut self.warps {
            warp.restart();
            for &(slot, special) in &self.cx.program.specials {
                if let Special::Ctaid(axis) = special {
                    warp.regs.words[usize::from(slot)] = Words([self.block[usize::from(axis)]; 32]);
                }
            }
        }
        loop {
            let mut ran = false;
            self.shuffle_order();
            for i in 0..self.order.len() {
                let index = self.order[i];
                let warp = &mut self.warps[index];
                if warp.done || warp.waiting.is_some() {
                    continue;
                }
                ran = true;
                run_warp(warp, &mut self.cx).map_err(|(pc, report)| self.fault(index, pc, report))?;
            }
            if self.warps.iter().all(|w| w.done) {
                return Ok(());
            }
            if !self.open_barriers() && !ran {
                return Err(self.stuck());
            }
        }
    }

    fn shuffle_order(&mut self) {
        if self.cx.perturb {
            for i in (1..self.order.len()).rev() {
                let j = self.cx.random.below(u32::try_from(i + 1).expect("at most 32 warps")) as usize;
                self.order.swap(i, j);
            }
        }
    }

    /// Lets the warps pass whose barrier is complete; true if there were any.
    fn open_barriers(&mut self) -> bool {
        let mut opened = false;
        for barrier in 0..16 {
            let here: Vec<usize> = (0..self.warps.len())
                .filter(|&i| self.warps[i].waiting.is_some_and(|w| w.barrier == barrier))
                .collect();
            let Some(&first) = here.first() else { continue };
            let threads = self.warps[first].waiting.map_or(0, |w| w.threads);
            let alive = self.warps.iter().filter(|w| !w.done).count();
            let all = here.len() == alive;
            let complete = if threads == 0 { all } else { here.len() * 32 >= threads as usize };
            if !complete || here.iter().any(|&i| self.warps[i].waiting != Some(Waiting { barrier, threads })) {
                continue;
            }
            opened = true;
            if let Some(shadow) = &mut self.cx.shared.shadow {
                if all { shadow.block_barrier() } else { shadow.clocks.warps_barrier(&here) }
            }
            if let Some(races) = self.cx.races.as_mut().filter(|_| all) {
                races.block_barrier();
            }
            for i in here {
                self.warps[i].waiting = None;
            }
        }
        opened
    }

    /// No warp can run and no barrier opens.
    fn stuck(&self) -> Fault {
        let waiting: Vec<(usize, Waiting)> =
            self.warps.iter().enumerate().filter_map(|(i, w)| Some((i, w.waiting?))).collect();
        let list: Vec<String> = waiting
            .iter()
            .map(|(i, w)| match w.threads {
                0 => format!("warp {i} at barrier {}", w.barrier),
                n => format!("warp {i} at barrier {} for {n} threads", w.barrier),
            })
            .collect();
        let index = waiting.first().map_or(0, |w| w.0);
        let warp = &self.warps[index];
        let lane = crate::state::first_lane(warp.active);
        let detail = format!("no barrier can open: {}", list.join(", "));
        // The program counter stands behind the barrier.
        self.fault(
            index,
            warp.pc.saturating_sub(1),
            Report { kind: FaultKind::DivergentBarrier, lane, address: None, detail },
        )
    }

    fn fault(&self, warp: usize, pc: u32, report: Report) -> Fault {
        let [x, y, _] = self.launch.block;
        let number = u32::try_from(warp * 32 + report.lane).expect("a thread of a block");
        Fault {
            kind: report.kind,
            kernel: self.cx.program.name.clone(),
            line: self.cx.program.notes[pc as usize].0 as usize,
            block: self.block,
            thread: [number % x, number / x % y, number / (x * y)],
            address: report.address,
            detail: report.detail,
        }
    }
}

/// Runs a warp until it waits, ends or has had its turn.
fn run_warp(w: &mut Warp, cx: &mut Ctx<'_>) -> Result<(), (u32, Report)> {
    let program = cx.program;
    let ops = program.ops.as_slice();
    let mut pc = w.pc as usize;
    w.turn = 0;
    loop {
        let op = &ops[pc];
        pc += 1;
        if op.guard == UNGUARDED {
            w.mask = w.active;
        } else {
            let bits = w.regs.preds[usize::from(op.guard & !NEGATED)];
            w.mask = w.active & if op.guard & NEGATED == 0 { bits } else { !bits };
            if w.mask == 0 {
                continue;
            }
            if cx.counts {
                count_guarded(w.mask, cx, pc - 1);
            }
        }
        // SAFETY: `Module::load` filled `exec` for an instruction set that it detected on this host.
        let step = unsafe { (op.exec)(w, cx, op) };
        match step {
            Step::Next => {}
            Step::Jump => pc = w.pc as usize,
            Step::Yield | Step::Done => return Ok(()),
            Step::Barrier => {
                w.pc = u32::try_from(pc).expect("programs are numbered in 32 bits");
                return Ok(());
            }
            Step::Fault => {
                let at = u32::try_from(pc - 1).expect("programs are numbered in 32 bits");
                return Err((at, cx.report.take().expect("a fault is reported")));
            }
        }
    }
}

fn count_guarded(mask: u32, cx: &mut Ctx<'_>, pc: usize) {
    if let Some(class) = cx.program.notes[pc].1 {
        let issued = &mut cx.tally.guarded[class as usize];
        issued.warp += 1;
        issued.lane += u64::from(mask.count_ones());
    }
    const { assert!(CLASSES <= 32) }
}

/// Fills the slots whose values do not change during a launch.
fn constants(warp: &mut Warp, program: &Program, job: &Job<'_>) {
    warp.regs.words = vec![Words([0; 32]); program.words];
    warp.regs.wides = vec![Wides([0; 32]); program.wides];
    warp.regs.preds = vec![0; program.preds];
    for &(slot, x) in &program.word_constants {
        warp.regs.words[usize::from(slot)] = Words([x; 32]);
    }
    for &(slot, x) in &program.wide_constants {
        warp.regs.wides[usize::from(slot)] = Wides([x; 32]);
    }
    for &(slot, x) in &program.pred_constants {
        warp.regs.preds[usize::from(slot)] = if x { u32::MAX } else { 0 };
    }
    for &(slot, offset) in &program.globals {
        warp.regs.wides[usize::from(slot)] = Wides([job.image + offset; 32]);
    }
    let [x, y, _] = job.launch.block;
    for &(slot, special) in &program.specials {
        warp.regs.words[usize::from(slot)] = Words(std::array::from_fn(|i| {
            let lane = u32::try_from(i).expect("a lane");
            let thread = warp.index * 32 + lane;
            match special {
                Special::Tid(0) => thread % x,
                Special::Tid(1) => thread / x % y,
                Special::Tid(_) => thread / (x * y),
                Special::Ntid(axis) => job.launch.block[usize::from(axis)],
                // Filled for each block.
                Special::Ctaid(_) => 0,
                Special::Nctaid(axis) => job.launch.grid[usize::from(axis)],
                Special::Lane => lane,
                Special::Warp => warp.index,
                Special::Warps => job.launch.block.iter().product::<u32>().div_ceil(32),
                Special::WarpSize => 32,
                Special::LaneMaskEq => 1 << lane,
                Special::LaneMaskLt => (1 << lane) - 1,
                Special::LaneMaskLe => u32::MAX >> (31 - lane),
                Special::LaneMaskGe => u32::MAX << lane,
                Special::LaneMaskGt => !(u32::MAX >> (31 - lane)),
                Special::DynamicSharedBytes => job.launch.shared_bytes,
                Special::TotalSharedBytes => {
                    u32::try_from(program.shared_bytes(job.launch.shared_bytes as usize)).unwrap_or(u32::MAX)
                }
            }
        }));
    }
}
