//! What the tests of the bridge share: blocks whose every array follows from a seed, and a copy of what a lease shows.
#![allow(clippy::cast_possible_truncation, reason = "small numbers, and random bits to be cut")]
#![allow(dead_code, reason = "each test takes what it needs")]

use bridge::{Arrays, ArraysMut, Dtype, Geometry, Kind, Lease, Meta, Patience, Producer, Scores, ScoresMut};
use std::path::{Path, PathBuf};

/// A stream of numbers from a seed (splitmix64).
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    /// Below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn u32(&mut self) -> u32 {
        (self.next() >> 32) as u32
    }

    fn bytes(&mut self, into: &mut [u8]) {
        into.fill_with(|| self.next() as u8);
    }

    fn u32s(&mut self, into: &mut [u32]) {
        into.fill_with(|| self.u32());
    }

    /// Any bits, those of NaN included.
    fn f32s(&mut self, into: &mut [f32]) {
        into.fill_with(|| f32::from_bits(self.u32()));
    }
}

/// A ring in a folder of its own, on the memory file system where there is one.
pub fn ring(slots: u32, largest: &Meta) -> (tempfile::TempDir, PathBuf) {
    let shm = Path::new("/dev/shm");
    let folder = if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() };
    let folder = folder.expect("a temporary folder");
    let path = folder.path().join("ring");
    bridge::create(&path, Geometry::for_blocks(slots, largest).expect("it can be")).expect("made");
    (folder, path)
}

/// Fills all arrays with what follows from the seed.
pub fn fill(arrays: ArraysMut<'_>, seed: u64) {
    let mut numbers = Numbers(seed);
    numbers.u32s(arrays.tokens);
    numbers.f32s(arrays.logprobs);
    numbers.f32s(arrays.lse);
    arrays.mask.fill_with(|| (numbers.next() & 1) as u8);
    numbers.u32s(arrays.versions);
    match arrays.scores {
        ScoresMut::Dense(mut rows) => (0..arrays.tokens.len()).for_each(|row| numbers.bytes(rows.row_mut(row))),
        ScoresMut::TopK { ids, ln_q, tail } => {
            numbers.u32s(ids);
            numbers.f32s(ln_q);
            numbers.f32s(tail);
        }
        ScoresMut::Sampled(logprobs) => numbers.f32s(logprobs),
        ScoresMut::Missing => {}
    }
}

/// Publishes a block that follows from the seed; gives its number.
pub fn publish(producer: &mut Producer, meta: &Meta, seed: u64) -> u64 {
    let mut draft = producer.claim(meta, Patience::NONE).expect("a slot is free");
    fill(draft.arrays_mut(), seed);
    draft.publish().expect("sound")
}

/// All that a block says, as bytes, without gaps.
pub fn image(meta: &Meta, arrays: &Arrays<'_>) -> Vec<u8> {
    let mut all = format!("{meta:?}").into_bytes();
    all.extend_from_slice(bytemuck::cast_slice(arrays.tokens));
    all.extend_from_slice(bytemuck::cast_slice(arrays.logprobs));
    all.extend_from_slice(bytemuck::cast_slice(arrays.lse));
    all.extend_from_slice(arrays.mask);
    all.extend_from_slice(bytemuck::cast_slice(arrays.versions));
    match arrays.scores {
        Scores::Dense(rows) => (0..arrays.tokens.len()).for_each(|row| all.extend_from_slice(rows.row(row))),
        Scores::TopK { ids, ln_q, tail } => {
            all.extend_from_slice(bytemuck::cast_slice(ids));
            all.extend_from_slice(bytemuck::cast_slice(ln_q));
            all.extend_from_slice(bytemuck::cast_slice(tail));
        }
        Scores::Sampled(logprobs) => all.extend_from_slice(bytemuck::cast_slice(logprobs)),
        Scores::Missing => {}
    }
    all
}

/// What [`image`] is of a block filled by [`fill`], made from the shape alone.
pub fn expected(meta: &Meta, seed: u64) -> Vec<u8> {
    let mut numbers = Numbers(seed);
    let (rows, width) = (meta.rows as usize, meta.width as usize);
    let mut arrays = Vec::new();
    let words = |numbers: &mut Numbers, count: usize| -> Vec<u8> {
        (0..count).flat_map(|_| numbers.u32().to_ne_bytes()).collect()
    };
    arrays.extend(words(&mut numbers, 2 * rows));
    arrays.extend(words(&mut numbers, if meta.lse { rows } else { 0 }));
    arrays.extend((0..rows).map(|_| (numbers.next() & 1) as u8));
    let versions: Vec<u32> = (0..rows).map(|_| numbers.u32()).collect();
    arrays.extend(versions.iter().flat_map(|version| version.to_ne_bytes()));
    arrays.extend(match meta.kind {
        _ if meta.missing => Vec::new(),
        Kind::Hidden | Kind::Logits => {
            let bytes = rows * width * if meta.dtype == Dtype::Bf16 { 2 } else { 4 };
            (0..bytes).map(|_| numbers.next() as u8).collect()
        }
        Kind::TopK => words(&mut numbers, 2 * rows * width + if meta.tail { rows } else { 0 }),
        Kind::Sampled => words(&mut numbers, rows),
    });
    let least_and_most = (*versions.iter().min().expect("rows"), *versions.iter().max().expect("rows"));
    [format!("{:?}", Meta { versions: least_and_most, ..*meta }).into_bytes(), arrays].concat()
}

/// The same of a lease.
pub fn leased(lease: &Lease) -> Vec<u8> {
    image(lease.meta(), &lease.arrays())
}

/// A meta of every kind, with flags by the bits of `flags` where the kind takes them.
pub fn meta(kind: Kind, dtype: Dtype, rows: u32, width: u32, flags: u32) -> Meta {
    let dense = matches!(kind, Kind::Hidden | Kind::Logits);
    Meta {
        dtype: if dense { dtype } else { Dtype::F32 },
        rows,
        width: if kind == Kind::Sampled { 1 } else { width },
        lse: flags & 1 != 0,
        tail: flags & 2 != 0 && kind == Kind::TopK,
        missing: flags & 4 != 0,
        ..Meta::new(kind)
    }
}
