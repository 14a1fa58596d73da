//! One body, compiled once for each instruction set, chosen at run time.
//!
//! The body is ordinary scalar Rust. Inlined into a function that enables AVX2 or AVX-512 the compiler vectorises it,
//! and since it may neither contract nor reassociate floating point, every version gives the same bits.

/// Defines `fn name(isa, args...)` that runs the body compiled for `isa`.
macro_rules! by_isa {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name(isa: $crate::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[allow(clippy::too_many_arguments)]
            #[inline(always)]
            fn body($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            #[allow(clippy::too_many_arguments)]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2($($arg: $ty),*) $(-> $ret)? {
                body($($arg),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[allow(clippy::too_many_arguments)]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
            fn avx512($($arg: $ty),*) $(-> $ret)? {
                body($($arg),*)
            }

            match isa {
                $crate::Isa::Portable => body($($arg),*),
                #[cfg(target_arch = "x86_64")]
                // SAFETY: an `Isa` other than portable is only made by detection (`Isa::available`).
                $crate::Isa::Avx2 => unsafe { avx2($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above.
                $crate::Isa::Avx512 => unsafe { avx512($($arg),*) },
            }
        }
    };
}
pub(crate) use by_isa;
