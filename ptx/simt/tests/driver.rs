//! The driver's functions as a program of the driver API calls them, where a GPU's driver answers with a certain code.

use simt::driver::api_context::*;
use simt::driver::api_graph::*;
use simt::driver::api_launch::cuLaunchKernel;
use simt::driver::api_lookup::*;
use simt::driver::api_memory::*;
use simt::driver::api_module::*;
use simt::driver::api_stream::*;
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::{null, null_mut, without_provenance_mut};

type Handle = *mut c_void;

/// `store(u64 to, u32 value, u32 index)`: to[index] = value.
const PTX: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .entry store(.param .u64 p0, .param .u32 p1, .param .u32 p2)
{
	.reg .b32 %r<3>;
	.reg .b64 %rd<4>;
	ld.param.u64 %rd1, [p0];
	ld.param.u32 %r1, [p1];
	ld.param.u32 %r2, [p2];
	mul.wide.u32 %rd2, %r2, 4;
	add.s64 %rd3, %rd1, %rd2;
	st.global.u32 [%rd3], %r1;
	ret;
}
";

/// A context of its own for a test, with a stream and the function above.
struct Bench {
    context: Handle,
    stream: Handle,
    module: Handle,
    store: Handle,
}

/// Calls a function that hands out one value, and insists on success.
fn made<T: Default>(make: impl FnOnce(*mut T) -> u32) -> T {
    let mut value = T::default();
    assert_eq!(make(&raw mut value), 0);
    value
}

fn handle(make: impl FnOnce(*mut Handle) -> u32) -> Handle {
    let mut value = null_mut();
    assert_eq!(make(&raw mut value), 0);
    value
}

impl Bench {
    fn new() -> Bench {
        assert_eq!(cuInit(0), 0);
        let text = CString::new(PTX).unwrap();
        // SAFETY: a place for the answer.
        let context = handle(|to| unsafe { cuCtxCreate_v2(to, 0, 0) });
        // SAFETY: a place for the answer.
        let stream = handle(|to| unsafe { cuStreamCreate(to, 1) });
        // SAFETY: a text with its end and a place for the answer.
        let module = handle(|to| unsafe { cuModuleLoadData(to, text.as_ptr().cast()) });
        // SAFETY: a name with its end and a place for the answer.
        let store = handle(|to| unsafe { cuModuleGetFunction(to, module, c"store".as_ptr()) });
        Bench { context, stream, module, store }
    }

    fn alloc(&self, bytes: usize) -> u64 {
        // SAFETY: a place for the answer.
        made(|to| unsafe { cuMemAlloc_v2(to, bytes) })
    }

    /// Launches `store` on a stream with a pointer for each parameter.
    fn store(&self, to: u64, value: u32, index: u32, stream: Handle) -> u32 {
        let params = [(&raw const to).cast::<c_void>(), (&raw const value).cast(), (&raw const index).cast()];
        // SAFETY: three parameters of their sizes.
        unsafe { cuLaunchKernel(self.store, 1, 1, 1, 1, 1, 1, 0, stream, params.as_ptr(), null()) }
    }

    fn words<const N: usize>(&self, from: u64) -> [u32; N] {
        let mut words = [0; N];
        // SAFETY: the array has that many bytes.
        assert_eq!(unsafe { cuMemcpyDtoH_v2(words.as_mut_ptr().cast(), from, 4 * N) }, 0);
        words
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        assert_eq!(cuCtxDestroy_v2(self.context), 0);
    }
}

fn name_of(code: u32) -> String {
    let mut name: *const c_char = null();
    // SAFETY: a place for the answer.
    assert_eq!(unsafe { cuGetErrorName(code, &raw mut name) }, 0);
    // SAFETY: a constant text.
    unsafe { CStr::from_ptr(name) }.to_str().unwrap().to_string()
}

#[test]
fn parameters_by_pointers_and_by_buffer() {
    let bench = Bench::new();
    let to = bench.alloc(8);
    assert_eq!(cuMemsetD32_v2(to, 7, 2), 0);
    assert_eq!(bench.store(to, 8, 1, bench.stream), 0);
    assert_eq!(bench.words(to), [7, 8]);

    let mut buffer = to.to_le_bytes().to_vec();
    buffer.extend([9_u32.to_le_bytes(), 0_u32.to_le_bytes()].concat());
    let launch = |bytes: usize| {
        let size = bytes;
        let extra = [
            without_provenance_mut::<c_void>(1).cast_const(),
            buffer.as_ptr().cast(),
            without_provenance_mut::<c_void>(2).cast_const(),
            (&raw const size).cast(),
            null(),
        ];
        // SAFETY: a list with its end, and a buffer at least as long as is said.
        unsafe { cuLaunchKernel(bench.store, 1, 1, 1, 1, 1, 1, 0, null_mut(), null(), extra.as_ptr()) }
    };
    assert_eq!(launch(16), 0);
    assert_eq!(bench.words(to), [9, 8]);
    assert_eq!(name_of(launch(12)), "CUDA_ERROR_INVALID_VALUE", "a buffer that is too short");
    // SAFETY: neither way of giving parameters.
    let neither = unsafe { cuLaunchKernel(bench.store, 1, 1, 1, 1, 1, 1, 0, null_mut(), null(), null()) };
    assert_eq!(name_of(neither), "CUDA_ERROR_INVALID_VALUE");
}

