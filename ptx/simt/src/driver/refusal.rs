//! Codes of the driver's functions, with their names, and a refusal: a code and what is wrong in words.

use crate::{Fault, FaultKind};
use std::ffi::CStr;

/// A code of `CUresult`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub u32);

macro_rules! codes {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        #[allow(missing_docs, reason = "the driver's own names")]
        impl Code {
            $(pub const $name: Code = Code($number);)*
        }

        /// Number, name and description of every code given here.
        const CODES: &[(u32, &CStr, &CStr)] = &[$(
            (
                $number,
                match CStr::from_bytes_with_nul(concat!("CUDA_", stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a zero byte in a name"),
                },
                match CStr::from_bytes_with_nul(concat!($text, "\0").as_bytes()) {
                    Ok(text) => text,
                    Err(_) => panic!("a zero byte in a text"),
                },
            ),
        )*];
    };
}

codes! {
    SUCCESS = 0, "no error";
    ERROR_INVALID_VALUE = 1, "invalid argument";
    ERROR_OUT_OF_MEMORY = 2, "out of memory";
    ERROR_NOT_INITIALIZED = 3, "cuInit was not called";
    ERROR_NO_DEVICE = 100, "no device";
    ERROR_INVALID_DEVICE = 101, "no device of this number";
    ERROR_INVALID_IMAGE = 200, "not a PTX text";
    ERROR_INVALID_CONTEXT = 201, "no context is current, or it is gone";
    ERROR_INVALID_PTX = 218, "the PTX text does not compile";
    ERROR_UNSUPPORTED_PTX_VERSION = 222, "the PTX text is of a newer version than this driver knows";
    ERROR_INVALID_HANDLE = 400, "a handle of nothing alive";
    ERROR_NOT_FOUND = 500, "no such name";
    ERROR_ILLEGAL_ADDRESS = 700, "a kernel accessed memory outside its allocations";
    ERROR_ILLEGAL_INSTRUCTION = 715, "a kernel executed an instruction that it may not";
    ERROR_MISALIGNED_ADDRESS = 716, "a kernel accessed a misaligned address";
    ERROR_LAUNCH_FAILED = 719, "a kernel failed";
    ERROR_NOT_SUPPORTED = 801, "not supported by the simulator";
    ERROR_STREAM_CAPTURE_UNSUPPORTED = 900, "not allowed while a stream is being captured";
    ERROR_STREAM_CAPTURE_INVALIDATED = 901, "the capture was spoilt by a call that is not allowed in one";
    ERROR_STREAM_CAPTURE_UNMATCHED = 903, "the stream is not being captured";
    ERROR_STREAM_CAPTURE_IMPLICIT = 906, "a blocking copy while a stream is being captured";
    ERROR_CAPTURED_EVENT = 907, "the event was recorded in a capture";
    ERROR_UNKNOWN = 999, "the simulator itself failed";
}

impl Code {
    /// Its name and description, if it is one of those given here.
    pub fn names(self) -> Option<(&'static CStr, &'static CStr)> {
        CODES.iter().find(|(number, ..)| *number == self.0).map(|(_, name, text)| (*name, *text))
    }
}

/// Why a call fails.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub code: Code,
    pub text: String,
}

impl Refusal {
    pub fn new(code: Code, text: impl Into<String>) -> Refusal {
        Refusal { code, text: text.into() }
    }

    /// An argument that cannot be.
    pub fn value(text: impl Into<String>) -> Refusal {
        Refusal::new(Code::ERROR_INVALID_VALUE, text)
    }
}

/// The code that a GPU would give for a fault; what it would not notice is a failed launch.
pub fn fault_code(fault: &Fault) -> Code {
    match fault.kind {
        FaultKind::OutOfBounds | FaultKind::UseAfterFree => Code::ERROR_ILLEGAL_ADDRESS,
        FaultKind::Misaligned => Code::ERROR_MISALIGNED_ADDRESS,
        FaultKind::Trap => Code::ERROR_ILLEGAL_INSTRUCTION,
        _ => Code::ERROR_LAUNCH_FAILED,
    }
}
