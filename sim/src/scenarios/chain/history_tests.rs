use flagstone_runtime::sim::Simulation;

use super::*;

const BLOCKS: u64 = 4;

/// A history of four blocks, and the simulation that is its clock.
struct Fixture {
    sim: Simulation,
    history: History,
}

impl Fixture {
    fn new() -> Fixture {
        let sim = Simulation::new(1, Default::default());
        let history = History::new(sim.world(), 1, BLOCKS * BLOCK as u64);
        Fixture { sim, history }
    }

    fn begin(&self, block: u64) -> WriteId {
        self.history.begin_write(0, block * BLOCK as u64, BLOCK, false, false)
    }

    fn write(&self, block: u64) -> WriteId {
        let id = self.begin(block);
        self.history.end_write(id);
        id
    }

    fn content(&self, id: WriteId) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK];
        self.history.fill(id, &mut bytes);
        bytes
    }

    fn reads(&self, block: u64, id: WriteId) {
        let began = self.history.begin();
        self.history.end_read(1, began, block * BLOCK as u64, &self.content(id));
    }

    fn flush(&self) {
        let began = self.history.begin();
        self.history.end_flush(began);
    }

    /// Content of the volume with these writes.
    fn volume(&self, writes: &[(usize, WriteId)]) -> Vec<u8> {
        let mut bytes = vec![0; BLOCKS as usize * BLOCK];
        for (block, id) in writes {
            bytes[block * BLOCK..][..BLOCK].copy_from_slice(&self.content(*id));
        }
        bytes
    }

    /// Longer than a host waits before it sends a write again.
    fn wait(&self) {
        self.sim.run_for(2 * RESENT_AFTER);
    }
}

#[test]
fn concurrent_writes_are_read_in_one_order() {
    let test = Fixture::new();
    let (first, second) = (test.begin(0), test.begin(0));
    test.reads(0, first);
    test.reads(0, second);
    test.history.end_write(first);
    test.history.end_write(second);
    test.reads(0, second);
}

#[test]
#[should_panic(expected = "a stale read")]
fn overwritten_value_is_stale() {
    let test = Fixture::new();
    let first = test.write(0);
    test.write(0);
    test.reads(0, first);
}

#[test]
#[should_panic(expected = "a stale read")]
fn value_that_was_seen_does_not_vanish() {
    let test = Fixture::new();
    let first = test.write(0);
    let second = test.begin(0);
    test.reads(0, second);
    test.reads(0, first);
}

#[test]
fn unanswered_write_may_take_effect_twice() {
    let test = Fixture::new();
    let slow = test.begin(0);
    test.reads(0, slow);
    let newer = test.write(0);
    test.reads(0, newer);
    test.wait();
    test.reads(0, slow);
}

#[test]
#[should_panic(expected = "a stale read")]
fn answered_write_does_not_return() {
    let test = Fixture::new();
    let slow = test.begin(0);
    test.wait();
    test.history.end_write(slow);
    test.write(0);
    test.reads(0, slow);
}

#[test]
#[should_panic(expected = "a torn block")]
fn torn_block_is_noticed() {
    let test = Fixture::new();
    let (first, second) = (test.write(0), test.begin(0));
    let mut bytes = test.content(first);
    bytes[BLOCK / 2..].copy_from_slice(&test.content(second)[BLOCK / 2..]);
    let began = test.history.begin();
    test.history.end_read(1, began, 0, &bytes);
}

#[test]
#[should_panic(expected = "which was not written here")]
fn misplaced_block_is_noticed() {
    let test = Fixture::new();
    let id = test.history.begin_write(0, 0, BLOCK, false, false);
    let mut bytes = test.content(id);
    let word = word_of(1, 1, id.0).to_le_bytes();
    bytes.chunks_mut(8).for_each(|part| part.copy_from_slice(&word));
    let began = test.history.begin();
    test.history.end_read(1, began, BLOCK as u64, &bytes);
}

#[test]
fn power_loss_takes_unflushed_writes() {
    let test = Fixture::new();
    let (flushed, lost) = (test.write(0), test.write(1));
    test.flush();
    let newer = test.write(0);
    test.history.lose_unflushed();
    test.reads(0, flushed);
    test.reads(1, lost);
    let _ = newer;
}

#[test]
#[should_panic(expected = "which was overwritten or given up")]
fn power_loss_does_not_take_flushed_writes() {
    let test = Fixture::new();
    let first = test.write(0);
    test.write(0);
    test.flush();
    test.history.lose_unflushed();
    test.reads(0, first);
}

#[test]
#[should_panic(expected = "which was overwritten or given up")]
fn content_after_power_loss_is_stable() {
    let test = Fixture::new();
    let (first, second) = (test.write(0), test.write(0));
    test.history.lose_unflushed();
    test.reads(0, first);
    test.reads(0, second);
}

#[test]
fn content_is_one_moment_of_the_past() {
    let test = Fixture::new();
    let (first, second, third) = (test.write(0), test.write(1), test.write(2));
    let is_cut = |writes: &[_]| test.history.check_cut(&test.volume(writes)).is_ok();
    assert!(is_cut(&[]));
    assert!(is_cut(&[(0, first)]));
    assert!(is_cut(&[(0, first), (1, second), (2, third)]));
    assert!(!is_cut(&[(1, second)]), "an older write is missing");
    assert!(!is_cut(&[(0, first), (2, third)]), "one between is missing");
}

#[test]
fn writes_in_flight_are_in_a_cut_or_not() {
    let test = Fixture::new();
    let (first, second) = (test.begin(0), test.begin(1));
    let is_cut = |writes: &[_]| test.history.check_cut(&test.volume(writes)).is_ok();
    assert!(is_cut(&[(0, first)]) && is_cut(&[(1, second)]));
}