#[test]
fn a_fault_stays_in_its_context_with_its_own_code() {
    let (bench, other) = (Bench::new(), Bench::new());
    assert_eq!(cuCtxSetCurrent(bench.context), 0);
    let to = bench.alloc(8);
    assert_eq!(name_of(bench.store(to, 1, 2, bench.stream)), "CUDA_ERROR_ILLEGAL_ADDRESS");
    assert_eq!(name_of(cuStreamSynchronize(bench.stream)), "CUDA_ERROR_ILLEGAL_ADDRESS");
    assert_eq!(name_of(cuMemFree_v2(to)), "CUDA_ERROR_ILLEGAL_ADDRESS");
    assert_eq!(cuStreamDestroy_v2(bench.stream), 0, "what is made can be ended");
    assert_eq!(cuCtxSetCurrent(other.context), 0);
    let to = other.alloc(8);
    assert_eq!(other.store(to, 1, 1, other.stream), 0);
    assert_eq!(name_of(other.store(to + 2, 1, 0, other.stream)), "CUDA_ERROR_MISALIGNED_ADDRESS");
}

#[test]
fn handles_are_of_one_kind_and_one_life() {
    let bench = Bench::new();
    let invalid = |code: u32| assert_eq!(name_of(code), "CUDA_ERROR_INVALID_HANDLE");
    invalid(cuStreamSynchronize(bench.module));
    invalid(cuEventRecord(bench.stream, bench.stream));
    assert_eq!(cuModuleUnload(bench.module), 0);
    invalid(cuModuleUnload(bench.module));
    let to = bench.alloc(4);
    invalid(bench.store(to, 1, 0, bench.stream));
    assert_eq!(cuMemFree_v2(to), 0);
    assert_eq!(name_of(cuMemFree_v2(to)), "CUDA_ERROR_INVALID_VALUE", "freed twice");
    assert_eq!(name_of(cuCtxSetCurrent(bench.stream)), "CUDA_ERROR_INVALID_CONTEXT");
}

#[test]
fn captures_are_spoilt_by_what_cannot_be_in_them() {
    let bench = Bench::new();
    let to = bench.alloc(8);
    assert_eq!(cuStreamBeginCapture_v2(bench.stream, 1), 0);
    let mut address = 0;
    // SAFETY: a place for the answer.
    let refused = unsafe { cuMemAlloc_v2(&raw mut address, 16) };
    assert_eq!(name_of(refused), "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED");
    let mut graph = null_mut();
    // SAFETY: a place for the answer.
    let ended = unsafe { cuStreamEndCapture(bench.stream, &raw mut graph) };
    assert_eq!(name_of(ended), "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED");

    // The same call is allowed to a thread that says so.
    assert_eq!(cuStreamBeginCapture_v2(bench.stream, 1), 0);
    let mut mode = 2;
    // SAFETY: a mode to exchange.
    assert_eq!(unsafe { cuThreadExchangeStreamCaptureMode(&raw mut mode) }, 0);
    bench.alloc(16);
    // SAFETY: a mode to exchange.
    assert_eq!(unsafe { cuThreadExchangeStreamCaptureMode(&raw mut mode) }, 0);
    assert_eq!(cuMemsetD8Async(to, 1, 8, bench.stream), 0);
    assert_eq!(bench.store(to, 5, 1, bench.stream), 0);
    // SAFETY: a place for the answer.
    let graph = handle(|to| unsafe { cuStreamEndCapture(bench.stream, to) });
    // SAFETY: a place for the count alone.
    assert_eq!(made::<usize>(|to| unsafe { cuGraphGetNodes(graph, null_mut(), to) }), 2);
    // SAFETY: a place for the answer.
    let exec = handle(|to| unsafe { cuGraphInstantiateWithFlags(to, graph, 0) });
    // What is instantiated needs neither the graph nor the module any more.
    assert_eq!((cuGraphDestroy(graph), cuModuleUnload(bench.module)), (0, 0));
    assert_eq!(cuMemsetD8_v2(to, 0, 8), 0);
    assert_eq!(cuGraphLaunch(exec, bench.stream), 0);
    assert_eq!(bench.words(to), [0x0101_0101, 5]);
    assert_eq!(cuGraphExecDestroy(exec), 0);
    assert_eq!(name_of(cuGraphLaunch(exec, bench.stream)), "CUDA_ERROR_INVALID_HANDLE");
}

