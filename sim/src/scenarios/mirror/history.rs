//! Asynchronous mirror against the history of its source: at every millisecond at which the
//! target's disk permits a promotion, its data is the source's at one moment of the past.
//!
//! Several hosts write overlapping ranges, and every write carries its number. The target shows a
//! moment of the past when it includes, with each write that it shows, all writes that had
//! completed before that write began, because a host may have relied on them. The check reads the
//! target's disk from outside and never asks the mirror.
//!
//! The scenario leaves out disk faults, power losses of the source, and promotions. The link
//! reorders and delays messages, is cut, and the target's process is killed or its node loses
//! power, with the contents of its disk's volatile cache.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use flagstone_blockdev::BlockDevice;
use flagstone_mirror::state::status::{DesiredState, MirrorState};
use flagstone_mirror::{LinkVersions, Mode, PeerOptions};
use flagstone_runtime::sim::World;
use flagstone_runtime::{buf, time};

use super::pair::{BLOCKS, DATA, Pair};
use crate::Outcome;

/// Bytes per block: a copy of the resync includes several, and the volume is small.
const BLOCK: u64 = 16 << 10;
/// Blocks of the longest write.
const LONGEST: u64 = 6;
const STEP: Duration = Duration::from_millis(1);

/// A write. `began` and `completed` are positions in the order of all such events.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostWrite {
    first: u64,
    blocks: u64,
    began: u64,
    completed: Option<u64>,
}

/// All writes of all hosts. A write's number is its index plus 1; 0 is the initial content.
#[derive(Default)]
pub(super) struct History {
    writes: RefCell<Vec<HostWrite>>,
    /// Version of the target's disk at the last check. A write that completes after the writes on
    /// that disk began cannot change the result.
    checked: Cell<u64>,
    events: Cell<u64>,
    stop: Cell<bool>,
}

impl History {
    fn next_event(&self) -> u64 {
        self.events.set(self.events.get() + 1);
        self.events.get()
    }

    pub(super) fn begin(&self, first: u64, blocks: u64) -> u64 {
        let began = self.next_event();
        self.writes.borrow_mut().push(HostWrite { first, blocks, began, completed: None });
        self.writes.borrow().len() as u64
    }

    pub(super) fn complete(&self, number: u64) {
        let completed = self.next_event();
        self.writes.borrow_mut()[number as usize - 1].completed = Some(completed);
    }

    /// Forgets the writes that a replica with these blocks lacks, and that is the source from now
    /// on.
    pub(super) fn lose(&self, found: &[u64]) {
        let before = self.writes.borrow().clone();
        let began = |number: u64| number.checked_sub(1).map(|index| before[index as usize]);
        for write in self.writes.borrow_mut().iter_mut() {
            let range = write.first as usize..(write.first + write.blocks) as usize;
            let precedes = |number: &u64| match began(*number) {
                None => true,
                Some(shown) => shown.completed.is_some_and(|completed| completed < write.began),
            };
            if found[range].iter().any(precedes) {
                write.completed = None;
            }
        }
    }

    /// Checks that the writes found in the blocks belong to one moment of the past.
    pub(super) fn check(&self, found: &[u64]) -> Result<(), String> {
        let writes = self.writes.borrow();
        let write = |number: u64| number.checked_sub(1).map(|index| writes[index as usize]);
        let latest =
            found.iter().filter_map(|number| write(*number)).map(|write| write.began).max();
        let Some(latest) = latest else { return Ok(()) };
        // The last write of each block that the moment has to include.
        let mut needed = vec![(0, 0); found.len()];
        let mut unknown = found.len();
        for (index, write) in writes.iter().enumerate().rev() {
            if unknown == 0 {
                break;
            }
            if write.completed.is_some_and(|completed| completed < latest) {
                for needed in &mut needed[write.first as usize..][..write.blocks as usize] {
                    if *needed == (0, 0) {
                        *needed = (write.began, index + 1);
                        unknown -= 1;
                    }
                }
            }
        }
        for (block, (number, (began, missing))) in found.iter().zip(needed).enumerate() {
            let completed = write(*number).map_or(Some(0), |write| write.completed);
            if completed.is_some_and(|completed| completed < began) {
                return Err(format!("block {block} shows write {number} and lacks {missing}"));
            }
        }
        Ok(())
    }
}

