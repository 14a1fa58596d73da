//! `cvt` between integers: the low bits, or the nearest value that fits with `.sat`.

use crate::exec::{Row, alu};

macro_rules! pairs {
    ($out:ident; $($d:ty, $dn:literal;)+) => {$(
        pairs! { @ $out, $d, $dn; u8, "u8"; i8, "s8"; u16, "u16"; i16, "s16"; u32, "u32"; i32, "s32"; u64, "u64"; i64, "s64"; }
    )+};
    (@ $out:ident, $d:ty, $dn:literal; $($s:ty, $sn:literal;)+) => {
        alu! { $out;
            $(
                Convert [concat!("cvt.", $dn, ".", $sn)] $d = |a: $s| a as $d;
                Convert [concat!("cvt.sat.", $dn, ".", $sn)] $d = |a: $s|
                    i128::from(a).clamp(i128::from(<$d>::MIN), i128::from(<$d>::MAX)) as $d;
            )+
        }
    };
}

/// The rows of this file.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_lossless, clippy::cast_possible_wrap)]
#[allow(clippy::too_many_lines)]
pub(crate) fn rows(out: &mut Vec<Row>) {
    pairs! { out; u8, "u8"; i8, "s8"; u16, "u16"; i16, "s16"; u32, "u32"; i32, "s32"; u64, "u64"; i64, "s64"; }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_pair_of_integer_types_has_a_row() {
        for d in ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"] {
            for s in ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"] {
                assert!(crate::exec::find(&format!("cvt.{d}.{s}")).is_some(), "{d} from {s}");
                assert!(crate::exec::find(&format!("cvt.sat.{d}.{s}")).is_some(), "{d} from {s}, saturating");
            }
        }
    }
}
