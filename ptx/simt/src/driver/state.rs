//! The process-wide driver: contexts by number, and which one is current in each thread.

use super::context::Context;
use super::handle::{Handle, context_handle, context_number, context_of};
use super::refusal::{Code, Refusal};
use super::settings::Settings;
use std::alloc::Layout;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// What this process has made of the driver.
#[derive(Default)]
pub struct State {
    pub initialised: bool,
    contexts: HashMap<u64, Arc<Mutex<Context>>>,
    made: u64,
    /// The primary context of each device that has one, and how often it is held.
    primary: HashMap<usize, (u64, usize)>,
    /// Pinned memory by address.
    pub host: HashMap<usize, Layout>,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);
static SETTINGS: LazyLock<Result<Settings, String>> = LazyLock::new(Settings::from_environment);

thread_local! {
    /// This thread's stack of contexts; the last one is current.
    static CURRENT: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    /// How this thread treats captures: `CUstreamCaptureMode`, global at first.
    pub static CAPTURE_MODE: Cell<u32> = const { Cell::new(0) };
}

/// The settings, or what is wrong with them.
pub fn settings() -> Result<&'static Settings, Refusal> {
    SETTINGS.as_ref().map_err(|wrong| Refusal::value(wrong.clone()))
}

pub fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Refuses every call before `cuInit`.
pub fn initialised() -> Result<MutexGuard<'static, State>, Refusal> {
    let state = state();
    if state.initialised { Ok(state) } else { Err(Refusal::new(Code::ERROR_NOT_INITIALIZED, "cuInit comes first")) }
}

/// The compute capability of a device.
pub fn capability(device: i32) -> Result<(u32, u32), Refusal> {
    let devices = settings()?.capabilities;
    let found = usize::try_from(device).ok().and_then(|device| *devices.get(device)?);
    found.ok_or_else(|| Refusal::new(Code::ERROR_INVALID_DEVICE, format!("there is no device {device}")))
}

impl State {
    fn make(&mut self, device: i32) -> Result<u64, Refusal> {
        let capability = capability(device)?;
        self.made += 1;
        assert!(self.made < 1 << 24, "more contexts than numbers for them");
        let context = Context::new(self.made, device, settings()?, capability);
        self.contexts.insert(self.made, Arc::new(Mutex::new(context)));
        Ok(self.made)
    }
}

/// Makes a context and makes it current.
pub fn create_context(device: i32) -> Result<Handle, Refusal> {
    let number = initialised()?.make(device)?;
    CURRENT.with_borrow_mut(|stack| stack.push(number));
    Ok(context_handle(number))
}

/// Ends a context and all that is in it.
pub fn destroy_context(handle: Handle) -> Result<(), Refusal> {
    let number = context_number(handle)?;
    let gone = || Refusal::new(Code::ERROR_INVALID_CONTEXT, "the context is gone already");
    let context = initialised()?.contexts.remove(&number).ok_or_else(gone)?;
    CURRENT.with_borrow_mut(|stack| stack.retain(|of| *of != number));
    // Dropped without the lock: a context can be large.
    drop(context);
    Ok(())
}

/// Holds a device's primary context, making it if nobody does.
pub fn retain_primary(device: i32) -> Result<Handle, Refusal> {
    let mut state = initialised()?;
    let ordinal = usize::try_from(device).unwrap_or(usize::MAX);
    let number = match state.primary.get(&ordinal) {
        Some((number, _)) => *number,
        None => state.make(device)?,
    };
    state.primary.entry(ordinal).or_insert((number, 0)).1 += 1;
    Ok(context_handle(number))
}

/// Lets go of a device's primary context once.
pub fn release_primary(device: i32) -> Result<(), Refusal> {
    let mut state = initialised()?;
    let ordinal = usize::try_from(device).unwrap_or(usize::MAX);
    let held = state.primary.get_mut(&ordinal);
    let held = held.ok_or_else(|| Refusal::new(Code::ERROR_INVALID_CONTEXT, "nobody holds the primary context"))?;
    held.1 -= 1;
    if let (number, 0) = *held {
        state.primary.remove(&ordinal);
        let context = state.contexts.remove(&number);
        drop(state);
        drop(context);
    }
    Ok(())
}

/// Replaces this thread's current context; null leaves it without one.
pub fn set_current(handle: Handle) -> Result<(), Refusal> {
    if handle.is_null() {
        CURRENT.with_borrow_mut(|stack| stack.pop());
        return Ok(());
    }
    let number = context_number(handle)?;
    alive(number)?;
    CURRENT.with_borrow_mut(|stack| {
        stack.pop();
        stack.push(number);
    });
    Ok(())
}

/// Makes a context current on top of the one that is.
pub fn push_current(handle: Handle) -> Result<(), Refusal> {
    let number = context_number(handle)?;
    alive(number)?;
    CURRENT.with_borrow_mut(|stack| stack.push(number));
    Ok(())
}

/// Takes the current context off and answers with it.
pub fn pop_current() -> Result<Handle, Refusal> {
    CURRENT.with_borrow_mut(Vec::pop).map(context_handle).ok_or_else(none_current)
}

/// The current context, or null.
pub fn current_handle() -> Handle {
    CURRENT.with_borrow(|stack| stack.last().copied()).map_or(std::ptr::null_mut(), context_handle)
}

fn none_current() -> Refusal {
    Refusal::new(Code::ERROR_INVALID_CONTEXT, "no context is current in this thread")
}

fn alive(number: u64) -> Result<Arc<Mutex<Context>>, Refusal> {
    let gone = || Refusal::new(Code::ERROR_INVALID_CONTEXT, "the context is gone");
    initialised()?.contexts.get(&number).cloned().ok_or_else(gone)
}

/// The context; one in which the simulator itself failed is of no further use.
fn lock(context: &Mutex<Context>) -> MutexGuard<'_, Context> {
    context.lock().unwrap_or_else(|poisoned| {
        let mut context = poisoned.into_inner();
        context.failed.get_or_insert_with(|| Refusal::new(Code::ERROR_UNKNOWN, "the simulator itself failed here"));
        context
    })
}

/// Works in this thread's current context, even after a fault there.
pub fn in_current_even_failed<R>(work: impl FnOnce(&mut Context) -> Result<R, Refusal>) -> Result<R, Refusal> {
    let number = CURRENT.with_borrow(|stack| stack.last().copied()).ok_or_else(none_current)?;
    let context = alive(number)?;
    work(&mut lock(&context))
}

/// Works in this thread's current context.
pub fn in_current<R>(work: impl FnOnce(&mut Context) -> Result<R, Refusal>) -> Result<R, Refusal> {
    in_current_even_failed(|context| {
        context.still_good()?;
        work(context)
    })
}

/// Works in the context of a stream, event, module, function or graph, even after a fault there: to end something.
pub fn in_context_even_failed<R>(
    of: Handle,
    work: impl FnOnce(&mut Context) -> Result<R, Refusal>,
) -> Result<R, Refusal> {
    let context = alive(context_of(of));
    let context = context.map_err(|why| Refusal::new(Code::ERROR_INVALID_HANDLE, format!("{of:?}: {}", why.text)))?;
    work(&mut lock(&context))
}

/// Works in the context of a stream, event, module, function or graph.
pub fn in_context<R>(of: Handle, work: impl FnOnce(&mut Context) -> Result<R, Refusal>) -> Result<R, Refusal> {
    in_context_even_failed(of, |context| {
        context.still_good()?;
        work(context)
    })
}
