//! Operations on a warp: 32 lanes at a time, each lane's value in one place of an array, written only where a mask says so.

mod approx;
mod atomic;
mod control;
mod convert;
mod convert_int;
mod copy;
mod float;
mod formats;
mod global;
mod half;
mod integer;
mod logic;
mod matrix;
mod memory;
mod mma;
mod shared;
mod tracked;
mod truncating;
mod value;
mod warp;

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::counters::Class as Counted;
use crate::program::Op;
use crate::state::{Ctx, Warp};
use crate::types::Kind;

pub(crate) use atomic::{ATOMIC, OPERATIONS};
pub(crate) use control::{BAR_SYNC, BRANCH, EXIT, HEAD, TRAP};
pub(crate) use copy::CP_ASYNC;
pub(crate) use matrix::LDMATRIX;
pub(crate) use memory::executor;
pub(crate) use value::Value;
pub(crate) use value::low_word;

/// What comes after an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The next one.
    Next,
    /// The one at the warp's `pc`.
    Jump,
    /// Other warps first, then the one at `pc`.
    Yield,
    /// Nothing before a barrier opens.
    Barrier,
    /// No lane is left.
    Done,
    /// The context holds what went wrong.
    Fault,
}

/// An operation compiled for some instruction set of the host.
///
/// # Safety
/// Callable only where the host has that instruction set, which who fills an [`Op`] has detected.
pub(crate) type ExecFn = unsafe fn(&mut Warp, &mut Ctx<'_>, &Op) -> Step;

/// The same operation for any host, and for those with AVX2, FMA and F16C; both give the same bits.
#[derive(Clone, Copy)]
pub(crate) struct Exec {
    pub(crate) portable: ExecFn,
    pub(crate) avx2: ExecFn,
}

/// Instruction sets of the host that operations are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Host {
    Portable,
    Avx2,
}

impl Host {
    pub(crate) fn detect() -> Host {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("popcnt")
        {
            return Host::Avx2;
        }
        Host::Portable
    }
}

impl Exec {
    pub(crate) fn on(self, host: Host) -> ExecFn {
        match host {
            Host::Portable => self.portable,
            Host::Avx2 => self.avx2,
        }
    }
}

/// Compiles `|warp, ctx, op| step` for every instruction set.
macro_rules! exec {
    (|$w:ident, $cx:tt, $op:ident| $body:expr) => {{
        use $crate::exec::Step;
        use $crate::program::Op;
        use $crate::state::{Ctx, Warp};
        #[inline(always)]
        fn body($w: &mut Warp, $cx: &mut Ctx<'_>, $op: &Op) -> Step {
            $body
        }
        fn portable(w: &mut Warp, cx: &mut Ctx<'_>, op: &Op) -> Step {
            body(w, cx, op)
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
        fn avx2(w: &mut Warp, cx: &mut Ctx<'_>, op: &Op) -> Step {
            body(w, cx, op)
        }
        #[cfg(not(target_arch = "x86_64"))]
        use portable as avx2;
        $crate::exec::Exec { portable, avx2 }
    }};
}
pub(crate) use exec;

/// An instruction whose operands are plain registers: its spellings, its operands and what it does.
pub(crate) struct Row {
    pub(crate) names: Vec<String>,
    pub(crate) dst: Vec<Kind>,
    pub(crate) src: Vec<Kind>,
    pub(crate) count: Counted,
    pub(crate) exec: Exec,
    /// All lanes named by the instruction must be together at it.
    pub(crate) together: bool,
}

/// Rows of lane-wise instructions: `Class [spellings] Result = |operands| expression;`.
macro_rules! alu {
    ($out:ident; $($count:ident [$($name:expr),+ $(,)?] $d:ty = |$($x:ident: $s:ty),+| $body:expr;)+) => {
        $($out.push($crate::exec::Row {
            names: vec![$(String::from($name)),+],
            dst: vec![<$d as $crate::exec::Value>::KIND],
            src: vec![$(<$s as $crate::exec::Value>::KIND),+],
            count: $crate::counters::Class::$count,
            exec: {
                #[inline(always)]
                fn lane($($x: $s),+) -> $d {
                    $body
                }
                $crate::exec::alu!(@ lane; $d; $($s),+)
            },
            together: false,
        });)+
    };
    (@ $f:ident; $d:ty; $a:ty) => {
        $crate::exec::exec!(|w, _, op| $crate::exec::value::map1::<$d, $a>(w, op, $f))
    };
    (@ $f:ident; $d:ty; $a:ty, $b:ty) => {
        $crate::exec::exec!(|w, _, op| $crate::exec::value::map2::<$d, $a, $b>(w, op, $f))
    };
    (@ $f:ident; $d:ty; $a:ty, $b:ty, $c:ty) => {
        $crate::exec::exec!(|w, _, op| $crate::exec::value::map3::<$d, $a, $b, $c>(w, op, $f))
    };
    (@ $f:ident; $d:ty; $a:ty, $b:ty, $c:ty, $e:ty) => {
        $crate::exec::exec!(|w, _, op| $crate::exec::value::map4::<$d, $a, $b, $c, $e>(w, op, $f))
    };
}
pub(crate) use alu;

static ROWS: LazyLock<HashMap<String, &'static Row>> = LazyLock::new(|| {
    let mut rows = Vec::new();
    integer::rows(&mut rows);
    logic::rows(&mut rows);
    float::rows(&mut rows);
    half::rows(&mut rows);
    approx::rows(&mut rows);
    warp::rows(&mut rows);
    control::rows(&mut rows);
    copy::rows(&mut rows);
    convert::rows(&mut rows);
    convert_int::rows(&mut rows);
    mma::rows(&mut rows);
    let mut map = HashMap::new();
    for (index, row) in rows.iter().enumerate() {
        for name in &row.names {
            let old = map.insert(name.clone(), index);
            assert!(old.is_none(), "two rows for {name}");
        }
    }
    let rows: Vec<&'static Row> = rows.into_iter().map(|row| &*Box::leak(Box::new(row))).collect();
    map.into_iter().map(|(name, index)| (name, rows[index])).collect()
});

/// The row of an opcode with its modifiers.
pub(crate) fn find(opcode: &str) -> Option<&'static Row> {
    ROWS.get(opcode).copied()
}
