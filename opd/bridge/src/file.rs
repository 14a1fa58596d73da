//! Making and opening a ring's file.

use crate::error::{MetaError, OpenError};
use crate::layout::{
    ALIGN, BLOCK_HEADER, BYTE_ORDER, FILE_CHECKED, FILE_HEADER, MAGIC, SLOT_COUNT_MAX, VERSION, aligned, get_u32,
    get_u64, put,
};
use crate::meta::Meta;
use crate::slot::Mapping;
use crate::states::{State, Word};
use memmap2::MmapOptions;
use std::fs::File;
use std::hash::{BuildHasher, Hasher};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// How many slots of how many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// A power of two, 2 to 2^20.
    pub slot_count: u32,
    /// A multiple of 64, at least 192.
    pub slot_bytes: u64,
}

impl Geometry {
    /// Slots that hold blocks as large as this one.
    ///
    /// # Errors
    /// The block cannot be.
    pub fn for_blocks(slot_count: u32, largest: &Meta) -> Result<Geometry, MetaError> {
        let bytes = largest.payload_bytes()?;
        let slot = bytes.checked_add(BLOCK_HEADER).and_then(aligned);
        let too_large =
            MetaError::TooLarge { rows: largest.rows, width: largest.width, needs: bytes, slot_bytes: u64::MAX };
        Ok(Geometry { slot_count, slot_bytes: slot.ok_or(too_large)? })
    }

    /// Length of the file, where the geometry can be.
    fn file_bytes(self) -> Result<u64, &'static str> {
        let Geometry { slot_count, slot_bytes } = self;
        if !slot_count.is_power_of_two() || !(2..=SLOT_COUNT_MAX).contains(&slot_count) {
            return Err("the count has to be a power of two, 2 to 2^20");
        }
        if !slot_bytes.is_multiple_of(ALIGN) || slot_bytes < BLOCK_HEADER + ALIGN {
            return Err("a slot has to be a multiple of 64 bytes, at least 192");
        }
        let bytes = slot_bytes.checked_mul(slot_count.into()).and_then(|bytes| bytes.checked_add(FILE_HEADER));
        bytes.filter(|&bytes| i64::try_from(bytes).is_ok()).ok_or("no file is that large")
    }
}

/// Makes a ring that nobody is attached to. It appears under its name whole or not at all.
///
/// # Errors
/// The geometry cannot be, the file exists, or the system refuses it.
pub fn create(path: &Path, geometry: Geometry) -> Result<(), OpenError> {
    let Geometry { slot_count, slot_bytes } = geometry;
    let bytes = geometry.file_bytes().map_err(|reason| OpenError::Geometry { slot_count, slot_bytes, reason })?;
    // Of the system's entropy, so that two rings made at once differ.
    let nonce = std::hash::RandomState::new().build_hasher().finish();
    let mut draft = path.as_os_str().to_owned();
    draft.push(format!(".{nonce:016x}"));
    let draft = Path::new(&draft);
    let made = File::options().write(true).create_new(true).open(draft).and_then(|mut file| {
        reserve(&file, bytes)?;
        file.write_all(&header(geometry, nonce))?;
        for slot in 0..u64::from(slot_count) {
            file.write_all_at(&Word::new(slot, State::Free).code().to_ne_bytes(), FILE_HEADER + slot * slot_bytes)?;
        }
        std::fs::hard_link(draft, path)
    });
    let removed = std::fs::remove_file(draft);
    match made.and(removed) {
        Ok(()) => Ok(()),
        Err(source) if source.kind() == std::io::ErrorKind::AlreadyExists => {
            Err(OpenError::Exists { path: path.to_owned() })
        }
        Err(source) => Err(OpenError::Io { path: path.to_owned(), source }),
    }
}

/// Takes the memory now: a full memory file system is an error here rather than a signal at a later write.
#[cfg(target_os = "linux")]
fn reserve(file: &File, bytes: u64) -> std::io::Result<()> {
    match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, bytes) {
        Err(rustix::io::Errno::OPNOTSUPP) => file.set_len(bytes),
        other => other.map_err(std::io::Error::from),
    }
}

#[cfg(not(target_os = "linux"))]
fn reserve(file: &File, bytes: u64) -> std::io::Result<()> {
    file.set_len(bytes)
}

fn header(geometry: Geometry, nonce: u64) -> [u8; 64] {
    let mut line = [0; 64];
    line[..8].copy_from_slice(MAGIC.as_bytes());
    put(&mut line, 8, VERSION.to_ne_bytes());
    put(&mut line, 12, BYTE_ORDER.to_ne_bytes());
    put(&mut line, 16, u32::try_from(FILE_HEADER).expect("small").to_ne_bytes());
    put(&mut line, 20, geometry.slot_count.to_ne_bytes());
    put(&mut line, 24, geometry.slot_bytes.to_ne_bytes());
    put(&mut line, 32, nonce.to_ne_bytes());
    let crc = crc32c::crc32c(&line[..FILE_CHECKED]);
    put(&mut line, FILE_CHECKED, crc.to_ne_bytes());
    line
}

/// Maps a ring, after checking all that never changes in it.
pub fn open(path: &Path) -> Result<Mapping, OpenError> {
    let io = |source| OpenError::Io { path: path.to_owned(), source };
    let path_buf = || path.to_owned();
    let file = File::options().read(true).write(true).open(path).map_err(io)?;
    let found = file.metadata().map_err(io)?.len();
    let mut line = [0; 64];
    if found < FILE_HEADER {
        return Err(OpenError::Length { path: path_buf(), found, expected: FILE_HEADER });
    }
    file.read_exact_at(&mut line, 0).map_err(io)?;
    if line[..8] != *MAGIC.as_bytes() {
        return Err(OpenError::Magic { path: path_buf() });
    }
    // The byte order decides how all the rest reads.
    if get_u32(&line, 12) == BYTE_ORDER.swap_bytes() {
        return Err(OpenError::ByteOrder { path: path_buf() });
    }
    if get_u32(&line, 8) != VERSION {
        return Err(OpenError::Version { path: path_buf(), found: get_u32(&line, 8), expected: VERSION });
    }
    let (crc, crc_found) = (crc32c::crc32c(&line[..FILE_CHECKED]), get_u32(&line, FILE_CHECKED));
    if crc != crc_found {
        return Err(OpenError::Checksum { path: path_buf(), found: crc_found, expected: crc });
    }
    let geometry = Geometry { slot_count: get_u32(&line, 20), slot_bytes: get_u64(&line, 24) };
    let Geometry { slot_count, slot_bytes } = geometry;
    let expected = geometry.file_bytes().map_err(|reason| OpenError::Geometry { slot_count, slot_bytes, reason })?;
    if found != expected || u64::from(get_u32(&line, 16)) != FILE_HEADER {
        return Err(OpenError::Length { path: path_buf(), found, expected });
    }
    let raw = MmapOptions::new().map_raw(&file).map_err(io)?;
    Ok(Mapping::new(raw, slot_count.into(), slot_bytes, get_u64(&line, 32)))
}