#[test]
fn a_captured_copy_reads_the_host_when_it_runs() {
    let bench = Bench::new();
    let to = bench.alloc(8);
    // SAFETY: a place for the answer.
    let pinned: *mut u32 = handle(|to| unsafe { cuMemHostAlloc(to, 16, 0) }).cast();
    let set = |words: [u32; 2]| {
        // SAFETY: 16 bytes were allocated, and no copy is running.
        unsafe { pinned.cast::<[u32; 2]>().write(words) };
    };
    set([1, 2]);
    assert_eq!(cuStreamBeginCapture_v2(bench.stream, 1), 0);
    // SAFETY: the memory outlives the graph.
    assert_eq!(unsafe { cuMemcpyHtoDAsync_v2(to, pinned.cast(), 8, bench.stream) }, 0);
    // SAFETY: a place for the answer.
    let graph = handle(|to| unsafe { cuStreamEndCapture(bench.stream, to) });
    // SAFETY: a place for the answer.
    let exec = handle(|to| unsafe { cuGraphInstantiateWithFlags(to, graph, 0) });
    for words in [[3, 4], [5, 6]] {
        set(words);
        assert_eq!(cuGraphLaunch(exec, bench.stream), 0);
        assert_eq!(bench.words(to), words);
    }
    // SAFETY: nothing uses it any more.
    assert_eq!(unsafe { cuMemFreeHost(pinned.cast()) }, 0);
    // SAFETY: it is known to be gone.
    assert_eq!(name_of(unsafe { cuMemFreeHost(pinned.cast()) }), "CUDA_ERROR_INVALID_VALUE");
}

#[test]
fn what_is_not_supported_says_so() {
    let bench = Bench::new();
    let unsupported = |code: u32| assert_eq!(name_of(code), "CUDA_ERROR_NOT_SUPPORTED");
    unsupported(cuMemAllocManaged());
    unsupported(cuLaunchCooperativeKernel());
    let mut mapped = null_mut();
    // SAFETY: a place for the answer.
    unsupported(unsafe { cuMemHostAlloc(&raw mut mapped, 16, 2) });
    let mut registers = 0;
    // SAFETY: a place for the answer.
    unsupported(unsafe { cuFuncGetAttribute(&raw mut registers, 4, bench.store) });
}

#[test]
fn functions_by_name() {
    let find = |name: &CStr| {
        let mut function = null();
        // SAFETY: a name with its end and a place for the answer.
        let code = unsafe { cuGetProcAddress_v2(name.as_ptr(), &raw mut function, 12040, 0, null_mut()) };
        (code, function)
    };
    let (code, function) = find(c"cuDriverGetVersion");
    assert_eq!(code, 0);
    // SAFETY: this function has this type.
    let version: unsafe extern "C" fn(*mut i32) -> u32 = unsafe { std::mem::transmute(function) };
    // SAFETY: a place for the answer.
    assert_eq!(made::<i32>(|to| unsafe { version(to) }), 12040);
    let (code, function) = find(c"cuTexObjectCreate");
    assert_eq!((name_of(code).as_str(), function), ("CUDA_ERROR_NOT_FOUND", null()));
}

#[test]
fn text_is_refused_for_its_version_its_target_and_its_contents() {
    let bench = Bench::new();
    let load = |text: &str| {
        let text = CString::new(text).unwrap();
        let mut log = [0_u8; 256];
        let mut module = null_mut();
        let mut values = [log.as_mut_ptr().cast::<c_void>(), without_provenance_mut(log.len())];
        let (names, values) = ([5, 6], values.as_mut_ptr());
        let image = text.as_ptr().cast();
        // SAFETY: a text, two options with their values, a place for the answer.
        let code = unsafe { cuModuleLoadDataEx(&raw mut module, image, 2, names.as_ptr(), values) };
        let log = CStr::from_bytes_until_nul(&log).unwrap().to_str().unwrap().to_string();
        (name_of(code), log)
    };
    let (code, log) = load(&PTX.replace("8.0", "8.5"));
    assert_eq!(code, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION");
    assert_eq!(log, "PTX 8.5 is newer than a driver for CUDA 12.4 knows");
    let (code, log) = load(&PTX.replace("sm_80", "sm_90a"));
    assert_eq!((code.as_str(), log.as_str()), ("CUDA_ERROR_INVALID_PTX", "the text is for sm_90, the device is sm_89"));
    let (code, log) = load(&PTX.replace("mul.wide", "mul.wild"));
    assert!(code == "CUDA_ERROR_INVALID_PTX" && log.contains("mul.wild"), "{code}: {log}");
    let (code, _) = load("\u{7f}ELF");
    assert_eq!(code, "CUDA_ERROR_INVALID_IMAGE");
    assert_eq!(load(PTX), ("CUDA_SUCCESS".to_string(), String::new()));
    drop(bench);
}
