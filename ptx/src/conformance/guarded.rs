//! Device buffers between guard bytes: a kernel that writes beside its output is found out.

use crate::cuda::{CudaError, Gpu, Mem, View};
use bytemuck::Pod;

/// Bytes before and behind; a multiple of every alignment that kernels ask for.
const GUARD: usize = 256;
/// What guards, and outputs before they are written, hold: neither zero nor a likely result.
const BYTE: u8 = 0xa5;

/// `len` elements with guards around them.
pub(crate) struct Guarded<T> {
    mem: Mem<T>,
    guard: usize,
    len: usize,
}

impl<T: Pod + PartialEq> Guarded<T> {
    /// An output, filled with the guards' byte.
    pub(crate) fn new(gpu: &Gpu, len: usize) -> Result<Guarded<T>, CudaError> {
        let guard = GUARD / size_of::<T>();
        let mem = gpu.alloc(len + 2 * guard)?;
        gpu.fill(mem.view(), BYTE)?;
        Ok(Guarded { mem, guard, len })
    }

    /// An input, or what is read and written.
    pub(crate) fn of(gpu: &Gpu, from: &[T]) -> Result<Guarded<T>, CudaError> {
        let guarded = Guarded::new(gpu, from.len())?;
        gpu.write(guarded.view(), from)?;
        Ok(guarded)
    }

    /// The elements.
    pub(crate) fn view(&self) -> View<T> {
        self.mem.view().part(self.guard, self.len)
    }

    /// The elements after all launches so far, and what is wrong with the guards, if anything is.
    pub(crate) fn take(&self, gpu: &Gpu) -> Result<(Vec<T>, Option<String>), CudaError> {
        let all = gpu.download(self.mem.view())?;
        let bytes: &[u8] = bytemuck::cast_slice(&all);
        let inside = self.guard * size_of::<T>()..(self.guard + self.len) * size_of::<T>();
        let broken = bytes.iter().enumerate().find(|(at, byte)| !inside.contains(at) && **byte != BYTE);
        let broken = broken.map(|(at, _)| match at.checked_sub(inside.end) {
            Some(behind) => format!("wrote {behind} bytes behind the end"),
            None => format!("wrote {} bytes before the beginning", inside.start - at),
        });
        Ok((all[self.guard..][..self.len].to_vec(), broken))
    }
}
