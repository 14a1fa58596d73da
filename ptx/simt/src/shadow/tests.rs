//! The order of accesses by clocks, word by word and byte by byte.

use super::*;

fn actor(thread: u32) -> Actor {
    Actor { thread, atomic: false }
}

#[test]
fn a_barrier_of_the_block_orders_everything() {
    let mut s = Shadow::new(4, 2);
    assert_eq!(s.read(0, 15, actor(0)), Err(Problem::Uninitialized));
    s.write(0, 15, actor(0), false).unwrap();
    s.read(0, 15, actor(0)).unwrap();
    assert_eq!(s.read(0, 15, actor(40)), Err(Problem::Write(Some(0))));
    assert_eq!(s.read(0, 15, actor(1)), Err(Problem::Write(Some(0))));
    s.block_barrier();
    s.read(0, 15, actor(40)).unwrap();
    assert_eq!(s.write(0, 15, actor(0), false), Err(Problem::Read(Some(40))));
    s.read(0, 15, actor(41)).unwrap();
    assert_eq!(s.write(0, 15, actor(41), false), Err(Problem::Read(None)));
    s.block_barrier();
    s.write(0, 15, actor(0), false).unwrap();
}

#[test]
fn a_warp_barrier_orders_its_lanes_only() {
    let mut s = Shadow::new(4, 2);
    s.write(0, 15, actor(0), false).unwrap();
    s.clocks.warp_barrier(0, u32::MAX, true);
    s.read(0, 15, actor(1)).unwrap();
    s.read(0, 15, actor(2)).unwrap();
    assert_eq!(s.read(0, 15, actor(33)), Err(Problem::Write(Some(0))));
    s.clocks.warp_barrier(0, u32::MAX, true);
    s.write(0, 15, actor(3), false).unwrap();
}

#[test]
fn barriers_of_some_lanes_chain() {
    let mut s = Shadow::new(4, 1);
    s.write(0, 15, actor(0), false).unwrap();
    s.clocks.warp_barrier(0, 0b011, false);
    s.read(0, 15, actor(1)).unwrap();
    assert_eq!(s.read(0, 15, actor(2)), Err(Problem::Write(Some(0))));
    s.clocks.warp_barrier(0, 0b110, false);
    s.read(0, 15, actor(2)).unwrap();
}

#[test]
fn a_barrier_of_some_warps_orders_them_only() {
    let mut s = Shadow::new(4, 3);
    s.write(0, 15, actor(0), false).unwrap();
    s.clocks.warps_barrier(&[0, 1]);
    s.read(0, 15, actor(32)).unwrap();
    assert_eq!(s.read(0, 15, actor(64)), Err(Problem::Write(Some(0))));
    s.clocks.warps_barrier(&[1, 2]);
    s.read(0, 15, actor(64)).unwrap();
}

#[test]
fn bytes_of_a_word_are_apart() {
    let mut s = Shadow::new(4, 1);
    s.write(0, 0b0011, actor(0), false).unwrap();
    s.write(0, 0b1100, actor(1), false).unwrap();
    s.read(0, 0b0011, actor(0)).unwrap();
    assert_eq!(s.read(0, 0b1100, actor(0)), Err(Problem::Write(Some(1))));
    s.block_barrier();
    s.read(0, 15, actor(5)).unwrap();
    s.block_barrier();
    s.write(0, 15, actor(6), false).unwrap();
    s.read(0, 15, actor(6)).unwrap();
}

#[test]
fn equal_writes_and_atomics_do_not_race() {
    let mut s = Shadow::new(4, 1);
    s.write(0, 15, actor(0), false).unwrap();
    s.write(0, 15, actor(1), true).unwrap();
    assert_eq!(s.write(0, 15, actor(0), false), Err(Problem::Write(Some(1))));
    s.block_barrier();
    s.atomic(0, 0).unwrap();
    s.atomic(0, 1).unwrap();
    assert_eq!(s.atomic(1, 1), Err(Problem::Uninitialized));
    assert_eq!(s.read(0, 15, actor(0)), Err(Problem::Write(Some(1))));
}

#[test]
fn copies_are_unreadable_until_they_end() {
    let mut s = Shadow::new(4, 1);
    s.begin_copy(0, actor(0)).unwrap();
    assert_eq!(s.read(0, 15, actor(0)), Err(Problem::Pending));
    s.end_copy(0, actor(0));
    s.read(0, 15, actor(0)).unwrap();
    assert_eq!(s.read(0, 15, actor(1)), Err(Problem::Write(Some(0))));
}