pub(super) fn run(seed: u64) -> Outcome {
    let options: [fn(&mut PeerOptions); 4] = [
        |peer| peer.mode = Mode::Async,
        |peer| (peer.mode, peer.queue.window_bytes) = (Mode::Async, 1),
        |peer| (peer.mode, peer.pace.max_bytes_per_s) = (Mode::Async, Some(1 << 20)),
        |peer| {
            (peer.mode, peer.queue.window_bytes) = (Mode::Async, 3 * BLOCK);
            peer.pace.max_bytes_per_s = Some(2 << 20);
        },
    ];
    let releases = [LinkVersions::SPOKEN; 2];
    let pair = Pair::with_blocks(seed, BLOCK, releases, options[(seed % 4) as usize]);
    let sim = &pair.sim;
    let history = Rc::new(History::default());
    for _ in 0..sim.random_between(1, 6) {
        let pause = Duration::from_micros(sim.random_between(200, 20_000));
        host(&pair, &history, pause);
    }
    let faults = sim.random_between(2, 12);
    let mut checks = 0;
    for _ in 0..faults {
        step(&pair);
        for _ in 0..sim.random_between(1, 600) {
            sim.run_for(STEP);
            checks += u64::from(check(&pair, &history));
        }
    }
    heal(&pair);
    for _ in 0..600 {
        sim.run_for(STEP);
        checks += u64::from(check(&pair, &history));
    }
    history.stop.set(true);
    // A host that pauses writes once more.
    for _ in 0..50 {
        sim.run_for(STEP);
        checks += u64::from(check(&pair, &history));
    }
    pair.until(0, MirrorState::Mirroring);
    while pair.peer_status(0).lag_writes > 0 {
        sim.run_for(STEP);
        checks += u64::from(check(&pair, &history));
    }
    assert_eq!(pair.first_difference(), None, "the legs differ at rest");
    let outcome = Outcome::of(sim, checks, faults);
    pair.clear();
    outcome
}

/// A host that writes one range after the other.
fn host(pair: &Pair, history: &Rc<History>, pause: Duration) {
    let (mirror, world, history) = (pair.mirror(0), pair.sim.world(), history.clone());
    pair.sim.spawn_on(pair.nodes[0], async move {
        while !history.stop.get() {
            time::sleep(world.random_span(Duration::ZERO, pause)).await;
            let (first, blocks) = range(&world);
            let mut memory = buf::alloc((blocks * BLOCK) as usize).await;
            let number = history.begin(first, blocks);
            memory.fill(number as u8);
            for block in memory.chunks_mut(BLOCK as usize) {
                block[..8].copy_from_slice(&number.to_le_bytes());
            }
            mirror.write(first * BLOCK, memory.freeze(), false).await.expect("the source serves");
            history.complete(number);
        }
    });
}

fn range(world: &World) -> (u64, u64) {
    let blocks = world.random_between(1, LONGEST);
    (world.random_between(0, BLOCKS - blocks), blocks)
}

/// Checks the target if it may be promoted; false if not.
fn check(pair: &Pair, history: &History) -> bool {
    let superblock = pair.superblock(1);
    if superblock.flags.inconsistent || superblock.current.is_none() || superblock.unverified {
        return false;
    }
    let version = pair.sim.disk_version(pair.nodes[1], DATA);
    if history.checked.replace(version) == version {
        return true;
    }
    let number = |block: u64| {
        let bytes = pair.sim.peek(pair.nodes[1], DATA, block * BLOCK, 8);
        u64::from_le_bytes(bytes.try_into().expect("8 bytes"))
    };
    let found: Vec<u64> = (0..BLOCKS).map(number).collect();
    if let Err(difference) = history.check(&found) {
        let at = pair.sim.now();
        panic!("at {at:?} the target shows no moment of the past: {difference}");
    }
    true
}

/// Performs one random fault or command.
fn step(pair: &Pair) {
    let sim = &pair.sim;
    match sim.random_between(0, 10) {
        0 | 1 => pair.cut(),
        2 | 3 => heal(pair),
        4 => command(pair, DesiredState::Paused),
        5 => command(pair, DesiredState::Connected),
        6 | 7 => pair.mirror(0).resync_all(0).expect("there is a peer"),
        8 if sim.is_up(pair.nodes[1]) => pair.end(1, sim.chance(0.5)),
        _ => {
            let slow = sim.random_span(Duration::from_micros(100), Duration::from_millis(30));
            pair.network().set_slow(slow);
        }
    }
}

fn command(pair: &Pair, desired: DesiredState) {
    pair.on(0, async move |mirror| mirror.set_desired_state(0, desired).await)
        .expect("a sound disk");
}

fn heal(pair: &Pair) {
    pair.network().heal();
    if !pair.sim.is_up(pair.nodes[1]) {
        pair.restart(1);
    }
    command(pair, DesiredState::Connected);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The resync ended while writes that its copies included were still queued. The target was
    /// then called consistent, and lacked up to hundreds of writes that later ones depend on.
    #[test]
    fn async_resync_ends_after_queued_writes() {
        for seed in [3, 11, 15, 19, 22] {
            run(seed);
        }
    }

    /// A power loss of the target took back writes from its disk's cache, and later writes that
    /// depend on them survived.
    #[test]
    fn target_power_loss_leaves_moment_of_past() {
        (100..130).for_each(|seed| _ = run(seed));
    }

    /// A write that depends on another must not be shown without it.
    #[test]
    fn missing_dependency_is_found() {
        let history = History::default();
        let [first, second] = [0, 1].map(|block| {
            let number = history.begin(block, 1);
            history.complete(number);
            number
        });
        let concurrent = [history.begin(2, 1), history.begin(3, 1)];
        let shows = |found: [u64; 4]| {
            let mut all = [0; BLOCKS as usize];
            all[..4].copy_from_slice(&found);
            history.check(&all).is_ok()
        };
        assert!(shows([0; 4]) && shows([first, 0, 0, 0]) && shows([first, second, 0, 0]));
        assert!(shows([first, second, 0, concurrent[1]]), "neither depends on the other");
        assert!(!shows([0, second, 0, 0]) && !shows([first, 0, concurrent[0], 0]));
    }
}
