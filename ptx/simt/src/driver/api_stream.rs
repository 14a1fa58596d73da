//! Streams and events. Everything is over when its call returns, so that waiting is only a check for a fault.

use super::context::{Capture, Context, Event, Stream, is_default};
use super::graph::Graph;
use super::handle::Handle;
use super::refusal::{Code, Refusal};
use super::state::{CAPTURE_MODE, in_context, in_context_even_failed, in_current};
use super::{answer, call};

/// `CU_EVENT_DISABLE_TIMING`.
const NO_TIMING: u32 = 2;

/// Works in the context of a stream: the current one for a default stream.
fn in_stream<R>(stream: Handle, work: impl FnOnce(&mut Context) -> Result<R, Refusal>) -> Result<R, Refusal> {
    if is_default(stream) { in_current(work) } else { in_context(stream, work) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(stream: *mut Handle, flags: u32) -> u32 {
    call("cuStreamCreate", || {
        if flags > 1 {
            return Err(Refusal::value(format!("flags {flags:#x} of a stream")));
        }
        let handle = in_current(|context| Ok(context.streams.insert(Stream::default())))?;
        // SAFETY: the caller's pointer.
        unsafe { answer(stream, handle) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreateWithPriority(stream: *mut Handle, flags: u32, _priority: i32) -> u32 {
    // SAFETY: the caller's pointer.
    unsafe { cuStreamCreate(stream, flags) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(stream: Handle) -> u32 {
    call("cuStreamDestroy_v2", || in_context_even_failed(stream, |context| context.streams.remove(stream).map(|_| ())))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: Handle) -> u32 {
    call("cuStreamSynchronize", || wait(stream))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamQuery(stream: Handle) -> u32 {
    call("cuStreamQuery", || wait(stream))
}

/// Refuses to wait for what is only being captured.
fn wait(stream: Handle) -> Result<(), Refusal> {
    in_stream(stream, |context| {
        if is_default(stream) {
            return Ok(());
        }
        let Some(capture) = &mut context.streams.get_mut(stream)?.capture else { return Ok(()) };
        capture.invalid = true;
        Err(Refusal::new(Code::ERROR_STREAM_CAPTURE_UNSUPPORTED, "waiting for a stream that is being captured"))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitEvent(stream: Handle, event: Handle, _flags: u32) -> u32 {
    call("cuStreamWaitEvent", || {
        in_context(event, |context| context.events.get(event).map(|_| ()))?;
        in_stream(stream, |context| if is_default(stream) { Ok(()) } else { context.streams.get(stream).map(|_| ()) })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamBeginCapture_v2(stream: Handle, mode: u32) -> u32 {
    call("cuStreamBeginCapture_v2", || {
        if is_default(stream) {
            return Err(Refusal::new(Code::ERROR_STREAM_CAPTURE_UNSUPPORTED, "a default stream cannot be captured"));
        }
        if mode > 2 {
            return Err(Refusal::value(format!("{mode} is no mode of a capture")));
        }
        in_context(stream, |context| {
            let stream = context.streams.get_mut(stream)?;
            if stream.capture.is_some() {
                return Err(Refusal::value("the stream is being captured already"));
            }
            stream.capture =
                Some(Capture { mode, thread: std::thread::current().id(), nodes: Vec::new(), invalid: false });
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamEndCapture(stream: Handle, graph: *mut Handle) -> u32 {
    call("cuStreamEndCapture", || {
        let unmatched = || Refusal::new(Code::ERROR_STREAM_CAPTURE_UNMATCHED, "the stream is not being captured");
        if is_default(stream) {
            return Err(unmatched());
        }
        let handle = in_context_even_failed(stream, |context| {
            let capture = context.streams.get_mut(stream)?.capture.take().ok_or_else(unmatched)?;
            if capture.invalid {
                return Err(Refusal::new(Code::ERROR_STREAM_CAPTURE_INVALIDATED, "a call spoilt the capture"));
            }
            Ok(context.graphs.insert(Graph { nodes: capture.nodes }))
        })?;
        // SAFETY: the caller's pointer.
        unsafe { answer(graph, handle) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamIsCapturing(stream: Handle, status: *mut u32) -> u32 {
    call("cuStreamIsCapturing", || {
        let of = in_stream(stream, |context| {
            if is_default(stream) {
                return Ok(0);
            }
            let capture = &context.streams.get(stream)?.capture;
            Ok(capture.as_ref().map_or(0, |capture| if capture.invalid { 2 } else { 1 }))
        })?;
        // SAFETY: the caller's pointer.
        unsafe { answer(status, of) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut u32) -> u32 {
    call("cuThreadExchangeStreamCaptureMode", || {
        if mode.is_null() {
            return Err(Refusal::value("a null pointer for a mode"));
        }
        // SAFETY: the caller's pointer.
        let new = unsafe { mode.read() };
        if new > 2 {
            return Err(Refusal::value(format!("{new} is no mode of a capture")));
        }
        // SAFETY: the caller's pointer.
        unsafe { answer(mode, CAPTURE_MODE.replace(new)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut Handle, flags: u32) -> u32 {
    call("cuEventCreate", || {
        if flags > 3 {
            return Err(Refusal::value(format!("flags {flags:#x} of an event")));
        }
        let made = Event { no_timing: flags & NO_TIMING != 0, ..Event::default() };
        let handle = in_current(|context| Ok(context.events.insert(made)))?;
        // SAFETY: the caller's pointer.
        unsafe { answer(event, handle) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: Handle) -> u32 {
    call("cuEventDestroy_v2", || in_context_even_failed(event, |context| context.events.remove(event).map(|_| ())))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: Handle, stream: Handle) -> u32 {
    call("cuEventRecord", || {
        in_context(event, |context| {
            let captured = !is_default(stream) && context.streams.get(stream)?.capture.is_some();
            let event = context.events.get_mut(event)?;
            (event.recorded, event.captured) = (true, captured);
            Ok(())
        })
    })
}

/// Whether an event has come: one never recorded counts as come, as in a driver.
fn come(context: &mut Context, event: Handle) -> Result<(), Refusal> {
    if context.events.get(event)?.captured {
        return Err(Refusal::new(Code::ERROR_CAPTURED_EVENT, "the event is part of a capture"));
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(event: Handle) -> u32 {
    call("cuEventQuery", || in_context(event, |context| come(context, event)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(event: Handle) -> u32 {
    call("cuEventSynchronize", || in_context(event, |context| come(context, event)))
}

/// Always 0 ms: the time that a simulation takes says nothing of a GPU's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(milliseconds: *mut f32, from: Handle, to: Handle) -> u32 {
    call("cuEventElapsedTime", || {
        for event in [from, to] {
            in_context(event, |context| {
                come(context, event)?;
                let event = context.events.get(event)?;
                if event.no_timing || !event.recorded {
                    return Err(Refusal::new(Code::ERROR_INVALID_HANDLE, "an event without a time"));
                }
                Ok(())
            })?;
        }
        // SAFETY: the caller's pointer.
        unsafe { answer(milliseconds, 0.0) }
    })
}
