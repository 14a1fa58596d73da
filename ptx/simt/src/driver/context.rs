//! A context: one simulated memory with all that was made in it. Streams run at once, in the order of the calls.

use super::counters::Counters;
use super::graph::{Graph, Node};
use super::handle::{Handle, Kind, Table};
use super::refusal::{Code, Refusal, fault_code};
use super::settings::Settings;
use super::state::CAPTURE_MODE;
use crate::{Config, Device, Entry, Launch, Module};
use std::thread::ThreadId;

/// One context.
pub struct Context {
    pub device: i32,
    pub capability: (u32, u32),
    pub memory: Device,
    pub streams: Table<Stream>,
    pub events: Table<Event>,
    pub modules: Table<Module>,
    pub functions: Table<Function>,
    pub graphs: Table<Graph>,
    pub execs: Table<Graph>,
    pub counters: Counters,
    /// The fault after which nothing runs here any more.
    pub failed: Option<Refusal>,
}

/// A stream: what is being captured from it, if anything is.
#[derive(Default)]
pub struct Stream {
    pub capture: Option<Capture>,
}

/// A capture under way.
pub struct Capture {
    /// `CUstreamCaptureMode`: whose calls may spoil it.
    pub mode: u32,
    /// The thread that began it.
    pub thread: ThreadId,
    pub nodes: Vec<Node>,
    /// A call spoilt it.
    pub invalid: bool,
}

/// An event.
#[derive(Default)]
pub struct Event {
    pub recorded: bool,
    pub captured: bool,
    pub no_timing: bool,
}

/// An entry of a module, with what launches were allowed.
#[derive(Clone)]
pub struct Function {
    pub entry: Entry,
    /// The handle of its module, with which it goes.
    pub of: Handle,
    /// Bytes of dynamic shared memory that it may have; without opting in what is left of 48 KiB.
    pub dynamic_shared: u32,
}

// SAFETY: handles are numbers; nothing is read through them.
unsafe impl Send for Function {}

/// Shared memory of a block without opting in, in bytes.
pub const PLAIN_SHARED: u32 = 48 << 10;
/// Threads of a block at most.
pub const MAX_THREADS: u32 = 1024;
/// Blocks along each axis at most.
pub const MAX_GRID: [u32; 3] = [(1 << 31) - 1, 65535, 65535];
/// Threads of a block along each axis at most.
pub const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];
/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL` and `CU_STREAM_CAPTURE_MODE_RELAXED`.
const THREAD_LOCAL: u32 = 1;
const RELAXED: u32 = 2;

/// Shared memory of a block after opting in, in bytes.
pub fn shared_limit(capability: (u32, u32)) -> u32 {
    let limit = Device::new(Config { capability, ..Config::default() }).shared_limit();
    u32::try_from(limit).expect("a block has less than 4 GiB")
}

impl Context {
    pub fn new(number: u64, device: i32, settings: &Settings, capability: (u32, u32)) -> Context {
        let config =
            Config { mode: settings.mode, threads: settings.threads, memory_bytes: settings.memory_bytes, capability };
        Context {
            device,
            capability,
            memory: Device::new(config),
            streams: Table::new(Kind::Stream, number),
            events: Table::new(Kind::Event, number),
            modules: Table::new(Kind::Module, number),
            functions: Table::new(Kind::Function, number),
            graphs: Table::new(Kind::Graph, number),
            execs: Table::new(Kind::GraphExec, number),
            counters: Counters::default(),
            failed: None,
        }
    }

    /// Refuses everything after a fault, with the fault's own code, as a GPU does.
    pub fn still_good(&self) -> Result<(), Refusal> {
        match &self.failed {
            None => Ok(()),
            // Without words: they were printed when the fault happened.
            Some(fault) => Err(Refusal::new(fault.code, "")),
        }
    }

    /// Refuses a call that would break a capture, and spoils the capture, as a GPU's driver does.
    pub fn not_in_capture(&mut self, code: Code, what: &str) -> Result<(), Refusal> {
        if CAPTURE_MODE.get() == RELAXED {
            return Ok(());
        }
        let captures = self.streams.values_mut().filter_map(|stream| stream.capture.as_mut());
        let mut refused = false;
        let here = std::thread::current().id();
        let binds = |capture: &&mut Capture| match capture.mode {
            RELAXED => false,
            THREAD_LOCAL => capture.thread == here,
            _ => true,
        };
        for capture in captures.filter(binds) {
            (capture.invalid, refused) = (true, true);
        }
        if refused { Err(Refusal::new(code, format!("{what} while a stream is being captured"))) } else { Ok(()) }
    }

    /// Runs a node now, or adds it to what is being captured from the stream. Null is the stream that every context has.
    pub fn submit(&mut self, stream: Handle, node: Node) -> Result<(), Refusal> {
        if !is_default(stream)
            && let Some(capture) = &mut self.streams.get_mut(stream)?.capture
        {
            capture.nodes.push(node);
            return Ok(());
        }
        self.run(&node)
    }

    /// Runs a node.
    pub fn run(&mut self, node: &Node) -> Result<(), Refusal> {
        match node {
            Node::Kernel { function, launch, params } => self.launch(function, *launch, params),
            Node::FromHost { to, from, bytes } => {
                // SAFETY: who gave the copy keeps that many bytes at this address until it has run.
                let from = unsafe { from.slice(*bytes) };
                self.memory.write(*to, from).map_err(|e| outside(&e))
            }
            Node::ToHost { to, from, bytes } => {
                // SAFETY: who gave the copy keeps that many bytes at this address, unused, until it has run.
                let to = unsafe { to.slice_mut(*bytes) };
                self.memory.read(*from, to).map_err(|e| outside(&e))?;
                self.counters.read(to);
                Ok(())
            }
            Node::Copy { to, from, bytes } => self.memory.copy(*to, *from, *bytes).map_err(|e| outside(&e)),
            Node::Fill { to, pattern, bytes } => self.memory.fill(*to, pattern, *bytes).map_err(|e| outside(&e)),
        }
    }

    fn launch(&mut self, function: &Function, launch: Launch, params: &[u8]) -> Result<(), Refusal> {
        match self.memory.launch(&function.entry, launch, params) {
            Ok(stats) => {
                self.counters.add(&stats);
                Ok(())
            }
            Err(fault) => {
                let refusal = Refusal::new(fault_code(&fault), fault.to_string());
                self.failed = Some(refusal.clone());
                Err(refusal)
            }
        }
    }
}

/// The default streams: null, the legacy one and that of the thread.
pub fn is_default(stream: Handle) -> bool {
    stream.addr() <= 2
}

fn outside(error: &impl std::fmt::Display) -> Refusal {
    Refusal::value(error.to_string())
}
