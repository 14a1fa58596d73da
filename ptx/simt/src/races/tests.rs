//! Records by hand: moments, merged readers, bytes, and numbers that run out.

use super::*;

fn plain(thread: u32) -> Me {
    Me { thread, atomic: false, read_only: false }
}

/// A block of two warps.
struct Block<'a> {
    races: Races<'a>,
    clocks: Clocks,
}

impl<'a> Block<'a> {
    fn new(ledger: &'a Ledger) -> Block<'a> {
        let mut races = Races::new(ledger, 2, [64, 1, 1], false);
        races.restart(5);
        Block { races, clocks: Clocks::new(2) }
    }

    fn now(&mut self, thread: u32) -> Now {
        self.races.now(thread / 32, &self.clocks).expect("numbers are left")
    }

    fn read(&mut self, records: &Records, word: usize, bytes: u32, me: Me) -> Result<(), Conflict> {
        let now = self.now(me.thread);
        self.races.read(records, (word, bytes), (now, me), &self.clocks)
    }

    fn write(&mut self, records: &Records, word: usize, bytes: u32, me: Me) -> Result<(), Conflict> {
        let now = self.now(me.thread);
        self.races.write(records, (word, bytes), (now, me), false, &self.clocks)
    }

    fn barrier(&mut self) {
        assert!(self.clocks.block_barrier(1 << 20));
        self.races.block_barrier();
    }
}

#[test]
fn barriers_order_the_block_and_not_the_launch() {
    let (ledger, records) = (Ledger::new(Ledger::START), Records::new(4));
    let mut a = Block::new(&ledger);
    a.write(&records, 1, 15, plain(3)).unwrap();
    a.read(&records, 1, 15, plain(3)).unwrap();
    assert_eq!(a.read(&records, 1, 15, plain(4)), Err(Conflict::Write(By::Thread(3))));
    assert_eq!(a.read(&records, 1, 15, plain(40)), Err(Conflict::Write(By::Thread(3))));
    a.barrier();
    a.read(&records, 1, 15, plain(40)).unwrap();
    let mut b = Block::new(&ledger);
    assert_eq!(b.read(&records, 1, 15, plain(3)), Err(Conflict::Write(By::Block(Some(5)))));
    let next = ledger.end().expect("few were taken");
    let ledger = Ledger::new(next);
    Block::new(&ledger).write(&records, 1, 15, plain(9)).unwrap();
}

#[test]
fn readers_are_remembered_one_by_one_and_then_as_several() {
    let (ledger, records) = (Ledger::new(Ledger::START), Records::new(4));
    let mut a = Block::new(&ledger);
    for (threads, by) in
        [(&[7][..], By::Thread(7)), (&[7, 8], By::Threads), (&[7, 40], By::Threads), (&[7, 8, 40, 7], By::Threads)]
    {
        threads.iter().for_each(|&thread| a.read(&records, 2, 15, plain(thread)).unwrap());
        assert_eq!(a.write(&records, 2, 15, plain(50)), Err(Conflict::Read(by)), "{threads:?}");
        a.barrier();
    }
    // Two blocks: no barrier forgets that.
    a.read(&records, 2, 15, plain(7)).unwrap();
    let mut b = Block::new(&ledger);
    b.read(&records, 2, 15, plain(7)).unwrap();
    b.barrier();
    b.read(&records, 2, 15, plain(7)).unwrap();
    assert_eq!(b.write(&records, 2, 15, plain(7)), Err(Conflict::Read(By::Block(None))));
}

#[test]
fn bytes_have_their_own_records_until_one_thread_writes_all() {
    let (ledger, records) = (Ledger::new(Ledger::START), Records::new(4));
    let mut a = Block::new(&ledger);
    a.write(&records, 3, 0b0011, plain(1)).unwrap();
    a.write(&records, 3, 0b1100, plain(2)).unwrap();
    a.read(&records, 3, 0b0001, plain(1)).unwrap();
    assert_eq!(a.read(&records, 3, 15, plain(1)), Err(Conflict::Write(By::Thread(2))));
    assert_eq!(records.words[3].load(Relaxed), SPLIT);
    a.barrier();
    a.write(&records, 3, 15, plain(40)).unwrap();
    assert_ne!(records.words[3].load(Relaxed), SPLIT);
    assert_eq!(a.write(&records, 3, 0b0100, plain(41)), Err(Conflict::Write(By::Thread(40))));
}

#[test]
fn a_read_only_load_is_not_forgotten_within_the_launch() {
    let (ledger, records) = (Ledger::new(Ledger::START), Records::new(1));
    let mut a = Block::new(&ledger);
    a.read(&records, 0, 15, Me { read_only: true, ..plain(1) }).unwrap();
    a.barrier();
    a.read(&records, 0, 15, plain(1)).unwrap();
    assert_eq!(a.write(&records, 0, 15, plain(1)), Err(Conflict::ReadOnly));
    let ledger = Ledger::new(ledger.end().expect("few were taken"));
    Block::new(&ledger).write(&records, 0, 15, plain(1)).unwrap();
}

#[test]
fn numbers_that_run_out_end_the_records() {
    let ledger = Ledger::new(MOMENTS - CHUNK - 1);
    let mut a = Block::new(&ledger);
    for _ in 0..CHUNK {
        assert!(a.races.now(0, &a.clocks).is_some());
        a.barrier();
    }
    assert!(a.races.now(0, &a.clocks).is_none());
    assert!(ledger.end().is_none());
    assert_eq!(Ledger::new(7).end(), Some(8));
}
