//! Weights out of the mapped files: as f32 with scales applied, or in place.

use ptx::DType;
use ptx::dtype::{bf16_to_f32, e4m3_to_f32, f16_to_f32};

use super::{Checkpoint, CheckpointError, TensorInfo};

/// Elements that a finiteness check decodes at a time.
const CHUNK: usize = 1 << 14;

/// Values of `bytes`, little endian, without scales.
///
/// # Panics
/// When the lengths differ, or for `E5m2`, which no weight has.
pub(super) fn decode(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(bytes.len(), out.len() * dtype.bytes(), "bytes of {dtype} for {} values", out.len());
    let pairs = || bytes.as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b));
    match dtype {
        DType::F32 => out.iter_mut().zip(bytes.as_chunks::<4>().0).for_each(|(x, b)| *x = f32::from_le_bytes(*b)),
        DType::Bf16 => out.iter_mut().zip(pairs()).for_each(|(x, b)| *x = bf16_to_f32(b)),
        DType::F16 => out.iter_mut().zip(pairs()).for_each(|(x, b)| *x = f16_to_f32(b)),
        DType::E4m3 => out.iter_mut().zip(bytes).for_each(|(x, b)| *x = e4m3_to_f32(*b)),
        DType::E5m2 => panic!("weights are never e5m2"),
    }
}

/// Index of the first value that is no number.
pub(super) fn first_non_finite(values: &[f32]) -> Option<usize> {
    const EXPONENT: u32 = 0x7f80_0000;
    // The largest of the exponents first: that loop has no branch to leave by and runs in vectors.
    let largest = values.iter().fold(0, |max, x| max.max(x.to_bits() & EXPONENT));
    if largest < EXPONENT { None } else { values.iter().position(|x| !x.is_finite()) }
}

/// The exponent of a bf16 that is no number.
const EXPONENT: u16 = 0x7f80;

/// Whether all bf16 values are numbers.
fn are_finite(bits: &[u16]) -> bool {
    // As above: the largest exponent.
    bits.iter().fold(0, |max, b| max.max(b & EXPONENT)) < EXPONENT
}

impl Checkpoint {
    /// Rows `first_row .. first_row + rows` of a parameter as f32, scales applied, into `out` `[rows, row_len]`. A row
    /// is one index of the first axis, so a vector's rows are its elements.
    ///
    /// # Panics
    /// When the rows exceed the parameter or `out` has another size.
    pub fn read_rows(&self, name: &str, first_row: usize, rows: usize, out: &mut [f32]) -> Result<(), CheckpointError> {
        let tensor = self.tensor(name)?;
        let bytes = self.row_bytes(tensor, first_row, rows);
        decode(tensor.dtype, bytes, out);
        let row_len = tensor.row_len();
        if let Some(scale) = &tensor.scale {
            for (row, values) in out.chunks_mut(row_len).enumerate() {
                scale.apply(first_row + row, values);
            }
        }
        match first_non_finite(out) {
            None => Ok(()),
            Some(i) => Err(self.non_finite(tensor, first_row * row_len + i, out[i])),
        }
    }

    /// The rows in place, as bits, where they are stored as aligned BF16. Whether they are numbers is
    /// [`Checkpoint::check_finite`]'s to say.
    ///
    /// # Panics
    /// When the rows exceed the parameter.
    #[must_use]
    pub fn bf16_rows(&self, name: &str, first_row: usize, rows: usize) -> Option<&[u16]> {
        let tensor = self.tensor(name).ok()?;
        if tensor.dtype != DType::Bf16 || cfg!(target_endian = "big") {
            return None;
        }
        bytemuck::try_cast_slice(self.row_bytes(tensor, first_row, rows)).ok()
    }

    /// As [`Checkpoint::bf16_rows`], once each is found to be a number.
    ///
    /// # Errors
    /// As of [`Checkpoint::read_rows`].
    ///
    /// # Panics
    /// When the rows exceed the parameter.
    pub(crate) fn finite_bf16_rows(
        &self,
        name: &str,
        first_row: usize,
        rows: usize,
    ) -> Result<Option<&[u16]>, CheckpointError> {
        let Some(bits) = self.bf16_rows(name, first_row, rows) else { return Ok(None) };
        if are_finite(bits) {
            return Ok(Some(bits));
        }
        let tensor = self.tensor(name)?;
        let index = bits.iter().position(|b| b & EXPONENT == EXPONENT).expect("one of them is no number");
        Err(self.non_finite(tensor, first_row * tensor.row_len() + index, bf16_to_f32(bits[index])))
    }

    /// Reads a parameter through and names its first element that is no number.
    pub fn check_finite(&self, name: &str) -> Result<(), CheckpointError> {
        let tensor = self.tensor(name)?;
        if let Some(bits) = self.bf16_rows(name, 0, tensor.shape[0])
            && are_finite(bits)
        {
            return Ok(());
        }
        let step = (CHUNK / tensor.row_len()).max(1);
        let mut values = Vec::new();
        for first in (0..tensor.shape[0]).step_by(step) {
            let rows = step.min(tensor.shape[0] - first);
            values.resize(rows * tensor.row_len(), 0.0);
            self.read_rows(name, first, rows, &mut values)?;
        }
        Ok(())
    }

    /// Gives the mapped pages of a parameter back to the system, once it has been packed. Reading it again is possible
    /// and maps them in again. A name that is no parameter has no pages.
    pub fn release(&self, name: &str) {
        if let Some(&index) = self.by_name.get(name) {
            let at = self.tensors[index].at;
            self.files[at.file].1.release(at.start, at.end - at.start);
        }
    }

    fn row_bytes(&self, tensor: &TensorInfo, first_row: usize, rows: usize) -> &[u8] {
        let all = tensor.shape[0];
        assert!(
            first_row <= all && rows <= all - first_row,
            "{}: rows {first_row} and {rows} more, of {all}",
            tensor.name
        );
        let row_bytes = tensor.row_len() * tensor.dtype.bytes();
        &self.bytes(tensor.at)[first_row * row_bytes..][..rows * row_bytes]
    }

    fn non_finite(&self, tensor: &TensorInfo, index: usize, value: f32) -> CheckpointError {
        CheckpointError::NonFinite {
            file: self.path(tensor.at),
            tensor: tensor.name.clone(),
            index,
            offset: tensor.at.start + index * tensor.dtype.bytes(),
            value,
        }
    }
}
