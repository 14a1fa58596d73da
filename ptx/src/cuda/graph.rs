//! Graphs: launches, fills and copies within the device, captured once and launched again as one call.

use super::driver::Handle;
use super::gpu::Inner;
use super::{CudaError, Gpu};
use cudarc::driver::sys::{CUgraph_st, CUgraphExec_st};
use std::sync::Arc;

/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`: other threads' calls do not spoil it. That does not keep what they give to the
/// same stream out of the graph; `Order` does.
const THREAD_LOCAL: u32 = 1;

/// What was captured, ready to be launched. It keeps neither the memory alive that it works on nor its contents: whatever
/// varies from one launch to the next is read from device memory.
#[derive(Debug)]
pub struct Graph {
    inner: Arc<Inner>,
    graph: Handle<CUgraph_st>,
    exec: Handle<CUgraphExec_st>,
    nodes: usize,
}

impl Gpu {
    /// Captures what `record` gives to the device into a graph. Nothing of it runs.
    ///
    /// Copies from and to the host, events and waiting are refused in between: they are of one run, not of each. What other
    /// threads ask of this device's stream meanwhile waits until the capture has ended, so `record` must not wait for them.
    pub fn capture(&self, record: impl FnOnce(&Gpu) -> Result<(), CudaError>) -> Result<Graph, CudaError> {
        let inner = self.inner();
        inner.bind()?;
        // SAFETY: the stream is alive.
        inner.order.capture(|| unsafe { inner.driver.cuStreamBeginCapture_v2(inner.stream.0, THREAD_LOCAL) })?;
        let capture = Capture { inner, open: true };
        let recorded = record(self);
        let graph = capture.end();
        match recorded {
            Ok(()) => instantiate(inner, graph?),
            Err(why) => {
                graph.iter().for_each(|graph| discard(inner, *graph));
                Err(why)
            }
        }
    }
}

/// Ends the capture however `record` ends.
struct Capture<'a> {
    inner: &'a Arc<Inner>,
    open: bool,
}

impl Capture<'_> {
    fn end(mut self) -> Result<Handle<CUgraph_st>, CudaError> {
        self.close()
    }

    fn close(&mut self) -> Result<Handle<CUgraph_st>, CudaError> {
        self.open = false;
        let mut graph = std::ptr::null_mut();
        let Inner { order, driver, stream, .. } = &**self.inner;
        // SAFETY: writes a handle; the stream is alive.
        let ended = order.end(|| unsafe { driver.cuStreamEndCapture(stream.0, &raw mut graph) });
        ended.map(|()| Handle(graph))
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        if self.open {
            // `record` panicked: the graph is not wanted, and the stream must be usable again.
            if let Ok(graph) = self.close() {
                discard(self.inner, graph);
            }
        }
    }
}

fn discard(inner: &Inner, graph: Handle<CUgraph_st>) {
    // SAFETY: made by a capture, and nobody else has it. A failure leaves nothing to do.
    let _ = unsafe { inner.driver.cuGraphDestroy(graph.0) };
}

fn instantiate(inner: &Arc<Inner>, graph: Handle<CUgraph_st>) -> Result<Graph, CudaError> {
    // From here on the graph is destroyed by `Graph`, an executable one or not.
    let mut made = Graph { inner: Arc::clone(inner), graph, exec: Handle(std::ptr::null_mut()), nodes: 0 };
    // SAFETY: without an array the call writes the number of nodes alone.
    unsafe { inner.driver.cuGraphGetNodes(graph.0, std::ptr::null_mut(), &raw mut made.nodes)? };
    // SAFETY: writes a handle; the graph is alive.
    unsafe { inner.driver.cuGraphInstantiateWithFlags(&raw mut made.exec.0, graph.0, 0)? };
    Ok(made)
}

impl Graph {
    /// Runs all of it, in the order of the device it was captured on.
    pub fn launch(&self) -> Result<(), CudaError> {
        let _turn = self.inner.order.turn_outside("the launch of a graph")?;
        self.inner.bind()?;
        // SAFETY: graph and stream are alive.
        unsafe { self.inner.driver.cuGraphLaunch(self.exec.0, self.inner.stream.0) }
    }

    /// Launches, fills and copies in it.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.nodes
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let _ = self.inner.bind();
        if !self.exec.0.is_null() {
            // SAFETY: made by `instantiate`; the driver waits for a run that is under way.
            let _ = unsafe { self.inner.driver.cuGraphExecDestroy(self.exec.0) };
        }
        discard(&self.inner, self.graph);
    }
}
