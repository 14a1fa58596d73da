//! Graphs made by captures.

use super::context::{Context, is_default};
use super::handle::Handle;
use super::refusal::{Code, Refusal};
use super::state::{in_context, in_context_even_failed};
use super::{answer, call};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphGetNodes(graph: Handle, nodes: *mut Handle, count: *mut usize) -> u32 {
    call("cuGraphGetNodes", || {
        let of = in_context(graph, |context| Ok(context.graphs.get(graph)?.nodes.len()))?;
        if !nodes.is_null() {
            return Err(Refusal::new(Code::ERROR_NOT_SUPPORTED, "handles of a graph's nodes"));
        }
        // SAFETY: the caller's pointer.
        unsafe { answer(count, of) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphInstantiateWithFlags(exec: *mut Handle, graph: Handle, flags: u64) -> u32 {
    call("cuGraphInstantiateWithFlags", || {
        // Freeing memory nodes at a launch, and priorities of nodes: there are neither.
        if flags & !0b1001 != 0 {
            return Err(Refusal::new(Code::ERROR_NOT_SUPPORTED, format!("flags {flags:#x} of an instantiation")));
        }
        let handle = in_context(graph, |context| {
            let copy = context.graphs.get(graph)?.clone();
            Ok(context.execs.insert(copy))
        })?;
        // SAFETY: the caller's pointer.
        unsafe { answer(exec, handle) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphUpload(exec: Handle, _stream: Handle) -> u32 {
    call("cuGraphUpload", || in_context(exec, |context| context.execs.get(exec).map(|_| ())))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphLaunch(exec: Handle, stream: Handle) -> u32 {
    call("cuGraphLaunch", || {
        in_context(exec, |context: &mut Context| {
            if !is_default(stream) && context.streams.get(stream)?.capture.is_some() {
                return Err(Refusal::new(Code::ERROR_STREAM_CAPTURE_UNSUPPORTED, "a graph within a graph"));
            }
            // The nodes step aside while they run, since each of them may change anything else of the context.
            let graph = std::mem::take(&mut context.execs.get_mut(exec)?.nodes);
            let ran = graph.iter().try_for_each(|node| context.run(node));
            context.execs.get_mut(exec)?.nodes = graph;
            ran
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphExecDestroy(exec: Handle) -> u32 {
    call("cuGraphExecDestroy", || in_context_even_failed(exec, |context| context.execs.remove(exec).map(|_| ())))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphDestroy(graph: Handle) -> u32 {
    call("cuGraphDestroy", || in_context_even_failed(graph, |context| context.graphs.remove(graph).map(|_| ())))
}
