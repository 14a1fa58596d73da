//! Read-only memory-mapped files, so that no other crate needs `unsafe`.

use std::fs::File;
use std::io;
use std::path::Path;

use memmap2::{Mmap, UncheckedAdvice};

/// A file mapped for reading.
#[derive(Debug)]
pub struct MappedFile {
    map: Option<Mmap>, // none: the file is empty, which cannot be mapped
}

impl MappedFile {
    /// Maps the file at `path`.
    ///
    /// The file must not be shortened while it is mapped; the operating system raises a bus error on a read past its
    /// new end. leeway itself replaces files by renaming and never writes into one that may be mapped.
    pub fn open(path: &Path) -> io::Result<MappedFile> {
        let file = File::open(path)?;
        let meta = file.metadata()?;
        if meta.is_dir() {
            return Err(io::Error::new(io::ErrorKind::IsADirectory, "is a directory"));
        }
        if meta.len() == 0 {
            return Ok(MappedFile { map: None });
        }
        // SAFETY: the mapping is read-only; that nobody truncates the file is stated above as the caller's part.
        let map = unsafe { Mmap::map(&file) }?;
        Ok(MappedFile { map: Some(map) })
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.map.as_deref().unwrap_or(&[])
    }

    /// Gives the resident pages of `at .. at + len` back to the system; a later read fetches them from the file again.
    pub fn release(&self, at: usize, len: usize) {
        if let Some(map) = &self.map {
            let (at, len) = (at.min(map.len()), len.min(map.len().saturating_sub(at)));
            // SAFETY: dropping pages of a read-only, file-backed mapping loses nothing: reads map them in again.
            let released = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, at, len) };
            // Advice: when the system declines it, memory stays resident a while longer and nothing else changes.
            drop(released);
        }
    }
}
