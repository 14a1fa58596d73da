//! A module: PTX text, decoded, with its entries.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::decode;
use crate::exec::Host;
use crate::lower;
use crate::parse::{self, Function, LoadError, Param, Place};
use crate::program::Program;
use crate::stores;

/// One PTX text, ready to run.
#[derive(Debug)]
pub struct Module {
    entries: Vec<Entry>,
    names: HashMap<String, usize>,
}

/// A kernel of a module.
#[derive(Clone)]
pub struct Entry {
    pub(crate) program: Arc<Program>,
    pub(crate) image: Arc<Image>,
}

/// The `.global` and `.const` variables of a module, as loaded.
pub(crate) struct Image {
    /// Unlike that of every other module of the process.
    pub(crate) id: u64,
    pub(crate) bytes: Vec<u8>,
}

impl Module {
    /// Parses and decodes a module. What the executor does not know is refused here, with its line.
    pub fn load(ptx: &str) -> Result<Module, LoadError> {
        Module::load_on(ptx, Host::detect())
    }

    /// Like [`Module::load`], with operations compiled for any host: slower, with the same bits.
    pub fn load_portable(ptx: &str) -> Result<Module, LoadError> {
        Module::load_on(ptx, Host::Portable)
    }

    fn load_on(ptx: &str, host: Host) -> Result<Module, LoadError> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let parsed = parse::parse(ptx)?;
        let lines: Vec<&str> = ptx.lines().collect();
        let image = Arc::new(Image { id: NEXT.fetch_add(1, Relaxed), bytes: parsed.image });
        let mut module = Module { entries: Vec::new(), names: HashMap::new() };
        for f in &parsed.functions {
            let program = Arc::new(program(f, &lines, host)?);
            module.names.insert(f.name.clone(), module.entries.len());
            module.entries.push(Entry { program, image: image.clone() });
        }
        Ok(module)
    }

    /// The kernel of that name.
    #[must_use]
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.names.get(name).map(|&i| &self.entries[i])
    }

    /// All kernels, in the order of the text.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }
}

fn program(f: &Function, lines: &[&str], host: Host) -> Result<Program, LoadError> {
    // All arrays without a length are one: it begins behind the static ones, aligned for the strictest.
    let align = f.variables.values().filter_map(|p| match p {
        Place::DynamicShared(align) => Some(*align),
        _ => None,
    });
    let dynamic_shared = f.shared_bytes.next_multiple_of(align.max().unwrap_or(1));
    let decoded = decode::decode(f, dynamic_shared, lines)?;
    let lowered = lower::lower(&decoded, host).map_err(|_| LoadError {
        kernel: f.name.clone(),
        line: f.line,
        text: lines.get(f.line - 1).unwrap_or(&"").trim().to_string(),
        what: "more values at once than the executor numbers".to_string(),
    })?;
    Ok(Program {
        name: f.name.clone(),
        params: f.params.clone(),
        param_bytes: f.param_bytes,
        max_threads: f.max_threads,
        static_shared: f.shared_bytes,
        dynamic_shared,
        local_bytes: f.local_bytes,
        stores: stores::origins(&decoded),
        fences: decoded.fences,
        ..lowered
    })
}

impl Entry {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.program.name
    }

    /// Its parameters, in order.
    #[must_use]
    pub fn params(&self) -> &[Param] {
        &self.program.params
    }

    /// Bytes of the parameter buffer.
    #[must_use]
    pub fn param_bytes(&self) -> usize {
        self.program.param_bytes
    }

    /// Bytes of shared memory that a block has without any asked for at the launch.
    #[must_use]
    pub fn static_shared(&self) -> usize {
        self.program.static_shared
    }

    /// Threads of a block at most, if the kernel says so.
    #[must_use]
    pub fn max_threads(&self) -> Option<u32> {
        self.program.max_threads
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("name", &self.program.name).field("ops", &self.program.ops.len()).finish()
    }
}
